//! The OTLP messages for a published result: gauges with the names and labels that `/metrics` has, so that a query fits both.

use std::collections::BTreeSet;

use jiff::Timestamp;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::{
    DataPointFlags, Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, metric, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use wva_core::units::Seconds;
use wva_core::{Decision, VariantId};

use crate::engine::{ClusterView, Published};

/// Most variants of a request: about 2 MiB. Receivers usually refuse more than 4 MiB or 20 MiB.
const MAX_VARIANTS: usize = 2_000;

/// Name, unit and description of each metric; units are those of UCUM.
const METRICS: [(&str, &str, &str); 3] = [
    ("wva_desired_replicas", "{replica}", "Desired number of replicas for each variant"),
    ("wva_current_replicas", "{replica}", "Current number of replicas for each variant"),
    (
        "wva_evidence_timestamp_seconds",
        "s",
        "Unix time of the oldest measurement that the desired number of replicas rests on, seconds",
    ),
];

/// The series of a variant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Series {
    variant: VariantId,
    accelerator: String,
}

impl Series {
    fn of(variant: &VariantId, decision: &Decision) -> Self {
        let accelerator = decision.accelerator.as_deref().unwrap_or_default().to_owned();
        Self { variant: variant.clone(), accelerator }
    }
}

/// The series that the instance which published this may have exported.
pub(super) fn series(published: &Published, view: &ClusterView) -> BTreeSet<Series> {
    published.series(view).map(|(variant, decision)| Series::of(variant, decision)).collect()
}

/// A variant at the time of an export. A value that is not known is none.
struct Row {
    series: Series,
    values: [Option<f64>; METRICS.len()],
}

impl Row {
    /// Whether it has one, or says that there is none any more.
    fn has_number(&self) -> bool {
        self.values.iter().any(Option::is_some)
    }
}

/// A request.
pub(super) struct Export {
    pub(super) request: ExportMetricsServiceRequest,
    /// The series that have a number in it.
    pub(super) numbers: Vec<Series>,
    /// Those that it ends.
    pub(super) ended: Vec<Series>,
}

/// Exports the variants with a number of at most the age `max_stale`. A series of `earlier` whose number is no longer known says that it has none:
/// receivers otherwise show the last one for minutes.
pub(super) fn exports(
    published: &Published,
    view: &ClusterView,
    earlier: &BTreeSet<Series>,
    (now, max_stale): (Timestamp, Seconds),
    controller_instance: Option<&str>,
) -> Vec<Export> {
    let mut rows: Vec<Row> = published
        .series(view)
        .filter_map(|(variant, decision)| {
            let target = decision.fresh_target(now, max_stale).ok()?;
            let current = decision.current.map(|current| f64::from(current.get()));
            let evidence = target.evidence.as_duration().as_secs_f64();
            let values = [Some(f64::from(target.desired.get())), current, Some(evidence)];
            Some(Row { series: Series::of(variant, decision), values })
        })
        .collect();
    let known: BTreeSet<&Series> = rows.iter().map(|row| &row.series).collect();
    let gone: Vec<Series> = earlier.iter().filter(|series| !known.contains(series)).cloned().collect();
    rows.extend(gone.into_iter().map(|series| Row { series, values: [None; METRICS.len()] }));
    let at = u64::try_from(now.as_nanosecond()).unwrap_or_default();
    let export = |rows: &[Row]| {
        let (known, ended): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.has_number());
        let series = |rows: Vec<&Row>| rows.into_iter().map(|row| row.series.clone()).collect();
        Export {
            request: request(rows, at, controller_instance),
            numbers: series(known),
            ended: series(ended),
        }
    };
    rows.chunks(MAX_VARIANTS).map(export).collect()
}

fn request(rows: &[Row], at: u64, controller_instance: Option<&str>) -> ExportMetricsServiceRequest {
    let metrics = METRICS.into_iter().enumerate().map(|(index, (name, unit, description))| {
        let points = rows.iter().map(|row| point(row, row.values[index], at, controller_instance));
        Metric {
            name: name.to_owned(),
            unit: unit.to_owned(),
            description: description.to_owned(),
            data: Some(metric::Data::Gauge(Gauge { data_points: points.collect() })),
            ..Metric::default()
        }
    });
    // Without the version, which some receivers make a label: an upgrade would begin all series anew.
    let scope = InstrumentationScope { name: "wva".to_owned(), ..InstrumentationScope::default() };
    let metrics = ScopeMetrics { scope: Some(scope), metrics: metrics.collect(), ..ScopeMetrics::default() };
    // Without the instance: the series stay the same when another one becomes the leader.
    let resource = Resource { attributes: vec![attribute("service.name", "wva")], ..Resource::default() };
    let metrics = ResourceMetrics {
        resource: Some(resource),
        scope_metrics: vec![metrics],
        ..ResourceMetrics::default()
    };
    ExportMetricsServiceRequest { resource_metrics: vec![metrics] }
}

fn point(row: &Row, value: Option<f64>, at: u64, controller_instance: Option<&str>) -> NumberDataPoint {
    let Series { variant, accelerator } = &row.series;
    let labels = [
        ("variant_name", variant.name.as_str()),
        ("namespace", variant.namespace.as_str()),
        ("variant", variant.name.as_str()),
        ("accelerator_type", accelerator),
    ];
    let instance = controller_instance.map(|instance| ("controller_instance", instance));
    let no_value = if value.is_none() { DataPointFlags::NoRecordedValueMask as u32 } else { 0 };
    NumberDataPoint {
        attributes: labels.into_iter().chain(instance).map(|(key, value)| attribute(key, value)).collect(),
        time_unix_nano: at,
        flags: no_value,
        value: value.map(number_data_point::Value::AsDouble),
        ..NumberDataPoint::default()
    }
}

fn attribute(key: &str, value: &str) -> KeyValue {
    let value = AnyValue { value: Some(Value::StringValue(value.to_owned())) };
    KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
}
