//! `Accept`, `Accept-Encoding`, and `Audit-Id`.

use http::header::{ACCEPT, ACCEPT_ENCODING};
use http::{HeaderMap, HeaderValue};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::{damaged, fuzz};
use crate::serve::encoding::negotiation::{self, Discovery, Encoding};
use crate::serve::middleware::AuditId;
use crate::serve::paths::AUDIT_ID;

const MEDIA: [&str; 10] = [
    "application/json",
    "application/yaml",
    "application/x-yaml",
    "application/vnd.kubernetes.protobuf",
    "APPLICATION/JSON",
    "application/*",
    "*/*",
    "text/html",
    "application/cbor",
    "",
];
const PARAMETERS: [&str; 14] = [
    "q=0",
    "q=0.0",
    "q=0.5",
    "q=1",
    "q=x",
    "q=NaN",
    "q=-1",
    "as=Table",
    "v=v1",
    "v=v1beta1",
    "v=v2",
    "g=meta.k8s.io",
    "g=apidiscovery.k8s.io",
    "as=APIGroupDiscoveryList",
];

fn range() -> impl Strategy<Value = String> {
    let parameters = vec((select(&[";", "; ", " ;"][..]), select(&PARAMETERS[..])), 0..4);
    let joined = parameters
        .prop_map(|pairs| pairs.into_iter().flat_map(|(gap, text)| [gap, text]).collect::<String>());
    (select(&MEDIA[..]), joined).prop_map(|(media, parameters)| format!("{media}{parameters}"))
}

/// Well-formed and damaged ranges, some of them in several headers.
fn values() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let whole = vec(range(), 0..5).prop_map(|ranges| ranges.join(",").into_bytes());
    let corpus = [
        "application/vnd.kubernetes.protobuf, */*",
        "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;q=0.9",
        "gzip;q=1.0, identity; q=0.5, *;q=0",
    ];
    vec(prop_oneof![2 => whole, 1 => damaged(&corpus)], 0..3)
}

fn headers(name: http::HeaderName, values: &[Vec<u8>]) -> HeaderMap {
    let values = values.iter().filter_map(|value| HeaderValue::from_bytes(value).ok());
    let mut headers = HeaderMap::new();
    for value in values {
        headers.append(name.clone(), value);
    }
    headers
}

/// The elements of the header in lower case, without those that are not ASCII.
fn ranges(headers: &HeaderMap, name: http::HeaderName) -> Vec<String> {
    let values: Vec<_> = headers.get_all(name).into_iter().map(|value| value.as_bytes().to_vec()).collect();
    let joined = values.join(&b',');
    let text = String::from_utf8_lossy(&joined);
    let ranges =
        text.split(',').filter(|range| range.is_ascii()).map(|range| range.trim().to_ascii_lowercase());
    ranges.filter(|range| !range.is_empty()).collect()
}

fn media(range: &str) -> &str {
    range.split(';').next().unwrap_or_default().trim()
}

/// True for a media range that matches `encoding`.
fn offers(range: &str, encoding: Encoding) -> bool {
    let yaml = encoding == Encoding::Yaml && media(range) == "application/x-yaml";
    yaml || [encoding.media_type(), "application/*", "*/*"].contains(&media(range))
}

#[test]
fn nothing_is_chosen_that_was_not_offered() {
    fuzz("accept", values(), |values| {
        let headers = headers(ACCEPT, &values);
        let ranges = ranges(&headers, ACCEPT);
        let offered = |encoding| {
            ranges.is_empty() && encoding == Encoding::Json
                || ranges.iter().any(|range| offers(range, encoding))
        };
        if let Some(chosen) = negotiation::representation(&headers) {
            prop_assert!(offered(chosen.encoding), "{:?} of {:?}", chosen, ranges);
            prop_assert!(
                chosen.table.is_none()
                    || ranges
                        .iter()
                        .map(|range| range.replace([' ', '\t'], ""))
                        .any(|range| { range.contains("as=table") || range.contains("as=\"table") }),
                "{:?}",
                ranges
            );
            prop_assert!(chosen.table.is_none() || chosen.encoding != Encoding::Protobuf);
        }
        if let Some(encoding) = negotiation::encoding(&headers) {
            prop_assert!(offered(encoding), "{:?} of {:?}", encoding, ranges);
        }
        if let Discovery::Legacy(encoding) = negotiation::discovery(&headers) {
            prop_assert!(offered(encoding), "{:?} of {:?}", encoding, ranges);
        }
        let error = negotiation::error_encoding(&headers);
        prop_assert!(offered(error) || error == Encoding::Json, "{:?} of {:?}", error, ranges);
        prop_assert!(!negotiation::accepts_json(&headers) || offered(Encoding::Json), "{:?}", ranges);
        prop_assert_eq!(
            negotiation::encoding(&headers).is_none() && negotiation::accepts_json(&headers),
            false
        );
        Ok(())
    });
}

#[test]
fn nothing_is_compressed_unasked() {
    let whole = vec(
        (select(&["gzip", "GZIP", "*", "identity", "br"][..]), select(&["", ";q=0", "; q=0.3", ";q=z"][..])),
        0..4,
    )
    .prop_map(|parts| {
        parts.into_iter().map(|(name, q)| format!("{name}{q}")).collect::<Vec<_>>().join(", ").into_bytes()
    });
    let values = vec(prop_oneof![whole, damaged(&["gzip;q=1.0, identity; q=0.5, *;q=0"])], 0..3);
    fuzz("accept-encoding", values, |values| {
        let headers = headers(ACCEPT_ENCODING, &values);
        let ranges = ranges(&headers, ACCEPT_ENCODING);
        let is_accepted = ranges.iter().any(|range| ["gzip", "*"].contains(&media(range)));
        prop_assert!(!negotiation::accepts_gzip(&headers) || is_accepted, "{:?}", ranges);
        Ok(())
    });
}

#[test]
fn an_audit_id_is_always_fit_for_a_log() {
    let value = prop_oneof![
        damaged(&["5f1c8a3e-3a9d-4a52-9b1f-0c6a7f2f9d11", "x\" admin=\"true", "%0d%0aSet-Cookie: a"]),
        vec(any::<u8>(), 0..100)
    ];
    fuzz("audit-id", value, |value| {
        let mut headers = HeaderMap::new();
        if let Ok(value) = HeaderValue::from_bytes(&value) {
            headers.insert(AUDIT_ID, value);
        }
        let id = AuditId::from_headers(&headers).header().clone();
        prop_assert!(
            (1..=64).contains(&id.len()) && id.as_bytes().iter().all(|byte| (b'!'..=b'~').contains(byte)),
            "{:?}",
            id
        );
        let usable = (1..=64).contains(&value.len()) && value.iter().all(|byte| (b'!'..=b'~').contains(byte));
        prop_assert_eq!(id.as_bytes() == value, usable, "{:?}", id);
        Ok(())
    });
}
