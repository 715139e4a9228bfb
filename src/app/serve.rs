//! `wva serve`: builds every part, starts the tasks, waits for a reason to stop, and stops in an order in which no read fails.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use prometheus_client::registry::Registry;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::info;

use super::adapters::{
    ClusterReviewer, NotedCalls, certificate_settings, installation_settings, service_ref,
    serving_certificate, shared_pki,
};
use super::fallback::start_fallback;
use super::metrics::{Installation, ProgramMetrics};
use super::otlp::start_export;
use super::recording::recorder;
use super::rules::start_rules;
use super::self_signed;
use super::sources::{queue_source, source};
use super::tasks::{Phases, TaskEnd};
use crate::cluster::leadership::installation_name;
use crate::cluster::pki::apiservice::ApiServices;
use crate::cluster::pki::certificates::instance_name;
use crate::cluster::pki::self_check::{CONFIRM_WINDOW, CaBundleMetrics, ServedChain};
use crate::cluster::pki::{PreviousOwner, TakeOver};
use crate::cluster::writers::deletion_cost::DeletionCostMetrics;
use crate::cluster::{
    AnnotatedEventWriter, ApiServiceWatch, CaBundleWriter, CallRegister, CertificateBundle,
    CertificateManager, ClusterReader, ClusterWatch, ConfigMapReader, ConfigMapWatch, DeletionCostWriter,
    Election, ElectionSettings, EventRecorder, ExternalOf, ScaleWriter, ScalerService, SelfCheck, StateStore,
    StateWriter, StatusWriter, TrustWatch, WatchSettings,
};
use crate::collect::current_series_names;
use crate::config::Config;
use crate::engine::{
    Board, Clock, Engine, Leadership, Parts, ReadSettings, Reader, SystemClock, run, take_over, watch_queues,
};
use crate::policy::{PolicyParts, PolicyUpdater, config_map_selection};
use crate::serve::auth::TrustData;
use crate::serve::tls::SharedPki;
use crate::serve::{AppState, Server, ServerPorts, ServerSettings};
use crate::telemetry::{ApiRequestMetrics, ErrorMetrics, QueueMetrics, StateMetrics, WakeMetrics};

/// Longest time for the last writes and for releasing the lease; each request takes at most 5 s.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);
/// How long running requests may take after the listener is closed: ten times the longest read.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the server may take to close connections that were not drained in time.
const CUT_OFF_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs until a signal or a failure. `client` reaches the cluster.
///
/// # Errors
/// When a part cannot be built, or one ends that should run for ever.
pub async fn serve(config: Config, client: kube::Client, requests: ApiRequestMetrics) -> anyhow::Result<()> {
    let shutdown_delay = config.shutdown_delay;
    let clock = Arc::new(SystemClock);
    let mut app = App { config, client, requests, clock, phases: Phases::default() };
    let engine = app.start().await?;
    let ended = app.wait_for_end().await?;
    let Phases { stopping, work, election, serving, watches } = app.phases;
    let stopped_at = Instant::now();
    stopping.cancel();
    // Before the last write: reads continue, and none may see a number that the next leader does not start from.
    engine.resign();
    work.end(FLUSH_TIMEOUT).await;
    election.cancel();
    if ended.is_none() {
        sleep_until(stopped_at + shutdown_delay).await;
    }
    serving.end(DRAIN_TIMEOUT + CUT_OFF_TIMEOUT).await;
    // Including the release of the lease.
    watches.end(FLUSH_TIMEOUT).await;
    info!("stopped");
    match ended {
        Some(TaskEnd { task, how }) => bail!("the {task} {how}: this is a bug"),
        None => Ok(()),
    }
}

/// The shared certificates, and the APIServices that verify them.
struct CertificateWatches {
    bundles: watch::Receiver<Option<CertificateBundle>>,
    apiservices: watch::Receiver<ApiServices>,
}

struct App {
    config: Config,
    client: kube::Client,
    /// Of the client.
    requests: ApiRequestMetrics,
    clock: Arc<dyn Clock>,
    phases: Phases,
}

impl App {
    async fn start(&mut self) -> anyhow::Result<Arc<Engine>> {
        let ((ready, has_policy), (needs_inventory, inventory)) =
            (watch::channel(false), watch::channel(false));
        let register = self.start_call_register();
        let (cluster, synced) = self.start_watches((has_policy, inventory), register.as_ref());
        let leadership = self.start_election(synced.clone());
        let metrics = self.register_metrics(leadership.clone());
        let (mut registry, errors) = (metrics.registry, metrics.evaluation.errors().clone());
        let board = Board::new();
        let parts = Parts {
            cluster: Arc::new(cluster.clone()),
            source: source(self.config.source.clone(), self.clock.clone())?,
            clock: self.clock.clone(),
            board: board.clone(),
            leadership: leadership.clone(),
            metrics: metrics.evaluation,
        };
        let (record, instance) = (&self.config.record, &self.config.instance);
        let (recorder, recent) = recorder(record, instance, &mut registry, &mut self.phases.work)?;
        let engine = Engine::new(parts, self.config.policy.clone()).with_recorder(Arc::new(recorder));
        let engine = Arc::new(engine.with_deletion_orders(self.config.pod_deletion_cost));
        let Config { max_age, read_wait, .. } = self.config;
        let reader = Reader::new(engine.clone(), ReadSettings { max_age, read_wait });
        start_export(&self.config, reader.clone(), leadership.clone(), &mut registry, &mut self.phases.work)?;
        self.start_deciding(engine.clone(), reader.clone(), leadership.clone(), &mut registry);
        let events = self.start_events(cluster.clone(), &mut registry);
        let maps = self.start_config_maps();
        self.start_policy(PolicyParts {
            maps,
            cluster: cluster.clone(),
            engine: engine.clone(),
            events: events.clone(),
            leadership: leadership.clone(),
            metrics: metrics.config,
            needs_inventory,
            ready,
        });
        let ca_metrics = CaBundleMetrics::register(&mut registry);
        let (fallback, owner) = start_fallback(&self.config, &mut registry, &mut self.phases.watches).unzip();
        let certificates = self.start_certificates(events.clone(), leadership.clone(), owner);
        self.start_deletion_costs(cluster.clone(), &board, &leadership, &mut registry);
        self.start_waking(engine.clone(), cluster.clone(), (&board, &leadership), &mut registry)?;
        let external = (events.clone(), self.external_metrics(certificates.apiservices.clone()));
        let calls = register.map(|register| NotedCalls::port(register, cluster.clone()));
        self.start_writers(cluster, (&board, &leadership), external, (metrics.statuses, errors));
        let (trust, trust_refused) = self.start_trust();
        let settings = ServerSettings {
            serving: serving_certificate(&self.config),
            shared_pki: self.share_certificates(certificates.bundles.clone()),
            instance_name: instance_name(&self.config.namespace),
            trust,
            trust_refused,
            leadership,
            published: board.subscribe(),
            synced,
            stopping: self.phases.stopping.clone(),
            read_wait,
            controller_instance: self.config.controller_instance.clone(),
            installations: installation_settings(&self.config),
        };
        let reviewer = Arc::new(ClusterReviewer(self.client.clone()));
        let (reader, sink) = (Arc::new(reader), Arc::new(events.clone()));
        let (client, clock) = (self.client.clone(), self.clock.clone());
        let rules = start_rules(&self.config, client, clock, &mut registry, &mut self.phases.watches)?;
        let ports = ServerPorts { reader, reviewer, events: sink, recent, rules, calls, fallback, registry };
        let server = self.bind(settings, ports).await?;
        self.start_self_check(Arc::new(server.served_chain()), certificates, events, ca_metrics);
        self.phases.serving.start("server", |stop| server.serve(stop, DRAIN_TIMEOUT));
        Ok(engine)
    }

    fn register_metrics(&self, leadership: watch::Receiver<Leadership>) -> ProgramMetrics {
        let Config { controller_instance, lease, interval, .. } = &self.config;
        let installation =
            Installation { controller_instance: controller_instance.as_deref(), lease, interval: *interval };
        ProgramMetrics::register(installation, &self.requests, leadership)
    }

    async fn bind(&self, settings: ServerSettings, ports: ServerPorts) -> anyhow::Result<Server> {
        self.ensure_certificate()?;
        let server = Server::bind(self.config.listen, AppState::new(settings, ports)).await?;
        info!(address = %server.address(), instance = self.config.instance, "serving");
        if let Some(forwarder) = &self.config.forwarder {
            info!(
                name = forwarder.name,
                "the installation with this name in its certificate may forward reads"
            );
        }
        let server = server.with_max_connection_age(self.config.connection_age);
        Ok(server.with_external_scaler(self.config.external_scaler).await?)
    }

    /// The cluster, and whether every watch has listed and the engine has its first policy.
    fn start_watches(
        &mut self,
        (mut has_policy, inventory): (watch::Receiver<bool>, watch::Receiver<bool>),
        register: Option<&CallRegister>,
    ) -> (ClusterReader, watch::Receiver<bool>) {
        let settings = WatchSettings {
            namespace: self.config.watch_namespace.clone(),
            controller_instance: self.config.controller_instance.clone(),
            node_selector: self.config.node_selector.clone(),
            deletion_cost: self.config.pod_deletion_cost,
            max_stale: Duration::from_secs_f64(self.config.policy.max_stale.get()),
            annotated: self.config.annotated_autoscalers,
            value_targets: self.config.serve_value_targets,
            service: Some(ScalerService {
                namespace: self.config.namespace.as_str().into(),
                name: self.config.service.as_str().into(),
            }),
        };
        let (watching, cluster) = ClusterWatch::new(self.client.clone(), settings);
        let watching = watching.with_inventory(inventory);
        let watching = match register {
            Some(register) => watching.with_called(register.subscribe()),
            None => watching,
        };
        self.phases.watches.start("cluster watch", |stop| watching.run(stop));
        let (publish, synced) = watch::channel(false);
        let mut states = cluster.subscribe();
        self.phases.watches.start("first listing", |stop| async move {
            let listed = async {
                let listed = states.wait_for(|state| state.view.synced).await.is_ok();
                listed && has_policy.wait_for(|has_policy| *has_policy).await.is_ok()
            };
            if stop.run_until_cancelled(listed).await == Some(true) {
                info!("every watch has listed once");
                publish.send_replace(true);
            }
            stop.cancelled().await;
        });
        (cluster, synced)
    }

    /// Only where KEDA's external scaler is served.
    fn start_call_register(&mut self) -> Option<CallRegister> {
        self.config.external_scaler?;
        let register = CallRegister::new(self.clock.clone(), self.config.watch_namespace.clone());
        let (running, store) = (register.clone(), self.store());
        self.phases.watches.start("register of KEDA's calls", |stop| running.run(store, stop));
        Some(register)
    }

    fn start_config_maps(&mut self) -> ConfigMapReader {
        let (watching, maps) = ConfigMapWatch::new(self.client.clone(), config_map_selection(&self.config));
        self.phases.watches.start("ConfigMap watch", |stop| watching.run(stop));
        maps
    }

    fn start_policy(&mut self, parts: PolicyParts) {
        let updater = PolicyUpdater::new(parts, &self.config);
        self.phases.watches.start("policy", |stop| updater.run(stop));
    }

    /// An instance that has not listed the cluster yet is no candidate: another one may have listed it.
    fn start_election(&mut self, mut synced: watch::Receiver<bool>) -> watch::Receiver<Leadership> {
        let Config { namespace, lease, lease_times, instance, advertised, .. } = &self.config;
        let settings = ElectionSettings::new(namespace, lease, instance, Some(advertised.clone()))
            .with_times(*lease_times);
        let (election, leadership) = Election::new(self.client.clone(), settings, self.clock.clone());
        // Ends early, but observes to the end: requests that still arrive are forwarded to the next leader.
        let campaign_until = self.phases.election.clone();
        self.phases.watches.start("election", |observe_until| async move {
            let listed = async { synced.wait_for(|listed| *listed).await.is_ok() };
            if observe_until.run_until_cancelled(listed).await == Some(true) {
                election.run(campaign_until, observe_until).await;
            }
        });
        leadership
    }

    /// The loop that evaluates, and the take-over before it.
    fn start_deciding(
        &mut self,
        engine: Arc<Engine>,
        reader: Reader,
        leadership: watch::Receiver<Leadership>,
        registry: &mut Registry,
    ) {
        let interval = self.config.interval;
        let store = self.store();
        let max_stale = Duration::from_secs_f64(self.config.policy.max_stale.get());
        let writer = StateWriter::new(
            store.clone(),
            reader.published(),
            engine.memory(),
            leadership.clone(),
            max_stale,
        )
        .with_metrics(StateMetrics::register(registry));
        let evaluating = reader.clone();
        self.phases.work.start("evaluation", |stop| run(evaluating, interval, stop));
        self.phases.work.start("take-over", |stop| async move {
            let load = || store.load();
            stop.run_until_cancelled(take_over(engine, reader, leadership, load)).await;
        });
        self.phases.work.start("state writer", |stop| writer.run(stop));
    }

    fn start_events(&mut self, cluster: ClusterReader, registry: &mut Registry) -> EventRecorder {
        let instance = self.config.instance.clone();
        let (events, writer) = EventRecorder::new(self.client.clone(), cluster, instance, registry);
        self.phases.watches.start("events", |stop| writer.run(stop));
        events
    }

    /// Who serves external metrics instead of this program.
    fn external_metrics(&self, services: watch::Receiver<ApiServices>) -> ExternalOf {
        let own = service_ref(&self.config);
        Arc::new(move || services.borrow().external_metrics(&own))
    }

    fn start_writers(
        &mut self,
        cluster: ClusterReader,
        (board, leadership): (&Board, &watch::Receiver<Leadership>),
        (events, external): (EventRecorder, ExternalOf),
        (queue, errors): (QueueMetrics, ErrorMetrics),
    ) {
        let instance = self.config.instance.clone();
        if self.config.annotated_autoscalers {
            let writer = AnnotatedEventWriter::new(
                self.client.clone(),
                cluster.clone(),
                board.subscribe(),
                leadership.clone(),
                instance.clone(),
                current_series_names,
            );
            let writer = writer.with_external(external.clone()).with_metrics(errors.clone());
            self.phases.work.start("annotated event writer", |stop| writer.run(stop));
        }
        let writer = StatusWriter::new(
            self.client.clone(),
            cluster,
            board.subscribe(),
            leadership.clone(),
            instance,
            current_series_names,
        )
        .with_external(external)
        .with_failures(events)
        .with_metrics(queue, errors);
        self.phases.work.start("status writer", |stop| writer.run(stop));
        let store = self.store();
        let board = board.clone();
        let leadership = leadership.clone();
        self.phases.watches.start("state follower", |stop| async move {
            store.follow(&board, leadership, stop).await;
        });
    }

    /// Only where deletion costs are enabled.
    fn start_deletion_costs(
        &mut self,
        cluster: ClusterReader,
        board: &Board,
        leadership: &watch::Receiver<Leadership>,
        registry: &mut Registry,
    ) {
        if self.config.pod_deletion_cost {
            let metrics = DeletionCostMetrics::register(registry);
            let published = board.subscribe();
            let leadership = leadership.clone();
            let writer =
                DeletionCostWriter::new(self.client.clone(), cluster, published, leadership, metrics);
            self.phases.work.start("deletion cost writer", |stop| writer.run(stop));
        }
    }

    /// What wakes sleeping models. Their scale is written only where that is enabled.
    fn start_waking(
        &mut self,
        engine: Arc<Engine>,
        cluster: ClusterReader,
        (board, leadership): (&Board, &watch::Receiver<Leadership>),
        registry: &mut Registry,
    ) -> anyhow::Result<()> {
        let metrics = WakeMetrics::register(registry);
        let queues = queue_source(&self.config.source)?;
        if self.config.wake_directly {
            let (board, leadership) = (board.clone(), leadership.clone());
            let writer = ScaleWriter::new(self.client.clone(), cluster, board, leadership, metrics.clone());
            self.phases.work.start("scale writer", |stop| writer.run(stop));
        }
        self.phases.work.start("queue watch", |stop| watch_queues(engine, queues, metrics, stop));
        Ok(())
    }

    fn store(&self) -> StateStore {
        let prefix = installation_name(self.config.controller_instance.as_deref());
        StateStore::new(self.client.clone(), &self.config.namespace, &prefix, self.clock.clone())
    }

    /// Fills a certificate directory that has no certificate.
    fn ensure_certificate(&self) -> anyhow::Result<()> {
        let configured = self.config.certificate_directory.as_deref().zip(self.config.certificate.as_ref());
        let Some((directory, files)) = configured else { return Ok(()) };
        self_signed::ensure(directory, files, &certificate_settings(&self.config).names(), &*self.clock)
    }

    /// Creates or adopts the shared certificates and follows them. Where we serve with them, writes their CAs as `caBundle` of the
    /// APIServices. Takes over that of `previous`, or gives back what was taken.
    fn start_certificates(
        &mut self,
        events: EventRecorder,
        leadership: watch::Receiver<Leadership>,
        previous: Option<PreviousOwner>,
    ) -> CertificateWatches {
        let service = service_ref(&self.config);
        let (client, clock) = (&self.client, &self.clock);
        let (watching, apiservices) = ApiServiceWatch::new(client.clone(), service.clone());
        self.phases.watches.start("APIService watch", |stop| watching.run(stop));
        let settings = certificate_settings(&self.config);
        let serves_shared = self.config.certificate.is_none();
        let verified_by = serves_shared.then(|| apiservices.clone());
        let certificates = CertificateManager::new(client.clone(), settings, clock.clone(), verified_by);
        let (publish, bundles) = watch::channel(None);
        self.phases.watches.start("certificates", |stop| certificates.run(publish, stop));
        if serves_shared {
            let (bundles, apiservices, events) = (bundles.clone(), apiservices.clone(), events.clone());
            let (client, service, clock) = (client.clone(), service.clone(), clock.clone());
            let writer = CaBundleWriter::new(client, service, bundles, apiservices, events, clock);
            self.phases.watches.start("caBundle", |stop| writer.run(stop));
        }
        let task = TakeOver {
            client: client.clone(),
            service,
            previous,
            certificates: bundles.clone(),
            apiservices: apiservices.clone(),
            leadership,
            events,
            clock: clock.clone(),
        };
        self.phases.watches.start("APIService take-over", |stop| task.run(stop));
        CertificateWatches { bundles, apiservices }
    }

    /// Passes the shared certificates on to `serve`.
    fn share_certificates(
        &mut self,
        mut bundles: watch::Receiver<Option<CertificateBundle>>,
    ) -> watch::Receiver<Option<SharedPki>> {
        let (publish, shared) = watch::channel(None);
        self.phases.watches.start("shared certificates", |stop| async move {
            while let Some(Ok(())) = stop.run_until_cancelled(bundles.changed()).await {
                publish.send_replace(bundles.borrow_and_update().as_ref().map(shared_pki));
            }
            stop.cancelled().await;
        });
        shared
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
            service: service_ref(&self.config),
            served,
            has_own_files: self.config.certificate.is_some(),
            apiservices: watches.apiservices,
            certificates: watches.bundles,
            events,
            metrics,
            clock: self.clock.clone(),
            confirm: CONFIRM_WINDOW,
        };
        self.phases.serving.start("caBundle check", |stop| check.run(stop));
    }

    fn start_trust(&mut self) -> (watch::Receiver<TrustData>, watch::Receiver<bool>) {
        let (watching, trust, refused) = TrustWatch::new(self.client.clone());
        self.phases.watches.start("trust watch", |stop| watching.run(stop));
        (trust, refused)
    }

    /// Waits for a signal (`None`), or for the end of a task that should run for ever.
    async fn wait_for_end(&mut self) -> anyhow::Result<Option<TaskEnd>> {
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
