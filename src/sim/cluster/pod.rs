//! A pod of a simulated variant, from its creation to its end.

use smol_str::{SmolStr, format_smolstr};
use wva_core::pod_deletion_order::InFlight;
use wva_core::snapshot::Phase;

use crate::rng::Rng;
use crate::scenario::{PodFault, SimVariant};
use crate::server::{ModelServer, Readings};

/// How long before the start the initial pods became ready, seconds.
const READY_BEFORE_S: f64 = 3600.0;

/// A pod of a simulated fleet.
#[derive(Debug, Clone)]
pub struct Pod {
    /// Its number among all pods of the run, from 1.
    pub(crate) serial: u64,
    /// Its name.
    pub name: SmolStr,
    /// The variant's index in the scenario.
    pub(crate) variant: usize,
    /// When it was created, seconds after the start; negative for initial pods.
    pub created_s: f64,
    /// When it got a node, seconds after the start.
    pub(super) scheduled_s: Option<f64>,
    /// Seconds from getting a node to being ready.
    start_up_s: f64,
    /// It is the variant's first pod.
    is_first: bool,
    pub(super) life: Life,
    /// It fails its readiness probes, so that it gets no new requests.
    is_failing: bool,
    /// Requests dispatched to it.
    pub(crate) dispatched: f64,
    /// When Prometheus scrapes it next, seconds.
    pub(crate) next_scrape_s: f64,
}

/// What a pod's server is made of.
pub(super) struct ServerSetup<'a> {
    pub(super) variant: &'a SimVariant,
    /// How long clients wait for a first token, seconds.
    pub(super) patience_s: f64,
}

/// Where a pod is in its life.
#[derive(Debug, Clone)]
pub(super) enum Life {
    /// It fits on no node.
    Unschedulable,
    /// Loading the model.
    Starting { ready_s: f64 },
    /// Serving.
    Ready { since_s: f64, server: Box<ModelServer> },
    /// Finishing its requests.
    Terminating { since_s: f64, until_s: f64, server: Box<ModelServer> },
}

impl Pod {
    /// A pod without a node.
    pub(super) fn new(serial: u64, variant: usize, variant_name: &str, now_s: f64, start_up_s: f64) -> Self {
        Self {
            serial,
            name: format_smolstr!("{variant_name}-{serial:06}"),
            variant,
            created_s: now_s,
            scheduled_s: None,
            start_up_s,
            is_first: false,
            life: Life::Unschedulable,
            is_failing: false,
            dispatched: 0.0,
            next_scrape_s: f64::INFINITY,
        }
    }

    /// An initial pod of a scenario: it has been ready for [`READY_BEFORE_S`].
    pub(super) fn ready_before_start(mut self, is_first: bool, server: &ServerSetup<'_>, rng: Rng) -> Self {
        self.created_s = -READY_BEFORE_S - self.start_up_s;
        self.is_first = is_first;
        self.schedule(self.created_s);
        self.become_ready(server, -READY_BEFORE_S, rng);
        self
    }

    /// It gets a node.
    pub(super) fn schedule(&mut self, now_s: f64) {
        self.scheduled_s = Some(now_s);
        self.life = Life::Starting { ready_s: now_s + self.start_up_s };
    }

    /// It becomes ready.
    pub(super) fn become_ready(&mut self, setup: &ServerSetup<'_>, now_s: f64, rng: Rng) {
        let ServerSetup { variant, patience_s } = setup;
        let slowdown = if self.is_first { variant.first_pod_slowdown } else { 1.0 };
        let physics = variant.physics.slower(slowdown);
        let server = ModelServer::new(physics, variant.deviations, rng, now_s.max(0.0), *patience_s);
        let server = Box::new(server);
        self.life = Life::Ready { since_s: now_s, server };
    }

    /// It gets no new requests and has until `until_s` to finish those it has. False when it has none.
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

    /// Its container crashes and starts again. Returns its server with the requests that it had.
    pub(super) fn crash(&mut self, now_s: f64) -> Option<Box<ModelServer>> {
        let restarting = Life::Starting { ready_s: now_s + self.start_up_s };
        match std::mem::replace(&mut self.life, restarting) {
            Life::Ready { server, .. } => {
                self.is_failing = false;
                self.next_scrape_s = f64::INFINITY;
                Some(server)
            }
            life => {
                self.life = life;
                None
            }
        }
    }

    /// Its phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self.life {
            Life::Unschedulable => Phase::Unschedulable,
            Life::Starting { .. } => Phase::Starting,
            Life::Ready { .. } if self.is_failing => Phase::Starting,
            Life::Ready { .. } => Phase::Ready,
            Life::Terminating { .. } => Phase::Terminating,
        }
    }

    /// Probes its readiness under `faults`. `older_pods` is the number of older pods of its variant.
    pub(super) fn probe(&mut self, now_s: f64, older_pods: u32, faults: &[PodFault]) {
        let Life::Ready { since_s, server } = &mut self.life else { return };
        let was_failing = self.is_failing;
        let waiting = server.waiting();
        let is_failing = faults.iter().any(|fault| match *fault {
            PodFault::Broken { at, pods } => at.as_secs_f64() <= now_s && (was_failing || older_pods < pods),
            PodFault::Flapping { waiting: threshold } => {
                let is_overloaded = if was_failing { waiting > 0 } else { waiting >= threshold as usize };
                self.serial.is_multiple_of(2) && is_overloaded
            }
            PodFault::Blinking { every, lasts, pods } => {
                let every_s = every.as_secs_f64();
                older_pods < pods && now_s >= every_s && now_s % every_s < lasts.as_secs_f64()
            }
            PodFault::Crashing { .. } => false,
        });
        if is_failing != self.is_failing {
            *since_s = now_s;
        }
        self.is_failing = is_failing;
    }

    /// Since when it is ready, or not ready any more if it fails its probes; seconds after the start.
    #[must_use]
    pub fn ready_since_s(&self) -> Option<f64> {
        match self.life {
            Life::Ready { since_s, .. } | Life::Terminating { since_s, .. } => Some(since_s),
            Life::Unschedulable | Life::Starting { .. } => None,
        }
    }

    /// Its server, also while it terminates.
    pub(crate) fn server(&self) -> Option<&ModelServer> {
        match &self.life {
            Life::Ready { server, .. } | Life::Terminating { server, .. } => Some(server),
            Life::Unschedulable | Life::Starting { .. } => None,
        }
    }

    /// Its server, also while it terminates.
    pub(super) fn server_mut(&mut self) -> Option<&mut ModelServer> {
        match &mut self.life {
            Life::Ready { server, .. } | Life::Terminating { server, .. } => Some(server),
            Life::Unschedulable | Life::Starting { .. } => None,
        }
    }

    /// Its server if it may get requests.
    pub(crate) fn ready_server(&self) -> Option<&ModelServer> {
        match &self.life {
            Life::Ready { server, .. } if !self.is_failing => Some(server),
            _ => None,
        }
    }

    /// What its model server reports; `None` before it is ready.
    #[must_use]
    pub fn readings(&self) -> Option<&Readings> {
        self.server().map(ModelServer::readings)
    }

    /// Requests in it: waiting and running.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.server().map_or(0, ModelServer::in_flight)
    }

    /// Its requests and tokens in flight, as its metrics report them.
    pub(super) fn measured_in_flight(&self) -> InFlight {
        self.readings().map_or_else(InFlight::default, |readings| InFlight {
            tokens: Some(readings.kv_usage * readings.kv_tokens as f64),
            requests: Some(self.in_flight() as f64),
        })
    }

    /// When its next event is due, seconds; infinite when there is none.
    pub(super) fn due_s(&self) -> f64 {
        match &self.life {
            Life::Unschedulable => f64::INFINITY,
            Life::Starting { ready_s } => *ready_s,
            Life::Ready { server, .. } => server.next_event_s().unwrap_or(f64::INFINITY),
            Life::Terminating { until_s, server, .. } => {
                server.next_event_s().map_or(*until_s, |event_s| event_s.min(*until_s))
            }
        }
    }
}
