//! The file of prometheus-adapter's rules, as version 0.12 reads it: unknown fields are errors.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

/// Longest file. The largest public ones have some 20 KiB.
pub(super) const MAX_BYTES: usize = 1024 * 1024;
/// Most rules of a kind.
const MAX_RULES: usize = 1_000;

/// The file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RulesFile {
    /// Metrics of objects.
    #[serde(default, deserialize_with = "or_default")]
    pub(super) rules: Vec<DiscoveryRule>,
    /// External metrics.
    #[serde(default, deserialize_with = "or_default")]
    pub(super) external_rules: Vec<DiscoveryRule>,
    /// Processor time and memory of pods and nodes.
    pub(super) resource_rules: Option<ResourceRules>,
}

/// How series become metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct DiscoveryRule {
    /// Selects the series.
    #[serde(deserialize_with = "or_default")]
    pub(super) series_query: String,
    /// Of these, those whose names pass all filters.
    #[serde(deserialize_with = "or_default")]
    pub(super) series_filters: Vec<RegexFilter>,
    #[serde(deserialize_with = "or_default")]
    pub(super) resources: ResourceMapping,
    #[serde(deserialize_with = "or_default")]
    pub(super) name: NameMapping,
    /// The template of the query for a metric.
    #[serde(deserialize_with = "or_default")]
    pub(super) metrics_query: String,
}

/// Exactly one of the two.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct RegexFilter {
    #[serde(deserialize_with = "or_default")]
    pub(super) is: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) is_not: String,
}

/// Which labels name objects.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct ResourceMapping {
    /// The template of a label.
    #[serde(deserialize_with = "or_default")]
    pub(super) template: String,
    /// The resources of labels that do not follow the template.
    #[serde(deserialize_with = "or_default")]
    pub(super) overrides: BTreeMap<String, GroupResource>,
    /// Whether an external metric is asked for by namespace; if not set, it is.
    pub(super) namespaced: Option<bool>,
}

/// A resource, in the singular or in the plural.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct GroupResource {
    #[serde(deserialize_with = "or_default")]
    pub(super) group: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) resource: String,
}

/// How the name of a series becomes that of a metric.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct NameMapping {
    #[serde(deserialize_with = "or_default")]
    pub(super) matches: String,
    #[serde(rename = "as", deserialize_with = "or_default")]
    pub(super) as_: String,
}

/// The rules of `metrics.k8s.io`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct ResourceRules {
    #[serde(deserialize_with = "or_default")]
    pub(super) cpu: ResourceRule,
    #[serde(deserialize_with = "or_default")]
    pub(super) memory: ResourceRule,
    #[serde(deserialize_with = "or_default")]
    pub(super) window: String,
}

/// The rule of a resource.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct ResourceRule {
    #[serde(deserialize_with = "or_default")]
    pub(super) container_query: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) node_query: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) resources: ResourceMapping,
    #[serde(deserialize_with = "or_default")]
    pub(super) container_label: String,
}

/// A null is what is not set, as for the adapter.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

impl RulesFile {
    /// # Errors
    /// Says which field of which rule is wrong, and why.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_BYTES {
            return Err(format!("it has {} bytes; at most {MAX_BYTES} are read", text.len()));
        }
        // An empty file is no rules.
        let file: Option<Self> = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        let file = file.unwrap_or_default();
        for (kind, rules) in [("rules", &file.rules), ("externalRules", &file.external_rules)] {
            if rules.len() > MAX_RULES {
                return Err(format!("{kind} has {} rules; at most {MAX_RULES} are read", rules.len()));
            }
        }
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_the_adapter_reads_it() {
        let text = r#"
externalRules:
- seriesQuery: '{__name__=~"^queue_.*",namespace!=""}'
  seriesFilters: [{isNot: "_total$"}, {is: ^queue_}]
  resources: {overrides: {exported_namespace: {resource: namespace}}, namespaced: false}
  name: {matches: "^(.*)_depth$", as: ""}
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (name)
resourceRules:
  cpu: {containerQuery: "a", nodeQuery: "b", resources: {overrides: {node: {resource: node}}}, containerLabel: container}
  window: 3m
"#;
        let file = RulesFile::parse(text).unwrap();
        let [rule] = file.external_rules.as_slice() else { panic!("{file:?}") };
        assert_eq!(rule.series_filters[0], RegexFilter { is: String::new(), is_not: "_total$".into() });
        assert_eq!(rule.resources.namespaced, Some(false));
        assert_eq!(rule.resources.overrides["exported_namespace"].resource, "namespace");
        assert_eq!(rule.name, NameMapping { matches: "^(.*)_depth$".into(), as_: String::new() });
        assert!(file.rules.is_empty() && file.resource_rules.is_some());
        assert_eq!(RulesFile::parse("").unwrap(), RulesFile::default());
        assert_eq!(RulesFile::parse("rules:\n").map(|file| file.rules.len()), Ok(0));
    }

    #[test]
    fn a_null_is_what_is_not_set() {
        let text = "externalRules:\n- seriesQuery: a\n  name: {matches: ^a, as: }\n  seriesFilters: ~\n  resources: {overrides: {ns: {group: null, resource: namespace}}}\n  metricsQuery: ~\nrules: ~\n";
        let file = RulesFile::parse(text).unwrap();
        let rule = &file.external_rules[0];
        assert_eq!(
            (rule.name.as_.as_str(), rule.metrics_query.as_str(), rule.series_filters.len()),
            ("", "", 0)
        );
        assert_eq!(rule.resources.overrides["ns"].resource, "namespace");
    }

    #[test]
    fn a_field_that_does_not_exist_is_an_error_with_its_line() {
        let error = RulesFile::parse("rules:\n- seriesQuery: a\n  seriesFilter: []\n").unwrap_err();
        assert!(error.contains("seriesFilter") && error.contains("line 3"), "{error}");
        let many = "rules:\n".to_owned() + &"- {seriesQuery: a}\n".repeat(1_001);
        assert_eq!(RulesFile::parse(&many).unwrap_err(), "rules has 1001 rules; at most 1000 are read");
        let long = "#".repeat(MAX_BYTES + 1);
        assert!(RulesFile::parse(&long).unwrap_err().contains("at most 1048576 are read"));
    }
}
