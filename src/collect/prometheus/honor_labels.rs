//! Warns about `honor_labels` in Prometheus's configuration, which is read once whenever Prometheus becomes reachable. A page
//! scraped by such a job sets its own namespace and pod labels, and no query can tell. It has no effect on decisions.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Deserialize;
use tokio::task::JoinSet;

use super::client::QueryClient;

/// Most bytes of a configuration that are read. That of a Prometheus operator with a thousand monitors has 2 MiB, and is slightly
/// longer as a JSON string.
pub(super) const MAX_CONFIGURATION_BYTES: usize = 8 * 1024 * 1024;
/// Most jobs that the log names; the others are counted.
const MAX_NAMED_JOBS: usize = 20;
/// Most YAML nodes of a configuration: one for 32 bytes.
const MAX_NODES: usize = 250_000;

/// The check, and what it has logged.
#[derive(Debug, Default)]
pub(super) struct HonorLabelsCheck {
    state: Arc<Mutex<State>>,
    /// The running check. It ends with the time-out of a query at the latest, and with the source.
    task: Mutex<JoinSet<()>>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether the configuration has been requested since Prometheus became reachable.
    is_requested: bool,
    /// The jobs that were logged.
    logged: BTreeSet<String>,
}

impl HonorLabelsCheck {
    /// Called after each collection. Starts the check in the background if Prometheus has just become reachable.
    pub(super) fn start_if_due(&self, is_reachable: bool, client: &Arc<QueryClient>) {
        let was_requested = std::mem::replace(&mut self.state.lock().is_requested, is_reachable);
        if !is_reachable || was_requested {
            return;
        }
        let (client, state) = (Arc::clone(client), Arc::clone(&self.state));
        let mut task = self.task.lock();
        *task = JoinSet::new();
        task.spawn(async move {
            let read = match client.request("api/v1/status/config", None, MAX_CONFIGURATION_BYTES).await {
                Ok(answer) if answer.status.is_success() => {
                    tokio::task::spawn_blocking(move || jobs_that_honor_labels(&answer.body)).await
                }
                Ok(answer) => Ok(Err(format!("answered {}", answer.status))),
                Err(cause) => Ok(Err(cause)),
            };
            match read {
                Ok(Ok(jobs)) => state.lock().log(client.name(), jobs),
                Ok(Err(cause)) => log_unreadable(client.name(), &cause),
                Err(failure) => log_unreadable(client.name(), &failure.to_string()),
            }
        });
    }
}

fn log_unreadable(source: &str, cause: &str) {
    tracing::debug!(
        source,
        cause,
        "the configuration of Prometheus cannot be read, so it is not checked for honor_labels"
    );
}

impl State {
    /// Logs the jobs, if there are new ones among them.
    fn log(&mut self, source: &str, jobs: BTreeSet<String>) {
        if !jobs.is_subset(&self.logged) {
            let named: Vec<&str> = jobs.iter().take(MAX_NAMED_JOBS).map(String::as_str).collect();
            tracing::warn!(
                source,
                count = jobs.len(),
                jobs = ?named,
                "scrape jobs with honor_labels: the scraped pages set their own namespace and pod labels, so that whoever can write \
                 such a page sets the replicas of others; set overrideHonorLabels: true in the operator's Prometheus object, or \
                 remove honor_labels"
            );
        }
        self.logged = jobs;
    }
}

/// The answer of `/api/v1/status/config`.
#[derive(Deserialize)]
struct Answer {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    yaml: String,
}

#[derive(Deserialize)]
struct Configuration {
    #[serde(default)]
    scrape_configs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    #[serde(default)]
    job_name: String,
    #[serde(default)]
    honor_labels: bool,
}

/// The jobs with `honor_labels`.
fn jobs_that_honor_labels(body: &[u8]) -> Result<BTreeSet<String>, String> {
    let Answer { data: Data { yaml } } = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let budget = serde_saphyr::budget! {
        max_nodes: MAX_NODES,
        max_events: 4 * MAX_NODES,
        max_anchors: 0,
        max_aliases: 0,
    };
    let options = serde_saphyr::options! { with_snippet: false, budget: budget };
    let configuration: Configuration =
        serde_saphyr::from_str_with_options(&yaml, options).map_err(|error| error.to_string())?;
    let honoring = configuration.scrape_configs.into_iter().filter(|job| job.honor_labels);
    Ok(honoring.map(|job| job.job_name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(yaml: &str) -> Result<Vec<String>, String> {
        let body = serde_json::json!({"status": "success", "data": {"yaml": yaml}}).to_string();
        jobs_that_honor_labels(body.as_bytes()).map(|jobs| jobs.into_iter().collect())
    }

    #[test]
    fn jobs_with_honor_labels_are_found_whatever_else_is_configured() {
        let yaml = "global:\n  scrape_interval: 15s\nscrape_configs:\n- job_name: vllm\n  honor_timestamps: true\n  \
                    relabel_configs:\n  - {action: keep, regex: 'a|b'}\n- job_name: federate\n  honor_labels: true\n  \
                    params: {'match[]': ['{a=\"b\"}']}\n- job_name: off\n  honor_labels: false\nremote_write: []\n";
        assert_eq!(jobs(yaml).unwrap(), ["federate"]);
        assert_eq!(jobs("global: {}\n").unwrap(), Vec::<String>::new());
    }

    #[test]
    fn invalid_and_malicious_configurations_are_errors() {
        assert!(jobs("scrape_configs: 3").is_err());
        assert!(jobs("a: &a [x]\nscrape_configs: []\nb: [*a, *a]").is_err(), "Prometheus writes no aliases");
        let many = "- {job_name: a}\n".repeat(MAX_NODES);
        assert!(jobs(&format!("scrape_configs:\n{many}")).is_err());
        assert!(jobs_that_honor_labels(b"<html>").is_err());
    }
}
