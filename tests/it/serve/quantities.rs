//! What an HPA controller decodes. No representation contains a number that it misreads: negative, too large, or not a number.
//! Tested on the wire with every kind of publishable count; numbers beyond are tested in the unit tests of
//! `external_metrics::answer`.

use jiff::Timestamp;
use wva_core::{Decision, VariantId};

use super::client::Answer;
use super::custom_metrics::{self, DESIRED, object};
use super::path;
use super::test_server::{NOW, TestServer, sample, target};

/// The largest number whose `MilliValue()` does not wrap in an HPA.
const LARGEST: f64 = 9_223_372_036_854_775.0;

const METRICS: [&str; 4] =
    ["wva_desired_replicas", "wva_current_replicas", "wva_desired_ratio", "inferno_desired_replicas"];

const REPRESENTATIONS: [&str; 4] = [
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/json;as=Table;v=v1;g=meta.k8s.io",
];

/// Every value at a path of field numbers in a protobuf message, decoded independently of prost; a number as decimal text.
fn fields(mut message: &[u8], path: &[u64]) -> Vec<String> {
    let mut values = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let value = varint(&mut message);
        let is_number = key & 7 == 0;
        assert!(is_number || key & 7 == 2, "wire type {}", key & 7);
        let length = if is_number { 0 } else { usize::try_from(value).unwrap() };
        let (content, rest) = message.split_at(length);
        message = rest;
        if key >> 3 != path[0] {
            continue;
        }
        match &path[1..] {
            [] if is_number => values.push(value.to_string()),
            [] => values.push(std::str::from_utf8(content).unwrap().to_owned()),
            inner => values.extend(fields(content, inner)),
        }
    }
    values
}

fn varint(message: &mut &[u8]) -> u64 {
    let length = 1 + message.iter().position(|byte| byte & 0x80 == 0).unwrap();
    let (digits, rest) = message.split_at(length);
    *message = rest;
    digits.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f))
}

/// The value at a path of field numbers in an object with its envelope.
fn object_fields(answer: &Answer, path: &[u64]) -> Vec<String> {
    fields(answer.bytes.strip_prefix(b"k8s\0").unwrap(), path)
}

/// The only value, from any representation.
fn value(accept: &str, answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{accept}: {}", answer.body);
    match accept {
        "application/vnd.kubernetes.protobuf" => {
            let [value] = &object_fields(answer, &[2, 2, 5, 1])[..] else { panic!("{}", answer.body) };
            value.clone()
        }
        "application/yaml" => {
            let list: serde_json::Value = serde_saphyr::from_str(&answer.body).unwrap();
            list["items"][0]["value"].as_str().expect("a string").to_owned()
        }
        "application/json" => answer.value(),
        _ => {
            let table: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
            table["rows"][0]["cells"][1].as_str().unwrap().to_owned()
        }
    }
}

/// What a quantity means.
fn number(text: &str) -> f64 {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    assert!(digits.bytes().all(|byte| byte.is_ascii_digit()), "{text:?} is not a count with a suffix");
    let power = "m kMGTP".find(if digits == text { " " } else { &text[digits.len()..] }).unwrap();
    digits.parse::<f64>().unwrap() * 1000_f64.powi(i32::try_from(power).unwrap() - 1)
}

#[tokio::test]
async fn extreme_counts_are_valid_in_every_metric_and_representation() {
    let server = TestServer::new().await;
    let counts = [0, 1, 3, u32::MAX - 1, u32::MAX];
    for (desired, current) in counts.into_iter().flat_map(|desired| counts.map(|current| (desired, current)))
    {
        let mut published = sample();
        published.decisions.insert(VariantId::new("llm", "llama-a100"), target(desired, Some(current), NOW));
        server.publish(published);
        for metric in METRICS {
            let (expected, exact) = match metric {
                "wva_current_replicas" => (f64::from(current), true),
                "wva_desired_ratio" => (f64::from(desired) / f64::from(current.max(1)), false),
                _ => (f64::from(desired), true),
            };
            let texts = REPRESENTATIONS.map(|accept| {
                let server = &server;
                let path = path("llm", metric);
                async move { value(accept, &server.read_as_hpa(&path, &[&format!("Accept: {accept}")]).await) }
            });
            let texts = futures::future::join_all(texts).await;
            assert!(texts.iter().all(|text| *text == texts[0]), "{metric}: {texts:?}");
            let got = number(&texts[0]);
            assert!(
                got.is_finite() && (0.0..=LARGEST).contains(&got),
                "{metric} {desired}/{current}: {texts:?}"
            );
            let margin = if exact { 0.0 } else { 0.001 };
            assert!(
                got >= expected - 1e-9 && got <= expected + margin,
                "{metric} {desired}/{current}: {texts:?}"
            );
        }
    }
}

#[test]
fn an_invalid_count_cannot_be_published() {
    let decision = serde_json::to_string(&target(5, Some(2), NOW)).unwrap();
    assert!(serde_json::from_str::<Decision>(&decision).is_ok());
    for wrong in
        ["-1", "-0.5", "1.5", "4294967296", "9223372036854775808", "1e30", "null", "\"NaN\"", "\"5\""]
    {
        let text = decision.replace("\"desired\":5", &format!("\"desired\":{wrong}"));
        assert_ne!(text, decision);
        assert!(serde_json::from_str::<Decision>(&text).is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn both_versions_of_custom_metrics_read_back_from_protobuf_field_by_field() {
    let server = custom_metrics::server().await;
    let selector = "?metricLabelSelector=accelerator_type%3DA100%2Cpod+notin+%28x%2Cy%29";
    // Where the versions have the metric's name and its selector.
    for (version, name, selector_path) in
        [("v1beta1", vec![2, 2, 2], vec![2, 2, 6]), ("v1beta2", vec![2, 2, 2, 1], vec![2, 2, 2, 2])]
    {
        let path = object(version, "llm", "deployments.apps", "llama-decode", DESIRED) + selector;
        let answer = server.read_as_hpa(&path, &["Accept: application/vnd.kubernetes.protobuf, */*"]).await;
        assert_eq!(answer.header("content-type"), Some("application/vnd.kubernetes.protobuf"));
        let in_selector = |path: &[u64]| [&selector_path[..], path].concat();
        let evidence: Timestamp = "2026-11-21T10:00:05Z".parse().unwrap();
        for (path, expected) in [
            (vec![1, 1], &[&*format!("custom.metrics.k8s.io/{version}")][..]),
            (vec![1, 2], &["MetricValueList"]),
            (vec![2, 2, 1, 1], &["Deployment"]),
            (vec![2, 2, 1, 2], &["llm"]),
            (vec![2, 2, 1, 3], &["llama-decode"]),
            (vec![2, 2, 1, 5], &["apps/v1"]),
            (name, &[DESIRED]),
            (vec![2, 2, 3, 1], &[&*evidence.as_second().to_string()]),
            (vec![2, 2, 4], &[]),
            (vec![2, 2, 5, 1], &["5"]),
            (in_selector(&[1, 1]), &["accelerator_type"]),
            (in_selector(&[1, 2]), &["A100"]),
            (in_selector(&[2, 1]), &["pod"]),
            (in_selector(&[2, 2]), &["NotIn"]),
            (in_selector(&[2, 3]), &["x", "y"]),
        ] {
            assert_eq!(object_fields(&answer, &path), expected, "{version} {path:?}");
        }
    }
}
