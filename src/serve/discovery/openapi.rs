//! The OpenAPI documents, v2 and v3: enough for the aggregator and for `kubectl explain`. A path refers to every definition,
//! because the aggregator drops definitions without one.

use serde_json::{Map, Value, json};

use super::groups::{Api, CUSTOM, DESCRIBED_OBJECTS, EXTERNAL, metric_names};
use crate::serve::encoding::negotiation::Encoding;
use crate::serve::paths::CUSTOM_GROUP;

/// The version of OpenAPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    V2,
    V3,
}

fn info() -> Value {
    json!({"title": "wva", "version": concat!("v", env!("CARGO_PKG_VERSION"))})
}

/// Swagger 2.0: both groups in one document.
pub(super) fn v2() -> Value {
    let mut all_paths = Map::new();
    let mut definitions = Map::new();
    for (api, version) in [EXTERNAL, CUSTOM].into_iter().flat_map(with_versions) {
        all_paths.extend(paths(Dialect::V2, api, version));
        definitions.extend(schemas(Dialect::V2, api, version));
    }
    json!({"swagger": "2.0", "info": info(), "paths": all_paths, "definitions": definitions})
}

fn with_versions(api: Api) -> impl Iterator<Item = (Api, &'static str)> {
    api.versions.iter().map(move |version| (api, *version))
}

/// The index of all documents, with their digests so that clients may cache them.
pub(super) fn v3_index(documents: &[(Api, &str, &str)]) -> Value {
    let entry = |(api, version, digest): &(Api, &str, &str)| {
        let path = format!("apis/{}/{version}", api.group);
        let url = format!("/openapi/v3/{path}?hash={digest}");
        (path, json!({ "serverRelativeURL": url }))
    };
    json!({ "paths": documents.iter().map(entry).collect::<Map<_, _>>() })
}

/// The document of one group and version.
pub(super) fn v3(api: Api, version: &str) -> Value {
    json!({
        "openapi": "3.0.0", "info": info(), "paths": paths(Dialect::V3, api, version),
        "components": {"schemas": schemas(Dialect::V3, api, version)}
    })
}

/// The name of a definition, as in `k8s.io/metrics`.
fn definition(api: Api, version: &str, kind: &str) -> String {
    let package = if api.group == CUSTOM_GROUP { "custom_metrics" } else { "external_metrics" };
    format!("io.k8s.metrics.pkg.apis.{package}.{version}.{kind}")
}

fn reference(dialect: Dialect, api: Api, version: &str, kind: &str) -> Value {
    let place = match dialect {
        Dialect::V2 => "#/definitions",
        Dialect::V3 => "#/components/schemas",
    };
    json!({"$ref": format!("{place}/{}", definition(api, version, kind))})
}

fn kind(api: Api, version: &str) -> Value {
    json!({"group": api.group, "version": version, "kind": api.list_kind})
}

/// One path for each metric, and in `custom.metrics.k8s.io` one for each metric of each kind of object.
fn paths(dialect: Dialect, api: Api, version: &str) -> Map<String, Value> {
    let root = format!("/apis/{}/{version}/namespaces/{{namespace}}", api.group);
    let entry = |resource: Option<&str>, metric: &str| {
        let (place, name) = match resource {
            Some(resource) => (format!("{root}/{resource}/{{name}}/{metric}"), true),
            None => (format!("{root}/{metric}"), false),
        };
        let operation = operation_id(api, version, resource, metric);
        (place, path(dialect, api, version, &operation, name))
    };
    if api.group == CUSTOM_GROUP {
        let objects = DESCRIBED_OBJECTS.iter();
        let metrics = objects.flat_map(|object| metric_names().map(move |metric| (Some(*object), metric)));
        metrics.map(|(object, metric)| entry(object, metric)).collect()
    } else {
        metric_names().map(|metric| entry(None, metric)).collect()
    }
}

/// Unique in the whole cluster.
fn operation_id(api: Api, version: &str, resource: Option<&str>, metric: &str) -> String {
    let words = [api.group, version, resource.unwrap_or_default(), metric];
    let words = words.iter().flat_map(|text| text.split(['.', '_'])).filter(|word| !word.is_empty());
    let capital = |word: &str| {
        let (first, rest) = word.split_at_checked(1).unwrap_or((word, ""));
        first.to_ascii_uppercase() + rest
    };
    words.fold("read".to_owned(), |id, word| id + &capital(word))
}

fn path(dialect: Dialect, api: Api, version: &str, operation: &str, named: bool) -> Value {
    let parameter = |name, place, required, description| match dialect {
        Dialect::V2 => {
            json!({"name": name, "in": place, "required": required, "description": description, "type": "string"})
        }
        Dialect::V3 => json!({
            "name": name, "in": place, "required": required, "description": description, "schema": {"type": "string"}
        }),
    };
    let mut parameters = vec![
        parameter("namespace", "path", true, "The namespace of the variants."),
        parameter("labelSelector", "query", false, "Which of them; all when it is empty."),
    ];
    if named {
        let object = "The object that the number describes; `*` for all.";
        let series = "Which series of it; all when it is empty.";
        parameters.push(parameter("name", "path", true, object));
        parameters.push(parameter("metricLabelSelector", "query", false, series));
    }
    let mut get = json!({
        "operationId": operation,
        "description": "The number for each variant that is selected.",
        "responses": {"200": response(dialect, &reference(dialect, api, version, api.list_kind))},
        "x-kubernetes-action": if named { "get" } else { "list" },
        "x-kubernetes-group-version-kind": kind(api, version)
    });
    if dialect == Dialect::V2 {
        get["produces"] = Encoding::ALL.map(Encoding::media_type).into_iter().collect();
        get["schemes"] = json!(["https"]);
    }
    json!({ "parameters": parameters, "get": get })
}

fn response(dialect: Dialect, schema: &Value) -> Value {
    match dialect {
        Dialect::V2 => json!({ "description": "OK", "schema": schema }),
        Dialect::V3 => {
            let content: Map<_, _> = Encoding::ALL
                .iter()
                .map(|encoding| (encoding.media_type().to_owned(), json!({ "schema": schema })))
                .collect();
            json!({ "description": "OK", "content": content })
        }
    }
}

fn schemas(dialect: Dialect, api: Api, version: &str) -> Map<String, Value> {
    let item_kind = api.list_kind.trim_end_matches("List");
    let item = if api.group == CUSTOM_GROUP { custom_item(version) } else { external_item() };
    let list = list(api, version, &reference(dialect, api, version, item_kind));
    Map::from_iter([
        (definition(api, version, api.list_kind), list),
        (definition(api, version, item_kind), item),
    ])
}

fn list(api: Api, version: &str, item: &Value) -> Value {
    json!({
        "description": "The numbers of the selected variants, exactly one each.",
        "type": "object", "required": ["items"],
        "properties": {
            "apiVersion": text("The group and version of this object."),
            "kind": text("The kind of this object."),
            "metadata": {"type": "object", "description": "Always empty."},
            "items": {"type": "array", "description": "One item a variant.", "items": item}
        },
        "x-kubernetes-group-version-kind": [kind(api, version)]
    })
}

fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn timestamp() -> Value {
    let description = "The time of the newest measurement that the number rests on.";
    json!({"type": "string", "format": "date-time", "description": description})
}

fn strings(description: &str) -> Value {
    json!({"type": "object", "additionalProperties": {"type": "string"}, "description": description})
}

fn external_item() -> Value {
    json!({
        "description": "The number of one variant.",
        "type": "object", "required": ["metricName", "metricLabels", "timestamp", "value"],
        "properties": {
            "metricName": text("The metric's name."),
            "metricLabels": strings("Which variant the number is of."),
            "timestamp": timestamp(),
            "value": text("The number, as a quantity.")
        }
    })
}

/// The versions differ in how they name the metric.
fn custom_item(version: &str) -> Value {
    let object = json!({
        "type": "object", "description": "The object that the number describes.",
        "properties": {
            "apiVersion": text("Its group and version."), "kind": text("Its kind."),
            "namespace": text("Its namespace."), "name": text("Its name.")
        }
    });
    let selector = json!({"type": "object", "description": "The metric's selector, when one was asked for."});
    let mut properties = json!({
        "describedObject": object, "timestamp": timestamp(), "value": text("The number, as a quantity.")
    });
    let metric = if version == "v1beta1" {
        properties["selector"] = selector;
        ("metricName", text("The metric's name."))
    } else {
        let parts = json!({"name": text("Its name."), "selector": selector});
        (
            "metric",
            json!({"type": "object", "description": "The metric.", "required": ["name"], "properties": parts}),
        )
    };
    properties[metric.0] = metric.1;
    json!({
        "description": "The number of one variant.",
        "type": "object", "required": ["describedObject", metric.0, "timestamp", "value"],
        "properties": properties
    })
}
