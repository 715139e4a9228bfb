//! The documents agree with each other, and advertise nothing that a client must not use.

use futures::future::BoxFuture;
use parking_lot::Mutex;

use super::groups::{CUSTOM, DECISIONS, EXTERNAL};
use super::*;
use crate::serve::paths::DESCRIBED_RESOURCES;
use crate::serve::ports::{
    LabelRequirement, ObjectAnswer, ObjectRead, ResourceMetrics, RuleAnswer, UsageAnswer, UsageRead,
};
use smol_str::SmolStr;

/// Every value under `key`, at any depth.
fn values_of<'a>(key: &str, value: &'a Value) -> Vec<&'a Value> {
    let nested = |inner: &'a Value| values_of(key, inner);
    match value {
        Value::Array(items) => items.iter().flat_map(nested).collect(),
        Value::Object(map) => map.get(key).into_iter().chain(map.values().flat_map(nested)).collect(),
        _ => Vec::new(),
    }
}

/// The versions of metrics.
fn with_versions() -> [(Api, &'static str); 3] {
    [(EXTERNAL, "v1beta1"), (CUSTOM, "v1beta1"), (CUSTOM, "v1beta2")]
}

#[test]
fn every_encoding_of_a_static_object_says_the_same() {
    let of_answer = |answer| match answer {
        StaticAnswer::Object(object) => Some(object),
        StaticAnswer::Metrics(version, metrics) => metrics.newest().resources.get(&version).cloned(),
        StaticAnswer::AnyAccept(_) | StaticAnswer::Json(_) => None,
    };
    let objects: Vec<_> = documents(Arc::new(ListedMetrics::new(None, None)))
        .into_iter()
        .filter_map(|(_, answer)| of_answer(answer))
        .chain([Groups::new(&APIS, &AddedMetrics::default()).legacy])
        .collect();
    assert_eq!(objects.len(), 8);
    for object in objects {
        let [json, yaml, protobuf] = object.bodies();
        let json: Value = serde_json::from_slice(json).unwrap();
        let yaml: Value = serde_saphyr::from_str(std::str::from_utf8(yaml).unwrap()).unwrap();
        assert_eq!(json, yaml);
        assert!(protobuf.starts_with(b"k8s\0"));
        let text = String::from_utf8_lossy(protobuf);
        for name in values_of("name", &json).into_iter().chain(values_of("groupVersion", &json)) {
            assert!(text.contains(name.as_str().unwrap()), "{name}");
        }
    }
}

#[test]
fn every_metric_is_listed_once_and_nothing_but_reads_is_offered() {
    for (api, version) in with_versions() {
        let legacy = serde_json::to_value(groups::resources(api, version, &AddedMetrics::default())).unwrap();
        let names: Vec<_> =
            values_of("name", &legacy).into_iter().map(|name| name.as_str().unwrap()).collect();
        let metrics = groups::metric_names().count()
            * if api.group == CUSTOM.group { DESCRIBED_RESOURCES.len() } else { 1 };
        assert_eq!(names.len(), metrics);
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), metrics, "each once");
        assert!(names.iter().all(|name| *name == name.to_ascii_lowercase()), "an HPA lower-cases");
    }
    for verbs in [
        groups::aggregated("x", &APIS, &AddedMetrics::default()),
        serde_json::to_value(groups::resources(CUSTOM, "v1beta1", &AddedMetrics::default())).unwrap(),
        serde_json::to_value(groups::resources(DECISIONS, "v1alpha1", &AddedMetrics::default())).unwrap(),
    ]
    .iter()
    .flat_map(|document| values_of("verbs", document))
    {
        assert!([json!(["get"]), json!([]), json!(["get", "list"])].contains(verbs), "{verbs}");
    }
}

#[test]
fn everything_in_the_aggregated_document_has_a_kind() {
    let document = groups::aggregated("apidiscovery.k8s.io/v2", &APIS, &AddedMetrics::default());
    let resources: Vec<_> = ["resources", "subresources"]
        .iter()
        .flat_map(|key| values_of(key, &document))
        .flat_map(|list| list.as_array().unwrap())
        .collect();
    assert_eq!(resources.len(), 4 + 2 * DESCRIBED_RESOURCES.len() * (1 + 4) + 1);
    for resource in resources {
        let kind = &resource["responseKind"];
        assert!(
            ["group", "version", "kind"]
                .iter()
                .all(|key| kind[key].as_str().is_some_and(|text| !text.is_empty()))
        );
    }
}

#[test]
fn every_definition_is_there_for_a_path_and_every_reference_leads_somewhere() {
    let versions = with_versions().into_iter().chain([(DECISIONS, "v1alpha1")]);
    let documents: Vec<_> = versions.map(|(api, version)| openapi::v3(api, version)).collect();
    let v2 = openapi::v2();
    for (document, place) in
        documents.iter().map(|document| (document, "/components/schemas")).chain([(&v2, "/definitions")])
    {
        let references = |value| -> BTreeSet<String> {
            values_of("$ref", value)
                .iter()
                .map(|reference| reference.as_str().unwrap().trim_start_matches('#').to_owned())
                .collect()
        };
        let mut reached = references(&document["paths"]);
        for reference in reached.clone() {
            reached.extend(references(document.pointer(&reference).expect(&reference)));
        }
        let defined = document.pointer(place).unwrap().as_object().unwrap();
        let defined: BTreeSet<_> = defined.keys().map(|name| format!("{place}/{name}")).collect();
        assert_eq!(reached, defined);
    }
    let ids: Vec<_> = values_of("operationId", &v2).into_iter().map(Value::to_string).collect();
    assert_eq!(
        (ids.len(), ids.iter().collect::<BTreeSet<_>>().len()),
        (4 + 2 * DESCRIBED_RESOURCES.len() * 4 + 3, ids.len())
    );
}

#[test]
fn kubectl_explains_explanations_by_the_path_of_an_object() {
    let kind = json!({"group": "decisions.wva.llmd.ai", "version": "v1alpha1", "kind": "Explanation"});
    for document in [openapi::v2(), openapi::v3(DECISIONS, "v1alpha1")] {
        let path = "/apis/decisions.wva.llmd.ai/v1alpha1/namespaces/{namespace}/explanations/{name}";
        assert_eq!(document["paths"][path]["get"]["x-kubernetes-group-version-kind"], kind);
    }
}

#[test]
fn what_kubectl_explains_has_a_path_of_its_own_kind() {
    let kind =
        json!({"group": "external.metrics.k8s.io", "version": "v1beta1", "kind": "ExternalMetricValueList"});
    for document in [openapi::v2(), openapi::v3(EXTERNAL, "v1beta1")] {
        for metric in groups::metric_names() {
            let path = format!("/apis/external.metrics.k8s.io/v1beta1/namespaces/{{namespace}}/{metric}");
            assert_eq!(document["paths"][path]["get"]["x-kubernetes-group-version-kind"], kind);
        }
    }
}

/// Rules whose metrics change.
#[derive(Default)]
struct ChangingRules(Mutex<AddedMetrics>);

impl RuleMetrics for ChangingRules {
    fn names(&self) -> Arc<[SmolStr]> {
        Arc::clone(&self.0.lock().external)
    }

    fn objects(&self) -> Arc<[ResourceMetrics]> {
        Arc::clone(&self.0.lock().objects)
    }

    fn unlisted_objects(&self) -> Option<String> {
        None
    }

    fn read_objects<'a>(&'a self, _: ObjectRead<'a>) -> Option<BoxFuture<'a, ObjectAnswer>> {
        None
    }

    fn serves_usage(&self) -> bool {
        false
    }

    fn read_usage<'a>(&'a self, _: UsageRead<'a>) -> Option<BoxFuture<'a, UsageAnswer>> {
        None
    }

    fn unlisted(&self) -> Option<String> {
        None
    }

    fn makes(&self, _: &str) -> bool {
        false
    }

    fn read<'a>(
        &'a self,
        _: &str,
        _: &'a str,
        _: Vec<LabelRequirement<'a>>,
    ) -> Option<BoxFuture<'a, RuleAnswer>> {
        None
    }
}

#[test]
fn the_metrics_of_rules_are_listed_while_they_are_there() {
    let rules = Arc::new(ChangingRules::default());
    let lists = ListedMetrics::new(Some(rules.clone()), None);
    let listed = || {
        let list = lists.newest();
        let [json, ..] = list.resources[&(EXTERNAL.group, "v1beta1")].bodies();
        let legacy: Value = serde_json::from_slice(json).unwrap();
        let aggregated: Value = serde_json::from_slice(&list.groups.v2.body).unwrap();
        let has = |name: &str| values_of("name", &legacy).iter().any(|own| *own == name);
        let is_aggregated = |name: &str| values_of("resource", &aggregated).iter().any(|own| *own == name);
        ["jobs", "wva_desired_replicas"].map(|name| {
            assert_eq!(has(name), is_aggregated(name), "{name}");
            has(name)
        })
    };
    assert_eq!(listed(), [false, true]);
    rules.0.lock().external = ["jobs".into(), "wva_desired_replicas".into()].into();
    assert_eq!(listed(), [true, true]);
    let before = lists.newest();
    rules.0.lock().external = ["jobs".into(), "wva_desired_replicas".into()].into();
    assert!(Arc::ptr_eq(&before, &lists.newest()), "nothing is made anew for the same names");
    let names = values_of(
        "name",
        &serde_json::from_slice::<Value>(before.resources[&(EXTERNAL.group, "v1beta1")].bodies()[0]).unwrap(),
    )
    .len();
    assert_eq!(names, 5, "a metric of variants is listed once");
    rules.0.lock().external = [].into();
    assert_eq!(listed(), [false, true]);
}

#[test]
fn each_reader_made_the_documents_while_another_made_them() {
    let rules = Arc::new(ChangingRules::default());
    let lists = ListedMetrics::new(Some(rules.clone()), None);
    let before = lists.newest();
    rules.0.lock().external = ["jobs".into()].into();
    let making = lists.making.lock();
    assert!(Arc::ptr_eq(&before, &lists.newest()), "those of before, at once");
    drop(making);
    assert!(!Arc::ptr_eq(&before, &lists.newest()));
}

#[test]
fn the_metrics_of_objects_are_listed_beside_those_of_variants() {
    let of = |resource: &str, is_namespaced| ResourceMetrics {
        resource: resource.into(),
        is_namespaced,
        metrics: vec!["hits".into(), "wva_desired_replicas".into()],
    };
    let objects = [of("deployments.apps", true), of("nodes", false)].into();
    let added = AddedMetrics { objects, ..AddedMetrics::default() };
    let legacy = serde_json::to_value(groups::resources(CUSTOM, "v1beta2", &added)).unwrap();
    let listed = |name: &str| {
        let resources = legacy["resources"].as_array().unwrap();
        let found: Vec<_> = resources.iter().filter(|own| own["name"] == name).collect();
        found.iter().map(|own| own["namespaced"].as_bool().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(listed("deployments.apps/hits"), [true]);
    assert_eq!(listed("deployments.apps/wva_desired_replicas"), [true], "once");
    assert_eq!(listed("nodes/hits"), [false]);
    assert_eq!(listed("nodes/wva_desired_replicas"), [] as [bool; 0], "of no variant");
    let aggregated = groups::aggregated("apidiscovery.k8s.io/v2", &APIS, &added);
    let nodes = values_of("resources", &aggregated)
        .into_iter()
        .flat_map(|list| list.as_array().unwrap())
        .find(|own| own["resource"] == "nodes")
        .unwrap();
    assert_eq!(
        (&nodes["scope"], &nodes["subresources"][0]["subresource"]),
        (&json!("Cluster"), &json!("hits"))
    );
}

#[test]
fn of_one_name_the_metric_of_variants_wins_and_then_that_of_rules() {
    let names = |names: &[&str]| names.iter().map(SmolStr::new).collect();
    let added = AddedMetrics {
        external: names(&["jobs", "wva_desired_ratio"]),
        fallback: names(&["jobs", "queue", "wva_desired_replicas"]),
        objects: Arc::default(),
    };
    let documents = MetricDocuments::new(&APIS, added);
    let listed = |headers: &HeaderMap| -> Vec<String> {
        let list = documents.resources(&(EXTERNAL.group, "v1beta1"), headers).unwrap();
        let json: Value = serde_json::from_slice(list.bodies()[0]).unwrap();
        values_of("name", &json).into_iter().map(|name| name.as_str().unwrap().to_owned()).collect()
    };
    let own: Vec<_> = groups::metric_names().collect();
    assert_eq!(listed(&HeaderMap::new()), [&own[..], &["jobs", "queue"]].concat());
    let passed_on = HeaderMap::from_iter([(PASSED_ON, HeaderValue::from_static("1"))]);
    assert_eq!(listed(&passed_on), [&own[..], &["jobs"]].concat(), "not those of the server that may ask");
}

#[test]
fn no_number_of_metrics_makes_the_documents_longer_than_16_mib() {
    // As many as rules make, and as the fallback server has, with the longest names.
    let names = |first| -> Arc<[SmolStr]> {
        (first..first + 10_000).map(|index| format!("{index:m>253}").into()).collect()
    };
    let (names, others) = (names(0), names(10_000));
    let objects = ResourceMetrics {
        resource: "deployments.apps".into(),
        is_namespaced: true,
        metrics: names.iter().cloned().collect(),
    };
    let documents = MetricDocuments::new(
        &APIS,
        AddedMetrics { external: names, fallback: others, objects: [objects].into() },
    );
    let lists = documents.resources.values().flat_map(|list| list.bodies().map(<[u8]>::len));
    let aggregated = [&documents.groups.v2, &documents.groups.v2beta1].map(|own| own.body.len());
    let longest = lists.chain(aggregated).max().unwrap();
    assert!(longest < 16 * 1024 * 1024, "{longest}");
}
