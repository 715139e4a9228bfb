//! Plans the queries of an evaluation: one for everything; or, when that is too large, one for each batch of namespaces, and several,
//! each for some of the signals, for a namespace that is still too large. Every query names its namespaces, so that all others cost
//! nothing. An oversized namespace is queried separately, so that a failure affects no other. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::trusted_collectors::TrustedCollectors;
use crate::collect::signals;

/// The query that counts the series in the namespaces in scope, and those that `collectors` report about them under
/// `exported_namespace`. `narrowing` are further matchers, each after a comma.
pub(super) fn count_query(
    names: &str,
    scope: &BTreeSet<String>,
    collectors: &TrustedCollectors,
    narrowing: &str,
) -> String {
    let matchers = format!("{}{narrowing}", signals::label_matchers(names));
    let scope = any_of(scope.iter());
    let direct = format!("count by (namespace) ({{__name__=~\"{names}\"{matchers},namespace=~\"{scope}\"}})");
    if collectors.is_empty() {
        return direct;
    }
    let trusted = any_of(collectors.namespaces());
    format!(
        "{direct} or count by (namespace, exported_namespace) ({{__name__=~\"{names}\"{matchers},namespace=~\"{trusted}\",\
         exported_namespace=~\"{scope}\"}})"
    )
}

/// A regular expression that matches these label values.
fn any_of<'a>(values: impl Iterator<Item = &'a String>) -> String {
    values.map(|value| escape(value)).collect::<Vec<_>>().join("|")
}

/// The number of series with these labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SeriesCount {
    pub(super) namespace: String,
    pub(super) exported_namespace: String,
    pub(super) series: u64,
}

impl SeriesCount {
    /// The namespaces that these series may be about.
    fn about<'a>(&'a self, collectors: &TrustedCollectors) -> impl Iterator<Item = &'a String> {
        let relayed = collectors.has_namespace(&self.namespace).then_some(&self.exported_namespace);
        std::iter::once(&self.namespace).chain(relayed)
    }
}

/// What to query, and how to split it.
#[derive(Debug)]
pub(super) struct PlanInput<'a> {
    /// The namespaces that have variants.
    pub(super) scope: &'a BTreeSet<String>,
    /// For each signal a regular expression that matches its names.
    pub(super) signals: &'a [String],
    /// Most series of one query, if possible.
    pub(super) max_series: u64,
    /// The collectors that may report about other namespaces.
    pub(super) collectors: &'a TrustedCollectors,
    /// Values of the `namespace` label that are queried separately.
    pub(super) oversized: &'a BTreeSet<String>,
}

/// A query for ranges of samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RangeQuery {
    /// A regular expression that matches the metric names.
    names: String,
    /// The values of the `namespace` label.
    pub(super) labels: BTreeSet<String>,
    /// The namespaces in scope that the answer is about; `None` for all of them.
    pub(super) affected: Option<BTreeSet<String>>,
}

impl RangeQuery {
    /// The range selector. `narrowing` are further matchers, each after a comma.
    pub(super) fn promql(&self, window: Duration, narrowing: &str) -> String {
        let (names, window) = (&self.names, window.as_millis());
        let (matchers, labels) = (signals::label_matchers(names), any_of(self.labels.iter()));
        format!("{{__name__=~\"{names}\"{matchers}{narrowing},namespace=~\"{labels}\"}}[{window}ms]")
    }
}

/// A label value as a regular expression in a quoted string of `PromQL`. Names of namespaces need no escaping, but a label may have
/// any value.
fn escape(value: &str) -> String {
    let mut text = String::new();
    for c in value.chars() {
        match c {
            '\n' => text.push_str("\\n"),
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\\\\\"),
            c if c.is_ascii_punctuation() && !matches!(c, '-' | '_') => {
                text.push_str("\\\\");
                text.push(c);
            }
            c => text.push(c),
        }
    }
    text
}

/// Whether every namespace in scope has been counted. One that has not may have series by now.
pub(super) fn covers_scope(
    counts: &[SeriesCount],
    scope: &BTreeSet<String>,
    collectors: &TrustedCollectors,
) -> bool {
    let counted: BTreeSet<&String> = counts.iter().flat_map(|count| count.about(collectors)).collect();
    scope.iter().all(|name| counted.contains(name))
}

/// The queries for the counted series: one if there are at most `max_series`, else as few batches of whole namespaces as possible,
/// and several for a namespace with more.
pub(super) fn plan(counts: &[SeriesCount], input: &PlanInput<'_>) -> Vec<RangeQuery> {
    let loads = loads(counts, input);
    let total: u64 = counts.iter().map(|count| count.series).sum();
    if total <= input.max_series && input.oversized.is_empty() {
        // All of the scope: a namespace may have got its first series after the count.
        let labels = input.scope.iter().cloned().chain(loads.into_keys()).collect();
        return vec![RangeQuery { names: input.signals.join("|"), labels, affected: None }];
    }
    let is_oversized = |label: &String| input.oversized.contains(label);
    if loads.keys().all(is_oversized) {
        return pack(&loads, input, input.max_series);
    }
    let (oversized, others) = loads.into_iter().partition(|(label, _)| is_oversized(label));
    let mut queries = pack(&others, input, input.max_series);
    queries.extend(pack(&oversized, input, 0));
    queries
}

/// At least one query for each namespace, for a server that has rejected a query for its size.
pub(super) fn plan_by_namespace(counts: &[SeriesCount], input: &PlanInput<'_>) -> Vec<RangeQuery> {
    pack(&loads(counts, input), input, 0)
}

/// The queries for each namespace of a query that was too large; `None` if it was for one namespace only.
pub(super) fn split(
    query: &RangeQuery,
    counts: &[SeriesCount],
    input: &PlanInput<'_>,
) -> Option<Vec<RangeQuery>> {
    if query.labels.len() < 2 {
        return None;
    }
    let mut parts = plan_by_namespace(counts, input);
    parts.retain(|part| part.labels.is_subset(&query.labels));
    Some(parts)
}

/// The series with one value, or several, of the `namespace` label.
#[derive(Debug, Clone, Default)]
struct Load {
    series: u64,
    /// The namespaces in scope that they are about.
    affected: BTreeSet<String>,
}

/// The load of each value of the `namespace` label that is relevant for the scope. Without counts, one series of each namespace in
/// scope and of each trusted collector is assumed.
fn loads(counts: &[SeriesCount], input: &PlanInput<'_>) -> BTreeMap<String, Load> {
    let mut loads: BTreeMap<String, Load> = BTreeMap::new();
    if counts.is_empty() {
        let direct = input.scope.iter().map(|name| (name.clone(), BTreeSet::from([name.clone()])));
        let trusted = input.collectors.namespaces().map(|name| (name.clone(), input.scope.clone()));
        return direct.chain(trusted).map(|(name, affected)| (name, Load { series: 1, affected })).collect();
    }
    for count in counts {
        let about = count.about(input.collectors).filter(|name| input.scope.contains(*name));
        let affected: BTreeSet<String> = about.cloned().collect();
        if !affected.is_empty() {
            let load = loads.entry(count.namespace.clone()).or_default();
            load.series += count.series;
            load.affected.extend(affected);
        }
    }
    loads
}

/// Fills batches with namespaces in the order of their names, each with up to `max_series`; a larger namespace is a batch alone.
fn pack(loads: &BTreeMap<String, Load>, input: &PlanInput<'_>, max_series: u64) -> Vec<RangeQuery> {
    let mut batches: Vec<(BTreeSet<String>, Load)> = Vec::new();
    for (label, load) in loads {
        match batches.last_mut() {
            Some((labels, batch)) if batch.series + load.series <= max_series => {
                labels.insert(label.clone());
                batch.series += load.series;
                batch.affected.extend(load.affected.iter().cloned());
            }
            _ => batches.push((BTreeSet::from([label.clone()]), load.clone())),
        }
    }
    batches.into_iter().flat_map(|(labels, load)| by_signals(input, labels, load)).collect()
}

/// One query, or several if there are more than `max_series`, each for some of the signals: an engine has about one series of each.
/// They are answered and parsed concurrently.
fn by_signals(
    input: &PlanInput<'_>,
    labels: BTreeSet<String>,
    load: Load,
) -> impl Iterator<Item = RangeQuery> {
    let queries = usize::try_from(load.series.div_ceil(input.max_series.max(1))).unwrap_or(usize::MAX);
    let signals = (input.signals.len() / queries.max(1)).max(1);
    input.signals.chunks(signals).map(move |signals| RangeQuery {
        names: signals.join("|"),
        labels: labels.clone(),
        affected: Some(load.affected.clone()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(namespace: &str, exported_namespace: &str, series: u64) -> SeriesCount {
        SeriesCount { namespace: namespace.into(), exported_namespace: exported_namespace.into(), series }
    }

    fn scope(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    /// The result of `make` for three signals of these namespaces, with at most ten series in a query.
    fn planned<T>(namespaces: &[&str], make: impl Fn(&PlanInput<'_>) -> T) -> T {
        let signals = ["a|b", "c", "d"].map(str::to_owned);
        let collectors = TrustedCollectors::new(&["monitoring".to_owned()]);
        planned_with(&[], namespaces, &signals, &collectors, make)
    }

    fn planned_with<T>(
        oversized: &[&str],
        namespaces: &[&str],
        signals: &[String],
        collectors: &TrustedCollectors,
        make: impl Fn(&PlanInput<'_>) -> T,
    ) -> T {
        let (scope, oversized) = (scope(namespaces), scope(oversized));
        make(&PlanInput { scope: &scope, signals, max_series: 10, collectors, oversized: &oversized })
    }

    fn labels(queries: &[RangeQuery]) -> Vec<Vec<&str>> {
        queries.iter().map(|query| query.labels.iter().map(String::as_str).collect()).collect()
    }

    fn names(queries: &[RangeQuery]) -> Vec<&str> {
        queries.iter().map(|query| query.names.as_str()).collect()
    }

    #[test]
    fn up_to_the_limit_there_is_one_query() {
        let counts = [count("a", "", 6), count("b", "", 4)];
        let all = planned(&["a", "b"], |input| plan(&counts, input));
        assert_eq!(all, [RangeQuery { names: "a|b|c|d".into(), labels: scope(&["a", "b"]), affected: None }]);
    }

    #[test]
    fn above_the_limit_namespaces_are_packed_and_irrelevant_ones_left_out() {
        let counts =
            [count("a", "", 6), count("b", "", 4), count("c", "", 9), count("d", "", 5), count("x", "", 99)];
        let queries = planned(&["a", "b", "c", "d"], |input| plan(&counts, input));
        assert_eq!(labels(&queries), [vec!["a", "b"], vec!["c"], vec!["d"]]);
        assert_eq!(names(&queries), ["a|b|c|d"; 3]);
    }

    #[test]
    fn a_namespace_above_the_limit_is_split_by_signals() {
        let parts = |series| {
            let counts = [count("a", "", series), count("b", "", 1)];
            let queries = planned(&["a", "b"], |input| plan(&counts, input));
            assert!(queries.iter().all(|query| query.affected.as_ref() == Some(&query.labels)));
            let of_a = queries.into_iter().filter(|query| query.labels == scope(&["a"]));
            of_a.map(|query| query.names).collect::<Vec<_>>()
        };
        assert_eq!(parts(10), ["a|b|c|d"]);
        for series in [11, 20, 30, 1_000, u64::MAX / 2] {
            assert_eq!(parts(series), ["a|b", "c", "d"], "{series}");
        }
    }

    #[test]
    fn a_namespace_scraped_through_a_collector_is_queried_by_the_collectors_label() {
        let counts = [count("monitoring", "a", 11)];
        let queries = planned(&["a"], |input| plan(&counts, input));
        assert_eq!(labels(&queries), [["monitoring"]; 3]);
        assert_eq!(queries[0].affected, Some(scope(&["a"])));
    }

    #[test]
    fn after_a_rejection_every_namespace_is_queried_separately_even_without_counts() {
        let alone = |counts: &[SeriesCount]| planned(&["a", "b"], |input| plan_by_namespace(counts, input));
        assert_eq!(
            labels(&alone(&[])),
            [["a"], ["b"], ["monitoring"]],
            "a trusted collector may report about all of them"
        );
        assert_eq!(labels(&alone(&[count("a", "", 1), count("b", "", 1)])), [["a"], ["b"]]);
        assert_eq!(labels(&alone(&[count("a", "", 1), count("b", "", 11)])), [["a"], ["b"], ["b"], ["b"]]);
    }

    #[test]
    fn a_rejected_query_is_split_by_namespace_until_it_has_one() {
        let counts = [count("a", "", 6), count("b", "", 4), count("c", "", 9)];
        planned(&["a", "b", "c"], |input| {
            let queries = plan(&counts, input);
            let parts = split(&queries[0], &counts, input).unwrap();
            assert_eq!(labels(&parts), [["a"], ["b"]]);
            assert_eq!(split(&parts[0], &counts, input), None);
            let all = &plan(&[], input)[0];
            assert_eq!(split(all, &counts, input).unwrap().len(), 3);
        });
    }

    #[test]
    fn a_namespace_is_counted_by_either_label() {
        let counts = [count("monitoring", "a", 1), count("b", "", 1)];
        let listed = TrustedCollectors::new(&["monitoring".to_owned()]);
        assert!(covers_scope(&counts, &scope(&["a", "b"]), &listed));
        assert!(!covers_scope(&counts, &scope(&["a", "b", "c"]), &listed));
        assert!(
            !covers_scope(&counts, &scope(&["a", "b"]), &TrustedCollectors::default()),
            "a page can write this label"
        );
    }

    #[test]
    fn a_namespace_named_by_an_untrusted_page_is_neither_counted_nor_queried() {
        let counts = [count("evil", "a", 50), count("a", "", 11)];
        let queries = planned(&["a"], |input| plan(&counts, input));
        assert_eq!(labels(&queries), [["a"]; 3]);
    }

    #[test]
    fn the_count_excludes_other_namespaces_and_untrusted_pages() {
        let count = |collectors: &TrustedCollectors| count_query("x|y", &scope(&["a", "b"]), collectors, "");
        let own = "count by (namespace) ({__name__=~\"x|y\",namespace=~\"a|b\"})";
        assert_eq!(count(&TrustedCollectors::default()), own);
        let listed = "count by (namespace, exported_namespace) ({__name__=~\"x|y\",namespace=~\"m\",exported_namespace=~\"a|b\"})";
        let collectors = TrustedCollectors::new(&["m/job".to_owned()]);
        assert_eq!(count(&collectors), format!("{own} or {listed}"));
        let narrowed = count_query("x|y", &scope(&["a", "b"]), &collectors, ",cluster=\"eu-1\"");
        assert_eq!(
            narrowed.matches("{__name__=~\"x|y\",cluster=\"eu-1\",namespace=~").count(),
            2,
            "{narrowed}"
        );
    }

    #[test]
    fn an_oversized_namespace_is_queried_separately_and_the_others_together() {
        let counts = [count("a", "", 1), count("b", "", 2), count("c", "", 3)];
        let (signals, no_collectors) = (["x".to_owned()], TrustedCollectors::default());
        let planned = |oversized: &[&str], counts: &[SeriesCount]| {
            labels_of(&planned_with(oversized, &["a", "b", "c"], &signals, &no_collectors, |input| {
                plan(counts, input)
            }))
        };
        assert_eq!(planned(&["b"], &counts), ["a c", "b"]);
        assert_eq!(planned(&["b"], &[]), ["a c", "b"], "without counts, too");
        assert_eq!(planned(&["a", "b", "c"], &counts), ["a b c"], "separating them all would not help");
    }

    fn labels_of(queries: &[RangeQuery]) -> Vec<String> {
        labels(queries).into_iter().map(|labels| labels.join(" ")).collect()
    }

    #[test]
    fn a_hostile_label_stays_inside_its_quotes() {
        let hostile = scope(&["a.b\"} or {x=~\".*\\"]);
        let query = RangeQuery { names: "a|b".into(), labels: hostile, affected: None };
        let query = query.promql(Duration::from_secs(120), "");
        assert!(
            query.ends_with(r#"namespace=~"a\\.b\"\\} or \\{x\\=\\~\"\\.\\*\\\\"}[120000ms]"#),
            "{query}"
        );
    }
}
