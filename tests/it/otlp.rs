//! The export to an OpenTelemetry collector: what it receives, and what it may do wrong.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use prost::Message as _;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use wiremock::matchers::{header, method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};
use wva::engine::{Leadership, Origin, Published};
use wva::otlp::{OtlpExporter, OtlpMetrics, OtlpSettings};
use wva_core::VariantId;

use crate::serve::test_server::{FakeReader, leading, led_by, sample};

/// Much shorter than any that is configured.
const INTERVAL: Duration = Duration::from_millis(50);

struct Fixture {
    collector: MockServer,
    reader: Arc<FakeReader>,
    leadership: watch::Sender<Leadership>,
    registry: Registry,
    _exporting: JoinSet<()>,
}

/// Exports to a collector that gives these answers, in turn.
async fn exporting(leadership: Leadership, answers: Vec<ResponseTemplate>) -> Fixture {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let collector = MockServer::start().await;
    let times = [1].into_iter().cycle().take(answers.len().saturating_sub(1)).map(Some).chain([None]);
    for (answer, times) in answers.into_iter().zip(times) {
        let mock = Mock::given(method("POST")).and(path("/v1/metrics"));
        let mock = mock.and(header("content-type", "application/x-protobuf")).respond_with(answer);
        let mock = if let Some(times) = times { mock.up_to_n_times(times) } else { mock };
        mock.mount(&collector).await;
    }
    let reader = Arc::new(FakeReader::default());
    let (leadership, following) = watch::channel(leadership);
    let mut registry = Registry::default();
    let settings = OtlpSettings {
        url: format!("{}/v1/metrics", collector.uri()),
        interval: INTERVAL,
        tls: wva::collect::TlsSettings::default(),
        controller_instance: Some("blue".into()),
    };
    let metrics = OtlpMetrics::register(&mut registry);
    let exporter = OtlpExporter::new(settings, reader.clone(), following, metrics).unwrap();
    let mut exports = JoinSet::new();
    exports.spawn(exporter.run(CancellationToken::new()));
    Fixture { collector, reader, leadership, registry, _exporting: exports }
}

fn accepted() -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_bytes(ExportMetricsServiceResponse::default().encode_to_vec())
}

impl Fixture {
    /// The series of the export with this number, from 1: for each its metric, labels and value.
    async fn export(&self, number: usize) -> BTreeMap<String, Option<f64>> {
        let received = async {
            loop {
                let requests = self.collector.received_requests().await.unwrap();
                if let Some(request) = requests.get(number - 1) {
                    return ExportMetricsServiceRequest::decode(&request.body[..]).unwrap();
                }
                sleep(INTERVAL / 5).await;
            }
        };
        series(timeout(Duration::from_secs(10), received).await.expect("there are fewer exports"))
    }

    fn counts(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        text
    }

    async fn await_count(&self, line: &str) {
        let counted = async {
            while !self.counts().contains(line) {
                sleep(INTERVAL / 5).await;
            }
        };
        timeout(Duration::from_secs(10), counted)
            .await
            .unwrap_or_else(|_| panic!("{line}: {}", self.counts()));
    }
}

fn series(export: ExportMetricsServiceRequest) -> BTreeMap<String, Option<f64>> {
    let scopes = export.resource_metrics.into_iter().flat_map(|resource| resource.scope_metrics);
    let mut series = BTreeMap::new();
    for metric in scopes.flat_map(|scope| scope.metrics) {
        let Some(Data::Gauge(gauge)) = metric.data else { panic!("{} is no gauge", metric.name) };
        for point in gauge.data_points {
            let labels = point.attributes.iter().map(|label| {
                let value = label.value.as_ref().and_then(|value| value.value.as_ref());
                let Some(Value::StringValue(value)) = value else { panic!("{label:?} is no text") };
                format!("{}={value}", label.key)
            });
            let key = format!("{} {}", metric.name, labels.collect::<Vec<_>>().join(","));
            let value = match point.value {
                Some(Number::AsDouble(value)) if point.flags == 0 => Some(value),
                None if point.flags == 1 => None,
                value => panic!("{key} has the value {value:?} and the flags {}", point.flags),
            };
            assert!(series.insert(key, value).is_none(), "a series occurs once");
        }
    }
    series
}

fn labels(namespace: &str, name: &str) -> String {
    format!(
        "variant_name={name},namespace={namespace},variant={name},accelerator_type=A100,controller_instance=blue"
    )
}

#[tokio::test]
async fn the_leader_exports_each_number_that_it_would_answer() {
    let fixture = exporting(leading(), vec![accepted()]).await;
    let export = fixture.export(1).await;
    let of =
        |metric: &str| export.get(&format!("{metric} {}", labels("llm", "llama-a100"))).copied().flatten();
    assert_eq!(of("wva_desired_replicas"), Some(5.0));
    assert_eq!(of("wva_current_replicas"), Some(2.0));
    assert_eq!(of("wva_evidence_timestamp_seconds"), Some(1_795_255_205.75));
    let desired = export.keys().filter(|key| key.starts_with("wva_desired_replicas "));
    let desired: Vec<_> = desired.map(|key| key.split(',').next().unwrap_or_default()).collect();
    let names = ["bare", "good", "llama-a100", "one", "two"];
    assert_eq!(
        desired,
        names.map(|name| format!("wva_desired_replicas variant_name={name}")),
        "a variant without a number, or with one that is too old, has no series"
    );
    let bare = export.iter().find(|(key, _)| key.starts_with("wva_current_replicas variant_name=bare"));
    assert_eq!(bare.map(|(_, value)| *value), Some(None), "what is not known is not zero");
}

#[tokio::test]
async fn a_number_that_is_no_longer_known_ends_its_series_once() {
    let fixture = exporting(leading(), vec![accepted()]).await;
    let key = format!("wva_desired_replicas {}", labels("llm", "llama-a100"));
    assert_eq!(fixture.export(1).await[&key], Some(5.0));
    let mut changed = sample();
    changed.decisions.remove(&VariantId::new("llm", "llama-a100"));
    *fixture.reader.published.lock() = Arc::new(changed);
    let mut values = Vec::new();
    for number in 2..=20 {
        values.push(fixture.export(number).await.get(&key).copied());
    }
    values.dedup();
    let rest = &values[usize::from(values[0] == Some(Some(5.0)))..];
    assert_eq!(rest, [Some(None), None]);
}

#[tokio::test]
async fn a_new_leader_ends_the_series_that_it_has_no_number_for() {
    let fixture = exporting(led_by(None), vec![accepted()]).await;
    let key = format!("wva_desired_replicas {}", labels("llm", "llama-a100"));
    *fixture.reader.published.lock() = Arc::new(Published { origin: Origin::Restored, ..sample() });
    sleep(INTERVAL * 4).await;
    let mut changed = sample();
    changed.decisions.remove(&VariantId::new("llm", "llama-a100"));
    *fixture.reader.published.lock() = Arc::new(changed);
    fixture.leadership.send_replace(leading());
    assert_eq!(fixture.export(1).await.get(&key), Some(&None));
    assert_eq!(fixture.export(2).await.get(&key), None, "once");
}

#[tokio::test]
async fn what_one_namespace_has_wrong_costs_no_other_its_series() {
    let refused = ResponseTemplate::new(400).set_body_string("label too long");
    let fixture = exporting(leading(), vec![refused, accepted()]).await;
    let mut many = sample();
    let decision = many.decisions[&VariantId::new("llm", "llama-a100")].clone();
    let of = |index| VariantId::new("many", format!("variant-{index:04}"));
    many.decisions.extend((0..2_000).map(|index| (of(index), decision.clone())));
    *fixture.reader.published.lock() = Arc::new(many);
    let key = format!("wva_desired_replicas {}", labels("many", "variant-1999"));
    let received = async {
        for number in 1.. {
            if fixture.export(number).await.contains_key(&key) {
                return;
            }
        }
    };
    timeout(Duration::from_secs(10), received).await.expect("the second request is sent");
}

#[tokio::test]
async fn only_the_leader_exports_so_that_sums_count_a_variant_once() {
    let fixture = exporting(led_by(None), vec![accepted()]).await;
    sleep(INTERVAL * 6).await;
    assert_eq!(fixture.collector.received_requests().await.unwrap().len(), 0);
    fixture.leadership.send_replace(leading());
    fixture.export(1).await;
}

#[tokio::test]
async fn an_export_that_is_refused_is_counted_and_the_next_one_replaces_it() {
    let refused = ExportMetricsPartialSuccess { rejected_data_points: 3, error_message: "too many".into() };
    let refused = ExportMetricsServiceResponse { partial_success: Some(refused) };
    let elsewhere = ResponseTemplate::new(307).insert_header("location", "http://127.0.0.1:1/");
    let answers = vec![
        ResponseTemplate::new(503),
        ResponseTemplate::new(200).set_body_bytes(refused.encode_to_vec()),
        ResponseTemplate::new(200).set_body_string("<html>not a collector</html>"),
        ResponseTemplate::new(200).set_body_bytes(vec![0; 100_000]),
        elsewhere,
        accepted(),
    ];
    let fixture = exporting(leading(), answers).await;
    fixture.await_count("wva_otlp_exports_total{result=\"ok\"}").await;
    assert!(
        fixture.counts().contains("wva_otlp_exports_total{result=\"error\"} 5\n"),
        "{}",
        fixture.counts()
    );
}
