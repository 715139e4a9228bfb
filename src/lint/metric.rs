//! Which number an HPA reads, and by which arithmetic it follows it.

use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec, MetricSpec, MetricTarget,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use wva_core::hpa::{self, Counts, Kind, Tolerance};
use wva_core::text::{first_names, quoted};
use wva_core::units::Replicas;

use super::words::{Host, Severity, Words};

/// What a metric of this program is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// The desired replicas.
    Desired,
    /// The current replicas.
    Current,
    /// Desired divided by current.
    Ratio,
}

/// The metrics of this program by name; a test holds this against what is served.
pub const NUMBERS: [(&str, Number); 4] = [
    (DESIRED, Number::Desired),
    ("wva_current_replicas", Number::Current),
    ("wva_desired_ratio", Number::Ratio),
    ("inferno_desired_replicas", Number::Desired),
];
/// The metric that an autoscaler follows.
pub(super) const DESIRED: &str = "wva_desired_replicas";
/// How metrics begin that are meant to be ours.
const OUR_PREFIXES: [&str; 2] = ["wva_", "inferno_"];
/// Most metrics that a sentence names.
const MAX_NAMED: usize = 4;
/// Syncs of an HPA that a sentence shows.
const SHOWN_SYNCS: usize = 6;

/// What is wrong with what is read.
#[derive(Debug, Clone, PartialEq)]
pub enum MetricIssue {
    /// The number multiplies the running replicas. `steps` is what becomes of 2 replicas while the number is 2.
    Multiplies {
        /// The autoscaler.
        host: Host,
        /// Whether it reads an external metric.
        is_external: bool,
        /// The metric.
        metric: String,
        /// The replicas after each sync, up to the maximum.
        steps: Vec<u32>,
    },
    /// The number is divided.
    Divided {
        /// The autoscaler.
        host: Host,
        /// The metric.
        metric: String,
        /// By this, as written.
        by: String,
    },
    /// No such metric is served.
    Unknown {
        /// Its name.
        metric: String,
    },
    /// The metric is read in another way than those in which it is served.
    WrongType {
        /// Its name.
        metric: String,
        /// The type of the metric's source.
        type_: String,
    },
    /// The metric is no desired number of replicas.
    NotDesired {
        /// The autoscaler.
        host: Host,
        /// Its name.
        metric: String,
        /// What it is.
        number: Number,
    },
    /// The autoscaler takes the largest of several.
    OtherMetrics {
        /// The autoscaler.
        host: Host,
        /// The others.
        names: Vec<String>,
    },
}

/// A read of a number of this program.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Read {
    /// As an external metric, with the labels that are selected.
    External(Option<LabelSelector>),
    /// As a metric of an object: its kind and name.
    Object(String, String),
}

/// What the metric of this program with this name is.
pub(crate) fn find(name: &str) -> Option<Number> {
    // The HPA lower-cases the name before it reads.
    let name = name.to_lowercase();
    NUMBERS.into_iter().find(|(own, _)| *own == name).map(|(_, number)| number)
}

/// Whether a metric is one of this program, or is meant to be.
pub(super) fn is_meant_for_us(name: &str) -> bool {
    let name = name.to_lowercase();
    OUR_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// The name of a metric that has one.
pub(super) fn name_of(metric: &MetricSpec) -> Option<&str> {
    let external = metric.external.as_ref().map(|source| &source.metric);
    let object = || metric.object.as_ref().map(|source| &source.metric);
    let pods = || metric.pods.as_ref().map(|source| &source.metric);
    external.or_else(object).or_else(pods).map(|metric| metric.name.as_str())
}

/// Whether an HPA reads a metric of this program, or means to.
#[must_use]
pub fn reads_a_number(hpa: &HorizontalPodAutoscaler) -> bool {
    let metrics = hpa.spec.iter().flat_map(|spec| spec.metrics.iter().flatten());
    metrics.into_iter().filter_map(name_of).any(is_meant_for_us)
}

/// What is wrong with the metrics of an HPA, and its reads of our numbers. `most` is the most replicas that it can set.
pub(super) fn judge(spec: &HorizontalPodAutoscalerSpec, most: u32) -> (Vec<MetricIssue>, Vec<Read>) {
    let (mut issues, mut reads, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for metric in spec.metrics.iter().flatten() {
        let name = name_of(metric);
        let Some((name, number)) = name.and_then(|name| Some((name, find(name)?))) else {
            match name {
                Some(name) if is_meant_for_us(name) => {
                    issues.push(MetricIssue::Unknown { metric: name.into() })
                }
                _ => others.push(label(metric)),
            }
            continue;
        };
        let target = if let Some(source) = &metric.external {
            reads.push(Read::External(source.metric.selector.clone()));
            &source.target
        } else if let Some(source) = &metric.object {
            let object = &source.described_object;
            reads.push(Read::Object(object.kind.clone(), object.name.clone()));
            &source.target
        } else {
            issues.push(MetricIssue::WrongType { metric: name.into(), type_: metric.type_.clone() });
            continue;
        };
        issues.extend(judge_target(name, number, (target, metric.external.is_some()), most));
    }
    if !reads.is_empty() && !others.is_empty() {
        issues.push(MetricIssue::OtherMetrics { host: Host::Hpa, names: others });
    }
    (issues, reads)
}

/// What a metric of another program is called.
fn label(metric: &MetricSpec) -> String {
    let resource = metric.resource.as_ref().map(|source| source.name.clone());
    let of_container = || metric.container_resource.as_ref().map(|source| source.name.clone());
    let name = || name_of(metric).map(str::to_owned);
    resource.or_else(of_container).or_else(name).unwrap_or_else(|| metric.type_.clone())
}

fn judge_target(
    name: &str,
    number: Number,
    (target, is_external): (&MetricTarget, bool),
    most: u32,
) -> Option<MetricIssue> {
    let metric = name.to_owned();
    // As in the controller, whatever the type says.
    let (kind, value) = match (&target.average_value, &target.value) {
        (Some(value), _) => (Kind::AverageValue, value),
        (None, Some(value)) => (Kind::Value, value),
        (None, None) => return None,
    };
    let is_one = milli(value) == Some(1000);
    match (number, kind) {
        (Number::Current, _) | (Number::Ratio, Kind::AverageValue) => {
            Some(MetricIssue::NotDesired { host: Host::Hpa, metric, number })
        }
        (Number::Desired, Kind::Value) => {
            let steps = multiplied(milli(value).unwrap_or(1000), most);
            Some(MetricIssue::Multiplies { host: Host::Hpa, is_external, metric, steps })
        }
        _ if is_one => None,
        _ => Some(MetricIssue::Divided { host: Host::Hpa, metric, by: value.0.clone() }),
    }
}

/// What an HPA with a target of the type `Value` makes of 2 replicas, sync by sync, while the number is 2.
pub(super) fn multiplied(target_milli: i64, most: u32) -> Vec<u32> {
    let target = hpa::MetricTarget { kind: Kind::Value, milli: target_milli.max(1) };
    let mut running = Replicas::new(2.min(most));
    let mut steps = vec![running.get()];
    while steps.len() < SHOWN_SYNCS {
        let counts = Counts { spec: running, status: running, ready: running };
        let proposed = hpa::propose(&[hpa::milli(2.0)], target, counts, Tolerance::default());
        let next = proposed.unwrap_or(running).min(Replicas::new(most));
        if next == running {
            break;
        }
        steps.push(next.get());
        running = next;
    }
    steps
}

/// A quantity in thousandths; `None` for one that cannot be read.
pub(super) fn milli(quantity: &Quantity) -> Option<i64> {
    let text = quantity.0.trim();
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "" => 1000.0,
        "m" => 1.0,
        "k" => 1e6,
        "M" => 1e9,
        _ => return None,
    };
    let value: f64 = digits.parse().ok()?;
    (value.is_finite() && value >= 0.0).then(|| wva_core::units::truncated_i64((value * factor).round()))
}

impl MetricIssue {
    /// Whether an HPA multiplies an external metric.
    pub(super) const fn is_external_value(&self) -> bool {
        matches!(self, Self::Multiplies { host: Host::Hpa, is_external: true, .. })
    }

    pub(super) fn words(&self) -> Words {
        match self {
            Self::Multiplies { host, metric, steps, .. } => {
                let shown = steps.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
                let (set, fix) = match host {
                    Host::Hpa => (format!("the target of {} has the type Value", quoted(metric)), hpa_target()),
                    Host::ScaledObject => (
                        format!("the trigger that reads {} has metricType: Value", quoted(metric)),
                        "spec:\n  triggers:\n  - metricType: AverageValue # of this trigger".into(),
                    ),
                };
                Words::new(
                    (Severity::Error, "TargetTypeMultiplies"),
                    set,
                    format!(
                        "the number multiplies the Ready pods at each sync, every 15 s, instead of replacing them: while it is 2, 2 \
                         replicas become {shown}; while it is 1, none is ever removed"
                    ),
                    fix,
                )
            }
            Self::Divided { host, metric, by } => Words::new(
                (Severity::Error, "NumberDivided"),
                format!("the target of {} is {}", quoted(metric), quoted(by)),
                format!("the number is divided by {}, so that another number of replicas runs than is needed", quoted(by)),
                match host {
                    Host::Hpa => hpa_target(),
                    Host::ScaledObject => {
                        "spec:\n  triggers:\n  - metadata:\n      threshold: \"1\" # targetValue for metrics-api".into()
                    }
                },
            ),
            Self::Unknown { metric } => Words::new(
                (Severity::Error, "MetricUnknown"),
                format!("it reads the metric {}", quoted(metric)),
                "no such metric is served: the HPA gets an error (404) for it and does not follow the number",
                format!("spec:\n  metrics:\n  - external:\n      metric: {{name: {DESIRED}}}"),
            ),
            Self::WrongType { metric, type_ } => Words::new(
                (Severity::Error, "MetricTypeWrong"),
                format!("it reads {} as a metric of type {}", quoted(metric), quoted(type_)),
                "it is served as an external metric, and as a metric of an object: the HPA gets an error, and does not follow it",
                format!(
                    "spec:\n  metrics:\n  - type: External\n    external:\n      metric:\n        name: {DESIRED}\n        selector: {{matchLabels: {{variant_name: VARIANT}}}}\n      target: {{type: AverageValue, averageValue: \"1\"}}"
                ),
            ),
            Self::NotDesired { host, metric, number } => Words::new(
                (Severity::Error, "MetricNotDesired"),
                format!("it reads {}", quoted(metric)),
                match number {
                    Number::Ratio => {
                        "that is desired divided by current replicas, about 1: with AverageValue it keeps one replica, whatever is needed"
                    }
                    Number::Current | Number::Desired => {
                        "that is the number of replicas which run already: the HPA never changes anything"
                    }
                },
                match host {
                    Host::Hpa => format!("spec:\n  metrics:\n  - external:\n      metric: {{name: {DESIRED}}}"),
                    Host::ScaledObject => format!("# read {DESIRED} with the same labels"),
                },
            ),
            Self::OtherMetrics { host, names } => other_metrics(*host, names),
        }
    }
}

fn other_metrics(host: Host, names: &[String]) -> Words {
    let (named, place) = match host {
        Host::Hpa => ("metrics", "spec.metrics"),
        Host::ScaledObject => ("triggers", "spec.triggers"),
    };
    let shown = first_names(names.iter().map(|name| quoted(name)), MAX_NAMED, ", ");
    Words::new(
        (Severity::Warning, "OtherMetricsDecideToo"),
        format!("beside the number it has other {named}: {shown}"),
        "the largest of all wins, so replicas run that the number does not ask for; and while one of them fails, nothing is removed",
        format!("# leave only wva's in {place}, once you trust the number"),
    )
}

fn hpa_target() -> String {
    "spec:\n  metrics:\n  - external: # object: for a metric of type Object\n      target: {type: AverageValue, averageValue: \"1\"}".into()
}
