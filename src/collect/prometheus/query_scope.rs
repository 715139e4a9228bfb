//! What narrows every query, whatever is in scope: label matchers, and the namespaces that queries may name. Pure.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::settings::PrometheusSettings;
use crate::engine::{Gap, Scope};

/// The configured limits of all queries.
#[derive(Debug)]
pub(super) struct QueryScope {
    /// Matchers that every selector gets, each after a comma.
    matchers: String,
    /// The only namespaces that may be queried; empty for all.
    namespaces: BTreeSet<String>,
}

impl QueryScope {
    pub(super) fn new(settings: &PrometheusSettings) -> Self {
        let matchers = settings.query_matchers.iter().flat_map(|matcher| [",", matcher]).collect();
        Self { matchers, namespaces: settings.query_namespaces.clone() }
    }

    /// Matchers that every selector gets, each after a comma.
    pub(super) fn matchers(&self) -> &str {
        &self.matchers
    }

    /// The part of `scope` that may be queried, and a gap for each namespace that may not.
    pub(super) fn narrow<'s>(&self, scope: &'s Scope) -> (Cow<'s, Scope>, Vec<Gap>) {
        let may_be_queried = |name: &String| self.namespaces.is_empty() || self.namespaces.contains(name);
        if scope.namespaces.iter().all(may_be_queried) {
            return (Cow::Borrowed(scope), Vec::new());
        }
        let (namespaces, excluded): (BTreeSet<_>, BTreeSet<_>) =
            scope.namespaces.iter().cloned().partition(may_be_queried);
        let gap = |name: String| {
            let reason = format!(
                "the namespace {name} is not among those of --query-namespace, so its metrics are not read; add it there"
            );
            Gap { namespace: Some(name), reason }
        };
        let gaps = excluded.into_iter().map(gap).collect();
        (Cow::Owned(Scope { namespaces, ..scope.clone() }), gaps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(names: &[&str]) -> Scope {
        Scope { namespaces: names.iter().map(|name| (*name).to_owned()).collect(), ..Scope::default() }
    }

    fn limits(namespaces: &[&str], matchers: &[&str]) -> QueryScope {
        QueryScope::new(&PrometheusSettings {
            query_namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(),
            query_matchers: matchers.iter().map(|matcher| (*matcher).to_owned()).collect(),
            ..PrometheusSettings::new("https://prometheus")
        })
    }

    #[test]
    fn each_matcher_follows_a_comma() {
        assert_eq!(limits(&[], &[]).matchers(), "");
        assert_eq!(limits(&[], &["a=\"x\",b=\"y\"", "c!=\"z\""]).matchers(), ",a=\"x\",b=\"y\",c!=\"z\"");
    }

    #[test]
    fn a_namespace_that_may_not_be_queried_is_a_gap_that_names_the_flag() {
        for (allowed, queried, excluded) in
            [(&[][..], "a b", ""), (&["a", "b", "c"], "a b", ""), (&["a"], "a", "b"), (&["c"], "", "a b")]
        {
            let scope = scope(&["a", "b"]);
            let (narrowed, gaps) = limits(allowed, &[]).narrow(&scope);
            let names: Vec<&str> = narrowed.namespaces.iter().map(String::as_str).collect();
            assert_eq!(names.join(" "), queried);
            assert!(gaps.iter().all(|gap| gap.reason.contains("--query-namespace")), "{gaps:?}");
            let names: Vec<&str> = gaps.iter().filter_map(|gap| gap.namespace.as_deref()).collect();
            assert_eq!(names.join(" "), excluded);
        }
    }
}
