//! Sends each export while this instance leads. One that fails is not sent again: the next one replaces it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use prost::Message as _;
use reqwest::Client;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::message::{Export, Series, export};
use crate::collect::{TlsSettings, http_client, root_cause};
use crate::engine::{Leadership, Origin, SourceError};
use crate::serve::PublishedReader;

/// Longest time for one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes that are read of an answer: it says how much was refused, and why.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// Most characters of a refusal in the log.
const MAX_CAUSE_CHARS: usize = 300;

/// Where exports are sent, and how often.
#[derive(Debug, Clone)]
pub struct OtlpSettings {
    /// The full URL.
    pub url: String,
    /// How often.
    pub interval: Duration,
    /// Trust in the receiver.
    pub tls: TlsSettings,
    /// A label of all series.
    pub controller_instance: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// Counts the exports.
#[derive(Debug, Clone, Default)]
pub struct OtlpMetrics(Family<ResultLabel, Counter>);

impl OtlpMetrics {
    /// Registers the counter in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Exports of the desired replicas to the OpenTelemetry receiver; result: ok or error";
        registry.register("wva_otlp_exports", help, metrics.0.clone());
        metrics
    }

    fn count(&self, result: &'static str) {
        self.0.get_or_create(&ResultLabel { result }).inc();
    }
}

/// Exports the desired replicas while this instance leads.
pub struct OtlpExporter {
    client: Client,
    settings: OtlpSettings,
    reader: Arc<dyn PublishedReader>,
    leadership: watch::Receiver<Leadership>,
    metrics: OtlpMetrics,
    /// The series that had a number in the last export that was accepted.
    exported: BTreeSet<Series>,
    failing: bool,
}

impl OtlpExporter {
    /// # Errors
    /// When the CA cannot be read.
    pub fn new(
        settings: OtlpSettings,
        reader: Arc<dyn PublishedReader>,
        leadership: watch::Receiver<Leadership>,
        metrics: OtlpMetrics,
    ) -> Result<Self, SourceError> {
        let client = http_client(&settings.tls, settings.url.starts_with("https:"), REQUEST_TIMEOUT)?;
        let exported = BTreeSet::new();
        Ok(Self { client, settings, reader, leadership, metrics, exported, failing: false })
    }

    /// Exports until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut ticks = interval(self.settings.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            if stop.run_until_cancelled(self.export()).await.is_none() {
                return;
            }
        }
    }

    async fn export(&mut self) {
        if !self.leadership.borrow().is_mine() {
            // Another instance exports these series, and says which of them end.
            self.exported.clear();
            return;
        }
        let (published, now, max_stale) = (self.reader.newest(), self.reader.now(), self.reader.max_stale());
        if published.origin != Origin::Computed || !self.reader.may_answer(&published) {
            return;
        }
        let instance = self.settings.controller_instance.as_deref();
        let Export { requests, series } =
            export(&published, &self.reader.view(), &self.exported, (now, max_stale), instance);
        for request in requests {
            let result = self.send(&request).await;
            self.note(&result);
            if result.is_err() {
                return;
            }
        }
        self.exported = series;
    }

    /// Counts a result, and logs it where it differs from the last one.
    fn note(&mut self, result: &Result<(), String>) {
        let url = self.settings.url.as_str();
        match result {
            Ok(()) if self.failing => info!(url, "the OpenTelemetry receiver accepts exports again"),
            Err(cause) if !self.failing => {
                warn!(
                    url,
                    cause,
                    "the desired replicas cannot be exported to the OpenTelemetry receiver of --otlp-endpoint"
                );
            }
            _ => {}
        }
        self.failing = result.is_err();
        self.metrics.count(if self.failing { "error" } else { "ok" });
    }

    /// # Errors
    /// Says why the export was not accepted as a whole.
    async fn send(&self, request: &ExportMetricsServiceRequest) -> Result<(), String> {
        let sent = self.client.post(&self.settings.url).header(CONTENT_TYPE, "application/x-protobuf");
        let sent = sent.body(request.encode_to_vec()).send().await;
        let mut response = sent.map_err(|error| root_cause(&error))?;
        let status = response.status();
        if !status.is_success() {
            return Err(format!("it answers {status}"));
        }
        let mut body = Vec::new();
        while let Some(part) = response.chunk().await.map_err(|error| root_cause(&error))? {
            body.extend_from_slice(&part);
            if body.len() > MAX_ANSWER_BYTES {
                return Err("its answer is no answer of OTLP: it is too long".to_owned());
            }
        }
        let answer = ExportMetricsServiceResponse::decode(&body[..]);
        let answer = answer.map_err(|_| "its answer is no answer of OTLP: is the URL right?".to_owned())?;
        match answer.partial_success {
            Some(refused) if refused.rejected_data_points > 0 => {
                let cause: String = refused.error_message.chars().take(MAX_CAUSE_CHARS).collect();
                Err(format!("it refuses {} values: {cause}", refused.rejected_data_points))
            }
            _ => Ok(()),
        }
    }
}
