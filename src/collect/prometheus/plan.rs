//! Which queries an evaluation asks: one for everything, or one a batch of namespaces when that is too much, or one a
//! signal of a namespace that alone is too much. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::collectors::Collectors;
use crate::collect::signals;

/// The question that decides: how many series there are, by the labels that may name a namespace: what was scraped says
/// `exported_namespace`, which counts only where `collectors` are listed.
pub(super) fn count_query(names: &str, collectors: &Collectors) -> String {
    let by = if collectors.is_empty() { "namespace" } else { "namespace, exported_namespace" };
    format!("count by ({by}) ({{__name__=~\"{names}\"{}}})", signals::matchers(names))
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
}

/// One query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Batch {
    /// Names of metrics, as alternatives of a regular expression.
    names: String,
    /// Values of the `namespace` label to ask for; `None` asks for all.
    labels: Option<BTreeSet<String>>,
    /// The namespaces in scope that the answer concerns; `None` is all of them.
    pub(super) concerns: Option<BTreeSet<String>>,
}

impl Batch {
    /// The range selector.
    pub(super) fn query(&self, window: Duration) -> String {
        let (names, window) = (&self.names, window.as_millis());
        let only = signals::matchers(names);
        match &self.labels {
            None => format!("{{__name__=~\"{names}\"{only}}}[{window}ms]"),
            Some(labels) => {
                let labels: Vec<String> = labels.iter().map(|label| escape(label)).collect();
                format!("{{__name__=~\"{names}\"{only},namespace=~\"{}\"}}[{window}ms]", labels.join("|"))
            }
        }
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
    let total: u64 = counts.iter().map(|count| count.series).sum();
    if total <= extent.max_series {
        return vec![Batch { names: extent.signals.join("|"), labels: None, concerns: None }];
    }
    pack(&relevant(counts, extent), extent, extent.max_series)
}

/// At most one namespace a query: for a backend that refused for size. Without counts, by the namespaces in scope.
pub(super) fn by_namespace(counts: &[Count], extent: &Extent<'_>) -> Vec<Batch> {
    if counts.is_empty() {
        let one = |namespace: &String| {
            let only = BTreeSet::from([namespace.clone()]);
            Batch { names: extent.signals.join("|"), labels: Some(only.clone()), concerns: Some(only) }
        };
        return extent.scope.iter().map(one).collect();
    }
    pack(&relevant(counts, extent), extent, 0)
}

/// One query for each namespace of a batch that was refused for size; `None` when it can't be made smaller.
pub(super) fn alone(refused: &Batch, counts: &[Count], extent: &Extent<'_>) -> Option<Vec<Batch>> {
    let mut parts = by_namespace(counts, extent);
    // Even for one namespace, asking for it alone leaves out those that are none of ours.
    let Some(labels) = &refused.labels else { return Some(parts) };
    if labels.len() < 2 {
        return None;
    }
    parts.retain(|part| part.labels.as_ref().is_some_and(|part| part.is_subset(labels)));
    Some(parts)
}

/// Values of the `namespace` label that concern the scope: their series, and the namespaces concerned.
type Relevant<'a> = BTreeMap<&'a str, (u64, BTreeSet<String>)>;

fn relevant<'a>(counts: &'a [Count], extent: &Extent<'_>) -> Relevant<'a> {
    let mut relevant = Relevant::new();
    for count in counts {
        let names = count.about(extent.collectors);
        let concerned: BTreeSet<String> =
            names.filter(|name| extent.scope.contains(*name)).cloned().collect();
        if concerned.is_empty() {
            continue;
        }
        let (series, concerns) = relevant.entry(count.namespace.as_str()).or_default();
        *series += count.series;
        concerns.extend(concerned);
    }
    relevant
}

/// Fills batches in the order of names, each up to `room`; a larger namespace gets its own.
fn pack(relevant: &Relevant<'_>, extent: &Extent<'_>, room: u64) -> Vec<Batch> {
    let mut batches: Vec<(u64, BTreeSet<String>, BTreeSet<String>)> = Vec::new();
    for (label, (series, concerns)) in relevant {
        match batches.last_mut() {
            Some((filled, labels, concerned)) if *filled + series <= room => {
                *filled += series;
                labels.insert((*label).to_owned());
                concerned.extend(concerns.iter().cloned());
            }
            _ => batches.push((*series, BTreeSet::from([(*label).to_owned()]), concerns.clone())),
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
        labels: Some(labels.clone()),
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
        ask(&Extent { scope: &scope(namespaces), signals: &signals, max_series: 10, collectors: &collectors })
    }

    fn labels(batches: &[Batch]) -> Vec<Vec<&str>> {
        batches.iter().map(|b| b.labels.iter().flatten().map(String::as_str).collect()).collect()
    }

    fn names(batches: &[Batch]) -> Vec<&str> {
        batches.iter().map(|batch| batch.names.as_str()).collect()
    }

    #[test]
    fn up_to_the_limit_one_query_asks_for_everything() {
        let counts = [count("a", "", 6), count("b", "", 4)];
        let all = planned(&["a", "b"], |extent| batches(&counts, extent));
        assert_eq!(all, [Batch { names: "a|b|c|d".into(), labels: None, concerns: None }]);
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
            assert!(split.iter().all(|batch| batch.concerns == batch.labels && batch.labels.is_some()));
            let of_a = split.into_iter().filter(|batch| batch.labels == Some(scope(&["a"])));
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
        assert_eq!(labels(&alone(&[])), [["a"], ["b"]]);
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
        let names = "x|y";
        assert_eq!(
            count_query(names, &Collectors::default()),
            "count by (namespace) ({__name__=~\"x|y\"})",
            "a page with a hundred thousand namespaces is one line of the answer"
        );
        assert!(count_query(names, &Collectors::new(&["m".to_owned()])).contains("exported_namespace"));
    }

    #[test]
    fn a_hostile_label_stays_inside_its_quotes() {
        let hostile = Some(scope(&["a.b\"} or {x=~\".*\\"]));
        let batch = Batch { names: "a|b".into(), labels: hostile, concerns: None };
        let query = batch.query(Duration::from_secs(120));
        assert!(
            query.ends_with(r#"namespace=~"a\\.b\"\\} or \\{x\\=\\~\"\\.\\*\\\\"}[120000ms]"#),
            "{query}"
        );
    }
}
