//! Constructs the export to an OpenTelemetry collector.

use std::sync::Arc;

use anyhow::Context;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use super::tasks::Phase;
use crate::collect::TlsSettings;
use crate::config::Config;
use crate::engine::{Leadership, Reader};
use crate::otlp::{OtlpExporter, OtlpMetrics, OtlpSettings};

/// Starts the export, if a receiver is configured.
pub(super) fn start_export(
    config: &Config,
    reader: Reader,
    leadership: watch::Receiver<Leadership>,
    registry: &mut Registry,
    work: &mut Phase,
) -> anyhow::Result<()> {
    let Some(otlp) = config.otlp.clone() else { return Ok(()) };
    let settings = OtlpSettings {
        url: otlp.url,
        interval: otlp.interval,
        tls: TlsSettings { ca_path: otlp.ca_file, ..TlsSettings::default() },
        controller_instance: config.controller_instance.clone(),
    };
    let metrics = OtlpMetrics::register(registry);
    let exporter = OtlpExporter::new(settings, Arc::new(reader), leadership, metrics);
    let exporter = exporter.context("cannot set up the export to --otlp-endpoint")?;
    work.start("export to OpenTelemetry", |stop| exporter.run(stop));
    Ok(())
}
