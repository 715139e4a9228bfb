//! Connections that failed: each is counted by kind, and a few are logged. An API server with the wrong CA tries fifty times
//! in two seconds, a scanner all night; one log line a minute says as much.

use std::collections::BTreeMap;
use std::time::Duration;
use std::{fmt, io};

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::time::{Instant, sleep};

/// The first failure of a kind is logged at once, the following ones at most this often.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// What failed, and why in one word: the label of a metric, never text from a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Failure {
    /// A TLS handshake.
    Handshake(&'static str),
    /// A connection that was not accepted, or that was displaced by another one.
    Refused(&'static str),
}

/// A peer that closed the connection: a TCP health check, a scanner, a client that changed its mind. Not logged.
pub(crate) const CLOSED_BY_PEER: Failure = Failure::Handshake("closed");

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

/// Counts failures and logs a summary of them.
#[derive(Debug, Default)]
pub(crate) struct ConnectionErrors {
    handshakes: Family<Kind, Counter>,
    refused: Family<Kind, Counter>,
    unlogged: Mutex<BTreeMap<Failure, Unlogged>>,
}

/// Failures of one kind since its last log line.
#[derive(Debug)]
struct Unlogged {
    last_logged: Instant,
    count: u64,
    /// The newest peer and cause.
    example: String,
}

impl ConnectionErrors {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let errors = Self::default();
        let help = "TLS handshakes that failed, by kind";
        registry.register("wva_tls_handshake_failures", help, errors.handshakes.clone());
        let help = "Connections that were refused, or closed in favour of another one, by kind";
        registry.register("wva_connections_refused", help, errors.refused.clone());
        errors
    }

    /// Counts a failure; `peer` and `cause` are for the log.
    pub(crate) fn record(&self, failure: Failure, peer: &dyn fmt::Display, cause: &dyn fmt::Display) {
        match failure {
            Failure::Handshake(kind) => self.handshakes.get_or_create(&Kind { kind }).inc(),
            Failure::Refused(kind) => self.refused.get_or_create(&Kind { kind }).inc(),
        };
        tracing::debug!(%peer, %cause, "connection failed");
        if failure == CLOSED_BY_PEER {
            return;
        }
        let example = || format!("{peer}: {cause}");
        let mut unlogged = self.unlogged.lock();
        if let Some(unlogged) = unlogged.get_mut(&failure) {
            unlogged.count += 1;
            unlogged.example = example();
        } else {
            let logged = Unlogged { last_logged: Instant::now(), count: 0, example: String::new() };
            unlogged.insert(failure, logged);
            log(failure, 1, &example());
        }
    }

    /// Logs a summary once per [`LOG_INTERVAL`], for ever.
    pub(crate) async fn summarise(&self) {
        loop {
            sleep(LOG_INTERVAL).await;
            self.unlogged.lock().retain(|failure, unlogged| {
                if unlogged.count > 0 {
                    log(*failure, unlogged.count, &unlogged.example);
                    unlogged.last_logged = Instant::now();
                    unlogged.count = 0;
                }
                // After an interval without a failure, the next one is logged at once again.
                unlogged.last_logged.elapsed() < LOG_INTERVAL
            });
        }
    }
}

fn log(failure: Failure, count: u64, example: &str) {
    match failure {
        Failure::Handshake(kind) => tracing::warn!(count, kind, newest = example, "TLS handshakes failed"),
        Failure::Refused(kind) => tracing::warn!(count, kind, newest = example, "connections were refused"),
    }
}

/// The kind of a failed handshake.
pub(crate) fn handshake_failure(error: &io::Error) -> Failure {
    use rustls::Error;
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    let kind = match tls {
        None => return CLOSED_BY_PEER,
        // The peer rejected this server, most often its certificate.
        Some(Error::AlertReceived(_)) => "refused_by_peer",
        Some(Error::InvalidMessage(_) | Error::InappropriateMessage { .. }) => "not_tls",
        Some(Error::PeerIncompatible(_) | Error::NoApplicationProtocol) => "incompatible",
        Some(Error::InvalidCertificate(_) | Error::NoCertificatesPresented) => "client_certificate",
        Some(_) => "other",
    };
    Failure::Handshake(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_logged_at_once_then_once_a_minute_with_its_count() {
        let errors = ConnectionErrors::default();
        let failure = Failure::Handshake("not_tls");
        let unlogged = || errors.unlogged.lock().get(&failure).map(|unlogged| unlogged.count);
        let summary = async |seconds| {
            let _ = tokio::time::timeout(Duration::from_secs(seconds), errors.summarise()).await;
        };
        for _ in 0..50 {
            errors.record(failure, &"10.0.0.1:1", &"garbage");
        }
        assert_eq!(unlogged(), Some(49), "the first was logged at once");
        summary(61).await;
        assert_eq!(unlogged(), Some(0), "the rest in one line");
        summary(121).await;
        assert_eq!(unlogged(), None, "after a minute without failures the next is a first one");
        assert_eq!(errors.handshakes.get_or_create(&Kind { kind: "not_tls" }).get(), 50);
    }

    #[test]
    fn a_peer_that_closes_the_connection_is_counted_and_not_logged() {
        let errors = ConnectionErrors::default();
        let gone = handshake_failure(&io::ErrorKind::UnexpectedEof.into());
        errors.record(gone, &"10.0.0.1:1", &"eof");
        assert_eq!(errors.handshakes.get_or_create(&Kind { kind: "closed" }).get(), 1);
        assert!(errors.unlogged.lock().is_empty());
    }
}
