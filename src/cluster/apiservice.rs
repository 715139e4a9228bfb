//! Our own APIService: keeps its `caBundle` at the CA that signed our certificate. The object itself belongs to the
//! chart, and one that points to somebody else's Service is never touched.

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::Resource;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, interval, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::certificates::Bundle;
use super::trouble::{Trouble, said, watch_one};

/// The APIService of the external metrics API.
pub const NAME: &str = "v1beta1.external.metrics.k8s.io";
/// The field manager of its `caBundle`.
pub const FIELD_MANAGER: &str = "wva-ca";
/// Longest wait for one answer of the API server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a bundle that could not be written is tried again.
const RETRY_EVERY: Duration = Duration::from_secs(10);
/// Shortest time between two writes: instances whose certificates differ for a moment must not answer each other's
/// writes without limit. Longer than such a moment lasts.
const WRITE_EVERY: Duration = Duration::from_secs(5);

/// Which Service is ours.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub service: String,
}

/// Keeps the bundle right. [`CaBundle::run`] it in a task.
pub struct CaBundle {
    api: Api<APIService>,
    settings: Settings,
    certificates: watch::Receiver<Bundle>,
    not_before: Instant,
}

/// What to do about an APIService.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Finding {
    /// The bundle is right.
    Right,
    /// The bundle is to be written.
    Wrong,
    /// It is not ours, or cannot be written.
    Foreign(String),
}

impl CaBundle {
    /// Nothing is written yet.
    #[must_use]
    pub fn new(client: kube::Client, settings: Settings, certificates: watch::Receiver<Bundle>) -> Self {
        Self { api: Api::all(client), settings, certificates, not_before: Instant::now() }
    }

    /// Writes the bundle whenever it or the certificate changes. Until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        let hint = "check that the service account may list and watch it by name";
        let mut trouble = Trouble::new("the APIService", hint);
        let mut states = watch_one(self.api.clone(), NAME).boxed();
        let mut retries = interval(RETRY_EVERY);
        let mut known: Option<APIService> = None;
        let mut told: Option<String> = None;
        let mut put_off = false;
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                _ = retries.tick() => {}
                () = sleep_until(self.not_before), if put_off => {}
                Ok(()) = self.certificates.changed() => {}
                Some(state) = states.next() => match state {
                    Ok(state) => {
                        trouble.over();
                        if state.is_none() {
                            tracing::warn!("APIService {NAME} does not exist: install the chart, or nobody is sent to us");
                        }
                        known = state;
                    }
                    Err(error) => trouble.tell(&error),
                },
            }
            let Some(service) = &known else { continue };
            put_off = self.not_before > Instant::now();
            if put_off {
                continue;
            }
            let problem = self.keep(service).await.err();
            if let Some(problem) = problem.as_ref().filter(|problem| told.as_ref() != Some(problem)) {
                tracing::warn!("APIService {NAME}: {problem}");
            }
            told = problem;
        }
    }

    /// Writes the bundle when it is not right; what is wrong, and the next step, when it cannot be.
    async fn keep(&mut self, service: &APIService) -> Result<(), String> {
        let ca = self.certificates.borrow().ca_cert.clone();
        match self.finding(service, &ca) {
            Finding::Right => return Ok(()),
            Finding::Foreign(problem) => return Err(problem),
            Finding::Wrong => {}
        }
        self.not_before = Instant::now() + WRITE_EVERY;
        // The uid makes sure that nothing is created when the object has just been deleted.
        let body = json!({
            "apiVersion": APIService::api_version(&()),
            "kind": APIService::kind(&()),
            "metadata": { "name": NAME, "uid": service.metadata.uid },
            "spec": { "caBundle": ByteString(ca.into_bytes()) },
        });
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let patch = Patch::Apply(body);
        match timeout(REQUEST_TIMEOUT, self.api.patch(NAME, &parameters, &patch)).await {
            Ok(Ok(_)) => {
                tracing::info!("wrote spec.caBundle of APIService {NAME}");
                Ok(())
            }
            Ok(Err(error)) => {
                Err(format!("{}; check that the service account may patch it by name", said(&error)))
            }
            Err(_) => Err(format!("no answer within {} s; trying again", REQUEST_TIMEOUT.as_secs())),
        }
    }

    fn finding(&self, service: &APIService, ca: &str) -> Finding {
        let Some(spec) = &service.spec else { return Finding::Foreign("has no spec".into()) };
        let Settings { namespace, service: name } = &self.settings;
        let target = spec.service.as_ref();
        let target = target.map(|target| (target.namespace.as_deref(), target.name.as_deref()));
        if target != Some((Some(namespace), Some(name))) {
            let owner = target.map_or("the API server".to_owned(), |(namespace, name)| {
                format!("Service {}/{}", namespace.unwrap_or_default(), name.unwrap_or_default())
            });
            return Finding::Foreign(format!(
                "belongs to {owner}, not to Service {namespace}/{name}: only one metrics server can have it; \
                 uninstall one of them"
            ));
        }
        if spec.ca_bundle.as_ref().is_some_and(|bundle| bundle.0 == ca.as_bytes()) {
            Finding::Right
        } else if spec.insecure_skip_tls_verify == Some(true) {
            Finding::Foreign("has insecureSkipTLSVerify: remove it, so that the CA can be written".into())
        } else {
            Finding::Wrong
        }
    }
}
