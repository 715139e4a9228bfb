//! Keeps the `caBundle` of the APIServices that point to us at the CAs of our certificate. The objects themselves belong to
//! the chart, and one that points to somebody else's Service is never touched.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::Resource;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::events::EventType;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, interval, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::apiservice::{ApiServices, Settings, ca_bundle, unverified};
use super::bundle::Bundle;
use super::verification;
use crate::cluster::watch::watch_health::said;
use crate::cluster::writers::events::{Events, News};
use crate::engine::Clock;

/// The field manager of the bundles.
const FIELD_MANAGER: &str = "wva-ca";
/// Longest wait for one answer of the API server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a bundle that could not be written is tried again.
const RETRY_EVERY: Duration = Duration::from_secs(10);
/// Shortest time between two writes to one object: instances whose certificates differ for a moment must not answer each
/// other's writes without limit. Longer than such a moment lasts.
const WRITE_EVERY: Duration = Duration::from_secs(5);
/// How long a bundle that differs and yet verifies what we serve is left alone. In a rotation another instance writes the
/// next bundle a moment before we hear of it: what is right now would be undone, and then be put off. Watches of two
/// objects differ by less.
const HEAR_FIRST: Duration = Duration::from_secs(1);

/// Keeps the bundles right. [`CaBundle::run`] it in a task.
pub struct CaBundle {
    api: Api<APIService>,
    settings: Settings,
    certificates: watch::Receiver<Option<Bundle>>,
    known: watch::Receiver<ApiServices>,
    events: Events,
    clock: Arc<dyn Clock>,
    past: BTreeMap<&'static str, Past>,
}

/// What was done to one object before.
#[derive(Default)]
struct Past {
    harmless_since: Option<Instant>,
    not_before: Option<Instant>,
    told: Option<String>,
}

impl CaBundle {
    /// Nothing is written yet.
    #[must_use]
    pub fn new(
        client: kube::Client,
        settings: Settings,
        certificates: watch::Receiver<Option<Bundle>>,
        known: watch::Receiver<ApiServices>,
        events: Events,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let past = BTreeMap::new();
        Self { api: Api::all(client), settings, certificates, known, events, clock, past }
    }

    /// Writes a bundle whenever it or the certificate changes. Until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut retries = interval(RETRY_EVERY);
        let mut put_off: Option<Instant> = None;
        loop {
            let due = put_off.unwrap_or_else(Instant::now);
            tokio::select! {
                () = cancel.cancelled() => return,
                _ = retries.tick() => {}
                () = sleep_until(due), if put_off.is_some() => {}
                Ok(()) = self.certificates.changed() => {}
                Ok(()) = self.known.changed() => {}
            }
            let known = self.known.borrow_and_update().clone();
            let bundle = self.certificates.borrow_and_update().clone();
            put_off = None;
            for (name, object) in known.there() {
                let Some(bundle) = &bundle else { continue };
                let not_before = self.not_before(name, object, bundle);
                if let Some(at) = not_before.filter(|at| *at > Instant::now()) {
                    put_off = Some(put_off.map_or(at, |other| other.min(at)));
                    continue;
                }
                let unused = known.none_is_ours(&self.settings);
                let problem = self.keep(name, object, bundle, unused).await.err();
                let past = self.past.entry(name).or_default();
                if let Some(problem) = problem.as_ref().filter(|problem| past.told.as_ref() != Some(problem))
                {
                    tracing::warn!("APIService {name}: {problem}");
                }
                past.told = problem;
            }
        }
    }

    /// When the object may be written to.
    fn not_before(&mut self, name: &'static str, object: &APIService, ours: &Bundle) -> Option<Instant> {
        let other = ca_bundle(object).filter(|carried| *carried != ours.trust().as_bytes());
        let harmless = other.is_some_and(|carried| self.refusal(carried, ours).is_none());
        let past = self.past.entry(name).or_default();
        past.harmless_since = harmless.then(|| past.harmless_since.unwrap_or_else(Instant::now));
        past.harmless_since.map(|since| since + HEAR_FIRST).max(past.not_before)
    }

    /// Writes the bundle when it is not right; what is wrong, and the next step, when it cannot be. `unused`: no APIService
    /// points to us.
    async fn keep(
        &mut self,
        name: &'static str,
        object: &APIService,
        ours: &Bundle,
        unused: bool,
    ) -> Result<(), String> {
        let Settings { namespace, service } = &self.settings;
        if let Some(owner) = self.settings.other_owner(object) {
            // Metrics of another program beside ours are ordinary.
            return if unused && name == super::apiservice::NAME {
                Err(format!(
                    "belongs to {owner}, not to Service {namespace}/{service}: only one metrics server can have it; \
                     uninstall one of them"
                ))
            } else {
                Ok(())
            };
        }
        let trust = ours.trust();
        let carried = ca_bundle(object);
        if carried == Some(trust.as_bytes()) {
            return Ok(());
        }
        if unverified(object) {
            return Err("has insecureSkipTLSVerify: remove it, so that the CA can be written".into());
        }
        let broken = carried.and_then(|carried| self.refusal(carried, ours));
        self.past.entry(name).or_default().not_before = Some(Instant::now() + WRITE_EVERY);
        self.write(name, object, trust).await?;
        tracing::info!("wrote spec.caBundle of APIService {name}");
        if let Some(words) = broken {
            let note = format!("spec.caBundle did not verify what is served ({words}): written anew");
            self.events.tell(News::about(object, EventType::Normal, "CABundleRepaired", note));
        }
        Ok(())
    }

    async fn write(&self, name: &str, object: &APIService, trust: String) -> Result<(), String> {
        // The uid makes sure that nothing is created when the object has just been deleted.
        let body = json!({
            "apiVersion": APIService::api_version(&()),
            "kind": APIService::kind(&()),
            "metadata": { "name": name, "uid": object.metadata.uid },
            "spec": { "caBundle": ByteString(trust.into_bytes()) },
        });
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        match timeout(REQUEST_TIMEOUT, self.api.patch(name, &parameters, &Patch::Apply(body))).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => {
                Err(format!("{}; check that the service account may patch it by name", said(&error)))
            }
            Err(_) => Err(format!("no answer within {} s; trying again", REQUEST_TIMEOUT.as_secs())),
        }
    }

    /// What the API server says about our leaf by the bundle that the object carries.
    fn refusal(&self, carried: &[u8], ours: &Bundle) -> Option<String> {
        let leaf = CertificateDer::from_pem_slice(ours.cert.as_bytes()).ok()?;
        let verified = verification::verify(carried, &[leaf], &self.settings.server_name(), self.clock.now());
        verified.err().map(|refusal| refusal.words)
    }
}
