//! What can go wrong with the signals of a simulated fleet: what is seen of pods and of the scheduler is bent, what they do is not.

use std::time::Duration;

use super::invalid::{Field, Invalid};
use super::scenario::Scenario;
use wva_core::snapshot::Signal;

/// Signals that are told wrongly, or not at all, for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// What happens to their samples.
    pub kind: FaultKind,
    /// Which signals.
    pub signals: FaultSignals,
    /// Of which pods.
    pub share: FaultShare,
    /// When it begins, after the scenario's start.
    pub from: Duration,
    /// When it ends, after the scenario's start.
    pub until: Duration,
}

/// What happens to the samples of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// There are none.
    Gone,
    /// They have a name that nobody reads, pod by pod as in a rolling update: a pod that was there when the fault began
    /// loses them 30 s after the one before it, a pod that comes later never has them.
    Renamed,
    /// The last value before the fault repeats, with the times of new scrapes.
    Frozen,
    /// A gauge shows half; a counter grows by half, and goes on from there when the fault ends.
    Halved,
    /// A gauge shows twice as much, a share at most 1; a counter grows twice as fast, and goes on from there.
    Doubled,
}

/// The signals of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultSignals {
    /// This one.
    Of(Signal),
    /// All counters of pods together.
    Counters,
    /// All signals of pods together.
    All,
}

/// The pods of a fault. The scheduler is told wrongly only with [`Self::AllPods`], and only where a signal of its own is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultShare {
    /// The first pod of the scenario.
    OnePod,
    /// Every second pod, in the order of their creation.
    HalfOfPods,
    /// All of them, and those that come.
    AllPods,
}

impl FaultKind {
    /// All of them, in their order.
    pub const ALL: [Self; 5] = [Self::Gone, Self::Renamed, Self::Frozen, Self::Halved, Self::Doubled];

    /// What a gauge, or the growth of a counter, is multiplied by.
    pub(super) const fn factor(self) -> Option<f64> {
        match self {
            Self::Halved => Some(0.5),
            Self::Doubled => Some(2.0),
            Self::Gone | Self::Renamed | Self::Frozen => None,
        }
    }

    /// Its name in tables.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Renamed => "renamed",
            Self::Frozen => "frozen",
            Self::Halved => "halved",
            Self::Doubled => "doubled",
        }
    }
}

impl FaultSignals {
    /// `signal` of a pod is one of them.
    #[must_use]
    pub fn has(self, signal: Signal) -> bool {
        match self {
            Self::Of(own) => own == signal,
            Self::Counters => signal.is_counter(),
            Self::All => true,
        }
    }
}

impl FaultShare {
    /// All of them, in their order.
    pub const ALL: [Self; 3] = [Self::OnePod, Self::HalfOfPods, Self::AllPods];

    /// The pod that was made as the `serial`th of the scenario is one of them.
    pub(super) const fn has(self, serial: u64) -> bool {
        match self {
            Self::OnePod => serial == 1,
            Self::HalfOfPods => serial % 2 == 1,
            Self::AllPods => true,
        }
    }

    /// Its name in tables.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OnePod => "one",
            Self::HalfOfPods => "half",
            Self::AllPods => "all",
        }
    }
}

impl Fault {
    pub(super) fn check(&self, field: &Field<'_>) -> Result<(), Invalid> {
        field.at("until").span(self.until, self.from, Scenario::LONGEST)
    }
}
