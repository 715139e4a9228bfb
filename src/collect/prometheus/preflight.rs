//! A look at Prometheus's own configuration, once whenever it becomes reachable: where a job honours the labels of what it
//! scrapes, a page says itself which pod it is, and no query can see that. People are told; nothing is decided by it.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Deserialize;
use tokio::task::JoinSet;

use super::client::QueryClient;

/// Bytes of a configuration that is read: a Prometheus operator's of a thousand monitors has 2 MiB. As a string in JSON it is
/// somewhat longer.
pub(super) const MAX_CONFIGURATION_BYTES: usize = 8 * 1024 * 1024;
/// Jobs that are named in the log; the rest are counted.
const MAX_NAMED: usize = 20;
/// Values in a configuration: one in 32 bytes, and at most so many are read.
const MAX_NODES: usize = 250_000;

/// What is known of the configuration.
#[derive(Debug, Default)]
pub(super) struct Preflight {
    state: Arc<Mutex<State>>,
    /// Who asks; it ends with the time-out of a query at the latest, and with the source.
    asking: Mutex<JoinSet<()>>,
}

#[derive(Debug, Default)]
struct State {
    /// It has been asked for since Prometheus became reachable.
    is_asked: bool,
    /// The jobs that were named in the log.
    named: BTreeSet<String>,
}

impl Preflight {
    /// After a collection: asks for the configuration if Prometheus has just become reachable. Nobody waits for the answer.
    pub(super) fn after(&self, answered: bool, client: &Arc<QueryClient>) {
        let was_asked = std::mem::replace(&mut self.state.lock().is_asked, answered);
        if !answered || was_asked {
            return;
        }
        let (client, state) = (Arc::clone(client), Arc::clone(&self.state));
        let mut asking = self.asking.lock();
        *asking = JoinSet::new();
        asking.spawn(async move {
            let read = match client.configuration(MAX_CONFIGURATION_BYTES).await {
                Ok(body) => tokio::task::spawn_blocking(move || jobs_of(&body)).await,
                Err(cause) => Ok(Err(cause)),
            };
            match read {
                Ok(Ok(jobs)) => state.lock().tell(client.name(), jobs),
                Ok(Err(cause)) => unread(client.name(), &cause),
                Err(failure) => unread(client.name(), &failure.to_string()),
            }
        });
    }
}

fn unread(source: &str, cause: &str) {
    tracing::debug!(
        source,
        cause,
        "the scrape configuration cannot be read; nobody looks whether a job has honor_labels"
    );
}

impl State {
    /// Logs the jobs that honour labels, when there are new ones.
    fn tell(&mut self, source: &str, jobs: BTreeSet<String>) {
        if !jobs.is_subset(&self.named) {
            let named: Vec<&str> = jobs.iter().take(MAX_NAMED).map(String::as_str).collect();
            tracing::warn!(
                source,
                count = jobs.len(),
                jobs = ?named,
                "scrape jobs with honor_labels: what they scrape says itself which namespace and pod it is, so that whoever can \
                 write such a page sets the replicas of others; set overrideHonorLabels: true in the operator's Prometheus \
                 object, or leave honor_labels off"
            );
        }
        self.named = jobs;
    }
}

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

/// The jobs that honour labels, of the answer to a question for the configuration.
fn jobs_of(body: &[u8]) -> Result<BTreeSet<String>, String> {
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
    let honouring = configuration.scrape_configs.into_iter().filter(|job| job.honor_labels);
    Ok(honouring.map(|job| job.job_name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(yaml: &str) -> Result<Vec<String>, String> {
        let body = serde_json::json!({"status": "success", "data": {"yaml": yaml}}).to_string();
        jobs_of(body.as_bytes()).map(|jobs| jobs.into_iter().collect())
    }

    #[test]
    fn jobs_that_honour_labels_are_found_whatever_else_is_configured() {
        let yaml = "global:\n  scrape_interval: 15s\nscrape_configs:\n- job_name: vllm\n  honor_timestamps: true\n  \
                    relabel_configs:\n  - {action: keep, regex: 'a|b'}\n- job_name: federate\n  honor_labels: true\n  \
                    params: {'match[]': ['{a=\"b\"}']}\n- job_name: off\n  honor_labels: false\nremote_write: []\n";
        assert_eq!(jobs(yaml).unwrap(), ["federate"]);
        assert_eq!(jobs("global: {}\n").unwrap(), Vec::<String>::new());
    }

    #[test]
    fn what_is_no_configuration_is_an_error_and_no_bomb() {
        assert!(jobs("scrape_configs: 3").is_err());
        assert!(jobs("a: &a [x]\nscrape_configs: []\nb: [*a, *a]").is_err(), "Prometheus writes no aliases");
        let many = "- {job_name: a}\n".repeat(MAX_NODES);
        assert!(jobs(&format!("scrape_configs:\n{many}")).is_err());
        assert!(jobs_of(b"<html>").is_err());
    }
}
