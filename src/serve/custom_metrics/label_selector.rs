//! `metav1.LabelSelector`: an answer repeats the selector of series from its request.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::serve::external_metrics::selector::{RequirementRef, Rule, Selector};

/// A label selector as an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LabelSelector {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) match_labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) match_expressions: Vec<Expression>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Expression {
    pub(super) key: String,
    pub(super) operator: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) values: Vec<String>,
}

impl LabelSelector {
    /// The same selector as an object; `None` when it compares integers, for which the object has no operator.
    pub(super) fn from_selector(selector: &Selector) -> Option<Self> {
        let mut object = Self::default();
        for RequirementRef { key, rule } in selector.requirements() {
            let (operator, values) = match rule {
                Rule::Equals(value) => {
                    object.match_labels.insert(key.to_owned(), value.clone());
                    continue;
                }
                Rule::Differs(value) => ("NotIn", vec![value.clone()]),
                Rule::In(values) => ("In", values.iter().cloned().collect()),
                Rule::NotIn(values) => ("NotIn", values.iter().cloned().collect()),
                Rule::Exists => ("Exists", Vec::new()),
                Rule::Absent => ("DoesNotExist", Vec::new()),
                Rule::Above(_) | Rule::Below(_) => return None,
            };
            object.match_expressions.push(Expression { key: key.to_owned(), operator, values });
        }
        Some(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(selector: &str) -> Option<String> {
        let selector = LabelSelector::from_selector(&Selector::parse(selector).unwrap());
        selector.map(|selector| serde_json::to_string(&selector).unwrap())
    }

    #[test]
    fn the_object_has_every_requirement() {
        let all = json("a=1,b in (y,x),c notin (z),d!=2,e,!f").unwrap();
        let want = r#"{"matchLabels":{"a":"1"},"matchExpressions":["#.to_owned()
            + r#"{"key":"b","operator":"In","values":["x","y"]},{"key":"c","operator":"NotIn","values":["z"]},"#
            + r#"{"key":"d","operator":"NotIn","values":["2"]},{"key":"e","operator":"Exists"},"#
            + r#"{"key":"f","operator":"DoesNotExist"}]}"#;
        assert_eq!(all, want);
        assert_eq!(json("").as_deref(), Some("{}"));
        assert_eq!(json("a>1"), None);
    }
}
