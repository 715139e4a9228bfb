//! The metrics of variants, rendered from the published result when they are scraped: no copy can be stale, and a variant that is
//! gone has no series. Only the leader exports them, so that a sum over instances counts each once.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::sync::watch;
use wva_core::decision::{Reason, Target, Verdict};
use wva_core::report::{CapacityFigures, CapacityUnit, Prediction};
use wva_core::units::Seconds;
use wva_core::usage::{KvTokens, Usage};
use wva_core::{Decision, GroupId, VariantId};

use super::decision_counts::{Counts, DecisionCounts};
use crate::engine::{Leadership, Origin, Published};
use crate::serve::decisions::DESIRED_HELP;
use crate::serve::ports::PublishedReader;

/// The first words of the names that WVA gives its metrics, and gave them before 0.5: dashboards and adapter rules have either.
const PREFIXES: [&str; 2] = ["wva", "inferno"];
const CURRENT_HELP: &str = "Current number of replicas for each variant";
const RATIO_HELP: &str =
    "Ratio of the desired number of replicas and the current number of replicas for each variant";
const SCALING_HELP: &str = "Total number of replica scaling operations";
const SIGNALS_HELP: &str = "1 if the analyzer of the variant has every signal that it needs from every serving pod, 0 if one is missing";
const DECIDED_HELP: &str = "Unix time at which the desired number of replicas was last decided, seconds";
const EVIDENCE_HELP: &str =
    "Unix time of the oldest measurement that the desired number of replicas rests on, seconds";
const MEASURED_HELP: &str =
    "1 if the number of the variant rests on new measurements, 0 if it is held or there is none";
const LEVEL_HELP: &str = "Mean saturation of the variant's engines, 0 to 1: peak KV-cache usage of the last minute, or the queue as a share of a full one, whichever is more";
const UTILIZATION_HELP: &str =
    "Mean KV-cache usage of the variant's engines, 0 to 1: the peak of each in the last minute";
const TOKENS_USED_HELP: &str = "Tokens in the KV caches of all Ready pods of the variant";
const TOKENS_CAPACITY_HELP: &str = "Tokens that fit into the KV caches of all Ready pods of the variant";
const SPARE_HELP: &str = "Capacity that the analyzer could spare of the variant's role; unit: continuous (tokens), tokens_per_second, requests_per_second, or empty (mean spare KV cache of the percent rule, 0 to 1)";
const REQUIRED_HELP: &str = "Capacity that the analyzer misses of the variant's role; unit: continuous (tokens), tokens_per_second, requests_per_second, or binary (1 if the percent rule adds a replica)";
const ERROR_HELP: &str = "Mean amount of the error of predictions, as a share of what was measured, over about the last 50; quantity: demand, capacity or startup";
const BIAS_HELP: &str = "Mean error of predictions, as a share of what was measured, over about the last 50: above 0 if they are too high";
const PREDICTIONS_HELP: &str =
    "Predictions that were due; result: matched, or unmatched where nothing trustworthy was measured";
const FRESHNESS_HELP: &str = "Ready pods of the variant by the age of their samples; status: fresh, stale, unavailable (too old for a number) or missing";
const PODS_HELP: &str = "Ready pods of variants that show samples, by namespace";
const MODELS_HELP: &str = "Number of models in the last evaluation";
const DISCOVERY_HELP: &str = "1 while the GPUs of the nodes are read, as a limit on them needs";
const GPUS_HELP: &str = "Number of GPUs of the nodes, used or free, by accelerator";
const LIMITED_HELP: &str =
    "Total number of evaluations in which the limit granted fewer replicas than were proposed";
const ENFORCED_HELP: &str = "Total number of decisions, by evaluation, whose number a rule has set; policy_type: scale_to_zero or minimum_replicas";

/// Renders the published decisions at each scrape.
pub(crate) struct BoardMetrics {
    pub(crate) reader: Arc<dyn PublishedReader>,
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) controller_instance: Option<String>,
    pub(crate) decision_counts: Arc<DecisionCounts>,
}

impl fmt::Debug for BoardMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoardMetrics").finish_non_exhaustive()
    }
}

type Label<'a> = (&'static str, &'a str);
type Labels<'a> = Vec<Label<'a>>;

/// A variant whose target may be answered, under one of its names.
struct Row<'a> {
    id: &'a VariantId,
    labels: Labels<'a>,
    decision: &'a Decision,
    target: &'a Target,
    usage: Option<&'a Usage>,
}

impl Collector for BoardMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if !self.leadership.borrow().is_mine() {
            return Ok(());
        }
        let (published, view) = (self.reader.newest(), self.reader.view());
        let counts = self.decision_counts.counts();
        let decisions = published.series(&view);
        let rows: Vec<_> =
            decisions.filter_map(|(id, decision)| self.row(&published, id, decision)).collect();
        for prefix in PREFIXES {
            self.encode_replicas(prefix, &rows, &counts, &mut encoder)?;
        }
        let current = Some(&*published).filter(|published| self.is_current(published));
        self.encode_decisions(current, &rows, &mut encoder)?;
        self.encode_usage(&rows, &mut encoder)?;
        self.encode_capacity(&rows, &mut encoder)?;
        self.encode_predictions(&rows, &mut encoder)?;
        self.encode_fleet(current, &mut encoder)?;
        self.encode_counts(&counts, &mut encoder)
    }
}

impl BoardMetrics {
    /// Whether this instance computed the result, and not so long ago that its numbers are no longer answered.
    fn is_current(&self, published: &Published) -> bool {
        let age = Seconds::between(published.at, self.reader.now());
        published.origin == Origin::Computed && age <= self.reader.max_stale()
    }

    fn row<'a>(
        &'a self,
        published: &'a Published,
        id: &'a VariantId,
        decision: &'a Decision,
    ) -> Option<Row<'a>> {
        let target = decision.fresh_target(self.reader.now(), self.reader.max_stale()).ok()?;
        let labels = self.decision_labels(id, decision);
        Some(Row { id, labels, decision, target, usage: published.usage.get(id) })
    }

    /// These labels, and that of the installation.
    fn with_instance<'a>(&'a self, labels: impl IntoIterator<Item = Label<'a>>) -> Labels<'a> {
        let instance = self.controller_instance.as_deref().map(|instance| ("controller_instance", instance));
        labels.into_iter().chain(instance).collect()
    }

    /// The labels of a variant, and `own` ones.
    fn labels<'a>(&'a self, id: &'a VariantId, own: impl IntoIterator<Item = Label<'a>>) -> Labels<'a> {
        let variant = [("variant_name", id.name.as_str()), ("namespace", id.namespace.as_str())];
        self.with_instance(variant.into_iter().chain(own))
    }

    fn decision_labels<'a>(&'a self, id: &'a VariantId, decision: &'a Decision) -> Labels<'a> {
        let accelerator = decision.accelerator.as_deref().unwrap_or_default();
        self.labels(id, [("variant", id.name.as_str()), ("accelerator_type", accelerator)])
    }

    fn model_labels<'a>(&'a self, row: &Row<'a>, own: impl IntoIterator<Item = Label<'a>>) -> Labels<'a> {
        self.labels(row.id, [("model_name", row.decision.model.as_str())].into_iter().chain(own))
    }

    /// The numbers themselves, as every version of WVA exports them.
    fn encode_replicas(
        &self,
        prefix: &str,
        rows: &[Row<'_>],
        counts: &Counts,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), fmt::Error> {
        let name = |metric| format!("{prefix}_{metric}");
        let desired = rows.iter().map(|row| (&row.labels, i64::from(row.target.desired.get())));
        encode_gauge(encoder, &name("desired_replicas"), DESIRED_HELP, desired)?;
        let current =
            rows.iter().filter_map(|row| Some((&row.labels, i64::from(row.decision.current?.get()))));
        encode_gauge(encoder, &name("current_replicas"), CURRENT_HELP, current)?;
        let ratio = rows.iter().filter_map(|row| Some((&row.labels, row.decision.ratio(1.0)?)));
        encode_gauge(encoder, &name("desired_ratio"), RATIO_HELP, ratio)?;
        let changes = counts.changes.iter().map(|(change, count)| {
            let name = change.variant.name.as_str();
            let own = [("variant", name), ("direction", change.direction), ("reason", change.reason)];
            (self.labels(&change.variant, own), *count)
        });
        encode_counter(encoder, &name("replica_scaling"), SCALING_HELP, changes)
    }

    /// When and on what the numbers were decided.
    fn encode_decisions(
        &self,
        current: Option<&Published>,
        rows: &[Row<'_>],
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), fmt::Error> {
        let decisions = || current.into_iter().flat_map(|published| &published.decisions);
        let complete = decisions().filter_map(|(id, decision)| {
            Some((self.decision_labels(id, decision), i64::from(has_all_signals(decision)?)))
        });
        encode_gauge(encoder, "wva_signals_complete", SIGNALS_HELP, complete)?;
        let measured = decisions()
            .map(|(id, decision)| (self.labels(id, []), i64::from(is_measured(&decision.verdict))));
        encode_gauge(encoder, "wva_saturation_metrics_up", MEASURED_HELP, measured)?;
        let decided = rows.iter().filter_map(|row| {
            let labels = self.labels(row.id, [("variant", row.id.name.as_str())]);
            Some((labels, current?.at.as_second()))
        });
        encode_gauge(encoder, "wva_last_scaling_decision_timestamp", DECIDED_HELP, decided)?;
        let measured = rows.iter().map(|row| (&row.labels, unix_seconds(row.target.evidence)));
        encode_gauge(encoder, "wva_evidence_timestamp_seconds", EVIDENCE_HELP, measured)
    }

    /// What the pods of the variants use, where it is measured.
    fn encode_usage(&self, rows: &[Row<'_>], encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let used = || rows.iter().filter_map(|row| Some((row, row.usage?)));
        let level = used().filter_map(|(row, usage)| Some((&row.labels, usage.saturation?)));
        encode_gauge(encoder, "wva_saturation_level", LEVEL_HELP, level)?;
        let utilization = used().filter_map(|(row, usage)| {
            let accelerator = row.decision.accelerator.as_deref().unwrap_or_default();
            Some((self.model_labels(row, [("accelerator_type", accelerator)]), usage.kv?))
        });
        encode_gauge(encoder, "wva_saturation_utilization", UTILIZATION_HELP, utilization)?;
        let tokens = |part: fn(KvTokens) -> f64| {
            used().filter_map(move |(row, usage)| Some((self.model_labels(row, []), part(usage.tokens?))))
        };
        encode_gauge(encoder, "wva_kv_cache_tokens_used", TOKENS_USED_HELP, tokens(|tokens| tokens.used))?;
        let capacity = tokens(|tokens| tokens.capacity);
        encode_gauge(encoder, "wva_kv_cache_tokens_capacity", TOKENS_CAPACITY_HELP, capacity)
    }

    /// What the analyzers find, where they find capacity.
    fn encode_capacity(
        &self,
        rows: &[Row<'_>],
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), fmt::Error> {
        let figures: Vec<(&Row<'_>, CapacityFigures)> = rows
            .iter()
            .filter_map(|row| Some((row, row.target.explanation.capacity_figures(row.usage?.role)?)))
            .collect();
        let spare = figures.iter().map(|(row, figures)| {
            (self.model_labels(row, [("unit", unit(figures.unit, ""))]), figures.spare)
        });
        encode_gauge(encoder, "wva_spare_capacity", SPARE_HELP, spare)?;
        let required = figures.iter().map(|(row, figures)| {
            (self.model_labels(row, [("unit", unit(figures.unit, "binary"))]), figures.required)
        });
        encode_gauge(encoder, "wva_required_capacity", REQUIRED_HELP, required)
    }

    /// How the predictions of the rate policy turned out, where any was due.
    fn encode_predictions(
        &self,
        rows: &[Row<'_>],
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), fmt::Error> {
        let memory = self.reader.memory();
        let scorecard = |row: &Row<'_>| {
            let group = GroupId::new(row.id.namespace.clone(), row.decision.model.clone());
            memory.groups.get(&group)?.scorecard(&row.id.name, row.usage?.role)
        };
        let cards = rows.iter().filter_map(|row| Some((row, scorecard(row)?)));
        let parts: Vec<(&Row<'_>, &'static str, Prediction)> = cards
            .flat_map(|(row, card)| {
                card.by_quantity().map(|(quantity, prediction)| (row, quantity, prediction))
            })
            .collect();
        let errors = || {
            parts.iter().filter_map(move |(row, quantity, prediction)| {
                Some((self.model_labels(row, [("quantity", *quantity)]), prediction.error?))
            })
        };
        let error = errors().map(|(labels, error)| (labels, error.mean_absolute));
        encode_gauge(encoder, "wva_prediction_error_ratio", ERROR_HELP, error)?;
        let bias = errors().map(|(labels, error)| (labels, error.bias));
        encode_gauge(encoder, "wva_prediction_bias_ratio", BIAS_HELP, bias)?;
        let counts = parts.iter().flat_map(|(row, quantity, prediction)| {
            let by_result = [("matched", prediction.matched), ("unmatched", prediction.unmatched)];
            by_result.into_iter().filter(|(_, count)| *count > 0).map(move |(result, count)| {
                let labels = self.model_labels(row, [("quantity", *quantity), ("result", result)]);
                (labels, u64::from(count))
            })
        });
        encode_counter(encoder, "wva_predictions", PREDICTIONS_HELP, counts)
    }

    /// Models, pods and GPUs.
    fn encode_fleet(
        &self,
        current: Option<&Published>,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), fmt::Error> {
        let usage = || current.into_iter().flat_map(|published| &published.usage);
        let ages = usage().flat_map(|(id, usage)| {
            let pods = usage.pods;
            let by_status = [
                ("fresh", pods.fresh),
                ("stale", pods.stale),
                ("unavailable", pods.unavailable),
                ("missing", pods.missing),
            ];
            let shown = by_status.into_iter().filter(|(_, count)| *count > 0);
            shown.map(move |(status, count)| (self.labels(id, [("status", status)]), i64::from(count)))
        });
        encode_gauge(encoder, "wva_metrics_freshness_status", FRESHNESS_HELP, ages)?;
        let mut by_namespace: BTreeMap<&str, i64> = BTreeMap::new();
        for (id, usage) in usage() {
            *by_namespace.entry(&id.namespace).or_default() += i64::from(usage.pods.with_samples());
        }
        let pods = by_namespace
            .into_iter()
            .map(|(namespace, count)| (self.with_instance([("namespace", namespace)]), count));
        encode_gauge(encoder, "wva_metrics_pods_discovered", PODS_HELP, pods)?;
        let models = current.map(|published| published.report.groups.len());
        let models = models.map(|count| (self.with_instance([]), i64::try_from(count).unwrap_or(i64::MAX)));
        encode_gauge(encoder, "wva_models_processed", MODELS_HELP, models.into_iter())?;
        let view = self.reader.view();
        let is_read = [(self.with_instance([]), i64::from(view.inventory.is_some()))];
        encode_gauge(encoder, "wva_gpu_discovery_up", DISCOVERY_HELP, is_read.into_iter())?;
        let gpus = view.inventory.iter().flatten();
        let gpus = gpus.map(|(name, count)| {
            (self.with_instance([("accelerator_type", name.as_str())]), i64::from(*count))
        });
        encode_gauge(encoder, "wva_available_gpus", GPUS_HELP, gpus)
    }

    fn encode_counts(&self, counts: &Counts, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let limited = counts.limited.iter().map(|(limited, count)| {
            (self.labels(&limited.variant, [("limiter_name", limited.limit.as_str())]), *count)
        });
        encode_counter(encoder, "wva_decisions_limited", LIMITED_HELP, limited)?;
        let enforced = counts
            .enforced
            .iter()
            .map(|(rule, count)| (self.with_instance([("policy_type", *rule)]), *count));
        encode_counter(encoder, "wva_enforcer_modifications", ENFORCED_HELP, enforced)
    }
}

fn unix_seconds(at: Timestamp) -> f64 {
    at.as_duration().as_secs_f64()
}

/// The label of a unit; `share` is that of the percent rule's figures, which differ.
const fn unit(unit: CapacityUnit, share: &'static str) -> &'static str {
    match unit {
        CapacityUnit::Share => share,
        CapacityUnit::Tokens => "continuous",
        CapacityUnit::TokensPerSecond => "tokens_per_second",
        CapacityUnit::RequestsPerSecond => "requests_per_second",
    }
}

/// Whether all signals of a variant are available; `None` while it has never been measured, which its absence shows.
fn has_all_signals(decision: &Decision) -> Option<bool> {
    if decision.gap.is_some() {
        return Some(false);
    }
    is_measured(&decision.verdict).then_some(true)
}

/// Whether there is a number that rests on what is measured now.
const fn is_measured(verdict: &Verdict) -> bool {
    match verdict {
        Verdict::Target(target) => !matches!(
            target.reason,
            Reason::Starting | Reason::MetricsMissing | Reason::Stale | Reason::SourceDown
        ),
        Verdict::Unknown(_) => false,
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

/// Encodes a counter with these series; `name` is without `_total`.
fn encode_counter<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    series: impl Iterator<Item = (Labels<'a>, u64)>,
) -> Result<(), fmt::Error> {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, count) in series {
        ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}
