//! The OpenAPI documents: enough for the aggregator and for `kubectl explain` of the list.

use serde_json::{Value, json};

use crate::serve::external_metrics::metric::{GROUP, Metric, VERSION};

const LIST: &str = "io.k8s.metrics.pkg.apis.external_metrics.v1beta1.ExternalMetricValueList";
const ITEM: &str = "io.k8s.metrics.pkg.apis.external_metrics.v1beta1.ExternalMetricValue";

fn info() -> Value {
    json!({"title": "wva", "version": concat!("v", env!("CARGO_PKG_VERSION"))})
}

/// Swagger 2.0, without content: what no path refers to would be pruned anyway.
pub(super) fn v2() -> Value {
    json!({"swagger": "2.0", "info": info(), "paths": {}})
}

/// The index: one document, named with its digest so that clients may keep it.
pub(super) fn v3_index(digest: &str) -> Value {
    let url = format!("/openapi/v3/apis/{GROUP}/{VERSION}?hash={digest}");
    json!({"paths": {format!("apis/{GROUP}/{VERSION}"): {"serverRelativeURL": url}}})
}

/// The document of the group and version.
pub(super) fn v3() -> Value {
    let paths: serde_json::Map<_, _> = Metric::NAMES
        .iter()
        .map(|(name, _)| (format!("/apis/{GROUP}/{VERSION}/namespaces/{{namespace}}/{name}"), path()))
        .collect();
    json!({
        "openapi": "3.0.0", "info": info(), "paths": paths,
        "components": {"schemas": {LIST: list(), ITEM: item()}}
    })
}

fn kind(kind: &str) -> Value {
    json!({"group": GROUP, "version": VERSION, "kind": kind})
}

fn path() -> Value {
    let parameter = |name, place, required| json!({"name": name, "in": place, "required": required, "schema": {"type": "string"}});
    let schema = json!({"$ref": format!("#/components/schemas/{LIST}")});
    json!({
        "parameters": [parameter("namespace", "path", true), parameter("labelSelector", "query", false)],
        "get": {
            "description": "The number for each variant that the label selector matches.",
            "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": schema}}}},
            "x-kubernetes-action": "list",
            "x-kubernetes-group-version-kind": kind("ExternalMetricValueList")
        }
    })
}

fn list() -> Value {
    let items = json!({"type": "array", "items": {"$ref": format!("#/components/schemas/{ITEM}")}});
    json!({
        "description": "The numbers of the selected variants, exactly one each.",
        "type": "object", "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"},
            "items": items
        },
        "x-kubernetes-group-version-kind": [kind("ExternalMetricValueList")]
    })
}

fn item() -> Value {
    json!({
        "description": "The number of one variant.",
        "type": "object", "required": ["metricName", "metricLabels", "timestamp", "value"],
        "properties": {
            "metricName": {"type": "string", "description": "The metric's name."},
            "metricLabels": {
                "type": "object", "additionalProperties": {"type": "string"},
                "description": "Which variant the number is of."
            },
            "timestamp": {
                "type": "string", "format": "date-time",
                "description": "The time of the newest measurement that the number rests on."
            },
            "value": {"type": "string", "description": "The number, as a quantity."}
        }
    })
}
