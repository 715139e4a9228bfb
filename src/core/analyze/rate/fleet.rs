//! The test that a fleet has to pass under a load.

use super::capacity::ReplicaCapacity;

/// The horizon, seconds, at which the chance reserve was calibrated: a start of 95 s and a lead of 30 s.
const CALIBRATED_HORIZON: f64 = 125.0;
/// The surge reserve exceeds the largest observed surge by this factor.
const SURGE_MARGIN: f64 = 1.2;
/// The largest surge reserve, as a share of the load. Measured on 480 drawn hours: 0.5, 0.57 and 0.65 take 0.65, 0.67 and 0.68 of the
/// replicas of WVA V2, and leave 2.0, 1.5 and 1.2 % of requests outside the objectives.
const MAX_SURGE_RESERVE: f64 = 0.57;

/// The chance reserve in square roots of (load × one replica): `headroom`, which grows as a random walk spreads, with the square root of
/// `horizon` seconds.
pub(crate) fn chance_reserve(headroom: f64, horizon: f64) -> f64 {
    headroom * (horizon / CALIBRATED_HORIZON).sqrt()
}

/// The surge reserve as a share of the load, of a model whose largest surge was `largest`. That was measured over the model's own
/// horizon, so that a short `horizon`, seconds, does not make it smaller.
pub(crate) fn surge_reserve(horizon: f64, largest: f64) -> f64 {
    (SURGE_MARGIN * largest * (horizon / CALIBRATED_HORIZON).sqrt().max(1.0)).min(MAX_SURGE_RESERVE)
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct FleetCapacity {
    pub replicas: f64,
    /// Requests a second that they carry for long.
    pub rate: f64,
    /// Requests a second that may be planned with.
    pub usable_rate: f64,
    /// Sequences that they run at most.
    pub max_sequences: f64,
}

impl FleetCapacity {
    pub(crate) fn sum<'r>(replicas: impl IntoIterator<Item = (&'r ReplicaCapacity, f64)>) -> Self {
        replicas.into_iter().fold(Self::default(), |sum, (replica, count)| sum.plus(replica, count))
    }

    /// With `count` more replicas (fewer if negative).
    pub(crate) fn plus(self, replica: &ReplicaCapacity, count: f64) -> Self {
        Self {
            replicas: self.replicas + count,
            rate: self.rate + count * replica.max_rate(),
            usable_rate: self.usable_rate + count * replica.usable_rate,
            max_sequences: self.max_sequences + count * replica.max_sequences,
        }
    }

    pub(crate) fn mean_rate(self) -> f64 {
        if self.replicas > 0.0 { self.rate / self.replicas } else { 0.0 }
    }
}

/// A part of the test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Constraint {
    /// The share of utilisation, or the time to first token.
    Utilisation,
    Reserve,
    /// The reserve for a surge as large as those observed.
    Surge,
    Backlog,
}

/// What a fleet must be able to carry beside the load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CapacityTest {
    /// The chance reserve, in square roots of (load × one replica).
    pub reserve: f64,
    /// The surge reserve, as a share of the load.
    pub surge: f64,
    /// Requests beyond those that the ordered fleet holds at the horizon.
    pub backlog: f64,
    /// Seconds in which these are to be worked off.
    pub drain: f64,
}

impl CapacityTest {
    /// The load that each part allows a fleet, requests/s; below 0 if the backlog alone exceeds its capacity.
    pub(crate) fn allowed(&self, fleet: &FleetCapacity) -> [(Constraint, f64); 4] {
        // load + reserve·√(load·mean) = rate, solved for √load; the other root is negative.
        let half = self.reserve * fleet.mean_rate().sqrt() / 2.0;
        let root = (half * half + fleet.rate).sqrt() - half;
        let backlog = if self.backlog > 0.0 { fleet.rate - self.backlog / self.drain } else { f64::INFINITY };
        [
            (Constraint::Utilisation, fleet.usable_rate),
            (Constraint::Reserve, root * root),
            (Constraint::Surge, fleet.rate / (1.0 + self.surge)),
            (Constraint::Backlog, backlog),
        ]
    }

    /// The part that allows the least load, and that load, requests/s.
    pub(crate) fn binding(&self, fleet: &FleetCapacity) -> (Constraint, f64) {
        let allowed = self.allowed(fleet).into_iter();
        let least = allowed.min_by(|(_, left), (_, right)| left.total_cmp(right));
        least.unwrap_or((Constraint::Utilisation, 0.0))
    }

    pub(crate) fn passes(&self, fleet: &FleetCapacity, load: f64) -> bool {
        self.binding(fleet).1 >= load.max(0.0)
    }
}
