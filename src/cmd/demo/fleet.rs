//! The simulated fleet and its view as a cluster. Every access first advances the fleet to the current time.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use wva_core::hpa::Counts;
use wva_core::model::Variant;
use wva_core::name_map::NameMap;
use wva_core::snapshot::{Phase, Scale, VariantState};
use wva_core::units::Replicas;
use wva_sim::{Fleet, Pod, Summary};

use super::clock::VirtualClock;
use super::scenario;
use crate::cmd::fleet::exposition;
use crate::engine::{Claim, Cluster, ClusterView, Endpoint};

/// Where the pods listen.
pub(super) const LOOPBACK: std::net::IpAddr = std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// The fleet on the demo's clock. Cheap to clone.
#[derive(Clone)]
pub(super) struct DemoFleet {
    clock: VirtualClock,
    variant: Variant,
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    fleet: Fleet,
    /// By pod.
    ports: BTreeMap<String, u16>,
}

/// The fleet at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct FleetState {
    /// Virtual time since the start.
    pub(super) at: std::time::Duration,
    /// The fleet's figures.
    pub(super) summary: Summary,
    /// `spec.replicas` of the Deployment.
    pub(super) spec_replicas: u32,
}

impl DemoFleet {
    /// One ready pod, and the load about to begin.
    pub(super) fn start(clock: VirtualClock, seed: u64) -> Self {
        let mut fleet = Fleet::new(scenario::sim_variant(), scenario::SIZES, seed);
        fleet.follow(scenario::load());
        let inner = Arc::new(Mutex::new(Inner { fleet, ports: BTreeMap::new() }));
        Self { clock, variant: scenario::variant(), inner }
    }

    /// Advances the fleet to the current time and accesses it.
    fn with_fleet<T>(&self, access: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.inner.lock();
        inner.fleet.advance(self.clock.elapsed());
        access(&mut inner)
    }

    /// The fleet now.
    pub(super) fn state(&self) -> FleetState {
        self.with_fleet(|inner| FleetState {
            at: inner.fleet.now(),
            summary: inner.fleet.summary(),
            spec_replicas: inner.fleet.counts().spec.get(),
        })
    }

    /// The replica counts of the Deployment.
    pub(super) fn counts(&self) -> Counts {
        self.with_fleet(|inner| inner.fleet.counts())
    }

    /// Sets `spec.replicas` of the Deployment.
    pub(super) fn scale(&self, replicas: Replicas) {
        self.with_fleet(|inner| inner.fleet.scale(replicas.get()));
    }

    /// The names of all pods.
    pub(super) fn pods(&self) -> Vec<String> {
        self.with_fleet(|inner| inner.fleet.pods().iter().map(|pod| pod.name.to_string()).collect())
    }

    /// Sets the port on which each pod listens.
    pub(super) fn set_ports(&self, ports: BTreeMap<String, u16>) {
        self.inner.lock().ports = ports;
    }

    /// The `/metrics` page of a pod; `None` before its model server runs.
    pub(super) fn metrics(&self, pod: &str) -> Option<String> {
        self.with_fleet(|inner| {
            inner.fleet.pod(pod)?.readings().map(|readings| exposition(readings, scenario::MODEL))
        })
    }

    fn replica(&self, pod: &Pod) -> wva_core::snapshot::Pod {
        wva_core::snapshot::Pod {
            name: pod.name.clone(),
            phase: pod.phase(),
            created: self.clock.at(pod.created_s),
            ready_since: pod.ready_since_s().map(|since_s| self.clock.at(since_s)),
            engines: NameMap::default(),
        }
    }
}

impl Cluster for DemoFleet {
    fn view(&self) -> Arc<ClusterView> {
        self.with_fleet(|inner| {
            let Counts { spec, status, ready } = inner.fleet.counts();
            let ready_pods = inner.fleet.pods().iter().filter(|pod| pod.phase() == Phase::Ready);
            let endpoints = ready_pods.filter_map(|pod| {
                let port = Some(*inner.ports.get(&*pod.name)?);
                let namespace = scenario::NAMESPACE.into();
                Some(Endpoint { namespace, pod: pod.name.to_string(), ip: LOOPBACK, port, path: None })
            });
            let pods = inner.fleet.pods().iter().map(|pod| self.replica(pod)).collect();
            let scale = Some(Scale { spec, current: status, ready });
            let state = VariantState { scale, ..VariantState::new(self.variant.clone(), pods) };
            let target = self.variant.target.clone();
            Arc::new(ClusterView {
                synced: true,
                variants: vec![state],
                claims: vec![Claim { target, variant: self.variant.id.clone() }],
                endpoints: endpoints.collect(),
                ..ClusterView::default()
            })
        })
    }
}
