//! The `wva_*` metrics of variants, rendered from the published decisions when they are scraped: no copy can be stale, and a
//! variant that is gone has no series. Only the leader exports them, so that a sum over instances counts each once.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::sync::watch;
use wva_core::decision::{Reason, Target, Verdict};
use wva_core::{Decision, VariantId};

use crate::engine::{Leadership, Published};
use crate::serve::decisions::DESIRED_HELP;
use crate::serve::ports::PublishedReader;

/// The first words of the names that WVA gives its metrics, and gave them before 0.5: dashboards and adapter rules have either.
const PREFIXES: [&str; 2] = ["wva", "inferno"];
const CURRENT_HELP: &str = "Current number of replicas for each variant";
const RATIO_HELP: &str =
    "Ratio of the desired number of replicas and the current number of replicas for each variant";
const SIGNALS_HELP: &str = "1 if the analyzer of the variant has every signal that it needs from every serving pod, 0 if one is missing";
const SCALING_HELP: &str = "Total number of replica scaling operations";

/// Renders the published decisions at each scrape.
pub(crate) struct BoardMetrics {
    pub(crate) reader: Arc<dyn PublishedReader>,
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) controller_instance: Option<String>,
    pub(crate) replica_changes: Arc<ReplicaChanges>,
}

impl fmt::Debug for BoardMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoardMetrics").finish_non_exhaustive()
    }
}

type Labels<'a> = Vec<(&'static str, &'a str)>;

/// A variant whose target may be answered.
struct Row<'a> {
    labels: Labels<'a>,
    decision: &'a Decision,
    target: &'a Target,
}

impl BoardMetrics {
    fn labels<'a>(
        &'a self,
        id: &'a VariantId,
        own: impl IntoIterator<Item = (&'static str, &'a str)>,
    ) -> Labels<'a> {
        let name = id.name.as_str();
        let mut labels =
            vec![("variant_name", name), ("namespace", id.namespace.as_str()), ("variant", name)];
        labels.extend(own);
        labels.extend(self.controller_instance.as_deref().map(|instance| ("controller_instance", instance)));
        labels
    }

    fn decision_labels<'a>(&'a self, id: &'a VariantId, decision: &'a Decision) -> Labels<'a> {
        self.labels(id, [("accelerator_type", decision.accelerator.as_deref().unwrap_or_default())])
    }

    fn row<'a>(&'a self, id: &'a VariantId, decision: &'a Decision) -> Option<Row<'a>> {
        let target = decision.fresh_target(self.reader.now(), self.reader.max_stale()).ok()?;
        Some(Row { labels: self.decision_labels(id, decision), decision, target })
    }

    fn encode_replica_changes(
        &self,
        prefix: &str,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), fmt::Error> {
        let name = format!("{prefix}_replica_scaling");
        let mut total = encoder.encode_descriptor(&name, SCALING_HELP, None, MetricType::Counter)?;
        for (change, count) in self.replica_changes.counts() {
            let change_labels = [("direction", change.direction), ("reason", change.reason)];
            let labels = self.labels(&change.variant, change_labels);
            ConstCounter::new(count).encode(total.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

impl Collector for BoardMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if !self.leadership.borrow().is_mine() {
            return Ok(());
        }
        let published = self.reader.newest();
        let rows: Vec<_> =
            published.decisions.iter().filter_map(|(id, decision)| self.row(id, decision)).collect();
        for prefix in PREFIXES {
            let name = |metric| format!("{prefix}_{metric}");
            let desired = rows.iter().map(|row| (&row.labels, i64::from(row.target.desired.get())));
            encode_gauge(&mut encoder, &name("desired_replicas"), DESIRED_HELP, desired)?;
            let current =
                rows.iter().filter_map(|row| Some((&row.labels, i64::from(row.decision.current?.get()))));
            encode_gauge(&mut encoder, &name("current_replicas"), CURRENT_HELP, current)?;
            let ratio = rows.iter().filter_map(|row| Some((&row.labels, row.decision.ratio(1.0)?)));
            encode_gauge(&mut encoder, &name("desired_ratio"), RATIO_HELP, ratio)?;
            self.encode_replica_changes(prefix, &mut encoder)?;
        }
        let complete = published.decisions.iter().filter_map(|(id, decision)| {
            Some((self.decision_labels(id, decision), i64::from(has_all_signals(decision)?)))
        });
        encode_gauge(&mut encoder, "wva_signals_complete", SIGNALS_HELP, complete)
    }
}

/// Whether all signals of a variant are available; `None` while it has never been measured, which its absence shows.
fn has_all_signals(decision: &Decision) -> Option<bool> {
    if decision.gap.is_some() {
        return Some(false);
    }
    match &decision.verdict {
        Verdict::Target(target) => {
            let is_unmeasured = matches!(
                target.reason,
                Reason::Starting | Reason::MetricsMissing | Reason::Stale | Reason::SourceDown
            );
            (!is_unmeasured).then_some(true)
        }
        Verdict::Unknown(_) => None,
    }
}

/// Encodes a gauge with these series.
fn encode_gauge<'a, L: Borrow<Labels<'a>>, V: EncodeGaugeValue>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    series: impl Iterator<Item = (L, V)>,
) -> Result<(), fmt::Error> {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in series {
        ConstGauge::new(value).encode(family.encode_family(labels.borrow())?)?;
    }
    Ok(())
}

/// One kind of change of one variant's target.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReplicaChange {
    pub(crate) variant: VariantId,
    pub(crate) direction: &'static str,
    pub(crate) reason: &'static str,
}

/// How often each kind of change has occurred.
#[derive(Debug, Default)]
pub(crate) struct ReplicaChanges {
    counts: Mutex<BTreeMap<ReplicaChange, u64>>,
}

impl ReplicaChanges {
    /// A copy of the counts.
    pub(crate) fn counts(&self) -> BTreeMap<ReplicaChange, u64> {
        self.counts.lock().clone()
    }

    /// Counts every change from one published result to the next while this instance holds the lease, for ever.
    pub(crate) async fn follow(
        &self,
        mut published: watch::Receiver<Arc<Published>>,
        leadership: watch::Receiver<Leadership>,
    ) {
        let mut previous = published.borrow_and_update().clone();
        while published.changed().await.is_ok() {
            let newest = published.borrow_and_update().clone();
            if leadership.borrow().is_mine() {
                self.count(&previous, &newest);
            }
            previous = newest;
        }
        futures::future::pending().await
    }

    fn count(&self, previous: &Published, newest: &Published) {
        let mut counts = self.counts.lock();
        counts.retain(|change, _| newest.decisions.contains_key(&change.variant));
        for (id, decision) in &newest.decisions {
            let Verdict::Target(new) = &decision.verdict else { continue };
            let Some(Verdict::Target(old)) = previous.decisions.get(id).map(|old| &old.verdict) else {
                continue;
            };
            if new.desired != old.desired {
                let direction = if new.desired > old.desired { "up" } else { "down" };
                let change = ReplicaChange { variant: id.clone(), direction, reason: new.reason.as_str() };
                *counts.entry(change).or_default() += 1;
            }
        }
    }
}
