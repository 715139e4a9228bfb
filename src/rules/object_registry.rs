//! Which metrics of objects there are: what the rules make of the series that each of them has selected. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use smol_str::SmolStr;

use super::kinds::{KindTable, ObjectKind};
use super::object_rule::{ObjectLabels, ObjectRule};
use super::registry::share;
use crate::collect::SeriesLabels;
use crate::serve::ResourceMetrics;

/// The metrics at one time.
#[derive(Debug, Default)]
pub(super) struct ObjectRegistry {
    resources: BTreeMap<SmolStr, KindMetrics>,
    pub(super) kinds: Arc<KindTable>,
    /// The same, for discovery.
    pub(super) listed: Arc<[ResourceMetrics]>,
    /// Why metrics may be missing that the rules make; `None` once each list was read.
    pub(super) unlisted: Option<String>,
    /// The queries of the rules that make more than their share.
    pub(super) crowded: BTreeSet<String>,
}

/// The metrics of the objects of a kind.
#[derive(Debug)]
struct KindMetrics {
    kind: Arc<ObjectKind>,
    metrics: BTreeMap<SmolStr, ObjectMetric>,
}

/// What makes a metric.
#[derive(Debug, Clone)]
pub(super) struct ObjectMetric {
    pub(super) kind: Arc<ObjectKind>,
    pub(super) series: Arc<str>,
    pub(super) rule: Arc<ObjectRule>,
    pub(super) labels: Arc<ObjectLabels>,
}

impl ObjectRegistry {
    /// Of several rules that make one metric, the last counts, and of several series of a rule the last by name. A name that metrics of
    /// several kinds have counts for each of them: discovery lists every one.
    pub(super) fn new(
        rules: &[Arc<ObjectRule>],
        series: &HashMap<String, Vec<SeriesLabels>>,
        kinds: Arc<KindTable>,
        unlisted: Option<String>,
    ) -> Self {
        let mut registry = Self { kinds, unlisted, ..Self::default() };
        for rule in rules {
            let series = series.get(&rule.naming.series_query).into_iter().flatten();
            registry.add(rule, series, share(rules.len()));
        }
        let listed = registry.resources.iter().map(|(resource, KindMetrics { kind, metrics })| {
            let metrics = metrics.keys().cloned().collect();
            ResourceMetrics { resource: resource.clone(), is_namespaced: kind.is_namespaced, metrics }
        });
        registry.listed = listed.collect();
        registry
    }

    fn add<'a>(
        &mut self,
        rule: &Arc<ObjectRule>,
        series: impl Iterator<Item = &'a SeriesLabels>,
        share: usize,
    ) {
        let mut made: BTreeSet<(SmolStr, SmolStr)> = BTreeSet::new();
        let mut labels_of: HashMap<SmolStr, Arc<ObjectLabels>> = HashMap::new();
        for SeriesLabels { name: series, labels } in series {
            let Some(name) = rule.naming.metric(series).map(SmolStr::from) else { continue };
            let series: Arc<str> = series.as_str().into();
            for kind in labels.iter().filter_map(|label| rule.labels.kind(label, &self.kinds)) {
                let resource = kind.resource();
                made.insert((resource.clone(), name.clone()));
                if made.len() > share {
                    self.crowded.insert(rule.naming.series_query.clone());
                    return;
                }
                let new_labels = || Arc::new(rule.labels.of(kind, &self.kinds));
                let labels = Arc::clone(labels_of.entry(resource.clone()).or_insert_with(new_labels));
                let (kind, rule, series) = (Arc::clone(kind), Arc::clone(rule), Arc::clone(&series));
                let new_kind = || KindMetrics { kind: Arc::clone(&kind), metrics: BTreeMap::new() };
                let of_kind = self.resources.entry(resource).or_insert_with(new_kind);
                of_kind.metrics.insert(name.clone(), ObjectMetric { kind, series, rule, labels });
            }
        }
    }

    /// A metric of the objects of a kind, with its own name; `None` if there is none of that name.
    pub(super) fn find(&self, kind: &ObjectKind, name: &str) -> Option<(&SmolStr, &ObjectMetric)> {
        let KindMetrics { metrics, .. } = self.resources.get(&kind.resource())?;
        let own = || {
            let mut found = metrics.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
            found.next().filter(|_| found.next().is_none())
        };
        metrics.get_key_value(name).or_else(own)
    }
}

#[cfg(test)]
mod tests {
    use super::super::kinds::tests::table;
    use super::*;

    fn registry(yaml: &str, series: &[(&str, &[&str])]) -> ObjectRegistry {
        let rules = super::super::config::RulesFile::parse(yaml).unwrap().rules;
        let rules: Vec<_> = rules.iter().map(|rule| Arc::new(ObjectRule::new(rule).unwrap())).collect();
        let series = series.iter().map(|(name, labels)| SeriesLabels {
            name: (*name).to_owned(),
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
        });
        let series = HashMap::from([("a".to_owned(), series.collect())]);
        ObjectRegistry::new(&rules, &series, Arc::new(table()), None)
    }

    fn names(registry: &ObjectRegistry) -> Vec<String> {
        let of = |own: &ResourceMetrics| {
            let resource = own.resource.clone();
            let scope = if own.is_namespaced { "" } else { " (root)" };
            own.metrics.iter().map(move |metric| format!("{resource}/{metric}{scope}")).collect::<Vec<_>>()
        };
        registry.listed.iter().flat_map(of).collect()
    }

    #[test]
    fn a_series_makes_a_metric_of_each_kind_that_its_labels_name() {
        let registry = registry(
            "rules: [{seriesQuery: a, resources: {template: kube_<<.Resource>>}, name: {matches: ^(.*)_total$}, metricsQuery: q}]",
            &[
                ("hits_total", &["kube_pod", "kube_namespace", "kube_deployment"]),
                ("fan_total", &["kube_node"]),
                ("other", &["kube_pod"]),
            ],
        );
        assert_eq!(
            names(&registry),
            ["deployments.apps/hits", "namespaces/hits (root)", "nodes/fan (root)", "pods/hits"]
        );
        let pods = registry.kinds.find("", "pods").unwrap();
        assert!(registry.find(pods, "HITS").is_some() && registry.find(pods, "fan").is_none());
    }

    #[test]
    fn the_last_rule_of_a_metric_counts() {
        let rule =
            "{seriesQuery: a, resources: {overrides: {pod: {resource: pod}}}, name: {as: m}, metricsQuery: ";
        let registry = registry(&format!("rules: [{rule} first}}, {rule} last}}]"), &[("s", &["pod"])]);
        let (_, metric) = registry.find(registry.kinds.find("", "pods").unwrap(), "m").unwrap();
        let query = metric.rule.query("s", &metric.labels, ("", &["a"]), &[]);
        assert_eq!(query.as_deref(), Ok("last"));
    }

    #[test]
    fn a_rule_has_its_share() {
        let many: Vec<String> = (0..10_001).map(|index| format!("m{index:05}")).collect();
        let many: Vec<(&str, &[&str])> = many.iter().map(|name| (name.as_str(), &["pod"][..])).collect();
        let registry = registry(
            "rules: [{seriesQuery: a, resources: {template: <<.Resource>>}, metricsQuery: q}]",
            &many,
        );
        assert_eq!((names(&registry).len(), registry.crowded.len()), (10_000, 1));
    }

    #[test]
    fn series_with_labels_of_many_kinds_made_discovery_many_times_as_long_as_the_limit() {
        let labels = ["deployment", "ingress", "namespace", "node", "pod", "service"];
        let many: Vec<String> = (0..5_000).map(|index| format!("m{index:05}")).collect();
        let many: Vec<(&str, &[&str])> = many.iter().map(|name| (name.as_str(), &labels[..])).collect();
        let registry = registry(
            "rules: [{seriesQuery: a, resources: {template: <<.Resource>>}, metricsQuery: q}]",
            &many,
        );
        assert_eq!((names(&registry).len(), registry.crowded.len()), (10_000, 1));
    }

    #[test]
    fn a_name_that_no_read_can_have_filled_discovery() {
        let long = "m".repeat(100_000);
        let registry = registry(
            "rules: [{seriesQuery: a, resources: {template: <<.Resource>>}, metricsQuery: q}]",
            &[(&long, &["pod"]), ("short", &["pod"])],
        );
        assert_eq!(names(&registry), ["pods/short"]);
    }
}
