//! Reads metrics that rules make. One query answers all readers of a moment.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use moka::future::Cache;
use moka::policy::EvictionPolicy;
use parking_lot::Mutex;
use smol_str::SmolStr;
use tokio::sync::Semaphore;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::registry::{Registry, RuleBook, RuleSettings};
use crate::collect::{PrometheusApi, QuerySample};
use crate::engine::Clock;
use crate::serve::{LabelRequirement, RuleAnswer, RuleError, RuleMetrics, RuleValue};

/// How long an answer is used again: HPAs that follow one metric read it within a sync of 15 s.
const ANSWER_AGE: Duration = Duration::from_secs(1);
/// Most bytes of answers that are kept for that time.
const MAX_KEPT_BYTES: u64 = 16 * 1024 * 1024;
/// Queries at a time.
const CONCURRENT_QUERIES: usize = 32;
/// Longest wait for a query and its answer. An HPA waits 30 s.
const READ_TIMEOUT: Duration = Duration::from_secs(12);
/// How often the file is read again.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);
/// Most failing queries that the log names, each once.
const MAX_FAILING: usize = 1_000;
/// Most values of an answer. That to an HPA should have one.
const MAX_VALUES: usize = 1_000;

/// The external metrics of a file of rules.
pub struct AdapterRules {
    api: PrometheusApi,
    clock: Arc<dyn Clock>,
    settings: RuleSettings,
    registry: ArcSwap<Registry>,
    answers: Cache<String, RuleAnswer>,
    queries: Semaphore,
    /// The queries that failed when they were asked last.
    failing: Mutex<HashSet<String>>,
}

impl AdapterRules {
    /// The metrics are known once [`Self::run`] has listed the series.
    #[must_use]
    pub fn new(api: PrometheusApi, clock: Arc<dyn Clock>, settings: RuleSettings) -> Self {
        let answers = Cache::builder().time_to_live(ANSWER_AGE).max_capacity(MAX_KEPT_BYTES);
        // A new answer is always kept: it is one that others are about to ask for.
        let answers = answers.eviction_policy(EvictionPolicy::lru());
        let answers = answers.weigher(|query: &String, answer| weight(query, answer));
        Self {
            api,
            clock,
            settings,
            registry: ArcSwap::from_pointee(RuleBook::default().registry()),
            answers: answers.build(),
            queries: Semaphore::new(CONCURRENT_QUERIES),
            failing: Mutex::default(),
        }
    }

    /// Follows the file and the series until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        stop.run_until_cancelled(self.follow()).await;
    }

    async fn follow(&self) {
        let mut book = RuleBook::default();
        let mut ticks = interval(RELOAD_INTERVAL.min(self.settings.relist_interval));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut listed: Option<Instant> = None;
        loop {
            ticks.tick().await;
            let is_new = book.reload(&self.settings).await;
            let is_due = listed.is_none_or(|at| at.elapsed() >= self.settings.relist_interval);
            if is_new {
                self.publish(book.registry());
            }
            if is_new || is_due {
                let at = (self.settings.max_age, self.clock.now());
                book.relist(&self.api, at, |registry| self.publish(registry)).await;
                listed = Some(Instant::now());
            }
        }
    }

    fn publish(&self, registry: Registry) {
        registry.log(&self.registry.load());
        self.registry.store(Arc::new(registry));
    }

    /// The answer to a query, which all readers of the moment share.
    async fn answer(&self, metric: &str, query: String) -> RuleAnswer {
        let ask = async {
            let _permit = self.queries.acquire().await;
            let samples = self.api.query(&query, self.clock.now()).await;
            values(samples.map_err(|error| RuleError(error.message))?)
        };
        // Around all of it: a reader may have to ask in place of those that went away.
        let answer = timeout(READ_TIMEOUT, self.answers.get_with(query.clone(), ask)).await;
        let answer = answer.unwrap_or_else(|_| {
            let seconds = READ_TIMEOUT.as_secs();
            Err(RuleError(format!(
                "Prometheus did not answer within {seconds} s: check that it is not overloaded"
            )))
        });
        let answer = answer
            .map_err(|RuleError(cause)| RuleError(format!("the query of its rule, {query:.300}: {cause}")));
        self.log(metric, query, answer.as_ref().err());
        answer
    }

    /// Logs that a query fails, or does no longer.
    fn log(&self, metric: &str, query: String, error: Option<&RuleError>) {
        let mut failing = self.failing.lock();
        let Some(error) = error else {
            if failing.remove(&query) {
                info!(metric, query, "a metric of a rule can be read again");
            }
            return;
        };
        if failing.contains(&query) {
            return;
        }
        if failing.len() >= MAX_FAILING {
            return;
        }
        warn!(metric, %error, prometheus = self.api.name(), "a metric of a rule cannot be read");
        failing.insert(query);
    }
}

impl RuleMetrics for AdapterRules {
    fn names(&self) -> Arc<[SmolStr]> {
        Arc::clone(&self.registry.load().names)
    }

    fn unlisted(&self) -> Option<String> {
        self.registry.load().unlisted.clone()
    }

    fn read<'a>(
        &'a self,
        metric: &str,
        namespace: &'a str,
        requirements: Vec<LabelRequirement<'a>>,
    ) -> Option<BoxFuture<'a, RuleAnswer>> {
        let registry = self.registry.load();
        let (name, metric) = registry.find(metric)?;
        let (name, query) = (name.clone(), metric.query(namespace, &requirements));
        let answer = async move {
            let query = query.map_err(|cause| RuleError(format!("its rule makes no query: {cause}")))?;
            self.answer(&name, query).await
        };
        Some(answer.boxed())
    }
}

/// The values of an answer, in thousandths, rounded towards zero as the adapter does.
fn values(samples: Vec<QuerySample>) -> RuleAnswer {
    if samples.len() > MAX_VALUES {
        let count = samples.len();
        return Err(RuleError(format!(
            "it has {count} values, and at most {MAX_VALUES} are served: add them up in metricsQuery"
        )));
    }
    let value = |sample: QuerySample| {
        let QuerySample { labels, at, value } = sample;
        let thousandths = value * 1_000.0;
        // Neither is a number that an autoscaler can follow; the adapter makes the smallest or the largest one of them.
        if !(thousandths > i64::MIN as f64 && thousandths < i64::MAX as f64) {
            let labels = format!("{labels:?}");
            return Err(RuleError(format!("the value of {labels:.200} is {value}, which is no quantity")));
        }
        #[expect(clippy::cast_possible_truncation, reason = "within the range")]
        let thousandths = thousandths as i64;
        Ok(RuleValue { labels, at, thousandths })
    };
    samples.into_iter().map(value).collect()
}

/// The bytes of an answer, roughly.
fn weight(query: &str, answer: &RuleAnswer) -> u32 {
    const OF_VALUE: usize = 100;
    let bytes = match answer {
        Ok(values) => {
            let labels = values.iter().flat_map(|value| &value.labels);
            let labels: usize = labels.map(|(key, value)| key.len() + value.len() + OF_VALUE).sum();
            labels + values.len() * OF_VALUE
        }
        Err(RuleError(text)) => text.len(),
    };
    u32::try_from(query.len() + bytes + OF_VALUE).unwrap_or(u32::MAX)
}
