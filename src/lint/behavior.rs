//! How fast an autoscaler follows the number: windows, policies and tolerances of its `behavior`, by the arithmetic of the controller.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::autoscaling::v2::{
    HPAScalingRules, HorizontalPodAutoscalerBehavior, HorizontalPodAutoscalerSpec,
};
use wva_core::hpa::{
    AtZero, Behavior, Hpa, PolicyKind, Rules, SYNC_PERIOD, ScalingPolicy, Select, Settings, Tolerance,
};
use wva_core::model::Analyzer;
use wva_core::units::{Replicas, Seconds};

use super::input::{ScaledObject, Workload};
use super::metric::milli;
use super::words::{Host, Severity, Words};

/// Longest window for removals that says nothing. The default policy has its own cooldown, and needs none; with pod deletion costs 30 s
/// are right.
const MAX_REMOVAL_WINDOW: Seconds = Seconds::whole(30);
/// Longest time in which additions may double the replicas. The shortest start-up time that is assumed for a pod is 2 min, and while
/// requests pile up the policies should not be half of it.
const MAX_DOUBLING: Seconds = Seconds::whole(60);
/// Longest time in which removals may halve the replicas: two cooldowns of the default policy.
const MAX_HALVING: Seconds = Seconds::whole(600);
/// Policies that a fleet of any size follows in time: those of HPAs that set none, and the policy's own pace of removals.
const FAST_ADDITIONS: &str =
    "{type: Pods, value: 4, periodSeconds: 15}, {type: Percent, value: 100, periodSeconds: 15}";
const FAST_REMOVALS: &str =
    "{type: Pods, value: 2, periodSeconds: 60}, {type: Percent, value: 10, periodSeconds: 60}";
/// Syncs after which a change counts as one that never ends: an hour.
const MAX_SYNCS: u32 = 240;
/// From so many replicas on, the default tolerance hides a change by one.
const HIDDEN_FROM: u32 = 10;

/// A direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Additions.
    Up,
    /// Removals.
    Down,
}

/// A rule by which the number is followed late, or not at all.
#[derive(Debug, Clone, PartialEq)]
pub enum BehaviorIssue {
    /// A stabilisation window delays a change that is steadied already.
    Delayed {
        /// The autoscaler.
        host: Host,
        /// Which changes.
        direction: Direction,
        /// The window.
        seconds: u32,
        /// Whether it is the default, and not written.
        is_default: bool,
        /// The analyzer.
        analyzer: Analyzer,
    },
    /// Nothing steadies removals.
    Unsteady {
        /// The autoscaler.
        host: Host,
        /// The analyzer.
        analyzer: Analyzer,
    },
    /// The policies take long for a change that may be needed.
    Slow {
        /// The autoscaler.
        host: Host,
        /// Which change.
        direction: Direction,
        /// Replicas before.
        from: u32,
        /// Replicas after.
        to: u32,
        /// How long it takes; `None` for more than an hour.
        seconds: Option<u32>,
    },
    /// `selectPolicy: Disabled`.
    Disabled {
        /// The autoscaler.
        host: Host,
        /// Which changes.
        direction: Direction,
    },
    /// The policy that counts for additions is a percentage, and of 0 replicas that is 0.
    CannotLeaveZero {
        /// The autoscaler.
        host: Host,
    },
    /// Changes within the tolerance are not followed.
    ToleranceHides {
        /// The autoscaler.
        host: Host,
        /// Its tolerance, the larger of both directions.
        tolerance: f64,
        /// What the policy takes it to be.
        expected: f64,
        /// Whether the analyzer moves its number past the tolerance.
        is_moved_past: bool,
        /// From so many replicas on, a change by one is hidden.
        from: u32,
    },
}

/// The rules of an autoscaler, and who has them.
struct Ruled<'a> {
    host: Host,
    behavior: Option<&'a HorizontalPodAutoscalerBehavior>,
    analyzer: Analyzer,
    /// What the policy takes the tolerance to be.
    expected: f64,
    /// The most replicas that can be set.
    most: u32,
    /// Whether it goes to zero itself: KEDA wakes its workloads without the HPA.
    has_zero: bool,
}

/// What is wrong with the behavior of an HPA.
pub(super) fn of_hpa(workload: &Workload<'_>, spec: &HorizontalPodAutoscalerSpec) -> Vec<BehaviorIssue> {
    let most = workload.most_replicas(spec.max_replicas);
    let has_zero = spec.min_replicas == Some(0);
    judge(&ruled(Host::Hpa, workload, spec.behavior.as_ref(), most, has_zero))
}

/// What is wrong with the behavior that a ScaledObject gives to its HPA.
pub(super) fn of_scaled_object(workload: &Workload<'_>, scaled: &ScaledObject) -> Vec<BehaviorIssue> {
    let most = workload.most_replicas(scaled.spec.max_replicas());
    let behavior = scaled.spec.advanced.horizontal_pod_autoscaler_config.behavior.as_ref();
    judge(&ruled(Host::ScaledObject, workload, behavior, most, false))
}

fn ruled<'a>(
    host: Host,
    workload: &Workload<'_>,
    behavior: Option<&'a HorizontalPodAutoscalerBehavior>,
    most: u32,
    has_zero: bool,
) -> Ruled<'a> {
    let variant = workload.variant;
    let analyzer = variant.map_or(Analyzer::Rate, |variant| variant.analyzer);
    let expected = variant.map_or(Tolerance::default().up, |variant| variant.tolerance);
    Ruled { host, behavior, analyzer, expected, most, has_zero }
}

fn judge(ruled: &Ruled<'_>) -> Vec<BehaviorIssue> {
    let Ruled { host, most, .. } = *ruled;
    let behavior = effective(ruled.behavior);
    let mut issues = windows(ruled, &behavior);
    for (direction, rules) in [(Direction::Up, &behavior.up), (Direction::Down, &behavior.down)] {
        if rules.select == Select::Disabled {
            issues.push(BehaviorIssue::Disabled { host, direction });
            continue;
        }
        let (from, to, limit) = match direction {
            Direction::Up => (most / 2, most, MAX_DOUBLING),
            Direction::Down => (most, most.div_ceil(2), MAX_HALVING),
        };
        let needed = (from > 0).then(|| time_to_follow(&behavior, from, to));
        if let Some(seconds) = needed.filter(|seconds| seconds.is_none_or(|seconds| seconds > limit)) {
            let seconds = seconds.map(whole);
            issues.push(BehaviorIssue::Slow { host, direction, from, to, seconds });
        }
    }
    let is_percent = |policy: &ScalingPolicy| policy.kind == PolicyKind::Percent;
    let policies = &behavior.up.policies;
    let is_stuck = match behavior.up.select {
        Select::Min => policies.iter().any(is_percent),
        _ => policies.iter().all(is_percent),
    };
    if ruled.has_zero && is_stuck {
        issues.push(BehaviorIssue::CannotLeaveZero { host });
    }
    issues.extend(tolerance(ruled));
    issues
}

fn windows(ruled: &Ruled<'_>, behavior: &Behavior) -> Vec<BehaviorIssue> {
    let Ruled { host, analyzer, .. } = *ruled;
    let written = |rules: Option<&HPAScalingRules>| {
        rules.is_some_and(|rules| rules.stabilization_window_seconds.is_some())
    };
    let of = |pick: fn(&HorizontalPodAutoscalerBehavior) -> Option<&HPAScalingRules>| {
        written(ruled.behavior.and_then(pick))
    };
    let delayed = |direction, window: Seconds, is_written: bool| BehaviorIssue::Delayed {
        host,
        direction,
        seconds: whole(window),
        is_default: !is_written,
        analyzer,
    };
    let mut issues = Vec::new();
    if behavior.up.window > Seconds::ZERO {
        issues.push(delayed(Direction::Up, behavior.up.window, of(|behavior| behavior.scale_up.as_ref())));
    }
    let is_steadied = analyzer == Analyzer::Rate;
    if is_steadied && behavior.down.window > MAX_REMOVAL_WINDOW {
        let is_written = of(|behavior| behavior.scale_down.as_ref());
        issues.push(delayed(Direction::Down, behavior.down.window, is_written));
    }
    if !is_steadied && behavior.down.window == Seconds::ZERO {
        issues.push(BehaviorIssue::Unsteady { host, analyzer });
    }
    issues
}

fn tolerance(ruled: &Ruled<'_>) -> Option<BehaviorIssue> {
    let default = Tolerance::default();
    let share = |rules: Option<&HPAScalingRules>, default: f64| {
        let own = rules.and_then(|rules| milli(rules.tolerance.as_ref()?));
        own.map_or(default, |milli| wva_core::units::to_f64(milli) / 1000.0)
    };
    let up = share(ruled.behavior.and_then(|behavior| behavior.scale_up.as_ref()), default.up);
    let down = share(ruled.behavior.and_then(|behavior| behavior.scale_down.as_ref()), default.down);
    let tolerance = up.max(down);
    if tolerance <= 0.0 {
        return None;
    }
    let from = wva_core::units::truncated_u32((1.0 / tolerance).ceil()).clamp(1, HIDDEN_FROM * 1000);
    let is_moved_past = ruled.analyzer == Analyzer::Rate && tolerance <= ruled.expected;
    (ruled.most >= from).then_some(BehaviorIssue::ToleranceHides {
        host: ruled.host,
        tolerance,
        expected: ruled.expected,
        is_moved_past,
        from,
    })
}

/// The rules in force: what is written, over the defaults that the API server fills in.
fn effective(written: Option<&HorizontalPodAutoscalerBehavior>) -> Behavior {
    let default = Behavior::default();
    let Some(written) = written else { return default };
    Behavior {
        up: rules(written.scale_up.as_ref(), default.up),
        down: rules(written.scale_down.as_ref(), default.down),
    }
}

fn rules(written: Option<&HPAScalingRules>, default: Rules) -> Rules {
    let Some(written) = written else { return default };
    let count = |number: i32| u32::try_from(number).unwrap_or_default();
    let policies = written.policies.iter().flatten().map(|policy| ScalingPolicy {
        kind: if policy.type_ == "Percent" { PolicyKind::Percent } else { PolicyKind::Pods },
        value: count(policy.value),
        period: Seconds::whole(count(policy.period_seconds)),
    });
    let policies: Vec<_> = policies.collect();
    Rules {
        window: written
            .stabilization_window_seconds
            .map_or(default.window, |seconds| Seconds::whole(count(seconds))),
        select: match written.select_policy.as_deref() {
            Some("Min") => Select::Min,
            Some("Disabled") => Select::Disabled,
            _ => Select::Max,
        },
        policies: if policies.is_empty() { default.policies } else { policies },
    }
}

/// How long an HPA with these policies, and without windows, takes from a number of replicas to another; `None` for more than an hour.
fn time_to_follow(behavior: &Behavior, from: u32, to: u32) -> Option<Seconds> {
    let without_window = |rules: &Rules| Rules { window: Seconds::ZERO, ..rules.clone() };
    let mut hpa = Hpa::new(Settings {
        min: Replicas::ZERO,
        max: Replicas::new(from.max(to)),
        behavior: Some(Behavior { up: without_window(&behavior.up), down: without_window(&behavior.down) }),
        at_zero: AtZero::Reads,
    });
    let (mut running, goal) = (Replicas::new(from), Replicas::new(to));
    for sync in 0..MAX_SYNCS {
        let elapsed = Seconds::whole(whole(SYNC_PERIOD) * sync);
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(i64::from(whole(elapsed)));
        running = hpa.step(now, running, Some(goal));
        if running == goal {
            return Some(elapsed);
        }
    }
    None
}

fn whole(seconds: Seconds) -> u32 {
    wva_core::units::truncated_u32(seconds.get())
}

impl Direction {
    const fn field(self) -> &'static str {
        match self {
            Self::Up => "scaleUp",
            Self::Down => "scaleDown",
        }
    }

    const fn changes(self) -> &'static str {
        match self {
            Self::Up => "additions",
            Self::Down => "removals",
        }
    }
}

impl BehaviorIssue {
    pub(super) fn words(&self) -> Words {
        match self {
            Self::Delayed { host, direction, seconds, is_default, analyzer } => {
                delayed(*host, *direction, *seconds, *is_default, *analyzer)
            }
            Self::Unsteady { host, analyzer } => Words::new(
                (Severity::Note, "RemovalsUnsteady"),
                format!("scaleDown.stabilizationWindowSeconds is 0, and {} decides", analyzer.as_str()),
                "that analyzer does not steady its own number: a short dip removes replicas that are needed again a minute later",
                host.behavior("scaleDown: {stabilizationWindowSeconds: 120}"),
            ),
            Self::Slow { host, direction, from, to, seconds } => {
                slow(*host, *direction, (*from, *to), *seconds)
            }
            Self::Disabled { host, direction } => Words::new(
                (
                    Severity::Error,
                    if *direction == Direction::Up { "AdditionsDisabled" } else { "RemovalsDisabled" },
                ),
                format!("{}.selectPolicy is Disabled", direction.field()),
                match direction {
                    Direction::Up => "no replica is ever added, whatever the number is: requests wait",
                    Direction::Down => {
                        "no replica is ever removed, whatever the number is: all that were ever needed are paid for"
                    }
                },
                host.behavior(&format!("{}: {{selectPolicy: Max}}", direction.field())),
            ),
            Self::CannotLeaveZero { host } => Words::new(
                (Severity::Error, "CannotLeaveZero"),
                "minReplicas is 0, and the policy of scaleUp that counts there is a percentage",
                "a percentage of 0 replicas is 0: once the model is at zero, no request ever wakes it",
                host.behavior(&format!("scaleUp:\n  selectPolicy: Max\n  policies: [{FAST_ADDITIONS}]")),
            ),
            Self::ToleranceHides { host, tolerance, expected, is_moved_past, from } => {
                let fix = host.behavior(
                    "scaleUp: {tolerance: \"0\"} # needs Kubernetes 1.35\nscaleDown: {tolerance: \"0\"}",
                );
                let set = format!(
                    "its tolerance is {} %, and it may have {from} replicas or more",
                    percent(*tolerance)
                );
                if *is_moved_past {
                    return Words::new(
                        (Severity::Note, "ToleranceHidesOne"),
                        set,
                        format!(
                            "from {from} replicas on it ignores a change by one; the number is moved past the {} % that its policy \
                             expects, so a step is larger than needed",
                            percent(*expected)
                        ),
                        fix,
                    );
                }
                Words::new(
                    (Severity::Warning, "ToleranceHidesChanges"),
                    set,
                    format!(
                        "from {from} replicas on a change by one is not followed, and the number is not moved past it (its policy \
                         expects {} %): a replica too few or too many",
                        percent(*expected)
                    ),
                    fix,
                )
            }
        }
    }
}

fn percent(share: f64) -> f64 {
    (share * 1000.0).round() / 10.0
}

fn delayed(host: Host, direction: Direction, seconds: u32, is_default: bool, analyzer: Analyzer) -> Words {
    let (field, changes) = (direction.field(), direction.changes());
    let origin = if is_default { ", which is the default" } else { "" };
    let effect = match direction {
        Direction::Up => {
            format!(
                "{changes} wait {seconds} s longer, and every number that was lower meanwhile counts: requests queue up"
            )
        }
        Direction::Down => format!(
            "{changes} wait {seconds} s after {}, which steadies its own number, has allowed them: replicas without work are paid for",
            analyzer.as_str()
        ),
    };
    let reason = if direction == Direction::Up { "AdditionsDelayed" } else { "RemovalsDelayed" };
    Words::new(
        (Severity::Warning, reason),
        format!("{field}.stabilizationWindowSeconds is {seconds}{origin}"),
        effect,
        host.behavior(&format!("{field}: {{stabilizationWindowSeconds: 0}}")),
    )
}

fn slow(host: Host, direction: Direction, (from, to): (u32, u32), seconds: Option<u32>) -> Words {
    let time = seconds.map_or("more than an hour".to_owned(), |seconds| format!("{seconds} s"));
    let field = direction.field();
    let (reason, effect, policies) = match direction {
        Direction::Up => {
            ("AdditionsSlow", "requests wait for replicas that the number asks for", FAST_ADDITIONS)
        }
        Direction::Down => {
            ("RemovalsSlow", "replicas that the number no longer asks for are paid for", FAST_REMOVALS)
        }
    };
    Words::new(
        (Severity::Warning, reason),
        format!("by the policies of {field}, {from} → {to} replicas take {time}"),
        effect,
        host.behavior(&format!("{field}:\n  policies: [{policies}]")),
    )
}
