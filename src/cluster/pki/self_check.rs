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
use tokio::task::JoinError;
use tokio::time::{Instant, interval, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::apiservice::{ApiServices, NAMES, Settings, ca_bundle, unverified};
use super::bundle::Bundle;
use super::verification::{self, Fault, Refusal};
use crate::cluster::watch::watch_health::said;
use crate::cluster::writers::events::{Events, News};
use crate::engine::Clock;

/// The type of the condition.
pub const CONDITION: &str = "CABundleVerified";
/// The field manager of the condition.
pub const FIELD_MANAGER: &str = "wva-ca-check";
/// How often everything is looked at, changed or not: a certificate ends without a change.
const CHECK_EVERY: Duration = Duration::from_secs(60);
/// A refusal that lasts so long is told, and so is that nobody can look. Longer than the 5 s between two writes of a bundle,
/// so that what is repaired by itself is not. Also the shortest time between two writes of a condition: instances that show
/// different certificates disagree, and each of them is right.
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
        let help = "1 when what this instance shows is accepted by the caBundle of the APIService, 0 when not; absent while \
                    that is not known";
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
    doubt: Option<(Doubt, Instant)>,
    logged: Option<(&'static str, &'static str)>,
    told: Option<(&'static str, &'static str)>,
    written: Option<Instant>,
}

/// What is told only when it lasts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doubt {
    Refused,
    Unjudged,
}

/// What the API server makes of what we show.
enum Verdict {
    Accepted,
    Refused(Refusal),
    /// It verifies nothing.
    Unverified,
    /// Nobody knows: why, as the reason of a condition and in words.
    Unjudged(&'static str, String),
}

impl Verdict {
    const fn doubt(&self) -> Option<Doubt> {
        match self {
            Self::Accepted | Self::Unverified => None,
            Self::Refused(_) => Some(Doubt::Refused),
            Self::Unjudged(..) => Some(Doubt::Unjudged),
        }
    }
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
            self.leave(name, known).await;
        }
        if ours.is_empty() {
            return None;
        }
        let shown = verification::shown(self.parts.address, &settings.server_name()).await;
        let mut again = None;
        for (name, object) in ours {
            let verdict = self.verify(object, &shown).await;
            let due = self.take(name, object, verdict).await;
            again = [again, due].into_iter().flatten().min();
        }
        again
    }

    /// What was said of an APIService is taken back when it does not point to us any more. Once: whoever it points to now may
    /// be another `wva`, and say something itself.
    async fn leave(&mut self, name: &'static str, known: &ApiServices) {
        self.parts.metrics.valid.remove(&Which { apiservice: name });
        if self.past.remove(name).is_none() {
            return;
        }
        let object = known.there().find(|(there, _)| *there == name).map(|(_, object)| object);
        if let Some(object) = object.filter(|object| condition(object).is_some()) {
            self.apply(name, object, json!([])).await;
        }
    }

    async fn verify(
        &self,
        object: &APIService,
        shown: &std::io::Result<Vec<CertificateDer<'static>>>,
    ) -> Verdict {
        if unverified(object) {
            return Verdict::Unverified;
        }
        let chain = match shown {
            Ok(chain) => chain,
            Err(error) => return Verdict::Unjudged("CannotLook", cannot_look(error)),
        };
        let (server, now) = (self.parts.settings.server_name(), self.parts.clock.now());
        let verified = match ca_bundle(object) {
            Some(bundle) => Ok(verification::verify(bundle, chain, &server, now)),
            None => {
                let chain = chain.clone();
                // Reads files.
                tokio::task::spawn_blocking(move || verification::verify_by_system(&chain, &server, now))
                    .await
            }
        };
        judged(verified)
    }

    /// Tells what was found; when to look again.
    async fn take(&mut self, name: &'static str, object: &APIService, verdict: Verdict) -> Option<Instant> {
        let (doubt, confirm) = (verdict.doubt(), self.parts.confirm);
        let (valid, which) = (&self.parts.metrics.valid, Which { apiservice: name });
        let past = self.past.entry(name).or_default();
        let before = past.doubt.filter(|(before, _)| Some(*before) == doubt);
        past.doubt = before.or_else(|| Some((doubt?, Instant::now())));
        let lasts = past.doubt.is_none_or(|(_, since)| since.elapsed() >= confirm);
        match doubt {
            Some(Doubt::Unjudged) if !lasts => {}
            Some(Doubt::Unjudged) => {
                valid.remove(&which);
            }
            None | Some(Doubt::Refused) => {
                valid.get_or_create(&which).set(doubt.is_none().into());
            }
        }
        if let Some((_, since)) = past.doubt.filter(|_| !lasts) {
            return Some(since + confirm);
        }
        let finding = finding(object, verdict, self.parts.own_files);
        self.tell(name, object, &finding);
        let due = self.write(name, object, &finding).await;
        // Who cannot look tries on.
        due.or_else(|| (doubt == Some(Doubt::Unjudged)).then(|| Instant::now() + confirm))
    }

    /// In the log and as an event, once each. An event for which there is no room is told the next time.
    fn tell(&mut self, name: &'static str, object: &APIService, finding: &Finding) {
        let Finding { status, reason, message } = finding;
        let past = self.past.entry(name).or_default();
        let (now, known) = (Some((*status, *reason)), condition(object).map(|known| known.status.as_str()));
        let before = past.logged.map(|(status, _)| status).or(known);
        if past.logged != now {
            match (before, *status) {
                (Some("False" | "Unknown"), "True") => tracing::info!("APIService {name}: {message}"),
                (_, "False" | "Unknown") => tracing::warn!("APIService {name}: {message}"),
                _ => {}
            }
            past.logged = now;
        }
        if *status == "Unknown" {
            return;
        }
        let before = past.told.map(|(status, _)| status).or(known);
        let news = match (before, *status) {
            _ if past.told == now => None,
            (Some("False"), "True") => Some((EventType::Normal, CONDITION)),
            (_, "False") => Some((EventType::Warning, "CABundleNotVerified")),
            _ => None,
        };
        let about = |(kind, reason)| News::about(object, kind, reason, message.clone());
        if news.is_none_or(|news| self.parts.events.tell(about(news))) {
            past.told = now;
        }
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
        let one = json!({
            "type": CONDITION, "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
        });
        self.apply(name, object, json!([one])).await;
        None
    }

    /// Makes `conditions` all that we say of an APIService.
    async fn apply(&self, name: &str, object: &APIService, conditions: serde_json::Value) {
        let body = json!({
            "apiVersion": APIService::api_version(&()),
            "kind": APIService::kind(&()),
            "metadata": { "name": name, "uid": object.metadata.uid },
            "status": { "conditions": conditions },
        });
        let api: Api<APIService> = Api::all(self.parts.client.clone());
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        match timeout(REQUEST_TIMEOUT, api.patch_status(name, &parameters, &Patch::Apply(body))).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!("condition of APIService {name}: {}", said(&error)),
            Err(_) => tracing::debug!("condition of APIService {name}: no answer"),
        }
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

fn cannot_look(error: &std::io::Error) -> String {
    format!(
        "the certificate that is served cannot be looked at ({error}): may this process connect to its own port, and does \
         it have a certificate?"
    )
}

fn judged(verified: Result<Result<(), Refusal>, JoinError>) -> Verdict {
    match verified {
        Ok(Ok(())) => Verdict::Accepted,
        Ok(Err(refusal)) => Verdict::Refused(refusal),
        Err(failure) => {
            let how = if failure.is_panic() { "panicked" } else { "was cut off" };
            Verdict::Unjudged("CheckFailed", format!("the check itself {how}: this is a bug"))
        }
    }
}

fn finding(object: &APIService, verdict: Verdict, own_files: bool) -> Finding {
    match verdict {
        Verdict::Unjudged(reason, message) => Finding { status: "Unknown", reason, message },
        Verdict::Unverified => Finding {
            status: "Unknown",
            reason: "InsecureSkipTLSVerify",
            message: "spec.insecureSkipTLSVerify is set: the API server verifies nothing, and would send HPAs' requests to \
                      whoever answers; remove it"
                .into(),
        },
        Verdict::Accepted => Finding {
            status: "True",
            reason: "Verified",
            message: "spec.caBundle verifies the certificate that is served".into(),
        },
        Verdict::Refused(Refusal { fault, words }) => {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_check_that_dies_is_not_taken_for_an_api_server_that_verifies_nothing() {
        let dying = || -> Result<(), Refusal> { unreachable!("the check has a bug") };
        let verified = tokio::task::spawn_blocking(dying).await;
        let found = finding(&APIService::default(), judged(verified), false);
        assert_eq!((found.status, found.reason), ("Unknown", "CheckFailed"));
        assert_eq!(found.message, "the check itself panicked: this is a bug");
    }
}
