//! The messages of KEDA's `externalscaler.ExternalScaler` (pkg/scalers/externalscaler/externalscaler.proto of KEDA 2.21), of which
//! only what is used is declared.

use std::collections::HashMap;

/// A ScaledObject, with the metadata of its trigger.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ScaledObjectRef {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) namespace: String,
    #[prost(map = "string, string", tag = "3")]
    pub(super) metadata: HashMap<String, String>,
}

/// Whether the workload is to run at all.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct IsActiveResponse {
    #[prost(bool, tag = "1")]
    pub(super) result: bool,
}

/// The metrics of the HPA that KEDA makes.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GetMetricSpecResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) specs: Vec<MetricSpec>,
}

/// A metric, and the value of it that one replica takes.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct MetricSpec {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    /// Deprecated by KEDA, which reads it where `target_float` is 0.
    #[prost(int64, tag = "2")]
    pub(super) target: i64,
    #[prost(double, tag = "3")]
    pub(super) target_float: f64,
}

/// A metric of a ScaledObject.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GetMetricsRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) scaled_object: Option<ScaledObjectRef>,
    /// As in the spec.
    #[prost(string, tag = "2")]
    pub(super) name: String,
}

/// The values of a metric.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GetMetricsResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) values: Vec<MetricValue>,
}

/// The value of a metric.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct MetricValue {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    /// Deprecated by KEDA, which reads it where `value_float` is 0.
    #[prost(int64, tag = "2")]
    pub(super) value: i64,
    #[prost(double, tag = "3")]
    pub(super) value_float: f64,
}
