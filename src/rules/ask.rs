//! Asks Prometheus the queries of rules: some at a time, for a limited time, and with a line of the log for what fails.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tracing::warn;

use super::commute::Requirement;
use super::shared_queries::SharedQueries;
use crate::collect::{PrometheusApi, QuerySample};
use crate::engine::{Clock, SourceError};
use crate::serve::{ObjectError, RuleError};

/// Queries at a time.
const CONCURRENT_QUERIES: usize = 32;
/// Longest wait for a query and its answer.
const READ_TIMEOUT: Duration = Duration::from_secs(12);
/// The same for what many reads share.
pub(super) const SHARED_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait of a read: after a shared query without an answer it has time for its own. An HPA waits 30 s.
pub(super) const ANSWER_TIMEOUT: Duration = SHARED_TIMEOUT.saturating_add(READ_TIMEOUT);
/// How often the log repeats that a metric cannot be read.
const LOG_INTERVAL: Duration = Duration::from_mins(10);
/// Most metrics, each in a namespace, that the log names in this time.
const MAX_LOGGED: usize = 1_000;
/// Letters of an error that the log shows.
const MAX_LOGGED_LETTERS: usize = 1_000;

/// Asks Prometheus.
pub(super) struct Queries {
    pub(super) api: PrometheusApi,
    pub(super) clock: Arc<dyn Clock>,
    permits: Semaphore,
    shared: SharedQueries,
    /// What failed a while ago or less.
    logged: Mutex<HashMap<String, Instant>>,
}

/// Longest wait for a list of objects. With that for the query it is below the 30 s of an HPA.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// That Prometheus took too long.
pub(super) fn no_answer_in_time(limit: Duration) -> String {
    let seconds = limit.as_secs();
    format!("Prometheus did not answer within {seconds} s: check that it is not overloaded")
}

/// A list of objects, or why there is none in time.
pub(super) async fn listed_in_time<T>(list: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let late = || {
        let seconds = LIST_TIMEOUT.as_secs();
        format!("the API server did not list them within {seconds} s: check that it is not overloaded")
    };
    timeout(LIST_TIMEOUT, list).await.unwrap_or_else(|_| Err(late()))
}

/// The answer to a read of objects, which lists them and asks Prometheus. Around both: a reader may have to do that in place of those that
/// went away.
pub(super) async fn answered_in_time<T>(
    answer: impl Future<Output = Result<T, ObjectError>>,
) -> Result<T, ObjectError> {
    let limit = LIST_TIMEOUT + ANSWER_TIMEOUT;
    timeout(limit, answer).await.unwrap_or_else(|_| {
        let seconds = limit.as_secs();
        Err(ObjectError::Failed(format!("the API server and Prometheus did not answer within {seconds} s")))
    })
}

/// The cause of an error, with the query of the rule.
pub(super) fn of_query(query: &str, cause: &str) -> String {
    format!("the query of its rule, {query:.300}: {cause}")
}

impl Queries {
    pub(super) fn new(api: PrometheusApi, clock: Arc<dyn Clock>) -> Self {
        Self {
            api,
            clock,
            permits: Semaphore::new(CONCURRENT_QUERIES),
            shared: SharedQueries::new(),
            logged: Mutex::default(),
        }
    }

    /// The values of a query, of the answer to a query that other reads share; `None` if it has to be asked for by itself. `requirements` are
    /// those of which reads may differ in one, and `further` values of that which are read too.
    pub(super) async fn find_shared(
        &self,
        query: &str,
        requirements: &[Requirement<'_>],
        further: &[&str],
    ) -> Option<Vec<QuerySample>> {
        self.shared.samples(query, (requirements, further), |query| self.ask_shared(query)).await
    }

    /// Asks again for what many reads share, until cancelled.
    pub(super) async fn renew(&self) {
        self.shared.renew(|query| self.ask_shared(query)).await;
    }

    async fn ask_shared(&self, query: String) -> Result<Vec<QuerySample>, String> {
        let _permit = self.permits.acquire().await;
        let answer = timeout(SHARED_TIMEOUT, self.api.query(&query)).await;
        answer.map_err(|_| no_answer_in_time(SHARED_TIMEOUT))?.map_err(|error| error.message)
    }

    /// The values of a query now.
    pub(super) async fn ask(&self, query: &str) -> Result<Vec<QuerySample>, RuleError> {
        let query = async {
            // With the wait for a permit, as that of a shared query: what is compared has the same load.
            let started = Instant::now();
            let _permit = self.permits.acquire().await;
            let samples = self.api.query(query).await?;
            self.shared.note_own_query(started.elapsed());
            Ok::<_, SourceError>(samples)
        };
        let samples =
            timeout(READ_TIMEOUT, query).await.map_err(|_| RuleError(no_answer_in_time(READ_TIMEOUT)))?;
        samples.map_err(|error| RuleError(error.message))
    }

    /// Logs that a read fails, once in a while for the metric of a kind of objects in a namespace. Not for each query: one about objects
    /// has their names, which change.
    pub(super) fn log(&self, (metric, resource, namespace): (&str, &str, &str), error: &str) {
        let mut logged = self.logged.lock();
        logged.retain(|_, at| at.elapsed() < LOG_INTERVAL);
        let key = format!("{metric} {resource} {namespace}");
        if logged.contains_key(&key) || logged.len() >= MAX_LOGGED {
            return;
        }
        let error: String = error.chars().take(MAX_LOGGED_LETTERS).collect();
        let prometheus = self.api.name();
        warn!(metric, resource, namespace, error, prometheus, "a metric of a rule cannot be read");
        logged.insert(key, Instant::now());
    }
}

/// A value in thousandths, rounded towards zero as the adapter does; `None` for NaN and what is too large. Neither is a number that an
/// autoscaler can follow; the adapter makes zero, or the smallest or the largest number of them.
pub(super) fn thousandths(value: f64) -> Option<i64> {
    let thousandths = value * 1_000.0;
    #[expect(clippy::cast_possible_truncation, reason = "within the range")]
    (thousandths > i64::MIN as f64 && thousandths < i64::MAX as f64).then_some(thousandths as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::PrometheusSettings;
    use crate::engine::SystemClock;

    #[tokio::test(start_paused = true)]
    async fn failing_queries_with_names_of_objects_silenced_the_log_for_good() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let api = PrometheusApi::new(&PrometheusSettings::new("http://prometheus".to_owned())).unwrap();
        let queries = Queries::new(api, Arc::new(SystemClock));
        for index in 0..2_000 {
            queries
                .log(("hits", "pods", "llm"), &format!("the query of its rule, hits{{pod=\"web-{index}\"}}"));
        }
        assert_eq!(queries.logged.lock().len(), 1);
        for index in 0..2_000 {
            queries.log(("hits", "pods", &format!("ns-{index}")), "refused");
        }
        assert_eq!(queries.logged.lock().len(), MAX_LOGGED);
        tokio::time::advance(LOG_INTERVAL).await;
        queries.log(("waits", "pods", "llm"), "refused");
        assert_eq!(queries.logged.lock().len(), 1, "what was logged a while ago takes no place");
    }

    #[tokio::test(start_paused = true)]
    async fn prometheus_was_blamed_for_a_list_that_the_api_server_did_not_answer() {
        let list = std::future::pending::<Result<(), String>>();
        let error = listed_in_time(list).await.unwrap_err();
        assert!(error.contains("the API server did not list them within 10 s"), "{error}");
    }
}
