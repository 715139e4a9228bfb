//! Tells when the API server does not accept what we serve with: for each APIService that points to us, its `caBundle` as
//! it is and the certificates as they are shown, verified as the API server does it. A metric, a condition and an event.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::{APIService, APIServiceCondition};
use kube::Resource;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::events::EventType;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use rustls::pki_types::CertificateDer;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, interval, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::apiservice::{ApiServices, NAMES, Settings, ca_bundle, unverified};
use super::ca_check::{self, Fault, Refusal};
use super::events::{Events, News};
use super::pki::Bundle;
use super::trouble::said;
use crate::engine::Clock;

/// The type of the condition.
pub const CONDITION: &str = "CABundleVerified";
/// The field manager of the condition.
pub const FIELD_MANAGER: &str = "wva-ca-check";
/// How often everything is looked at, changed or not: a certificate ends without a change.
const CHECK_EVERY: Duration = Duration::from_secs(60);
/// A refusal that lasts so long is told. Longer than the 5 s between two writes of a bundle, so that what is repaired by
/// itself is not. Also the shortest time between two writes of a condition: instances that show different certificates
/// disagree, and each of them is right.
pub const CONFIRM: Duration = Duration::from_secs(10);
/// Longest wait for one answer of the API server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Which {
    apiservice: &'static str,
}

/// `wva_apiservice_ca_bundle_valid`.
#[derive(Debug, Clone, Default)]
pub struct CaMetrics {
    valid: Family<Which, Gauge>,
}

impl CaMetrics {
    /// A fresh family, registered in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "1 when what this instance shows is accepted by the caBundle of the APIService, else 0";
        registry.register("wva_apiservice_ca_bundle_valid", help, metrics.valid.clone());
        metrics
    }
}

/// What is checked, and how it is told.
pub struct Parts {
    /// To write conditions.
    pub client: kube::Client,
    /// Which APIServices are ours.
    pub settings: Settings,
    /// The address that this instance listens on.
    pub address: SocketAddr,
    /// True when the user brought the certificate: then the bundle is the user's too.
    pub own_files: bool,
    /// What is watched.
    pub known: watch::Receiver<ApiServices>,
    /// A change of the shared certificates is a reason to look.
    pub certificates: watch::Receiver<Option<Bundle>>,
    /// For events.
    pub events: Events,
    /// For the metric.
    pub metrics: CaMetrics,
    /// By which validity is judged.
    pub clock: Arc<dyn Clock>,
    /// How long a refusal must last: [`CONFIRM`].
    pub confirm: Duration,
}

/// The check. [`SelfCheck::run`] it in a task.
pub struct SelfCheck {
    parts: Parts,
    past: BTreeMap<&'static str, Past>,
}

/// What was found and done before.
#[derive(Default)]
struct Past {
    refused_since: Option<Instant>,
    told: Option<(&'static str, &'static str)>,
    written: Option<Instant>,
}

/// What a condition says.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    status: &'static str,
    reason: &'static str,
    message: String,
}

impl SelfCheck {
    /// Nothing is checked yet.
    #[must_use]
    pub const fn new(parts: Parts) -> Self {
        Self { parts, past: BTreeMap::new() }
    }

    /// Checks every minute and at every change, until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut checks = interval(CHECK_EVERY);
        let mut again: Option<Instant> = None;
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                _ = checks.tick() => {}
                () = sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => {}
                Ok(()) = self.parts.known.changed() => {}
                Ok(()) = self.parts.certificates.changed() => {}
            }
            self.parts.certificates.mark_unchanged();
            let known = self.parts.known.borrow_and_update().clone();
            let Some(due) = cancel.run_until_cancelled(self.check(&known)).await else { return };
            again = due;
        }
    }

    /// Checks all; when to look again before the next regular time.
    async fn check(&mut self, known: &ApiServices) -> Option<Instant> {
        let settings = self.parts.settings.clone();
        let ours: Vec<_> = known.ours(&settings).collect();
        for name in NAMES.into_iter().filter(|name| ours.iter().all(|(ours, _)| ours != name)) {
            self.parts.metrics.valid.remove(&Which { apiservice: name });
            self.past.remove(name);
        }
        if ours.is_empty() {
            return None;
        }
        let server = settings.server_name();
        let chain = match ca_check::shown(self.parts.address, &server).await {
            Ok(chain) => chain,
            Err(error) => {
                tracing::debug!(%error, "cannot look at our own certificate now");
                return Some(Instant::now() + self.parts.confirm);
            }
        };
        let mut again = None;
        for (name, object) in ours {
            let verified = self.verify(object, &chain).await;
            let due = self.take(name, object, verified).await;
            again = [again, due].into_iter().flatten().min();
        }
        again
    }

    /// `None` when the API server verifies nothing.
    async fn verify(
        &self,
        object: &APIService,
        chain: &[CertificateDer<'static>],
    ) -> Option<Result<(), Refusal>> {
        if unverified(object) {
            return None;
        }
        let (server, now) = (self.parts.settings.server_name(), self.parts.clock.now());
        let Some(bundle) = ca_bundle(object) else {
            let chain = chain.to_vec();
            // Reads files.
            let verified =
                tokio::task::spawn_blocking(move || ca_check::verify_by_system(&chain, &server, now));
            return verified.await.ok();
        };
        Some(ca_check::verify(bundle, chain, &server, now))
    }

    /// Tells what was found; when to look again.
    async fn take(
        &mut self,
        name: &'static str,
        object: &APIService,
        verified: Option<Result<(), Refusal>>,
    ) -> Option<Instant> {
        let accepted = !matches!(verified, Some(Err(_)));
        self.parts.metrics.valid.get_or_create(&Which { apiservice: name }).set(accepted.into());
        let past = self.past.entry(name).or_default();
        if accepted {
            past.refused_since = None;
        } else {
            let since = *past.refused_since.get_or_insert_with(Instant::now);
            if since.elapsed() < self.parts.confirm {
                return Some(since + self.parts.confirm);
            }
        }
        let finding = finding(object, verified, self.parts.own_files);
        self.tell(name, object, &finding);
        self.write(name, object, &finding).await
    }

    /// In the log and as an event, once.
    fn tell(&mut self, name: &'static str, object: &APIService, finding: &Finding) {
        let Finding { status, reason, message } = finding;
        let past = self.past.entry(name).or_default();
        let before = past.told.map(|(status, _)| status);
        let before = before.or_else(|| condition(object).map(|condition| condition.status.as_str()));
        if past.told == Some((status, reason)) {
            return;
        }
        match (before, *status) {
            (Some("False"), "True") => {
                tracing::info!("APIService {name}: {message}");
                self.parts.events.tell(News::about(object, EventType::Normal, CONDITION, message.clone()));
            }
            (_, "False") => {
                tracing::warn!("APIService {name}: {message}");
                let news = News::about(object, EventType::Warning, "CABundleNotVerified", message.clone());
                self.parts.events.tell(news);
            }
            (_, "Unknown") => tracing::warn!("APIService {name}: {message}"),
            _ => {}
        }
        past.told = Some((status, reason));
    }

    /// Writes the condition when it says something else; when to try again.
    async fn write(&mut self, name: &'static str, object: &APIService, finding: &Finding) -> Option<Instant> {
        let Finding { status, reason, message } = finding;
        let known = condition(object);
        let says = |known: &&APIServiceCondition| {
            known.status == *status
                && known.reason.as_deref() == Some(*reason)
                && known.message.as_ref() == Some(message)
        };
        if known.is_some_and(|known| says(&known)) {
            return None;
        }
        let past = self.past.entry(name).or_default();
        let next = past.written.map(|at| at + self.parts.confirm).filter(|next| *next > Instant::now());
        if next.is_some() {
            return next;
        }
        past.written = Some(Instant::now());
        let since = known
            .filter(|known| known.status == *status)
            .and_then(|known| known.last_transition_time.clone());
        let since = json!(since).as_str().map_or_else(|| self.now(), str::to_owned);
        let body = json!({
            "apiVersion": APIService::api_version(&()),
            "kind": APIService::kind(&()),
            "metadata": { "name": name, "uid": object.metadata.uid },
            "status": { "conditions": [{
                "type": CONDITION, "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
            }] },
        });
        let api: Api<APIService> = Api::all(self.parts.client.clone());
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        match timeout(REQUEST_TIMEOUT, api.patch_status(name, &parameters, &Patch::Apply(body))).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!("condition of APIService {name}: {}", said(&error)),
            Err(_) => tracing::debug!("condition of APIService {name}: no answer"),
        }
        None
    }

    /// In whole seconds, as the API has it.
    fn now(&self) -> String {
        self.parts.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }
}

fn condition(object: &APIService) -> Option<&APIServiceCondition> {
    let conditions = object.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == CONDITION)
}

fn finding(object: &APIService, verified: Option<Result<(), Refusal>>, own_files: bool) -> Finding {
    match verified {
        None => Finding {
            status: "Unknown",
            reason: "InsecureSkipTLSVerify",
            message: "spec.insecureSkipTLSVerify is set: the API server verifies nothing, and would send HPAs' requests to \
                      whoever answers; remove it"
                .into(),
        },
        Some(Ok(())) => Finding {
            status: "True",
            reason: "Verified",
            message: "spec.caBundle verifies the certificate that is served".into(),
        },
        Some(Err(Refusal { fault, words })) => {
            let by = if ca_bundle(object).is_none() {
                "spec.caBundle is empty, so the API server verifies by the authorities of its machine; by those of ours: "
            } else {
                ""
            };
            let next = next_step(fault, own_files);
            Finding { status: "False", reason: fault.reason(), message: format!("{by}{words}; {next}") }
        }
    }
}

fn next_step(fault: Fault, own_files: bool) -> &'static str {
    match (fault, own_files) {
        (Fault::NoAuthority | Fault::UnknownAuthority, true) => {
            "put the CA of the certificate in --cert-dir into spec.caBundle (with cert-manager: annotation \
             cert-manager.io/inject-ca-from; look into the log of its cainjector)"
        }
        (_, true) => {
            "have the certificate in --cert-dir made anew, for the Service's name (with cert-manager: look at its Certificate)"
        }
        (Fault::NoAuthority | Fault::UnknownAuthority, false) => {
            "wva writes it anew within 10 s; if this stays, look into its log: may its service account patch the APIService?"
        }
        (_, false) => "look into wva's log why the certificate in its Secret is not renewed",
    }
}
