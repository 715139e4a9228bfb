//! The APIServices that may point to us, each watched by its name. What to write or check is decided elsewhere.

use std::collections::BTreeMap;
use std::fmt;

use futures::StreamExt;
use futures::stream::{SelectAll, select_all};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{Api, Patch};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::cluster::watch::watch_health::{WatchHealth, is_forbidden, watch_object};
use crate::lint::ExternalMetrics;

/// The APIService of the external metrics API.
pub const NAME: &str = "v1beta1.external.metrics.k8s.io";
/// The APIServices of all metrics APIs that we may serve. Those of custom metrics are often not installed, or another
/// program's.
pub const METRICS_NAMES: [&str; 3] = [NAME, "v1beta1.custom.metrics.k8s.io", "v1beta2.custom.metrics.k8s.io"];
/// The APIService of explanations, which `kubectl wva` reads. No HPA depends on it.
pub const EXPLANATIONS_NAME: &str = "v1alpha1.decisions.wva.llmd.ai";
/// The APIService of processor time and memory, which usually is metrics-server's.
pub const USAGE_NAME: &str = "v1beta1.metrics.k8s.io";
/// All APIServices that we may serve.
pub const NAMES: [&str; 5] =
    [METRICS_NAMES[0], METRICS_NAMES[1], METRICS_NAMES[2], USAGE_NAME, EXPLANATIONS_NAME];

/// The annotation with the Service, as `namespace/name`, that the chart lets an APIService point to. What another program does to
/// the object changes only what it points to.
pub(super) const SERVICE_ANNOTATION: &str = "wva.llmd.ai/service";
/// The label of the chart's objects, and its value. Charts before the annotation have only that.
const LABEL: (&str, &str) = ("app.kubernetes.io/name", "wva");

/// Our Service, by which the API server reaches us.
#[derive(Debug, Clone)]
pub struct ServiceRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl ServiceRef {
    /// The name by which the API server verifies our certificate.
    #[must_use]
    pub fn server_name(&self) -> String {
        format!("{}.{}.svc", self.name, self.namespace)
    }

    /// What an APIService points to, when that is not us.
    pub(crate) fn other_owner(&self, object: &APIService) -> Option<String> {
        let service = object.spec.as_ref().and_then(|spec| spec.service.as_ref());
        let Some(service) = service else { return Some("the API server".to_owned()) };
        let namespace = service.namespace.as_deref();
        let name = service.name.as_deref();
        let is_ours = namespace == Some(&self.namespace) && name == Some(&self.name);
        (!is_ours).then(|| format!("Service {}/{}", namespace.unwrap_or_default(), name.unwrap_or_default()))
    }
}

impl fmt::Display for ServiceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What is known of an APIService.
#[derive(Debug, Clone, Default, PartialEq)]
enum ApiServiceState {
    /// Nothing yet.
    #[default]
    Unknown,
    /// It does not exist.
    Absent,
    /// The object.
    Present(Box<APIService>),
}

/// What is known of all of them, by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ApiServices(BTreeMap<&'static str, ApiServiceState>);

impl ApiServices {
    /// Those that point to `service`.
    pub(crate) fn pointing_to<'a>(
        &'a self,
        service: &'a ServiceRef,
    ) -> impl Iterator<Item = (&'static str, &'a APIService)> {
        self.present().filter(|(_, object)| service.other_owner(object).is_none())
    }

    /// Those that exist.
    pub(crate) fn present(&self) -> impl Iterator<Item = (&'static str, &APIService)> {
        self.0.iter().filter_map(|(name, state)| match state {
            ApiServiceState::Present(object) => Some((*name, &**object)),
            ApiServiceState::Unknown | ApiServiceState::Absent => None,
        })
    }

    /// True when it is known of each of `names` whether it exists.
    fn are_known(&self, names: &[&str]) -> bool {
        names.iter().all(|name| self.0.get(name).is_some_and(|state| *state != ApiServiceState::Unknown))
    }

    /// True when none of a metrics API points to `service`, so that it gets no requests of HPAs.
    pub(crate) fn none_points_to(&self, service: &ServiceRef) -> bool {
        let is_of_metrics = |name: &str| METRICS_NAMES.contains(&name);
        self.are_known(&METRICS_NAMES) && !self.pointing_to(service).any(|(name, _)| is_of_metrics(name))
    }

    /// What that of external metrics points to, where no one points to us.
    fn external_elsewhere(&self, service: &ServiceRef) -> Option<String> {
        let mut present = self.present().filter(|_| self.none_points_to(service));
        present.find(|(name, _)| *name == NAME).and_then(|(_, object)| service.other_owner(object))
    }

    /// True when that of external metrics does not exist and no other one points to us.
    fn lacks_external(&self, service: &ServiceRef) -> bool {
        self.0.get(NAME) == Some(&ApiServiceState::Absent) && self.none_points_to(service)
    }

    /// Who serves external metrics, if it is known that this is no installation of this program.
    pub(crate) fn external_metrics(&self, service: &ServiceRef) -> Option<ExternalMetrics> {
        match self.0.get(NAME)? {
            ApiServiceState::Unknown => None,
            ApiServiceState::Absent => Some(ExternalMetrics::Nobody),
            ApiServiceState::Present(object) if is_of_chart(object) => None,
            ApiServiceState::Present(object) => service.other_owner(object).map(ExternalMetrics::Another),
        }
    }

    /// True when every one that points to `service` has exactly this bundle, or verifies nothing.
    pub(crate) fn all_carry(&self, service: &ServiceRef, bundle: &str) -> bool {
        self.are_known(&NAMES)
            && self.pointing_to(service).all(|(_, object)| {
                ca_bundle(object).is_some_and(|carried| carried == bundle.as_bytes())
                    || skips_verification(object)
            })
    }
}

/// Whether an APIService points to where the chart let it, in this installation or in another one.
pub(crate) fn is_of_chart(object: &APIService) -> bool {
    let annotations = object.metadata.annotations.as_ref();
    if let Some(made) = annotations.and_then(|annotations| annotations.get(SERVICE_ANNOTATION)) {
        let service = object.spec.as_ref().and_then(|spec| spec.service.as_ref());
        let place =
            service.and_then(|own| Some(format!("{}/{}", own.namespace.as_ref()?, own.name.as_ref()?)));
        return place.as_ref() == Some(made);
    }
    let labels = object.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(LABEL.0)).is_some_and(|value| value == LABEL.1)
}

/// The `caBundle` of an APIService; `None` when it is empty.
pub(crate) fn ca_bundle(object: &APIService) -> Option<&[u8]> {
    let bundle = object.spec.as_ref().and_then(|spec| spec.ca_bundle.as_ref());
    bundle.map(|bundle| &bundle.0[..]).filter(|bundle| !bundle.is_empty())
}

/// True when the API server verifies no certificate.
pub(crate) fn skips_verification(object: &APIService) -> bool {
    object.spec.as_ref().is_some_and(|spec| spec.insecure_skip_tls_verify == Some(true))
}

/// The name of an APIService, and a patch that applies `part` of it: with the uid, so that nothing is created when the object has
/// just been deleted.
pub(crate) fn apply_patch(object: &APIService, part: &str, value: &Value) -> (String, Patch<Value>) {
    let name = object.name_any();
    let patch = json!({
        "apiVersion": APIService::api_version(&()),
        "kind": APIService::kind(&()),
        "metadata": { "name": name, "uid": object.metadata.uid },
        part: value,
    });
    (name, Patch::Apply(patch))
}

/// Watches them. [`ApiServiceWatch::run`] it in a task.
pub struct ApiServiceWatch {
    client: kube::Client,
    service: ServiceRef,
    publish: watch::Sender<ApiServices>,
}

impl ApiServiceWatch {
    /// A watch that has not started, and where to read the APIServices.
    #[must_use]
    pub fn new(client: kube::Client, service: ServiceRef) -> (Self, watch::Receiver<ApiServices>) {
        let (publish, known) = watch::channel(ApiServices::default());
        (Self { client, service, publish }, known)
    }

    /// Watches until cancelled.
    pub async fn run(self, cancel: CancellationToken) {
        let hint = "check that the service account may list and watch it by name";
        let mut health = WatchHealth::new("the APIService", hint);
        let follow = |name| {
            let api: Api<APIService> = Api::all(self.client.clone());
            watch_object(api, name).map(move |state| (name, state)).boxed()
        };
        let mut states: SelectAll<_> = select_all(NAMES.map(follow));
        let mut has_warned = false;
        let mut elsewhere = None;
        while let Some(Some((name, state))) = cancel.run_until_cancelled(states.next()).await {
            match state {
                Ok(object) => {
                    if name == NAME {
                        health.report_recovery();
                    }
                    let state = object
                        .map_or(ApiServiceState::Absent, |object| ApiServiceState::Present(Box::new(object)));
                    self.publish(name, state);
                }
                Err(error) if name == NAME => health.report_failure(&error),
                // An installation without custom metrics need not grant access to them.
                Err(error) if is_forbidden(&error) => self.publish(name, ApiServiceState::Absent),
                Err(error) => {
                    tracing::debug!(%error, name, "the watch of an APIService was interrupted; retrying")
                }
            }
            let is_missing = self.publish.borrow().lacks_external(&self.service);
            if is_missing && !has_warned {
                tracing::warn!(
                    "APIService {NAME} does not exist: install the chart, or the API server sends us no requests"
                );
            }
            has_warned = is_missing;
            let owner = self.publish.borrow().external_elsewhere(&self.service);
            if let Some(owner) = owner.as_ref().filter(|_| owner != elsewhere) {
                tracing::info!(
                    "APIService {NAME} points to {owner}: HPAs read there, and find the variants of this installation only if \
                     that is an installation of wva with this one in --installation (docs/several-installations.md)"
                );
            }
            elsewhere = owner;
        }
    }

    fn publish(&self, name: &'static str, state: ApiServiceState) {
        self.publish.send_if_modified(|known| {
            let changed = known.0.get(name) != Some(&state);
            known.0.insert(name, state);
            changed
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointing_to(namespace: &str) -> ApiServiceState {
        let object = json!({
            "metadata": { "name": NAME },
            "spec": {
                "group": "external.metrics.k8s.io",
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "service": { "namespace": namespace, "name": "wva" },
            },
        });
        ApiServiceState::Present(Box::new(serde_json::from_value(object).unwrap()))
    }

    #[test]
    fn external_metrics_of_another_program_are_told_from_those_of_another_installation() {
        let ours = ServiceRef { namespace: "blue".into(), name: "wva".into() };
        let served_by = |state| ApiServices([(NAME, state)].into()).external_metrics(&ours);
        assert_eq!(ApiServices::default().external_metrics(&ours), None);
        assert_eq!(served_by(ApiServiceState::Unknown), None);
        assert_eq!(served_by(ApiServiceState::Absent), Some(ExternalMetrics::Nobody));
        assert_eq!(served_by(pointing_to("blue")), None);
        let another = || ExternalMetrics::Another("Service keda/wva".into());
        assert_eq!(served_by(pointing_to("keda")), Some(another()));
        let labelled = |namespace, service: Option<&str>| {
            let ApiServiceState::Present(mut object) = pointing_to(namespace) else { unreachable!() };
            object.metadata.labels = Some([(LABEL.0.into(), LABEL.1.into())].into());
            object.metadata.annotations =
                service.map(|service| [(SERVICE_ANNOTATION.into(), service.into())].into());
            ApiServiceState::Present(object)
        };
        assert_eq!(served_by(labelled("green", None)), None, "another installation of an older chart");
        assert_eq!(served_by(labelled("green", Some("green/wva"))), None);
        // A patch of the Service alone leaves the labels.
        assert_eq!(served_by(labelled("keda", Some("green/wva"))), Some(another()));
    }

    #[test]
    fn an_installation_that_gets_no_requests_knows_which_service_does() {
        let ours = ServiceRef { namespace: "blue".into(), name: "wva".into() };
        let states = |external, custom: ApiServiceState| {
            let states = [(NAMES[0], external), (NAMES[1], custom.clone()), (NAMES[2], custom)];
            ApiServices(states.into()).external_elsewhere(&ours)
        };
        let (absent, elsewhere) = (ApiServiceState::Absent, pointing_to("wva-system"));
        assert_eq!(states(elsewhere.clone(), absent.clone()), Some("Service wva-system/wva".to_owned()));
        for (external, custom) in [
            (elsewhere.clone(), pointing_to("blue")),
            (pointing_to("blue"), absent.clone()),
            (absent.clone(), absent),
            (elsewhere, ApiServiceState::Unknown),
        ] {
            assert_eq!(states(external.clone(), custom.clone()), None, "{external:?} {custom:?}");
        }
    }
}
