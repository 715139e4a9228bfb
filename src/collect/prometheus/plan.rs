//! Which queries an evaluation asks: one for everything, or one a batch of namespaces when that is too much, or one a
//! signal of a namespace that alone is too much. Every query names its namespaces, so that those of others cost nothing; a
//! namespace that was too much by itself is asked for alone, so that it costs only itself. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::collectors::Collectors;
use crate::collect::signals;

/// The question that decides: how many series there are in the namespaces in scope, and, where `collectors` are listed, what
/// these say of them: what was scraped says `exported_namespace`.
pub(super) fn count_query(names: &str, scope: &BTreeSet<String>, collectors: &Collectors) -> String {
    let (only, scope) = (signals::matchers(names), alternatives(scope.iter()));
    let own = format!("count by (namespace) ({{__name__=~\"{names}\"{only},namespace=~\"{scope}\"}})");
    if collectors.is_empty() {
        return own;
    }
    let listed = alternatives(collectors.namespaces());
    format!(
        "{own} or count by (namespace, exported_namespace) ({{__name__=~\"{names}\"{only},namespace=~\"{listed}\",\
         exported_namespace=~\"{scope}\"}})"
    )
}

/// Label values as alternatives of a regular expression.
fn alternatives<'a>(values: impl Iterator<Item = &'a String>) -> String {
    values.map(|value| escape(value)).collect::<Vec<_>>().join("|")
}

/// How many series have these labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) namespace: String,
    pub(super) exported_namespace: String,
    pub(super) series: u64,
}

impl Count {
    /// The namespaces that these series may be about.
    fn about<'a>(&'a self, collectors: &Collectors) -> impl Iterator<Item = &'a String> {
        let relayed = collectors.has(&self.namespace).then_some(&self.exported_namespace);
        std::iter::once(&self.namespace).chain(relayed)
    }
}

/// What is asked for, and in which parts.
#[derive(Debug)]
pub(super) struct Extent<'a> {
    /// The namespaces that have variants.
    pub(super) scope: &'a BTreeSet<String>,
    /// The names of each signal, as alternatives of a regular expression.
    pub(super) signals: &'a [String],
    /// Most series of one query, where possible.
    pub(super) max_series: u64,
    /// Who may speak for other namespaces.
    pub(super) collectors: &'a Collectors,
    /// Values of the `namespace` label that were too much by themselves.
    pub(super) heavy: &'a BTreeSet<String>,
}

/// One query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Batch {
    /// Names of metrics, as alternatives of a regular expression.
    names: String,
    /// Values of the `namespace` label to ask for.
    pub(super) labels: BTreeSet<String>,
    /// The namespaces in scope that the answer concerns; `None` is all of them.
    pub(super) concerns: Option<BTreeSet<String>>,
}

impl Batch {
    /// The range selector.
    pub(super) fn query(&self, window: Duration) -> String {
        let (names, window) = (&self.names, window.as_millis());
        let (only, labels) = (signals::matchers(names), alternatives(self.labels.iter()));
        format!("{{__name__=~\"{names}\"{only},namespace=~\"{labels}\"}}[{window}ms]")
    }
}

/// A label value as a regular expression in a quoted string of `PromQL`. Names of namespaces need no escape, but a
/// label may hold anything.
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

/// True when every namespace in scope has been counted: series of the others may have come since.
pub(super) fn all_counted(counts: &[Count], scope: &BTreeSet<String>, collectors: &Collectors) -> bool {
    let counted: BTreeSet<&String> = counts.iter().flat_map(|count| count.about(collectors)).collect();
    scope.iter().all(|name| counted.contains(name))
}

/// The queries for series as counted: one while there are at most `max_series`, else as few batches of whole
/// namespaces as keep below it; a namespace that does not is asked for in parts.
pub(super) fn batches(counts: &[Count], extent: &Extent<'_>) -> Vec<Batch> {
    let relevant = if counts.is_empty() { uncounted(extent) } else { relevant(counts, extent) };
    let total: u64 = counts.iter().map(|count| count.series).sum();
    // Nobody counted, or a namespace shows its first series since: it is asked for with the rest.
    if total <= extent.max_series && extent.heavy.is_empty() {
        let labels = extent.scope.iter().cloned().chain(relevant.into_keys()).collect();
        return vec![Batch { names: extent.signals.join("|"), labels, concerns: None }];
    }
    let is_alone = |label: &String| extent.heavy.contains(label);
    if relevant.keys().all(is_alone) {
        return pack(&relevant, extent, extent.max_series);
    }
    let (heavy, light) = relevant.into_iter().partition(|(label, _)| is_alone(label));
    let mut batches = pack(&light, extent, extent.max_series);
    batches.extend(pack(&heavy, extent, 0));
    batches
}

/// At most one namespace a query: for a backend that refused for size. Without counts, by the namespaces in scope.
pub(super) fn by_namespace(counts: &[Count], extent: &Extent<'_>) -> Vec<Batch> {
    let relevant = if counts.is_empty() { uncounted(extent) } else { relevant(counts, extent) };
    pack(&relevant, extent, 0)
}

/// One query for each namespace of a batch that was too much; `None` when it can't be made smaller.
pub(super) fn alone(refused: &Batch, counts: &[Count], extent: &Extent<'_>) -> Option<Vec<Batch>> {
    if refused.labels.len() < 2 {
        return None;
    }
    let mut parts = by_namespace(counts, extent);
    parts.retain(|part| part.labels.is_subset(&refused.labels));
    Some(parts)
}

/// Values of the `namespace` label that concern the scope: their series, and the namespaces concerned.
type Relevant = BTreeMap<String, (u64, BTreeSet<String>)>;

/// What may concern the scope while nobody knows how many series there are.
fn uncounted(extent: &Extent<'_>) -> Relevant {
    let own = extent.scope.iter().map(|name| (name.clone(), (1, BTreeSet::from([name.clone()]))));
    let listed = extent.collectors.namespaces().map(|name| (name.clone(), (1, extent.scope.clone())));
    own.chain(listed).collect()
}

fn relevant(counts: &[Count], extent: &Extent<'_>) -> Relevant {
    let mut relevant = Relevant::new();
    for count in counts {
        let names = count.about(extent.collectors);
        let concerned: BTreeSet<String> =
            names.filter(|name| extent.scope.contains(*name)).cloned().collect();
        if concerned.is_empty() {
            continue;
        }
        let (series, concerns) = relevant.entry(count.namespace.clone()).or_default();
        *series += count.series;
        concerns.extend(concerned);
    }
    relevant
}

/// Fills batches in the order of names, each up to `room`; a larger namespace gets its own.
fn pack(relevant: &Relevant, extent: &Extent<'_>, room: u64) -> Vec<Batch> {
    let mut batches: Vec<(u64, BTreeSet<String>, BTreeSet<String>)> = Vec::new();
    for (label, (series, concerns)) in relevant {
        match batches.last_mut() {
            Some((filled, labels, concerned)) if *filled + series <= room => {
                *filled += series;
                labels.insert(label.clone());
                concerned.extend(concerns.iter().cloned());
            }
            _ => batches.push((*series, BTreeSet::from([label.clone()]), concerns.clone())),
        }
    }
    batches
        .into_iter()
        .flat_map(|(series, labels, concerns)| in_parts(extent, series, labels, concerns))
        .collect()
}

/// One query, or several for more than `max_series`, each for some of the signals: every engine has about one series of
/// each. They are answered and read beside each other.
fn in_parts(
    extent: &Extent<'_>,
    series: u64,
    labels: BTreeSet<String>,
    concerns: BTreeSet<String>,
) -> impl Iterator<Item = Batch> {
    let parts = usize::try_from(series.div_ceil(extent.max_series.max(1))).unwrap_or(usize::MAX);
    let signals = (extent.signals.len() / parts.max(1)).max(1);
    extent.signals.chunks(signals).map(move |signals| Batch {
        names: signals.join("|"),
        labels: labels.clone(),
        concerns: Some(concerns.clone()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(namespace: &str, exported_namespace: &str, series: u64) -> Count {
        Count { namespace: namespace.into(), exported_namespace: exported_namespace.into(), series }
    }

    fn scope(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    /// What `ask` makes of asking for three signals of these namespaces, with at most ten series a query.
    fn planned<T>(namespaces: &[&str], ask: impl Fn(&Extent<'_>) -> T) -> T {
        let signals = ["a|b", "c", "d"].map(str::to_owned);
        let collectors = Collectors::new(&["monitoring".to_owned()]);
        planned_with(&[], namespaces, &signals, &collectors, ask)
    }

    fn planned_with<T>(
        heavy: &[&str],
        namespaces: &[&str],
        signals: &[String],
        collectors: &Collectors,
        ask: impl Fn(&Extent<'_>) -> T,
    ) -> T {
        let (scope, heavy) = (scope(namespaces), scope(heavy));
        ask(&Extent { scope: &scope, signals, max_series: 10, collectors, heavy: &heavy })
    }

    fn labels(batches: &[Batch]) -> Vec<Vec<&str>> {
        batches.iter().map(|batch| batch.labels.iter().map(String::as_str).collect()).collect()
    }

    fn names(batches: &[Batch]) -> Vec<&str> {
        batches.iter().map(|batch| batch.names.as_str()).collect()
    }

    #[test]
    fn up_to_the_limit_one_query_asks_for_everything() {
        let counts = [count("a", "", 6), count("b", "", 4)];
        let all = planned(&["a", "b"], |extent| batches(&counts, extent));
        assert_eq!(all, [Batch { names: "a|b|c|d".into(), labels: scope(&["a", "b"]), concerns: None }]);
    }

    #[test]
    fn above_the_limit_namespaces_are_packed_and_strangers_left_out() {
        let counts =
            [count("a", "", 6), count("b", "", 4), count("c", "", 9), count("d", "", 5), count("x", "", 99)];
        let split = planned(&["a", "b", "c", "d"], |extent| batches(&counts, extent));
        assert_eq!(labels(&split), [vec!["a", "b"], vec!["c"], vec!["d"]]);
        assert_eq!(names(&split), ["a|b|c|d"; 3]);
    }

    #[test]
    fn a_namespace_above_the_limit_is_asked_for_by_signals() {
        let parts = |series| {
            let counts = [count("a", "", series), count("b", "", 1)];
            let split = planned(&["a", "b"], |extent| batches(&counts, extent));
            assert!(split.iter().all(|batch| batch.concerns.as_ref() == Some(&batch.labels)));
            let of_a = split.into_iter().filter(|batch| batch.labels == scope(&["a"]));
            of_a.map(|batch| batch.names).collect::<Vec<_>>()
        };
        assert_eq!(parts(10), ["a|b|c|d"]);
        for series in [11, 20, 30, 1_000, u64::MAX / 2] {
            assert_eq!(parts(series), ["a|b", "c", "d"], "{series}");
        }
    }

    #[test]
    fn a_namespace_scraped_through_somebody_else_is_asked_for_by_the_label_it_has() {
        let counts = [count("monitoring", "a", 11)];
        let split = planned(&["a"], |extent| batches(&counts, extent));
        assert_eq!(labels(&split), [["monitoring"]; 3]);
        assert_eq!(split[0].concerns, Some(scope(&["a"])));
    }

    #[test]
    fn after_a_refusal_every_namespace_is_asked_alone_even_uncounted() {
        let alone = |counts: &[Count]| planned(&["a", "b"], |extent| by_namespace(counts, extent));
        assert_eq!(
            labels(&alone(&[])),
            [["a"], ["b"], ["monitoring"]],
            "who is listed speaks for all of them"
        );
        assert_eq!(labels(&alone(&[count("a", "", 1), count("b", "", 1)])), [["a"], ["b"]]);
        assert_eq!(labels(&alone(&[count("a", "", 1), count("b", "", 11)])), [["a"], ["b"], ["b"], ["b"]]);
    }

    #[test]
    fn a_refused_batch_is_asked_namespace_by_namespace_until_it_is_one() {
        let counts = [count("a", "", 6), count("b", "", 4), count("c", "", 9)];
        planned(&["a", "b", "c"], |extent| {
            let split = batches(&counts, extent);
            let again = alone(&split[0], &counts, extent).unwrap();
            assert_eq!(labels(&again), [["a"], ["b"]]);
            assert_eq!(alone(&again[0], &counts, extent), None);
            let all = &batches(&[], extent)[0];
            assert_eq!(alone(all, &counts, extent).unwrap().len(), 3);
        });
    }

    #[test]
    fn counts_of_all_namespaces_are_by_either_label() {
        let counts = [count("monitoring", "a", 1), count("b", "", 1)];
        let listed = Collectors::new(&["monitoring".to_owned()]);
        assert!(all_counted(&counts, &scope(&["a", "b"]), &listed));
        assert!(!all_counted(&counts, &scope(&["a", "b", "c"]), &listed));
        assert!(!all_counted(&counts, &scope(&["a", "b"]), &Collectors::default()), "anybody can write it");
    }

    #[test]
    fn a_namespace_that_a_page_names_itself_is_neither_counted_nor_asked_for() {
        let counts = [count("evil", "a", 50), count("a", "", 11)];
        let split = planned(&["a"], |extent| batches(&counts, extent));
        assert_eq!(labels(&split), [["a"]; 3]);
    }

    #[test]
    fn foreign_namespaces_and_those_that_a_page_names_are_not_even_counted() {
        let count = |collectors: &Collectors| count_query("x|y", &scope(&["a", "b"]), collectors);
        let own = "count by (namespace) ({__name__=~\"x|y\",namespace=~\"a|b\"})";
        assert_eq!(count(&Collectors::default()), own);
        let listed = "count by (namespace, exported_namespace) ({__name__=~\"x|y\",namespace=~\"m\",exported_namespace=~\"a|b\"})";
        assert_eq!(count(&Collectors::new(&["m/job".to_owned()])), format!("{own} or {listed}"));
    }

    #[test]
    fn a_namespace_that_is_too_much_is_asked_for_alone_and_the_others_together() {
        let counts = [count("a", "", 1), count("b", "", 2), count("c", "", 3)];
        let (signals, nobody) = (["x".to_owned()], Collectors::default());
        let planned = |heavy: &[&str], counts: &[Count]| {
            labels_of(&planned_with(heavy, &["a", "b", "c"], &signals, &nobody, |extent| {
                batches(counts, extent)
            }))
        };
        assert_eq!(planned(&["b"], &counts), ["a c", "b"]);
        assert_eq!(planned(&["b"], &[]), ["a c", "b"], "however many series it has");
        assert_eq!(planned(&["a", "b", "c"], &counts), ["a b c"], "it is not one of them");
    }

    fn labels_of(batches: &[Batch]) -> Vec<String> {
        labels(batches).into_iter().map(|labels| labels.join(" ")).collect()
    }

    #[test]
    fn a_hostile_label_stays_inside_its_quotes() {
        let hostile = scope(&["a.b\"} or {x=~\".*\\"]);
        let batch = Batch { names: "a|b".into(), labels: hostile, concerns: None };
        let query = batch.query(Duration::from_secs(120));
        assert!(
            query.ends_with(r#"namespace=~"a\\.b\"\\} or \\{x\\=\\~\"\\.\\*\\\\"}[120000ms]"#),
            "{query}"
        );
    }
}
