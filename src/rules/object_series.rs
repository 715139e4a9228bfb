//! The series that rules for objects select, with those of their labels that name objects.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tracing::warn;

use super::kinds::KindTable;
use super::object_rule::ObjectRule;
use crate::collect::{PrometheusApi, SeriesLabels};
use crate::engine::SourceError;

/// Most labels of the series of a rule that may name objects. Each is a query.
const MAX_LABELS: usize = 128;

/// The series of a query, with those of their labels that name objects by some of the rules.
pub(super) async fn series_of(
    api: &PrometheusApi,
    query: &str,
    (rules, kinds): (&[Arc<ObjectRule>], &KindTable),
    (max_age, now): (Duration, Timestamp),
) -> Result<Vec<SeriesLabels>, SourceError> {
    let mut labels: BTreeSet<String> =
        rules.iter().flat_map(|rule| rule.labels.overridden()).cloned().collect();
    if rules.iter().any(|rule| rule.labels.has_template()) {
        labels.extend(api.label_names(query, max_age, now).await?);
    }
    let labels = object_labels(labels, (rules, kinds), query);
    api.series_labels(query, &labels, max_age).await
}

/// Those of the labels that name objects by some of the rules. Of too many, those of the rules themselves and of Kubernetes' own kinds stay:
/// whoever writes series does not choose which.
fn object_labels(
    labels: BTreeSet<String>,
    (rules, kinds): (&[Arc<ObjectRule>], &KindTable),
    series_query: &str,
) -> Vec<String> {
    let rank = |label: &String| {
        let found = rules.iter().filter_map(|rule| {
            let kind = rule.labels.queried_kind(label, kinds)?;
            let is_own = !kind.group.contains('.') || kind.group.ends_with(".k8s.io");
            Some((!rule.labels.overrides(label), !is_own))
        });
        found.min()
    };
    let ranked = labels.into_iter().filter_map(|label| Some((rank(&label)?, label)));
    let ranked: BTreeSet<_> = ranked.collect();
    let count = ranked.len();
    if count > MAX_LABELS {
        warn!(
            series_query,
            count,
            "the series of a rule have labels of more than {MAX_LABELS} kinds; the rest is left out: narrow its seriesQuery"
        );
    }
    ranked.into_iter().take(MAX_LABELS).map(|(_, label)| label).collect()
}

#[cfg(test)]
mod tests {
    use super::super::config::RulesFile;
    use super::super::kinds::tests::kind;
    use super::*;

    #[test]
    fn labels_of_a_tenants_kinds_crowded_out_those_of_pods() {
        let names: Vec<String> = (0..200).map(|index| format!("a{index:03}")).collect();
        let tenants = names.iter().map(|name| kind("example.com", name, &format!("{name}s"), true));
        let kinds = KindTable::new(tenants.chain([kind("", "Pod", "pods", true)]).collect());
        let text = "rules: [{seriesQuery: a, resources: {template: <<.Resource>>, overrides: {z: {resource: a199}}}, metricsQuery: q}]";
        let rule = Arc::new(ObjectRule::new(&RulesFile::parse(text).unwrap().rules[0]).unwrap());
        let labels = names.iter().cloned().chain(["pod", "PODS", "z", "job"].map(str::to_owned)).collect();
        let labels = object_labels(labels, (&[rule], &kinds), "a");
        assert_eq!((labels.len(), &labels[..3]), (MAX_LABELS, &["z", "pod", "a000"].map(str::to_owned)[..]));
    }
}
