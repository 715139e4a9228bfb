//! What an evaluation changed, for the log.

use tracing::{info, warn};
use wva_core::decision::Verdict;

use super::board::Published;

/// One line for each variant whose number, or whose lack of one, is new.
pub(super) fn log_changes(previous: &Published, now: &Published) {
    for (id, decision) in &now.decisions {
        let before = previous.decisions.get(id).map(|decision| &decision.verdict);
        match (before, &decision.verdict) {
            (Some(Verdict::Target(old)), Verdict::Target(new)) if old.desired == new.desired => {}
            (Some(Verdict::Unknown(old)), Verdict::Unknown(new)) if old.cause == new.cause => {}
            (_, Verdict::Target(new)) => {
                let (desired, reason) = (new.desired.get(), new.reason.as_str());
                // As a string, which the log escapes: parts of it are written by tenants.
                let why = new.explanation.to_string();
                info!(variant = %id, desired, reason, why = why.as_str(), "decision");
            }
            (_, Verdict::Unknown(new)) => {
                let why = new.explanation.to_string();
                warn!(variant = %id, cause = ?new.cause, why = why.as_str(), "no decision");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io;
    use std::sync::Arc;

    use jiff::Timestamp;
    use parking_lot::Mutex;
    use wva_core::decision::{Reason, Target};
    use wva_core::units::Replicas;
    use wva_core::{Decision, VariantId};

    use super::*;

    /// What is logged, as text.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_tenants_text_with_an_end_of_line_makes_no_log_line_of_its_own() {
        let target = Target {
            desired: Replicas::ONE,
            reason: Reason::Steady,
            explanation: "Deployment nothere\n2026-01-01T00:00:00Z  INFO wva: forged\u{1b}[31m".into(),
            evidence: Timestamp::UNIX_EPOCH,
        };
        let verdict = Verdict::Target(target);
        let decision = Decision { model: "m".into(), accelerator: None, current: None, verdict, gap: None };
        let decisions = BTreeMap::from([(VariantId::new("llm", "llama"), decision)]);
        let log = Log::default();
        let writer = log.clone();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            log_changes(&Published::empty(), &Published { decisions, ..Published::empty() });
        });
        let text = String::from_utf8(log.0.lock().clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains(r"nothere\n2026") && !text.contains('\u{1b}'), "{text}");
    }
}
