//! Leader election over one Lease object. Publishes [`Leadership`]; decides nothing itself.
//!
//! Another instance's lease has expired when *this* instance has seen it unchanged for its whole duration: clocks of
//! different machines are never compared. Our own lease is good until the renew deadline after the moment a renewal was
//! *sent*, which ends before any other instance may take it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::cluster::requests::{RequestError, bounded_by};
use crate::cluster::watch::watch_health::{backoff, watch_config};
use crate::config::LeaseTimes;
use crate::engine::{Clock, Holder, Leadership};

/// Longest wait for one answer of the API server: two attempts fit into the shortest renew deadline (8 s).
const LEASE_REQUEST_TIMEOUT: Duration = Duration::from_secs(4);
/// Annotation of the lease: where its holder serves, as `https://host:port`.
pub const ADDRESS_ANNOTATION: &str = "wva.llmd.ai/address";

/// How to take part in the election.
#[derive(Debug, Clone)]
pub struct ElectionSettings {
    /// Namespace of the lease: the release's.
    pub namespace: String,
    /// Name of the lease.
    pub name: String,
    /// The identity of this instance; must differ between instances.
    pub identity: String,
    /// Where this instance serves, as `https://host:port`.
    pub address: Option<String>,
    /// Its times.
    pub times: LeaseTimes,
}

impl ElectionSettings {
    /// With the default times.
    #[must_use]
    pub fn new(
        namespace: impl Into<String>,
        name: impl Into<String>,
        identity: impl Into<String>,
        address: Option<String>,
    ) -> Self {
        let times = LeaseTimes::default();
        Self { namespace: namespace.into(), name: name.into(), identity: identity.into(), address, times }
    }

    /// With these times.
    #[must_use]
    pub fn with_times(self, times: LeaseTimes) -> Self {
        Self { times, ..self }
    }
}

/// The election. [`Election::run`] it in a task.
pub struct Election {
    api: Api<Lease>,
    settings: ElectionSettings,
    clock: Arc<dyn Clock>,
    publish: watch::Sender<Leadership>,
    /// False once the lease has been released: from then on this instance only observes.
    is_candidate: bool,
    observed: Option<ObservedLease>,
    /// How long this instance may act as the leader, if it is.
    leads_until: Option<Instant>,
}

/// The lease as last read, and since when it has been unchanged.
struct ObservedLease {
    lease: Lease,
    since: Instant,
}

impl Election {
    /// An election that has not started, and where to read who the leader is.
    #[must_use]
    pub fn new(
        client: kube::Client,
        settings: ElectionSettings,
        clock: Arc<dyn Clock>,
    ) -> (Self, watch::Receiver<Leadership>) {
        let api = Api::namespaced(client, &settings.namespace);
        let (publish, leadership) = watch::channel(Leadership::default());
        let election =
            Self { api, settings, clock, publish, is_candidate: true, observed: None, leads_until: None };
        (election, leadership)
    }

    /// Takes part until `campaign_until`, then releases the lease so that another instance takes it at once. Until
    /// `observe_until` it publishes who that is: requests that still arrive are forwarded to it.
    pub async fn run(mut self, campaign_until: CancellationToken, observe_until: CancellationToken) {
        let by_name = watch_config().fields(&format!("metadata.name={}", self.settings.name));
        let mut events = watcher(self.api.clone(), by_name).backoff(backoff()).boxed();
        let mut ticks = interval(self.settings.times.retry_period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = observe_until.cancelled() => break,
                () = campaign_until.cancelled(), if self.is_candidate => self.release().await,
                _ = ticks.tick() => self.renew_or_acquire().await,
                Some(event) = events.next() => self.handle(event).await,
            }
            self.publish();
        }
        if self.is_candidate {
            self.release().await;
        }
    }

    /// Handles an event of the watch. The leader ignores them: the answers to its own renewals are newer.
    async fn handle(&mut self, event: watcher::Result<Event<Lease>>) {
        if self.is_leader() {
            return;
        }
        match event {
            Ok(Event::Apply(lease) | Event::InitApply(lease)) => {
                self.observe(lease);
                // Released: take it now, not at the next tick.
                if self.is_candidate && self.is_free() {
                    self.renew_or_acquire().await;
                }
            }
            Ok(Event::Delete(_)) => self.observe_absence(),
            _ => {}
        }
    }

    fn is_leader(&self) -> bool {
        self.leads_until.is_some_and(|until| Instant::now() < until)
    }

    /// Renews the lease, takes it when it is free, or only reads it.
    async fn renew_or_acquire(&mut self) {
        if let Err(error) = self.try_renew_or_acquire().await {
            let ElectionSettings { namespace, name, .. } = &self.settings;
            tracing::warn!(%error, %namespace, %name, "cannot read or renew the Lease: check that the service account may \
                get, create and update it; retrying");
        }
    }

    async fn try_renew_or_acquire(&mut self) -> Result<(), RequestError> {
        let sent = Instant::now();
        let Some(lease) = bounded_lease(self.api.get_opt(&self.settings.name)).await? else {
            self.observe_absence();
            if !self.is_candidate || self.observed.is_some() {
                return Ok(());
            }
            let lease = self.claim(None);
            let created = bounded_lease(self.api.create(&PostParams::default(), &lease)).await;
            return self.handle_claim(created, sent);
        };
        self.observe(lease);
        if !self.is_candidate || !(self.is_leader() || self.is_free() || self.has_our_identity()) {
            return Ok(());
        }
        let sent = Instant::now();
        let lease = self.claim(self.observed.as_ref().map(|observed| &observed.lease));
        let parameters = PostParams::default();
        let replaced = bounded_lease(self.api.replace(&self.settings.name, &parameters, &lease)).await;
        self.handle_claim(replaced, sent)
    }

    /// There is no lease. Its holder acts on until it notices, and then creates it again; for the others it counts as held
    /// until it would have expired.
    fn observe_absence(&mut self) {
        if self.is_leader() || self.has_our_identity() || self.is_free() {
            self.observed = None;
        }
    }

    /// Handles the answer to a claim. A conflict is no error: another instance was first, and the next read says which.
    fn handle_claim(
        &mut self,
        answer: Result<Lease, RequestError>,
        sent: Instant,
    ) -> Result<(), RequestError> {
        match answer {
            Ok(lease) => {
                self.observe(lease);
                self.leads_until = Some(sent + self.settings.times.renew_deadline);
                Ok(())
            }
            Err(error) if error.is_conflict() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Remembers a lease, and since when it has been unchanged.
    fn observe(&mut self, lease: Lease) {
        let version = |lease: &Lease| lease.metadata.resource_version.clone();
        if self.observed.as_ref().is_some_and(|observed| version(&observed.lease) == version(&lease)) {
            return;
        }
        self.observed = Some(ObservedLease { lease, since: Instant::now() });
        if !self.has_our_identity() {
            self.leads_until = None;
        }
    }

    /// True when the lease has no holder, or its holder has not renewed it for its whole duration.
    fn is_free(&self) -> bool {
        let Some(observed) = &self.observed else { return false };
        let spec = observed.lease.spec.as_ref();
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        holder.is_empty() || observed.since.elapsed() >= self.duration_of(spec)
    }

    /// True when the lease names this instance: it is the leader, or was before a restart or a failed renewal.
    fn has_our_identity(&self) -> bool {
        let spec = self.observed.as_ref().and_then(|observed| observed.lease.spec.as_ref());
        spec.and_then(|spec| spec.holder_identity.as_deref()) == Some(&self.settings.identity)
    }

    /// The duration that the lease states; never less than ours, whatever the object says.
    fn duration_of(&self, spec: Option<&LeaseSpec>) -> Duration {
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds).and_then(|s| u64::try_from(s).ok());
        seconds.map_or(self.settings.times.duration, Duration::from_secs).max(self.settings.times.duration)
    }

    /// The lease as we want it: renewed when we are the leader, with one more transition when we were not.
    fn claim(&self, old: Option<&Lease>) -> Lease {
        let now = Some(MicroTime(self.clock.now()));
        let old_spec = old.and_then(|lease| lease.spec.clone()).unwrap_or_default();
        // A lease that was deleted and created again is another one: its transitions are counted from the beginning.
        let renewing = self.leads_until.is_some() && old.is_some();
        let transitions = old_spec.lease_transitions.unwrap_or_default();
        let mut metadata = old.map(|lease| lease.metadata.clone()).unwrap_or_default();
        metadata.managed_fields = None;
        metadata.name = Some(self.settings.name.clone());
        set_address(metadata.annotations.get_or_insert_default(), self.settings.address.as_ref());
        let spec = LeaseSpec {
            holder_identity: Some(self.settings.identity.clone()),
            // Rounded up: others may take the Lease after this time, and this instance acts for nearly as long.
            lease_duration_seconds: i32::try_from(self.settings.times.duration.as_millis().div_ceil(1000))
                .ok(),
            acquire_time: if renewing { old_spec.acquire_time } else { now.clone() },
            renew_time: now,
            lease_transitions: Some(transitions.saturating_add(i32::from(!renewing))),
            ..LeaseSpec::default()
        };
        Lease { metadata, spec: Some(spec) }
    }

    /// Publishes the leadership when it has changed.
    fn publish(&self) {
        let mine_until = self.leads_until.filter(|_| self.is_leader());
        let leadership = Leadership { holder: self.holder(), mine_until };
        self.publish.send_if_modified(|old| {
            let changed = *old != leadership;
            if old.is_mine() != leadership.is_mine() || old.holder != leadership.holder {
                let holder = leadership.holder.as_ref();
                tracing::info!(
                    holder = holder.map(|holder| holder.identity.as_str()),
                    epoch = holder.map(|holder| holder.epoch),
                    mine = leadership.is_mine(),
                    "the Lease has a new holder"
                );
            }
            *old = leadership;
            changed
        });
    }

    fn holder(&self) -> Option<Holder> {
        let lease = &self.observed.as_ref()?.lease;
        // It may still name us after it expired, after a failed release, or in a late event: nothing must be forwarded to us then.
        if self.is_free() || (self.has_our_identity() && !self.is_leader()) {
            return None;
        }
        let spec = lease.spec.as_ref()?;
        let annotations = lease.metadata.annotations.as_ref();
        Some(Holder {
            identity: spec.holder_identity.clone()?,
            address: annotations.and_then(|annotations| annotations.get(ADDRESS_ANNOTATION)).cloned(),
            lease: lease.metadata.uid.clone().unwrap_or_default(),
            epoch: spec.lease_transitions.unwrap_or_default().into(),
        })
    }

    /// Stops being a candidate, and releases the lease when we are the leader.
    async fn release(&mut self) {
        let lease =
            self.observed.as_ref().filter(|_| self.is_leader()).map(|observed| observed.lease.clone());
        self.is_candidate = false;
        self.leads_until = None;
        self.publish();
        let Some(mut lease) = lease else { return };
        let ObjectMeta { annotations, managed_fields, .. } = &mut lease.metadata;
        set_address(annotations.get_or_insert_default(), None);
        *managed_fields = None;
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = None;
        }
        let parameters = PostParams::default();
        match bounded_lease(self.api.replace(&self.settings.name, &parameters, &lease)).await {
            Ok(lease) => {
                self.observe(lease);
                tracing::info!("released the Lease");
            }
            Err(error) => {
                tracing::warn!(%error, "could not release the Lease: another instance takes it when it expires");
            }
        }
    }
}

fn set_address(annotations: &mut BTreeMap<String, String>, address: Option<&String>) {
    match address {
        Some(address) => annotations.insert(ADDRESS_ANNOTATION.into(), address.clone()),
        None => annotations.remove(ADDRESS_ANNOTATION),
    };
}

async fn bounded_lease<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, RequestError> {
    bounded_by(LEASE_REQUEST_TIMEOUT, request).await
}
