//! The rule for processor time and memory of pods and nodes. Pure.

use std::time::Duration;

use super::config::{ResourceRule, ResourceRules};
use super::kinds::KindTable;
use super::object_rule::ResourceLabels;
use super::template::Template;
use crate::serve::UsageOf;

/// A rule whose texts are valid.
#[derive(Debug)]
pub(super) struct UsageRule {
    pub(super) cpu: UsageQuery,
    pub(super) memory: UsageQuery,
    /// Over which time processor time is measured, as answers repeat it.
    pub(super) window: Duration,
}

/// The queries for one resource.
#[derive(Debug)]
pub(super) struct UsageQuery {
    labels: ResourceLabels,
    container: Template,
    node: Template,
    /// The label of containers.
    pub(super) container_label: String,
}

impl UsageRule {
    /// # Errors
    /// Says which field is wrong, and why.
    pub(super) fn new(rules: &ResourceRules) -> Result<Self, String> {
        Ok(Self {
            cpu: UsageQuery::new(&rules.cpu).map_err(|error| format!("cpu.{error}"))?,
            memory: UsageQuery::new(&rules.memory).map_err(|error| format!("memory.{error}"))?,
            window: window(&rules.window)
                .ok_or_else(|| format!("window: {:?} is no duration", rules.window))?,
        })
    }
}

impl UsageQuery {
    fn new(rule: &ResourceRule) -> Result<Self, String> {
        let template =
            |field: &str, text: &str| Template::parse(text).map_err(|error| format!("{field}: {error}"));
        Ok(Self {
            labels: ResourceLabels::new(&rule.resources)?,
            container: template("containerQuery", &rule.container_query)?,
            node: template("nodeQuery", &rule.node_query)?,
            container_label: rule.container_label.clone(),
        })
    }

    /// The query about some objects, and the label that names them in its answer.
    ///
    /// # Errors
    /// Says why there is none.
    pub(super) fn query(
        &self,
        of: UsageOf,
        kinds: &KindTable,
        objects: (&str, &[&str]),
    ) -> Result<(String, String), String> {
        let (resource, template, field, group_by) = match of {
            UsageOf::Pods => ("pods", &self.container, "containerQuery", vec![self.container_label.as_str()]),
            UsageOf::Nodes => ("nodes", &self.node, "nodeQuery", Vec::new()),
        };
        let kind = kinds.find("", resource).ok_or("the kinds of the API server are not read yet")?;
        let labels = self.labels.of(kind, kinds);
        let query = labels.query((template, field), "", objects, &[], &group_by)?;
        Ok((query, labels.object?))
    }
}

/// A duration as Prometheus writes it: `5m`, `1h30m`; empty is none.
fn window(text: &str) -> Option<Duration> {
    const UNITS: [(&str, u64); 7] = [
        ("ms", 1),
        ("y", 31_536_000_000),
        ("w", 604_800_000),
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1_000),
    ];
    let mut rest = if text == "0" { "" } else { text };
    let mut milliseconds: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit())?;
        let number: u64 = rest.get(..digits)?.parse().ok()?;
        rest = rest.get(digits..)?;
        let (unit, scale) = UNITS.into_iter().find(|(unit, _)| rest.starts_with(unit))?;
        milliseconds = milliseconds.checked_add(number.checked_mul(scale)?)?;
        rest = rest.get(unit.len()..)?;
    }
    Some(Duration::from_millis(milliseconds))
}

#[cfg(test)]
mod tests {
    use super::super::config::RulesFile;
    use super::super::kinds::tests::table;
    use super::*;

    const RULES: &str = r#"
resourceRules:
  cpu:
    containerQuery: sum by (<<.GroupBy>>) (rate(cpu{<<.LabelMatchers>>}[4m]))
    nodeQuery: sum by (<<.GroupBy>>) (node_cpu{<<.LabelMatchers>>})
    resources: {overrides: {namespace: {resource: namespace}, node: {resource: node}, pod: {resource: pod}}}
    containerLabel: container
  memory: {containerQuery: m, nodeQuery: n, resources: {template: <<.Resource>>}, containerLabel: container}
  window: 5m
"#;

    fn rule(text: &str) -> Result<UsageRule, String> {
        UsageRule::new(&RulesFile::parse(text).unwrap().resource_rules.unwrap())
    }

    #[test]
    fn reads_become_the_queries_that_the_adapter_sends() {
        let rule = rule(RULES).unwrap();
        let pods = rule.cpu.query(UsageOf::Pods, &table(), ("llm", &["a", "b"])).unwrap();
        let expected = r#"sum by (pod,container) (rate(cpu{namespace="llm",pod=~"a|b"}[4m]))"#;
        assert_eq!(pods, (expected.to_owned(), "pod".to_owned()));
        let nodes = rule.cpu.query(UsageOf::Nodes, &table(), ("", &["n"])).unwrap();
        assert_eq!(nodes.0, r#"sum by (node) (node_cpu{node="n"})"#);
        assert_eq!(rule.window, Duration::from_mins(5));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = rule(&RULES.replace("containerQuery: m", "containerQuery: '<<'")).unwrap_err();
        assert!(error.starts_with("memory.containerQuery: "), "{error}");
        assert!(rule(&RULES.replace("5m", "5x")).unwrap_err().contains("window"));
        for (text, expected) in
            [("", Some(0)), ("0", Some(0)), ("1h30m", Some(5_400_000)), ("250ms", Some(250)), ("5", None)]
        {
            assert_eq!(window(text), expected.map(Duration::from_millis), "{text}");
        }
    }
}
