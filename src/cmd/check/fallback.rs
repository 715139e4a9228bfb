//! The server that external metrics are passed on to: whether its Service exists, whether it answers, and what keeps its APIService from being
//! taken over.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::Client;
use kube::api::{Api, ListParams};
use prometheus_client::registry::Registry;

use super::gather::REQUEST_TIMEOUT;
use super::report::Report;
use super::settings::Settings;
use crate::app::fallback_api;
use crate::cluster::ServiceRef;
use crate::cluster::pki::apiservice::NAME;
use crate::cluster::pki::self_check::condition;
use crate::cluster::pki::{TAKEN_FROM_ANOTHER, TAKEN_OVER_CONDITION, take_over_refusal};
use crate::cluster::requests::bounded_by;
use crate::config::Fallback;
use crate::lint::Severity;
use crate::telemetry::FallbackMetrics;

const NOT_PASSED_ON: &str = "external metrics that are neither of variants nor of rules are errors, and the APIService is not taken over";

/// Checks the configured server, if there is one. `external`: the APIService of external metrics, if it is known.
pub(super) async fn check(client: &Client, settings: &Settings, external: Option<&APIService>) -> Report {
    let mut report = Report::default();
    let Some(fallback) = &settings.fallback else { return report };
    check_service(client, fallback, &mut report).await;
    if settings.is_in_pod {
        let server = fallback_api(fallback, FallbackMetrics::register(&mut Registry::default()));
        if let Err(cause) = server.check().await {
            report.add(
                (Severity::Error, "FallbackUnavailable"),
                name(fallback),
                format!("it does not answer this program: {cause}"),
                NOT_PASSED_ON,
                "# docs/pass-through.md",
            );
        }
    } else {
        report.add_unchecked(
            false,
            name(fallback),
            "whether it answers shows only where the program runs",
            format!(
                "# kubectl exec -n {} deploy/{} -- /wva check",
                settings.service.namespace, settings.service.name
            ),
        );
    }
    check_take_over(settings, fallback, external, &mut report);
    report
}

fn name(fallback: &Fallback) -> String {
    format!("Service {}/{}", fallback.namespace, fallback.name)
}

async fn check_service(client: &Client, fallback: &Fallback, report: &mut Report) {
    let Fallback { namespace, name: service, port, .. } = fallback;
    let api: Api<Service> = Api::namespaced(client.clone(), namespace);
    // A list, because the program itself may list Services, and not get them.
    let named = ListParams::default().fields(&format!("metadata.name={service}"));
    let listed = match bounded_by(REQUEST_TIMEOUT, api.list(&named)).await {
        Ok(listed) => listed,
        Err(error) => {
            let cause = format!("could not list it: {error}");
            return report.add_unchecked(
                false,
                name(fallback),
                cause,
                "# grant the right to list services to who runs this",
            );
        }
    };
    let ports = listed.items.first().map(|found| {
        let spec = found.spec.as_ref();
        let ports = spec.and_then(|spec| spec.ports.as_ref()).into_iter().flatten();
        let is_alias = spec.is_some_and(|spec| spec.type_.as_deref() == Some("ExternalName"));
        (is_alias, ports.map(|port| port.port.to_string()).collect::<Vec<_>>())
    });
    let problem = match ports {
        None => "it does not exist".to_owned(),
        Some((is_alias, ports)) if is_alias || ports.contains(&port.to_string()) => return,
        Some((_, ports)) => format!("it has no port {port}, but {}", ports.join(", ")),
    };
    report.add(
        (Severity::Error, "FallbackServiceMissing"),
        name(fallback),
        problem,
        NOT_PASSED_ON,
        format!("fallback:\n  apiService: NAMESPACE/SERVICE:PORT # as in spec.service of APIService {NAME}, before it was taken over"),
    );
}

fn check_take_over(
    settings: &Settings,
    fallback: &Fallback,
    external: Option<&APIService>,
    report: &mut Report,
) {
    let Some(object) = external else { return };
    let is_wanted = fallback.take_over.is_some();
    let previous = ServiceRef { namespace: fallback.namespace.clone(), name: fallback.name.clone() };
    let problem = take_over_refusal(object, &settings.service, &previous).map(|problem| problem.message);
    let effect = "HPAs read external metrics there, and find no variants";
    let object_name = format!("APIService {NAME}");
    if let Some(message) = problem {
        let severity = if is_wanted { Severity::Error } else { Severity::Warning };
        return report.add(
            (severity, "TakeOverRefused"),
            object_name,
            message,
            effect,
            "# docs/pass-through.md",
        );
    }
    let said = condition(object, TAKEN_OVER_CONDITION).filter(|_| is_wanted);
    let Some(message) = said.and_then(|own| own.message.clone()) else { return };
    let (reason, effect) = match said.map(|own| (own.status.as_str(), own.reason.as_deref())) {
        Some((_, Some(TAKEN_FROM_ANOTHER))) => (
            TAKEN_FROM_ANOTHER,
            "it is given back to a server that may be gone or may have another CA by then: its CA is not kept up to date",
        ),
        Some(("False", _)) => ("TakeOverWaits", effect),
        _ => return,
    };
    report.add((Severity::Warning, reason), object_name, message, effect, "# docs/pass-through.md");
}
