//! The OpenAPI documents, v2 and v3: enough for the aggregator and for `kubectl explain`. A path refers to every definition,
//! because the aggregator drops definitions without one.

use serde_json::{Map, Value, json};

use super::dialect::{Dialect, text};
use super::explanations;
use super::groups::{Api, METRICS_APIS, metric_names};
use crate::serve::encoding::negotiation::Encoding;
use crate::serve::paths::{CUSTOM_GROUP, DESCRIBED_RESOURCES, EXPLANATIONS_GROUP};

fn info() -> Value {
    json!({"title": "wva", "version": concat!("v", env!("CARGO_PKG_VERSION"))})
}

/// What one document says about one version of one group.
#[derive(Clone, Copy)]
struct Section<'a> {
    dialect: Dialect,
    api: Api,
    version: &'a str,
}

/// Swagger 2.0: all groups in one document.
pub(super) fn v2() -> Value {
    let mut paths = Map::new();
    let mut definitions = Map::new();
    for api in METRICS_APIS {
        for version in api.versions {
            let section = Section { dialect: Dialect::V2, api, version };
            paths.extend(section.paths());
            definitions.extend(section.schemas());
        }
    }
    let of_explanations = explanations::document(Dialect::V2);
    paths.extend(of_explanations.paths);
    definitions.extend(of_explanations.schemas);
    json!({"swagger": "2.0", "info": info(), "paths": paths, "definitions": definitions})
}

/// The document of one group and version.
pub(super) fn v3(api: Api, version: &str) -> Value {
    let (paths, schemas) = if api.group == EXPLANATIONS_GROUP {
        let document = explanations::document(Dialect::V3);
        (document.paths, document.schemas)
    } else {
        let section = Section { dialect: Dialect::V3, api, version };
        (section.paths(), section.schemas())
    };
    json!({"openapi": "3.0.0", "info": info(), "paths": paths, "components": {"schemas": schemas}})
}

impl Section<'_> {
    /// The name of a definition, as in `k8s.io/metrics`.
    fn definition(self, kind: &str) -> String {
        let package = if self.api.group == CUSTOM_GROUP { "custom_metrics" } else { "external_metrics" };
        format!("io.k8s.metrics.pkg.apis.{package}.{}.{kind}", self.version)
    }

    fn reference(self, kind: &str) -> Value {
        let place = match self.dialect {
            Dialect::V2 => "#/definitions",
            Dialect::V3 => "#/components/schemas",
        };
        json!({"$ref": format!("{place}/{}", self.definition(kind))})
    }

    fn list_kind(self) -> Value {
        json!({"group": self.api.group, "version": self.version, "kind": self.api.list_kind})
    }

    /// One path for each metric, and in `custom.metrics.k8s.io` one for each metric of each kind of object.
    fn paths(self) -> Map<String, Value> {
        let root = format!("/apis/{}/{}/namespaces/{{namespace}}", self.api.group, self.version);
        if self.api.group != CUSTOM_GROUP {
            return metric_names()
                .map(|metric| (format!("{root}/{metric}"), self.path("", metric)))
                .collect();
        }
        let paths_of = |object: &'static str| {
            let root = format!("{root}/{object}/{{name}}");
            metric_names().map(move |metric| (format!("{root}/{metric}"), self.path(object, metric)))
        };
        DESCRIBED_RESOURCES.into_iter().flat_map(paths_of).collect()
    }

    /// Unique in the whole cluster.
    fn operation_id(self, object: &str, metric: &str) -> String {
        let words = [self.api.group, self.version, object, metric];
        let words = words.iter().flat_map(|text| text.split(['.', '_'])).filter(|word| !word.is_empty());
        let capital = |word: &str| {
            let (first, rest) = word.split_at_checked(1).unwrap_or((word, ""));
            first.to_ascii_uppercase() + rest
        };
        words.fold("read".to_owned(), |id, word| id + &capital(word))
    }

    /// The path of a metric; `object` is the resource that it describes, empty for an external metric.
    fn path(self, object: &str, metric: &str) -> Value {
        let parameter = |name, place, required, description| match self.dialect {
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
        if !object.is_empty() {
            let name = "The object that the number describes; `*` for all.";
            let series = "Which series of it; all when it is empty.";
            parameters.push(parameter("name", "path", true, name));
            parameters.push(parameter("metricLabelSelector", "query", false, series));
        }
        let mut get = json!({
            "operationId": self.operation_id(object, metric),
            "description": "The number for each variant that is selected.",
            "responses": {"200": self.response()},
            "x-kubernetes-action": if object.is_empty() { "list" } else { "get" },
            "x-kubernetes-group-version-kind": self.list_kind()
        });
        if self.dialect == Dialect::V2 {
            get["produces"] = Encoding::ALL.map(Encoding::media_type).into_iter().collect();
            get["schemes"] = json!(["https"]);
        }
        json!({ "parameters": parameters, "get": get })
    }

    fn response(self) -> Value {
        let schema = self.reference(self.api.list_kind);
        if self.dialect == Dialect::V2 {
            return json!({ "description": "OK", "schema": schema });
        }
        let content =
            Encoding::ALL.map(|encoding| (encoding.media_type().to_owned(), json!({ "schema": schema })));
        json!({ "description": "OK", "content": Map::from_iter(content) })
    }

    fn schemas(self) -> Map<String, Value> {
        let item_kind = self.api.list_kind.trim_end_matches("List");
        let item = if self.api.group == CUSTOM_GROUP { custom_item(self.version) } else { external_item() };
        let list = list(&self.list_kind(), &self.reference(item_kind));
        Map::from_iter([(self.definition(self.api.list_kind), list), (self.definition(item_kind), item)])
    }
}

fn list(kind: &Value, item: &Value) -> Value {
    json!({
        "description": "The numbers of the selected variants, exactly one each.",
        "type": "object", "required": ["items"],
        "properties": {
            "apiVersion": text("The group and version of this object."),
            "kind": text("The kind of this object."),
            "metadata": {"type": "object", "description": "Always empty."},
            "items": {"type": "array", "description": "One item a variant.", "items": item}
        },
        "x-kubernetes-group-version-kind": [kind]
    })
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
    let (field, metric) = if version == "v1beta1" {
        properties["selector"] = selector;
        ("metricName", text("The metric's name."))
    } else {
        let parts = json!({"name": text("Its name."), "selector": selector});
        (
            "metric",
            json!({"type": "object", "description": "The metric.", "required": ["name"], "properties": parts}),
        )
    };
    properties[field] = metric;
    json!({
        "description": "The number of one variant.",
        "type": "object", "required": ["describedObject", field, "timestamp", "value"],
        "properties": properties
    })
}
