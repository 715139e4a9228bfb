//! How pods are read.

use std::time::Duration;

use crate::collect::bounds::COLLECTION_TIMEOUT;
use crate::collect::http::TlsSettings;
use crate::collect::token::Token;

/// How to read pods.
#[derive(Debug, Clone)]
pub struct ScrapeSettings {
    /// `http` or `https`.
    pub scheme: String,
    /// The path of the metrics.
    pub path: String,
    /// Bearer token; only sent over `https`.
    pub token: Token,
    /// Trust and client certificate, for `https`.
    pub tls: TlsSettings,
    /// Time for one pod, from connecting to the last byte.
    pub timeout: Duration,
    /// Time for all pods of a collection; pods that weren't read by then are a gap.
    pub deadline: Duration,
    /// Pods read at once.
    pub concurrency: usize,
    /// The longest answer of one pod, decompressed; what is over is cut off, and a gap says so.
    pub max_body_bytes: usize,
    /// How long samples are kept.
    pub window: Duration,
}

impl ScrapeSettings {
    /// A pod renders its metrics in milliseconds; one that needs a second is in trouble, and its age will tell.
    pub const TIMEOUT: Duration = Duration::from_secs(1);
    /// 1,000 pods of 10 ms are done in a third of a second, with 32 sockets.
    pub const CONCURRENCY: usize = 32;
    /// A busy vLLM exposes 100–300 KiB; all 32 at once at the limit are 128 MiB.
    pub const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;
    /// The stale threshold (60 s) and one interval of up to 60 s.
    pub const WINDOW: Duration = Duration::from_secs(120);
    /// Samples kept of one series: 2 min at one a second, which is as often as evaluations may follow each other.
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
