//! Connections that came to nothing: each is counted by kind, and a few are told. An API server with the wrong CA tries
//! fifty times in two seconds, a scanner all night; a log line a minute says as much.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::time::{Instant, sleep};

/// A kind of loss is told at once, and then at most this often.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// What was lost, and why in one word: the label of a metric, never text of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Loss {
    /// A handshake that failed.
    Handshake(&'static str),
    /// A connection that was not taken, or that gave way to another.
    Refused(&'static str),
}

/// Ends of connections that nobody needs to know of: a TCP health check, a scanner, a client that changed its mind.
pub(crate) const CLOSED: Loss = Loss::Handshake("closed");

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

/// Counts and tells.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    handshakes: Family<Kind, Counter>,
    refused: Family<Kind, Counter>,
    told: Mutex<BTreeMap<Loss, Told>>,
}

/// What the log says of one kind.
#[derive(Debug)]
struct Told {
    last: Instant,
    /// Since the last line, with the newest peer and cause.
    since: u64,
    newest: String,
}

impl Ledger {
    pub(crate) fn registered(registry: &mut Registry) -> Self {
        let ledger = Self::default();
        let help = "TLS handshakes that failed, by kind";
        registry.register("wva_tls_handshake_failures", help, ledger.handshakes.clone());
        let help = "Connections refused or cut because their place was needed, by kind";
        registry.register("wva_connections_refused", help, ledger.refused.clone());
        ledger
    }

    /// One more of a kind; `peer` and `cause` are for the log.
    pub(crate) fn note(&self, loss: Loss, peer: &dyn fmt::Display, cause: &dyn fmt::Display) {
        match loss {
            Loss::Handshake(kind) => self.handshakes.get_or_create(&Kind { kind }).inc(),
            Loss::Refused(kind) => self.refused.get_or_create(&Kind { kind }).inc(),
        };
        tracing::debug!(%peer, %cause, "connection failed");
        if loss == CLOSED {
            return;
        }
        let now = Instant::now();
        let mut told = self.told.lock();
        let newest = || format!("{peer}: {cause}");
        if let Some(told) = told.get_mut(&loss) {
            (told.since, told.newest) = (told.since + 1, newest());
        } else {
            told.insert(loss, Told { last: now, since: 0, newest: String::new() });
            tell(loss, 1, &newest());
        }
    }

    /// Tells what was not told yet, for ever.
    pub(crate) async fn summarise(&self) {
        loop {
            sleep(TOLD_EVERY).await;
            self.told.lock().retain(|loss, told| {
                if told.since > 0 {
                    tell(*loss, told.since, &told.newest);
                    (told.last, told.since) = (Instant::now(), 0);
                }
                // A kind that was quiet for so long is told at once when it comes back.
                told.last.elapsed() < TOLD_EVERY
            });
        }
    }
}

fn tell(loss: Loss, count: u64, newest: &str) {
    match loss {
        Loss::Handshake(kind) => tracing::warn!(count, kind, newest, "TLS handshakes failed"),
        Loss::Refused(kind) => tracing::warn!(count, kind, newest, "connections were refused"),
    }
}

/// The kind of a handshake's error.
pub(crate) fn handshake_loss(error: &io::Error) -> Loss {
    use rustls::Error;
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    let kind = match tls {
        None => return CLOSED,
        // The peer told us what is wrong with ours, most often the certificate.
        Some(Error::AlertReceived(_)) => "refused_by_peer",
        Some(Error::InvalidMessage(_) | Error::InappropriateMessage { .. }) => "not_tls",
        Some(Error::PeerIncompatible(_) | Error::NoApplicationProtocol) => "incompatible",
        Some(Error::InvalidCertificate(_) | Error::NoCertificatesPresented) => "client_certificate",
        Some(_) => "other",
    };
    Loss::Handshake(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_kind_is_told_at_once_then_once_a_minute_with_its_count() {
        let ledger = Ledger::default();
        let loss = Loss::Handshake("not_tls");
        let untold = || ledger.told.lock().get(&loss).map(|told| told.since);
        let summary = async |seconds| {
            let _ = tokio::time::timeout(Duration::from_secs(seconds), ledger.summarise()).await;
        };
        for _ in 0..50 {
            ledger.note(loss, &"10.0.0.1:1", &"garbage");
        }
        assert_eq!(untold(), Some(49), "the first was told at once");
        summary(61).await;
        assert_eq!(untold(), Some(0), "the others in one line");
        summary(121).await;
        assert_eq!(untold(), None, "and after a quiet minute the next is a first one");
        assert_eq!(ledger.handshakes.get_or_create(&Kind { kind: "not_tls" }).get(), 50);
    }

    #[test]
    fn a_peer_that_goes_away_is_counted_and_not_told() {
        let ledger = Ledger::default();
        let gone = handshake_loss(&io::ErrorKind::UnexpectedEof.into());
        ledger.note(gone, &"10.0.0.1:1", &"eof");
        assert_eq!(ledger.handshakes.get_or_create(&Kind { kind: "closed" }).get(), 1);
        assert!(ledger.told.lock().is_empty());
    }
}
