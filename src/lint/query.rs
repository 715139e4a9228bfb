//! Queries of KEDA's triggers that read a number of this program from Prometheus or from `/metrics/decisions`.

use serde_json::Value;

use super::input::{ScaledObject, Trigger};
use super::metric::NUMBERS;

/// A label matcher of a PromQL selector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Matcher<'q> {
    pub(crate) label: &'q str,
    /// True for `=`, the only operator with a value that can be compared here.
    pub(crate) is_equality: bool,
    /// As written, with its escapes.
    pub(crate) value: &'q str,
}

/// The query of a trigger that reads a number of this program.
pub(crate) fn query(trigger: &Trigger) -> Option<&str> {
    let field = match trigger.type_.as_str() {
        "prometheus" => "query",
        "metrics-api" => "valueLocation",
        _ => return None,
    };
    let text = trigger.metadata.get(field).and_then(Value::as_str)?;
    metric_in(text).map(|_| text)
}

/// Whether a trigger reads the number from the external scaler of this program: by its metadata, or the usual name of its Service.
pub(crate) fn is_external_scaler(trigger: &Trigger) -> bool {
    let setting = |name: &str| trigger.metadata.get(name).and_then(Value::as_str);
    let is_named = ["variantName", "scaleTarget"].into_iter().any(|name| setting(name).is_some());
    let is_addressed = setting("scalerAddress").is_some_and(|address| address.starts_with("wva."));
    matches!(trigger.type_.as_str(), "external" | "external-push") && (is_named || is_addressed)
}

/// Whether a trigger reads a number of this program.
pub(crate) fn reads(trigger: &Trigger) -> bool {
    query(trigger).is_some() || is_external_scaler(trigger)
}

/// The metric of this program that a query reads.
pub(crate) fn metric_in(query: &str) -> Option<&'static str> {
    NUMBERS.into_iter().map(|(name, _)| name).find(|name| query.contains(name))
}

/// The names of the labels that a query selects the series of `metric` by.
pub(crate) fn labels_after<'q>(query: &'q str, metric: &str) -> Vec<&'q str> {
    matchers(query, metric).into_iter().map(|matcher| matcher.label).collect()
}

/// Functions that keep which series a query selects, and words of the operator that replaces missing ones.
const TRANSPARENT_WORDS: [&str; 8] = ["avg", "max", "min", "on", "or", "scalar", "sum", "vector"];

/// Whether all that a query selects is the series of `metric` by the matchers behind it: no other series, join, grouping or name in braces.
pub(crate) fn is_plain_selection(query: &str, metric: &str) -> bool {
    let words = words(query);
    let parts: Vec<&str> =
        words.split('{').map(|part| part.split_once('}').map_or(part, |(_, rest)| rest)).collect();
    let outside = match words.split_once('{') {
        Some((before, _)) => format!("{before} {}", parts[1..].join(" ")),
        None => words,
    };
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ':';
    let mut names = outside.split(|letter: char| !is_name(letter)).filter(|word| !word.is_empty());
    names.clone().filter(|name| *name == metric).count() == 1
        && names.all(|name| {
            let lower = name.to_ascii_lowercase();
            name == metric || TRANSPARENT_WORDS.contains(&lower.as_str()) || name.parse::<f64>().is_ok()
        })
}

/// The matchers by which a query selects the series of `metric`.
pub(crate) fn matchers<'q>(query: &'q str, metric: &str) -> Vec<Matcher<'q>> {
    let Some((_, after)) = query.split_once(metric) else { return Vec::new() };
    let Some(body) = after.trim_start().strip_prefix('{') else { return Vec::new() };
    let mut matchers = Vec::new();
    let mut rest = body.trim_start();
    // NAME OPERATOR "VALUE", where a value may contain escaped quotes.
    while let Some((label, after)) = rest.split_once(['=', '!', '}']) {
        let quote = after.chars().find(|character| matches!(character, '"' | '\'' | '`'));
        let Some(quote) = quote.filter(|_| !label.trim().is_empty()) else { break };
        let (operator, value) = after.split_once(quote).unwrap_or_default();
        let ends = |index: &usize| quote == '`' || !value[..*index].ends_with('\\');
        let Some(end) = value.match_indices(quote).map(|(index, _)| index).find(ends) else {
            // Of a query that ends within a value, the label is known.
            matchers.push(Matcher { label: label.trim(), is_equality: false, value: "" });
            break;
        };
        let is_negated = rest[label.len()..].starts_with('!');
        let is_equality = !is_negated && operator.trim().is_empty();
        matchers.push(Matcher { label: label.trim(), is_equality, value: &value[..end] });
        rest = value[end + 1..].trim_start_matches([' ', ',', '\n', '\t']);
    }
    matchers
}

/// Whether a query has another result where it finds no series, as by `or vector(0)`.
pub(crate) fn replaces_missing(query: &str) -> bool {
    let words = words(query);
    let mut words = words.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
    words.any(|word| word.eq_ignore_ascii_case("or")) && words.any(|word| word.eq_ignore_ascii_case("vector"))
}

/// A query without what it quotes.
fn words(query: &str) -> String {
    let mut words = String::new();
    let mut letters = query.chars();
    while let Some(letter) = letters.next() {
        words.push(letter);
        if !matches!(letter, '"' | '\'' | '`') {
            continue;
        }
        while let Some(quoted) = letters.next().filter(|quoted| *quoted != letter) {
            if quoted == '\\' && letter != '`' {
                letters.next();
            }
        }
    }
    words
}

impl ScaledObject {
    /// Whether a trigger reads a number of this program.
    #[must_use]
    pub fn reads_a_number(&self) -> bool {
        self.spec.triggers.iter().any(reads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_is_plain_without_joins_groups_and_other_names() {
        let metric = "wva_desired_replicas";
        for query in [
            "wva_desired_replicas{a='b and on(c) x'}",
            "max(wva_desired_replicas{a=`b`} or vector(0))",
            "sum( wva_desired_replicas ) * 1",
        ] {
            assert!(is_plain_selection(query, metric), "{query}");
        }
        for query in [
            r#"{__name__="wva_desired_replicas",variant_name="a"}"#,
            r#"ns:wva_desired_replicas:max{variant_name="a"}"#,
            r#"wva_desired_replicas and on(variant_name) x{variant_name="a"}"#,
            "max by (variant_name) (wva_desired_replicas)",
            "wva_desired_replicas / wva_desired_replicas",
        ] {
            assert!(!is_plain_selection(query, metric), "{query}");
        }
    }

    #[test]
    fn only_an_operator_replaces_missing_series() {
        for query in ["x or vector(0)", "x OR on() vector(0)", r#"max(x{a="\""}) or(vector(1))"#] {
            assert!(replaces_missing(query), "{query}");
        }
        for query in [
            r#"x{v="a or vector(0)"}"#,
            r#"x{v="a\" or vector(0)"}"#,
            "x{v=`a\\`} or y",
            "vector(1) * x",
            "x{v='color'} * vector(1)",
        ] {
            assert!(!replaces_missing(query), "{query}");
        }
    }

    #[test]
    fn matchers_are_read_with_their_operators_and_escapes() {
        let read = |query| -> Vec<(&str, bool, &str)> {
            let read = matchers(query, "wva_desired_replicas");
            read.into_iter().map(|matcher| (matcher.label, matcher.is_equality, matcher.value)).collect()
        };
        assert_eq!(
            read(r#"max(wva_desired_replicas{variant_name="a", job=~"b|c",x!='d\'e'} or vector(0))"#),
            [("variant_name", true, "a"), ("job", false, "b|c"), ("x", false, r"d\'e")]
        );
        assert_eq!(read("wva_desired_replicas"), []);
        assert_eq!(read("wva_desired_replicas{}"), []);
        assert_eq!(read("wva_desired_replicas{a=\"unterminated"), [("a", false, "")]);
    }
}
