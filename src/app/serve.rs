//! `wva serve`: builds every part, starts the tasks, waits for a reason to stop, and stops in the order that costs
//! readers nothing.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use prometheus_client::registry::Registry;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::adapters::{ClusterReviewer, shared_pki};
use super::client::client;
use super::recording::recorder;
use super::self_signed;
use super::sources::source;
use super::tasks::Phase;
use crate::cluster::pki::apiservice::ApiServices;
use crate::cluster::pki::certificates::{DEFAULT_SECRET_NAME, instance_name};
use crate::cluster::pki::self_check::{CONFIRM_WINDOW, CaBundleMetrics, ServedChain};
use crate::cluster::writers::deletion_cost::DeletionCostMetrics;
use crate::cluster::{
    ApiServiceWatch, CaBundleWriter, CertificateBundle, CertificateManager, CertificateSettings,
    ClusterReader, ClusterWatch, ConfigMapReader, ConfigMapWatch, DeletionCostWriter, Election,
    ElectionSettings, EventRecorder, SelfCheck, ServiceRef, StateStore, StateWriter, StatusWriter,
    TrustWatch, WatchSettings,
};
use crate::collect::series_of;
use crate::config::{Config, ignored_environment};
use crate::engine::{
    Board, Clock, Engine, Leadership, Parts, ReadSettings, Reader, SystemClock, run, take_over,
};
use crate::policy::{self, PolicyKeeper};
use crate::serve::auth::TrustData;
use crate::serve::tls::{RECHECK_INTERVAL, ServingCertificate, SharedPki};
use crate::serve::{AppState, Server, ServerPorts, ServerSettings};
use crate::telemetry::{ConfigMetrics, EvaluationMetrics, StateMetrics, build_info};

/// The prefix of the state objects' names.
const STATE_PREFIX: &str = "wva";
/// Writers flush and the lease is given up within this; each of their requests is bounded by 5 s.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests in flight may take this long after the listener is closed: ten times the longest read.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// The server cuts off connections that are not drained in time; this long it has for that.
const CUT_OFF_TIMEOUT: Duration = Duration::from_secs(2);

/// The phases of a shutdown, in order: for each, what is told to stop and what is waited for.
#[derive(Default)]
struct Phases {
    /// Readiness fails, everything else goes on.
    stopping: CancellationToken,
    /// No more decisions; what is known is written down.
    work: Phase,
    /// The lease is given up: another instance decides, we forward.
    election: CancellationToken,
    /// The listener closes; requests in flight are finished.
    serving: Phase,
    /// Nothing needs the cluster any more.
    watches: Phase,
}

/// Runs until a signal or a failure.
///
/// # Errors
/// When the configuration cannot be carried out, or a part ends that should run for ever.
pub async fn serve(config: Config) -> anyhow::Result<()> {
    for (name, why) in ignored_environment() {
        warn!(name, why, "this setting has no effect");
    }
    let client = client(config.kubeconfig.as_deref()).await?;
    let delay = config.shutdown_delay;
    let mut app = App { config, client, clock: Arc::new(SystemClock), phases: Phases::default() };
    let engine = app.start().await?;
    let ended = app.wait().await?;
    let Phases { stopping, work, election, serving, watches } = app.phases;
    let asked = Instant::now();
    stopping.cancel();
    // Before the last writing down: reads go on, and none may see a number that the next holder does not start from.
    engine.resign();
    work.end(FLUSH_TIMEOUT).await;
    election.cancel();
    if ended.is_none() {
        sleep_until(asked + delay).await;
    }
    serving.end(DRAIN_TIMEOUT + CUT_OFF_TIMEOUT).await;
    // With a lease that is still being given up.
    watches.end(FLUSH_TIMEOUT).await;
    info!("stopped");
    match ended {
        Some((task, how)) => bail!("the {task} {how}: this is a bug"),
        None => Ok(()),
    }
}

/// What is known of certificates and of who verifies them.
struct CertificateWatches {
    bundles: watch::Receiver<Option<CertificateBundle>>,
    known: watch::Receiver<ApiServices>,
}

struct App {
    config: Config,
    client: kube::Client,
    clock: Arc<dyn Clock>,
    phases: Phases,
}

impl App {
    async fn start(&mut self) -> anyhow::Result<Arc<Engine>> {
        let (ready, has_policy) = watch::channel(false);
        let (needs_inventory, inventory) = watch::channel(false);
        let (cluster, synced) = self.start_watches(has_policy, inventory);
        let leadership = self.start_election(synced.clone());
        let mut registry = Registry::default();
        build_info(&mut registry);
        let board = Board::new();
        let parts = Parts {
            cluster: Arc::new(cluster.clone()),
            source: source(self.config.source.clone(), self.clock.clone())?,
            clock: self.clock.clone(),
            board: board.clone(),
            leadership: leadership.clone(),
            metrics: EvaluationMetrics::register(&mut registry),
        };
        let (record, instance) = (&self.config.record, &self.config.instance);
        let (keeper, recent) = recorder(record, instance, &mut registry, &mut self.phases.work)?;
        let engine = Engine::new(parts, self.config.policy.clone()).recorded_by(Arc::new(keeper));
        let engine = engine.naming_victims(self.config.pod_deletion_cost);
        let engine = Arc::new(engine);
        let settings = ReadSettings { max_age: self.config.max_age, read_wait: self.config.read_wait };
        let reader = Reader::new(engine.clone(), settings);
        let metrics = StateMetrics::register(&mut registry);
        self.start_deciding(engine.clone(), reader.clone(), leadership.clone(), metrics);
        let (events, writer) = EventRecorder::new(
            self.client.clone(),
            cluster.clone(),
            self.config.instance.clone(),
            &mut registry,
        );
        self.phases.watches.start("events", |stop| writer.run(stop));
        let maps = self.start_config_maps();
        self.start_policy(policy::Parts {
            maps,
            cluster: cluster.clone(),
            engine: engine.clone(),
            events: events.clone(),
            leadership: leadership.clone(),
            metrics: ConfigMetrics::register(&mut registry),
            needs_inventory,
            ready,
        });
        let ca_metrics = CaBundleMetrics::register(&mut registry);
        let certificates = self.start_certificates(events.clone());
        self.start_deletion_costs(cluster.clone(), &board, &leadership, &mut registry);
        self.start_writers(cluster, &board, &leadership);
        let settings = ServerSettings {
            serving: self.serving(),
            shared_pki: self.start_sharing(certificates.bundles.clone()),
            instance_name: instance_name(&self.config.namespace),
            trust: self.start_trust(),
            leadership,
            published: board.subscribe(),
            synced,
            stopping: self.phases.stopping.clone(),
            read_wait: self.config.read_wait,
            controller_instance: self.config.controller_instance.clone(),
        };
        let reviewer = Arc::new(ClusterReviewer(self.client.clone()));
        let event_sink = Arc::new(events.clone());
        let ports = ServerPorts { reader: Arc::new(reader), reviewer, events: event_sink, recent, registry };
        self.ensure_certificate()?;
        let server = self.bind(settings, ports).await?;
        self.start_self_check(Arc::new(server.served_chain()), certificates, events, ca_metrics);
        self.phases.serving.start("server", |stop| server.serve(stop, DRAIN_TIMEOUT));
        Ok(engine)
    }

    async fn bind(&self, settings: ServerSettings, ports: ServerPorts) -> anyhow::Result<Server> {
        let server = Server::bind(self.config.listen, AppState::new(settings, ports)).await?;
        info!(address = %server.address(), instance = self.config.instance, "serving");
        Ok(server.with_max_connection_age(self.config.connection_age))
    }

    /// The cluster, and whether all of it has been listed and the policy to start with is known.
    fn start_watches(
        &mut self,
        mut has_policy: watch::Receiver<bool>,
        inventory: watch::Receiver<bool>,
    ) -> (ClusterReader, watch::Receiver<bool>) {
        let settings = WatchSettings {
            namespace: self.config.watch_namespace.clone(),
            controller_instance: self.config.controller_instance.clone(),
            node_selector: self.config.node_selector.clone(),
            deletion_cost: self.config.pod_deletion_cost,
        };
        let (watching, cluster) = ClusterWatch::new(self.client.clone(), settings);
        let watching = watching.with_inventory(inventory);
        self.phases.watches.start("cluster watch", |stop| watching.run(stop));
        let (tell, synced) = watch::channel(false);
        let mut observed = cluster.subscribe();
        self.phases.watches.start("first listing", |stop| async move {
            let listed = async {
                let listed = observed.wait_for(|observed| observed.view.synced).await.is_ok();
                listed && has_policy.wait_for(|has_policy| *has_policy).await.is_ok()
            };
            if stop.run_until_cancelled(listed).await == Some(true) {
                info!("every watch has listed once");
                tell.send_replace(true);
            }
            stop.cancelled().await;
        });
        (cluster, synced)
    }

    fn start_config_maps(&mut self) -> ConfigMapReader {
        let (watching, maps) = ConfigMapWatch::new(self.client.clone(), policy::settings(&self.config));
        self.phases.watches.start("ConfigMap watch", |stop| watching.run(stop));
        maps
    }

    fn start_policy(&mut self, parts: policy::Parts) {
        let keeper = PolicyKeeper::new(parts, &self.config);
        self.phases.watches.start("policy", |stop| keeper.run(stop));
    }

    /// Who has seen nothing yet does not campaign: another instance may have.
    fn start_election(&mut self, mut synced: watch::Receiver<bool>) -> watch::Receiver<Leadership> {
        let (namespace, instance) = (&self.config.namespace, &self.config.instance);
        let address = Some(self.config.advertised.clone());
        let settings = ElectionSettings::new(namespace, &self.config.lease, instance, address);
        let (election, leadership) = Election::new(self.client.clone(), settings, self.clock.clone());
        // Given up early, followed to the end: what still arrives is forwarded to the next holder.
        let campaign_until = self.phases.election.clone();
        self.phases.watches.start("election", |observe_until| async move {
            let listed = async { synced.wait_for(|listed| *listed).await.is_ok() };
            if observe_until.run_until_cancelled(listed).await == Some(true) {
                election.run(campaign_until, observe_until).await;
            }
        });
        leadership
    }

    /// The loop that evaluates, and the hand-over before it.
    fn start_deciding(
        &mut self,
        engine: Arc<Engine>,
        reader: Reader,
        leadership: watch::Receiver<Leadership>,
        metrics: StateMetrics,
    ) {
        let (interval, store) = (self.config.interval, self.store());
        let max_stale = Duration::from_secs_f64(self.config.policy.max_stale.get());
        let writer = StateWriter::new(
            store.clone(),
            reader.published(),
            engine.memory(),
            leadership.clone(),
            max_stale,
        )
        .with_metrics(metrics);
        let looping = reader.clone();
        self.phases.work.start("evaluation", |stop| run(looping, interval, stop));
        self.phases.work.start("take-over", |stop| async move {
            let load = || store.load();
            stop.run_until_cancelled(take_over(engine, reader, leadership, load)).await;
        });
        self.phases.work.start("state writer", |stop| writer.run(stop));
    }

    fn start_writers(
        &mut self,
        cluster: ClusterReader,
        board: &Board,
        leadership: &watch::Receiver<Leadership>,
    ) {
        let instance = self.config.instance.clone();
        let (published, holder) = (board.subscribe(), leadership.clone());
        let writer = StatusWriter::new(self.client.clone(), cluster, published, holder, instance, series_of);
        self.phases.work.start("status writer", |stop| writer.run(stop));
        let (store, board, leadership) = (self.store(), board.clone(), leadership.clone());
        self.phases.watches.start("state follower", |stop| async move {
            store.follow(&board, leadership, stop).await;
        });
    }

    /// Where it is wanted: nothing waits for it, and it waits for evaluations only.
    fn start_deletion_costs(
        &mut self,
        cluster: ClusterReader,
        board: &Board,
        leadership: &watch::Receiver<Leadership>,
        registry: &mut Registry,
    ) {
        if self.config.pod_deletion_cost {
            let (published, holder) = (board.subscribe(), leadership.clone());
            let metrics = DeletionCostMetrics::register(registry);
            let writer = DeletionCostWriter::new(self.client.clone(), cluster, published, holder, metrics);
            self.phases.work.start("deletion cost writer", |stop| writer.run(stop));
        }
    }

    fn store(&self) -> StateStore {
        let prefix = match &self.config.controller_instance {
            Some(instance) => format!("{STATE_PREFIX}-{instance}"),
            None => STATE_PREFIX.into(),
        };
        StateStore::new(self.client.clone(), &self.config.namespace, &prefix, self.clock.clone())
    }

    fn serving(&self) -> ServingCertificate {
        match &self.config.certificate {
            Some(files) => ServingCertificate::Files {
                certificate: files.chain.clone(),
                key: files.key.clone(),
                recheck_interval: RECHECK_INTERVAL,
            },
            None => ServingCertificate::Shared,
        }
    }

    /// A directory that is to have a certificate has one.
    fn ensure_certificate(&self) -> anyhow::Result<()> {
        let wanted = self.config.certificate_directory.as_deref().zip(self.config.certificate.as_ref());
        let Some((directory, files)) = wanted else { return Ok(()) };
        self_signed::ensure(directory, files, &self.certificate_settings().names(), &*self.clock)
    }

    fn certificate_settings(&self) -> CertificateSettings {
        CertificateSettings {
            namespace: self.config.namespace.clone(),
            secret: DEFAULT_SECRET_NAME.into(),
            service: self.config.service.clone(),
            settle: self.config.ca_settle,
        }
    }

    /// The shared certificates: made or adopted, followed, and, where they are what we serve with, announced to the API
    /// server as the `caBundle` of its APIServices.
    fn start_certificates(&mut self, events: EventRecorder) -> CertificateWatches {
        let (watching, known) = ApiServiceWatch::new(self.client.clone(), self.our_service());
        self.phases.watches.start("APIService watch", |stop| watching.run(stop));
        let settings = self.certificate_settings();
        let announced = self.config.certificate.is_none();
        let announced_by = announced.then(|| known.clone());
        let certificates =
            CertificateManager::new(self.client.clone(), settings, self.clock.clone(), announced_by);
        let (publish, bundles) = watch::channel(None);
        self.phases.watches.start("certificates", |stop| certificates.run(publish, stop));
        if announced {
            let keeper = CaBundleWriter::new(
                self.client.clone(),
                self.our_service(),
                bundles.clone(),
                known.clone(),
                events,
                self.clock.clone(),
            );
            self.phases.watches.start("caBundle", |stop| keeper.run(stop));
        }
        CertificateWatches { bundles, known }
    }

    /// The certificates as the serving edge wants them.
    fn start_sharing(
        &mut self,
        mut bundles: watch::Receiver<Option<CertificateBundle>>,
    ) -> watch::Receiver<Option<SharedPki>> {
        let (tell, shared) = watch::channel(None);
        self.phases.watches.start("shared certificates", |stop| async move {
            while let Some(Ok(())) = stop.run_until_cancelled(bundles.changed()).await {
                tell.send_replace(bundles.borrow_and_update().as_ref().map(shared_pki));
            }
            stop.cancelled().await;
        });
        shared
    }

    fn our_service(&self) -> ServiceRef {
        ServiceRef { namespace: self.config.namespace.clone(), name: self.config.service.clone() }
    }

    /// Verifies what is served as the API server does.
    fn start_self_check(
        &mut self,
        served: ServedChain,
        watches: CertificateWatches,
        events: EventRecorder,
        metrics: CaBundleMetrics,
    ) {
        let check = SelfCheck {
            client: self.client.clone(),
            service: self.our_service(),
            served,
            has_own_files: self.config.certificate.is_some(),
            apiservices: watches.known,
            certificates: watches.bundles,
            events,
            metrics,
            clock: self.clock.clone(),
            confirm: CONFIRM_WINDOW,
        };
        self.phases.serving.start("caBundle check", |stop| check.run(stop));
    }

    fn start_trust(&mut self) -> watch::Receiver<TrustData> {
        let (watching, trust) = TrustWatch::new(self.client.clone());
        self.phases.watches.start("trust watch", |stop| watching.run(stop));
        trust
    }

    /// Until a signal (`None`), or until a task ends that should not.
    async fn wait(&mut self) -> anyhow::Result<Option<(&'static str, String)>> {
        let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        let Phases { work, serving, watches, .. } = &mut self.phases;
        tokio::select! {
            _ = terminate.recv() => info!("SIGTERM: stopping"),
            _ = tokio::signal::ctrl_c() => info!("interrupted: stopping"),
            ended = work.first_end() => return Ok(Some(ended)),
            ended = serving.first_end() => return Ok(Some(ended)),
            ended = watches.first_end() => return Ok(Some(ended)),
        }
        Ok(None)
    }
}
