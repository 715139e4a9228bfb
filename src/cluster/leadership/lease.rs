//! Who decides: the election over one Lease object. Publishes [`Leadership`]; decides nothing itself.
//!
//! Another's lease has expired when *this* instance has watched it unchanged for its whole duration: clocks of
//! different machines are never compared. Our own is good until the renew deadline after the moment a renewal was
//! *sent*, which is before anybody else may take it.

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
use tokio::time::{Instant, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::cluster::watch::watch_health::{backoff, config, said};
use crate::config::{LEASE_DURATION, LEASE_NAME};
use crate::engine::{Clock, Holder, Leadership};

/// How long the holder acts without a renewal: a third less than the duration, so it stops before another starts.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// How often the holder renews and the others look.
pub const RETRY_PERIOD: Duration = Duration::from_secs(2);
/// Longest wait for one answer of the API server: two tries fit into the renew deadline.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);
/// Annotation of the lease: where its holder answers, as `https://host:port`.
pub const ADDRESS_ANNOTATION: &str = "wva.llmd.ai/address";

/// How to take part in the election.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Namespace of the lease: the release's.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Who we are; must differ between instances.
    pub identity: String,
    /// Where we answer, as `https://host:port`.
    pub address: Option<String>,
    /// How long the lease stays good without a renewal.
    pub duration: Duration,
    /// How long we act without a renewal.
    pub renew_deadline: Duration,
    /// How often to renew or look.
    pub retry_period: Duration,
}

impl Settings {
    /// With the timing that the defaults give.
    #[must_use]
    pub fn new(namespace: impl Into<String>, identity: impl Into<String>, address: Option<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: LEASE_NAME.into(),
            identity: identity.into(),
            address,
            duration: LEASE_DURATION,
            renew_deadline: RENEW_DEADLINE,
            retry_period: RETRY_PERIOD,
        }
    }
}

/// A step of the election that failed.
#[derive(Debug, thiserror::Error)]
enum LeaseError {
    #[error("the API server did not answer within {} s", REQUEST_TIMEOUT.as_secs())]
    Timeout,
    #[error("{}", said(.0))]
    Api(#[from] kube::Error),
}

/// The election. [`Election::run`] it in a task.
pub struct Election {
    api: Api<Lease>,
    settings: Settings,
    clock: Arc<dyn Clock>,
    publish: watch::Sender<Leadership>,
    /// False once the lease has been given up: from then on we look only.
    campaigning: bool,
    seen: Option<Seen>,
    mine_until: Option<Instant>,
}

/// The lease as last read, and since when it has looked so.
struct Seen {
    lease: Lease,
    since: Instant,
}

impl Election {
    /// An election that has not started, and where to read who holds the lease.
    #[must_use]
    pub fn new(
        client: kube::Client,
        settings: Settings,
        clock: Arc<dyn Clock>,
    ) -> (Self, watch::Receiver<Leadership>) {
        let api = Api::namespaced(client, &settings.namespace);
        let (publish, leadership) = watch::channel(Leadership::default());
        (Self { api, settings, clock, publish, campaigning: true, seen: None, mine_until: None }, leadership)
    }

    /// Takes part until `campaign_until`, then gives the lease up so that another takes it at once, and only says who
    /// that is until `observe_until`: requests that still arrive are forwarded to it.
    pub async fn run(mut self, campaign_until: CancellationToken, observe_until: CancellationToken) {
        let only = config().fields(&format!("metadata.name={}", self.settings.name));
        let mut events = watcher(self.api.clone(), only).backoff(backoff()).boxed();
        let mut ticks = interval(self.settings.retry_period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = observe_until.cancelled() => break,
                () = campaign_until.cancelled(), if self.campaigning => self.release().await,
                _ = ticks.tick() => self.turn().await,
                Some(event) = events.next() => self.see(event).await,
            }
            self.tell();
        }
        if self.campaigning {
            self.release().await;
        }
    }

    /// What a step of the watch means. While the lease is ours, the answers to our own renewals say more.
    async fn see(&mut self, event: watcher::Result<Event<Lease>>) {
        if self.is_mine() {
            return;
        }
        match event {
            Ok(Event::Apply(lease) | Event::InitApply(lease)) => {
                self.note(lease);
                // Given up: take it now, not at the next tick.
                if self.campaigning && self.is_free() {
                    self.turn().await;
                }
            }
            Ok(Event::Delete(_)) => self.forget(),
            _ => {}
        }
    }

    fn is_mine(&self) -> bool {
        self.mine_until.is_some_and(|until| Instant::now() < until)
    }

    /// Renews, takes or just looks. Looks only, once the lease has been given up.
    async fn turn(&mut self) {
        if let Err(error) = self.attempt().await {
            let (namespace, name) = (&self.settings.namespace, &self.settings.name);
            tracing::warn!(%error, %namespace, %name, "cannot read or renew the Lease: check that the service \
                account may get, create and update it; trying again");
        }
    }

    async fn attempt(&mut self) -> Result<(), LeaseError> {
        let sent = Instant::now();
        let Some(lease) = within(self.api.get_opt(&self.settings.name)).await? else {
            self.forget();
            if !self.campaigning || self.seen.is_some() {
                return Ok(());
            }
            let lease = self.claim(None);
            let made = within(self.api.create(&PostParams::default(), &lease)).await;
            return self.settle(made, sent);
        };
        self.note(lease);
        if !self.campaigning {
            return Ok(());
        }
        if !self.is_mine() && !self.is_free() && !self.is_ours_by_name() {
            return Ok(());
        }
        let sent = Instant::now();
        let lease = self.claim(self.seen.as_ref().map(|seen| &seen.lease));
        let renewed = within(self.api.replace(&self.settings.name, &PostParams::default(), &lease)).await;
        self.settle(renewed, sent)
    }

    /// There is no lease. Whoever held it goes on until it has heard so, and makes it anew; to anybody else it is taken
    /// until it would have expired.
    fn forget(&mut self) {
        if self.is_mine() || self.is_ours_by_name() || self.is_free() {
            self.seen = None;
        }
    }

    /// What an answered claim means. A conflict is no error: somebody else was first, and the next look says who.
    fn settle(&mut self, answer: Result<Lease, LeaseError>, sent: Instant) -> Result<(), LeaseError> {
        match answer {
            Ok(lease) => {
                self.note(lease);
                self.mine_until = Some(sent + self.settings.renew_deadline);
                Ok(())
            }
            Err(LeaseError::Api(kube::Error::Api(status))) if status.code == 409 => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Remembers a lease, and since when it has looked like this.
    fn note(&mut self, lease: Lease) {
        let version = |lease: &Lease| lease.metadata.resource_version.clone();
        if self.seen.as_ref().is_some_and(|seen| version(&seen.lease) == version(&lease)) {
            return;
        }
        let spec = lease.spec.as_ref();
        if spec.and_then(|spec| spec.holder_identity.as_deref()) != Some(&self.settings.identity) {
            self.mine_until = None;
        }
        self.seen = Some(Seen { lease, since: Instant::now() });
    }

    /// True when nobody holds the lease, or its holder has not been heard of for its whole duration.
    fn is_free(&self) -> bool {
        let Some(seen) = &self.seen else { return false };
        let spec = seen.lease.spec.as_ref();
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        holder.is_empty() || seen.since.elapsed() >= self.duration_of(spec)
    }

    /// True when an earlier run of this very instance holds it.
    fn is_ours_by_name(&self) -> bool {
        let spec = self.seen.as_ref().and_then(|seen| seen.lease.spec.as_ref());
        spec.and_then(|spec| spec.holder_identity.as_deref()) == Some(&self.settings.identity)
    }

    /// The holder's own duration; never less than ours, whatever the object says.
    fn duration_of(&self, spec: Option<&LeaseSpec>) -> Duration {
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds).and_then(|s| u64::try_from(s).ok());
        seconds.map_or(self.settings.duration, Duration::from_secs).max(self.settings.duration)
    }

    /// The lease as we want it: renewed when it is ours, a new epoch when it was not.
    fn claim(&self, old: Option<&Lease>) -> Lease {
        let now = Some(MicroTime(self.clock.now()));
        let old_spec = old.and_then(|lease| lease.spec.clone()).unwrap_or_default();
        // A lease that was deleted under us is another one: its epochs begin anew.
        let renewing = self.mine_until.is_some() && old.is_some();
        let transitions = old_spec.lease_transitions.unwrap_or_default();
        let mut metadata = old.map(|lease| lease.metadata.clone()).unwrap_or_default();
        metadata.managed_fields = None;
        metadata.name = Some(self.settings.name.clone());
        let annotations = metadata.annotations.get_or_insert_default();
        set(annotations, self.settings.address.as_ref());
        let spec = LeaseSpec {
            holder_identity: Some(self.settings.identity.clone()),
            lease_duration_seconds: i32::try_from(self.settings.duration.as_secs()).ok(),
            acquire_time: if renewing { old_spec.acquire_time } else { now.clone() },
            renew_time: now,
            lease_transitions: Some(transitions.saturating_add(i32::from(!renewing))),
            ..LeaseSpec::default()
        };
        Lease { metadata, spec: Some(spec) }
    }

    /// Publishes when something changed.
    fn tell(&self) {
        let leadership =
            Leadership { holder: self.holder(), mine_until: self.mine_until.filter(|_| self.is_mine()) };
        self.publish.send_if_modified(|old| {
            let changed = *old != leadership;
            if old.is_mine() != leadership.is_mine() || old.holder != leadership.holder {
                let holder = leadership.holder.as_ref();
                let (identity, epoch) = (holder.map(|h| h.identity.as_str()), holder.map(|h| h.epoch));
                tracing::info!(
                    holder = identity,
                    epoch,
                    mine = leadership.is_mine(),
                    "the Lease changed hands"
                );
            }
            *old = leadership;
            changed
        });
    }

    fn holder(&self) -> Option<Holder> {
        let lease = &self.seen.as_ref()?.lease;
        if self.is_free() {
            return None;
        }
        let spec = lease.spec.as_ref()?;
        if self.is_ours_by_name() && !self.is_mine() {
            // It ran out, giving it up failed, or an older state of it arrived late: we are not the one to ask any more.
            return None;
        }
        let annotations = lease.metadata.annotations.as_ref();
        Some(Holder {
            identity: spec.holder_identity.clone()?,
            address: annotations.and_then(|all| all.get(ADDRESS_ANNOTATION)).cloned(),
            lease: lease.metadata.uid.clone().unwrap_or_default(),
            epoch: spec.lease_transitions.unwrap_or_default().into(),
        })
    }

    /// Stops campaigning, and gives the lease up when it is ours.
    async fn release(&mut self) {
        let mine = self.seen.as_ref().filter(|_| self.is_mine()).map(|seen| seen.lease.clone());
        (self.campaigning, self.mine_until) = (false, None);
        self.tell();
        let Some(mut lease) = mine else { return };
        let ObjectMeta { annotations, managed_fields, .. } = &mut lease.metadata;
        set(annotations.get_or_insert_default(), None);
        *managed_fields = None;
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = None;
        }
        let released = within(self.api.replace(&self.settings.name, &PostParams::default(), &lease)).await;
        match released {
            Ok(lease) => {
                self.note(lease);
                tracing::info!("gave the Lease up");
            }
            Err(error) => {
                tracing::warn!(%error, "could not give the Lease up: another instance takes it when it expires")
            }
        }
    }
}

fn set(annotations: &mut BTreeMap<String, String>, address: Option<&String>) {
    match address {
        Some(address) => annotations.insert(ADDRESS_ANNOTATION.into(), address.clone()),
        None => annotations.remove(ADDRESS_ANNOTATION),
    };
}

async fn within<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, LeaseError> {
    timeout(REQUEST_TIMEOUT, request).await.map_err(|_| LeaseError::Timeout)?.map_err(LeaseError::Api)
}
