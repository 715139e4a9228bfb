//! Loads and fleets of the fault matrix.

use std::time::Duration;

use wva_core::model::Bounds;
use wva_core::snapshot::Signal;
use wva_core::units::{Cost, Replicas};
use wva_sim::{
    A100_TP2, Fault, FaultKind, FaultShare, FaultSignals, LoadShape, Physics, RequestSizes, Scenario,
    Segment, SimVariant, StartUp, TP1,
};

/// When a fault begins: the fleet has settled, and the policy has learned.
pub(crate) const FAULT_FROM: Duration = Duration::from_secs(600);
/// When it ends.
pub(crate) const FAULT_UNTIL: Duration = Duration::from_secs(1200);
/// How long before the end of the fault an operator sets the number, in the run with the same number.
pub(crate) const PINNED_DURATION: Duration = Duration::from_secs(300);
/// When a run has recovered: two minutes after the fault, plus the cooldown (the dwell of the rate policy; the downscale window of
/// the HPAs of all others).
pub(crate) const RECOVERED: Duration = Duration::from_secs(1200 + 120 + 300);
/// The end of a run: two minutes after recovery.
pub(crate) const END: Duration = Duration::from_secs(1740);
/// `maxReplicas`: with one more, an HPA's tolerance would hide the removal of one.
pub(crate) const MAX_REPLICAS: u32 = 9;
/// Seconds from the fault's beginning to a step of the load.
const STEP_AFTER: Duration = Duration::from_secs(60);

/// Requests waiting in each pod before the gateway holds further ones.
const MAX_WAITING_PER_POD: u32 = 10;

/// The course of the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Load {
    /// Low and constant.
    Rest,
    /// Constant at half the capacity of `maxReplicas`.
    Steady,
    /// Doubles during the fault.
    Rising,
    /// Halves during the fault.
    Falling,
    /// Exceeds the fleet's capacity a minute into the fault.
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

/// What scrapes the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum View {
    /// wva, every 5 s.
    Direct,
    /// Prometheus, every 15 s.
    Prometheus,
}

/// A load on a fleet, and what scrapes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Case {
    pub(crate) load: Load,
    pub(crate) hardware: Hardware,
    pub(crate) view: View,
    /// A signal that no pod has, with or without a fault.
    pub(crate) hides: Option<Signal>,
}

impl Load {
    pub(crate) const ALL: [Self; 5] =
        [Self::Rest, Self::Steady, Self::Rising, Self::Falling, Self::Saturating];
}

impl Case {
    pub(crate) const fn new(load: Load, hardware: Hardware, view: View) -> Self {
        Self { load, hardware, view, hides: None }
    }

    /// Every load on both kinds of hardware; one is scraped by wva and the other by Prometheus, in turns.
    pub(crate) fn in_turns() -> Vec<Self> {
        Self::all()
            .into_iter()
            .filter(|case| (case.load as u8 + case.hardware as u8) % 2 == case.view as u8)
            .collect()
    }

    /// Every load on both kinds of hardware, each scraped both ways.
    pub(crate) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for load in Load::ALL {
            for hardware in [Hardware::Sequences, Hardware::Kv] {
                all.extend([View::Direct, View::Prometheus].map(|view| Self::new(load, hardware, view)));
            }
        }
        all
    }

    pub(crate) fn name(&self) -> String {
        let load = super::word(self.load);
        let hardware = if self.hardware == Hardware::Kv { "KV" } else { "sequences" };
        let view = if self.view == View::Direct { "direct" } else { "Prometheus" };
        let hides = self.hides.map_or(String::new(), |signal| format!(", without {signal:?}"));
        format!("{load}, {hardware}, {view}{hides}")
    }

    /// Initial replicas.
    pub(crate) const fn replicas(&self) -> u32 {
        match self.load {
            Load::Rest => 2,
            Load::Steady => 5,
            Load::Rising | Load::Saturating => 3,
            Load::Falling => 6,
        }
    }

    pub(crate) fn scenario(&self) -> Scenario {
        let (physics, capacity_rps, sizes) = self.hardware.parameters();
        let hold = |replicas: f64, lasts| Segment::Hold { rps: replicas * capacity_rps, lasts };
        let lasts = FAULT_UNTIL.saturating_sub(FAULT_FROM);
        let after = END.saturating_sub(FAULT_UNTIL);
        let ramp =
            |from: f64, to: f64| Segment::Ramp { from: from * capacity_rps, to: to * capacity_rps, lasts };
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
        // The fleet that runs out of KV cache has flow control.
        let max_waiting_per_pod = (self.hardware == Hardware::Kv).then_some(MAX_WAITING_PER_POD);
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
    let signals = FaultSignals::Of(signal);
    Fault { kind: FaultKind::Gone, signals, share: FaultShare::All, from: Duration::ZERO, until: END }
}

impl Hardware {
    /// Its physics, the capacity of a replica in requests a second, and the sizes of requests.
    fn parameters(self) -> (Physics, f64, RequestSizes) {
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
