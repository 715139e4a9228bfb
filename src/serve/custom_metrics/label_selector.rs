//! A selector as an object, `metav1.LabelSelector`: an answer repeats the selector of the series that it was asked for.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::serve::external_metrics::selector::{Requirement, Rule, Selector};

/// All of it must hold.
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
    /// The same selector; `None` when it compares integers, for which this form has no operator.
    pub(super) fn of(selector: &Selector) -> Option<Self> {
        let mut all = Self::default();
        for Requirement { key, rule } in selector.requirements() {
            let (operator, values) = match rule {
                Rule::Equals(value) => {
                    all.match_labels.insert(key.clone(), value.clone());
                    continue;
                }
                Rule::Differs(value) => ("NotIn", vec![value.clone()]),
                Rule::In(values) => ("In", values.iter().cloned().collect()),
                Rule::NotIn(values) => ("NotIn", values.iter().cloned().collect()),
                Rule::Exists => ("Exists", Vec::new()),
                Rule::Absent => ("DoesNotExist", Vec::new()),
                Rule::Above(_) | Rule::Below(_) => return None,
            };
            all.match_expressions.push(Expression { key: key.clone(), operator, values });
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(selector: &str) -> Option<String> {
        let selector = LabelSelector::of(&Selector::parse(selector).unwrap());
        selector.map(|selector| serde_json::to_string(&selector).unwrap())
    }

    #[test]
    fn every_requirement_that_the_object_can_say_is_in_it() {
        let all = written("a=1,b in (y,x),c notin (z),d!=2,e,!f").unwrap();
        let want = r#"{"matchLabels":{"a":"1"},"matchExpressions":["#.to_owned()
            + r#"{"key":"b","operator":"In","values":["x","y"]},{"key":"c","operator":"NotIn","values":["z"]},"#
            + r#"{"key":"d","operator":"NotIn","values":["2"]},{"key":"e","operator":"Exists"},"#
            + r#"{"key":"f","operator":"DoesNotExist"}]}"#;
        assert_eq!(all, want);
        assert_eq!(written("").as_deref(), Some("{}"));
        assert_eq!(written("a>1"), None);
    }
}
