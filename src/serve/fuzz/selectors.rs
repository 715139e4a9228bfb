//! Selectors, and queries that contain them.

use http::Uri;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::{damaged, fuzz, text};
use crate::serve::external_metrics::VariantSelector;
use crate::serve::external_metrics::query::{ListOptions, is_watch};
use crate::serve::external_metrics::selector::LabelSelector;
use crate::serve::paths::EXTERNAL_GROUP;

/// Few keys, so that requirements and labels often have the same.
fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => select(&["a", "b", "in", "notin", "variant_name", "app.kubernetes.io/name"][..]).prop_map(str::to_owned),
        1 => text("([a-z0-9]{1,9}\\.[a-z]{1,5}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"),
    ]
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => select(&["", "1", "7", "007", "x", "in", "a.b_c"][..]).prop_map(str::to_owned),
        1 => text("([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"),
    ]
}

fn clause() -> impl Strategy<Value = Clause> {
    // A single empty value needs a comma.
    let values = || {
        vec(value(), 1..4).prop_map(|mut values| {
            if values == [""] {
                values.push(String::new());
            }
            values
        })
    };
    let bound = || prop_oneof![0..9_i64, 0..i64::MAX];
    prop_oneof![
        key().prop_map(Clause::Exists),
        key().prop_map(Clause::Absent),
        (key(), value()).prop_map(|(key, value)| Clause::Equals(key, value)),
        (key(), value()).prop_map(|(key, value)| Clause::Differs(key, value)),
        (key(), values()).prop_map(|(key, values)| Clause::In(key, values)),
        (key(), values()).prop_map(|(key, values)| Clause::NotIn(key, values)),
        (key(), bound()).prop_map(|(key, bound)| Clause::Above(key, bound)),
        (key(), bound()).prop_map(|(key, bound)| Clause::Below(key, bound)),
    ]
}

fn text_of(clauses: &[Clause], gap: &str, equals: &str) -> String {
    clauses.iter().map(|clause| clause.text(gap, equals)).collect::<Vec<_>>().join(&format!("{gap},{gap}"))
}

fn written() -> impl Strategy<Value = (Vec<Clause>, String)> {
    let gap = select(&["", " ", "\t ", "\r\n"][..]);
    (vec(clause(), 0..5), gap, select(&["=", "=="][..]))
        .prop_map(|(clauses, gap, equals)| (clauses.clone(), text_of(&clauses, gap, equals)))
}

fn reads_back(selector: &LabelSelector) -> Result<(), TestCaseError> {
    prop_assert_eq!(&LabelSelector::parse(&selector.to_string()), &Ok(selector.clone()));
    Ok(())
}

#[test]
fn selectors_mean_what_their_requirements_mean() {
    fuzz("selector", (written(), vec((key(), value()), 0..5)), |((clauses, text), labels)| {
        let selector =
            LabelSelector::parse(&text).map_err(|error| TestCaseError::fail(format!("{text:?}: {error}")))?;
        let get = |key: &str| labels.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str());
        prop_assert_eq!(
            selector.matches(get),
            clauses.iter().all(|clause| clause.holds(&labels)),
            "{:?}",
            text
        );
        reads_back(&selector)
    });
}

#[test]
fn selectors_are_accepted_and_rejected_as_by_kubernetes() {
    let tokens = select(
        &[
            "a", "b/c", "in", "notin", "x.y", "7", "-", "/", "=", "==", "!=", "!", ">", "<", "(", ")", ",",
            " ", "é",
        ][..],
    );
    let mixed = vec(tokens, 0..12).prop_map(|tokens| tokens.concat());
    let broken =
        damaged(&["a=1,b in (x,y),!c,d notin (,z),e>7,f<9,p.q/r==s,g", "a in (,,x)", "A/b=c", "in in (in)"]);
    let broken = broken.prop_map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', ""));
    fuzz("selector text", prop_oneof![mixed, broken], |text| {
        let parsed = LabelSelector::parse(&text);
        prop_assert_eq!(parsed.is_ok(), is_accepted(&text), "{:?}: {:?}", text, parsed);
        parsed.map_or(Ok(()), |selector| reads_back(&selector))
    });
}

/// `byte` as a client may write it in a query.
fn encoded(byte: u8, way: u8) -> String {
    let plain = byte.is_ascii_alphanumeric() || b"-_.~!(),=".contains(&byte);
    match way {
        0 | 1 if plain => char::from(byte).into(),
        0 if byte == b' ' => "+".into(),
        2 => format!("%{byte:02x}"),
        _ => format!("%{byte:02X}"),
    }
}

#[test]
fn a_selector_in_a_query_is_the_selector_however_it_is_encoded() {
    let input = (
        written(),
        any::<u64>(),
        text("(&|limit=5&|foo=%41&|pretty&)?"),
        text("(|&|&timeoutSeconds=7|&x=%zz)?"),
    );
    fuzz("query", input, |((_, text), ways, before, after)| {
        let bytes = text.bytes().enumerate();
        let value: String =
            bytes.map(|(at, byte)| encoded(byte, u8::try_from((ways >> (at % 60)) & 3).unwrap())).collect();
        let uri: Uri = format!("/x?{before}labelSelector={value}{after}").parse().unwrap();
        let read = ListOptions::parse(EXTERNAL_GROUP, &uri)
            .map_err(|status| TestCaseError::fail(status.message().to_owned()))?;
        let selector = VariantSelector { labels: std::slice::from_ref(&read.labels), fields: &read.fields };
        prop_assert_eq!(selector.to_string(), read.labels.to_string());
        prop_assert_eq!(Ok(read.labels), LabelSelector::parse(&text), "{}", uri);
        prop_assert!(!is_watch(&uri));
        Ok(())
    });
}

#[test]
fn no_query_harms() {
    let corpus = [
        "labelSelector=a%3D1%2Cb+in+%28x%2Cy%29&limit=500&watch=0&fieldSelector=metadata.name%3Dx",
        "fieldSelector=metadata.name!=a%5c,b,metadata.namespace==c",
        "%&=&&a=%e2%82",
        "watch=true&watch",
    ];
    fuzz("query bytes", damaged(&corpus), |bytes| {
        let Ok(uri) = Uri::try_from([b"/x?", &bytes[..]].concat()) else { return Ok(()) };
        let _ = (ListOptions::parse(EXTERNAL_GROUP, &uri), is_watch(&uri));
        Ok(())
    });
}

/// A requirement of the reference implementation, which shares no code with the tested one: it says which texts Kubernetes'
/// `labels.Parse` accepts, token by token from a list, and what requirements mean.
#[derive(Debug, Clone)]
enum Clause {
    Exists(String),
    Absent(String),
    Equals(String, String),
    Differs(String, String),
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Above(String, i64),
    Below(String, i64),
}

impl Clause {
    /// Its text, with `gap` for every space.
    fn text(&self, gap: &str, equals: &str) -> String {
        match self {
            Self::Exists(key) => key.clone(),
            Self::Absent(key) => format!("!{gap}{key}"),
            Self::Equals(key, value) => format!("{key}{gap}{equals}{gap}{value}"),
            Self::Differs(key, value) => format!("{key}{gap}!={gap}{value}"),
            Self::In(key, values) => format!("{key} in{gap}({gap}{})", values.join(&format!("{gap},"))),
            Self::NotIn(key, values) => format!("{key}\tnotin{gap}({})", values.join(&format!(",{gap}"))),
            Self::Above(key, bound) => format!("{key}{gap}>{gap}{bound}"),
            Self::Below(key, bound) => format!("{key}<{gap}{bound}"),
        }
    }

    fn holds(&self, labels: &[(String, String)]) -> bool {
        let get = |key: &String| labels.iter().find(|(name, _)| name == key).map(|(_, value)| value);
        let number = |key: &String| get(key).and_then(|value| value.parse::<i64>().ok());
        match self {
            Self::Exists(key) => get(key).is_some(),
            Self::Absent(key) => get(key).is_none(),
            Self::Equals(key, value) => get(key) == Some(value),
            Self::Differs(key, value) => get(key) != Some(value),
            Self::In(key, values) => get(key).is_some_and(|label| values.contains(label)),
            Self::NotIn(key, values) => !get(key).is_some_and(|label| values.contains(label)),
            Self::Above(key, bound) => number(key).is_some_and(|label| label > *bound),
            Self::Below(key, bound) => number(key).is_some_and(|label| label < *bound),
        }
    }
}

const SPECIAL: &str = "=!(),><";

/// Whether `labels.Parse` accepts `text`, which must not contain NUL.
fn is_accepted(text: &str) -> bool {
    let tokens = tokens(text);
    let words: Vec<&str> = tokens.iter().map(String::as_str).collect();
    words.is_empty() || are_requirements(&words)
}

fn tokens(text: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut is_adjacent = false;
    for c in text.chars() {
        let is_space = " \t\r\n".contains(c);
        if !is_space {
            match tokens.last_mut() {
                Some(last) if is_adjacent && is_one_token(last, c) => last.push(c),
                _ => tokens.push(c.into()),
            }
        }
        is_adjacent = !is_space;
    }
    tokens
}

fn is_one_token(last: &str, c: char) -> bool {
    match last {
        "=" | "!" => c == '=',
        _ => !last.contains(|c| SPECIAL.contains(c)) && !SPECIAL.contains(c),
    }
}

/// Requirements separated by commas; a trailing comma is an error.
fn are_requirements(tokens: &[&str]) -> bool {
    let depth = |at: usize| {
        tokens[..at].iter().filter(|token| **token == "(").count()
            != tokens[..at].iter().filter(|token| **token == ")").count()
    };
    let end = (0..tokens.len()).find(|at| tokens[*at] == "," && !depth(*at));
    match end {
        None => is_requirement(tokens),
        Some(at) => is_requirement(&tokens[..at]) && are_requirements(&tokens[at + 1..]),
    }
}

fn is_requirement(tokens: &[&str]) -> bool {
    match tokens {
        [name] | ["!", name] => is_key(name),
        [name, "=" | "==" | "!="] => is_key(name),
        [name, "=" | "==" | "!=", given] => is_key(name) && is_value(given),
        [name, ">" | "<", given] => is_key(name) && is_value(given) && given.parse::<i64>().is_ok(),
        [name, "in" | "notin", "(", between @ .., ")"] => is_key(name) && is_set(between),
        _ => false,
    }
}

/// Values separated by commas, each of which may be empty.
fn is_set(tokens: &[&str]) -> bool {
    tokens.split(|token| *token == ",").all(|part| match part {
        [] => true,
        [given] => is_value(given),
        _ => false,
    })
}

fn is_key(text: &str) -> bool {
    let parts: Vec<&str> = text.split('/').collect();
    match parts[..] {
        [name] => !name.is_empty() && is_value(name),
        [prefix, name] => is_subdomain(prefix) && !name.is_empty() && is_value(name),
        _ => false,
    }
}

fn is_value(text: &str) -> bool {
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    text.is_empty()
        || (text.len() <= 63
            && plain
            && !text.starts_with(['-', '_', '.'])
            && !text.ends_with(['-', '_', '.']))
}

fn is_subdomain(text: &str) -> bool {
    let part = |part: &str| {
        let plain = part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        !part.is_empty() && plain && !part.starts_with('-') && !part.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(part)
}
