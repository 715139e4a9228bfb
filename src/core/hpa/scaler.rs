//! One HPA over time: the gates, stabilisation, rate policies and scale events.

use jiff::Timestamp;

use crate::units::{Replicas, Seconds};

/// Default stabilisation window for scale-down.
pub(crate) const DOWNSCALE_WINDOW: Seconds = Seconds::whole(300);

/// What an HPA at zero replicas does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AtZero {
    /// With `minReplicas: 0` it goes on reading its metrics.
    #[default]
    Reads,
    /// It reads them only if it scaled this target to zero itself; a zero that somebody else set is respected.
    ReadsIfOwn,
}

/// `select` of scaling rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Select {
    /// The policy that allows the largest change.
    #[default]
    Max,
    /// The policy that allows the smallest change.
    Min,
    /// No change in this direction.
    Disabled,
}

/// The unit of a policy's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyKind {
    /// Pods.
    Pods,
    /// Percent of the count at the period's start.
    Percent,
}

/// How much may change in a period.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScalingPolicy {
    /// The unit of `value`.
    pub kind: PolicyKind,
    /// The most change in one period.
    pub value: u32,
    /// The period.
    pub period: Seconds,
}

/// The rules of one direction.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// `stabilizationWindowSeconds`.
    pub window: Seconds,
    /// Which policy counts.
    pub select: Select,
    /// The policies; at least one (the API server validates it).
    pub policies: Vec<ScalingPolicy>,
}

/// `spec.behavior`. The default is what the API server fills in.
#[derive(Debug, Clone, PartialEq)]
pub struct Behavior {
    /// Growing.
    pub up: Rules,
    /// Shrinking.
    pub down: Rules,
}

impl Default for Behavior {
    fn default() -> Self {
        let period = Seconds::whole(15);
        let double = ScalingPolicy { kind: PolicyKind::Percent, value: 100, period };
        let four = ScalingPolicy { kind: PolicyKind::Pods, value: 4, period };
        Self {
            up: Rules { window: Seconds::ZERO, select: Select::Max, policies: vec![four, double] },
            down: Rules { window: DOWNSCALE_WINDOW, select: Select::Max, policies: vec![double] },
        }
    }
}

/// The part of an HPA's spec that is not a metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// `minReplicas`.
    pub min: Replicas,
    /// `maxReplicas`.
    pub max: Replicas,
    /// `behavior`; `None` is the older arithmetic, which differs from the filled-in defaults.
    pub behavior: Option<Behavior>,
    /// What it does at zero replicas.
    pub at_zero: AtZero,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Entry {
    at: Timestamp,
    count: Replicas,
}

/// One HPA with what the controller remembers of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Hpa {
    settings: Settings,
    /// Raw proposals. Bounded: older than both windows is dropped at every step.
    pub(super) recommendations: Option<Vec<Entry>>,
    /// Own scale events. Bounded: older than the longest period is dropped at every step.
    added: Vec<Entry>,
    removed: Vec<Entry>,
    /// The target is at zero because this HPA put it there.
    zeroed: bool,
}

impl Hpa {
    /// An HPA that has not been looked at yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings, recommendations: None, added: Vec::new(), removed: Vec::new(), zeroed: false }
    }

    /// One look at `now`: `spec` is the target's count, `proposal` what the metrics ask for (`None`: they failed).
    /// Returns the count to write; it is taken as written.
    pub fn step(&mut self, now: Timestamp, spec: Replicas, proposal: Option<Replicas>) -> Replicas {
        self.recommendations.get_or_insert_with(|| vec![Entry { at: now, count: spec }]);
        if spec > Replicas::ZERO {
            self.zeroed = false;
        }
        let desired = self.gate(now, spec, proposal);
        self.record(now, spec, desired);
        desired
    }

    fn gate(&mut self, now: Timestamp, spec: Replicas, proposal: Option<Replicas>) -> Replicas {
        let (min, max) = (self.settings.min, self.settings.max);
        let own_zero = self.zeroed || self.settings.at_zero == AtZero::Reads;
        if spec == Replicas::ZERO && !(min == Replicas::ZERO && own_zero) {
            return spec;
        }
        if spec > max {
            return max;
        }
        if spec < min {
            return min;
        }
        let Some(proposal) = proposal else { return spec };
        match self.settings.behavior.clone() {
            None => self.plain(now, spec, proposal),
            Some(behavior) => {
                let stable = self.stabilise(now, spec, proposal, &behavior);
                self.limit(now, spec, stable, &behavior)
            }
        }
    }

    /// Without `behavior`: the largest proposal of the window, at most doubled.
    fn plain(&mut self, now: Timestamp, spec: Replicas, proposal: Replicas) -> Replicas {
        let recent = self.recommendations.get_or_insert_default();
        recent.retain(|entry| Seconds::between(entry.at, now) <= DOWNSCALE_WINDOW);
        let most = recent.iter().map(|entry| entry.count).fold(proposal, Replicas::max);
        recent.push(Entry { at: now, count: proposal });
        // The controller's fixed scale-up limit: a factor of 2, but at least to 4.
        let limit = Replicas::new(spec.get().saturating_mul(2).max(4));
        most.min(self.settings.max.min(limit)).max(self.settings.min)
    }

    fn stabilise(
        &mut self,
        now: Timestamp,
        spec: Replicas,
        proposal: Replicas,
        behavior: &Behavior,
    ) -> Replicas {
        let recent = self.recommendations.get_or_insert_default();
        let age = |entry: &Entry| Seconds::between(entry.at, now);
        let within = |window| recent.iter().filter(move |entry| age(entry) < window).map(|entry| entry.count);
        let floor = within(behavior.up.window).fold(proposal, Replicas::min);
        let ceiling = within(behavior.down.window).fold(proposal, Replicas::max);
        let longest =
            if behavior.up.window > behavior.down.window { behavior.up.window } else { behavior.down.window };
        recent.retain(|entry| age(entry) < longest);
        recent.push(Entry { at: now, count: proposal });
        spec.max(floor).min(ceiling)
    }

    fn limit(&self, now: Timestamp, spec: Replicas, desired: Replicas, behavior: &Behavior) -> Replicas {
        if desired > spec {
            let limit = self.up_limit(now, spec, &behavior.up).max(spec);
            desired.min(self.settings.max.min(limit))
        } else if desired < spec {
            let limit = self.down_limit(now, spec, &behavior.down).min(spec);
            desired.max(self.settings.min.max(limit))
        } else {
            desired
        }
    }

    fn up_limit(&self, now: Timestamp, spec: Replicas, rules: &Rules) -> Replicas {
        let limits = rules.policies.iter().map(|policy| {
            let start = self.start_of_period(now, spec, policy.period);
            let share = 1.0 + f64::from(policy.value) / 100.0;
            Replicas::ceil(match policy.kind {
                PolicyKind::Pods => start + f64::from(policy.value),
                PolicyKind::Percent => start * share,
            })
        });
        match rules.select {
            Select::Max => limits.max().unwrap_or(spec),
            Select::Min => limits.min().unwrap_or(spec),
            Select::Disabled => spec,
        }
    }

    fn down_limit(&self, now: Timestamp, spec: Replicas, rules: &Rules) -> Replicas {
        let limits = rules.policies.iter().map(|policy| {
            let start = self.start_of_period(now, spec, policy.period);
            let share = 1.0 - f64::from(policy.value) / 100.0;
            let lowest = match policy.kind {
                PolicyKind::Pods => start - f64::from(policy.value),
                PolicyKind::Percent => start * share,
            };
            Replicas::ceil(lowest.trunc())
        });
        match rules.select {
            Select::Max => limits.min().unwrap_or(spec),
            Select::Min => limits.max().unwrap_or(spec),
            Select::Disabled => spec,
        }
    }

    /// The count at the start of a period, as far as this HPA's own changes tell; it may come out negative.
    fn start_of_period(&self, now: Timestamp, spec: Replicas, period: Seconds) -> f64 {
        let sum = |events: &[Entry]| -> f64 {
            let recent = events.iter().filter(|event| Seconds::between(event.at, now) < period);
            recent.map(|event| f64::from(event.count.get())).sum()
        };
        f64::from(spec.get()) - sum(&self.added) + sum(&self.removed)
    }

    fn record(&mut self, now: Timestamp, spec: Replicas, desired: Replicas) {
        if desired == spec {
            return;
        }
        self.zeroed = desired == Replicas::ZERO && self.settings.min == Replicas::ZERO;
        let Some(behavior) = &self.settings.behavior else { return };
        let policies = behavior.up.policies.iter().chain(&behavior.down.policies);
        let longest = policies.map(|policy| policy.period.get()).fold(0.0, f64::max);
        for events in [&mut self.added, &mut self.removed] {
            events.retain(|event| Seconds::between(event.at, now).get() < longest);
        }
        self.added.extend((desired > spec).then(|| Entry { at: now, count: desired.saturating_sub(spec) }));
        self.removed.extend((desired < spec).then(|| Entry { at: now, count: spec.saturating_sub(desired) }));
    }
}
