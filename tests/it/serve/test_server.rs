//! A real server on loopback with real TLS, between a fake engine and a fake API server.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use wva::engine::{ClusterView, Holder, Leadership, Origin, Published};
use wva::record::Recent;
use wva::serve::auth::{Access, Attributes, ReviewError, Reviewer, Token, TrustData, User};
use wva::serve::tls::{ServingCertificate, SharedPki};
use wva::serve::{
    AmbiguousSelector, AppState, EventSink, FallbackServer, InstallationSettings, PublishedReader,
    RuleMetrics, ScaledObjectCalls, ServeError, Server, ServerPorts, ServerSettings,
};
use wva_core::decision::{Cause, Reason, Target, Unknown, Verdict};
use wva_core::units::{Replicas, Seconds};
use wva_core::{Decision, Memory, VariantId};

use super::pki::{Authority, INSTANCE, Leaf};

/// The time of every test.
pub(crate) const NOW: &str = "2026-11-21T10:00:10Z";

pub(crate) struct FakeReader {
    pub(crate) published: Mutex<Arc<Published>>,
    pub(crate) view: Mutex<Arc<ClusterView>>,
    pub(crate) memory: Mutex<Arc<Memory>>,
    pub(crate) now: Mutex<Timestamp>,
    /// The published result belongs to a term that has ended.
    pub(crate) has_expired: Mutex<bool>,
    /// Reads of `current` wait until notified while this is set.
    pub(crate) hangs: Mutex<bool>,
    /// Reads of `current` panic while this is set.
    pub(crate) panics: Mutex<bool>,
    pub(crate) release: Notify,
    /// How long a read of `current` takes otherwise.
    pub(crate) delay: Mutex<Duration>,
    /// Reads of `current`.
    pub(crate) count: AtomicUsize,
}

impl Default for FakeReader {
    fn default() -> Self {
        Self {
            published: Mutex::new(Arc::new(sample())),
            view: Mutex::default(),
            memory: Mutex::default(),
            now: Mutex::new(NOW.parse().unwrap()),
            has_expired: Mutex::new(false),
            hangs: Mutex::new(false),
            panics: Mutex::new(false),
            release: Notify::new(),
            delay: Mutex::default(),
            count: AtomicUsize::new(0),
        }
    }
}

impl PublishedReader for FakeReader {
    fn current(&self) -> BoxFuture<'_, Arc<Published>> {
        self.count.fetch_add(1, Ordering::SeqCst);
        Box::pin(async {
            assert!(!*self.panics.lock(), "the engine has a bug");
            if *self.hangs.lock() {
                self.release.notified().await;
            }
            let delay = *self.delay.lock();
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            self.newest()
        })
    }

    fn newest(&self) -> Arc<Published> {
        self.published.lock().clone()
    }

    fn may_answer(&self, _: &Published) -> bool {
        !*self.has_expired.lock()
    }

    fn view(&self) -> Arc<ClusterView> {
        self.view.lock().clone()
    }

    fn memory(&self) -> Arc<Memory> {
        self.memory.lock().clone()
    }

    fn now(&self) -> Timestamp {
        *self.now.lock()
    }

    fn max_stale(&self) -> Seconds {
        Seconds::whole(300)
    }
}

/// An API server that knows one token and a few readers.
#[derive(Default)]
pub(crate) struct FakeReviewer {
    pub(crate) readers: Mutex<BTreeSet<String>>,
    /// The only object that they may read, if there is one.
    pub(crate) only_object: Mutex<Option<String>>,
    pub(crate) is_unreachable: Mutex<bool>,
    /// Reviews are rejected while this is set.
    pub(crate) refuses: Mutex<bool>,
    /// Reviews are never answered while this is set.
    pub(crate) hangs: Mutex<bool>,
    pub(crate) reviews: Mutex<Vec<(User, Attributes)>>,
    pub(crate) tokens: AtomicUsize,
}

impl FakeReviewer {
    fn fails(&self) -> Result<(), ReviewError> {
        if *self.is_unreachable.lock() {
            return Err(ReviewError::Unavailable("connection refused".into()));
        }
        if *self.refuses.lock() {
            return Err(ReviewError::Refused("reviews are forbidden".into()));
        }
        Ok(())
    }
}

impl Reviewer for FakeReviewer {
    fn token<'a>(&'a self, token: &'a Token) -> BoxFuture<'a, Result<Option<User>, ReviewError>> {
        self.tokens.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            if *self.hangs.lock() {
                return futures::future::pending().await;
            }
            self.fails()?;
            Ok((token.secret() == "good").then(|| User::named("prometheus")))
        })
    }

    fn access<'a>(
        &'a self,
        user: &'a User,
        attributes: &'a Attributes,
    ) -> BoxFuture<'a, Result<Access, ReviewError>> {
        Box::pin(async move {
            self.reviews.lock().push((user.clone(), attributes.clone()));
            if *self.hangs.lock() {
                return futures::future::pending().await;
            }
            self.fails()?;
            let is_granted =
                self.only_object.lock().as_ref().is_none_or(
                    |only| matches!(attributes, Attributes::Resource { name, .. } if name == only),
                );
            let allowed = is_granted && self.readers.lock().contains(&user.name);
            Ok(if allowed { Access::Allowed } else { Access::Denied { reason: None } })
        })
    }
}

/// The reported ambiguous reads.
#[derive(Default)]
pub(crate) struct FakeEvents(pub(crate) Mutex<Vec<String>>);

impl EventSink for FakeEvents {
    fn ambiguous_selector(&self, read: &AmbiguousSelector<'_>) {
        let AmbiguousSelector { namespace, metric, selector, variants } = read;
        let names: Vec<_> = variants.iter().map(ToString::to_string).collect();
        self.0.lock().push(format!("{namespace} {metric} {selector:?}: {}", names.join(", ")));
    }
}

pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) external_scaler: SocketAddr,
    pub(crate) front_proxy: Authority,
    pub(crate) users: Authority,
    pub(crate) shared_ca: Arc<Authority>,
    pub(crate) proxy: Leaf,
    pub(crate) trust: watch::Sender<TrustData>,
    pub(crate) leadership: watch::Sender<Leadership>,
    pub(crate) published: watch::Sender<Arc<Published>>,
    pub(crate) synced: watch::Sender<bool>,
    pub(crate) shared: watch::Sender<Option<SharedPki>>,
    pub(crate) stopping: CancellationToken,
    pub(crate) shutdown: CancellationToken,
    pub(crate) reads: Arc<FakeReader>,
    pub(crate) reviewer: Arc<FakeReviewer>,
    pub(crate) events: Arc<FakeEvents>,
    pub(crate) task: JoinSet<()>,
}

/// How a test server differs from the usual one.
pub(crate) struct ServerOptions {
    pub(crate) shared_ca: Arc<Authority>,
    pub(crate) serving: ServingCertificate,
    pub(crate) drain: Duration,
    pub(crate) controller_instance: Option<String>,
    pub(crate) installations: InstallationSettings,
    pub(crate) has_trust: bool,
    /// The right to read the trust is missing.
    pub(crate) trust_refused: bool,
    pub(crate) has_certificate: bool,
    pub(crate) has_synced: bool,
    /// This instance holds the lease.
    pub(crate) is_leader: bool,
    pub(crate) listen: SocketAddr,
    /// `None` for the default.
    pub(crate) max_connections: Option<usize>,
    pub(crate) max_connection_age: Option<Duration>,
    /// What other parts have registered.
    pub(crate) registry: Registry,
    /// Used instead of [`FakeReader`].
    pub(crate) reads: Option<Arc<dyn PublishedReader>>,
    /// The last evaluations.
    pub(crate) recent: Arc<Recent>,
    pub(crate) rules: Option<Arc<dyn RuleMetrics>>,
    pub(crate) calls: Option<Arc<dyn ScaledObjectCalls>>,
    pub(crate) fallback: Option<Arc<dyn FallbackServer>>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            shared_ca: Arc::new(Authority::new("wva")),
            serving: ServingCertificate::Shared,
            drain: Duration::from_secs(5),
            controller_instance: None,
            installations: InstallationSettings::default(),
            has_trust: true,
            trust_refused: false,
            has_certificate: true,
            has_synced: true,
            is_leader: true,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            max_connections: None,
            max_connection_age: None,
            registry: Registry::default(),
            reads: None,
            recent: Arc::new(Recent::new(8, 1 << 20)),
            rules: None,
            calls: None,
            fallback: None,
        }
    }
}

impl TestServer {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    /// A server that differs from the usual one.
    pub(crate) async fn with(change: impl FnOnce(&mut ServerOptions)) -> Self {
        Self::try_with(change).await.unwrap()
    }

    pub(crate) async fn try_with(change: impl FnOnce(&mut ServerOptions)) -> Result<Self, ServeError> {
        let mut options = ServerOptions::default();
        change(&mut options);
        let front_proxy = Authority::new("front-proxy-ca");
        let users = Authority::new("kubernetes");
        let proxy = front_proxy.client("front-proxy-client", &[]);
        let trust = watch::Sender::new(options.has_trust.then(|| trust(&front_proxy.pem(), &users.pem())));
        let leadership = watch::Sender::new(options.is_leader.then(leading).unwrap_or_default());
        let published = watch::Sender::new(Arc::new(sample()));
        let synced = watch::Sender::new(options.has_synced);
        let shared = watch::Sender::new(options.has_certificate.then(|| options.shared_ca.shared()));
        let (stopping, shutdown) = (CancellationToken::new(), CancellationToken::new());
        let (reads, reviewer) = (Arc::new(FakeReader::default()), Arc::new(FakeReviewer::default()));
        reviewer.readers.lock().extend(["hpa".into(), "alice".into(), "prometheus".into()]);
        let settings = ServerSettings {
            serving: options.serving,
            shared_pki: shared.subscribe(),
            instance_name: INSTANCE.into(),
            trust: trust.subscribe(),
            trust_refused: watch::channel(options.trust_refused).1,
            leadership: leadership.subscribe(),
            published: published.subscribe(),
            synced: synced.subscribe(),
            stopping: stopping.clone(),
            read_wait: Duration::from_millis(500),
            controller_instance: options.controller_instance,
            installations: options.installations,
        };
        let events = Arc::new(FakeEvents::default());
        let ports = ServerPorts {
            reader: options.reads.unwrap_or_else(|| reads.clone()),
            reviewer: reviewer.clone(),
            events: events.clone(),
            recent: options.recent,
            rules: options.rules,
            calls: options.calls,
            fallback: options.fallback,
            registry: options.registry,
        };
        let bound = Server::bind(options.listen, AppState::new(settings, ports)).await?;
        let mut bound = bound.with_max_connection_age(options.max_connection_age);
        if let Some(max_connections) = options.max_connections {
            bound = bound.with_max_connections(max_connections);
        }
        let loopback = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let address = loopback(bound.address().port());
        let bound = bound.with_external_scaler(Some(loopback(0))).await?;
        let external_scaler = bound.external_scaler().unwrap();
        let mut task = JoinSet::new();
        task.spawn(bound.serve(shutdown.clone(), options.drain));
        Ok(Self {
            address,
            external_scaler,
            front_proxy,
            users,
            shared_ca: options.shared_ca,
            proxy,
            trust,
            leadership,
            published,
            synced,
            shared,
            stopping,
            shutdown,
            reads,
            reviewer,
            events,
            task,
        })
    }

    /// Waits until the server has ended.
    pub(crate) async fn wait_for_end(&mut self) {
        timeout(Duration::from_secs(2), self.task.join_next())
            .await
            .expect("an end in time")
            .unwrap()
            .unwrap();
    }

    /// Publishes a result, as the engine would.
    pub(crate) fn publish(&self, published: Published) {
        let published = Arc::new(published);
        *self.reads.published.lock() = published.clone();
        self.published.send_replace(published);
    }
}

/// Advances the clock.
pub(crate) async fn advance_clock(by: Duration) {
    tokio::time::pause();
    tokio::time::advance(by).await;
    tokio::time::resume();
}

/// This instance holds the lease.
pub(crate) fn leading() -> Leadership {
    let mine_until = Some(Instant::now() + Duration::from_secs(3600));
    Leadership { holder: None, mine_until }
}

/// Another instance holds the lease.
pub(crate) fn led_by(address: Option<String>) -> Leadership {
    let holder = Holder { identity: "wva-0".into(), address, lease: String::new(), epoch: 1 };
    Leadership { holder: Some(holder), mine_until: None }
}

/// The ConfigMap as kubeadm writes it.
pub(crate) fn trust(front_proxy: &str, users: &str) -> BTreeMap<String, String> {
    [
        ("client-ca-file", users),
        ("requestheader-client-ca-file", front_proxy),
        ("requestheader-allowed-names", r#"["front-proxy-client"]"#),
        ("requestheader-username-headers", r#"["X-Remote-User"]"#),
        ("requestheader-group-headers", r#"["X-Remote-Group"]"#),
        ("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-"]"#),
    ]
    .into_iter()
    .map(|(key, value)| (key.into(), value.into()))
    .collect()
}

pub(crate) fn target(desired: u32, current: Option<u32>, evidence: &str) -> Decision {
    Decision {
        model: "llama".into(),
        accelerator: Some("A100".into()),
        current: current.map(Replicas::new),
        verdict: Verdict::Target(Target {
            desired: Replicas::new(desired),
            reason: Reason::SourceDown,
            explanation: "held: Prometheus does not answer (connection refused)".into(),
            evidence: evidence.parse().unwrap(),
        }),
        gap: None,
    }
}

pub(crate) fn unknown(cause: Cause, message: &str) -> Decision {
    let since = "2026-11-21T09:59:10Z".parse().unwrap();
    let verdict = Verdict::Unknown(Unknown { cause, explanation: message.into(), since });
    Decision { model: "llama".into(), accelerator: None, current: None, verdict, gap: None }
}

/// Every kind of variant, each in its own namespace.
pub(crate) fn sample() -> Published {
    let id = VariantId::new;
    let mut bare = target(1, None, "2026-11-21T10:00:05Z");
    bare.accelerator = None;
    let decisions = BTreeMap::from([
        (id("llm", "llama-a100"), target(5, Some(2), "2026-11-21T10:00:05.75Z")),
        (id("pair", "one"), target(1, Some(1), "2026-11-21T10:00:05Z")),
        (id("pair", "two"), target(2000, Some(3000), "2026-11-21T10:00:00Z")),
        (id("half", "good"), target(1, Some(1), "2026-11-21T10:00:05Z")),
        (
            id("half", "new"),
            unknown(Cause::NothingKnown, "no pod of half/new has been measured yet; wait for one"),
        ),
        (id("old", "old"), target(4, Some(4), "2026-11-21T09:50:00Z")),
        (id("bad", "bad"), unknown(Cause::InvalidVariant, "spec.modelID of bad/bad is empty; set it")),
        (
            id("gone", "gone"),
            unknown(Cause::TargetNotFound, "Deployment x of gone/gone does not exist; create it"),
        ),
        (id("bare", "bare"), bare),
    ]);
    Published {
        sequence: 1,
        at: "2026-11-21T10:00:09Z".parse().unwrap(),
        took: Duration::from_millis(3),
        origin: Origin::Computed,
        decisions,
        ..Published::empty()
    }
}
