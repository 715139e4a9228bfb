//! Lets the APIService of external metrics, which another program has installed, point to us, and back. Both are one write, so that there is
//! always somebody who answers. What it pointed to before is kept in an annotation of the object, which stays the other program's.

use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{Api, Patch, PatchParams};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, interval};
use tokio_util::sync::CancellationToken;

use super::apiservice::{self, ApiServices, SERVICE_ANNOTATION, ServiceRef};
use super::certificate_bundle::CertificateBundle;
use crate::cluster::requests::{LogOnce, bounded};
use crate::engine::Leadership;

/// The annotation with what the APIService pointed to before: a [`Backend`] as JSON.
const BEFORE_ANNOTATION: &str = "wva.llmd.ai/before-take-over";
/// How often the object is looked at, beside every change of it.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// How long after the start it is not taken over: instances become Ready, and the API server learns of their endpoints.
const MIN_UPTIME: Duration = Duration::from_secs(15);
/// How long it is left alone after somebody has changed it back, such as an upgrade of the other program, or whoever is about to uninstall
/// this one.
const LOST_GRACE: Duration = Duration::from_secs(300);

/// What the API server verifies and asks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Backend {
    service: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ca_bundle: Option<ByteString>,
    #[serde(default, rename = "insecureSkipTLSVerify", skip_serializing_if = "Option::is_none")]
    insecure_skip_tls_verify: Option<bool>,
}

impl Backend {
    fn of(object: &APIService) -> Option<Self> {
        let spec = object.spec.as_ref()?;
        Some(Self {
            service: serde_json::to_value(spec.service.as_ref()?).ok()?,
            ca_bundle: spec.ca_bundle.clone(),
            insecure_skip_tls_verify: spec.insecure_skip_tls_verify,
        })
    }

    /// As fields of a merge patch, which removes what is not set.
    fn spec(&self) -> Value {
        let Self { service, ca_bundle, insecure_skip_tls_verify } = self;
        let service =
            json!({ "namespace": service["namespace"], "name": service["name"], "port": service["port"] });
        json!({ "service": service, "caBundle": ca_bundle, "insecureSkipTLSVerify": insecure_skip_tls_verify })
    }
}

/// The Service whose APIService is taken over.
#[derive(Debug, Clone)]
pub struct PreviousOwner {
    /// The Service.
    pub service: ServiceRef,
    /// The port of our Service that its APIService is to point to; `None` to point back to its own.
    pub take_over: Option<u16>,
}

/// Takes the APIService over, or gives it back. [`TakeOver::run`] it in a task.
pub struct TakeOver {
    api: Api<APIService>,
    service: ServiceRef,
    previous: Option<PreviousOwner>,
    certificates: watch::Receiver<Option<CertificateBundle>>,
    apiservices: watch::Receiver<ApiServices>,
    leadership: watch::Receiver<Leadership>,
    /// When it may be taken over.
    not_before: Instant,
    was_ours: bool,
    logged: LogOnce,
}

impl TakeOver {
    /// A task that has not started. Without a `previous` owner it only gives back.
    #[must_use]
    pub fn new(
        client: kube::Client,
        service: ServiceRef,
        previous: Option<PreviousOwner>,
        (certificates, apiservices): (
            watch::Receiver<Option<CertificateBundle>>,
            watch::Receiver<ApiServices>,
        ),
        leadership: watch::Receiver<Leadership>,
    ) -> Self {
        Self {
            api: Api::all(client),
            service,
            previous,
            certificates,
            apiservices,
            leadership,
            not_before: Instant::now() + MIN_UPTIME,
            was_ours: false,
            logged: LogOnce::default(),
        }
    }

    /// Acts while this instance leads. Until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut retries = interval(RETRY_INTERVAL);
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                _ = retries.tick() => {}
                Ok(()) = self.apiservices.changed() => {}
            }
            let apiservices = self.apiservices.borrow_and_update().clone();
            let external = apiservices.present().find(|(name, _)| *name == apiservice::NAME);
            let Some((_, object)) = external else { continue };
            self.notice(object);
            if !self.leadership.borrow().is_mine() {
                continue;
            }
            match self.ensure(object).await {
                Ok(()) => drop(self.logged.clear()),
                Err(problem) if self.logged.is_new(&problem) => {
                    tracing::warn!("APIService {}: {problem}", apiservice::NAME);
                }
                Err(_) => {}
            }
        }
    }

    /// Sees on every instance when the object points to us no longer.
    fn notice(&mut self, object: &APIService) {
        let is_ours = self.service.other_owner(object).is_none();
        if self.was_ours && !is_ours {
            self.not_before = self.not_before.max(Instant::now() + LOST_GRACE);
        }
        self.was_ours = is_ours;
    }

    /// # Errors
    /// Why the object cannot be written, and what to do.
    async fn ensure(&mut self, object: &APIService) -> Result<(), String> {
        let takes_over = self.previous.as_ref().and_then(|previous| Some((previous, previous.take_over?)));
        let is_ours = self.service.other_owner(object).is_none();
        match takes_over {
            Some((previous, port)) if !is_ours => {
                if Instant::now() < self.not_before {
                    return Ok(());
                }
                if let Some(owner) = previous.service.other_owner(object) {
                    let ServiceRef { namespace, name } = &previous.service;
                    return Err(format!(
                        "it points to {owner}, and only that of Service {namespace}/{name} (--fallback-apiservice) is taken over"
                    ));
                }
                let Some(trust) = self.certificates.borrow().as_ref().map(CertificateBundle::trust) else {
                    return Ok(());
                };
                self.write(object, &taken(object, (&self.service, port), trust)?).await?;
                tracing::info!("took over APIService {}: this server answers now", apiservice::NAME);
                Ok(())
            }
            None if is_ours => {
                let Some(before) = before(object)? else { return Ok(()) };
                self.write(object, &given_back(&before)).await?;
                let service = before.service.to_string();
                tracing::info!(service, "gave APIService {} back", apiservice::NAME);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A merge patch of the object as it is known: it fails if somebody has changed it since.
    async fn write(&self, object: &APIService, patch: &Value) -> Result<(), String> {
        let mut patch = patch.clone();
        patch["metadata"]["uid"] = json!(object.metadata.uid);
        patch["metadata"]["resourceVersion"] = json!(object.metadata.resource_version);
        let parameters =
            PatchParams { field_manager: Some("wva-take-over".into()), ..PatchParams::default() };
        let patched = bounded(self.api.patch(apiservice::NAME, &parameters, &Patch::Merge(patch))).await;
        let hint = "check that the service account may patch it by name (the chart grants it with fallback.apiService)";
        patched.map(drop).map_err(|error| error.with_hint(hint))
    }
}

/// The patch that lets it point to us.
fn taken(object: &APIService, (ours, port): (&ServiceRef, u16), trust: String) -> Result<Value, String> {
    let unreadable = || "it points to no Service, so it cannot be taken over".to_owned();
    let before = serde_json::to_string(&Backend::of(object).ok_or_else(unreadable)?);
    let before = before.map_err(|error| error.to_string())?;
    let ServiceRef { namespace, name } = ours;
    let backend = Backend {
        service: json!({ "namespace": namespace, "name": name, "port": port }),
        ca_bundle: Some(ByteString(trust.into_bytes())),
        insecure_skip_tls_verify: None,
    };
    let annotations = json!({ BEFORE_ANNOTATION: before, SERVICE_ANNOTATION: format!("{namespace}/{name}") });
    Ok(json!({ "metadata": { "annotations": annotations }, "spec": backend.spec() }))
}

/// What it pointed to before it was taken over.
///
/// # Errors
/// When the annotation is no such thing.
fn before(object: &APIService) -> Result<Option<Backend>, String> {
    let annotations = object.metadata.annotations.as_ref();
    let Some(text) = annotations.and_then(|annotations| annotations.get(BEFORE_ANNOTATION)) else {
        return Ok(None);
    };
    serde_json::from_str(text).map(Some).map_err(|error| {
        format!("it cannot be given back: its annotation {BEFORE_ANNOTATION} is invalid ({error}); let it point to its owner by hand")
    })
}

/// The patch that lets it point to what it did before.
fn given_back(before: &Backend) -> Value {
    let annotations = json!({ BEFORE_ANNOTATION: null, SERVICE_ANNOTATION: null });
    json!({ "metadata": { "annotations": annotations }, "spec": before.spec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(spec: &Value) -> APIService {
        let base = json!({
            "metadata": { "name": apiservice::NAME, "labels": { "app": "keda" } },
            "spec": { "group": "external.metrics.k8s.io", "groupPriorityMinimum": 100, "versionPriority": 100 },
        });
        patched(&serde_json::from_value(base).unwrap(), &json!({ "spec": spec }))
    }

    fn patched(object: &APIService, patch: &Value) -> APIService {
        let mut value = serde_json::to_value(object).unwrap();
        merge(&mut value, patch);
        serde_json::from_value(value).unwrap()
    }

    /// What the API server makes of a merge patch.
    fn merge(value: &mut Value, patch: &Value) {
        let Value::Object(patch) = patch else { return *value = patch.clone() };
        if !value.is_object() {
            *value = json!({});
        }
        for (key, part) in patch {
            match part {
                Value::Null => drop(value.as_object_mut().unwrap().remove(key)),
                part => merge(&mut value[key], part),
            }
        }
    }

    #[test]
    fn what_is_given_back_is_what_was_taken() {
        let ours = ServiceRef { namespace: "wva-system".into(), name: "wva".into() };
        for spec in [
            json!({ "service": { "namespace": "keda", "name": "metrics", "port": 6443 }, "insecureSkipTLSVerify": true }),
            json!({ "service": { "namespace": "keda", "name": "metrics" }, "caBundle": "Q0E=" }),
        ] {
            let original = object(&spec);
            let taken_over = patched(&original, &taken(&original, (&ours, 443), "ours".into()).unwrap());
            assert_eq!(ours.other_owner(&taken_over), None);
            assert_eq!(apiservice::ca_bundle(&taken_over), Some(&b"ours"[..]));
            assert!(!apiservice::skips_verification(&taken_over) && apiservice::is_of_chart(&taken_over));
            let patch = given_back(&before(&taken_over).unwrap().unwrap());
            let mut back = patched(&taken_over, &patch);
            assert_eq!(back.metadata.annotations.take().unwrap_or_default().len(), 0);
            assert_eq!(back, original);
        }
        assert_eq!(before(&object(&json!({}))), Ok(None));
    }
}
