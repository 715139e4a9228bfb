//! `custom.metrics.k8s.io` in protobuf, which the HPA controller prefers: the messages of both versions of `k8s.io/metrics`,
//! declared here a second time as a client declares them.

use jiff::Timestamp;
use prost::Message;

use super::custom_metrics::{DESIRED, object, server};
use super::test_server::TestServer;

#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(message, optional, tag = "1")]
    type_meta: Option<Pair>,
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

/// Two strings: a type, an entry of a map.
#[derive(Clone, PartialEq, Message)]
struct Pair {
    #[prost(string, tag = "1")]
    first: String,
    #[prost(string, tag = "2")]
    second: String,
}

#[derive(Clone, PartialEq, Message)]
struct Object {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "5")]
    api_version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Selector {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<Pair>,
    #[prost(message, repeated, tag = "2")]
    expressions: Vec<Expression>,
}

#[derive(Clone, PartialEq, Message)]
struct Expression {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    operator: String,
    #[prost(string, repeated, tag = "3")]
    values: Vec<String>,
}

/// v1beta2's `metric`.
#[derive(Clone, PartialEq, Message)]
struct Identifier {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    selector: Option<Selector>,
}

#[derive(Clone, PartialEq, Message)]
struct Quantity {
    #[prost(string, tag = "1")]
    text: String,
}

#[derive(Clone, PartialEq, Message)]
struct Time {
    #[prost(int64, tag = "1")]
    seconds: i64,
}

#[derive(Clone, PartialEq, Message)]
struct V1Beta1 {
    #[prost(message, repeated, tag = "2")]
    items: Vec<V1Beta1Item>,
}

#[derive(Clone, PartialEq, Message)]
struct V1Beta1Item {
    #[prost(message, optional, tag = "1")]
    object: Option<Object>,
    #[prost(string, tag = "2")]
    metric: String,
    #[prost(message, optional, tag = "3")]
    time: Option<Time>,
    #[prost(int64, optional, tag = "4")]
    window: Option<i64>,
    #[prost(message, optional, tag = "5")]
    value: Option<Quantity>,
    #[prost(message, optional, tag = "6")]
    selector: Option<Selector>,
}

#[derive(Clone, PartialEq, Message)]
struct V1Beta2 {
    #[prost(message, repeated, tag = "2")]
    items: Vec<V1Beta2Item>,
}

#[derive(Clone, PartialEq, Message)]
struct V1Beta2Item {
    #[prost(message, optional, tag = "1")]
    object: Option<Object>,
    #[prost(message, optional, tag = "2")]
    metric: Option<Identifier>,
    #[prost(message, optional, tag = "3")]
    time: Option<Time>,
    #[prost(int64, optional, tag = "4")]
    window: Option<i64>,
    #[prost(message, optional, tag = "5")]
    value: Option<Quantity>,
}

/// A read with the `Accept` header of the HPA controller, decoded as the message of `version`.
async fn protobuf<M: Message + Default>(server: &TestServer, version: &str) -> M {
    let selector = "?metricLabelSelector=accelerator_type%3DA100%2Cpod+notin+%28x%2Cy%29";
    let path = object(version, "llm", "deployments.apps", "llama-decode", DESIRED);
    let accept = "Accept: application/vnd.kubernetes.protobuf, */*";
    let answer = server
        .send(Some(&server.proxy), &format!("GET {path}{selector}"), &["X-Remote-User: hpa", accept])
        .await;
    assert_eq!(answer.header("content-type"), Some("application/vnd.kubernetes.protobuf"));
    let envelope = Envelope::decode(answer.bytes.strip_prefix(b"k8s\0").unwrap()).unwrap();
    let type_meta = envelope.type_meta.unwrap();
    assert_eq!(type_meta.first, format!("custom.metrics.k8s.io/{version}"));
    assert_eq!(type_meta.second, "MetricValueList");
    M::decode(&envelope.raw[..]).unwrap()
}

#[tokio::test]
async fn both_versions_read_back_from_protobuf_field_by_field() {
    let server = server().await;
    let described = Some(Object {
        kind: "Deployment".into(),
        namespace: "llm".into(),
        name: "llama-decode".into(),
        api_version: "apps/v1".into(),
    });
    let selector = Some(Selector {
        labels: vec![Pair { first: "accelerator_type".into(), second: "A100".into() }],
        expressions: vec![Expression {
            key: "pod".into(),
            operator: "NotIn".into(),
            values: vec!["x".into(), "y".into()],
        }],
    });
    let evidence: Timestamp = "2026-11-21T10:00:05Z".parse().unwrap();
    let time = Some(Time { seconds: evidence.as_second() });
    let value = Some(Quantity { text: "5".into() });
    let v1: V1Beta1 = protobuf(&server, "v1beta1").await;
    let item = V1Beta1Item {
        object: described.clone(),
        metric: DESIRED.into(),
        time: time.clone(),
        window: None,
        value: value.clone(),
        selector: selector.clone(),
    };
    assert_eq!(v1.items, [item]);
    let v2: V1Beta2 = protobuf(&server, "v1beta2").await;
    let metric = Some(Identifier { name: DESIRED.into(), selector });
    assert_eq!(v2.items, [V1Beta2Item { object: described, metric, time, window: None, value }]);
}
