//! Settings of the scrape source.

use std::time::Duration;

use crate::collect::http_client::TlsSettings;
use crate::collect::limits::COLLECTION_TIMEOUT;
use crate::collect::token::Token;

/// How to scrape pods.
#[derive(Debug, Clone)]
pub struct ScrapeSettings {
    /// `http` or `https`.
    pub scheme: String,
    /// The path of the metrics.
    pub path: String,
    /// Bearer token; only sent over `https`.
    pub token: Token,
    /// Trusted CAs and client certificate, for `https`.
    pub tls: TlsSettings,
    /// Time for one pod, from connecting to the last byte.
    pub timeout: Duration,
    /// Time for all pods of a collection. Pods that have not been read by then are a gap.
    pub deadline: Duration,
    /// Most pods that are read concurrently.
    pub concurrency: usize,
    /// Most bytes of one page, decompressed. The rest is cut off, with a gap.
    pub max_body_bytes: usize,
    /// How long samples are kept.
    pub window: Duration,
}

impl ScrapeSettings {
    /// A pod renders its metrics within milliseconds. The samples of one that takes longer than a second get older, and decisions
    /// take that into account.
    pub const TIMEOUT: Duration = Duration::from_secs(1);
    /// 1,000 pods that take 10 ms each are read in a third of a second.
    pub const CONCURRENCY: usize = 32;
    /// A busy vLLM exposes 100–300 KiB. 32 concurrent pages of this size take 128 MiB.
    pub const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;
    /// The stale threshold (60 s) and one interval of up to 60 s.
    pub const WINDOW: Duration = Duration::from_secs(120);
    /// Most samples of one series: 2 min at one a second, the shortest interval between evaluations.
    pub const MAX_SAMPLES: usize = 120;
}

impl Default for ScrapeSettings {
    fn default() -> Self {
        Self {
            scheme: "http".into(),
            path: "/metrics".into(),
            token: Token::None,
            tls: TlsSettings::default(),
            timeout: Self::TIMEOUT,
            deadline: COLLECTION_TIMEOUT,
            concurrency: Self::CONCURRENCY,
            max_body_bytes: Self::MAX_BODY_BYTES,
            window: Self::WINDOW,
        }
    }
}
