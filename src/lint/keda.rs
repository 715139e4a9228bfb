//! What KEDA does with a ScaledObject besides following the number.

use serde_json::Value;
use smol_str::SmolStr;
use wva_core::VariantId;
use wva_core::text::quoted;

use super::fallback::{self, FallbackIssue};
use super::input::{ScaledObject, Trigger, Workload};
use super::metric::{self, MetricIssue, Number, find};
use super::pause::{is_false, is_paused_whole, paused};
use super::query::{
    is_external_scaler, is_plain_selection, matchers, metric_in, query, reads, replaces_missing,
};
use super::target::NUMBER_NOT_READ;
use super::words::{Host, Severity, Words};

/// What KEDA means by leaving out `cooldownPeriod`, seconds.
const COOLDOWN: i64 = 300;
/// The type of a trigger that reads `/metrics/decisions`.
const METRICS_API: &str = "metrics-api";
/// Labels that all series of one installation share, so that they tell no variant from another.
const SHARED_LABELS: [&str; 6] = ["container", "endpoint", "instance", "job", "pod", "service"];
/// Most variants that a sentence names.
const MAX_NAMED: usize = 5;

/// What KEDA does besides.
#[derive(Debug, Clone, PartialEq)]
pub enum KedaIssue {
    /// What an error becomes.
    Fallback(FallbackIssue),
    /// Annotations pause it.
    Paused {
        /// What that means, for people.
        note: String,
    },
    /// Going to zero waits.
    Cooldown {
        /// Seconds.
        seconds: i64,
    },
    /// No series counts as 0.
    MissingIsZero {
        /// Whether the query says so itself.
        is_in_query: bool,
    },
    /// Small numbers count as inactivity.
    ActivationHides {
        /// The threshold.
        threshold: String,
    },
    /// Without an active trigger, the replicas are these.
    Idle {
        /// The replicas.
        replicas: i32,
    },
    /// A formula replaces the number.
    Formula,
    /// `metricType` is among the settings of the trigger, where it has no effect.
    MetricTypeIgnored {
        /// Its value.
        value: String,
    },
    /// It scales the workload of a variant, and no trigger reads the number as far as can be seen.
    NumberNotRead {
        /// The variant.
        variant: VariantId,
    },
    /// The query finds no variant.
    QueryFindsNone {
        /// Whether the trigger is of the type `metrics-api`.
        is_api: bool,
        /// The query.
        query: String,
        /// The variant that it should find, if it is known.
        meant: Option<VariantId>,
    },
    /// The query finds several, also in other namespaces.
    QueryFindsSeveral {
        /// Whether the trigger is of the type `metrics-api`.
        is_api: bool,
        /// The query.
        query: String,
        /// Some of their names.
        names: Vec<String>,
        /// The variant that it should find, if it is known.
        meant: Option<VariantId>,
    },
    /// The query finds another variant.
    QueryFindsOther {
        /// Whether the trigger is of the type `metrics-api`.
        is_api: bool,
        /// That variant.
        reads: VariantId,
        /// The variant that it should find.
        meant: VariantId,
    },
}

/// What is wrong with a ScaledObject.
pub(super) fn judge(workload: &Workload<'_>, scaled: &ScaledObject) -> (Vec<KedaIssue>, Vec<MetricIssue>) {
    // In a migration, an HPA reads the number meanwhile.
    let is_replaced = is_paused_whole(&scaled.metadata) && workload.is_read();
    let note = paused(&scaled.metadata).filter(|_| !is_replaced);
    let mut issues: Vec<_> = note.map(|note| KedaIssue::Paused { note }).into_iter().collect();
    let mut metrics = Vec::new();
    if !scaled.reads_a_number() {
        let variant = workload.variant.filter(|_| !workload.is_read()).map(|variant| variant.id.clone());
        issues.extend(variant.map(|variant| KedaIssue::NumberNotRead { variant }));
        return (issues, metrics);
    }
    let most = workload.most_replicas(scaled.spec.max_replicas());
    let (ours, others): (Vec<_>, Vec<_>) = scaled.spec.triggers.iter().partition(|trigger| reads(trigger));
    for trigger in ours {
        metrics.extend(arithmetic(trigger, most));
        issues.extend(zero(trigger, scaled));
        issues.extend(selection(trigger, workload));
    }
    if !others.is_empty() {
        let names = others.iter().map(|trigger| trigger.type_.clone()).collect();
        metrics.push(MetricIssue::OtherMetrics { host: Host::ScaledObject, names });
    }
    issues.extend(settings(workload, scaled));
    (issues, metrics)
}

/// Whether KEDA may take the triggers for inactive although the number is above 0.
pub(super) fn may_seem_inactive(scaled: &ScaledObject) -> bool {
    let is_lost = |trigger: &Trigger| {
        let issues = zero(trigger, scaled);
        issues
            .iter()
            .any(|issue| matches!(issue, KedaIssue::MissingIsZero { .. } | KedaIssue::ActivationHides { .. }))
    };
    scaled.spec.fallback.as_ref().is_some_and(|fallback| fallback.replicas == 0)
        || scaled.spec.triggers.iter().filter(|trigger| query(trigger).is_some()).any(is_lost)
}

/// Settings of the whole object.
fn settings(workload: &Workload<'_>, scaled: &ScaledObject) -> Vec<KedaIssue> {
    let spec = &scaled.spec;
    let mut issues = Vec::new();
    if let Some(fallback) = &spec.fallback {
        let most = workload.most_replicas(spec.max_replicas());
        issues.extend(fallback::judge(fallback, spec, most).map(KedaIssue::Fallback));
    }
    let may_be_zero =
        workload.variant.is_some_and(|variant| variant.may_be_zero && variant.bounds.min.get() == 0);
    let seconds = spec.cooldown_period.unwrap_or(COOLDOWN);
    if may_be_zero && spec.min_replica_count.unwrap_or_default() == 0 && seconds > 0 {
        issues.push(KedaIssue::Cooldown { seconds });
    }
    if let Some(replicas) = spec.idle_replica_count.filter(|_| !may_be_zero && may_seem_inactive(scaled)) {
        issues.push(KedaIssue::Idle { replicas });
    }
    let formula = spec.advanced.scaling_modifiers.formula.as_deref();
    issues.extend(formula.filter(|formula| !formula.is_empty()).map(|_| KedaIssue::Formula));
    issues
}

fn setting<'t>(trigger: &'t Trigger, name: &str) -> Option<&'t str> {
    trigger.metadata.get(name).and_then(Value::as_str).map(str::trim)
}

fn number(text: &str) -> Option<f64> {
    text.parse::<f64>().ok().filter(|number| number.is_finite())
}

/// How the HPA of a trigger follows the number.
fn arithmetic(trigger: &Trigger, most: u32) -> Vec<MetricIssue> {
    let metric = query(trigger).and_then(metric_in);
    let Some(metric) = metric.or_else(|| is_external_scaler(trigger).then_some(metric::DESIRED)) else {
        return Vec::new();
    };
    let mut issues = Vec::new();
    let multiplies = trigger.metric_type.as_deref() == Some("Value");
    match find(metric) {
        Some(number @ (Number::Current | Number::Ratio)) if number == Number::Current || !multiplies => {
            let host = Host::ScaledObject;
            issues.push(MetricIssue::NotDesired { host, metric: metric.into(), number });
        }
        Some(Number::Desired) if multiplies => {
            let steps = metric::multiplied(1000, most);
            issues.push(MetricIssue::Multiplies {
                host: Host::ScaledObject,
                is_external: true,
                metric: metric.into(),
                steps,
            });
        }
        _ => {}
    }
    let target = ["threshold", "targetValue"].into_iter().find_map(|name| setting(trigger, name));
    if let Some(by) =
        target.filter(|text| number(text).is_some_and(|target| (target - 1.0).abs() > f64::EPSILON))
    {
        issues.push(MetricIssue::Divided { host: Host::ScaledObject, metric: metric.into(), by: by.into() });
    }
    issues
}

/// Where something else than a number of 0 counts as 0, and what has no effect.
fn zero(trigger: &Trigger, scaled: &ScaledObject) -> Vec<KedaIssue> {
    let ignored =
        setting(trigger, "metricType").filter(|value| trigger.metric_type.as_deref() != Some(*value));
    let mut issues: Vec<_> =
        ignored.map(|value| KedaIssue::MetricTypeIgnored { value: value.into() }).into_iter().collect();
    if trigger.type_ == "prometheus" {
        let nulls = trigger.metadata.get("ignoreNullValues");
        let is_error =
            nulls.is_some_and(|value| *value == Value::Bool(false) || value.as_str().is_some_and(is_false));
        let is_in_query = query(trigger).is_some_and(replaces_missing);
        if !is_error || is_in_query {
            issues.push(KedaIssue::MissingIsZero { is_in_query });
        }
    }
    let activation = ["activationThreshold", "activationTargetValue"];
    let activation = activation
        .into_iter()
        .find_map(|name| setting(trigger, name))
        .filter(|_| scaled.spec.may_deactivate());
    if let Some(threshold) = activation.filter(|text| number(text).is_some_and(|threshold| threshold >= 1.0))
    {
        issues.push(KedaIssue::ActivationHides { threshold: threshold.into() });
    }
    issues
}

/// Which variants a query finds. Only equalities are compared; everything else may hold.
fn selection(trigger: &Trigger, workload: &Workload<'_>) -> Option<KedaIssue> {
    const NAME: &[&str] = &["variant_name", "variant"];
    let query = query(trigger)?;
    // In Prometheus, `namespace` is that of the scrape target, unless it was told to honour labels.
    let is_api = trigger.type_ == METRICS_API;
    let namespace: &[&str] =
        if is_api { &["namespace", "exported_namespace"] } else { &["exported_namespace"] };
    let metric = metric_in(query)?;
    let matchers = is_plain_selection(query, metric).then(|| matchers(query, metric))?;
    let of = |names: &[&str]| {
        let own = matchers.iter().find(|matcher| names.contains(&matcher.label) && matcher.is_equality);
        own.map(|matcher| matcher.value)
    };
    // Whatever else is compared may tell variants apart.
    let is_narrower = matchers.iter().any(|matcher| {
        let is_compared = NAME.contains(&matcher.label) || namespace.contains(&matcher.label);
        !(matcher.is_equality && (is_compared || SHARED_LABELS.contains(&matcher.label)))
    });
    let (name, namespace) = (of(NAME), of(namespace));
    let found = workload.candidates.variants(namespace, name).take(MAX_NAMED + 1);
    let found: Vec<&VariantId> = found.collect();
    let meant = workload.variant.map(|variant| variant.id.clone());
    let is_elsewhere = namespace.is_some_and(|namespace| namespace != workload.namespace);
    match found[..] {
        [] if !workload.knows_variants || is_elsewhere && meant.is_none() => None,
        [] => Some(KedaIssue::QueryFindsNone { is_api, query: query.into(), meant }),
        [reads] => meant.filter(|meant| meant != reads).map(|meant| KedaIssue::QueryFindsOther {
            is_api,
            reads: reads.clone(),
            meant,
        }),
        _ if is_narrower => None,
        _ => {
            let names = found.iter().map(ToString::to_string).collect();
            Some(KedaIssue::QueryFindsSeveral { is_api, query: query.into(), names, meant })
        }
    }
}

fn right_query(is_api: bool, meant: Option<&VariantId>) -> String {
    let unknown = VariantId::new("NAMESPACE", SmolStr::new_static("VARIANT"));
    let VariantId { namespace, name } = meant.unwrap_or(&unknown);
    let (field, label) =
        if is_api { ("valueLocation", "namespace") } else { ("query", "exported_namespace") };
    format!(
        "spec:\n  triggers:\n  - metadata:\n      {field}: wva_desired_replicas{{variant_name=\"{name}\",{label}=\"{namespace}\"}}"
    )
}

impl KedaIssue {
    pub(super) fn words(&self) -> Words {
        match self {
            Self::QueryFindsNone { .. } | Self::QueryFindsSeveral { .. } | Self::QueryFindsOther { .. } => {
                self.words_of_query()
            }
            Self::MissingIsZero { .. } | Self::ActivationHides { .. } | Self::MetricTypeIgnored { .. } => {
                self.words_of_trigger()
            }
            Self::Fallback(issue) => issue.words(),
            Self::Paused { note } => Words::new(
                (Severity::Warning, "Paused"),
                "an annotation pauses it",
                note.clone(),
                "metadata:\n  annotations: {} # without those of autoscaling.keda.sh/paused…",
            ),
            Self::Cooldown { seconds } => Words::new(
                (if *seconds > COOLDOWN { Severity::Warning } else { Severity::Note }, "CooldownDelaysZero"),
                format!(
                    "cooldownPeriod is {seconds} s{}",
                    if *seconds == COOLDOWN { ", its default" } else { "" }
                ),
                format!(
                    "the last replica of an idle model is paid for {seconds} s longer than its idle time"
                ),
                "spec:\n  cooldownPeriod: 0",
            ),
            Self::Idle { replicas } => Words::new(
                (Severity::Warning, "IdleReplicas"),
                format!("idleReplicaCount is {replicas}, and the model does not go to zero"),
                format!(
                    "whenever KEDA takes its triggers for inactive, as without a series, it sets {replicas}, whatever is needed{}",
                    if *replicas > 0 { ", and its HPA minReplicaCount again, by turns" } else { "" }
                ),
                "spec:\n  idleReplicaCount: null",
            ),
            Self::NumberNotRead { variant } => Words::new(
                (Severity::Warning, NUMBER_NOT_READ),
                format!("it scales the workload of variant {variant}, and no trigger names its number"),
                "unless one reads it in another way, as by a recording rule, the number is computed, and nothing follows it",
                right_query(false, Some(variant)),
            ),
            Self::Formula => Words::new(
                (Severity::Warning, "FormulaReplacesNumber"),
                "advanced.scalingModifiers.formula is set",
                "KEDA follows the result of the formula, which need not be the number",
                "spec:\n  advanced:\n    scalingModifiers: null",
            ),
        }
    }

    fn words_of_trigger(&self) -> Words {
        match self {
            Self::ActivationHides { threshold } => Words::new(
                (Severity::Error, "ActivationHidesNumber"),
                format!("its activation threshold is {}", quoted(threshold)),
                format!(
                    "KEDA takes a number up to {threshold} for inactivity, and removes all replicas, or all but the idle ones, although they are needed"
                ),
                "spec:\n  triggers:\n  - metadata:\n      activationThreshold: \"0\" # activationTargetValue for metrics-api",
            ),
            Self::MetricTypeIgnored { value } => Words::new(
                (Severity::Note, "MetricTypeIgnored"),
                format!("metricType: {} is among the trigger's metadata", quoted(value)),
                "it has no effect there, and AverageValue counts; moved to the right place, Value would multiply the replicas",
                "spec:\n  triggers:\n  - metricType: AverageValue # beside the type, and not in metadata\n    metadata: {metricType: null}",
            ),
            Self::MissingIsZero { is_in_query: true } => Words::new(
                (Severity::Error, "MissingSeriesIsZero"),
                "its query has another result where the series is missing",
                "while the series is there, KEDA refuses both results, unless they are added up; when Prometheus loses the series, it takes the \
                 other one for the number, and fallback does not apply",
                "# remove `or vector(…)` from the query\nspec:\n  triggers:\n  - metadata:\n      ignoreNullValues: \"false\"",
            ),
            _ => Words::new(
                (Severity::Error, "MissingSeriesIsZero"),
                "a missing series counts as 0, as ignoreNullValues is true by default",
                "when Prometheus loses the series, KEDA reads 0, removes replicas down to minReplicaCount, and fallback does not apply",
                "spec:\n  triggers:\n  - metadata:\n      ignoreNullValues: \"false\"",
            ),
        }
    }

    fn words_of_query(&self) -> Words {
        match self {
            Self::QueryFindsSeveral { is_api, query, names, meant } => Words::new(
                (Severity::Error, "QueryFindsSeveralVariants"),
                format!("its query is {}", quoted(query)),
                format!(
                    "it finds several variants ({}{}), as Prometheus has the series of all namespaces; KEDA refuses several results, and an \
                     aggregation mixes them",
                    names[..names.len().min(MAX_NAMED)].join(", "),
                    if names.len() > MAX_NAMED { ", …" } else { "" }
                ),
                right_query(*is_api, meant.as_ref()),
            ),
            Self::QueryFindsOther { is_api, reads, meant } => Words::new(
                (Severity::Error, "FollowsAnotherVariant"),
                format!("it reads the number of {reads}, and scales the workload of {meant}"),
                "the workload gets the replicas that another one needs",
                right_query(*is_api, Some(meant)),
            ),
            Self::QueryFindsNone { is_api, query, meant } => Words::new(
                (Severity::Error, "QueryFindsNoVariant"),
                format!("its query is {}", quoted(query)),
                "it finds no variant of this workload: KEDA reads 0 (with ignoreNullValues), an error, or another workload's number",
                right_query(*is_api, meant.as_ref()),
            ),
            _ => self.words_of_trigger(),
        }
    }
}
