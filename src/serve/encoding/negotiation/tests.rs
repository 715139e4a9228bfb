//! Headers of real clients and possible ones. Arbitrary ones: `serve::fuzz::negotiation`.

use http::HeaderValue;

use super::*;

fn headers(accept: &str) -> HeaderMap {
    HeaderMap::from_iter([(ACCEPT, HeaderValue::from_str(accept).unwrap())])
}

const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const BETA: &str = "application/json; as=APIGroupDiscoveryList; v=v2beta1 ;g=apidiscovery.k8s.io";
const KUBECTL: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,\
                       application/json";

#[test]
fn aggregated_discovery_is_found_anywhere_in_any_order() {
    for (accept, expected) in [
        (format!("{V2},{BETA}"), Discovery::V2),
        (format!("{BETA},{V2}"), Discovery::V2Beta1),
        (format!("application/json,{V2}"), Discovery::V2),
        ("application/json".into(), Discovery::Legacy(Encoding::Json)),
        ("*/*".into(), Discovery::Legacy(Encoding::Json)),
        (format!("{V2};q=0,application/json"), Discovery::Legacy(Encoding::Json)),
        ("application/vnd.kubernetes.protobuf".into(), Discovery::Legacy(Encoding::Protobuf)),
        (V2.replace("v2", "v9"), Discovery::NotAcceptable),
        (V2.replace("json", "vnd.kubernetes.protobuf"), Discovery::NotAcceptable),
        ("application/xml".into(), Discovery::NotAcceptable),
    ] {
        assert_eq!(discovery(&headers(&accept)), expected, "{accept}");
    }
    assert_eq!(discovery(&HeaderMap::new()), Discovery::Legacy(Encoding::Json));
}

#[test]
fn the_greatest_weight_wins_and_the_first_among_equals() {
    use Encoding::{Json, Protobuf, Yaml};
    use TableVersion::{V1, V1Beta1};
    for (accept, expected) in [
        ("application/vnd.kubernetes.protobuf, */*", Some((Protobuf, None))),
        ("application/vnd.kubernetes.protobuf,application/json", Some((Protobuf, None))),
        ("application/json, */*", Some((Json, None))),
        ("application/yaml", Some((Yaml, None))),
        ("APPLICATION/YAML", Some((Yaml, None))),
        ("application/x-yaml", Some((Yaml, None))),
        ("application/*", Some((Json, None))),
        ("*/*;q=0.1, application/yaml;q=0.2", Some((Yaml, None))),
        ("application/yaml;q=0.5,application/json", Some((Json, None))),
        ("application/yaml;q=0.5,application/json;q=.5", Some((Yaml, None))),
        ("application/yaml;q=x", Some((Yaml, None))),
        ("application/json;q=0, */*", Some((Yaml, None))),
        ("application/json;q=0", None),
        ("application/*;q=0, */*", None),
        ("APPLICATION/*;q=0.0, */*;q=0.5, text/html", None),
        ("application/*;q=0, */*, application/yaml;q=0.1", Some((Yaml, None))),
        ("*/*;q=0, application/*", Some((Json, None))),
        ("*/*;q=0, application/yaml", Some((Yaml, None))),
        ("application/json;q=0, application/*;q=0.5, */*", Some((Yaml, None))),
        ("application/*;as=Table;v=v1;g=meta.k8s.io;q=0, */*", Some((Json, None))),
        ("application/json;charset=utf-8", Some((Json, None))),
        ("text/html, */*;q=0.1", Some((Json, None))),
        ("text/html", None),
        ("application/xml", None),
        ("*/json", None),
        (KUBECTL, Some((Json, Some(V1)))),
        ("application/json;as=Table;v=v1beta1;g=meta.k8s.io", Some((Json, Some(V1Beta1)))),
        ("application/yaml;as=Table;v=v1;g=meta.k8s.io", Some((Yaml, Some(V1)))),
        ("application/json;as=Table;v=v2;g=meta.k8s.io", None),
        ("application/json;as=Table;v=v1", None),
        ("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", None),
        ("application/json;as=Table;v=v9;g=meta.k8s.io,application/json", Some((Json, None))),
        ("application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io", None),
        ("application/json;as=Table;v=v1;g=meta.k8s.io;q=0,*/*", Some((Json, None))),
    ] {
        let expected = expected.map(|(encoding, table)| Representation { encoding, table });
        assert_eq!(representation(&headers(accept)), expected, "{accept}");
    }
    assert_eq!(representation(&HeaderMap::new()).map(|representation| representation.encoding), Some(Json));
}

#[test]
fn several_header_lines_are_one_list() {
    let mut lines = headers("text/html");
    lines.append(ACCEPT, HeaderValue::from_static("application/yaml"));
    assert_eq!(encoding(&lines), Some(Encoding::Yaml));
}

#[test]
fn an_element_that_is_not_text_does_not_hide_others() {
    for (bytes, expected) in [
        (&b"application/yaml, text/caf\xc3\xa9"[..], Encoding::Yaml),
        (b"\xff, application/yaml", Encoding::Yaml),
        (b"application/json;x=\xe9, application/yaml;q=0.1", Encoding::Yaml),
        (b"application/vnd.kubernetes.protobuf, \xa0", Encoding::Protobuf),
    ] {
        let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_bytes(bytes).unwrap())]);
        assert_eq!(encoding(&headers), Some(expected), "{bytes:?}");
    }
    let bytes = HeaderValue::from_bytes(b"caf\xe9, gzip").unwrap();
    assert!(accepts_gzip(&HeaderMap::from_iter([(ACCEPT_ENCODING, bytes)])));
}

#[test]
fn json_that_a_wildcard_does_not_cover_is_not_acceptable() {
    for (accept, expected) in [
        ("*/*", true),
        ("application/*;q=0, */*", false),
        ("application/json;q=0, */*", false),
        ("application/*;q=0, */*, application/json", true),
        ("application/yaml", false),
    ] {
        assert_eq!(accepts_json(&headers(accept)), expected, "{accept}");
    }
}

#[test]
fn an_error_has_an_encoding_whatever_is_accepted() {
    for (accept, expected) in [
        (KUBECTL, Encoding::Json),
        ("application/xml", Encoding::Json),
        ("application/json;q=0", Encoding::Json),
        ("application/yaml;as=Table;v=v1;g=meta.k8s.io", Encoding::Yaml),
        ("application/vnd.kubernetes.protobuf, */*", Encoding::Protobuf),
    ] {
        assert_eq!(error_encoding(&headers(accept)), expected, "{accept}");
    }
}

#[test]
fn gzip_is_used_only_for_clients_that_accept_it() {
    let accepts = |text: &'static str| {
        accepts_gzip(&HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(text))]))
    };
    for yes in ["gzip", "deflate, GZIP;q=0.5", "*", "br;q=1, *;q=0.1", "gzip,identity;q=0"] {
        assert!(accepts(yes), "{yes}");
    }
    for no in ["", "identity", "br", "gzip;q=0", "gzip;q=0, *", "x-gzip", "*;q=0"] {
        assert!(!accepts(no), "{no}");
    }
    assert!(!accepts_gzip(&HeaderMap::new()));
}
