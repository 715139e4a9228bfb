//! Faults of the signals of a simulated fleet. They change what is measured of pods and scheduler, not what these do.

use std::time::Duration;

use wva_core::snapshot::Signal;

/// Signals that are reported wrongly, or not at all, for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// What happens to their samples.
    pub kind: FaultKind,
    /// The signals affected.
    pub signals: FaultSignals,
    /// The pods affected.
    pub share: FaultShare,
    /// When it begins, after the scenario's start.
    pub from: Duration,
    /// When it ends, after the scenario's start.
    pub until: Duration,
}

/// What happens to the samples of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// There are no samples.
    Gone,
    /// They have a name that nothing reads, pod by pod as in a rolling update: a pod that existed when the fault began loses
    /// them 30 s after the pod before it, a later pod never has them.
    Renamed,
    /// The last value before the fault repeats, with new timestamps.
    Frozen,
    /// A gauge shows half its value. A counter grows half as fast and continues from there when the fault ends.
    Halved,
    /// A gauge shows twice its value, a share at most 1. A counter grows twice as fast and continues from there.
    Doubled,
    /// A counter grows by [`Self::CLAIM`] more in each scrape, and continues from there: a pod that claims what it likes. A gauge is
    /// not affected.
    Claimed,
}

/// The signals of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultSignals {
    /// A single signal.
    Of(Signal),
    /// All counters of pods.
    Counters,
    /// All signals of pods.
    All,
}

/// The pods of a fault. Signals of the scheduler are affected only with [`Self::All`] and [`FaultSignals::Of`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultShare {
    /// The first pod of the scenario.
    One,
    /// Every second pod, in the order of their creation.
    Half,
    /// All of them, including later ones.
    All,
}

impl FaultKind {
    /// What [`Self::Claimed`] adds in each scrape: far more than any pod serves.
    pub const CLAIM: f64 = 1000.0;

    /// The kinds that signals show by accident: all but [`Self::Claimed`].
    pub const ALL: [Self; 5] = [Self::Gone, Self::Renamed, Self::Frozen, Self::Halved, Self::Doubled];

    /// The factor of a gauge, or of a counter's growth.
    pub(super) const fn factor(self) -> Option<f64> {
        match self {
            Self::Halved => Some(0.5),
            Self::Doubled => Some(2.0),
            Self::Gone | Self::Renamed | Self::Frozen | Self::Claimed => None,
        }
    }
}

impl FaultSignals {
    /// Whether `signal` of a pod is affected.
    #[must_use]
    pub fn includes(self, signal: Signal) -> bool {
        match self {
            Self::Of(affected) => affected == signal,
            Self::Counters => signal.is_counter(),
            Self::All => true,
        }
    }
}

impl FaultShare {
    /// All shares.
    pub const ALL: [Self; 3] = [Self::One, Self::Half, Self::All];

    /// Whether the `serial`th pod of the run is affected, counted from 1.
    pub(super) const fn includes(self, serial: u64) -> bool {
        match self {
            Self::One => serial == 1,
            Self::Half => serial % 2 == 1,
            Self::All => true,
        }
    }
}
