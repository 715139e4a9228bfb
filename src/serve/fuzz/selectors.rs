//! Selectors, and queries that contain them.

use http::Uri;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::reference::{Clause, takes};
use super::{damaged, fuzz, text};
use crate::serve::external_metrics::VariantSelector;
use crate::serve::external_metrics::query::{ListOptions, is_watch};
use crate::serve::external_metrics::selector::Selector;
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

fn reads_back(selector: &Selector) -> Result<(), TestCaseError> {
    prop_assert_eq!(&Selector::parse(&selector.to_string()), &Ok(selector.clone()));
    Ok(())
}

#[test]
fn selectors_mean_what_their_requirements_mean() {
    fuzz("selector", (written(), vec((key(), value()), 0..5)), |((clauses, text), labels)| {
        let selector =
            Selector::parse(&text).map_err(|error| TestCaseError::fail(format!("{text:?}: {error}")))?;
        let get = |key: &str| labels.iter().find(|(own, _)| own == key).map(|(_, value)| value.as_str());
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
fn selectors_are_taken_and_refused_as_kubernetes_does() {
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
        let ours = Selector::parse(&text);
        prop_assert_eq!(ours.is_ok(), takes(&text), "{:?}: {:?}", text, ours);
        ours.map_or(Ok(()), |selector| reads_back(&selector))
    });
}

/// `byte` as a client may write it in a query.
fn encoded((byte, way): (u8, u8)) -> String {
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
            bytes.map(|(at, byte)| encoded((byte, u8::try_from((ways >> (at % 60)) & 3).unwrap()))).collect();
        let uri: Uri = format!("/x?{before}labelSelector={value}{after}").parse().unwrap();
        let read = ListOptions::parse(EXTERNAL_GROUP, &uri)
            .map_err(|status| TestCaseError::fail(status.message().to_owned()))?;
        let selector = VariantSelector { labels: std::slice::from_ref(&read.labels), fields: &read.fields };
        prop_assert_eq!(selector.to_string(), read.labels.to_string());
        prop_assert_eq!(Ok(read.labels), Selector::parse(&text), "{}", uri);
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
