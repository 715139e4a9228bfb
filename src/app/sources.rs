//! Constructs the metric source.

use std::sync::Arc;

use anyhow::Context;
use tracing::info;

use crate::collect::{
    PrometheusSettings, PrometheusSource, QueueScraper, ScrapeSettings, ScrapeSource, TlsSettings, Token,
};
use crate::config;
use crate::engine::{Clock, MetricSource, QueueSource};

/// The configured source.
pub(super) fn source(config: config::Source, clock: Arc<dyn Clock>) -> anyhow::Result<Arc<dyn MetricSource>> {
    match config {
        config::Source::Prometheus(prometheus) => {
            let settings = prometheus_settings(*prometheus);
            info!("metrics come from Prometheus");
            let source = PrometheusSource::new(&settings).context("cannot set up the Prometheus source")?;
            Ok(Arc::new(source))
        }
        config::Source::Scrape(scrape) => {
            info!("metrics come from the serving pods; set PROMETHEUS_BASE_URL to read Prometheus instead");
            let settings = scrape_settings(scrape);
            let source = ScrapeSource::new(&settings, clock).context("cannot set up scraping")?;
            Ok(Arc::new(source))
        }
    }
}

/// Reads the queues of sleeping models' schedulers, whatever the source is: with the settings of a scrape, if that is the source.
pub(super) fn queue_source(config: &config::Source) -> anyhow::Result<Arc<dyn QueueSource>> {
    let settings = match config {
        config::Source::Prometheus(_) => ScrapeSettings::default(),
        config::Source::Scrape(scrape) => scrape_settings(scrape.clone()),
    };
    Ok(Arc::new(QueueScraper::new(&settings).context("cannot set up reading the queues of schedulers")?))
}

/// The settings of the source for what is configured.
pub(crate) fn prometheus_settings(from: config::Prometheus) -> PrometheusSettings {
    let (client_cert_path, client_key_path) = from.client.map(|pair| (pair.chain, pair.key)).unzip();
    PrometheusSettings {
        token: from
            .token
            .map(|token| Token::Inline(token.into_text()))
            .or(from.token_file.map(Token::File))
            .unwrap_or_default(),
        tls: TlsSettings {
            ca_path: from.ca_file,
            client_cert_path,
            client_key_path,
            insecure_skip_verify: from.insecure_skip_verify,
            lookup: None,
        },
        headers: from.headers.into_iter().map(header).collect(),
        server_name: from.server_name,
        max_series: from.max_series,
        trusted_collectors: from.trusted_collectors,
        query_matchers: from.query_matchers,
        query_namespaces: from.query_namespaces,
        ..PrometheusSettings::new(from.url.into_text())
    }
}

fn header(from: config::PrometheusHeader) -> (http::HeaderName, Token) {
    let value = match from.value {
        config::HeaderText::Text(text) => Token::Inline(text.into_text()),
        config::HeaderText::File(path) => Token::File(path),
    };
    (from.name, value)
}

fn scrape_settings(from: config::Scrape) -> ScrapeSettings {
    // Pods rarely have a certificate for their IP address, but a token is only sent to a verified server.
    let insecure_skip_verify = from.token_file.is_none() && from.ca_file.is_none();
    ScrapeSettings {
        scheme: from.scheme,
        path: from.path,
        token: from.token_file.map(Token::File).unwrap_or_default(),
        tls: TlsSettings { ca_path: from.ca_file, insecure_skip_verify, ..TlsSettings::default() },
        ..ScrapeSettings::default()
    }
}
