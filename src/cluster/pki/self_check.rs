//! Checks that the certificate which this instance serves verifies by the `caBundle` of each APIService that points to us, and
//! reports the result as a metric, a condition and an event. Where only the API server can know (an empty `caBundle`, a
//! certificate that webpki judges differently from Go), its own condition `Available` decides.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::{APIService, APIServiceCondition};
use kube::ResourceExt;
use kube::api::{Api, PatchParams};
use kube::runtime::events::EventType;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, interval};
use tokio_util::sync::CancellationToken;

use super::apiservice::{ApiServices, NAMES, ServiceRef, apply_patch, ca_bundle, skips_verification};
use super::certificate_bundle::CertificateBundle;
use super::verification::{Fault, Refusal, verify};
use crate::cluster::requests::bounded;
use crate::cluster::timer::sleep_until_due;
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

/// The chain that this instance serves, leaf first; empty while it has none.
pub type ServedChain = Arc<dyn Fn() -> Vec<CertificateDer<'static>> + Send + Sync>;

/// The check. [`SelfCheck::run`] it in a task.
pub struct SelfCheck {
    /// To write conditions.
    pub client: kube::Client,
    /// Our Service.
    pub service: ServiceRef,
    /// What is checked.
    pub served: ServedChain,
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

/// The last results for one APIService, and what was reported of them.
#[derive(Default)]
struct CheckHistory {
    validity: Option<Validity>,
    /// In the log.
    logged: Option<StatusReason>,
    /// In an event, or none was needed.
    recorded: Option<StatusReason>,
    /// When the condition was last written.
    written: Option<Instant>,
}

/// The last validity, and since when it has been the same.
#[derive(Clone, Copy)]
struct Validity {
    valid: Option<bool>,
    since: Instant,
}

/// Status and reason of the condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StatusReason {
    status: &'static str,
    reason: &'static str,
}

/// By the name of the APIService.
type Histories = BTreeMap<&'static str, CheckHistory>;

/// The result of a check: the condition, and whether the API server sends us requests by this bundle.
struct CheckResult {
    verdict: StatusReason,
    message: String,
    /// `None` when the check could not be done.
    valid: Option<bool>,
}

impl CheckResult {
    fn verified(message: &str) -> Self {
        let verdict = StatusReason { status: "True", reason: "Verified" };
        Self { verdict, message: message.into(), valid: Some(true) }
    }

    fn unknown(reason: &'static str, message: &str, valid: Option<bool>) -> Self {
        Self { verdict: StatusReason { status: "Unknown", reason }, message: message.into(), valid }
    }
}

impl SelfCheck {
    /// Checks every minute and after every change, until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut ticks = interval(CHECK_INTERVAL);
        let mut due: Option<Instant> = None;
        let mut histories = Histories::new();
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                _ = ticks.tick() => {}
                () = sleep_until_due(due) => {}
                Ok(()) = self.apiservices.changed() => {}
                Ok(()) = self.certificates.changed() => {}
            }
            self.certificates.mark_unchanged();
            let apiservices = self.apiservices.borrow_and_update().clone();
            let checking = self.check_all(&apiservices, &mut histories);
            let Some(next) = cancel.run_until_cancelled(checking).await else { return };
            due = next;
        }
    }

    /// Checks every APIService that points to us; when to check again before the next regular time.
    async fn check_all(&self, apiservices: &ApiServices, histories: &mut Histories) -> Option<Instant> {
        let ours: BTreeMap<_, _> = apiservices.pointing_to(&self.service).collect();
        for name in NAMES.into_iter().filter(|name| !ours.contains_key(name)) {
            self.metrics.valid.remove(&ApiServiceLabel { apiservice: name });
            // Only once: it may point to another installation of wva now, which reports itself.
            if histories.remove(name).is_some() {
                self.retract(name, apiservices).await;
            }
        }
        let mut next: Option<Instant> = None;
        for (name, object) in ours {
            let history = histories.entry(name).or_default();
            let due = self.report(name, object, &self.check(object), history).await;
            next = [next, due].into_iter().flatten().min();
        }
        next
    }

    /// Withdraws what was reported about an APIService that no longer points to us.
    async fn retract(&self, name: &str, apiservices: &ApiServices) {
        let object = apiservices.present().find(|(present, _)| *present == name).map(|(_, object)| object);
        if let Some(object) = object.filter(|object| condition(object, CONDITION).is_some()) {
            self.apply(object, json!([])).await;
        }
    }

    fn check(&self, object: &APIService) -> CheckResult {
        if skips_verification(object) {
            let message = "spec.insecureSkipTLSVerify is true: the API server verifies no certificate, and would send HPAs' \
                           requests to any server that answers; remove it";
            return CheckResult::unknown("InsecureSkipTLSVerify", message, Some(true));
        }
        let chain = (self.served)();
        if chain.is_empty() {
            let message = "this instance has no certificate to serve yet: look into wva's log for why";
            return CheckResult::unknown("CannotLook", message, None);
        }
        let bundle = ca_bundle(object);
        let result = match bundle {
            Some(bundle) => verify(bundle, &chain, &self.service.server_name(), self.clock.now()),
            None => Err(Refusal {
                fault: Fault::NoAuthority,
                message: "spec.caBundle is empty, so the API server verifies by its system's CAs".into(),
            }),
        };
        let Err(Refusal { fault, mut message }) = result else {
            return CheckResult::verified("spec.caBundle verifies the certificate that is served");
        };
        // Its system's CAs, and what Go accepts and webpki does not, only the API server knows.
        let only_api_server_knows = bundle.is_none() || fault == Fault::Unusable;
        if let Some(available) = condition(object, "Available").filter(|_| only_api_server_knows) {
            if available.status == "True" {
                return CheckResult::verified(
                    "the API server accepts the certificate that is served: its condition Available is True",
                );
            }
            if let Some(answer) = &available.message {
                message += &format!(", and it says: {answer}");
            }
        }
        message += &format!("; {}", next_step(fault, self.has_own_files));
        let verdict = StatusReason { status: "False", reason: fault.reason() };
        CheckResult { verdict, message, valid: Some(false) }
    }

    /// Reports a result that lasts; when to check again.
    async fn report(
        &self,
        name: &'static str,
        object: &APIService,
        result: &CheckResult,
        history: &mut CheckHistory,
    ) -> Option<Instant> {
        let same = history.validity.filter(|known| known.valid == result.valid);
        let new = || Validity { valid: result.valid, since: Instant::now() };
        let since = history.validity.insert(same.unwrap_or_else(new)).since;
        let is_confirmed = result.valid == Some(true) || since.elapsed() >= self.confirm;
        let label = ApiServiceLabel { apiservice: name };
        match result.valid {
            Some(valid) => drop(self.metrics.valid.get_or_create(&label).set(valid.into())),
            None if is_confirmed => drop(self.metrics.valid.remove(&label)),
            None => {}
        }
        if !is_confirmed {
            return Some(since + self.confirm);
        }
        self.log_and_record(object, result, history);
        let due = self.write(object, result, history).await;
        due.or_else(|| result.valid.is_none().then(|| Instant::now() + self.confirm))
    }

    /// Logs a result and records an event, once each. An event for which there is no room is recorded the next time.
    fn log_and_record(&self, object: &APIService, result: &CheckResult, history: &mut CheckHistory) {
        let CheckResult { verdict, message, .. } = result;
        let written = condition(object, CONDITION).map(|condition| condition.status.as_str());
        let before = |reported: Option<StatusReason>| reported.map(|verdict| verdict.status).or(written);
        if history.logged != Some(*verdict) {
            let name = object.name_any();
            match (before(history.logged), verdict.status) {
                (_, "False" | "Unknown") => tracing::warn!("APIService {name}: {message}"),
                (Some("False" | "Unknown"), _) => tracing::info!("APIService {name}: {message}"),
                _ => {}
            }
            history.logged = Some(*verdict);
        }
        if verdict.status == "Unknown" || history.recorded == Some(*verdict) {
            return;
        }
        let record =
            |type_, reason| self.events.record(NewEvent::about(object, type_, reason, message.clone()));
        let is_recorded = match (before(history.recorded), verdict.status) {
            (_, "False") => record(EventType::Warning, "CABundleNotVerified"),
            (Some("False"), _) => record(EventType::Normal, CONDITION),
            _ => true,
        };
        if is_recorded {
            history.recorded = Some(*verdict);
        }
    }

    /// Writes the condition when it differs; when to retry.
    async fn write(
        &self,
        object: &APIService,
        result: &CheckResult,
        history: &mut CheckHistory,
    ) -> Option<Instant> {
        let CheckResult { verdict: StatusReason { status, reason }, message, .. } = result;
        let old = condition(object, CONDITION);
        let is_same = |old: &APIServiceCondition| {
            old.status == *status
                && old.reason.as_deref() == Some(*reason)
                && old.message.as_ref() == Some(message)
        };
        if old.is_some_and(is_same) {
            return None;
        }
        let next = history.written.map(|at| at + self.confirm).filter(|next| *next > Instant::now());
        if next.is_some() {
            return next;
        }
        history.written = Some(Instant::now());
        let same_status = old.filter(|old| old.status == *status);
        let since = same_status.and_then(|old| old.last_transition_time.clone());
        let since = since.unwrap_or_else(|| Time(self.clock.now()));
        let condition = json!({
            "type": CONDITION, "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
        });
        self.apply(object, json!([condition])).await;
        None
    }

    /// Makes `conditions` the only ones of ours on an APIService.
    async fn apply(&self, object: &APIService, conditions: Value) {
        let api: Api<APIService> = Api::all(self.client.clone());
        let (name, patch) = apply_patch(object, "status", &json!({ "conditions": conditions }));
        let parameters = PatchParams::apply(CHECK_FIELD_MANAGER).force();
        if let Err(error) = bounded(api.patch_status(&name, &parameters, &patch)).await {
            tracing::debug!(%error, "the condition {CONDITION} of APIService {name} was not written");
        }
    }
}

/// A condition of an APIService.
pub(crate) fn condition<'a>(object: &'a APIService, type_: &str) -> Option<&'a APIServiceCondition> {
    let conditions = object.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == type_)
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
