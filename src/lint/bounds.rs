//! Whether an autoscaler lets the number through: its minimum and maximum against those of the variant.

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscalerSpec;
use wva_core::units::Replicas;

use super::input::{ScaledObject, VariantFacts, Workload};
use super::keda::may_seem_inactive;
use super::words::{Host, Severity, Words};

/// What an HPA means by leaving out `minReplicas`.
const HPA_MIN: u32 = 1;
/// What a ScaledObject means by leaving out `minReplicaCount`.
const KEDA_MIN: u32 = 0;

/// A bound of an autoscaler that does not fit the variant's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BoundsIssue {
    /// Its maximum is below the variant's.
    MaximumBelow {
        /// The autoscaler.
        host: Host,
        /// Its maximum.
        own: u32,
        /// The variant's; `None` if it has none.
        variant: Option<u32>,
    },
    /// Its maximum is above the variant's.
    MaximumAbove {
        /// The autoscaler.
        host: Host,
        /// Its maximum.
        own: u32,
        /// The variant's.
        variant: u32,
    },
    /// Its minimum is above the variant's.
    MinimumAbove {
        /// The autoscaler.
        host: Host,
        /// Its minimum.
        own: u32,
        /// The lowest number of the variant.
        variant: u32,
    },
    /// Its minimum keeps the model from going to zero, which the policy allows.
    ForbidsZero {
        /// The autoscaler.
        host: Host,
        /// Its minimum.
        own: u32,
    },
    /// KEDA may go to zero, and the variant may not.
    MayGoToZero {
        /// The variant's minimum.
        variant: u32,
        /// Whether a lost series is enough.
        is_lost: bool,
    },
}

/// What is wrong with the bounds of an HPA.
pub(super) fn of_hpa(workload: &Workload<'_>, spec: &HorizontalPodAutoscalerSpec) -> Vec<BoundsIssue> {
    let min = spec.min_replicas.map_or(HPA_MIN, count);
    workload
        .variant
        .map(|variant| judge(Host::Hpa, variant, min, count(spec.max_replicas)))
        .unwrap_or_default()
}

/// What is wrong with the bounds of a ScaledObject.
pub(super) fn of_scaled_object(workload: &Workload<'_>, scaled: &ScaledObject) -> Vec<BoundsIssue> {
    let Some(variant) = workload.variant else { return Vec::new() };
    let min = scaled.spec.min_replica_count.map_or(KEDA_MIN, count);
    let max = count(scaled.spec.max_replicas());
    let mut issues = judge(Host::ScaledObject, variant, min, max);
    if scaled.spec.idle_replica_count == Some(0) {
        issues.retain(|issue| !matches!(issue, BoundsIssue::ForbidsZero { .. }));
    }
    let lowest = variant.bounds.min;
    if min == 0 && lowest > Replicas::ZERO && scaled.reads_a_number() {
        issues.push(BoundsIssue::MayGoToZero { variant: lowest.get(), is_lost: may_seem_inactive(scaled) });
    }
    issues
}

fn count(replicas: i32) -> u32 {
    u32::try_from(replicas).unwrap_or_default()
}

fn judge(host: Host, variant: &VariantFacts, min: u32, max: u32) -> Vec<BoundsIssue> {
    let mut issues = Vec::new();
    match variant.bounds.max.map(Replicas::get) {
        Some(own) if max > own => issues.push(BoundsIssue::MaximumAbove { host, own: max, variant: own }),
        Some(own) if max == own => {}
        own => issues.push(BoundsIssue::MaximumBelow { host, own: max, variant: own }),
    }
    let lowest = variant.bounds.min.get();
    if lowest == 0 && variant.may_be_zero && min > 0 {
        issues.push(BoundsIssue::ForbidsZero { host, own: min });
    } else if min > lowest.max(1) {
        // Without the permission to go to zero, the number is never below 1.
        issues.push(BoundsIssue::MinimumAbove { host, own: min, variant: lowest.max(1) });
    }
    issues
}

impl BoundsIssue {
    pub(super) fn words(&self) -> Words {
        match self {
            Self::MaximumBelow { host, own, variant: Some(variant) } => Words::new(
                (Severity::Error, "MaximumBelowVariants"),
                format!("{} is {own}, and maxReplicas of the variant is {variant}", host.max_field()),
                format!(
                    "numbers from {} to {variant} are not followed: requests wait, although the variant may have more",
                    own + 1
                ),
                format!("spec:\n  {}: {variant}", host.max_field()),
            ),
            Self::MaximumBelow { host, own, variant: None } => Words::new(
                (Severity::Warning, "VariantWithoutMaximum"),
                format!("{} is {own}, and the variant has no maxReplicas", host.max_field()),
                format!(
                    "a number above {own} is not followed, and other variants of the model are not asked instead, because they seem \
                     not to be needed"
                ),
                format!("# in the VariantAutoscaling\nspec:\n  maxReplicas: {own}"),
            ),
            Self::MaximumAbove { host, own, variant } => Words::new(
                (Severity::Note, "MaximumAboveVariants"),
                format!("{} is {own}, and maxReplicas of the variant is {variant}", host.max_field()),
                format!("the number stops at {variant}: the autoscaler never uses the rest"),
                format!("spec:\n  {}: {variant}", host.max_field()),
            ),
            Self::MinimumAbove { host, own, variant } => Words::new(
                (Severity::Warning, "MinimumAboveVariants"),
                format!("{} is {own}, and the number may be {variant}", host.min_field()),
                format!("{own} replicas are paid for where {variant} would do"),
                format!(
                    "spec:\n  {}: {variant} # or raise minReplicas of the variant, so that both say the same",
                    host.min_field()
                ),
            ),
            Self::ForbidsZero { host, own } => Words::new(
                (Severity::Warning, "MinimumForbidsZero"),
                format!("{} is {own}, and the model may go to zero", host.min_field()),
                format!("the number 0 of an idle model is not followed: {own} idle replicas keep their GPUs"),
                match host {
                    Host::Hpa => {
                        "spec:\n  minReplicas: 0 # needs the feature gate HPAScaleToZero, on by default from Kubernetes 1.37"
                    }
                    Host::ScaledObject => "spec:\n  minReplicaCount: 0",
                },
            ),
            Self::MayGoToZero { variant, is_lost } => Words::new(
                (Severity::Warning, "KedaMayGoToZero"),
                format!("minReplicaCount is 0, its default, and minReplicas of the variant is {variant}"),
                if *is_lost {
                    "whenever KEDA takes its triggers for inactive, as here without a series, it removes the last replica, although the \
                     number is never 0"
                } else {
                    "while a trigger fails, KEDA may take it for inactive and remove all replicas, although the number is never 0 \
                     (docs/keda.md)"
                },
                format!("spec:\n  minReplicaCount: {variant}"),
            ),
        }
    }
}
