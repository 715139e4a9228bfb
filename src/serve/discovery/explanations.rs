//! What OpenAPI says about explanations.

use serde_json::{Map, Value, json};

use super::dialect::{Dialect, text};
use super::groups::{DECISIONS, EXPLANATION_KIND};
use crate::serve::encoding::negotiation::Encoding;
use crate::serve::paths::{EXPLANATIONS_GROUP, EXPLANATIONS_VERSION};

/// The paths and schemas of the group, in one dialect.
pub(super) struct Document {
    pub(super) paths: Map<String, Value>,
    pub(super) schemas: Map<String, Value>,
}

/// The name of a definition.
fn definition(kind: &str) -> String {
    format!("ai.llmd.wva.decisions.{EXPLANATIONS_VERSION}.{kind}")
}

fn group_version_kind(kind: &str) -> Value {
    json!({"group": EXPLANATIONS_GROUP, "version": EXPLANATIONS_VERSION, "kind": kind})
}

fn reference(dialect: Dialect, kind: &str) -> Value {
    let place = match dialect {
        Dialect::V2 => "#/definitions",
        Dialect::V3 => "#/components/schemas",
    };
    json!({"$ref": format!("{place}/{}", definition(kind))})
}

/// The paths: the list of all namespaces, that of one, and one explanation.
pub(super) fn document(dialect: Dialect) -> Document {
    let root = format!("/apis/{EXPLANATIONS_GROUP}/{EXPLANATIONS_VERSION}");
    let in_namespace = format!("{root}/namespaces/{{namespace}}/explanations");
    let list_kind = DECISIONS.list_kind;
    let paths = [
        (
            format!("{root}/explanations"),
            "listDecisionsWvaLlmdAiExplanationForAllNamespaces",
            list_kind,
            &[][..],
        ),
        (in_namespace.clone(), "listDecisionsWvaLlmdAiNamespacedExplanation", list_kind, &["namespace"][..]),
        (
            format!("{in_namespace}/{{name}}"),
            "readDecisionsWvaLlmdAiNamespacedExplanation",
            EXPLANATION_KIND,
            &["namespace", "name"][..],
        ),
    ];
    let paths = paths
        .into_iter()
        .map(|(path, id, kind, parameters)| (path, operation(dialect, id, kind, parameters)));
    let list = json!({
        "description": "The decisions about the variants, in short.", "type": "object", "required": ["items"],
        "properties": {
            "apiVersion": text("The group and version of this object."), "kind": text("The kind of this object."),
            "metadata": {"type": "object", "description": "Always empty."},
            "items": {"type": "array", "description": "One item a variant.", "items": reference(dialect, EXPLANATION_KIND)}
        },
        "x-kubernetes-group-version-kind": [group_version_kind(list_kind)]
    });
    let schemas = [(definition(list_kind), list), (definition(EXPLANATION_KIND), explanation())];
    Document { paths: paths.collect(), schemas: schemas.into_iter().collect() }
}

fn operation(dialect: Dialect, id: &str, kind: &str, parameters: &[&str]) -> Value {
    let parameter = |name: &&str| {
        let description = if *name == "name" { "The variant." } else { "The namespace of the variants." };
        let mut parameter = json!({"name": name, "in": "path", "required": true, "description": description});
        match dialect {
            Dialect::V2 => parameter["type"] = "string".into(),
            Dialect::V3 => parameter["schema"] = json!({"type": "string"}),
        }
        parameter
    };
    let schema = reference(dialect, kind);
    let media_types = [Encoding::Json, Encoding::Yaml].map(Encoding::media_type);
    let response = match dialect {
        Dialect::V2 => json!({ "description": "OK", "schema": schema }),
        Dialect::V3 => {
            let content = media_types.map(|media_type| (media_type.to_owned(), json!({ "schema": schema })));
            json!({ "description": "OK", "content": Map::from_iter(content) })
        }
    };
    let is_list = kind != EXPLANATION_KIND;
    let mut get = json!({
        "operationId": id,
        "description": if is_list { "The decisions, in short." } else { "Why the variant has its number." },
        "responses": {"200": response},
        "x-kubernetes-action": if is_list { "list" } else { "get" },
        "x-kubernetes-group-version-kind": group_version_kind(EXPLANATION_KIND)
    });
    if dialect == Dialect::V2 {
        get["produces"] = media_types.into_iter().collect();
        get["schemes"] = json!(["https"]);
    }
    json!({ "parameters": parameters.iter().map(parameter).collect::<Vec<_>>(), "get": get })
}

fn explanation() -> Value {
    let count = |description: &str| json!({"type": "integer", "format": "int64", "description": description});
    let object = |description: &str| json!({"type": "object", "description": description, "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "description": "The decision about one variant, and why it is what it is. Computed when it is read; it cannot be written.",
        "type": "object", "required": ["state", "reason", "message"],
        "properties": {
            "apiVersion": text("The group and version of this object."), "kind": text("The kind of this object."),
            "metadata": object("Name and namespace of the variant."),
            "state": text("Decided, NoNumber, TooOld (the number is not answered any more) or NotDecidedYet."),
            "model": text("The model."),
            "current": count("Current replicas of the scale target."),
            "desired": count("Desired replicas."),
            "reason": text("The reason of the decision, in one word."),
            "message": text("The reasons, as a sentence."),
            "evidence": {
                "type": "string", "format": "date-time",
                "description": "The time of the newest measurement that the number rests on."
            },
            "whyNot": object("What keeps the number from being higher or lower. Not in lists."),
            "explanation": object("The decision with its steps, as `wva explain -o json` writes it. Not in lists."),
            "text": text("The explanation for people. Not in lists.")
        },
        "x-kubernetes-group-version-kind": [group_version_kind(EXPLANATION_KIND)]
    })
}
