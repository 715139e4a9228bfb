//! Who scales a workload.

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscalerSpec;
use wva_core::text::quoted;

use super::input::{VerticalPodAutoscaler, Workload};
use super::object::ObjectRef;
use super::pause::is_paused_whole;
use super::words::{Severity, Words};

/// Modes in which a VerticalPodAutoscaler restarts running pods. `Auto` is the default.
const UPDATING_MODES: [&str; 3] = ["Auto", "Recreate", "InPlaceOrRecreate"];
/// Most autoscalers that a sentence names.
const MAX_NAMED: usize = 4;

/// Who scales the workload besides, or does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetIssue {
    /// Several autoscalers set the replicas of one workload.
    SeveralAutoscalers {
        /// The workload.
        target: String,
        /// Some of the others.
        others: Vec<String>,
        /// How many others there are besides these.
        more: usize,
    },
    /// A VerticalPodAutoscaler restarts the pods.
    VerticalUpdates {
        /// The workload.
        target: String,
        /// Its mode.
        mode: String,
    },
    /// An HPA scales the workload of a variant by other metrics only.
    NumberNotRead {
        /// The variant.
        variant: String,
        /// How many metrics it reads.
        metrics: usize,
        /// Whether one of them may be the number under another name.
        may_be_renamed: bool,
    },
    /// Nothing scales the workload of a variant.
    NoAutoscaler {
        /// The variant's name.
        variant: String,
        /// The workload.
        target: String,
    },
}

/// The reason where nothing scales the workload of a variant.
pub(crate) const NO_AUTOSCALER: &str = "NoAutoscaler";

/// The reason where no metric of an autoscaler is the number: an error, or a warning where one of them may be it under another name.
pub(crate) const NUMBER_NOT_READ: &str = "NumberNotRead";

/// Whether an HPA of a variant's workload reads the number at all, where nothing else of the workload does.
pub(super) fn judge_reads(
    workload: &Workload<'_>,
    reads: usize,
    spec: &HorizontalPodAutoscalerSpec,
) -> Option<TargetIssue> {
    let variant = workload.variant.filter(|_| reads == 0 && !workload.is_read())?;
    let metrics = spec.metrics.as_ref().map_or(0, Vec::len);
    let may_be_renamed =
        spec.metrics.iter().flatten().any(|metric| metric.external.is_some() || metric.object.is_some());
    Some(TargetIssue::NumberNotRead { variant: variant.id.to_string(), metrics, may_be_renamed })
}

/// What is wrong with all autoscalers of a workload together, and with which object.
pub(super) fn judge(workload: &Workload<'_>) -> Vec<(ObjectRef, TargetIssue)> {
    let target = workload.target.to_string();
    let hpas = workload
        .own_hpas()
        .filter(|hpa| !workload.scaled_objects.iter().any(|scaled| scaled.takes_over(&hpa.metadata)))
        .map(|hpa| ObjectRef::of("HorizontalPodAutoscaler", &hpa.metadata));
    // A paused one, as in a migration, has no HPA.
    let scaled = workload.scaled_objects.iter().filter(|scaled| !is_paused_whole(&scaled.metadata));
    let scaled = scaled.map(|scaled| ObjectRef::of("ScaledObject", &scaled.metadata));
    let active: Vec<ObjectRef> = hpas.chain(scaled).collect();
    let mut issues = Vec::new();
    if active.len() > 1 {
        for object in &active {
            let others = active.iter().filter(|rival| *rival != object).take(MAX_NAMED);
            let others: Vec<_> = others.map(ToString::to_string).collect();
            let more = active.len() - 1 - others.len();
            issues.push((
                object.clone(),
                TargetIssue::SeveralAutoscalers { target: target.clone(), others, more },
            ));
        }
    }
    for vertical in workload.vertical.iter().filter(|vertical| updates_pods(vertical)) {
        let object = ObjectRef::of("VerticalPodAutoscaler", &vertical.metadata);
        let mode = update_mode(vertical).into();
        issues.push((object, TargetIssue::VerticalUpdates { target: target.clone(), mode }));
    }
    let has_none = workload.hpas.is_empty() && workload.scaled_objects.is_empty();
    if let Some(variant) = workload.variant.filter(|_| has_none && !workload.is_incomplete) {
        let object = ObjectRef::named(variant.kind, &variant.id);
        issues.push((object, TargetIssue::NoAutoscaler { variant: variant.id.name.to_string(), target }));
    }
    issues
}

/// Whether a VerticalPodAutoscaler restarts running pods.
#[must_use]
pub fn updates_pods(vertical: &VerticalPodAutoscaler) -> bool {
    UPDATING_MODES.contains(&update_mode(vertical))
}

fn update_mode(vertical: &VerticalPodAutoscaler) -> &str {
    let policy = vertical.spec.update_policy.as_ref();
    policy.and_then(|policy| policy.update_mode.as_deref()).unwrap_or("Auto")
}

impl TargetIssue {
    pub(super) fn words(&self) -> Words {
        match self {
            Self::SeveralAutoscalers { target, others, more } => Words::new(
                (Severity::Error, "SeveralAutoscalers"),
                format!(
                    "{target} is also scaled by {}{}",
                    others.join(", "),
                    if *more > 0 { format!(" and {more} more") } else { String::new() }
                ),
                "the HPA controller follows none of several HPAs of the same pods, of which KEDA makes one for each ScaledObject (condition \
                 ScalingActive False, AmbiguousSelector): the replicas stay, whatever the load, and between 0 and 1 each sets its own",
                format!("# keep one autoscaler of {target}, and delete the others"),
            ),
            Self::VerticalUpdates { target, mode } => Words::new(
                (Severity::Warning, "VerticalAutoscalerRestarts"),
                format!("it sizes {target} with updateMode {}", quoted(mode)),
                "it evicts running model servers to change their requests: capacity is missing for as long as a model loads, and no \
                 number accounts for it",
                "spec:\n  updatePolicy: {updateMode: \"Off\"} # or Initial",
            ),
            Self::NumberNotRead { variant, metrics, may_be_renamed } => Words::new(
                (if *may_be_renamed { Severity::Warning } else { Severity::Error }, NUMBER_NOT_READ),
                format!(
                    "it scales the workload of variant {variant} by {metrics} metrics, none of them named as the number"
                ),
                if *may_be_renamed {
                    "unless one of them is the number under another name, it is computed, and nothing follows it"
                } else {
                    "the number is computed, and nothing follows it"
                },
                number_metric(variant.rsplit('/').next().unwrap_or_default()),
            ),
            Self::NoAutoscaler { variant, target } => Words::new(
                (Severity::Warning, NO_AUTOSCALER),
                format!("no HPA and no ScaledObject scales {target}"),
                "the number is computed, and nothing follows it",
                format!("# an HPA for {target} (README.md has a whole one)\n{}", number_metric(variant)),
            ),
        }
    }
}

fn number_metric(variant: &str) -> String {
    format!(
        "spec:\n  metrics:\n  - type: External\n    external:\n      metric:\n        name: wva_desired_replicas\n        selector: {{matchLabels: {{variant_name: \"{variant}\"}}}}\n      target: {{type: AverageValue, averageValue: \"1\"}}"
    )
}
