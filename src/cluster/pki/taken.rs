//! What an APIService of another program says while it points to us: what it pointed to before, and why it is not taken over. Pure.

use std::collections::BTreeSet;

use aws_lc_rs::digest::{SHA256, digest};
use k8s_openapi::ByteString;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::apiservice::{NAME, SERVICE_ANNOTATION, ServiceRef};

/// The annotation with what the APIService pointed to before: a [`Backend`] as JSON.
const BEFORE_ANNOTATION: &str = "wva.llmd.ai/before-take-over";
/// The annotation that keeps it from being taken over again, with the reason.
pub(super) const GIVEN_UP_ANNOTATION: &str = "wva.llmd.ai/take-over-given-up";
/// The annotation with the SHA-256 digest of the last `caBundle` of ours there, in hexadecimal: our CA is told from one of the other program.
const OUR_CA_ANNOTATION: &str = "wva.llmd.ai/take-over-ca";
/// The reason of the problem that it was taken from another server than the one that reads are passed on to.
pub(crate) const TAKEN_FROM_ANOTHER: &str = "TakenFromAnother";
/// The port of an APIService that names none.
const DEFAULT_PORT: u64 = 443;
/// The annotations by which another program writes a CA of its own into `caBundle`, whenever another one is there, and which one does.
const INJECTED_ANNOTATIONS: [(&str, &str); 5] = [
    ("cert-manager.io/inject-ca-from", "cert-manager"),
    ("cert-manager.io/inject-ca-from-secret", "cert-manager"),
    ("cert-manager.io/inject-apiserver-ca", "cert-manager"),
    ("service.beta.openshift.io/inject-cabundle", "OpenShift's service CA operator"),
    ("service.alpha.openshift.io/inject-cabundle", "OpenShift's service CA operator"),
];

/// Why the APIService is not taken over, or what keeps it from being given back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// The reason of the condition and of the event.
    pub(crate) reason: &'static str,
    /// What is wrong, and what to do.
    pub(crate) message: String,
}

impl Problem {
    pub(super) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// What the API server verifies and asks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Backend {
    service: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ca_bundle: Option<ByteString>,
    #[serde(default, rename = "insecureSkipTLSVerify", skip_serializing_if = "Option::is_none")]
    insecure_skip_tls_verify: Option<bool>,
}

impl Backend {
    pub(super) fn of(object: &APIService) -> Option<Self> {
        let spec = object.spec.as_ref()?;
        Some(Self {
            service: serde_json::to_value(spec.service.as_ref()?).ok()?,
            ca_bundle: spec.ca_bundle.clone(),
            insecure_skip_tls_verify: spec.insecure_skip_tls_verify.filter(|skips| *skips),
        })
    }

    /// A Service of ours, verified by `trust`, PEM.
    pub(super) fn ours(ServiceRef { namespace, name }: &ServiceRef, port: u16, trust: &str) -> Self {
        Self {
            service: json!({ "namespace": namespace, "name": name, "port": port }),
            ca_bundle: Some(ByteString(trust.as_bytes().to_vec())),
            insecure_skip_tls_verify: None,
        }
    }

    /// The same with these CAs, PEM, beside its own, if it had some and lacks one of these: which of them the server uses by the time that it is
    /// given back is not known.
    pub(super) fn renewed(&self, authorities: &[u8]) -> Option<Self> {
        let certificates = |pem: &[u8]| -> BTreeSet<Vec<u8>> {
            CertificateDer::pem_slice_iter(pem).filter_map(Result::ok).map(|found| found.to_vec()).collect()
        };
        let own = self.ca_bundle.as_ref()?;
        let (known, newest) = (certificates(&own.0), certificates(authorities));
        let both = [&own.0, &b"\n"[..], authorities].concat();
        (!newest.is_subset(&known)).then(|| Self { ca_bundle: Some(ByteString(both)), ..self.clone() })
    }

    /// Its Service, for people.
    pub(super) fn service(&self) -> String {
        let text = |field: &str| self.service[field].as_str().unwrap_or_default();
        format!("Service {}/{}", text("namespace"), text("name"))
    }

    /// Its port.
    fn port(&self) -> u64 {
        self.service["port"].as_u64().unwrap_or(DEFAULT_PORT)
    }

    /// Whether it is this port of this Service.
    pub(super) fn is_of(&self, service: &ServiceRef, port: u16) -> bool {
        self.is_at(&json!({ "namespace": service.namespace, "name": service.name }))
            && self.port() == u64::from(port)
    }

    fn is_at(&self, service: &Value) -> bool {
        ["namespace", "name"].iter().all(|field| self.service[field] == service[field])
    }

    /// Why it is not kept up to date with the server at this port of this Service, and what to do.
    pub(super) fn of_another(&self, service: &ServiceRef, port: u16) -> Problem {
        let (taken_from, own) = (self.service(), self.port());
        let message = format!(
            "it was taken from {taken_from}:{own}, to which it is given back, and reads are passed on to Service {service}:{port} \
             (--fallback-apiservice): name the former there, or set fallback.takeOver=false first, and name the other server once the \
             APIService points to it"
        );
        Problem::new(TAKEN_FROM_ANOTHER, message)
    }

    /// As fields of a merge patch, which removes what is not set.
    pub(super) fn spec(&self) -> Value {
        let Self { service, ca_bundle, insecure_skip_tls_verify } = self;
        let service =
            json!({ "namespace": service["namespace"], "name": service["name"], "port": service["port"] });
        json!({ "service": service, "caBundle": ca_bundle, "insecureSkipTLSVerify": insecure_skip_tls_verify })
    }
}

fn annotation<'a>(object: &'a APIService, name: &str) -> Option<&'a str> {
    object.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// True when it says what it pointed to before it was taken over.
pub(super) fn is_taken(object: &APIService) -> bool {
    annotation(object, BEFORE_ANNOTATION).is_some()
}

/// The Service that has taken it over, as `namespace/name`, if any has.
pub(super) fn taken_by(object: &APIService) -> Option<&str> {
    annotation(object, SERVICE_ANNOTATION).filter(|_| is_taken(object))
}

/// Why it is not taken over again, if somebody has noted that.
pub(super) fn given_up(object: &APIService) -> Option<&str> {
    annotation(object, GIVEN_UP_ANNOTATION)
}

/// The same, if it is not by this Service, `namespace/name`.
pub(super) fn note_of_another<'a>(object: &'a APIService, own: &str) -> Option<&'a str> {
    given_up(object).filter(|_| given_up_by(object) != Some(own))
}

/// The Service that does not take it over any more, as `namespace/name`, if one has given up.
pub(super) fn given_up_by(object: &APIService) -> Option<&str> {
    let text = given_up(object)?;
    Some(text.split_once(' ').map_or(text, |(service, _)| service))
}

/// Why it must not point to `ours`, whatever the state of the server: `None` when it does already, or points to `previous`.
pub(crate) fn refusal(object: &APIService, ours: &ServiceRef, previous: &ServiceRef) -> Option<Problem> {
    if let Some(text) = given_up(object) {
        let message = format!(
            "it is not taken over again ({text}): end that, and then remove the annotation: kubectl annotate apiservice {NAME} \
             {GIVEN_UP_ANNOTATION}-"
        );
        return Some(Problem::new("TakeOverGivenUp", message));
    }
    let is_set = |(name, _): &&(&str, &str)| annotation(object, name).is_some_and(|value| value != "false");
    if let Some((name, injector)) = INJECTED_ANNOTATIONS.iter().find(is_set) {
        let message = format!(
            "its annotation {name} lets {injector} write a CA into caBundle that has not signed the certificate of this program, \
             so it is not taken over: remove the annotation where the other program is installed, and give its CA by --fallback-ca \
             (docs/pass-through.md)"
        );
        return Some(Problem::new("CABundleInjected", message));
    }
    ours.other_owner(object)?;
    // Only one program can know what it pointed to before.
    if let Some(by) = taken_by(object).filter(|by| is_at(object, by)) {
        let message = format!(
            "Service {by} has taken it over, of another installation or of an earlier name of this one: let that give it back (wva \
             give-back --service={by}), and name its owner by --fallback-apiservice"
        );
        return Some(Problem::new("TakenAlready", message));
    }
    let owner = previous.other_owner(object)?;
    let message = format!(
        "it points to {owner}, and only that of Service {previous} (--fallback-apiservice) is taken over"
    );
    Some(Problem::new("PointsElsewhere", message))
}

/// Whether it points to this Service, `namespace/name`.
pub(super) fn is_at(object: &APIService, service: &str) -> bool {
    let pointed = Backend::of(object).map(|backend| backend.service);
    pointed.is_some_and(|own| {
        let text = |field: &str| own[field].as_str().unwrap_or_default();
        service.split_once('/') == Some((text("namespace"), text("name")))
    })
}

/// The patch that lets it point to us, or corrects what somebody has written meanwhile.
///
/// # Errors
/// When it points to no Service.
pub(super) fn taken(object: &APIService, ours: &ServiceRef, backend: &Backend) -> Result<Value, Problem> {
    let unreadable =
        || Problem::new("PointsElsewhere", "it points to no Service, so it cannot be taken over");
    let before = half_reset(object).or_else(|| Backend::of(object)).ok_or_else(unreadable)?;
    let mut patch = restored(backend, &before);
    patch["metadata"]["annotations"][SERVICE_ANNOTATION] = json!(ours.to_string());
    Ok(patch)
}

/// The patch that lets one that was taken over point to us again, as `backend`, and remembers `before`.
pub(super) fn restored(backend: &Backend, before: &Backend) -> Value {
    let mut patch = corrected(backend);
    patch["metadata"]["annotations"][BEFORE_ANNOTATION] = json!(text(before));
    patch
}

/// The patch that lets it point to us.
fn corrected(backend: &Backend) -> Value {
    let digest = backend.ca_bundle.as_ref().map(|bundle| digest_of(&bundle.0));
    json!({ "metadata": { "annotations": { OUR_CA_ANNOTATION: digest } }, "spec": backend.spec() })
}

/// The patch that remembers `before`.
pub(super) fn remembered(before: &Backend) -> Value {
    json!({ "metadata": { "annotations": { BEFORE_ANNOTATION: text(before) } } })
}

fn text(backend: &Backend) -> String {
    json!(backend).to_string()
}

/// What it pointed to before it was taken over.
///
/// # Errors
/// When the annotation is no such thing.
pub(super) fn before(object: &APIService) -> Result<Option<Backend>, Problem> {
    let Some(text) = annotation(object, BEFORE_ANNOTATION) else { return Ok(None) };
    serde_json::from_str(text).map(Some).map_err(|error| {
        let message = format!(
            "it cannot be given back: its annotation {BEFORE_ANNOTATION} is invalid ({error}); let it point to its owner by hand"
        );
        Problem::new("NotGivenBack", message)
    })
}

/// What it is to point to where somebody has let it point to another Service than the one that has taken it over, such as that of before, and
/// has left the CA of the latter there, by which that one is not verified.
pub(super) fn half_reset(object: &APIService) -> Option<Backend> {
    let (before, present) = (before(object).ok()??, Backend::of(object)?);
    let carried = present.ca_bundle.as_ref()?;
    let is_our_ca = annotation(object, OUR_CA_ANNOTATION) == Some(&digest_of(&carried.0));
    let is_wrong = before.ca_bundle.as_ref() != Some(carried);
    let is_kept = taken_by(object).is_some_and(|by| is_at(object, by));
    (is_our_ca && is_wrong && !is_kept).then_some(Backend { service: present.service, ..before })
}

/// What it pointed to before, while it points to us: by which CA its owner's server is verified is what the owner has written last, also
/// meanwhile.
///
/// # Errors
/// As [`before`].
pub(super) fn newest_before(object: &APIService) -> Result<Option<Backend>, Problem> {
    let (Some(before), Some(present)) = (before(object)?, Backend::of(object)) else { return Ok(None) };
    // Without the annotation nothing tells our CA from another one.
    let Some(ours) = annotation(object, OUR_CA_ANNOTATION) else { return Ok(Some(before)) };
    let Backend { service: _, ca_bundle, insecure_skip_tls_verify } = present;
    let is_foreign = match &ca_bundle {
        Some(bundle) => digest_of(&bundle.0) != ours,
        // Never less safe than it was.
        None => insecure_skip_tls_verify.is_some() && before.ca_bundle.is_none(),
    };
    Ok(Some(if is_foreign { Backend { ca_bundle, insecure_skip_tls_verify, ..before } } else { before }))
}

/// What it is to point to from now on. `None` where it does so already, or where somebody else has let it point elsewhere.
///
/// # Errors
/// As [`before`], where it points to us.
pub(super) fn what_to_give_back(object: &APIService, is_ours: bool) -> Result<Option<Backend>, Problem> {
    if is_ours { newest_before(object) } else { Ok(half_reset(object)) }
}

fn digest_of(bundle: &[u8]) -> String {
    let digest = digest(&SHA256, bundle);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The patch that lets it point to `before`, or only removes what was noted. With `given_up`, it is not taken over again.
pub(super) fn given_back(before: Option<&Backend>, given_up: Option<&str>) -> Value {
    let annotations = json!({
        BEFORE_ANNOTATION: null, SERVICE_ANNOTATION: null, OUR_CA_ANNOTATION: null, GIVEN_UP_ANNOTATION: given_up,
    });
    let mut patch = json!({ "metadata": { "annotations": annotations } });
    if let Some(before) = before {
        patch["spec"] = before.spec();
    }
    patch
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::pki::apiservice::{ca_bundle, is_of_chart, skips_verification};

    fn object(spec: &Value) -> APIService {
        let base = json!({
            "metadata": { "name": NAME, "labels": { "app": "keda" } },
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

    fn service(namespace: &str, name: &str) -> ServiceRef {
        ServiceRef { namespace: namespace.into(), name: name.into() }
    }

    #[test]
    fn what_is_given_back_is_what_was_taken() {
        let ours = service("wva-system", "wva");
        for spec in [
            json!({ "service": { "namespace": "keda", "name": "metrics", "port": 6443 }, "insecureSkipTLSVerify": true }),
            json!({ "service": { "namespace": "keda", "name": "metrics" }, "caBundle": "Q0E=" }),
        ] {
            let original = object(&spec);
            let backend = Backend::ours(&ours, 443, "ours");
            let taken_over = patched(&original, &taken(&original, &ours, &backend).unwrap());
            assert_eq!(
                (ours.other_owner(&taken_over), taken_by(&taken_over)),
                (None, Some("wva-system/wva"))
            );
            assert_eq!(Backend::of(&taken_over), Some(backend));
            assert_eq!(ca_bundle(&taken_over), Some(&b"ours"[..]));
            assert!(!skips_verification(&taken_over) && is_of_chart(&taken_over));
            let before = before(&taken_over).unwrap();
            let mut back = patched(&taken_over, &given_back(before.as_ref(), None));
            assert_eq!(back.metadata.annotations.take().unwrap_or_default().len(), 0);
            assert_eq!(back, original);
        }
        assert_eq!(before(&object(&json!({}))), Ok(None));
    }

    #[test]
    fn one_whose_ca_bundle_cert_manager_writes_was_fought_over_for_ever() {
        let (ours, keda) = (service("wva-system", "wva"), service("keda", "metrics"));
        let original = object(&json!({ "service": { "namespace": "keda", "name": "metrics" } }));
        assert_eq!(refusal(&original, &ours, &keda), None);
        for name in INJECTED_ANNOTATIONS.map(|(name, _)| name).into_iter().chain([GIVEN_UP_ANNOTATION]) {
            let patch = json!({ "metadata": { "annotations": { name: "keda/ca" } } });
            let problem = refusal(&patched(&original, &patch), &ours, &keda).unwrap();
            assert!(problem.message.contains(name) && problem.message.contains("remove the"), "{problem:?}");
        }
        let problem = refusal(&original, &ours, &service("datadog", "metrics")).unwrap();
        assert!(problem.message.contains("it points to Service keda/metrics"), "{problem:?}");
        let off = json!({ "metadata": { "annotations": { "service.beta.openshift.io/inject-cabundle": "false" } } });
        assert_eq!(refusal(&patched(&original, &off), &ours, &keda), None);
        let to_us = object(&json!({ "service": { "namespace": "wva-system", "name": "wva" } }));
        assert_eq!(refusal(&to_us, &ours, &keda), None);
    }

    /// One of this Service that was taken over.
    fn taken_over(spec: &Value) -> APIService {
        let (original, ours) = (object(spec), service("wva-system", "wva"));
        patched(&original, &taken(&original, &ours, &Backend::ours(&ours, 443, "ours")).unwrap())
    }

    #[test]
    fn a_second_program_forgot_what_it_had_pointed_to_before_the_first_one() {
        let keda = json!({ "service": { "namespace": "keda", "name": "metrics" }, "caBundle": "Q0E=" });
        let object = taken_over(&keda);
        let problem = refusal(&object, &service("new", "wva"), &service("wva-system", "wva")).unwrap();
        assert!(problem.message.contains("wva give-back --service=wva-system/wva)"), "{problem:?}");
        assert_eq!(what_to_give_back(&object, false), Ok(None), "the other one would lose its CA");
    }

    #[test]
    fn an_older_ca_was_given_back_than_the_owner_had_written_meanwhile() {
        let skips =
            json!({ "service": { "namespace": "keda", "name": "metrics" }, "insecureSkipTLSVerify": true });
        let verified = json!({ "service": { "namespace": "keda", "name": "metrics" }, "caBundle": "Q0E=" });
        for (before, written, expected) in [
            (&skips, json!({ "caBundle": "TkVX" }), json!({ "caBundle": "TkVX" })),
            (&verified, json!({ "caBundle": "TkVX" }), json!({ "caBundle": "TkVX" })),
            (
                &verified,
                json!({ "caBundle": null, "insecureSkipTLSVerify": true }),
                json!({ "caBundle": "Q0E=" }),
            ),
            (
                &skips,
                json!({ "caBundle": null, "insecureSkipTLSVerify": true }),
                json!({ "insecureSkipTLSVerify": true }),
            ),
            (&verified, json!({ "caBundle": null }), json!({ "caBundle": "Q0E=" })),
            (&verified, json!({}), json!({ "caBundle": "Q0E=" })),
        ] {
            let written = patched(&taken_over(before), &json!({ "spec": written }));
            let back = what_to_give_back(&written, true).unwrap();
            let mut expected = json!({ "spec": expected });
            expected["spec"]["service"] = before["service"].clone();
            let expected = Backend::of(&object(&expected["spec"]));
            assert_eq!(back, expected);
            // As it is when it points to us again.
            let ours = Backend::ours(&service("wva-system", "wva"), 443, "ours");
            let restored = patched(&written, &restored(&ours, &back.unwrap()));
            assert_eq!(newest_before(&restored).unwrap(), expected);
        }
    }

    #[test]
    fn a_service_of_another_name_was_left_with_our_ca() {
        let spec = json!({ "service": { "namespace": "keda", "name": "metrics" }, "caBundle": "Q0E=" });
        let renamed = json!({ "spec": { "service": { "namespace": "keda", "name": "new" } } });
        let back = what_to_give_back(&patched(&taken_over(&spec), &renamed), false).unwrap().unwrap();
        assert_eq!(
            (back.service["name"].as_str(), back.ca_bundle),
            (Some("new"), Some(ByteString("CA".into())))
        );
    }

    #[test]
    fn a_ca_that_was_replaced_meanwhile_was_given_back() {
        let pem = |body: &str| format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n");
        let with = |text: &str| Backend {
            ca_bundle: Some(ByteString(text.into())),
            ..Backend::ours(&service("a", "b"), 1, "")
        };
        let before = with(&pem("AAAA"));
        assert_eq!(before.renewed(format!("\n{}", pem("AAAA")).as_bytes()), None, "the same certificate");
        assert_eq!(before.renewed(b"no certificate"), None);
        let both = with(&format!("{}\n{}", pem("AAAA"), pem("BBBB")));
        assert_eq!(
            before.renewed(pem("BBBB").as_bytes()),
            Some(both.clone()),
            "while the server changes its certificate"
        );
        assert_eq!(both.renewed(pem("AAAA").as_bytes()), None, "nothing newer is lost");
        let unverified = Backend { ca_bundle: None, ..before };
        assert_eq!(unverified.renewed(pem("BBBB").as_bytes()), None, "it had none");
    }
}
