//! The certificates that all instances share, in one Secret: the first instance makes it, the others adopt it, and any of
//! them takes the next step when it is due (see `rotation`). Every write is guarded by the Secret's version, so that a step
//! is taken once. Nothing here serves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use tokio::sync::watch;
use tokio::time::{Instant, interval, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::apiservice::{self, ApiServices};
use super::bundle::{self, Authority, Bundle, Lasts, PkiError};
use super::rotation::{Facts, Place, Step, due};
use crate::cluster::watch::watch_health::{Told, Trouble, said, watch_one};
use crate::engine::Clock;

/// The Secret's name unless configured.
pub const DEFAULT_NAME: &str = "wva-tls";
/// Longest wait for one answer of the API server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Tries to write: each one lost to another instance ends with what that one wrote.
const TRIES: u32 = 4;
/// How often the ends of validity are looked at; a certificate is renewed weeks before.
const LOOK_EVERY: Duration = Duration::from_secs(3600);
/// Shortest time between two renewals by one instance: whoever wants other names than we do, or writes another leaf, is not
/// answered without limit. A leaf with a name too few for a minute is no worse than one that changes without end.
const RENEW_EVERY: Duration = Duration::from_secs(60);
/// How long to wait before asking again for a Secret that could be neither read nor made at the start.
const RETRY: Duration = Duration::from_secs(2);
/// The usual settling time: how long each step of a change of the CA is left to reach everybody. Whoever looks is late by
/// at most 75 s (a watch that went silent is made anew after 65 s, the longest wait after a failed one is 10 s). Three such
/// may add up (a late instance writes an older bundle, we are late to see it, an API server is late to see it put right),
/// so: four times that. API servers themselves take seconds, and verify when they connect.
pub const SETTLE: Duration = Duration::from_secs(300);
/// Give this annotation of the Secret a new value, any, and the CA is replaced.
pub const ROTATE_ANNOTATION: &str = "wva.llmd.ai/rotate-ca";
/// The last such value that was heeded; written by us.
pub const ROTATED_ANNOTATION: &str = "wva.llmd.ai/rotated-ca";
/// The type of a Secret with a certificate and its key; what `kubectl create secret tls` makes.
const SECRET_TYPE: &str = "kubernetes.io/tls";
/// A key of the Secret: every CA to trust, that of the leaf first.
const CA_CERT: &str = "ca.crt";
/// The key of the first one.
const CA_KEY: &str = "ca.key";
/// The leaf.
const CERT: &str = "tls.crt";
/// Its key.
const KEY: &str = "tls.key";
/// The CA that is being announced, if any; it is in `ca.crt` too.
const NEXT_CERT: &str = "next-ca.crt";
/// Its key.
const NEXT_KEY: &str = "next-ca.key";

/// Which Secret, and for which names.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Namespace of the Secret and of the Service: the release's.
    pub namespace: String,
    /// Name of the Secret.
    pub secret: String,
    /// Name of the Service that callers reach us by.
    pub service: String,
    /// How long each step of a change of the CA is left to reach everybody: [`SETTLE`].
    pub settle: Duration,
}

impl Settings {
    /// Every name the leaf is good for. The first is what the API server asks for; the last is what instances call
    /// each other, whatever their addresses.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let (service, namespace) = (&self.service, &self.namespace);
        vec![
            format!("{service}.{namespace}.svc"),
            service.clone(),
            format!("{service}.{namespace}"),
            format!("{service}.{namespace}.svc.cluster.local"),
            instance_name(namespace),
        ]
    }
}

/// The name that every instance's certificate is good for: instances verify each other by it.
#[must_use]
pub fn instance_name(namespace: &str) -> String {
    format!("wva-instance.{namespace}.internal")
}

/// A certificate chain for `names` and its key, PEM, by a CA of its own that signs nothing else.
///
/// # Errors
/// When none can be made.
pub fn self_signed(names: &[String], now: Timestamp) -> Result<(String, String), PkiError> {
    let made = bundle::make(names, now)?;
    Ok((made.cert.clone() + &made.trust(), made.key))
}

/// No certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// No answer in time.
    #[error("Secret {name}: the API server did not answer within {} s", REQUEST_TIMEOUT.as_secs())]
    Timeout {
        /// Namespace and name.
        name: String,
    },
    /// Refused.
    #[error(
        "Secret {name}: {}; check that the service account may create it, and get, watch and update it by \
             name, or give --tls-cert-file and --tls-private-key-file",
        said(cause)
    )]
    Api {
        /// Namespace and name.
        name: String,
        /// What the API server said.
        cause: Box<kube::Error>,
    },
    /// It is there and cannot be used.
    #[error("Secret {name}: {cause}; delete it, and it will be made anew")]
    Unusable {
        /// Namespace and name.
        name: String,
        /// What is wrong.
        cause: PkiError,
    },
    /// Others keep changing it.
    #[error("Secret {0} changes under our hands: is a second installation using its name?")]
    Conflict(String),
}

/// The Secret. [`Certificates::run`] it in a task.
pub struct Certificates {
    api: Api<Secret>,
    settings: Settings,
    clock: Arc<dyn Clock>,
    /// The APIServices, where it is these certificates that they verify.
    announced_by: Option<watch::Receiver<ApiServices>>,
    /// When this instance last renewed the leaf, and what that became.
    renewed: Option<(Instant, String)>,
    /// What is wrong, as last told.
    told: Told,
}

/// What this instance has seen, and since when.
struct Sight {
    bundle: Bundle,
    trust: String,
    since: Instant,
    /// Since when every APIService that points to us carries all of `trust`.
    carried: Option<Instant>,
}

impl Sight {
    fn of(bundle: Bundle) -> Self {
        let (trust, since) = (bundle.trust(), Instant::now());
        Self { bundle, trust, since, carried: None }
    }
}

impl Certificates {
    /// Nothing is read yet. `announced_by`: the APIServices that must carry a new CA before it signs; `None` when the API
    /// server is shown another certificate, and only instances verify each other by this one.
    #[must_use]
    pub fn new(
        client: kube::Client,
        settings: Settings,
        clock: Arc<dyn Clock>,
        announced_by: Option<watch::Receiver<ApiServices>>,
    ) -> Self {
        let api = Api::namespaced(client, &settings.namespace);
        Self { api, settings, clock, announced_by, renewed: None, told: Told::default() }
    }

    fn name(&self) -> String {
        format!("{}/{}", self.settings.namespace, self.settings.secret)
    }

    /// Publishes the certificates, whenever they change, and keeps them. Until cancelled.
    pub async fn run(mut self, publish: watch::Sender<Option<Bundle>>, cancel: CancellationToken) {
        let Some(first) = cancel.run_until_cancelled(self.first()).await else { return };
        publish.send_replace(Some(first.clone()));
        let hint = "check that the service account may list and watch it by name";
        let mut trouble = Trouble::new("the Secret of the serving certificate", hint);
        let mut states = watch_one(self.api.clone(), &self.settings.secret).boxed();
        let mut looks = interval(LOOK_EVERY);
        let mut sight = Sight::of(first);
        let mut carriers = self.announced_by.clone();
        loop {
            self.look_at_carriers(&mut sight);
            let next = [self.settled_at(&sight), self.renewal_at(&sight)].into_iter().flatten().min();
            tokio::select! {
                () = cancel.cancelled() => return,
                _ = looks.tick() => self.look(&mut sight, &publish).await,
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {
                    self.look(&mut sight, &publish).await;
                }
                () = changed(&mut carriers) => {}
                Some(state) = states.next() => match state {
                    Ok(secret) => {
                        trouble.over();
                        // Deleted; changed by another instance; or a person asks for something.
                        if secret.is_none_or(|secret| self.is_news(&secret, &sight)) {
                            self.look(&mut sight, &publish).await;
                        }
                    }
                    Err(error) => trouble.tell(&error),
                },
            }
        }
    }

    /// Tries until there is one: without it nobody can be served.
    async fn first(&mut self) -> Bundle {
        loop {
            match self.ensure(None).await {
                Ok(bundle) => return bundle,
                Err(error) => tracing::warn!(%error, "no certificate to serve with yet; trying again"),
            }
            sleep(RETRY).await;
        }
    }

    fn look_at_carriers(&self, sight: &mut Sight) {
        let settings = &self.settings;
        let services =
            apiservice::Settings { namespace: settings.namespace.clone(), service: settings.service.clone() };
        let carried = match &self.announced_by {
            Some(known) => known.borrow().carry(&services, &sight.trust),
            None => true,
        };
        sight.carried = carried.then(|| sight.carried.unwrap_or_else(Instant::now));
    }

    /// When the next step of a change of the CA may be due.
    fn settled_at(&self, sight: &Sight) -> Option<Instant> {
        match sight.bundle.place() {
            Place::Steady => None,
            Place::Announcing => sight.carried.map(|since| since.max(sight.since) + self.settings.settle),
            Place::Retiring => Some(sight.since + self.settings.settle),
        }
    }

    /// When a renewal that was put off is due: somebody replaced our leaf by one that we would renew.
    fn renewal_at(&self, sight: &Sight) -> Option<Instant> {
        let (at, _) = self.renewed.as_ref().filter(|(_, cert)| *cert != sight.bundle.cert)?;
        let good = bundle::leaf_is_good(&sight.bundle, &self.settings.names(), self.clock.now());
        (!good.unwrap_or(true)).then_some(*at + RENEW_EVERY)
    }

    fn is_news(&self, secret: &Secret, sight: &Sight) -> bool {
        let differs = self.bundle(secret).map_or(true, |bundle| bundle != sight.bundle);
        differs || (asked(secret).is_some() && sight.bundle.place() == Place::Steady)
    }

    async fn look(&mut self, sight: &mut Sight, publish: &watch::Sender<Option<Bundle>>) {
        match self.ensure(Some(sight)).await {
            Ok(bundle) => {
                if self.told.over() {
                    tracing::info!("the Secret of the serving certificate is kept again");
                }
                if bundle.trust() == sight.trust {
                    sight.bundle = bundle;
                } else {
                    *sight = Sight::of(bundle);
                }
                publish.send_if_modified(|old| {
                    let changed = old.as_ref() != Some(&sight.bundle);
                    *old = Some(sight.bundle.clone());
                    changed
                });
            }
            Err(error) => {
                if self.told.is_news(&error.to_string()) {
                    tracing::warn!(%error, "the serving certificate stays as it is; trying again");
                } else {
                    tracing::debug!(%error, "the serving certificate still stays as it is");
                }
                // Not at once again; what was seen stays seen.
                sleep(RETRY).await;
            }
        }
    }

    /// The shared certificates: made when there are none, adopted when there are, with the step that is due.
    async fn ensure(&mut self, sight: Option<&Sight>) -> Result<Bundle, CertificateError> {
        for _ in 0..TRIES {
            let secret = self.within(self.api.get_opt(&self.settings.secret)).await?;
            let (changed, secret) = match secret {
                Some(secret) => {
                    let bundle = self.bundle(&secret)?;
                    match self.due(&bundle, &secret, sight).map_err(|e| self.unusable(e))? {
                        Some(step) => (self.after(step, &bundle)?, Some((secret, step))),
                        None => return Ok(bundle),
                    }
                }
                None => (self.anew(sight)?, None),
            };
            let renews = secret.as_ref().is_some_and(|(_, step)| *step == Step::Renew);
            match self.write(&changed, secret).await {
                Ok(()) => {
                    if renews {
                        self.renewed = Some((Instant::now(), changed.cert.clone()));
                    }
                    return Ok(changed);
                }
                // Another instance was first: adopt what it wrote.
                Err(CertificateError::Api { cause, .. }) if is_conflict(&cause) => {}
                Err(error) => return Err(error),
            }
        }
        Err(CertificateError::Conflict(self.name()))
    }

    fn due(&self, bundle: &Bundle, secret: &Secret, sight: Option<&Sight>) -> Result<Option<Step>, PkiError> {
        let now = self.clock.now();
        let lasts = bundle::lasts(bundle, now)?;
        // Only what was seen of these very CAs counts.
        let sight = sight.filter(|sight| sight.trust == bundle.trust());
        let facts = Facts {
            over: lasts == Lasts::Over,
            wanted: lasts == Lasts::ToBeReplaced || asked(secret).is_some(),
            leaf_good: bundle::leaf_is_good(bundle, &self.settings.names(), now)? || self.renewed_lately(),
            seen_for: sight.map_or(Duration::ZERO, |sight| sight.since.elapsed()),
            carried_for: sight.and_then(|sight| sight.carried).map(|since| since.elapsed()),
        };
        Ok(due(bundle.place(), &facts, self.settings.settle))
    }

    fn renewed_lately(&self) -> bool {
        self.renewed.as_ref().is_some_and(|(at, _)| at.elapsed() < RENEW_EVERY)
    }

    fn after(&self, step: Step, bundle: &Bundle) -> Result<Bundle, CertificateError> {
        // Instances of before a renaming and of after it live together for a while, and show the same leaf.
        let names = bundle::names_with(&self.settings.names(), bundle);
        let after = bundle::after(step, bundle, &names, self.clock.now());
        after.map_err(|error| self.unusable(error))
    }

    /// Deleting the Secret asks for a new CA too; what is in use is given up in order as long as somebody knows it.
    fn anew(&self, sight: Option<&Sight>) -> Result<Bundle, CertificateError> {
        match sight {
            Some(sight) if sight.bundle.place() == Place::Steady => self.after(Step::Announce, &sight.bundle),
            Some(sight) => Ok(sight.bundle.clone()),
            None => bundle::make(&self.settings.names(), self.clock.now()).map_err(|e| self.unusable(e)),
        }
    }

    /// Writes over the Secret as it was read, or makes it.
    async fn write(&self, bundle: &Bundle, over: Option<(Secret, Step)>) -> Result<(), CertificateError> {
        let data = data(bundle).map(|(key, pem)| (key.to_owned(), ByteString(pem.into_bytes())));
        let (parameters, data, name) = (PostParams::default(), Some(data.collect()), self.name());
        match over {
            Some((old, step)) => {
                let mut metadata = ObjectMeta { managed_fields: None, ..old.metadata };
                if step == Step::Announce {
                    heed(&mut metadata);
                }
                let secret = Secret { metadata, data, type_: old.type_, ..Secret::default() };
                self.within(self.api.replace(&self.settings.secret, &parameters, &secret)).await?;
                tracing::info!(secret = %name, "{}", said_of(step));
            }
            None => {
                let managed_by = ("app.kubernetes.io/managed-by".to_owned(), "wva".to_owned());
                let metadata = ObjectMeta {
                    name: Some(self.settings.secret.clone()),
                    labels: Some([managed_by].into()),
                    ..ObjectMeta::default()
                };
                let type_ = Some(SECRET_TYPE.into());
                let secret = Secret { metadata, data, type_, ..Secret::default() };
                self.within(self.api.create(&parameters, &secret)).await?;
                tracing::info!(secret = %name, "made a certificate authority and a serving certificate");
            }
        }
        Ok(())
    }

    fn bundle(&self, secret: &Secret) -> Result<Bundle, CertificateError> {
        let data = secret.data.as_ref();
        let text = |key: &'static str| {
            let bytes =
                data.and_then(|data: &BTreeMap<_, ByteString>| data.get(key)).filter(|b| !b.0.is_empty());
            let text = bytes.and_then(|bytes| String::from_utf8(bytes.0.clone()).ok());
            text.ok_or_else(|| self.unusable(PkiError::Missing(key)))
        };
        let mut trusted = bundle::split(&text(CA_CERT)?).into_iter();
        let cert = trusted.next().ok_or_else(|| self.unusable(PkiError::NotACertificate(CA_CERT)))?;
        // A half of it alone is of no use: without its key a CA is one that signs nothing any more.
        let next = text(NEXT_CERT).ok().and_then(|cert| bundle::split(&cert).into_iter().next());
        let next = next.zip(text(NEXT_KEY).ok()).map(|(cert, key)| Authority { cert, key });
        let old = trusted.filter(|cert| next.as_ref().is_none_or(|next| next.cert != *cert)).collect();
        let signer = Authority { cert, key: text(CA_KEY)? };
        Ok(Bundle { cert: text(CERT)?, key: text(KEY)?, signer, next, old })
    }

    fn unusable(&self, cause: PkiError) -> CertificateError {
        CertificateError::Unusable { name: self.name(), cause }
    }

    async fn within<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<T, CertificateError> {
        let answer = timeout(REQUEST_TIMEOUT, request)
            .await
            .map_err(|_| CertificateError::Timeout { name: self.name() })?;
        answer.map_err(|cause| CertificateError::Api { name: self.name(), cause: Box::new(cause) })
    }
}

fn data(bundle: &Bundle) -> impl Iterator<Item = (&'static str, String)> {
    let shared = [
        (CA_CERT, bundle.trust()),
        (CA_KEY, bundle.signer.key.clone()),
        (CERT, bundle.cert.clone()),
        (KEY, bundle.key.clone()),
    ];
    let next = bundle.next.clone().map(|next| [(NEXT_CERT, next.cert), (NEXT_KEY, next.key)]);
    shared.into_iter().chain(next.into_iter().flatten())
}

/// The value of a person's wish for a new CA that has not been heeded.
fn asked(secret: &Secret) -> Option<&String> {
    let annotations = secret.metadata.annotations.as_ref()?;
    let asked = annotations.get(ROTATE_ANNOTATION).filter(|value| !value.is_empty());
    asked.filter(|asked| annotations.get(ROTATED_ANNOTATION) != Some(asked))
}

fn heed(metadata: &mut ObjectMeta) {
    let Some(annotations) = &mut metadata.annotations else { return };
    if let Some(asked) = annotations.get(ROTATE_ANNOTATION).cloned() {
        annotations.insert(ROTATED_ANNOTATION.into(), asked);
    }
}

const fn said_of(step: Step) -> &'static str {
    match step {
        Step::StartOver => "the certificate authority had ended: made another",
        Step::Renew => "renewed the serving certificate",
        Step::Announce => "made a new certificate authority: announcing it",
        Step::Switch => "serving with a certificate of the new authority",
        Step::Retire => "the old certificate authority is trusted no more",
    }
}

/// Never, when there are none to look at.
async fn changed(carriers: &mut Option<watch::Receiver<ApiServices>>) {
    let Some(known) = carriers else { return std::future::pending().await };
    if known.changed().await.is_err() {
        std::future::pending().await
    }
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}
