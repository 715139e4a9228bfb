//! The simulated fleet and what surrounds it: the one place that moves it, and its view as a cluster. Everybody who
//! looks first lets it catch up with the clock, so nobody sees the past.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use wva_core::model::Variant;
use wva_core::name_map::NameMap;
use wva_core::snapshot::{Phase, Replica, Scale, Template, VariantState};
use wva_core::units::Replicas;
use wva_sim::{Deployment, Fleet, FleetError, PodPhase, PodView, Summary};

use super::clock::VirtualClock;
use super::{DemoError, story};
use crate::cmd::fleet::exposition;
use crate::engine::{Claim, Cluster, ClusterView, Endpoint};

/// Where the pods listen.
pub(super) const LOOPBACK: std::net::IpAddr = std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// The fleet on its stage. Cheap to clone.
#[derive(Clone)]
pub(super) struct Stage {
    clock: VirtualClock,
    variant: Variant,
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    fleet: Fleet,
    deployment: Deployment,
    ports: BTreeMap<String, u16>,
}

/// The figures of one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Scene {
    /// Virtual time since the start.
    pub(super) at: std::time::Duration,
    /// The fleet's figures.
    pub(super) fleet: Summary,
    /// Cost so far, in the unit of the variant's cost.
    pub(super) cost: f64,
}

impl Stage {
    /// One ready pod, and the load about to begin.
    pub(super) fn set(clock: VirtualClock, seed: u64) -> Result<Self, DemoError> {
        let mut fleet = Fleet::of_requests(seed, story::TOKENS);
        let mut deployment = Deployment::new(story::pod(), story::START_UP, seed);
        deployment.begin_with(&mut fleet, 1)?;
        fleet.follow(story::load());
        let inner = Arc::new(Mutex::new(Inner { fleet, deployment, ports: BTreeMap::new() }));
        Ok(Self { clock, variant: story::variant()?, inner })
    }

    fn now<T>(&self, look: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.inner.lock();
        inner.fleet.advance(self.clock.elapsed());
        look(&mut inner)
    }

    /// The figures now.
    pub(super) fn scene(&self) -> Scene {
        self.now(|inner| Scene {
            at: inner.fleet.now(),
            fleet: inner.fleet.summary(),
            cost: inner.fleet.stats().cost(),
        })
    }

    /// The Deployment's scale.
    pub(super) fn scale(&self) -> Scale {
        self.now(|inner| {
            let current = count(inner.deployment.replicas(&inner.fleet));
            Scale { spec: current, current, ready: count(inner.fleet.summary().ready) }
        })
    }

    /// Makes the Deployment have `wanted` pods.
    pub(super) fn resize(&self, wanted: Replicas) -> Result<(), FleetError> {
        self.now(|inner| inner.deployment.scale(&mut inner.fleet, wanted.get() as usize))
    }

    /// The names of all pods.
    pub(super) fn pods(&self) -> Vec<String> {
        self.now(|inner| inner.fleet.pods().map(|pod| pod.name.to_owned()).collect())
    }

    /// Where each pod listens.
    pub(super) fn set_ports(&self, ports: BTreeMap<String, u16>) {
        self.inner.lock().ports = ports;
    }

    /// What a pod says on `/metrics`; `None` while it has nothing to say.
    pub(super) fn page(&self, pod: &str) -> Option<String> {
        self.now(|inner| {
            inner.fleet.pod(pod)?.server.map(|server| exposition(server.readings(), story::MODEL))
        })
    }

    fn replica(&self, pod: &PodView<'_>) -> Replica {
        Replica {
            pod: pod.name.into(),
            phase: match pod.phase {
                PodPhase::Starting => Phase::Starting,
                PodPhase::Ready => Phase::Ready,
                PodPhase::Terminating => Phase::Terminating,
            },
            created: self.clock.at(pod.created),
            ready_since: pod.ready_since.map(|since| self.clock.at(since)),
            engines: NameMap::default(),
        }
    }
}

impl Cluster for Stage {
    fn view(&self) -> Arc<ClusterView> {
        let scale = self.scale();
        self.now(|inner| {
            let replicas = inner.fleet.pods().map(|pod| self.replica(&pod)).collect();
            let serving = inner.fleet.pods().filter(|pod| pod.phase == PodPhase::Ready);
            let endpoints = serving.filter_map(|pod| {
                let port = *inner.ports.get(pod.name)?;
                let (namespace, pod) = (story::NAMESPACE.into(), pod.name.to_owned());
                Some(Endpoint { namespace, pod, ip: LOOPBACK, port })
            });
            let state = VariantState {
                variant: self.variant.clone(),
                scale: Some(scale),
                replicas,
                last_status: None,
                template: Template::default(),
            };
            let (deployment, variant) = (self.variant.target.name.clone(), self.variant.id.clone());
            Arc::new(ClusterView {
                synced: true,
                variants: vec![state],
                claims: vec![Claim { deployment, variant }],
                endpoints: endpoints.collect(),
                ..ClusterView::default()
            })
        })
    }
}

fn count(pods: usize) -> Replicas {
    Replicas::new(u32::try_from(pods).unwrap_or(u32::MAX))
}
