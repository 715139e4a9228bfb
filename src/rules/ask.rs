//! Asks Prometheus the queries of rules: some at a time, for a limited time, and with one line of the log for each that fails.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tracing::{info, warn};

use crate::collect::{PrometheusApi, QuerySample};
use crate::engine::Clock;
use crate::serve::RuleError;

/// How long an answer is used again: HPAs that follow one metric read it within a sync of 15 s.
pub(super) const ANSWER_AGE: Duration = Duration::from_secs(1);
/// Most bytes of answers that are kept for that time.
pub(super) const MAX_KEPT_BYTES: u64 = 16 * 1024 * 1024;
/// Queries at a time.
const CONCURRENT_QUERIES: usize = 32;
/// Longest wait for a query and its answer. An HPA waits 30 s.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(12);
/// Most failing queries that the log names, each once.
const MAX_FAILING: usize = 1_000;

/// Asks Prometheus.
pub(super) struct Queries {
    pub(super) api: PrometheusApi,
    pub(super) clock: Arc<dyn Clock>,
    permits: Semaphore,
    /// The queries that failed when they were asked last.
    failing: Mutex<HashSet<String>>,
}

/// That Prometheus took too long.
pub(super) fn no_answer_in_time() -> String {
    let seconds = READ_TIMEOUT.as_secs();
    format!("Prometheus did not answer within {seconds} s: check that it is not overloaded")
}

/// The cause of an error, with the query of the rule.
pub(super) fn of_query(query: &str, cause: &str) -> String {
    format!("the query of its rule, {query:.300}: {cause}")
}

impl Queries {
    pub(super) fn new(api: PrometheusApi, clock: Arc<dyn Clock>) -> Self {
        Self { api, clock, permits: Semaphore::new(CONCURRENT_QUERIES), failing: Mutex::default() }
    }

    /// The values of a query now.
    pub(super) async fn ask(&self, query: &str) -> Result<Vec<QuerySample>, RuleError> {
        let _permit = self.permits.acquire().await;
        let samples = self.api.query(query, self.clock.now()).await;
        samples.map_err(|error| RuleError(error.message))
    }

    /// Logs that a query fails, or does no longer.
    pub(super) fn log(&self, metric: &str, query: String, error: Option<&RuleError>) {
        let mut failing = self.failing.lock();
        let Some(error) = error else {
            if failing.remove(&query) {
                info!(metric, query, "a metric of a rule can be read again");
            }
            return;
        };
        if failing.contains(&query) || failing.len() >= MAX_FAILING {
            return;
        }
        warn!(metric, %error, prometheus = self.api.name(), "a metric of a rule cannot be read");
        failing.insert(query);
    }
}

/// A value in thousandths, rounded towards zero as the adapter does; `None` for NaN and what is too large. Neither is a number that an
/// autoscaler can follow; the adapter makes zero, or the smallest or the largest number of them.
pub(super) fn thousandths(value: f64) -> Option<i64> {
    let thousandths = value * 1_000.0;
    #[expect(clippy::cast_possible_truncation, reason = "within the range")]
    (thousandths > i64::MIN as f64 && thousandths < i64::MAX as f64).then_some(thousandths as i64)
}
