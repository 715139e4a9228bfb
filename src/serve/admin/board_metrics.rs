//! The `wva_*` metrics of variants, rendered from the published decisions when they are scraped: no copy can be stale, and a
//! variant that is gone has no series. Only the lease holder exports them, so that a sum over instances counts each once.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::sync::watch;
use wva_core::decision::{Reason, Target, Verdict};
use wva_core::{Decision, VariantId};

use super::replica_changes::ReplicaChanges;
use crate::engine::{Leadership, Published};
use crate::serve::ports::PublishedReader;

const DESIRED_HELP: &str = "Desired number of replicas for each variant";
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
        let mut labels = vec![("variant_name", id.name.as_str()), ("namespace", id.namespace.as_str())];
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
}

impl Collector for BoardMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if !self.leadership.borrow().is_mine() {
            return Ok(());
        }
        let published = self.reader.newest();
        let rows: Vec<_> =
            published.decisions.iter().filter_map(|(id, decision)| self.row(id, decision)).collect();
        let mut desired =
            encoder.encode_descriptor("wva_desired_replicas", DESIRED_HELP, None, MetricType::Gauge)?;
        for Row { labels, target, .. } in &rows {
            ConstGauge::new(i64::from(target.desired.get())).encode(desired.encode_family(labels)?)?;
        }
        let mut current =
            encoder.encode_descriptor("wva_current_replicas", CURRENT_HELP, None, MetricType::Gauge)?;
        for Row { labels, decision, .. } in &rows {
            if let Some(count) = decision.current {
                ConstGauge::new(i64::from(count.get())).encode(current.encode_family(labels)?)?;
            }
        }
        let mut ratio =
            encoder.encode_descriptor("wva_desired_ratio", RATIO_HELP, None, MetricType::Gauge)?;
        for Row { labels, decision, .. } in &rows {
            if let Some(value) = decision.ratio(1.0) {
                ConstGauge::new(value).encode(ratio.encode_family(labels)?)?;
            }
        }
        self.encode_signals(&mut encoder, &published)?;
        self.encode_replica_changes(&mut encoder)
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

impl BoardMetrics {
    fn encode_signals(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        published: &Published,
    ) -> Result<(), fmt::Error> {
        let mut complete =
            encoder.encode_descriptor("wva_signals_complete", SIGNALS_HELP, None, MetricType::Gauge)?;
        for (id, decision) in &published.decisions {
            if let Some(is_complete) = has_all_signals(decision) {
                let labels = self.decision_labels(id, decision);
                ConstGauge::new(i64::from(is_complete)).encode(complete.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn encode_replica_changes(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut total =
            encoder.encode_descriptor("wva_replica_scaling", SCALING_HELP, None, MetricType::Counter)?;
        for (change, count) in self.replica_changes.counts() {
            let change_labels = [("direction", change.direction), ("reason", change.reason)];
            let labels = self.labels(&change.variant, change_labels);
            ConstCounter::new(count).encode(total.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
