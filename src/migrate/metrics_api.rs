//! Who owns `external.metrics.k8s.io`, of which a cluster has one owner, and what else is read from it.

use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use serde::Deserialize;
use serde_json::Value;

use super::autoscalers::ExternalReaders;
use super::documents;
use super::objects::{Kind, Objects, metrics_apis};
use super::release::{is_name, owner};
use super::report::{ObjectName, Report, count};
use crate::cluster::pki::apiservice::NAME as EXTERNAL_METRICS;
use crate::serve::Metric;
use wva_core::text::{first_names, quoted};

/// Most rules that a sentence names.
const MAX_NAMED: usize = 8;

/// How the numbers reach the autoscalers after the migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route {
    /// This program owns the API. An adapter that owns it now has to give it up.
    Direct(Option<Adapter>),
    /// This program owns the API already.
    Done,
    /// Its owner stays, because it serves more than WVA's numbers, and reads this program's from Prometheus.
    Scraped,
    /// The API or what its owner serves could not be read.
    Unknown,
}

/// An installation of prometheus-adapter, by what its APIService can be taken from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Adapter {
    /// By manifests.
    Manifests,
    /// By its chart.
    Chart {
        release: ObjectName,
        version: String,
        /// Whether it serves other metrics as well.
        serves_more: bool,
    },
    /// By something that no command here is safe for; a finding says what.
    Other,
}

/// The name of its chart.
const ADAPTER_CHART: &str = "prometheus-adapter";

/// The configuration of prometheus-adapter, as far as it is read.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct AdapterConfig {
    external_rules: Option<Vec<Rule>>,
    /// The rules of custom metrics.
    rules: Value,
    /// The rules of CPU and memory.
    resource_rules: Value,
}

/// The rules of prometheus-adapter that are not WVA's.
#[derive(Default)]
struct OtherRules {
    external: Vec<String>,
    /// Whether there are any of custom or resource metrics.
    has_more: bool,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Rule {
    series_query: String,
    name: RuleName,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RuleName {
    matches: Option<String>,
    #[serde(rename = "as")]
    renamed: Option<String>,
}

impl Rule {
    fn is_of_wva(&self) -> bool {
        Metric::NAMES.iter().any(|(name, _)| self.series_query.contains(name))
    }

    fn label(&self) -> String {
        let name =
            [&self.name.renamed, &self.name.matches].into_iter().flatten().find(|name| !name.is_empty());
        name.unwrap_or(&self.series_query).clone()
    }
}

/// Reports the owner of the API and what is lost if it changes. How the numbers reach the autoscalers is the result.
pub(super) fn route(objects: &Objects, readers: &ExternalReaders, report: &mut Report) -> Route {
    let Some(api) = objects.api_services.get(EXTERNAL_METRICS) else {
        if objects.is_unread(Kind::ApiService) {
            return Route::Unknown;
        }
        report.found(format!("no APIService {EXTERNAL_METRICS}"));
        return Route::Direct(None);
    };
    let service = service(api);
    report.found(format!("APIService {EXTERNAL_METRICS}, which points at Service {service}"));
    let label = api.metadata.labels.as_ref().and_then(|labels| labels.get("app.kubernetes.io/name"));
    if label.is_some_and(|label| label == "wva") {
        report.same(format!("APIService {EXTERNAL_METRICS} points at this program already"));
        return Route::Done;
    }
    if service.name.contains("prometheus-adapter") {
        return of_adapter(api, service, objects, readers, report);
    }
    let program = if service.name.contains("keda") { "KEDA" } else { "its owner" };
    for name in &readers.of_wva {
        report.act(
            format!("HPA {name}"),
            format!("it reads an external metric of WVA, and {program} answers for external metrics and does not serve it"),
            format!(
                "let it read the number as a metric of its object (manifests/samples/hpa-object.yaml), and set \
                 apiService.custom.enabled in wva-values.yaml, or remove {program}"
            ),
        );
    }
    report.same(format!("{program} keeps APIService {EXTERNAL_METRICS}: its metrics are not affected"));
    Route::Scraped
}

fn service(api: &APIService) -> ObjectName {
    let service = api.spec.as_ref().and_then(|spec| spec.service.as_ref());
    let text = |field: Option<&String>| field.cloned().unwrap_or_default();
    ObjectName {
        namespace: text(service.and_then(|service| service.namespace.as_ref())),
        name: text(service.and_then(|service| service.name.as_ref())),
    }
}

fn of_adapter(
    api: &APIService,
    service: ObjectName,
    objects: &Objects,
    readers: &ExternalReaders,
    report: &mut Report,
) -> Route {
    let other_rules = other_rules(&service, objects, report);
    if let Some(namespace) = &objects.namespace {
        report.lose(
            "external metrics of other namespaces",
            format!("only namespace {namespace} was read, and HPAs of others may read more from prometheus-adapter"),
            "run this without -n, as somebody who may read all namespaces",
        );
    }
    for (name, metric) in &readers.of_others {
        report.change(
            format!("HPA {name}"),
            format!(
                "it reads external metric {metric} from prometheus-adapter, and would lose it if APIService {EXTERNAL_METRICS} pointed \
                 at this program: therefore the adapter stays its owner, and serves this program's numbers by WVA's rule, as old as a \
                 scrape; to end that, let KEDA scale this workload"
            ),
        );
    }
    let Some(other_rules) = other_rules else { return Route::Unknown };
    if !readers.of_others.is_empty() {
        return Route::Scraped;
    }
    if !other_rules.external.is_empty() {
        let names = first_names(other_rules.external.into_iter(), MAX_NAMED, ", ");
        report.lose(
            format!("external rules of prometheus-adapter: {names}"),
            "no HPA reads them, and nobody else can once the APIService points at this program",
            "make sure that nobody reads them (`kubectl get --raw`, other controllers)",
        );
    }
    let serves =
        |name: &&str| objects.api_services.get(*name).is_some_and(|api| self::service(api) == service);
    let other_apis: Vec<_> = metrics_apis().filter(|name| *name != EXTERNAL_METRICS).filter(serves).collect();
    if !other_apis.is_empty() {
        report.same(format!("prometheus-adapter keeps {}", other_apis.join(" and ")));
    } else if other_rules.has_more {
        report.same("prometheus-adapter stays, because it has rules of custom or resource metrics");
    }
    let serves_more = !other_apis.is_empty() || other_rules.has_more;
    Route::Direct(Some(installation(api, &service, serves_more, objects, report)))
}

/// By what the adapter was installed. The annotations of its APIService may name the release of another program: whoever points an
/// APIService of KEDA at the adapter leaves those of KEDA on it.
fn installation(
    api: &APIService,
    service: &ObjectName,
    serves_more: bool,
    objects: &Objects,
    report: &mut Report,
) -> Adapter {
    let Some(release) = owner(&api.metadata) else { return Adapter::Manifests };
    let chart = objects.releases.get(&release).map(|stored| &stored.chart);
    match chart {
        Some((name, version))
            if name == ADAPTER_CHART && release.namespace == service.namespace && is_name(version) =>
        {
            return Adapter::Chart { version: version.clone(), release, serves_more };
        }
        _ => {}
    }
    let of_chart = chart.map_or_else(
        || "whose chart could not be read".into(),
        |(name, version)| format!("of chart {} {}", quoted(name), quoted(version)),
    );
    report.act(
        format!("APIService {EXTERNAL_METRICS}"),
        format!(
            "it points at Service {service} and belongs to the Helm release {} in {}, {of_chart}: no command here takes it from \
             prometheus-adapter, because uninstalling that release might remove another program",
            release.name, release.namespace
        ),
        "find out who set it up (`helm list --all-namespaces`), let that give the APIService up, and keep what brings it back; the chart \
         of this program refuses to take an APIService that exists",
    );
    Adapter::Other
}

/// The rules of prometheus-adapter that are not WVA's; `None` if some could not be read.
fn other_rules(service: &ObjectName, objects: &Objects, report: &mut Report) -> Option<OtherRules> {
    let in_namespace = objects.config_maps.iter().filter(|(name, _)| name.namespace == service.namespace);
    let texts = in_namespace.filter_map(|(name, map)| Some((name, map.data.as_ref()?.get("config.yaml")?)));
    let mut other_rules = OtherRules::default();
    let (mut is_found, mut is_unread) = (false, objects.is_unread(Kind::ConfigMap));
    let of_adapter =
        texts.filter(|(name, text)| text.contains("externalRules:") || name.name.contains("adapter"));
    for (name, text) in of_adapter {
        let config = documents::parse(text).and_then(|value| {
            serde_json::from_value::<AdapterConfig>(value).map_err(|error| error.to_string())
        });
        match config {
            Ok(config) => {
                is_found = true;
                let rules = config.external_rules.unwrap_or_default();
                report.found(format!(
                    "ConfigMap {name} with {} of prometheus-adapter",
                    count(rules.len(), "external rule")
                ));
                other_rules.external.extend(rules.iter().filter(|rule| !rule.is_of_wva()).map(Rule::label));
                other_rules.has_more |= has_content(&config.rules) || has_content(&config.resource_rules);
            }
            Err(cause) => {
                is_unread = true;
                report.unread(format!(
                    "ConfigMap {name}, config.yaml: {cause}; correct it, or check by hand which metrics the adapter serves"
                ));
            }
        }
    }
    if !is_found {
        report.unread(format!(
            "the rules of prometheus-adapter: no ConfigMap in namespace {} has them; check by hand which other external metrics \
             it serves, because they are lost when the APIService changes its owner",
            service.namespace
        ));
    }
    (is_found && !is_unread).then_some(other_rules)
}

fn has_content(rules: &Value) -> bool {
    match rules {
        Value::Null => false,
        Value::Array(rules) => !rules.is_empty(),
        Value::Object(rules) => !rules.is_empty(),
        _ => true,
    }
}
