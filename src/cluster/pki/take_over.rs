//! Lets the APIService of external metrics, which another program has installed, point to us, and back. Both are one write, so that there is
//! always somebody who answers. While it points to us the leader alone writes it, and gives way to whoever else keeps writing it.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::runtime::events::EventType;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, interval};
use tokio_util::sync::CancellationToken;

use super::apiservice::{ApiServices, NAME, ServiceRef};
use super::certificate_bundle::CertificateBundle;
use super::give_back::{apply_conditions, write};
use super::self_check::condition;
use super::take_over_history::{History, LOST_GRACE};
use super::taken::{
    Backend, Problem, TAKEN_FROM_ANOTHER, given_back, given_up, given_up_by, half_reset, is_taken,
    newest_before, note_of_another, refusal, remembered, restored, taken, taken_by, what_to_give_back,
};
use crate::cluster::writers::events::{EventRecorder, NewEvent};
use crate::engine::{Clock, Leadership};

/// The type of the condition that says whether it is taken over, and why not.
pub const TAKEN_OVER_CONDITION: &str = "TakenOver";
/// How often the object is looked at, beside every change of it.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Shortest time between two writes of the condition: several installations may disagree.
const MIN_REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// Writes of others in a row after which it is given up: an upgrade of the other program is one, a GitOps tool goes on for ever.
const MAX_FOREIGN_WRITES: u32 = 3;

/// What the last list of the fallback server's metrics has shown: the CAs by which its certificate was verified, PEM, if it was, or why reads
/// cannot be passed on to it.
pub type FallbackState = Result<Option<Vec<u8>>, String>;

/// The Service whose APIService is taken over.
#[derive(Debug, Clone)]
pub struct PreviousOwner {
    /// The Service.
    pub service: ServiceRef,
    /// Its port at which reads are passed on.
    pub port: u16,
    /// The port of our Service that its APIService is to point to; `None` to point back to its own.
    pub take_over: Option<u16>,
    /// Whether reads can be passed on to it.
    pub state: watch::Receiver<FallbackState>,
}

/// Takes the APIService over, or gives it back. [`TakeOver::run`] it in a task.
pub struct TakeOver {
    /// To write it.
    pub client: kube::Client,
    /// Our Service.
    pub service: ServiceRef,
    /// Whose it is. Without one it is only given back.
    pub previous: Option<PreviousOwner>,
    /// What the API server verifies us by.
    pub certificates: watch::Receiver<Option<CertificateBundle>>,
    /// The APIServices.
    pub apiservices: watch::Receiver<ApiServices>,
    /// Only the leader writes.
    pub leadership: watch::Receiver<Leadership>,
    /// For events.
    pub events: EventRecorder,
    /// The times of conditions.
    pub clock: Arc<dyn Clock>,
}

impl TakeOver {
    /// Acts while this instance leads. Until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut retries = interval(RETRY_INTERVAL);
        let mut history = History::new();
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                _ = retries.tick() => {}
                Ok(()) = self.apiservices.changed() => {}
                Ok(()) = self.certificates.changed() => {}
            }
            self.certificates.mark_unchanged();
            let apiservices = self.apiservices.borrow_and_update().clone();
            let external = apiservices.present().find(|(name, _)| *name == NAME);
            let Some((_, object)) = external else { continue };
            history.notice(object, &self.service);
            if !self.leadership.borrow().is_mine() {
                history.unreached_since = None;
            } else if !history.awaits(object) {
                let result = self.act(object, &mut history).await;
                self.report(object, result, &mut history).await;
            }
        }
    }

    /// Whose it is, and the port of ours that it is to point to.
    fn wanted(&self) -> Option<(&PreviousOwner, u16)> {
        self.previous.as_ref().and_then(|previous| Some((previous, previous.take_over?)))
    }

    /// # Errors
    /// Why it is not taken over or given back, and what to do.
    async fn act(&self, object: &APIService, history: &mut History) -> Result<(), Problem> {
        let is_ours = self.service.other_owner(object).is_none();
        let Some((previous, port)) = self.wanted() else {
            let own = self.service.to_string();
            let is_noted = [given_up_by(object), taken_by(object)].contains(&Some(&own));
            return if is_ours && is_taken(object) || is_noted {
                self.give_back(object, note_of_another(object, &own), history).await
            } else {
                Ok(())
            };
        };
        if let Some(problem) = refusal(object, &self.service, &previous.service) {
            if is_ours && is_taken(object) || half_reset(object).is_some() {
                // It may be somebody's note that it is not to be taken over again.
                self.give_back(object, given_up(object), history).await?;
            }
            return Err(problem);
        }
        if is_ours {
            self.keep(object, previous, port, history).await
        } else {
            self.take(object, previous, port, history).await
        }
    }

    async fn take(
        &self,
        object: &APIService,
        previous: &PreviousOwner,
        port: u16,
        history: &mut History,
    ) -> Result<(), Problem> {
        if history.foreign_writes >= MAX_FOREIGN_WRITES {
            return self.give_up(object, &written_by_another(), history).await;
        }
        if let Some(backend) = half_reset(object)
            && history.may_write()
            && self.write(object, &json!({ "spec": backend.spec() }), history).await?
        {
            let service = backend.service();
            tracing::warn!(service, "gave APIService {NAME}, which points there again, the CA of before");
        }
        if Instant::now() < history.not_before {
            let message = format!(
                "somebody has let it point to Service {} again; it is taken over again {} s after that",
                previous.service,
                LOST_GRACE.as_secs()
            );
            return if history.is_lost { Err(Problem::new("ChangedBack", message)) } else { Ok(()) };
        }
        if let Err(cause) = &*previous.state.borrow() {
            let message = format!(
                "it is not taken over while Service {} (--fallback-apiservice) does not answer this program: {cause}",
                previous.service
            );
            return Err(Problem::new("FallbackUnavailable", message));
        }
        let Some(trust) = self.trust() else { return Ok(()) };
        if !history.may_write() {
            return Ok(());
        }
        let patch = taken(object, &self.service, &Backend::ours(&self.service, port, &trust))?;
        if self.write(object, &patch, history).await? {
            history.right_with = Some(trust);
            history.was_ours = true;
            tracing::info!("took over APIService {NAME}: this server answers now");
            self.record(
                object,
                (EventType::Normal, TAKEN_OVER_CONDITION),
                "external metrics are read from this program",
            );
        }
        Ok(())
    }

    /// Keeps it pointing to us, and what it is given back with up to date.
    async fn keep(
        &self,
        object: &APIService,
        previous: &PreviousOwner,
        port: u16,
        history: &mut History,
    ) -> Result<(), Problem> {
        // Without the annotation it is the chart's own.
        let (Some(trust), Some(before)) = (self.trust(), newest_before(object)?) else { return Ok(()) };
        if let Some(message) = history.unreached(object) {
            let cause = format!("the API server does not reach this Service: {message}");
            return self.give_up(object, &cause, history).await;
        }
        let backend = Backend::ours(&self.service, port, &trust);
        if Backend::of(object).as_ref() == Some(&backend) {
            history.right_with = Some(trust);
            if !before.is_of(&previous.service, previous.port) {
                return Err(before.of_another(&previous.service, previous.port));
            }
            let newest = previous.state.borrow().clone().ok().flatten();
            if let Some(renewed) = newest.and_then(|authorities| before.renewed(&authorities))
                && self.write(object, &remembered(&renewed), history).await?
            {
                tracing::info!(
                    "the CA of {} has changed: APIService {NAME} is given back with it",
                    before.service()
                );
            }
            return Ok(());
        }
        if history.right_with.take().as_ref() == Some(&trust) {
            history.count_foreign_write();
        }
        // At each look: the write may fail, as the API server notes meanwhile whether it reaches the Service.
        if history.foreign_writes >= MAX_FOREIGN_WRITES {
            return self.give_up(object, &written_by_another(), history).await;
        }
        if history.may_write() && self.write(object, &restored(&backend, &before), history).await? {
            history.right_with = Some(trust);
            tracing::info!("corrected what others had written to APIService {NAME}, or wrote our new CA");
        }
        Ok(())
    }

    /// Gives it back for good.
    async fn give_up(&self, object: &APIService, cause: &str, history: &mut History) -> Result<(), Problem> {
        let text = format!("{} has given up: {cause}", self.service);
        self.give_back(object, Some(&text), history).await
    }

    /// Lets it point to what it did before, unless somebody else has let it point elsewhere. With `given_up`, it is not taken over again.
    async fn give_back(
        &self,
        object: &APIService,
        given_up: Option<&str>,
        history: &mut History,
    ) -> Result<(), Problem> {
        let before = what_to_give_back(object, self.service.other_owner(object).is_none())?;
        if !self.write(object, &given_back(before.as_ref(), given_up), history).await? {
            return Ok(());
        }
        history.was_ours = false;
        history.right_with = None;
        if let Some(before) = before {
            let service = before.service();
            tracing::info!(service, "gave APIService {NAME} back");
            let note = format!("external metrics are read from {service} again");
            self.record(object, (EventType::Normal, "GivenBack"), &note);
        }
        Ok(())
    }

    /// The CAs of our certificate, PEM.
    fn trust(&self) -> Option<String> {
        self.certificates.borrow().as_ref().map(CertificateBundle::trust)
    }

    /// Writes a merge patch of the object as it is known. False when somebody has changed it since: the next change is looked at.
    async fn write(
        &self,
        object: &APIService,
        patch: &Value,
        history: &mut History,
    ) -> Result<bool, Problem> {
        match write(&self.client, object, patch).await {
            Ok(()) => {
                history.changed = Some((object.metadata.resource_version.clone(), Instant::now()));
                Ok(true)
            }
            Err(error) if error.is_conflict() => Ok(false),
            Err(error) => {
                let hint = "check that the service account may patch it by name (the chart grants it where apiService.enabled is false)";
                let message =
                    if error.code() == Some(403) { error.with_hint(hint) } else { error.to_string() };
                Err(Problem::new("NotWritten", message))
            }
        }
    }

    fn record(&self, object: &APIService, (type_, reason): (EventType, &'static str), note: &str) {
        self.events.record(NewEvent::about(object, type_, reason, note.to_owned()));
    }

    /// Logs a problem once, and says in the condition how things are.
    async fn report(&self, object: &APIService, result: Result<(), Problem>, history: &mut History) {
        let is_ours = self.service.other_owner(object).is_none();
        let own = format!("Service {} ", self.service);
        let wanted = match result {
            Err(Problem { reason, message }) => {
                if history.logged.is_new(&message) {
                    tracing::warn!("APIService {NAME}: {message}");
                    self.record(object, (EventType::Warning, reason), &message);
                }
                Some(match reason {
                    TAKEN_FROM_ANOTHER => ("True", reason, format!("{own}answers here, but {message}")),
                    _ => ("False", reason, format!("{own}does not answer here: {message}")),
                })
            }
            Ok(()) => {
                history.logged.clear();
                let taken = self.wanted().filter(|_| is_ours && is_taken(object));
                taken.map(|(previous, _)| {
                    let service = &previous.service;
                    let message =
                        format!("{own}answers here, and passes on to Service {service} what is not its own");
                    ("True", TAKEN_OVER_CONDITION, message)
                })
            }
        };
        // What another installation says is its own.
        let is_of_another = taken_by(object).is_some_and(|by| by != self.service.to_string());
        if is_of_another || history.reported.is_some_and(|at| at.elapsed() < MIN_REPORT_INTERVAL) {
            return;
        }
        let old = condition(object, TAKEN_OVER_CONDITION);
        let old_message = old.and_then(|old| old.message.as_deref()).unwrap_or_default();
        let conditions = match wanted {
            None if !old_message.starts_with(&own) => return,
            None => json!([]),
            Some((status, reason, message)) => {
                let same_status = old.filter(|old| old.status == status);
                let is_same = same_status.is_some_and(|old| old.reason.as_deref() == Some(reason));
                if is_same && old_message == message {
                    return;
                }
                let since = same_status.and_then(|old| old.last_transition_time.clone());
                let since = since.unwrap_or_else(|| Time(self.clock.now()));
                json!([{
                    "type": TAKEN_OVER_CONDITION, "status": status, "reason": reason, "message": message,
                    "lastTransitionTime": since,
                }])
            }
        };
        history.reported = Some(Instant::now());
        if let Err(error) = apply_conditions(&self.client, object, conditions).await {
            tracing::debug!(%error, "the condition {TAKEN_OVER_CONDITION} of APIService {NAME} was not written");
        }
    }
}

/// Why it is given up to another program.
fn written_by_another() -> String {
    format!(
        "another program has written it {MAX_FOREIGN_WRITES} times in a row, such as cert-manager, a GitOps tool or KEDA's operator; \
         metadata.managedFields names it"
    )
}
