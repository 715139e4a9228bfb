//! The APIServices of the metrics APIs and of explanations: who owns them, whether the API server reaches their owner, and whether its certificate verifies.

use std::collections::BTreeMap;

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::Client;
use kube::api::{Api, GetParams, ListParams};
use kube::core::Request;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Deserialize;

use super::gather::REQUEST_TIMEOUT;
use super::inputs::Inputs;
use super::report::Report;
use super::settings::Settings;
use crate::cluster::ServiceRef;
use crate::cluster::pki::apiservice::{
    EXPLANATIONS_NAME, METRICS_NAMES, NAME, NAMES, ca_bundle, is_of_chart, skips_verification,
};
use crate::cluster::pki::certificates::DEFAULT_SECRET_NAME;
use crate::cluster::pki::self_check::{CONDITION, condition};
use crate::cluster::pki::verify;
use crate::cluster::requests::{RequestError, bounded_by};
use crate::cmd::api;
use crate::lint::{INSTALL_FIX, OWNER_FIX, Severity, is_of_keda, reads_a_number};

/// What was read of each.
pub(super) struct Services(BTreeMap<&'static str, Result<Option<APIService>, RequestError>>);

/// The certificate of a Secret; its key is not read.
#[derive(Deserialize)]
struct CertificateSecret {
    data: CertificateData,
}

#[derive(Deserialize)]
struct CertificateData {
    #[serde(rename = "tls.crt")]
    certificate: ByteString,
}

/// Reads the APIServices.
pub(super) async fn read(client: &Client) -> Services {
    let api: Api<APIService> = Api::all(client.clone());
    let reads = NAMES.map(|name| {
        let api = api.clone();
        // A list, because the program itself may list these names, and not get them.
        let named = ListParams::default().fields(&format!("metadata.name={name}"));
        async move {
            let listed = bounded_by(REQUEST_TIMEOUT, api.list(&named)).await;
            (name, listed.map(|list| list.items.into_iter().next()))
        }
    });
    Services(join_all(reads).await.into_iter().collect())
}

fn service(object: &APIService) -> Option<ServiceRef> {
    let service = object.spec.as_ref()?.service.as_ref()?;
    Some(ServiceRef { namespace: service.namespace.clone()?, name: service.name.clone()? })
}

fn is_ours(object: &APIService, settings: &Settings) -> bool {
    is_of_chart(object) || settings.service.other_owner(object).is_none()
}

impl Services {
    /// The Service of this program, if an APIService of the chart points at one.
    pub(super) fn release(&self) -> Option<ServiceRef> {
        let mut present = self.0.values().filter_map(|read| read.as_ref().ok()?.as_ref());
        present.find(|object| is_of_chart(object)).and_then(service)
    }

    /// That of external metrics, if it exists.
    pub(super) fn external(&self) -> Option<&APIService> {
        self.0.get(NAME)?.as_ref().ok()?.as_ref()
    }

    /// Checks those that point at this program.
    pub(super) async fn check(&self, client: &Client, settings: &Settings, now: Timestamp) -> Report {
        let mut report = Report::default();
        let mut certificate = None;
        for (name, read) in &self.0 {
            let object = match read {
                Ok(object) => object.as_ref(),
                Err(error) => {
                    report.add_unchecked(
                        *name == NAME && settings.namespace.is_none(),
                        format!("APIService {name}"),
                        format!("could not list it: {error}"),
                        "# grant the right to list apiservices to who runs this",
                    );
                    continue;
                }
            };
            let Some(object) = object.filter(|object| is_ours(object, settings)) else { continue };
            check_available(name, object, &mut report);
            if skips_verification(object) {
                report.add(
                    (Severity::Warning, "CertificateNotVerified"),
                    format!("APIService {name}"),
                    "insecureSkipTLSVerify is true",
                    "the API server sends the requests of HPAs to any server that answers at that address",
                    "spec:\n  insecureSkipTLSVerify: false # wva fills in caBundle",
                );
                continue;
            }
            if certificate.is_none() {
                certificate = Some(read_certificate(client, object, settings).await);
            }
            check_certificate(name, object, certificate.as_ref(), now, &mut report);
        }
        report
    }

    /// Notes that another program, such as another installation, serves the explanations.
    pub(super) fn check_explanations(&self, settings: &Settings, report: &mut Report) {
        let Some(Ok(Some(object))) = self.0.get(EXPLANATIONS_NAME) else { return };
        if is_ours(object, settings) {
            return;
        }
        let owner = settings.service.other_owner(object).unwrap_or_default();
        report.add(
            (Severity::Note, "ApiServiceOfAnother"),
            format!("APIService {EXPLANATIONS_NAME}"),
            format!("it points at {owner}, which is not this program"),
            "kubectl wva shows the variants of that program, and none of this one",
            "# wva explain --server reads from this one",
        );
    }

    /// Checks whether the HPAs that read external metrics get them from this program.
    pub(super) fn check_readers(&self, inputs: &Inputs, settings: &Settings, report: &mut Report) {
        let Some(Ok(object)) = self.0.get(NAME) else { return };
        let reads_external = |hpa: &&k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler| {
            let mut metrics = hpa.spec.iter().flat_map(|spec| spec.metrics.iter().flatten());
            reads_a_number(hpa)
                && !is_of_keda(&hpa.metadata)
                && metrics.any(|metric| metric.external.is_some())
        };
        let readers = inputs.hpas.iter().filter(reads_external).count();
        let has_custom = METRICS_NAMES.iter().filter(|name| **name != NAME).any(|name| {
            let custom = self.0.get(name).and_then(|read| read.as_ref().ok()?.as_ref());
            custom.is_some_and(|custom| is_ours(custom, settings))
        });
        let severity = match readers {
            0 if has_custom || inputs.scaled_objects.iter().any(|scaled| scaled.reads_a_number()) => {
                Severity::Note
            }
            0 => Severity::Warning,
            _ => Severity::Error,
        };
        let effect = format!(
            "{readers} HPAs read the number as an external metric, and get it only from the owner of this APIService, of which a \
             cluster has one"
        );
        match object {
            None => report.add(
                (severity, "ApiServiceMissing"),
                format!("APIService {NAME}"),
                "it does not exist",
                effect,
                INSTALL_FIX,
            ),
            Some(object) if !is_ours(object, settings) => {
                let owner = settings.service.other_owner(object).unwrap_or_default();
                report.add(
                    (severity, "ApiServiceOfAnother"),
                    format!("APIService {NAME}"),
                    format!("it points at {owner}, which is not this program"),
                    effect,
                    OWNER_FIX,
                );
            }
            Some(_) => {}
        }
    }
}

fn check_available(name: &str, object: &APIService, report: &mut Report) {
    let available = condition(object, "Available");
    if available.is_some_and(|condition| condition.status == "True") {
        return;
    }
    let cause = available.map_or_else(
        || "the API server has not judged it yet".to_owned(),
        |condition| {
            let text = |field: &Option<String>| field.clone().unwrap_or_default();
            format!("{}: {}", text(&condition.reason), text(&condition.message))
        },
    );
    report.add(
        (Severity::Error, "ApiServiceUnavailable"),
        format!("APIService {name}"),
        format!("its condition Available is not True: {cause}"),
        match name {
            EXPLANATIONS_NAME => "kubectl wva shows nothing; and while an API is missing, no namespace can be deleted",
            _ => "no HPA reads a number and all keep their replicas; and while an API is missing, no namespace can be deleted",
        },
        format!(
            "# kubectl -n {} get pods,endpointslices; kubectl -n {0} logs deploy/wva",
            service(object).map_or_else(|| "wva-system".into(), |service| service.namespace)
        ),
    );
}

/// The certificate that the instances share, and the name it is verified by, or why it is not known.
async fn read_certificate(
    client: &Client,
    object: &APIService,
    settings: &Settings,
) -> Result<(Vec<CertificateDer<'static>>, ServiceRef), String> {
    let service = service(object).unwrap_or_else(|| settings.service.clone());
    let path = format!("/api/v1/namespaces/{}/secrets", service.namespace);
    let request = Request::new(path).get(DEFAULT_SECRET_NAME, &GetParams::default());
    let read = api::request::<CertificateSecret>(client, request, REQUEST_TIMEOUT).await;
    let secret = read.map_err(|error| {
        format!("could not get Secret {}/{DEFAULT_SECRET_NAME}: {error}", service.namespace)
    })?;
    let chain: Vec<_> =
        CertificateDer::pem_slice_iter(&secret.data.certificate.0).filter_map(Result::ok).collect();
    if chain.is_empty() {
        return Err(format!("Secret {}/{DEFAULT_SECRET_NAME} has no certificate", service.namespace));
    }
    Ok((chain, service))
}

fn check_certificate(
    name: &str,
    object: &APIService,
    certificate: Option<&Result<(Vec<CertificateDer<'static>>, ServiceRef), String>>,
    now: Timestamp,
    report: &mut Report,
) {
    let fix =
        "# if it lasts: docs/ARCHITECTURE.md, \"Certificates\"; certs/README.md for certificates of your own";
    let object_name = format!("APIService {name}");
    let effect = match name {
        EXPLANATIONS_NAME => {
            "the API server refuses the program's certificate, and kubectl wva shows nothing"
        }
        _ => "the API server refuses the program's certificate, and no HPA reads a number",
    };
    // The instances themselves verify what they serve, also where it is no Secret of theirs.
    if let Some(own) = condition(object, CONDITION).filter(|condition| condition.status == "False") {
        let cause = own.message.clone().unwrap_or_default();
        return report.add(
            (Severity::Error, "CABundleInvalid"),
            object_name,
            format!("{CONDITION} is False: {cause}"),
            effect,
            fix,
        );
    }
    let is_verified = condition(object, CONDITION).is_some_and(|condition| condition.status == "True");
    match (certificate, ca_bundle(object)) {
        (_, None) if is_verified => {}
        (Some(Ok((chain, service))), Some(bundle)) => {
            if let Err(refusal) = verify(bundle, chain, &service.server_name(), now) {
                let set =
                    format!("caBundle does not verify the certificate in the Secret: {}", refusal.message);
                report.add((Severity::Error, "CABundleInvalid"), object_name, set, effect, fix);
            }
        }
        (_, None) => report.add(
            (Severity::Error, "CABundleMissing"),
            object_name,
            "caBundle is empty",
            "the API server verifies by its system's CAs, which did not issue the program's certificate",
            fix,
        ),
        (Some(Err(_)), Some(_)) if is_verified => {}
        (Some(Err(cause)), Some(_)) => report.add_unchecked(
            false,
            object_name,
            cause,
            "# its condition Available says what the API server thinks",
        ),
        (None, Some(_)) => {}
    }
}
