//! What handlers may look at, and the settings it is made of.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{HeaderMap, Response, Uri};
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use wva_core::VariantId;
use wva_core::units::Seconds;

use super::admin::Scaling;
use super::admin::board_metrics::BoardMetrics;
use super::admin::health::Health;
use super::auth::{Auth, Reviewer, TrustData};
use super::discovery::Documents;
use super::external_metrics::{Beginning, WaitsFor};
use super::forward::{ForwardError, Forwarder, Guard};
use super::observe::{AuditId, Freshness, RequestMetrics};
use super::tls::certificates::Certificates;
use super::tls::ledger::Ledger;
use super::tls::{CertificateError, Serving, SharedPki};
use crate::engine::{ClusterView, Leadership, Published, Reader};
use crate::record::Recent;

/// Data reads at once. A read waits at most the read-wait, so this is hundreds a second from a hanging evaluation and
/// hundreds of thousands from memory.
const MAX_READS: usize = 512;

/// Looks at `/metrics` at once: a few scrapers and people. Each is a text of every variant.
const MAX_SCRAPES: usize = 16;

/// Looks at `/debug/snapshots` at once. Each may be a thread that writes tens of MiB.
const MAX_LOOKS: usize = 2;

/// Requests for discovery whose token is under review at once: as many as there may be reviews. A head has at most
/// 256 KiB, so 16 MiB wait.
const MAX_UNPROVEN: usize = 64;

/// What the engine's own bound on a read may overrun before the newest result is taken without it.
const OVERRUN: Duration = Duration::from_millis(100);

/// Where answers come from: the engine.
pub trait Reads: Send + Sync + 'static {
    /// The published result, fresh enough for a read; waits for one evaluation at most the read-wait.
    fn current(&self) -> BoxFuture<'_, Arc<Published>>;
    /// The newest published result, at once.
    fn newest(&self) -> Arc<Published>;
    /// True while this instance may answer with `published`: it is of the term that goes on, or of another instance.
    fn may_answer(&self, published: &Published) -> bool;
    /// Which variant belongs to which Deployment.
    fn view(&self) -> Arc<ClusterView>;
    /// The time, by which ages are judged.
    fn now(&self) -> Timestamp;
    /// Evidence older than this is none.
    fn max_stale(&self) -> Seconds;
}

impl Reads for Reader {
    fn current(&self) -> BoxFuture<'_, Arc<Published>> {
        Box::pin(Self::current(self))
    }

    fn newest(&self) -> Arc<Published> {
        Self::newest(self)
    }

    fn may_answer(&self, published: &Published) -> bool {
        Self::may_answer(self, published)
    }

    fn view(&self) -> Arc<ClusterView> {
        Self::view(self)
    }

    fn now(&self) -> Timestamp {
        Self::now(self)
    }

    fn max_stale(&self) -> Seconds {
        Self::max_stale(self)
    }
}

/// A read whose answer an HPA would add up to one number that nobody decided.
#[derive(Debug, Clone, Copy)]
pub struct AddsUp<'a> {
    /// Where was asked.
    pub namespace: &'a str,
    /// For which metric.
    pub metric: &'a str,
    /// With which selector, as Kubernetes prints it; empty selects everything.
    pub selector: &'a str,
    /// The variants that it matched: two at least.
    pub variants: &'a [&'a VariantId],
}

/// Who is told of what people should know, beside the answer.
pub trait Notices: Send + Sync + 'static {
    /// Called in the middle of each such read: must return at once, whatever it does with it.
    fn adds_up(&self, read: &AddsUp<'_>);
}

/// Tells nobody.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoNotices;

impl Notices for NoNotices {
    fn adds_up(&self, _: &AddsUp<'_>) {}
}

/// What the server is told by the composition root.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The certificate for API clients.
    pub serving: Serving,
    /// The CA and leaf that all instances share; `None` until they are known.
    pub shared: watch::Receiver<Option<SharedPki>>,
    /// The server name by which instances call each other: `wva-instance.<namespace>.internal`.
    pub instance_name: String,
    /// The data of ConfigMap `kube-system/extension-apiserver-authentication`; an empty map trusts no proxy.
    pub trust: watch::Receiver<TrustData>,
    /// Who decides.
    pub leadership: watch::Receiver<Leadership>,
    /// Every published result.
    pub published: watch::Receiver<Arc<Published>>,
    /// True once every watch has listed once.
    pub synced: watch::Receiver<bool>,
    /// Cancelled first when the process stops: readiness ends, everything else goes on.
    pub stopping: CancellationToken,
    /// How long a read waits for an evaluation.
    pub read_wait: Duration,
    /// The label `controller_instance`, when this installation has one.
    pub controller_instance: Option<String>,
}

/// What the server is given to work with.
pub struct Ports {
    /// Where answers come from.
    pub reads: Arc<dyn Reads>,
    /// Who decides who may read.
    pub reviewer: Arc<dyn Reviewer>,
    /// Who is told that a selector matches several variants.
    pub notices: Arc<dyn Notices>,
    /// The last evaluations.
    pub recent: Arc<Recent>,
    /// Families of the other rooms, shown under `/metrics` with this room's.
    pub registry: Registry,
}

/// Shared by all handlers; cheap to clone.
#[derive(Clone)]
pub struct AppState(Arc<Inner>);

struct Inner {
    settings: Settings,
    reads: Arc<dyn Reads>,
    auth: Auth,
    certificates: Arc<Certificates>,
    documents: Documents,
    forwarder: Forwarder,
    guard: Guard,
    health: Health,
    ledger: Arc<Ledger>,
    registry: Registry,
    request_metrics: RequestMetrics,
    freshness: Freshness,
    notices: Arc<dyn Notices>,
    recent: Arc<Recent>,
    scaling: Arc<Scaling>,
    room: Arc<Semaphore>,
    scrapes: Arc<Semaphore>,
    looks: Arc<Semaphore>,
    unproven: Arc<Semaphore>,
    started: Timestamp,
}

impl AppState {
    /// Everything the routes need.
    #[must_use]
    pub fn new(settings: Settings, ports: Ports) -> Self {
        let Ports { reads, reviewer, notices, recent, mut registry } = ports;
        let scaling = Arc::new(Scaling::default());
        registry.register_collector(Box::new(BoardMetrics {
            reads: reads.clone(),
            leadership: settings.leadership.clone(),
            controller_instance: settings.controller_instance.clone(),
            scaling: scaling.clone(),
        }));
        let request_metrics = RequestMetrics::registered(&mut registry);
        let freshness = Freshness::registered(&mut registry);
        let ledger = Arc::new(Ledger::registered(&mut registry));
        let name = settings.instance_name.clone();
        let auth = Auth::new(reviewer);
        auth.adopt(settings.trust.borrow().clone());
        Self(Arc::new(Inner {
            auth,
            certificates: Arc::new(Certificates::new(name.clone(), settings.serving.clone())),
            documents: Documents::new(),
            forwarder: Forwarder::new(name.clone(), settings.shared.clone(), settings.read_wait),
            guard: Guard::new(name, settings.shared.clone()),
            health: Health::new(&settings),
            ledger,
            room: Arc::new(Semaphore::new(MAX_READS)),
            scrapes: Arc::new(Semaphore::new(MAX_SCRAPES)),
            looks: Arc::new(Semaphore::new(MAX_LOOKS)),
            unproven: Arc::new(Semaphore::new(MAX_UNPROVEN)),
            started: reads.now(),
            reads,
            registry,
            request_metrics,
            freshness,
            notices,
            recent,
            scaling,
            settings,
        }))
    }

    /// Follows everything that changes: certificates, trust, decisions. For ever.
    pub(crate) async fn follow(&self) {
        let Settings { shared, trust, published, leadership, .. } = &self.0.settings;
        tokio::join!(
            self.0.certificates.follow(shared.clone()),
            self.0.auth.follow(trust.clone()),
            self.0.scaling.follow(published.clone(), leadership.clone()),
        );
    }

    /// Reads the certificates that are there already. Files that a flag names must be right at the start; the shared
    /// Secret may come, or be mended, later.
    pub(crate) async fn load_certificates(&self) -> Result<(), CertificateError> {
        let shared = self.0.settings.shared.borrow().clone();
        match self.0.certificates.refresh(shared.as_ref()).await {
            Err(error) if self.0.settings.serving != Serving::Shared && !self.has_certificate() => Err(error),
            Err(error) => {
                tracing::warn!(%error, "a certificate is not used");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    pub(crate) fn auth(&self) -> &Auth {
        &self.0.auth
    }

    pub(crate) fn certificates(&self) -> &Arc<Certificates> {
        &self.0.certificates
    }

    pub(crate) fn documents(&self) -> &Documents {
        &self.0.documents
    }

    pub(crate) fn guard(&self) -> &Guard {
        &self.0.guard
    }

    pub(crate) fn health(&self) -> &Health {
        &self.0.health
    }

    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.0.ledger
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.0.registry
    }

    pub(crate) fn request_metrics(&self) -> &RequestMetrics {
        &self.0.request_metrics
    }

    pub(crate) fn freshness(&self) -> &Freshness {
        &self.0.freshness
    }

    pub(crate) fn notices(&self) -> &dyn Notices {
        &*self.0.notices
    }

    pub(crate) fn recent(&self) -> &Arc<Recent> {
        &self.0.recent
    }

    /// Who decides, when another instance does.
    pub(crate) fn other_holder(&self) -> Option<String> {
        let leadership = self.0.settings.leadership.borrow();
        leadership.other_holder().map(|holder| holder.identity.clone())
    }

    /// True while reads are refused here though another instance may have the number: the lease ran out, who decides now is
    /// not known, and the newest number is of the time before.
    pub(crate) fn is_cut_off(&self) -> bool {
        let knows_holder = {
            let leadership = self.0.settings.leadership.borrow();
            leadership.is_mine() || leadership.other_holder().is_some()
        };
        !knows_holder && !self.may_answer(&self.newest())
    }

    pub(crate) fn stopping(&self) -> &CancellationToken {
        &self.0.settings.stopping
    }

    pub(crate) fn has_certificate(&self) -> bool {
        self.0.certificates.ready()
    }

    pub(crate) fn controller_instance(&self) -> Option<&str> {
        self.0.settings.controller_instance.as_deref()
    }

    /// True while this instance answers from its own decisions.
    pub(crate) fn decides(&self) -> bool {
        self.0.settings.leadership.borrow().is_mine()
    }

    /// What this instance waits for as long as it knows nothing.
    pub(crate) fn beginning(&self) -> Beginning {
        let synced = self.0.health.has_synced();
        // Every read comes by here: nothing is copied unless it is said.
        let leadership = self.0.settings.leadership.borrow();
        let decides = leadership.is_mine();
        let waits_for = match leadership.other_holder() {
            Some(other) => WaitsFor::State(other.identity.clone()),
            _ if !synced => WaitsFor::Listing,
            _ if decides => WaitsFor::Evaluation,
            _ => WaitsFor::Holder,
        };
        Beginning { since: self.0.started, waits_for }
    }

    /// A place among the reads at once; `None` when all are taken.
    pub(crate) fn place(&self) -> Option<OwnedSemaphorePermit> {
        self.0.room.clone().try_acquire_owned().ok()
    }

    /// A place among the looks at `/metrics`, apart from the reads: whoever wants to see why reads hang needs one.
    pub(crate) fn scrape(&self) -> Option<OwnedSemaphorePermit> {
        self.0.scrapes.clone().try_acquire_owned().ok()
    }

    /// A place among the looks at snapshots.
    pub(crate) fn look(&self) -> Option<OwnedSemaphorePermit> {
        self.0.looks.clone().try_acquire_owned().ok()
    }

    /// A place among those who wait for discovery until their token is reviewed.
    pub(crate) fn unproven(&self) -> Option<OwnedSemaphorePermit> {
        self.0.unproven.clone().try_acquire_owned().ok()
    }

    /// The result for a read. An evaluation that hangs in spite of its bounds does not hang the reader.
    pub(crate) async fn current(&self) -> Arc<Published> {
        let mut reading = self.0.reads.current();
        // Nearly always there is a result, which needs no clock.
        if let Some(published) = (&mut reading).now_or_never() {
            return published;
        }
        let bound = self.0.settings.read_wait + OVERRUN;
        timeout(bound, reading).await.unwrap_or_else(|_| self.newest())
    }

    /// What the last holder published, as soon as it is read, for an instance that has just got the lease; `None` when that takes
    /// longer than a read waits, or the lease goes first.
    pub(crate) async fn first_of_term(&self) -> Option<Arc<Published>> {
        let mut results = self.0.settings.published.clone();
        let mut leadership = self.0.settings.leadership.clone();
        let taken_over = async {
            loop {
                // Taken out first: whoever publishes has the lock that `may_answer` takes.
                let newest = results.borrow_and_update().clone();
                if self.may_answer(&newest) {
                    return Some(newest);
                }
                results.changed().await.ok()?;
            }
        };
        let first = async {
            tokio::select! {
                first = taken_over => first,
                _ = leadership.wait_for(|leadership| !leadership.is_mine()) => None,
            }
        };
        timeout(self.0.settings.read_wait, first).await.ok().flatten()
    }

    pub(crate) fn newest(&self) -> Arc<Published> {
        self.0.reads.newest()
    }

    /// True while this instance may answer with `published`. Asked last, since a lease may run out while a read waits.
    pub(crate) fn may_answer(&self, published: &Published) -> bool {
        self.0.reads.may_answer(published)
    }

    pub(crate) fn view(&self) -> Arc<ClusterView> {
        self.0.reads.view()
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.0.reads.now()
    }

    pub(crate) fn max_stale(&self) -> Seconds {
        self.0.reads.max_stale()
    }

    /// The holder's answer to the read of `uri`.
    pub(crate) async fn forward(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        audit: &AuditId,
    ) -> Result<Response<Body>, ForwardError> {
        let leadership = self.0.settings.leadership.borrow().clone();
        self.0.forwarder.ask(&leadership, uri, headers, &audit.0).await
    }
}
