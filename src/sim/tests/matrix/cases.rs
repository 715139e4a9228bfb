//! Loads and fleets of the fault matrix.

use std::time::Duration;

use wva_core::model::Bounds;
use wva_core::snapshot::Signal;
use wva_core::units::{Cost, Replicas};
use wva_sim::{
    A100_TP2, Fault, FaultKind, FaultShare, FaultSignals, LoadShape, Physics, RequestSizes, Scenario,
    Segment, SimVariant, StartUp, TP1,
};

/// When a fault begins: the fleet has settled, and there is something learned.
pub(crate) const FAULT_FROM: Duration = Duration::from_secs(600);
/// When it ends.
pub(crate) const FAULT_UNTIL: Duration = Duration::from_secs(1200);
/// How long before its end somebody sets the number to what it is with the fault, in the run that is made to have it.
pub(crate) const FIXED_FOR: Duration = Duration::from_secs(300);
/// After the fault: two minutes, then the cooldown (the dwell of the rate policy, and the downscale window of the HPAs of all
/// others).
pub(crate) const RECOVERED: Duration = Duration::from_secs(1200 + 120 + 300);
/// The end: two minutes of recovered numbers.
pub(crate) const END: Duration = Duration::from_secs(1740);
/// The most replicas: of one more, an HPA's tolerance hides the removal of one.
pub(crate) const MAX_REPLICAS: u32 = 9;
/// Seconds from the fault's beginning to a step of the load.
const STEP_AFTER: Duration = Duration::from_secs(60);

/// Requests that wait in a pod before the gateway holds the next.
const HELD_BEYOND: u32 = 10;

/// How the load moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Load {
    /// Little, all the time.
    Rest,
    /// Half of what the most replicas carry, all the time.
    Steady,
    /// Twice as much at the fault's end as at its beginning.
    Rising,
    /// Half as much.
    Falling,
    /// A minute into the fault more than the fleet carries.
    Saturating,
}

/// What a replica runs out of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Hardware {
    /// Sequences.
    Sequences,
    /// KV cache.
    Kv,
}

/// Who looks at the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum View {
    /// The program, every 5 s.
    Direct,
    /// Prometheus, every 15 s.
    Prometheus,
}

/// A load on a fleet, and who looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Case {
    pub(crate) load: Load,
    pub(crate) hardware: Hardware,
    pub(crate) view: View,
    /// What no pod ever shows, with a fault or without.
    pub(crate) hides: Option<Signal>,
}

impl Load {
    pub(crate) const ALL: [Self; 5] =
        [Self::Rest, Self::Steady, Self::Rising, Self::Falling, Self::Saturating];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Rest => "rest",
            Self::Steady => "steady",
            Self::Rising => "rising",
            Self::Falling => "falling",
            Self::Saturating => "saturating",
        }
    }
}

impl Case {
    /// Every load on both kinds of hardware, the one seen by the program and the other by Prometheus, in turns.
    pub(crate) fn in_turns() -> Vec<Self> {
        Self::all()
            .into_iter()
            .filter(|case| (case.load as u8 + case.hardware as u8) % 2 == case.view as u8)
            .collect()
    }

    /// Every load on both kinds of hardware in both views.
    pub(crate) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for load in Load::ALL {
            for hardware in [Hardware::Sequences, Hardware::Kv] {
                all.extend([View::Direct, View::Prometheus].map(|view| Self {
                    load,
                    hardware,
                    view,
                    hides: None,
                }));
            }
        }
        all
    }

    pub(crate) fn name(&self) -> String {
        let hardware = match self.hardware {
            Hardware::Sequences => "sequences",
            Hardware::Kv => "KV",
        };
        let view = match self.view {
            View::Direct => "direct",
            View::Prometheus => "Prometheus",
        };
        let hides = self.hides.map_or(String::new(), |signal| format!(", without {signal:?}"));
        format!("{}, {hardware}, {view}{hides}", self.load.as_str())
    }

    /// Replicas that are there at the beginning.
    pub(crate) const fn replicas(&self) -> u32 {
        match self.load {
            Load::Rest => 2,
            Load::Steady => 5,
            Load::Rising | Load::Saturating => 3,
            Load::Falling => 6,
        }
    }

    pub(crate) fn scenario(&self) -> Scenario {
        let (physics, carried, sizes) = self.hardware.all();
        let hold = |replicas: f64, lasts| Segment::Hold { rps: replicas * carried, lasts };
        let lasts = FAULT_UNTIL.saturating_sub(FAULT_FROM);
        let after = END.saturating_sub(FAULT_UNTIL);
        let ramp = |from: f64, to: f64| Segment::Ramp { from: from * carried, to: to * carried, lasts };
        let segments = match self.load {
            Load::Rest => vec![hold(1.0, END)],
            Load::Steady => vec![hold(3.4, END)],
            Load::Rising => vec![hold(2.3, FAULT_FROM), ramp(2.3, 4.6), hold(4.6, after)],
            Load::Falling => vec![hold(4.6, FAULT_FROM), ramp(4.6, 2.3), hold(2.3, after)],
            Load::Saturating => vec![hold(2.3, FAULT_FROM + STEP_AFTER), hold(4.2, END)],
        };
        let max = Some(Replicas::new(MAX_REPLICAS));
        let variant = SimVariant {
            bounds: Bounds { min: Replicas::ONE, max },
            replicas: Replicas::new(self.replicas()),
            start_up: StartUp { mean: Duration::from_secs(60), spread: 0.05 },
            ..SimVariant::new("v", physics, Cost::new(1.0).unwrap())
        };
        // With KV caches the gateway holds back what would wait in pods: flow control.
        let max_waiting_per_pod = (self.hardware == Hardware::Kv).then_some(HELD_BEYOND);
        let load = LoadShape::new(segments);
        let faults = self.hides.map(never_shown).into_iter().collect();
        Scenario {
            max_waiting_per_pod,
            faults,
            ..Scenario::new(self.name(), END, load, sizes, vec![variant])
        }
    }
}

fn never_shown(signal: Signal) -> Fault {
    let (kind, signals, share) = (FaultKind::Gone, FaultSignals::Of(signal), FaultShare::AllPods);
    Fault { kind, signals, share, from: Duration::ZERO, until: END }
}

impl Hardware {
    /// Its physics, the requests a second that a replica carries at its limit, and their sizes.
    fn all(self) -> (Physics, f64, RequestSizes) {
        match self {
            Self::Sequences => {
                let physics = Physics { max_sequences: 32, ..A100_TP2 };
                (physics, 2.4, RequestSizes::uniform(300.0, 800.0, 0.1))
            }
            Self::Kv => {
                let physics = Physics { kv_tokens: 60_000, ..TP1 };
                (physics, 1.35, RequestSizes::uniform(4000.0, 1000.0, 0.1))
            }
        }
    }
}
