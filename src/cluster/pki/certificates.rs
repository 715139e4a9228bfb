//! The certificates that all instances share, in one Secret: the first instance creates it, the others adopt it, and any of
//! them takes the next step when it is due (see `rotation`). Every write is guarded by the Secret's version, so that a step
//! is taken once. Nothing here serves.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use tokio::sync::watch;
use tokio::time::{Instant, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::apiservice::{ApiServices, ServiceRef};
use super::certificate_bundle::{
    Authority, CA_CERT, CA_KEY, CERT, CaLifetime, CertificateBundle, KEY, NEXT_CERT, NEXT_KEY, PkiError,
    ca_lifetime, issue, leaf_is_good, merge_names, split_pem, take_step,
};
use super::rotation::{RotationInputs, RotationPhase, RotationStep, next_step};
use crate::cluster::requests::{LogOnce, MANAGED_BY, RequestError, bounded};
use crate::cluster::timer::sleep_until_due;
use crate::cluster::watch::watch_health::{WatchHealth, watch_object};
use crate::engine::Clock;

/// The Secret's name unless configured.
pub const DEFAULT_SECRET_NAME: &str = "wva-tls";
/// Attempts to write: each one lost to another instance ends with what that one wrote.
const MAX_WRITE_ATTEMPTS: u32 = 4;
/// How often validity is checked; a certificate is renewed weeks before its end.
const CHECK_INTERVAL: Duration = Duration::from_secs(3600);
/// Shortest time between two renewals by one instance: another writer of leaves, or one that wants other names, must not be
/// overwritten without limit. A leaf that lacks a name for a minute is no worse than one that keeps changing.
const MIN_RENEW_INTERVAL: Duration = Duration::from_secs(60);
/// The wait after a Secret could be neither read nor written.
const RETRY_BACKOFF: Duration = Duration::from_secs(2);
/// A new value of this annotation of the Secret, whatever it is, requests a new CA.
pub const ROTATE_ANNOTATION: &str = "wva.llmd.ai/rotate-ca";
/// The last such value that was handled; written by us.
pub const ROTATED_ANNOTATION: &str = "wva.llmd.ai/rotated-ca";
/// The type of a Secret with a certificate and its key, as `kubectl create secret tls` creates it.
const SECRET_TYPE: &str = "kubernetes.io/tls";

/// Which Secret, and for which names.
#[derive(Debug, Clone)]
pub struct CertificateSettings {
    /// Name of the Secret, in the namespace of the Service.
    pub secret: String,
    /// The Service that callers reach us by.
    pub service: ServiceRef,
    /// How long each step of a replacement of the CA is left to reach everybody, by default 300 s. An observer is late by at most
    /// 75 s (65 s until a dead watch is replaced, 10 s of back-off after a failed one). Three such delays may add up: a late instance
    /// writes an older bundle, we see it late, and an API server sees the repair late. Four times 75 s covers them. API servers
    /// themselves take seconds, and verify when they connect.
    pub settle: Duration,
}

impl CertificateSettings {
    /// Every name of the leaf. The first is what the API server verifies; the last is what instances call each other,
    /// whatever their addresses.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let ServiceRef { namespace, name } = &self.service;
        vec![
            self.service.server_name(),
            name.clone(),
            format!("{name}.{namespace}"),
            format!("{name}.{namespace}.svc.cluster.local"),
            instance_name(namespace),
        ]
    }
}

/// The name in every instance's certificate by which instances verify each other.
#[must_use]
pub fn instance_name(namespace: &str) -> String {
    format!("wva-instance.{namespace}.internal")
}

/// A certificate chain for `names` and its key, PEM, by a CA of its own that signs nothing else.
///
/// # Errors
/// When it cannot be issued.
pub fn self_signed(names: &[String], now: Timestamp) -> Result<(String, String), PkiError> {
    let bundle = issue(names, now)?;
    Ok((bundle.cert.clone() + &bundle.trust(), bundle.key))
}

/// There is no certificate to serve with, or it cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The request failed.
    #[error(
        "Secret {name}: {}",
        cause.with_hint(
            "check that the service account may create it, and get, watch and update it by name, or give \
             --tls-cert-file and --tls-private-key-file"
        )
    )]
    Request {
        /// Namespace and name.
        name: String,
        /// What the API server answered.
        cause: RequestError,
    },
    /// The Secret exists and cannot be used.
    #[error("Secret {name}: {cause}; delete it, and it will be created anew")]
    Unusable {
        /// Namespace and name.
        name: String,
        /// What is wrong.
        cause: PkiError,
    },
    /// Another writer keeps changing it.
    #[error("Secret {0} is changed by another writer: check that no second installation uses this name")]
    Conflict(String),
}

/// Keeps the Secret. [`CertificateManager::run`] it in a task.
pub struct CertificateManager {
    api: Api<Secret>,
    settings: CertificateSettings,
    clock: Arc<dyn Clock>,
    /// The APIServices, where they verify these certificates.
    apiservices: Option<watch::Receiver<ApiServices>>,
    /// The last renewal of the leaf by this instance.
    renewed: Option<Renewal>,
    logged: LogOnce,
}

/// A renewal of the leaf.
struct Renewal {
    at: Instant,
    /// The new leaf.
    cert: String,
}

/// The certificates that this instance has seen, and since when.
struct ObservedBundle {
    bundle: CertificateBundle,
    trust: String,
    /// Since when `trust` has been the same.
    since: Instant,
    /// Since when every APIService that points to us has carried all of `trust`.
    carried_since: Option<Instant>,
}

impl ObservedBundle {
    fn new(bundle: CertificateBundle) -> Self {
        let trust = bundle.trust();
        Self { bundle, trust, since: Instant::now(), carried_since: None }
    }
}

impl CertificateManager {
    /// A manager that has not started. `apiservices`: those that must carry a new CA before it signs; `None` when we serve
    /// with another certificate, and only instances verify each other by this one.
    #[must_use]
    pub fn new(
        client: kube::Client,
        settings: CertificateSettings,
        clock: Arc<dyn Clock>,
        apiservices: Option<watch::Receiver<ApiServices>>,
    ) -> Self {
        let api = Api::namespaced(client, &settings.service.namespace);
        Self { api, settings, clock, apiservices, renewed: None, logged: LogOnce::default() }
    }

    fn name(&self) -> String {
        format!("{}/{}", self.settings.service.namespace, self.settings.secret)
    }

    /// Publishes the certificates whenever they change, and takes the steps that are due. Until cancelled.
    pub async fn run(mut self, publish: watch::Sender<Option<CertificateBundle>>, cancel: CancellationToken) {
        let Some(first) = cancel.run_until_cancelled(self.first_bundle()).await else { return };
        publish.send_replace(Some(first.clone()));
        let hint = "check that the service account may list and watch it by name";
        let mut health = WatchHealth::new("the Secret of the serving certificate", hint);
        let mut states = watch_object(self.api.clone(), &self.settings.secret).boxed();
        let mut ticks = interval(CHECK_INTERVAL);
        let mut observed = ObservedBundle::new(first);
        let mut apiservices = self.apiservices.clone();
        loop {
            self.observe_apiservices(&mut observed);
            let due = [self.settled_at(&observed), self.renewal_at(&observed)].into_iter().flatten().min();
            tokio::select! {
                () = cancel.cancelled() => return,
                _ = ticks.tick() => self.update(&mut observed, &publish).await,
                () = sleep_until_due(due) => self.update(&mut observed, &publish).await,
                () = changed(&mut apiservices) => {}
                Some(state) = states.next() => match state {
                    Ok(secret) => {
                        health.report_recovery();
                        // Deleted; changed by another instance; or annotated with a request.
                        if secret.is_none_or(|secret| self.needs_update(&secret, &observed)) {
                            self.update(&mut observed, &publish).await;
                        }
                    }
                    Err(error) => health.report_failure(&error),
                },
            }
        }
    }

    /// Retries until there are certificates: without them nothing can be served.
    async fn first_bundle(&mut self) -> CertificateBundle {
        loop {
            match self.ensure(None).await {
                Ok(bundle) => return bundle,
                Err(error) => tracing::warn!(%error, "there is no certificate to serve with yet; retrying"),
            }
            sleep(RETRY_BACKOFF).await;
        }
    }

    fn observe_apiservices(&self, observed: &mut ObservedBundle) {
        let service = &self.settings.service;
        let carry = self
            .apiservices
            .as_ref()
            .is_none_or(|apiservices| apiservices.borrow().all_carry(service, &observed.trust));
        observed.carried_since = carry.then(|| observed.carried_since.unwrap_or_else(Instant::now));
    }

    /// When the next step of a replacement of the CA may be due.
    fn settled_at(&self, observed: &ObservedBundle) -> Option<Instant> {
        let since = match observed.bundle.phase() {
            RotationPhase::Steady => None,
            RotationPhase::Announcing => observed.carried_since.map(|since| since.max(observed.since)),
            RotationPhase::Retiring => Some(observed.since),
        };
        since.map(|since| since + self.settings.settle)
    }

    /// When a postponed renewal is due: another writer replaced our leaf by one that we would renew.
    fn renewal_at(&self, observed: &ObservedBundle) -> Option<Instant> {
        let renewed = self.renewed.as_ref().filter(|renewed| renewed.cert != observed.bundle.cert)?;
        let is_good = leaf_is_good(&observed.bundle, &self.settings.names(), self.clock.now());
        (!is_good.unwrap_or(true)).then_some(renewed.at + MIN_RENEW_INTERVAL)
    }

    fn needs_update(&self, secret: &Secret, observed: &ObservedBundle) -> bool {
        let differs = self.parse(secret).map_or(true, |bundle| bundle != observed.bundle);
        differs || (requested_rotation(secret).is_some() && observed.bundle.phase() == RotationPhase::Steady)
    }

    async fn update(
        &mut self,
        observed: &mut ObservedBundle,
        publish: &watch::Sender<Option<CertificateBundle>>,
    ) {
        match self.ensure(Some(observed)).await {
            Ok(bundle) => {
                if self.logged.clear() {
                    tracing::info!("the Secret of the serving certificate is kept again");
                }
                if bundle.trust() == observed.trust {
                    observed.bundle = bundle;
                } else {
                    *observed = ObservedBundle::new(bundle);
                }
                publish.send_if_modified(|old| {
                    let changed = old.as_ref() != Some(&observed.bundle);
                    *old = Some(observed.bundle.clone());
                    changed
                });
            }
            Err(error) => {
                if self.logged.is_new(&error.to_string()) {
                    tracing::warn!(%error, "the serving certificate stays as it is; retrying");
                } else {
                    tracing::debug!(%error, "the serving certificate still stays as it is; retrying");
                }
                sleep(RETRY_BACKOFF).await;
            }
        }
    }

    /// The shared certificates: issued when there are none, adopted when there are, with the step that is due.
    async fn ensure(
        &mut self,
        observed: Option<&ObservedBundle>,
    ) -> Result<CertificateBundle, CertificateError> {
        for _ in 0..MAX_WRITE_ATTEMPTS {
            let secret =
                bounded(self.api.get_opt(&self.settings.secret)).await.map_err(|cause| self.failed(cause))?;
            let (changed, replaced) = match secret {
                Some(secret) => {
                    let bundle = self.parse(&secret)?;
                    let step = self.due_step(&bundle, &secret, observed).map_err(|e| self.unusable(e))?;
                    let Some(step) = step else { return Ok(bundle) };
                    (self.take_step(step, &bundle)?, Some((secret, step)))
                }
                None => (self.restore(observed)?, None),
            };
            let renews = replaced.as_ref().is_some_and(|(_, step)| *step == RotationStep::Renew);
            match self.write(&changed, replaced).await {
                Ok(()) => {
                    if renews {
                        self.renewed = Some(Renewal { at: Instant::now(), cert: changed.cert.clone() });
                    }
                    return Ok(changed);
                }
                // Another instance was first: adopt what it wrote.
                Err(CertificateError::Request { cause, .. }) if cause.is_conflict() => {}
                Err(error) => return Err(error),
            }
        }
        Err(CertificateError::Conflict(self.name()))
    }

    fn due_step(
        &self,
        bundle: &CertificateBundle,
        secret: &Secret,
        observed: Option<&ObservedBundle>,
    ) -> Result<Option<RotationStep>, PkiError> {
        let now = self.clock.now();
        let lifetime = ca_lifetime(bundle, now)?;
        // Only times of these very CAs count.
        let observed = observed.filter(|observed| observed.trust == bundle.trust());
        let inputs = RotationInputs {
            has_expired: lifetime == CaLifetime::Expired,
            wants_new_ca: lifetime == CaLifetime::Expiring || requested_rotation(secret).is_some(),
            leaf_is_good: leaf_is_good(bundle, &self.settings.names(), now)? || self.has_just_renewed(),
            seen_for: observed.map_or(Duration::ZERO, |observed| observed.since.elapsed()),
            carried_for: observed.and_then(|observed| observed.carried_since).map(|since| since.elapsed()),
        };
        Ok(next_step(bundle.phase(), &inputs, self.settings.settle))
    }

    fn has_just_renewed(&self) -> bool {
        self.renewed.as_ref().is_some_and(|renewed| renewed.at.elapsed() < MIN_RENEW_INTERVAL)
    }

    fn take_step(
        &self,
        step: RotationStep,
        bundle: &CertificateBundle,
    ) -> Result<CertificateBundle, CertificateError> {
        // While the Service is renamed, instances with the old and the new name share one leaf.
        let names = merge_names(&self.settings.names(), bundle);
        take_step(step, bundle, &names, self.clock.now()).map_err(|error| self.unusable(error))
    }

    /// The certificates after the Secret was deleted. That requests a new CA; those in use are replaced in order as long as
    /// an instance knows them.
    fn restore(&self, observed: Option<&ObservedBundle>) -> Result<CertificateBundle, CertificateError> {
        match observed {
            Some(observed) if observed.bundle.phase() == RotationPhase::Steady => {
                self.take_step(RotationStep::Announce, &observed.bundle)
            }
            Some(observed) => Ok(observed.bundle.clone()),
            None => issue(&self.settings.names(), self.clock.now()).map_err(|error| self.unusable(error)),
        }
    }

    /// Replaces the Secret as it was read, or creates it.
    async fn write(
        &self,
        bundle: &CertificateBundle,
        replaced: Option<(Secret, RotationStep)>,
    ) -> Result<(), CertificateError> {
        let data = data(bundle).map(|(key, pem)| (key.to_owned(), ByteString(pem.into_bytes())));
        let data = Some(data.collect());
        let parameters = PostParams::default();
        let name = &self.settings.secret;
        let (result, what) = match replaced {
            Some((old, step)) => {
                let mut metadata = ObjectMeta { managed_fields: None, ..old.metadata };
                if step == RotationStep::Announce {
                    mark_handled(&mut metadata);
                }
                let secret = Secret { metadata, data, type_: old.type_, ..Secret::default() };
                (bounded(self.api.replace(name, &parameters, &secret)).await, describe(step))
            }
            None => {
                let labels = Some([MANAGED_BY].map(|(key, value)| (key.into(), value.into())).into());
                let metadata = ObjectMeta { name: Some(name.clone()), labels, ..ObjectMeta::default() };
                let secret = Secret { metadata, data, type_: Some(SECRET_TYPE.into()), ..Secret::default() };
                let created = bounded(self.api.create(&parameters, &secret)).await;
                (created, "issued a CA and a serving certificate")
            }
        };
        result.map_err(|cause| self.failed(cause))?;
        tracing::info!(secret = self.name(), "{what}");
        Ok(())
    }

    fn parse(&self, secret: &Secret) -> Result<CertificateBundle, CertificateError> {
        let text = |key: &'static str| {
            let bytes =
                secret.data.as_ref().and_then(|data| data.get(key)).filter(|bytes| !bytes.0.is_empty());
            let text = bytes.and_then(|bytes| String::from_utf8(bytes.0.clone()).ok());
            text.ok_or_else(|| self.unusable(PkiError::Missing(key)))
        };
        let mut trusted = split_pem(&text(CA_CERT)?).into_iter();
        let cert = trusted.next().ok_or_else(|| self.unusable(PkiError::NotACertificate(CA_CERT)))?;
        // Half of it is of no use: without its key a CA is one that no longer signs.
        let next = text(NEXT_CERT).ok().and_then(|cert| split_pem(&cert).into_iter().next());
        let next = next.zip(text(NEXT_KEY).ok()).map(|(cert, key)| Authority { cert, key });
        let old = trusted.filter(|cert| next.as_ref().is_none_or(|next| next.cert != *cert)).collect();
        let signer = Authority { cert, key: text(CA_KEY)? };
        Ok(CertificateBundle { cert: text(CERT)?, key: text(KEY)?, signer, next, old })
    }

    fn unusable(&self, cause: PkiError) -> CertificateError {
        CertificateError::Unusable { name: self.name(), cause }
    }

    fn failed(&self, cause: RequestError) -> CertificateError {
        CertificateError::Request { name: self.name(), cause }
    }
}

fn data(bundle: &CertificateBundle) -> impl Iterator<Item = (&'static str, String)> {
    let shared = [
        (CA_CERT, bundle.trust()),
        (CA_KEY, bundle.signer.key.clone()),
        (CERT, bundle.cert.clone()),
        (KEY, bundle.key.clone()),
    ];
    let next = bundle.next.clone().map(|next| [(NEXT_CERT, next.cert), (NEXT_KEY, next.key)]);
    shared.into_iter().chain(next.into_iter().flatten())
}

/// The value of a request for a new CA that has not been handled.
fn requested_rotation(secret: &Secret) -> Option<&String> {
    let annotations = secret.metadata.annotations.as_ref()?;
    let requested = annotations.get(ROTATE_ANNOTATION).filter(|value| !value.is_empty());
    requested.filter(|requested| annotations.get(ROTATED_ANNOTATION) != Some(requested))
}

fn mark_handled(metadata: &mut ObjectMeta) {
    let Some(annotations) = &mut metadata.annotations else { return };
    if let Some(requested) = annotations.get(ROTATE_ANNOTATION).cloned() {
        annotations.insert(ROTATED_ANNOTATION.into(), requested);
    }
}

const fn describe(step: RotationStep) -> &'static str {
    match step {
        RotationStep::StartOver => "the CA had expired: issued another one",
        RotationStep::Renew => "renewed the serving certificate",
        RotationStep::Announce => "issued a new CA: announcing it",
        RotationStep::Switch => "serving with a certificate of the new CA",
        RotationStep::Retire => "the old CA is no longer trusted",
    }
}

/// Resolves at the next change; never, without APIServices to watch.
async fn changed(apiservices: &mut Option<watch::Receiver<ApiServices>>) {
    let Some(known) = apiservices else { return std::future::pending().await };
    if known.changed().await.is_err() {
        std::future::pending().await
    }
}
