//! The test that a fleet has to pass under a load.

use super::capacity::Replica;

/// Horizon, seconds, at which the reserve was calibrated: a start of 95 s and a lead of 30.
const CALIBRATED: f64 = 125.0;
/// How much more than the largest surge seen is kept.
const MORE_THAN_SEEN: f64 = 1.2;
/// The most that surges that were seen make of the reserve, as a share of the load. Measured on 480 drawn hours: 0.5, 0.57 and
/// 0.65 take 0.65, 0.67 and 0.68 of WVA V2's replicas and leave 2.0, 1.5 and 1.2 % of requests outside the objectives.
const MOST_SEEN: f64 = 0.57;

/// The reserve in square roots of (load × one replica): `headroom`, which grows as a random walk spreads, with the root of
/// `horizon` seconds.
#[must_use]
pub fn reserve(headroom: f64, horizon: f64) -> f64 {
    headroom * (horizon / CALIBRATED).sqrt()
}

/// The reserve as a share of the load, of a model that has shown a surge of `largest`. That was measured over its own
/// `horizon`, so a short one makes it no smaller.
#[must_use]
pub fn share(horizon: f64, largest: f64) -> f64 {
    (MORE_THAN_SEEN * largest * (horizon / CALIBRATED).sqrt().max(1.0)).min(MOST_SEEN)
}

/// What replicas carry together.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sum {
    /// How many they are.
    pub replicas: f64,
    /// X_N: requests a second.
    pub rate: f64,
    /// Requests a second that they may be asked.
    pub allowed: f64,
    /// Sequences they run at most.
    pub most: f64,
}

impl Sum {
    /// Of so many of each.
    #[must_use]
    pub fn of<'r>(fleet: impl IntoIterator<Item = (&'r Replica, f64)>) -> Self {
        fleet.into_iter().fold(Self::default(), |sum, (replica, count)| sum.plus(replica, count))
    }

    /// With `count` more (fewer when negative) like `replica`.
    #[must_use]
    pub fn plus(self, replica: &Replica, count: f64) -> Self {
        Self {
            replicas: self.replicas + count,
            rate: self.rate + count * replica.rate(),
            allowed: self.allowed + count * replica.allowed,
            most: self.most + count * replica.most,
        }
    }

    /// What one of them carries on average.
    #[must_use]
    pub fn each(self) -> f64 {
        if self.replicas > 0.0 { self.rate / self.replicas } else { 0.0 }
    }
}

/// Which part of the test leaves the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// The share of utilisation, or the time to first token.
    Utilisation,
    /// The reserve for what may come.
    Reserve,
    /// The reserve for a surge as it has come.
    Surge,
    /// The backlog that is to be worked off.
    Backlog,
}

impl Bound {
    /// As reports name it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Utilisation => "utilisation",
            Self::Reserve => "reserve",
            Self::Surge => "surge",
            Self::Backlog => "backlog",
        }
    }
}

/// What a fleet is tested for, beside the load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Test {
    /// Square roots of (load × one replica) to spare.
    pub reserve: f64,
    /// A share of the load to spare.
    pub surge: f64,
    /// Requests that the fleet ordered will not even hold at the horizon.
    pub backlog: f64,
    /// Seconds in which these are to be worked off.
    pub drain: f64,
}

impl Test {
    /// The most that each part allows of a fleet that carries `sum`, requests a second; below 0 where the backlog alone is
    /// too much for it.
    #[must_use]
    pub fn allows(&self, sum: &Sum) -> [(Bound, f64); 4] {
        // load + reserve·√(load·each) = rate, solved for √load.
        let half = self.reserve * sum.each().sqrt() / 2.0;
        let root = (half * half + sum.rate).sqrt() - half;
        let backlog = if self.backlog > 0.0 { sum.rate - self.backlog / self.drain } else { f64::INFINITY };
        [
            (Bound::Utilisation, sum.allowed),
            (Bound::Reserve, root * root),
            (Bound::Surge, sum.rate / (1.0 + self.surge)),
            (Bound::Backlog, backlog),
        ]
    }

    /// The part that allows the least, and how much, requests a second.
    #[must_use]
    pub fn binding(&self, sum: &Sum) -> (Bound, f64) {
        let least = self.allows(sum).into_iter().min_by(|(_, one), (_, other)| one.total_cmp(other));
        least.unwrap_or((Bound::Utilisation, 0.0))
    }

    /// A fleet that carries `sum` is enough for `load` requests a second.
    #[must_use]
    pub fn passes(&self, sum: &Sum, load: f64) -> bool {
        self.binding(sum).1 >= load.max(0.0)
    }
}
