//! Which queries an evaluation asks: one for everything, or one a batch of namespaces when that is too much. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The question that decides: how many series there are, by the two labels that may name a namespace.
pub(super) fn count_query(names: &str) -> String {
    format!("count by (namespace, exported_namespace) ({{__name__=~\"{names}\"}})")
}

/// How many series have these labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) namespace: String,
    pub(super) exported_namespace: String,
    pub(super) series: u64,
}

/// One query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Batch {
    /// Values of the `namespace` label to ask for; `None` asks for all.
    labels: Option<BTreeSet<String>>,
    /// The namespaces in scope that the answer concerns; `None` is all of them.
    pub(super) concerns: Option<BTreeSet<String>>,
}

impl Batch {
    /// Everything at once.
    const ALL: Self = Self { labels: None, concerns: None };

    /// The range selector over `names`, alternatives of a regular expression.
    pub(super) fn query(&self, names: &str, window: Duration) -> String {
        let window = window.as_millis();
        match &self.labels {
            None => format!("{{__name__=~\"{names}\"}}[{window}ms]"),
            Some(labels) => {
                let labels: Vec<String> = labels.iter().map(|label| escape(label)).collect();
                format!("{{__name__=~\"{names}\",namespace=~\"{}\"}}[{window}ms]", labels.join("|"))
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

/// The queries for series as counted: one while there are at most `max_series`, else as few batches of whole
/// namespaces as keep below it, where possible.
pub(super) fn batches(counts: &[Count], scope: &BTreeSet<String>, max_series: u64) -> Vec<Batch> {
    let total: u64 = counts.iter().map(|count| count.series).sum();
    if total <= max_series {
        return vec![Batch::ALL];
    }
    pack(&relevant(counts, scope), max_series)
}

/// One query a namespace: for a backend that refused for size. Without counts, by the namespaces in scope.
pub(super) fn by_namespace(counts: &[Count], scope: &BTreeSet<String>) -> Vec<Batch> {
    if counts.is_empty() {
        let one = |namespace: &String| {
            let only = BTreeSet::from([namespace.clone()]);
            Batch { labels: Some(only.clone()), concerns: Some(only) }
        };
        return scope.iter().map(one).collect();
    }
    pack(&relevant(counts, scope), 0)
}

/// One query for each namespace of a batch that was refused for size; `None` when it can't be made smaller.
pub(super) fn alone(refused: &Batch, counts: &[Count], scope: &BTreeSet<String>) -> Option<Vec<Batch>> {
    let mut parts = by_namespace(counts, scope);
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

fn relevant<'a>(counts: &'a [Count], scope: &BTreeSet<String>) -> Relevant<'a> {
    let mut relevant = Relevant::new();
    for count in counts {
        let names = [&count.namespace, &count.exported_namespace];
        let concerned: BTreeSet<String> =
            names.into_iter().filter(|name| scope.contains(*name)).cloned().collect();
        if concerned.is_empty() {
            continue;
        }
        let (series, concerns) = relevant.entry(count.namespace.as_str()).or_default();
        *series += count.series;
        concerns.extend(concerned);
    }
    relevant
}

/// Fills batches in the order of names, each up to `max_series`; a larger namespace gets its own.
fn pack(relevant: &Relevant<'_>, max_series: u64) -> Vec<Batch> {
    let mut batches: Vec<(u64, BTreeSet<String>, BTreeSet<String>)> = Vec::new();
    for (label, (series, concerns)) in relevant {
        match batches.last_mut() {
            Some((filled, labels, concerned)) if *filled + series <= max_series => {
                *filled += series;
                labels.insert((*label).to_owned());
                concerned.extend(concerns.iter().cloned());
            }
            _ => batches.push((*series, BTreeSet::from([(*label).to_owned()]), concerns.clone())),
        }
    }
    let batch = |(_, labels, concerns)| Batch { labels: Some(labels), concerns: Some(concerns) };
    batches.into_iter().map(batch).collect()
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

    fn labels(batches: &[Batch]) -> Vec<Vec<&str>> {
        batches.iter().map(|b| b.labels.iter().flatten().map(String::as_str).collect()).collect()
    }

    #[test]
    fn up_to_the_limit_one_query_asks_for_everything() {
        let counts = [count("a", "", 12_000), count("b", "", 8_000)];
        assert_eq!(batches(&counts, &scope(&["a", "b"]), 20_000), [Batch::ALL]);
    }

    #[test]
    fn above_the_limit_namespaces_are_packed_and_strangers_left_out() {
        let counts =
            [count("a", "", 6), count("b", "", 4), count("c", "", 30), count("d", "", 5), count("x", "", 99)];
        let split = batches(&counts, &scope(&["a", "b", "c", "d"]), 10);
        assert_eq!(labels(&split), [vec!["a", "b"], vec!["c"], vec!["d"]]);
    }

    #[test]
    fn a_namespace_scraped_through_somebody_else_is_asked_for_by_the_label_it_has() {
        let counts = [count("monitoring", "a", 20)];
        let split = batches(&counts, &scope(&["a"]), 10);
        assert_eq!(labels(&split), [["monitoring"]]);
        assert_eq!(split[0].concerns, Some(scope(&["a"])));
    }

    #[test]
    fn after_a_refusal_every_namespace_is_asked_alone_even_uncounted() {
        assert_eq!(labels(&by_namespace(&[], &scope(&["a", "b"]))), [["a"], ["b"]]);
        let counts = [count("a", "", 1), count("b", "", 1)];
        assert_eq!(labels(&by_namespace(&counts, &scope(&["a", "b"]))), [["a"], ["b"]]);
    }

    #[test]
    fn a_refused_batch_is_asked_namespace_by_namespace_until_it_is_one() {
        let counts = [count("a", "", 6), count("b", "", 4), count("c", "", 9)];
        let scope = scope(&["a", "b", "c"]);
        let split = batches(&counts, &scope, 10);
        let again = alone(&split[0], &counts, &scope).unwrap();
        assert_eq!(labels(&again), [["a"], ["b"]]);
        assert_eq!(alone(&again[0], &counts, &scope), None);
        assert_eq!(alone(&Batch::ALL, &counts, &scope).unwrap().len(), 3);
    }

    #[test]
    fn a_hostile_label_stays_inside_its_quotes() {
        let batch = Batch { labels: Some(scope(&["a.b\"} or {x=~\".*\\"])), concerns: None };
        let query = batch.query("a|b", Duration::from_secs(120));
        assert!(
            query.ends_with(r#"namespace=~"a\\.b\"\\} or \\{x\\=\\~\"\\.\\*\\\\"}[120000ms]"#),
            "{query}"
        );
    }
}
