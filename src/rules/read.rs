//! Reads external metrics that rules make, and follows what there are. One query answers all readers of a moment.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use moka::future::Cache;
use moka::policy::EvictionPolicy;
use smol_str::SmolStr;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::ask::{ANSWER_TIMEOUT, Queries, no_answer_in_time, of_query, thousandths};
use super::book::{Registries, RuleBook, RuleSettings};
use super::commute::Requirement;
use super::limits::{ANSWER_AGE, MAX_KEPT_BYTES};
use super::object_read::ObjectReader;
use super::ports::ObjectApi;
use super::usage_read::UsageReader;
use crate::collect::{PrometheusApi, QuerySample};
use crate::engine::Clock;
use crate::serve::{
    LabelRequirement, ObjectAnswer, ObjectRead, ResourceMetrics, RuleAnswer, RuleError, RuleMetrics,
    RuleValue, UsageAnswer, UsageRead,
};

/// How often the file is read again.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);
/// Most values of an answer. That to an HPA should have one.
const MAX_VALUES: usize = 1_000;

/// The metrics of a file of rules.
pub struct AdapterRules {
    settings: RuleSettings,
    registries: ArcSwap<Registries>,
    answers: Cache<String, RuleAnswer>,
    prometheus: Queries,
    objects: ObjectReader,
    usage: UsageReader,
}

impl AdapterRules {
    /// The metrics are known once [`Self::run`] has listed the series.
    #[must_use]
    pub fn new(
        api: PrometheusApi,
        objects: Arc<dyn ObjectApi>,
        clock: Arc<dyn Clock>,
        settings: RuleSettings,
    ) -> Self {
        let answers = Cache::builder().time_to_live(ANSWER_AGE).max_capacity(MAX_KEPT_BYTES);
        // A new answer is always kept: it is one that others are about to ask for.
        let answers = answers.eviction_policy(EvictionPolicy::lru());
        let answers = answers.weigher(|query: &String, answer| weight(query, answer));
        Self {
            settings,
            registries: ArcSwap::from_pointee(RuleBook::new(Arc::clone(&objects)).registries()),
            answers: answers.build(),
            prometheus: Queries::new(api, clock),
            usage: UsageReader::new(Arc::clone(&objects)),
            objects: ObjectReader::new(objects),
        }
    }

    /// Follows the file and the series until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        stop.run_until_cancelled(self.follow()).await;
    }

    /// Asks again for what many reads share, until `stop`.
    pub async fn renew(self: Arc<Self>, stop: CancellationToken) {
        let renewals = async { tokio::join!(self.prometheus.renew(), self.objects.renew_lists()) };
        stop.run_until_cancelled(renewals).await;
    }

    async fn follow(&self) {
        let mut book = RuleBook::new(self.objects.api());
        let mut ticks = interval(RELOAD_INTERVAL.min(self.settings.relist_interval));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut listed: Option<Instant> = None;
        loop {
            ticks.tick().await;
            let is_new = book.reload(&self.settings).await;
            let has_kinds = book.refresh_kinds(self.objects.take_wanted()).await;
            let is_due = listed.is_none_or(|at| at.elapsed() >= self.settings.relist_interval);
            if is_new {
                self.publish(book.registries());
            }
            if is_new || has_kinds || is_due {
                let began = Instant::now();
                let at = (self.settings.max_age, self.prometheus.clock.now());
                book.relist(&self.prometheus.api, at, |registries| self.publish(registries)).await;
                listed = Some(Instant::now());
                self.settings.metrics.relisted(began.elapsed());
            }
        }
    }

    fn publish(&self, mut registries: Registries) {
        let last = self.registries.load();
        self.settings.metrics.show(registries.counts);
        registries.log(&last);
        registries.reuse_lists(&last);
        self.registries.store(Arc::new(registries));
    }

    /// The answer to a query, which all readers of the moment share. `requirements` are those of which reads may differ in one.
    async fn answer(
        &self,
        (metric, namespace): (&str, &str),
        query: String,
        requirements: &[Requirement<'_>],
    ) -> RuleAnswer {
        let ask = async {
            let samples = self.prometheus.ask(&query).await?;
            values(samples)
        };
        let answer = async {
            match self.prometheus.find_shared(&query, requirements, &[]).await {
                Some(samples) => values(samples),
                None => self.answers.get_with(query.clone(), ask).await,
            }
        };
        // Around all of it: a reader may have to ask in place of those that went away.
        let answer = timeout(ANSWER_TIMEOUT, answer).await;
        let answer = answer.unwrap_or_else(|_| Err(RuleError(no_answer_in_time(ANSWER_TIMEOUT))));
        let answer = answer.map_err(|RuleError(cause)| RuleError(of_query(&query, &cause)));
        if let Err(RuleError(cause)) = &answer {
            self.prometheus.log((metric, "", namespace), cause);
        }
        answer
    }
}

impl RuleMetrics for AdapterRules {
    fn names(&self) -> Arc<[SmolStr]> {
        Arc::clone(&self.registries.load().external.names)
    }

    fn objects(&self) -> Arc<[ResourceMetrics]> {
        Arc::clone(&self.registries.load().objects.listed)
    }

    fn unlisted(&self) -> Option<String> {
        self.registries.load().external.unlisted.clone()
    }

    fn unlisted_objects(&self) -> Option<String> {
        self.registries.load().objects.unlisted.clone()
    }

    fn serves_usage(&self) -> bool {
        self.settings.serves_usage
    }

    fn read_usage<'a>(&'a self, read: UsageRead<'a>) -> Option<BoxFuture<'a, UsageAnswer>> {
        let registries = self.registries.load();
        let rule = (Arc::clone(registries.usage.as_ref()?), Arc::clone(&registries.objects.kinds));
        Some(self.usage.answer(&self.prometheus, rule, read).boxed())
    }

    fn read_objects<'a>(&'a self, read: ObjectRead<'a>) -> Option<BoxFuture<'a, ObjectAnswer>> {
        let metric = self.objects.find(&self.registries.load().objects, &read)?;
        Some(self.objects.answer(&self.prometheus, metric, read).boxed())
    }

    fn makes(&self, metric: &str) -> bool {
        self.registries.load().external.makes(metric)
    }

    fn read<'a>(
        &'a self,
        metric: &str,
        namespace: &'a str,
        requirements: Vec<LabelRequirement<'a>>,
    ) -> Option<BoxFuture<'a, RuleAnswer>> {
        let registries = self.registries.load();
        let (name, metric) = registries.external.find(metric)?;
        let (name, query) = (name.clone(), metric.query(namespace, &requirements));
        let variable = metric.variable(&requirements);
        let answer = async move {
            let query = query.map_err(|cause| RuleError(format!("its rule makes no query: {cause}")))?;
            self.answer((&name, namespace), query, &variable).await
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
        let Some(thousandths) = thousandths(value) else {
            let labels = format!("{labels:?}");
            return Err(RuleError(format!("the value of {labels:.200} is {value}, which is no quantity")));
        };
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
