//! The serving certificate when none is given: a CA and a leaf in one Secret that all instances share. The first one
//! makes it, the others adopt it; the leaf is renewed in time. Nothing here serves or verifies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use tokio::sync::watch;
use tokio::time::{interval, timeout};
use tokio_util::sync::CancellationToken;

use super::pki::{self, PkiError};
use super::trouble::{Trouble, said, watch_one};
use crate::engine::Clock;

/// The Secret's name unless configured.
pub const DEFAULT_NAME: &str = "wva-tls";
/// Longest wait for one answer of the API server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Tries to create or renew: each one lost to another instance ends with that one's certificate.
const TRIES: u32 = 4;
/// How often the end of the leaf's validity is looked at; it is renewed weeks before.
const LOOK_EVERY: Duration = Duration::from_secs(3600);
/// The type of a Secret with a certificate and its key; what `kubectl create secret tls` makes.
const SECRET_TYPE: &str = "kubernetes.io/tls";
/// The Secret's keys.
const KEYS: [&str; 4] = ["ca.crt", "ca.key", "tls.crt", "tls.key"];

/// Which Secret, and for which names.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Namespace of the Secret and of the Service: the release's.
    pub namespace: String,
    /// Name of the Secret.
    pub secret: String,
    /// Name of the Service that callers reach us by.
    pub service: String,
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

/// A CA and a leaf, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Bundle {
    /// The CA's certificate: what the API service and the other instances trust.
    pub ca_cert: String,
    /// The leaf's certificate.
    pub cert: String,
    /// The leaf's key.
    pub key: String,
    /// The CA's key, for renewals.
    pub(crate) ca_key: String,
}

impl std::fmt::Debug for Bundle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bundle").finish_non_exhaustive() // keys are never printed
    }
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

/// The Secret. [`Certificates::ensure`] it once, then [`Certificates::run`] it in a task.
pub struct Certificates {
    api: Api<Secret>,
    settings: Settings,
    clock: Arc<dyn Clock>,
}

impl Certificates {
    /// Nothing is read yet.
    #[must_use]
    pub fn new(client: kube::Client, settings: Settings, clock: Arc<dyn Clock>) -> Self {
        Self { api: Api::namespaced(client, &settings.namespace), settings, clock }
    }

    fn name(&self) -> String {
        format!("{}/{}", self.settings.namespace, self.settings.secret)
    }

    /// The shared certificate: made when there is none, adopted when there is, renewed when it ends soon or lacks a name.
    ///
    /// # Errors
    /// When the Secret cannot be read, made or used.
    pub async fn ensure(&self) -> Result<Bundle, CertificateError> {
        for _ in 0..TRIES {
            let answer = match self.within(self.api.get_opt(&self.settings.secret)).await? {
                Some(secret) => {
                    let old = self.bundle(&secret)?;
                    if pki::is_good(&old, &self.settings.names(), self.clock.now())
                        .map_err(|e| self.unusable(e))?
                    {
                        return Ok(old);
                    }
                    let renewed = pki::renew(&old, &self.settings.names(), self.clock.now());
                    self.write(renewed.map_err(|e| self.unusable(e))?, Some(secret.metadata)).await
                }
                None => {
                    let made = pki::make(&self.settings.names(), self.clock.now());
                    self.write(made.map_err(|e| self.unusable(e))?, None).await
                }
            };
            match answer {
                // Another instance was first: adopt what it wrote.
                Err(CertificateError::Api { cause, .. }) if is_conflict(&cause) => {}
                other => return other,
            }
        }
        Err(CertificateError::Conflict(self.name()))
    }

    async fn write(&self, bundle: Bundle, old: Option<ObjectMeta>) -> Result<Bundle, CertificateError> {
        let values = [&bundle.ca_cert, &bundle.ca_key, &bundle.cert, &bundle.key];
        let data =
            KEYS.into_iter().zip(values).map(|(key, pem)| (key.into(), ByteString(pem.clone().into_bytes())));
        let known = old.is_some();
        let managed_by = ("app.kubernetes.io/managed-by".to_owned(), "wva".to_owned());
        let fresh = ObjectMeta {
            name: Some(self.settings.secret.clone()),
            labels: Some([managed_by].into()),
            ..ObjectMeta::default()
        };
        let metadata = ObjectMeta { managed_fields: None, ..old.unwrap_or(fresh) };
        let secret = Secret {
            metadata,
            type_: Some(SECRET_TYPE.into()),
            data: Some(data.collect()),
            ..Secret::default()
        };
        let parameters = PostParams::default();
        if known {
            self.within(self.api.replace(&self.settings.secret, &parameters, &secret)).await?;
            tracing::info!(secret = %self.name(), "renewed the serving certificate");
        } else {
            self.within(self.api.create(&parameters, &secret)).await?;
            tracing::info!(secret = %self.name(), "made a certificate authority and a serving certificate");
        }
        Ok(bundle)
    }

    fn bundle(&self, secret: &Secret) -> Result<Bundle, CertificateError> {
        let data = secret.data.as_ref();
        let text = |key: &'static str| {
            let bytes =
                data.and_then(|data: &BTreeMap<_, ByteString>| data.get(key)).filter(|b| !b.0.is_empty());
            let text = bytes.and_then(|bytes| String::from_utf8(bytes.0.clone()).ok());
            text.ok_or_else(|| self.unusable(PkiError::Missing(key)))
        };
        let [ca_cert, ca_key, cert, key] = KEYS;
        Ok(Bundle { ca_cert: text(ca_cert)?, ca_key: text(ca_key)?, cert: text(cert)?, key: text(key)? })
    }

    fn unusable(&self, cause: PkiError) -> CertificateError {
        CertificateError::Unusable { name: self.name(), cause }
    }

    /// Publishes the certificate whenever the Secret changes, and renews it in time. Until cancelled.
    pub async fn run(self, publish: watch::Sender<Bundle>, cancel: CancellationToken) {
        let hint = "check that the service account may list and watch it by name";
        let mut trouble = Trouble::new("the Secret of the serving certificate", hint);
        let mut states = watch_one(self.api.clone(), &self.settings.secret).boxed();
        let mut looks = interval(LOOK_EVERY);
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                _ = looks.tick() => self.look(&publish).await,
                Some(state) = states.next() => match state {
                    Ok(secret) => {
                        trouble.over();
                        // Deleted, so that it is made anew; or changed by another instance.
                        if secret.is_none_or(|secret| self.differs(&secret, &publish)) {
                            self.look(&publish).await;
                        }
                    }
                    Err(error) => trouble.tell(&error),
                },
            }
        }
    }

    fn differs(&self, secret: &Secret, publish: &watch::Sender<Bundle>) -> bool {
        self.bundle(secret).map_or(true, |bundle| *publish.borrow() != bundle)
    }

    async fn look(&self, publish: &watch::Sender<Bundle>) {
        match self.ensure().await {
            Ok(bundle) => {
                publish.send_if_modified(|old| {
                    let changed = *old != bundle;
                    *old = bundle;
                    changed
                });
            }
            Err(error) => tracing::warn!(%error, "the serving certificate stays as it is"),
        }
    }

    async fn within<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<T, CertificateError> {
        let answer = timeout(REQUEST_TIMEOUT, request)
            .await
            .map_err(|_| CertificateError::Timeout { name: self.name() })?;
        answer.map_err(|cause| CertificateError::Api { name: self.name(), cause: Box::new(cause) })
    }
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}
