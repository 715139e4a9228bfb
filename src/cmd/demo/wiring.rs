//! Connects wva's own components to the simulated fleet, as `app` does in a cluster: scrape source, engine, HTTPS server.
//! Nothing here is simulated.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use wva_core::Policy;
use wva_sim::PROGRAM_DEFAULTS;

use super::clock::VirtualClock;
use super::fleet::DemoFleet;
use super::pki::Pki;
use crate::collect::{ScrapeSettings, ScrapeSource};
use crate::engine::{
    Board, Clock, Engine, Holder, Leadership, MetricSource, Parts, ReadSettings, Reader, Restored, Term, run,
};
use crate::record::{Queue, QueueRecorder, Recent, keep_recent};
use crate::serve::auth::{AllowAll, TrustData};
use crate::serve::tls::{ServingCertificate, SharedPki};
use crate::serve::{
    AppState, InstallationSettings, NoEvents, ServeError, Server, ServerPorts, ServerSettings,
};
use crate::telemetry::EvaluationMetrics;

/// Evaluations that `/debug/snapshots` shows: 40 s of virtual time.
const MAX_SNAPSHOTS: usize = 8;
/// The most bytes of these evaluations: the default of `wva serve`.
const MAX_SNAPSHOT_BYTES: u64 = 16 << 20;
/// How long open requests may take at the end, in wall time.
pub(super) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
/// The key of the users' CA in a cluster's trust data.
const CLIENT_CA_KEY: &str = "client-ca-file";
/// The demo holds its lease for a year.
const LEASE_DURATION: Duration = Duration::from_secs(365 * 24 * 3600);

/// One instance of wva, ready to run.
pub(super) struct WvaInstance {
    /// Where results appear.
    pub(super) board: Board,
    reader: Reader,
    registry: Registry,
    /// What `/debug/snapshots` shows, and what is on its way there.
    recent: Arc<Recent>,
    queue: Queue,
    inputs: ConstantInputs,
}

/// The demo holds its lease from start to end.
fn term() -> Term {
    Term { lease: "demo".into(), epoch: 1 }
}

/// Inputs that change in a cluster and are constant here. Kept, because dropping a sender closes its channel.
struct ConstantInputs {
    leadership: watch::Sender<Leadership>,
    shared: watch::Sender<Option<SharedPki>>,
    trust: watch::Sender<TrustData>,
    synced: watch::Sender<bool>,
}

impl ConstantInputs {
    /// This process holds the lease, serves with the throw-away certificate, and trusts the CA that signed it.
    fn new(pki: &Pki) -> Self {
        let shared = SharedPki {
            ca_pem: pki.ca.clone(),
            cert_pem: pki.server.certificate.clone(),
            key_pem: pki.server.key.clone(),
        };
        let Term { lease, epoch } = term();
        let holder = Holder { identity: "demo".into(), address: None, lease, epoch };
        let mine = Leadership { holder: Some(holder), mine_until: Some(Instant::now() + LEASE_DURATION) };
        Self {
            leadership: watch::Sender::new(mine),
            shared: watch::Sender::new(Some(shared)),
            trust: watch::Sender::new(Some(BTreeMap::from([(CLIENT_CA_KEY.into(), pki.ca.clone())]))),
            synced: watch::Sender::new(true),
        }
    }
}

impl WvaInstance {
    /// The engine over the fleet's own metrics endpoints, on the fleet's clock.
    pub(super) fn new(fleet: &DemoFleet, clock: VirtualClock, pki: &Pki) -> anyhow::Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(clock);
        let source = ScrapeSource::new(&ScrapeSettings::default(), clock.clone());
        let source: Arc<dyn MetricSource> = Arc::new(source.map_err(|error| anyhow!(error.message))?);
        let mut registry = Registry::default();
        let board = Board::new();
        let inputs = ConstantInputs::new(pki);
        let parts = Parts {
            cluster: Arc::new(fleet.clone()),
            source,
            clock,
            board: board.clone(),
            leadership: inputs.leadership.subscribe(),
            metrics: EvaluationMetrics::register(&mut registry),
        };
        let (recorder, queue) = QueueRecorder::default().to_recent();
        let engine = Arc::new(Engine::new(parts, Policy::default()).with_recorder(Arc::new(recorder)));
        engine.take_over(Restored::default(), term());
        let reader = Reader::new(engine, ReadSettings::default());
        let recent = Arc::new(Recent::new(MAX_SNAPSHOTS, MAX_SNAPSHOT_BYTES));
        Ok(Self { board, reader, registry, recent, queue, inputs })
    }

    /// Binds the server that answers from this engine.
    pub(super) async fn server(&mut self, address: SocketAddr) -> anyhow::Result<Server> {
        let settings = ServerSettings {
            serving: ServingCertificate::Shared,
            shared_pki: self.inputs.shared.subscribe(),
            instance_name: "wva-instance.demo.internal".into(),
            trust: self.inputs.trust.subscribe(),
            trust_refused: watch::channel(false).1,
            leadership: self.inputs.leadership.subscribe(),
            published: self.board.subscribe(),
            synced: self.inputs.synced.subscribe(),
            stopping: CancellationToken::new(),
            read_wait: ReadSettings::default().read_wait,
            controller_instance: None,
            installations: InstallationSettings::default(),
        };
        let ports = ServerPorts {
            reader: Arc::new(self.reader.clone()),
            reviewer: Arc::new(AllowAll::default()),
            events: Arc::new(NoEvents),
            recent: self.recent.clone(),
            rules: None,
            calls: None,
            fallback: None,
            registry: std::mem::take(&mut self.registry),
        };
        Server::bind(address, AppState::new(settings, ports)).await.map_err(|error| match error {
            ServeError::Bind { address, source, .. } => {
                anyhow!("--listen {address}: {source}; choose another port, or 0 for any free one")
            }
            error => error.into(),
        })
    }

    /// Starts evaluating and serving; both end with `stop`.
    pub(super) fn start(
        self,
        server: Server,
        tasks: &mut JoinSet<anyhow::Result<()>>,
        stop: &CancellationToken,
    ) {
        let Self { reader, recent, queue, inputs, .. } = self;
        let stopped = stop.clone();
        tasks.spawn(async move {
            keep_recent(queue, recent, stopped).await;
            Ok(())
        });
        let stopped = stop.clone();
        tasks.spawn(async move {
            run(reader, PROGRAM_DEFAULTS.evaluation_interval, stopped).await;
            Ok(())
        });
        let stopped = stop.clone();
        tasks.spawn(async move {
            server.serve(stopped, SHUTDOWN_TIMEOUT).await;
            drop(inputs);
            Ok(())
        });
    }
}
