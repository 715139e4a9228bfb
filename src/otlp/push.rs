//! Sends each export while this instance leads. One that fails is not sent again: the next one replaces it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
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

use super::message::{Export, Series, exports, series};
use crate::collect::{TlsSettings, http_client, root_cause};
use crate::engine::{Leadership, Origin, Published, SourceError};
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
    /// The series that may have a number at the receiver.
    exported: BTreeSet<Series>,
    /// Why the last export failed.
    failing: Option<String>,
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
        Ok(Self { client, settings, reader, leadership, metrics, exported, failing: None })
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

    /// One export, of which the requests that follow a refused one are sent as well.
    async fn export(&mut self) {
        let (published, view) = (self.reader.newest(), self.reader.view());
        if !self.may_export(&published) || published.origin != Origin::Computed {
            // What the leader, or this program before its restart, has exported: it ends when this instance exports without it.
            self.exported = series(&published, &view);
            return;
        }
        let (now, max_stale) = (self.reader.now(), self.reader.max_stale());
        let instance = self.settings.controller_instance.as_deref();
        let mut result = Ok(());
        for Export { request, numbers, ended } in
            exports(&published, &view, &self.exported, (now, max_stale), instance)
        {
            if !self.may_export(&published) {
                return;
            }
            // Before it is sent: what times out may have arrived.
            self.exported.extend(numbers);
            match self.send(&request).await {
                Ok(()) => ended.iter().for_each(|series| {
                    self.exported.remove(series);
                }),
                Err(failure @ Failure::Refused(_)) => result = Err(failure),
                Err(failure @ Failure::Unreachable(_)) => {
                    result = Err(failure);
                    break;
                }
            }
        }
        self.note(result.map_err(|(Failure::Refused(cause) | Failure::Unreachable(cause))| cause));
    }

    fn may_export(&self, published: &Published) -> bool {
        self.leadership.borrow().is_mine() && self.reader.may_answer(published)
    }

    /// Counts the result of an export, and logs it where it differs from the last one.
    fn note(&mut self, result: Result<(), String>) {
        let url = self.settings.url.as_str();
        let failing = result.err();
        match &failing {
            None if self.failing.is_some() => info!(url, "the OpenTelemetry receiver accepts exports again"),
            Some(cause) if self.failing.as_ref() != Some(cause) => warn!(
                url,
                cause,
                "an export of the desired replicas failed: check --otlp-endpoint, --otlp-ca-file and the receiver's log"
            ),
            _ => {}
        }
        self.metrics.count(if failing.is_some() { "error" } else { "ok" });
        self.failing = failing;
    }

    async fn send(&self, request: &ExportMetricsServiceRequest) -> Result<(), Failure> {
        let sent = self.client.post(&self.settings.url).header(CONTENT_TYPE, "application/x-protobuf");
        let sent = sent.body(request.encode_to_vec()).send().await;
        let mut response = sent.map_err(|error| Failure::Unreachable(root_cause(&error)))?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(part) =
            response.chunk().await.map_err(|error| Failure::Unreachable(root_cause(&error)))?
        {
            body.extend_from_slice(&part);
            if body.len() > MAX_ANSWER_BYTES {
                return Err(Failure::Refused("its answer is no answer of OTLP: it is too long".to_owned()));
            }
        }
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            return Err(Failure::Unreachable(format!("it answers {status}")));
        }
        if !status.is_success() {
            let said = String::from_utf8_lossy(&body);
            return Err(Failure::Refused(format!("it answers {status}: {}", shorten(&said))));
        }
        let answer = ExportMetricsServiceResponse::decode(&body[..]);
        let answer = answer
            .map_err(|_| Failure::Refused("its answer is no answer of OTLP: is the URL right?".to_owned()))?;
        match answer.partial_success {
            Some(refused) if refused.rejected_data_points > 0 => {
                let cause = shorten(&refused.error_message);
                Err(Failure::Refused(format!("it refuses {} values: {cause}", refused.rejected_data_points)))
            }
            _ => Ok(()),
        }
    }
}

/// Why a request was not accepted as a whole.
enum Failure {
    /// The receiver does not take what is in it; others may be right.
    Refused(String),
    /// It takes none at the moment.
    Unreachable(String),
}

/// On one line, cut.
fn shorten(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(MAX_CAUSE_CHARS).collect()
}
