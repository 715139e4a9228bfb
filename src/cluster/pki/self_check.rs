//! Checks that the certificate which this instance serves verifies by the `caBundle` of each APIService that points to us, and
//! reports the result as a metric, a condition and an event. Where only the API server can know (an empty `caBundle`, a
//! certificate that webpki judges differently from Go), its own condition `Available` decides.

use std::collections::BTreeMap;
use std::io;
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
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, interval, sleep_until};
use tokio_util::sync::CancellationToken;

use super::apiservice::{ApiServices, NAMES, ServiceRef, ca_bundle, skips_verification};
use super::certificate_bundle::CertificateBundle;
use super::verification::{Fault, served_chain, verify};
use crate::cluster::requests::bounded;
use crate::cluster::writers::events::{EventRecorder, NewEvent};
use crate::engine::Clock;

/// The type of the condition.
pub const CONDITION: &str = "CABundleVerified";
/// The field manager of the condition.
const CHECK_FIELD_MANAGER: &str = "wva-ca-check";
/// How often everything is checked even without a change: a certificate expires without one.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// How long a bad result must last before it is reported: longer than the 5 s between two writes of a `caBundle`, so that
/// what is repaired at once is not reported. Also the shortest time between two writes of a condition: instances that serve
/// different certificates disagree, and each is right about itself.
pub const CONFIRM_WINDOW: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ApiServiceLabel {
    apiservice: &'static str,
}

/// `wva_apiservice_ca_bundle_valid`.
#[derive(Debug, Clone, Default)]
pub struct CaBundleMetrics {
    valid: Family<ApiServiceLabel, Gauge>,
}

impl CaBundleMetrics {
    /// A new family, registered in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "1 if the certificate that this instance serves verifies by the caBundle of the APIService, 0 if not; absent \
                    while that is unknown";
        registry.register("wva_apiservice_ca_bundle_valid", help, metrics.valid.clone());
        metrics
    }
}

/// What is checked, and how it is reported.
pub struct SelfCheckParts {
    /// To write conditions.
    pub client: kube::Client,
    /// Our Service.
    pub service: ServiceRef,
    /// The address that this instance listens on.
    pub address: SocketAddr,
    /// True when the user provides the certificate, and so the `caBundle` too.
    pub has_own_files: bool,
    /// The APIServices.
    pub apiservices: watch::Receiver<ApiServices>,
    /// The shared certificates, whose change is a reason to check.
    pub certificates: watch::Receiver<Option<CertificateBundle>>,
    /// For events.
    pub events: EventRecorder,
    /// For the metric.
    pub metrics: CaBundleMetrics,
    /// Judges validity.
    pub clock: Arc<dyn Clock>,
    /// How long a bad result must last: [`CONFIRM_WINDOW`].
    pub confirm: Duration,
}

/// The check. [`SelfCheck::run`] it in a task.
pub struct SelfCheck {
    parts: SelfCheckParts,
    histories: BTreeMap<&'static str, CheckHistory>,
}

/// The last results for one APIService, and what was reported of them.
#[derive(Default)]
struct CheckHistory {
    /// The last validity, and since when it has been the same.
    valid: Option<(Option<bool>, Instant)>,
    /// Status and reason in the log.
    logged: Option<(&'static str, &'static str)>,
    /// Status and reason in an event, or that none was needed.
    recorded: Option<(&'static str, &'static str)>,
    /// When the condition was last written.
    written: Option<Instant>,
}

/// The result of a check: the condition, and whether the API server sends us requests by this bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CheckResult {
    status: &'static str,
    reason: &'static str,
    message: String,
    /// `None` when the check could not be done.
    valid: Option<bool>,
}

impl SelfCheck {
    /// A check that has not started.
    #[must_use]
    pub const fn new(parts: SelfCheckParts) -> Self {
        Self { parts, histories: BTreeMap::new() }
    }

    /// Checks every minute and after every change, until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut ticks = interval(CHECK_INTERVAL);
        let mut due: Option<Instant> = None;
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                _ = ticks.tick() => {}
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
                Ok(()) = self.parts.apiservices.changed() => {}
                Ok(()) = self.parts.certificates.changed() => {}
            }
            self.parts.certificates.mark_unchanged();
            let apiservices = self.parts.apiservices.borrow_and_update().clone();
            let Some(next) = cancel.run_until_cancelled(self.check_all(&apiservices)).await else { return };
            due = next;
        }
    }

    /// Checks every APIService that points to us; when to check again before the next regular time.
    async fn check_all(&mut self, apiservices: &ApiServices) -> Option<Instant> {
        let service = self.parts.service.clone();
        let ours: Vec<_> = apiservices.ours(&service).collect();
        for name in NAMES.into_iter().filter(|name| ours.iter().all(|(ours, _)| ours != name)) {
            self.retract(name, apiservices).await;
        }
        if ours.is_empty() {
            return None;
        }
        let chain = served_chain(self.parts.address, &service.server_name()).await;
        let mut next: Option<Instant> = None;
        for (name, object) in ours {
            let result = self.check(object, &chain);
            let due = self.report(name, object, &result).await;
            next = [next, due].into_iter().flatten().min();
        }
        next
    }

    /// Withdraws what was reported about an APIService that no longer points to us. Only once: it may point to another
    /// installation of `wva` now, which reports itself.
    async fn retract(&mut self, name: &'static str, apiservices: &ApiServices) {
        self.parts.metrics.valid.remove(&ApiServiceLabel { apiservice: name });
        if self.histories.remove(name).is_none() {
            return;
        }
        let object = apiservices.present().find(|(present, _)| *present == name).map(|(_, object)| object);
        if let Some(object) = object.filter(|object| condition(object, CONDITION).is_some()) {
            self.apply(name, object, json!([])).await;
        }
    }

    fn check(&self, object: &APIService, chain: &io::Result<Vec<CertificateDer<'static>>>) -> CheckResult {
        if skips_verification(object) {
            return CheckResult {
                status: "Unknown",
                reason: "InsecureSkipTLSVerify",
                message: "spec.insecureSkipTLSVerify is true: the API server verifies no certificate, and would send HPAs' \
                          requests to whoever answers; remove it"
                    .into(),
                valid: Some(true),
            };
        }
        let chain = match chain {
            Ok(chain) => chain,
            Err(error) => {
                return CheckResult {
                    status: "Unknown",
                    reason: "CannotLook",
                    message: format!(
                        "the served certificate cannot be looked at ({error}): check that this process may connect to its own \
                         port and has a certificate"
                    ),
                    valid: None,
                };
            }
        };
        let server_name = self.parts.service.server_name();
        let (fault, message) = match ca_bundle(object) {
            None => (
                Fault::NoAuthority,
                "spec.caBundle is empty, so the API server verifies by its system's CAs".into(),
            ),
            Some(bundle) => match verify(bundle, chain, &server_name, self.parts.clock.now()) {
                Ok(()) => return verified("spec.caBundle verifies the certificate that is served"),
                Err(refusal) => (refusal.fault, refusal.message),
            },
        };
        // Its system's CAs, and what Go accepts and webpki does not, only the API server knows.
        let available = condition(object, "Available");
        let only_api_server_knows = ca_bundle(object).is_none() || fault == Fault::Unusable;
        if only_api_server_knows && available.is_some_and(|available| available.status == "True") {
            return verified(
                "the API server accepts the certificate that is served: its condition Available is True",
            );
        }
        let answer =
            available.filter(|_| only_api_server_knows).and_then(|available| available.message.as_ref());
        let answer = answer.map_or_else(String::new, |answer| format!(", and it says: {answer}"));
        let next = next_step(fault, self.parts.has_own_files);
        let message = format!("{message}{answer}; {next}");
        CheckResult { status: "False", reason: fault.reason(), message, valid: Some(false) }
    }

    /// Reports a result that lasts; when to check again.
    async fn report(
        &mut self,
        name: &'static str,
        object: &APIService,
        result: &CheckResult,
    ) -> Option<Instant> {
        let confirm = self.parts.confirm;
        let history = self.histories.entry(name).or_default();
        let same = history.valid.filter(|(valid, _)| *valid == result.valid);
        let (_, since) = *history.valid.insert(same.unwrap_or_else(|| (result.valid, Instant::now())));
        let is_confirmed = result.valid == Some(true) || since.elapsed() >= confirm;
        let gauge = &self.parts.metrics.valid;
        let label = ApiServiceLabel { apiservice: name };
        match result.valid {
            Some(valid) => drop(gauge.get_or_create(&label).set(valid.into())),
            None if is_confirmed => drop(gauge.remove(&label)),
            None => {}
        }
        if !is_confirmed {
            return Some(since + confirm);
        }
        self.log_and_record(name, object, result);
        let due = self.write(name, object, result).await;
        due.or_else(|| result.valid.is_none().then(|| Instant::now() + confirm))
    }

    /// Logs a result and records an event, once each. An event for which there is no room is recorded the next time.
    fn log_and_record(&mut self, name: &'static str, object: &APIService, result: &CheckResult) {
        let CheckResult { status, reason, message, .. } = result;
        let history = self.histories.entry(name).or_default();
        let now = Some((*status, *reason));
        let written = condition(object, CONDITION).map(|condition| condition.status.as_str());
        if history.logged != now {
            let before = history.logged.map(|(status, _)| status).or(written);
            match (before, *status) {
                (_, "False" | "Unknown") => tracing::warn!("APIService {name}: {message}"),
                (Some("False" | "Unknown"), _) => tracing::info!("APIService {name}: {message}"),
                _ => {}
            }
            history.logged = now;
        }
        if *status == "Unknown" || history.recorded == now {
            return;
        }
        let before = history.recorded.map(|(status, _)| status).or(written);
        let event = match (before, *status) {
            (_, "False") => Some((EventType::Warning, "CABundleNotVerified")),
            (Some("False"), _) => Some((EventType::Normal, CONDITION)),
            _ => None,
        };
        let record = |(type_, reason)| {
            self.parts.events.record(NewEvent::about(object, type_, reason, message.clone()))
        };
        if event.is_none_or(record) {
            history.recorded = now;
        }
    }

    /// Writes the condition when it differs; when to retry.
    async fn write(
        &mut self,
        name: &'static str,
        object: &APIService,
        result: &CheckResult,
    ) -> Option<Instant> {
        let CheckResult { status, reason, message, .. } = result;
        let old = condition(object, CONDITION);
        let is_same = |old: &APIServiceCondition| {
            old.status == *status
                && old.reason.as_deref() == Some(*reason)
                && old.message.as_ref() == Some(message)
        };
        if old.is_some_and(is_same) {
            return None;
        }
        let history = self.histories.entry(name).or_default();
        let next = history.written.map(|at| at + self.parts.confirm).filter(|next| *next > Instant::now());
        if next.is_some() {
            return next;
        }
        history.written = Some(Instant::now());
        // Whole seconds, as the API has them.
        let now = || json!(self.parts.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        let same_status = old.filter(|old| old.status == *status);
        let since = same_status.and_then(|old| old.last_transition_time.as_ref());
        let since = since.map_or_else(now, |since| json!(since));
        let condition = json!({
            "type": CONDITION, "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
        });
        self.apply(name, object, json!([condition])).await;
        None
    }

    /// Makes `conditions` the only ones of ours on an APIService.
    async fn apply(&self, name: &str, object: &APIService, conditions: Value) {
        let body = json!({
            "apiVersion": APIService::api_version(&()),
            "kind": APIService::kind(&()),
            "metadata": { "name": name, "uid": object.metadata.uid },
            "status": { "conditions": conditions },
        });
        let api: Api<APIService> = Api::all(self.parts.client.clone());
        let parameters = PatchParams::apply(CHECK_FIELD_MANAGER).force();
        if let Err(error) = bounded(api.patch_status(name, &parameters, &Patch::Apply(body))).await {
            tracing::debug!(%error, "the condition {CONDITION} of APIService {name} was not written");
        }
    }
}

fn condition<'a>(object: &'a APIService, type_: &str) -> Option<&'a APIServiceCondition> {
    let conditions = object.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == type_)
}

fn verified(message: &str) -> CheckResult {
    CheckResult { status: "True", reason: "Verified", message: message.into(), valid: Some(true) }
}

fn next_step(fault: Fault, has_own_files: bool) -> &'static str {
    match (fault, has_own_files) {
        (Fault::NoAuthority | Fault::UnknownAuthority, true) => {
            "put the CA of the certificate in --cert-dir into spec.caBundle (with cert-manager: set the annotation \
             cert-manager.io/inject-ca-from, and look into the log of its cainjector)"
        }
        (_, true) => {
            "have the certificate in --cert-dir issued again for the Service's name (with cert-manager: look at its Certificate)"
        }
        (Fault::NoAuthority | Fault::UnknownAuthority, false) => {
            "wva repairs it within 10 s; if it does not, look into its log: its service account may lack the right to patch the \
             APIService"
        }
        (_, false) => "look into wva's log for why the certificate in its Secret is not renewed",
    }
}
