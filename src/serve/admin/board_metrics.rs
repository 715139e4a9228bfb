//! The `wva_*` series, rendered from the published decisions when they are read: no copy that could be stale, and no
//! series of a variant that is gone. Only the holder shows them, so that a sum over instances counts each once.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::sync::watch;
use wva_core::decision::{Reason, Target, Verdict};
use wva_core::units::Seconds;
use wva_core::{Decision, VariantId};

use super::Scaling;
use crate::engine::{Leadership, Published};
use crate::serve::Reads;

const DESIRED: &str = "Desired number of replicas for each variant";
const CURRENT: &str = "Current number of replicas for each variant";
const RATIO: &str =
    "Ratio of the desired number of replicas and the current number of replicas for each variant";
const SIGNALS: &str = "Whether each variant's analyzer has every signal that it reads, of every serving pod: 1, or 0 where one is missing";
const SCALING: &str = "Total number of replica scaling operations";

/// Renders the board at each scrape.
pub(crate) struct BoardMetrics {
    pub(crate) reads: Arc<dyn Reads>,
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) controller_instance: Option<String>,
    pub(crate) scaling: Arc<Scaling>,
}

impl fmt::Debug for BoardMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoardMetrics").finish_non_exhaustive()
    }
}

type Labels<'a> = Vec<(&'static str, &'a str)>;

impl BoardMetrics {
    fn labels<'a>(&'a self, id: &'a VariantId, decision: &'a Decision) -> Labels<'a> {
        let mut labels = vec![
            ("variant_name", id.name.as_str()),
            ("namespace", id.namespace.as_str()),
            ("accelerator_type", decision.accelerator.as_deref().unwrap_or_default()),
        ];
        labels.extend(self.controller_instance.as_deref().map(|instance| ("controller_instance", instance)));
        labels
    }

    fn fresh<'a>(&self, decision: &'a Decision) -> Option<&'a Target> {
        let Verdict::Target(target) = &decision.verdict else { return None };
        let age = Seconds::between(target.evidence, self.reads.now());
        (age <= self.reads.max_stale()).then_some(target)
    }
}

impl Collector for BoardMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if !self.leadership.borrow().is_mine() {
            return Ok(());
        }
        let published = self.reads.newest();
        let rows: Vec<_> = published
            .decisions
            .iter()
            .filter_map(|(id, decision)| {
                Some((self.labels(id, decision), self.fresh(decision)?, decision.current))
            })
            .collect();
        let mut desired =
            encoder.encode_descriptor("wva_desired_replicas", DESIRED, None, MetricType::Gauge)?;
        for (labels, target, _) in &rows {
            ConstGauge::new(i64::from(target.desired.get())).encode(desired.encode_family(labels)?)?;
        }
        let mut current =
            encoder.encode_descriptor("wva_current_replicas", CURRENT, None, MetricType::Gauge)?;
        for (labels, _, count) in &rows {
            if let Some(count) = count {
                ConstGauge::new(i64::from(count.get())).encode(current.encode_family(labels)?)?;
            }
        }
        let mut ratio = encoder.encode_descriptor("wva_desired_ratio", RATIO, None, MetricType::Gauge)?;
        for (labels, target, count) in &rows {
            if let Some(count) = count {
                let value = f64::from(target.desired.get()) / f64::from(count.get().max(1));
                ConstGauge::new(value).encode(ratio.encode_family(labels)?)?;
            }
        }
        self.signals(&mut encoder, &published)?;
        self.scaling(&mut encoder)
    }
}

/// Whether all signals of a variant are there; `None` while nothing is measured at all, of which its age tells.
fn has_all_signals(decision: &Decision) -> Option<bool> {
    match &decision.verdict {
        _ if decision.gap.is_some() => Some(false),
        Verdict::Target(target) => {
            let blind = [Reason::Starting, Reason::MetricsMissing, Reason::Stale, Reason::SourceDown];
            (!blind.contains(&target.reason)).then_some(true)
        }
        Verdict::Unknown(_) => None,
    }
}

impl BoardMetrics {
    fn signals(&self, encoder: &mut DescriptorEncoder<'_>, published: &Published) -> Result<(), fmt::Error> {
        let mut complete =
            encoder.encode_descriptor("wva_signals_complete", SIGNALS, None, MetricType::Gauge)?;
        for (id, decision) in &published.decisions {
            if let Some(all) = has_all_signals(decision) {
                let labels = self.labels(id, decision);
                ConstGauge::new(i64::from(all)).encode(complete.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn scaling(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut total =
            encoder.encode_descriptor("wva_replica_scaling", SCALING, None, MetricType::Counter)?;
        for (step, count) in self.scaling.counts() {
            let mut labels = vec![
                ("variant_name", step.variant.name.as_str()),
                ("namespace", step.variant.namespace.as_str()),
                ("direction", step.direction),
                ("reason", step.reason),
            ];
            labels.extend(
                self.controller_instance.as_deref().map(|instance| ("controller_instance", instance)),
            );
            ConstCounter::new(count).encode(total.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
