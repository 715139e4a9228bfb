//! Builds what the routes need, one state for each kind of route.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRef;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::admin::{AdminState, BoardMetrics, DecisionCounts, Health};
use super::auth::{AuthState, Reviewer, TrustData};
use super::data_read::{FallbackReads, MAX_READS, ReadState, RuleReads, SyncedOnce};
use super::explanations::ExplanationState;
use super::forward::{Forwarder, ForwarderVerifier, InstanceVerifier};
use super::installations::{InstallationSettings, Installations};
use super::ports::{EventSink, FallbackServer, PublishedReader, RuleMetrics, ScaledObjectCalls};
use super::request_metrics::{EvidenceAge, RequestMetrics};
use super::tls::certificates::Certificates;
use super::tls::connection_errors::ConnectionErrors;
use super::tls::{CertificateError, Permits, ServingCertificate, SharedPki};
use crate::engine::{Leadership, Published};
use crate::record::Recent;

/// The server's configuration, and the channels that change it while it runs.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// The certificate for API clients.
    pub serving: ServingCertificate,
    /// The CA and leaf that all instances share; `None` until they are known.
    pub shared_pki: watch::Receiver<Option<SharedPki>>,
    /// The server name by which instances call each other: `wva-instance.<namespace>.internal`.
    pub instance_name: String,
    /// The data of ConfigMap `kube-system/extension-apiserver-authentication`; an empty map trusts no proxy.
    pub trust: watch::Receiver<TrustData>,
    /// True while the right to read this ConfigMap is missing.
    pub trust_refused: watch::Receiver<bool>,
    /// Who holds the lease.
    pub leadership: watch::Receiver<Leadership>,
    /// Every published result.
    pub published: watch::Receiver<Arc<Published>>,
    /// True once every watch has listed once.
    pub synced: watch::Receiver<bool>,
    /// Cancelled first when the process stops: readiness ends, everything else goes on.
    pub stopping: CancellationToken,
    /// How long a read waits for an evaluation.
    pub read_wait: Duration,
    /// The label `controller_instance`, if this installation has one.
    pub controller_instance: Option<String>,
    /// How this and other installations read each other's variants.
    pub installations: InstallationSettings,
}

/// What the server uses of other rooms.
pub struct ServerPorts {
    /// Published results to answer from.
    pub reader: Arc<dyn PublishedReader>,
    /// Authenticates tokens and decides on access.
    pub reviewer: Arc<dyn Reviewer>,
    /// Receives ambiguous reads.
    pub events: Arc<dyn EventSink>,
    /// The last evaluations.
    pub recent: Arc<Recent>,
    /// Metrics that rules make, if there are rules.
    pub rules: Option<Arc<dyn RuleMetrics>>,
    /// ScaledObjects that KEDA's calls make variants; `None` where the external scaler is not served.
    pub calls: Option<Arc<dyn ScaledObjectCalls>>,
    /// Who is asked for metrics that are not served here, if there is somebody.
    pub fallback: Option<Arc<dyn FallbackServer>>,
    /// Metrics of other rooms, which `/metrics` exports with the server's own.
    pub registry: Registry,
}

/// The states of all routes; cheap to clone.
#[derive(Clone)]
pub struct AppState(pub(super) Arc<States>);

pub(super) struct States {
    pub(super) auth: Arc<AuthState>,
    pub(super) reads: Arc<ReadState>,
    admin: Arc<AdminState>,
    explanations: Arc<ExplanationState>,
    health: Arc<Health>,
    pub(super) instances: Arc<InstanceVerifier>,
    pub(super) forwarder: Arc<ForwarderVerifier>,
    installations: Arc<Installations>,
    request_metrics: Arc<RequestMetrics>,
    decision_counts: Arc<DecisionCounts>,
    pub(super) certificates: Arc<Certificates>,
    pub(super) connection_errors: Arc<ConnectionErrors>,
    pub(super) calls: Option<Arc<dyn ScaledObjectCalls>>,
    pub(super) settings: ServerSettings,
}

impl AppState {
    /// Builds the states of all routes, and registers the server's metrics.
    #[must_use]
    pub fn new(settings: ServerSettings, ports: ServerPorts) -> Self {
        let ServerPorts { reader, reviewer, events, recent, rules, calls, fallback, mut registry } = ports;
        let decision_counts = Arc::new(DecisionCounts::default());
        registry.register_collector(Box::new(BoardMetrics {
            reader: reader.clone(),
            leadership: settings.leadership.clone(),
            controller_instance: settings.controller_instance.clone(),
            decision_counts: decision_counts.clone(),
        }));
        let request_metrics = Arc::new(RequestMetrics::register(&mut registry));
        let evidence_age = EvidenceAge::register(&mut registry);
        let connection_errors = Arc::new(ConnectionErrors::register(&mut registry));
        let instance_name = &settings.instance_name;
        let certificates = Arc::new(Certificates::new(instance_name.clone(), settings.serving.clone()));
        let auth = Arc::new(AuthState::new(reviewer));
        auth.apply(settings.trust.borrow().clone());
        let reads = Arc::new(ReadState {
            forwarder: Forwarder::new(instance_name.clone(), settings.shared_pki.clone(), settings.read_wait),
            started: reader.now(),
            reader,
            events,
            leadership: settings.leadership.clone(),
            published: settings.published.clone(),
            synced: SyncedOnce::new(settings.synced.clone()),
            evidence_age,
            read_wait: settings.read_wait,
            controller_instance: settings.controller_instance.clone(),
            permits: Permits::new(MAX_READS),
            rules: rules.map(RuleReads::new),
            fallback: fallback.map(FallbackReads::new),
        });
        let health = Health::new(
            settings.trust.clone(),
            settings.stopping.clone(),
            certificates.clone(),
            reads.clone(),
            settings.installations.forwarder.as_ref().map(|_| settings.trust_refused.clone()),
        );
        let explanations = Arc::new(ExplanationState::new(recent.clone()));
        let admin = Arc::new(AdminState::new(registry, recent, reads.clone()));
        let instances = InstanceVerifier::new(instance_name.clone(), settings.shared_pki.clone());
        let installations = &settings.installations;
        let accepted = installations.forwarder.clone().map(|accepted| (accepted.ca_file, accepted.name));
        let forwarder = ForwarderVerifier::new(accepted, installations.recheck_interval);
        let installations = Installations::new(installations, settings.shared_pki.clone());
        Self(Arc::new(States {
            auth,
            reads,
            admin,
            explanations,
            health: Arc::new(health),
            instances: Arc::new(instances),
            forwarder: Arc::new(forwarder),
            installations: Arc::new(installations),
            request_metrics,
            decision_counts,
            certificates,
            connection_errors,
            calls,
            settings,
        }))
    }

    /// Applies everything that changes while the server runs, for ever: certificates, CAs, trust, decisions.
    pub(crate) async fn follow(&self) {
        let ServerSettings { shared_pki, trust, published, leadership, .. } = &self.0.settings;
        tokio::join!(
            self.0.certificates.follow(shared_pki.clone()),
            self.0.auth.follow(trust.clone()),
            self.0.decision_counts.follow(published.clone(), leadership.clone()),
            self.0.installations.follow(),
            self.0.forwarder.follow(),
        );
    }

    /// Loads the certificates that exist already. Files that flags name must be valid at the start; the shared Secret may
    /// be created or repaired later.
    pub(crate) async fn load_certificates(&self) -> Result<(), CertificateError> {
        let certificates = &self.0.certificates;
        let shared_pki = self.0.settings.shared_pki.borrow().clone();
        match certificates.refresh(shared_pki.as_ref()).await {
            Err(error)
                if self.0.settings.serving != ServingCertificate::Shared && !certificates.is_ready() =>
            {
                Err(error)
            }
            Err(error) => {
                tracing::warn!(%error, "a certificate cannot be used");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}

/// Lets a handler extract one of the states.
macro_rules! impl_from_ref {
    ($($field:ident: $state:ty,)*) => {$(
        impl FromRef<AppState> for Arc<$state> {
            fn from_ref(state: &AppState) -> Self {
                state.0.$field.clone()
            }
        }
    )*};
}

impl_from_ref! {
    auth: AuthState,
    reads: ReadState,
    admin: AdminState,
    explanations: ExplanationState,
    health: Health,
    instances: InstanceVerifier,
    forwarder: ForwarderVerifier,
    installations: Installations,
    request_metrics: RequestMetrics,
}
