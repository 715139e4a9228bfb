//! Keeps the `caBundle` of the APIServices that point to us equal to the CAs of our certificate. The objects themselves belong
//! to the chart, and one that points to another Service is never changed; `take_over` writes one that was taken over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::events::EventType;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, interval};
use tokio_util::sync::CancellationToken;

use super::apiservice::{self, ApiServices, ServiceRef, apply_patch, ca_bundle, skips_verification};
use super::certificate_bundle::CertificateBundle;
use super::taken::is_taken;
use super::verification::verify;
use crate::cluster::requests::{LogOnce, bounded};
use crate::cluster::timer::sleep_until_due;
use crate::cluster::writers::events::{EventRecorder, NewEvent};
use crate::engine::Clock;

/// The field manager of `caBundle`.
const CA_BUNDLE_FIELD_MANAGER: &str = "wva-ca";
/// How often a write that failed is retried.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Shortest time between two writes to one object: instances whose certificates differ for a moment must not keep overwriting
/// each other. Longer than such a moment lasts.
const MIN_WRITE_INTERVAL: Duration = Duration::from_secs(5);
/// How long a bundle that differs from ours but verifies what we serve is left alone. In a rotation another instance may write
/// the next bundle before we have seen the Secret; overwriting it would undo what is right. The watches of two objects lag by
/// less than this.
const FOREIGN_BUNDLE_GRACE: Duration = Duration::from_secs(1);

/// Writes the `caBundle`s. [`CaBundleWriter::run`] it in a task.
pub struct CaBundleWriter {
    api: Api<APIService>,
    service: ServiceRef,
    certificates: watch::Receiver<Option<CertificateBundle>>,
    apiservices: watch::Receiver<ApiServices>,
    events: EventRecorder,
    clock: Arc<dyn Clock>,
    histories: BTreeMap<&'static str, WriteHistory>,
}

/// What happened to one object before.
#[derive(Default)]
struct WriteHistory {
    /// Since when its bundle has been another one that verifies what we serve.
    foreign_since: Option<Instant>,
    not_before: Option<Instant>,
    logged: LogOnce,
}

impl CaBundleWriter {
    /// A writer that has not started.
    #[must_use]
    pub fn new(
        client: kube::Client,
        service: ServiceRef,
        certificates: watch::Receiver<Option<CertificateBundle>>,
        apiservices: watch::Receiver<ApiServices>,
        events: EventRecorder,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let histories = BTreeMap::new();
        Self { api: Api::all(client), service, certificates, apiservices, events, clock, histories }
    }

    /// Writes a bundle whenever it or the certificate changes. Until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut retries = interval(RETRY_INTERVAL);
        let mut postponed: Option<Instant> = None;
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                _ = retries.tick() => {}
                () = sleep_until_due(postponed) => {}
                Ok(()) = self.certificates.changed() => {}
                Ok(()) = self.apiservices.changed() => {}
            }
            let apiservices = self.apiservices.borrow_and_update().clone();
            let bundle = self.certificates.borrow_and_update().clone();
            postponed = match &bundle {
                Some(bundle) => self.write_all(&apiservices, bundle).await,
                None => None,
            };
        }
    }

    /// Writes every bundle that is wrong; when to do what had to be postponed.
    async fn write_all(&mut self, apiservices: &ApiServices, bundle: &CertificateBundle) -> Option<Instant> {
        let mut postponed: Option<Instant> = None;
        let has_no_apiservice = apiservices.none_points_to(&self.service);
        for (name, object) in apiservices.present() {
            let not_before = self.not_before(name, object, bundle);
            if let Some(at) = not_before.filter(|at| *at > Instant::now()) {
                postponed = Some(postponed.map_or(at, |earliest| earliest.min(at)));
                continue;
            }
            let result = self.ensure(name, object, bundle, has_no_apiservice).await;
            let logged = &mut self.histories.entry(name).or_default().logged;
            match result {
                Ok(()) => drop(logged.clear()),
                Err(problem) if logged.is_new(&problem) => tracing::warn!("APIService {name}: {problem}"),
                Err(_) => {}
            }
        }
        postponed
    }

    /// When the object may be written to.
    fn not_before(
        &mut self,
        name: &'static str,
        object: &APIService,
        ours: &CertificateBundle,
    ) -> Option<Instant> {
        let foreign = ca_bundle(object).filter(|carried| *carried != ours.trust().as_bytes());
        let verifies = foreign.is_some_and(|carried| self.refusal(carried, ours).is_none());
        let history = self.histories.entry(name).or_default();
        history.foreign_since = verifies.then(|| history.foreign_since.unwrap_or_else(Instant::now));
        history.foreign_since.map(|since| since + FOREIGN_BUNDLE_GRACE).max(history.not_before)
    }

    /// Writes the bundle when it is wrong. `has_no_apiservice`: no APIService points to us.
    ///
    /// # Errors
    /// Why it cannot be written, and what to do.
    async fn ensure(
        &mut self,
        name: &'static str,
        object: &APIService,
        ours: &CertificateBundle,
        has_no_apiservice: bool,
    ) -> Result<(), String> {
        if let Some(owner) = self.service.other_owner(object) {
            // External metrics of another program beside custom metrics of ours are ordinary.
            if !has_no_apiservice || name != apiservice::NAME {
                return Ok(());
            }
            let ServiceRef { namespace, name } = &self.service;
            return Err(format!(
                "belongs to {owner}, not to Service {namespace}/{name}: only one metrics server can have it; let this \
                 one take it over (docs/pass-through.md), or uninstall one of them"
            ));
        }
        let trust = ours.trust();
        let carried = ca_bundle(object);
        if carried == Some(trust.as_bytes()) || is_taken(object) {
            return Ok(());
        }
        if skips_verification(object) {
            return Err("insecureSkipTLSVerify is true: remove it, so that the CA can be written".into());
        }
        let refusal = carried.and_then(|carried| self.refusal(carried, ours));
        let not_before = Some(Instant::now() + MIN_WRITE_INTERVAL);
        self.histories.entry(name).or_default().not_before = not_before;
        if !self.write(object, trust).await? {
            self.histories.entry(name).or_default().not_before = None;
            return Ok(());
        }
        tracing::info!("wrote spec.caBundle of APIService {name}");
        if let Some(refusal) = refusal {
            let note =
                format!("repaired spec.caBundle, which did not verify the served certificate ({refusal})");
            self.events.record(NewEvent::about(object, EventType::Normal, "CABundleRepaired", note));
        }
        Ok(())
    }

    /// False when somebody has changed the object since, such as what it points to: the next change is looked at.
    async fn write(&self, object: &APIService, trust: String) -> Result<bool, String> {
        let bundle = json!({ "caBundle": ByteString(trust.into_bytes()) });
        let (name, mut patch) = apply_patch(object, "spec", &bundle);
        if let Patch::Apply(patch) = &mut patch {
            patch["metadata"]["resourceVersion"] = json!(object.metadata.resource_version);
        }
        let parameters = PatchParams::apply(CA_BUNDLE_FIELD_MANAGER).force();
        match bounded(self.api.patch(&name, &parameters, &patch)).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_conflict() => Ok(false),
            Err(error) => Err(error.with_hint("check that the service account may patch it by name")),
        }
    }

    /// Why our leaf does not verify by the bundle that the object carries.
    fn refusal(&self, carried: &[u8], ours: &CertificateBundle) -> Option<String> {
        let leaf = CertificateDer::from_pem_slice(ours.cert.as_bytes()).ok()?;
        let verified = verify(carried, &[leaf], &self.service.server_name(), self.clock.now());
        verified.err().map(|refusal| refusal.message)
    }
}
