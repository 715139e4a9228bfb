//! No representation contains a number that an HPA misreads: negative, too large, or not a number.
//! Tested on the wire with every kind of publishable count; numbers beyond are tested in the unit tests of
//! `external_metrics::answer`.

use prost::Message;
use wva_core::{Decision, VariantId};

use super::client::Answer;
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

/// The part of the messages that contains the value.
#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct List {
    #[prost(message, repeated, tag = "2")]
    items: Vec<Item>,
}

#[derive(Clone, PartialEq, Message)]
struct Item {
    #[prost(message, optional, tag = "5")]
    value: Option<Quantity>,
}

#[derive(Clone, PartialEq, Message)]
struct Quantity {
    #[prost(string, tag = "1")]
    text: String,
}

/// The only value, from any representation.
fn value(accept: &str, answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{accept}: {}", answer.body);
    match accept {
        "application/vnd.kubernetes.protobuf" => {
            let envelope = Envelope::decode(answer.bytes.strip_prefix(b"k8s\0").unwrap()).unwrap();
            let mut items = List::decode(&envelope.raw[..]).unwrap().items;
            assert_eq!(items.len(), 1);
            items.remove(0).value.unwrap().text
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
    for (desired, current) in counts.into_iter().flat_map(|one| counts.map(|other| (one, other))) {
        let mut published = sample();
        published.decisions.insert(VariantId::new("llm", "llama-a100"), target(desired, Some(current), NOW));
        server.publish(published);
        for metric in METRICS {
            let (want, exact) = match metric {
                "wva_current_replicas" => (f64::from(current), true),
                "wva_desired_ratio" => (f64::from(desired) / f64::from(current.max(1)), false),
                _ => (f64::from(desired), true),
            };
            let texts = REPRESENTATIONS.map(|accept| {
                let server = &server;
                let request = format!("GET {}", path("llm", metric));
                async move {
                    let lines = ["X-Remote-User: hpa".to_owned(), format!("Accept: {accept}")];
                    let lines = lines.each_ref().map(String::as_str);
                    value(accept, &server.send(Some(&server.proxy), &request, &lines).await)
                }
            });
            let texts = futures::future::join_all(texts).await;
            assert!(texts.iter().all(|text| *text == texts[0]), "{metric}: {texts:?}");
            let got = number(&texts[0]);
            assert!(
                got.is_finite() && (0.0..=LARGEST).contains(&got),
                "{metric} {desired}/{current}: {texts:?}"
            );
            let margin = if exact { 0.0 } else { 0.001 };
            assert!(got >= want - 1e-9 && got <= want + margin, "{metric} {desired}/{current}: {texts:?}");
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
