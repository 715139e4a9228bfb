//! One pod of a simulated variant, from its creation to its end.

use smol_str::{SmolStr, format_smolstr};

use crate::batching::BatchingServer;
use crate::rng::Rng;
use crate::scenario::SimVariant;
use wva_core::pod_deletion_order::InFlight;
use wva_core::snapshot::Phase;

/// How long before the beginning the pods that the scenario starts with became ready.
const READY_BEFORE_S: f64 = 3600.0;

/// A pod.
#[derive(Debug)]
pub(super) struct Pod {
    /// Counts all pods of the run.
    pub(super) serial: u64,
    pub(super) name: SmolStr,
    /// The variant's place in the scenario.
    pub(super) variant: usize,
    pub(super) created_s: f64,
    /// When it got a node.
    pub(super) placed_s: Option<f64>,
    /// Seconds from its node to its being ready.
    start_s: f64,
    /// It is the variant's first.
    first: bool,
    pub(super) life: Life,
    /// It serves and fails its readiness probes: it gets nothing new.
    failing: bool,
    /// Requests it was given.
    pub(super) dispatched: f64,
    /// When Prometheus scrapes it next.
    pub(super) scrape_s: f64,
}

/// Where a pod is in its life.
#[derive(Debug)]
pub(super) enum Life {
    /// No node has room for it.
    Unschedulable,
    /// Loading the model.
    Starting { ready_s: f64 },
    /// Serving.
    Ready { since_s: f64, server: Box<BatchingServer> },
    /// Finishing what it has.
    Terminating { since_s: f64, until_s: f64, server: Box<BatchingServer> },
}

impl Pod {
    /// A pod without a node.
    pub(super) fn new(serial: u64, place: usize, variant: &SimVariant, now_s: f64, start_s: f64) -> Self {
        Self {
            serial,
            name: format_smolstr!("{}-{serial:06}", variant.name),
            variant: place,
            created_s: now_s,
            placed_s: None,
            start_s,
            first: false,
            life: Life::Unschedulable,
            failing: false,
            dispatched: 0.0,
            scrape_s: f64::INFINITY,
        }
    }

    /// The pod as the scenario begins: it has been ready for long.
    pub(super) fn ready_before(mut self, first: bool, variant: &SimVariant, rng: Rng) -> Self {
        self.created_s = -READY_BEFORE_S - self.start_s;
        self.first = first;
        self.place(self.created_s);
        self.serve(variant, -READY_BEFORE_S, rng);
        self
    }

    /// It gets a node.
    pub(super) fn place(&mut self, now_s: f64) {
        self.placed_s = Some(now_s);
        self.life = Life::Starting { ready_s: now_s + self.start_s };
    }

    /// It becomes ready.
    pub(super) fn serve(&mut self, variant: &SimVariant, now_s: f64, rng: Rng) {
        let factor = if self.first { variant.first_pod } else { 1.0 };
        let physics = variant.physics.slower(factor);
        let server = Box::new(BatchingServer::rough(physics, variant.rough, rng, now_s.max(0.0)));
        self.life = Life::Ready { since_s: now_s, server };
    }

    /// It gets nothing new any more and has until `until_s` to finish; false when it has nothing to finish.
    pub(super) fn terminate(&mut self, until_s: f64) -> bool {
        match std::mem::replace(&mut self.life, Life::Unschedulable) {
            Life::Ready { since_s, server } if server.in_flight() > 0 => {
                self.life = Life::Terminating { since_s, until_s, server };
                true
            }
            life => {
                self.life = life;
                false
            }
        }
    }

    pub(super) fn phase(&self) -> Phase {
        match self.life {
            Life::Unschedulable => Phase::Unschedulable,
            Life::Starting { .. } => Phase::Starting,
            Life::Ready { .. } if self.failing => Phase::Starting,
            Life::Ready { .. } => Phase::Ready,
            Life::Terminating { .. } => Phase::Terminating,
        }
    }

    /// Its readiness is probed: `fails` is asked with its serial, whether it has failed before, and what waits in it.
    pub(super) fn probe(&mut self, now_s: f64, fails: impl Fn(u64, bool, usize) -> bool) {
        let Life::Ready { since_s, server } = &mut self.life else { return };
        let failing = fails(self.serial, self.failing, server.waiting());
        if failing != self.failing {
            *since_s = now_s;
        }
        self.failing = failing;
    }

    /// Since when it is ready, or was when it began to fail or to end.
    pub(super) fn ready_since_s(&self) -> Option<f64> {
        match self.life {
            Life::Ready { since_s, .. } | Life::Terminating { since_s, .. } => Some(since_s),
            Life::Unschedulable | Life::Starting { .. } => None,
        }
    }

    /// Its server, also while it ends.
    pub(super) fn server(&self) -> Option<&BatchingServer> {
        match &self.life {
            Life::Ready { server, .. } | Life::Terminating { server, .. } => Some(server),
            Life::Unschedulable | Life::Starting { .. } => None,
        }
    }

    /// The same, to work with.
    pub(super) fn server_mut(&mut self) -> Option<&mut BatchingServer> {
        match &mut self.life {
            Life::Ready { server, .. } | Life::Terminating { server, .. } => Some(server),
            Life::Unschedulable | Life::Starting { .. } => None,
        }
    }

    /// Its server, if requests may be given to it.
    pub(super) fn open(&self) -> Option<&BatchingServer> {
        if let Life::Ready { server, .. } = &self.life
            && !self.failing
        {
            Some(server)
        } else {
            None
        }
    }

    /// What it has in flight, as its metrics would say now.
    pub(super) fn in_flight(&self) -> InFlight {
        self.server().map_or_else(InFlight::default, |server| {
            let readings = server.readings();
            InFlight {
                tokens: Some(readings.kv_usage * readings.kv_tokens as f64),
                requests: Some(server.in_flight() as f64),
            }
        })
    }

    /// When something happens to it by itself.
    pub(super) fn due_s(&self) -> f64 {
        match &self.life {
            Life::Unschedulable => f64::INFINITY,
            Life::Starting { ready_s } => *ready_s,
            Life::Ready { server, .. } => server.next_s().unwrap_or(f64::INFINITY),
            Life::Terminating { until_s, server, .. } => {
                server.next_s().map_or(*until_s, |at| at.min(*until_s))
            }
        }
    }
}
