//! Which external metrics there are: what the rules make of the names of the series that each of them has selected. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use smol_str::SmolStr;

use super::commute::Requirement;
use super::rule::ExternalRule;
use crate::serve::LabelRequirement;

/// Most metrics, of which each rule has its share: series of one tenant do not crowd out the metrics of others.
pub(super) const MAX_METRICS: usize = 10_000;
/// The least share of a rule.
const MIN_METRICS_OF_RULE: usize = 10;

/// The most metrics of each of so many rules.
pub(super) fn share(rules: usize) -> usize {
    (MAX_METRICS / rules.max(1)).max(MIN_METRICS_OF_RULE)
}

/// The metrics at one time.
#[derive(Debug, Default)]
pub(super) struct Registry {
    metrics: BTreeMap<SmolStr, Metric>,
    /// By their names in lower case, in which an HPA asks for them; `None` where several differ only in that.
    lower_case: HashMap<SmolStr, Option<SmolStr>>,
    pub(super) names: Arc<[SmolStr]>,
    /// Why metrics may be missing that the rules make; `None` once each list was read.
    pub(super) unlisted: Option<String>,
    /// The queries of the rules that make more than their share.
    pub(super) crowded: BTreeSet<String>,
    /// The names beyond these shares, in lower case.
    left_out: HashSet<String>,
}

/// What makes a metric.
#[derive(Debug)]
pub(super) struct Metric {
    series: String,
    rule: Arc<ExternalRule>,
}

impl Registry {
    /// The metrics that `rules` make of the series which each of them has selected. Of several that make one metric, the last counts, and of
    /// several series of a rule the last by name, which is the usual order of Prometheus.
    pub(super) fn new(
        rules: &[Arc<ExternalRule>],
        series: &HashMap<String, Vec<String>>,
        unlisted: Option<String>,
    ) -> Self {
        let share = share(rules.len());
        let mut metrics = BTreeMap::new();
        let mut crowded = BTreeSet::new();
        let mut left_out = HashSet::new();
        for rule in rules {
            let series = series.get(&rule.naming.series_query).into_iter().flatten();
            let mut made: BTreeMap<SmolStr, Metric> = BTreeMap::new();
            for series in series {
                if let Some(name) = rule.naming.metric(series) {
                    made.insert(name.into(), Metric { series: series.clone(), rule: Arc::clone(rule) });
                }
            }
            if made.len() > share {
                crowded.insert(rule.naming.series_query.clone());
            }
            let mut made = made.into_iter();
            metrics.extend(made.by_ref().take(share));
            left_out.extend(made.map(|(name, _)| name.to_lowercase()));
        }
        let names: Arc<[SmolStr]> = metrics.keys().cloned().collect();
        let mut lower_case: HashMap<SmolStr, Option<SmolStr>> = HashMap::new();
        for name in names.iter() {
            let known = lower_case.entry(name.to_lowercase().into());
            known.and_modify(|known| *known = None).or_insert_with(|| Some(name.clone()));
        }
        Self { metrics, lower_case, names, unlisted, crowded, left_out }
    }

    /// A metric with its own name; `None` if there is none of that name.
    pub(super) fn find(&self, name: &str) -> Option<(&SmolStr, &Metric)> {
        let own = || self.metrics.get_key_value(self.lower_case.get(name)?.as_ref()?);
        self.metrics.get_key_value(name).or_else(own)
    }

    /// Whether rules make a metric of this name, also if it is beyond the share of its rule, or if several differ only in case.
    pub(super) fn makes(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        self.lower_case.contains_key(name.as_str()) || self.left_out.contains(&name)
    }
}

impl Metric {
    /// # Errors
    /// Says why there is no query for this read.
    pub(super) fn query(
        &self,
        namespace: &str,
        requirements: &[LabelRequirement<'_>],
    ) -> Result<String, String> {
        self.rule.query(&self.series, namespace, requirements)
    }

    /// The requirements of which reads may differ in one and still share a query.
    pub(super) fn variable<'a>(&self, requirements: &[LabelRequirement<'a>]) -> Vec<Requirement<'a>> {
        self.rule.variable(requirements)
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::RulesFile;
    use super::*;

    fn rules(yaml: &str) -> Vec<Arc<ExternalRule>> {
        let rules = RulesFile::parse(yaml).unwrap().external_rules;
        rules.iter().map(|rule| Arc::new(ExternalRule::new(rule).unwrap())).collect()
    }

    fn registry(rules: &[Arc<ExternalRule>], series: &[(&str, &[&str])]) -> Registry {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Registry::new(
            rules,
            &series.iter().map(|(query, own)| ((*query).to_owned(), names(own))).collect(),
            None,
        )
    }

    const TWO: &str = r#"
externalRules:
- {seriesQuery: a, name: {matches: "^(.*)_total$"}, resources: {namespaced: false}, metricsQuery: "first(<<.Series>>)"}
- {seriesQuery: a, name: {as: Other}, resources: {namespaced: false}, metricsQuery: "other(<<.Series>>)"}
- {seriesQuery: b, resources: {namespaced: false}, metricsQuery: "last(<<.Series>>)"}
"#;

    #[test]
    fn the_last_rule_that_makes_a_metric_counts() {
        let registry = registry(&rules(TWO), &[("a", &["jobs_total", "waits"]), ("b", &["jobs"])]);
        assert_eq!(registry.names.iter().map(SmolStr::as_str).collect::<Vec<_>>(), ["Other", "jobs"]);
        let query = |name: &str| registry.find(name).map(|(_, metric)| metric.query("llm", &[]).unwrap());
        assert_eq!(query("jobs").as_deref(), Some("last(jobs)"));
        assert_eq!(query("Other").as_deref(), Some("other(waits)"), "the last series by name");
        assert_eq!(query("other"), query("Other"), "an HPA asks in lower case");
        assert_eq!(query("waits"), None);
    }

    #[test]
    fn a_rule_that_makes_too_many_metrics_leaves_those_of_others() {
        let many: Vec<String> = (0..MAX_METRICS).map(|index| format!("a{index}_total")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let registry = registry(&rules(TWO), &[("a", &many), ("b", &["jobs"])]);
        assert_eq!(registry.names.len(), MAX_METRICS / 3 + 2);
        assert!(registry.find("jobs").is_some() && registry.crowded.contains("a"));
        assert!(registry.find("a9999").is_none() && registry.makes("a9999"), "nobody else is asked for it");
        assert!(!registry.makes("b9999"));
    }

    #[test]
    fn a_name_in_lower_case_is_not_that_of_two() {
        let yaml =
            "externalRules: [{seriesQuery: b, resources: {namespaced: false}, metricsQuery: <<.Series>>}]";
        let registry = registry(&rules(yaml), &[("b", &["Orders", "ORDERS", "Jobs"])]);
        assert!(registry.find("orders").is_none() && registry.find("Orders").is_some());
        assert!(registry.makes("orders"));
        assert!(registry.find("jobs").is_some());
    }
}
