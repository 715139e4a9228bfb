//! `metav1.LabelSelector`: an answer repeats the selector of series from its request.

use std::collections::BTreeMap;

use prost::Message;
use serde::Serialize;

use crate::serve::encoding::protobuf::{Entry, serialize_map};
use crate::serve::external_metrics::selector::{LabelSelector, Operator, RequirementRef};

/// `k8s.io.apimachinery.pkg.apis.meta.v1.LabelSelector`
#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LabelSelectorMessage {
    #[prost(message, repeated, tag = "1")]
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "serialize_map")]
    match_labels: Vec<Entry>,
    #[prost(message, repeated, tag = "2")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    match_expressions: Vec<Requirement>,
}

/// `k8s.io.apimachinery.pkg.apis.meta.v1.LabelSelectorRequirement`
#[derive(Clone, PartialEq, Message, Serialize)]
struct Requirement {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    operator: String,
    #[prost(string, repeated, tag = "3")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    values: Vec<String>,
}

/// The selector as an object; `None` when it compares integers, for which the object has no operator.
pub(super) fn label_selector(selector: &LabelSelector) -> Option<LabelSelectorMessage> {
    let mut labels = BTreeMap::new();
    let mut match_expressions = Vec::new();
    for RequirementRef { key, operator } in selector.requirements() {
        let (operator, values) = match operator {
            Operator::Equals(value) => {
                labels.insert(key.to_owned(), value.clone());
                continue;
            }
            Operator::NotEquals(value) => ("NotIn", vec![value.clone()]),
            Operator::In(values) => ("In", values.iter().cloned().collect()),
            Operator::NotIn(values) => ("NotIn", values.iter().cloned().collect()),
            Operator::Exists => ("Exists", Vec::new()),
            Operator::DoesNotExist => ("DoesNotExist", Vec::new()),
            Operator::GreaterThan(_) | Operator::LessThan(_) => return None,
        };
        match_expressions.push(Requirement { key: key.to_owned(), operator: operator.to_owned(), values });
    }
    let match_labels = labels.into_iter().map(|(key, value)| Entry { key, value }).collect();
    Some(LabelSelectorMessage { match_labels, match_expressions })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Option<String> {
        let selector = label_selector(&LabelSelector::parse(text).unwrap());
        selector.map(|selector| serde_json::to_string(&selector).unwrap())
    }

    #[test]
    fn the_object_has_every_requirement() {
        let object = json("a=1,b in (y,x),c notin (z),d!=2,e,!f").unwrap();
        let expected = r#"{"matchLabels":{"a":"1"},"matchExpressions":["#.to_owned()
            + r#"{"key":"b","operator":"In","values":["x","y"]},{"key":"c","operator":"NotIn","values":["z"]},"#
            + r#"{"key":"d","operator":"NotIn","values":["2"]},{"key":"e","operator":"Exists"},"#
            + r#"{"key":"f","operator":"DoesNotExist"}]}"#;
        assert_eq!(object, expected);
        assert_eq!(json("").as_deref(), Some("{}"));
        assert_eq!(json("a>1"), None);
    }
}
