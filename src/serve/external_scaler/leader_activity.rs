//! What the leader has decided, read by another instance once for all of its streams.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::sleep;
use wva_core::VariantId;
use wva_core::decision::Verdict;

use super::reference::METRIC;
use crate::engine::{Leadership, Origin, Published};

/// How often an instance that is not the leader asks the leader, while it has streams. The leader evaluates each `--max-age` then, as
/// for any reader, and not each `--interval`.
const ASK_INTERVAL: Duration = Duration::from_millis(500);

/// Reads the leader's numbers as text ([`crate::serve::paths::DECISIONS`]); `None` where it does not answer.
pub(in crate::serve) type ReadLeader = Arc<dyn Fn() -> BoxFuture<'static, Option<Bytes>> + Send + Sync>;

/// What is decided about a variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Activity {
    /// Nobody has said yet what is decided.
    Unread,
    /// It has no number; or it is one of another installation.
    Undecided,
    /// Whether its number is above 0.
    Decided(bool),
}

impl Activity {
    /// By this instance.
    pub(super) fn of(published: &Published, id: &VariantId) -> Self {
        match published.decisions.get(id).map(|decision| &decision.verdict) {
            _ if published.origin == Origin::Empty => Self::Unread,
            Some(Verdict::Target(target)) => Self::Decided(target.desired.get() > 0),
            Some(Verdict::Unknown(_)) | None => Self::Undecided,
        }
    }
}

/// Whether the number of each variant that has one is above 0.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::serve) struct LeaderActivity(BTreeMap<VariantId, bool>);

impl LeaderActivity {
    pub(super) fn of(&self, id: &VariantId) -> Activity {
        self.0.get(id).copied().map_or(Activity::Undecided, Activity::Decided)
    }

    fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(parse_line).collect())
    }
}

/// Asks the leader for ever, while this instance is another one and has streams.
pub(in crate::serve) async fn follow_leader(
    leader: &watch::Sender<Option<Arc<LeaderActivity>>>,
    leadership: &watch::Receiver<Leadership>,
    read: &ReadLeader,
) {
    loop {
        sleep(ASK_INTERVAL.mul_f64(0.8 + 0.4 * fastrand::f64())).await;
        let is_needed = leader.receiver_count() > 0 && !leadership.borrow().is_mine();
        let text = if is_needed { read().await } else { None };
        let activity =
            text.as_deref().and_then(|text| std::str::from_utf8(text).ok()).map(LeaderActivity::parse);
        leader.send_if_modified(|known| {
            let is_changed = known.as_deref() != activity.as_ref();
            if is_changed {
                *known = activity.map(Arc::new);
            }
            is_changed
        });
    }
}

/// A variant and whether its number is above 0.
fn parse_line(line: &str) -> Option<(VariantId, bool)> {
    let mut rest = line.strip_prefix(METRIC)?.strip_prefix('{')?;
    let (mut namespace, mut name) = (None, None);
    loop {
        let (label, value) = rest.split_once("=\"")?;
        let mut is_escaped = false;
        let end = value.find(|letter: char| {
            let is_end = letter == '"' && !is_escaped;
            is_escaped = letter == '\\' && !is_escaped;
            is_end
        })?;
        let (value, after) = (value.get(..end)?, value.get(end + 1..)?);
        match label {
            "namespace" => namespace = Some(value),
            "variant_name" => name = Some(value),
            _ => {}
        }
        match after.strip_prefix(',') {
            Some(next) => rest = next,
            None => {
                let number: u32 = after.strip_prefix("} ")?.parse().ok()?;
                return Some((VariantId::new(namespace?, name?), number > 0));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leaders_page_says_which_variants_run() {
        let page = "# HELP wva_desired_replicas Desired number\n# TYPE wva_desired_replicas gauge\n\
                    wva_desired_replicas{variant_name=\"a\",namespace=\"llm\",accelerator_type=\"x,namespace=\"} 3\n\
                    wva_desired_replicas{variant_name=\"b\",accelerator_type=\"\\\"\\\\\",namespace=\"llm\"} 0\n\
                    wva_desired_replicas{variant_name=\"c\"} 1\n\
                    wva_desired_replicas{variant_name=\"d\",namespace=\"llm\"} x\n\
                    wva_desired_replicas{variant_name=\"e\n";
        let activity = LeaderActivity::parse(page);
        let of = |name| activity.of(&VariantId::new("llm", name));
        assert_eq!((of("a"), of("b")), (Activity::Decided(true), Activity::Decided(false)));
        assert_eq!(activity.0.len(), 2, "{activity:?}");
        assert_eq!(of("c"), Activity::Undecided);
    }
}
