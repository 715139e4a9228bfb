//! Pushes the desired replicas to an OpenTelemetry collector, or to another receiver of OTLP over HTTP: for clusters that collect
//! metrics so, and for clients of the collector's other exporters.

mod message;
mod push;

pub use push::{OtlpExporter, OtlpMetrics, OtlpSettings};
