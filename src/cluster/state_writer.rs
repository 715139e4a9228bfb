//! When the holder writes its state objects: decisions when they change, memory now and then, both once more before the
//! lease is handed over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use wva_core::decision::{Cause, Reason, Verdict};
use wva_core::memory::Memory;
use wva_core::units::Replicas;
use wva_core::{Decision, VariantId};

use super::shards::{Kept, Shard, encode};
use super::state::{Kind, StateError, StateStore};
use crate::engine::{Leadership, Origin, Published};

/// Shortest time between two writes of decisions.
const DECISIONS_EVERY: Duration = Duration::from_secs(2);
/// Evidence that is this much newer is written though nothing else changed: a follower's answer then looks at most a
/// fifth of `max-stale` (5 min) older than it is, and a quiet installation writes once a minute.
const EVIDENCE_EVERY: SignedDuration = SignedDuration::from_secs(60);
/// Shortest time between two writes of memory.
const MEMORY_EVERY: Duration = Duration::from_secs(300);

/// Writes the state objects. [`StateWriter::run`] it in a task.
pub struct StateWriter {
    store: StateStore,
    published: watch::Receiver<Arc<Published>>,
    memory: watch::Receiver<Arc<Memory>>,
    leadership: watch::Receiver<Leadership>,
    decisions: Written,
    memories: Written,
    facts: BTreeMap<VariantId, Fact>,
    memory_at: Option<Instant>,
}

/// What the objects of one kind contain, as this holder wrote them in `epoch`.
#[derive(Default)]
struct Written {
    epoch: Option<i64>,
    shards: Vec<String>,
}

/// What of a decision is worth a write when it changes.
#[derive(Debug, Clone, PartialEq)]
struct Fact {
    number: Result<(Replicas, Reason), Cause>,
    current: Option<Replicas>,
    model: String,
    accelerator: Option<String>,
    time: Timestamp,
}

impl StateWriter {
    /// A writer that has not started.
    #[must_use]
    pub fn new(
        store: StateStore,
        published: watch::Receiver<Arc<Published>>,
        memory: watch::Receiver<Arc<Memory>>,
        leadership: watch::Receiver<Leadership>,
    ) -> Self {
        let (decisions, memories) = (Written::default(), Written::default());
        Self {
            store,
            published,
            memory,
            leadership,
            decisions,
            memories,
            facts: BTreeMap::new(),
            memory_at: None,
        }
    }

    /// Writes until cancelled, then writes everything once more. Wait for the end of this before the lease is given
    /// up: the next holder starts from what is written here.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut not_before = Instant::now();
        loop {
            tokio::select! {
                () = cancel.cancelled() => break,
                changed = self.published.changed() => if changed.is_err() { break },
            }
            if cancel.run_until_cancelled(sleep_until(not_before)).await.is_none() {
                break;
            }
            // Counted from the first look: what the last holder remembered is not replaced by a cold start.
            let memory_due = self.memory_at.get_or_insert_with(Instant::now).elapsed() >= MEMORY_EVERY;
            if self.turn(memory_due).await {
                not_before = Instant::now() + DECISIONS_EVERY;
            }
        }
        self.turn(true).await;
    }

    /// Writes what changed; true when it tried to.
    async fn turn(&mut self, with_memory: bool) -> bool {
        let published = self.published.borrow_and_update().clone();
        let leadership = self.leadership.borrow().clone();
        let Some(holder) = leadership.holder.clone().filter(|_| leadership.is_mine()) else {
            // The next time we hold the lease, everything is written under the new epoch.
            (self.decisions, self.memories, self.memory_at) = (Written::default(), Written::default(), None);
            self.facts.clear();
            return false;
        };
        if published.origin != Origin::Computed {
            return false;
        }
        let (identity, epoch) = (holder.identity, holder.epoch);
        let facts = facts(&published.decisions);
        let due = with_memory || self.decisions.epoch != Some(epoch) || worth_writing(&self.facts, &facts);
        if !due {
            return false;
        }
        let mut result = self.write_decisions(&published, &identity, epoch).await;
        if result.is_ok() {
            self.facts = facts;
            if with_memory {
                result = self.write_memory(&identity, epoch).await;
            }
        }
        if let Err(error) = result {
            tracing::warn!(%error, "state objects were not written; trying again after the next evaluation");
        }
        true
    }

    async fn write_decisions(
        &mut self,
        published: &Published,
        holder: &str,
        epoch: i64,
    ) -> Result<(), StateError> {
        let place =
            Place { store: &self.store, leadership: &self.leadership, kind: Kind::Decisions, holder, epoch };
        place.write(&published.decisions, &mut self.decisions).await
    }

    async fn write_memory(&mut self, holder: &str, epoch: i64) -> Result<(), StateError> {
        let memory = self.memory.borrow().clone();
        let place =
            Place { store: &self.store, leadership: &self.leadership, kind: Kind::Memory, holder, epoch };
        place.write(&memory.groups, &mut self.memories).await?;
        self.memory_at = Some(Instant::now());
        Ok(())
    }
}

/// The objects of one kind, and in whose name they are written.
struct Place<'a> {
    store: &'a StateStore,
    leadership: &'a watch::Receiver<Leadership>,
    kind: Kind,
    holder: &'a str,
    epoch: i64,
}

impl Place<'_> {
    /// Writes the objects whose content differs from what was `written` in this epoch.
    async fn write<V: Kept>(
        &self,
        entries: &BTreeMap<V::Id, V>,
        written: &mut Written,
    ) -> Result<(), StateError> {
        if written.epoch != Some(self.epoch) {
            *written = Written { epoch: None, shards: Vec::new() };
        }
        let layout = u32::try_from(written.shards.len()).unwrap_or_default();
        let (new, left_out) = encode(entries, layout);
        if left_out > 0 {
            let kind = self.kind;
            tracing::warn!(left_out, ?kind, "state objects are full: split the installation by namespace");
        }
        let fresh = written.epoch.is_none();
        for (index, lines) in new.iter().enumerate() {
            if !fresh && written.shards.get(index) == Some(lines) {
                continue;
            }
            if !self.leadership.borrow().is_mine() {
                return Ok(());
            }
            let header = self.store.header(self.holder.to_owned(), self.epoch);
            self.store.put(self.kind, index, &Shard { header, lines: lines.clone() }).await?;
        }
        if fresh || written.shards.len() != new.len() {
            self.store.remove_from(self.kind, new.len()).await?;
        }
        *written = Written { epoch: Some(self.epoch), shards: new };
        Ok(())
    }
}

fn facts(decisions: &BTreeMap<VariantId, Decision>) -> BTreeMap<VariantId, Fact> {
    let fact = |decision: &Decision| {
        let (number, time) = match &decision.verdict {
            Verdict::Target(target) => (Ok((target.desired, target.reason)), target.evidence),
            Verdict::Unknown(unknown) => (Err(unknown.cause), unknown.since),
        };
        let (model, accelerator) = (decision.model.clone(), decision.accelerator.clone());
        Fact { number, current: decision.current, model, accelerator, time }
    };
    decisions.iter().map(|(id, decision)| (id.clone(), fact(decision))).collect()
}

/// True when something changed that a reader of the state objects would miss.
fn worth_writing(old: &BTreeMap<VariantId, Fact>, new: &BTreeMap<VariantId, Fact>) -> bool {
    let differs = |(id, new): (&VariantId, &Fact)| {
        old.get(id).is_none_or(|old| {
            let same_time = Fact { time: new.time, ..old.clone() };
            same_time != *new || new.time.duration_since(old.time).abs() >= EVIDENCE_EVERY
        })
    };
    old.len() != new.len() || new.iter().any(differs)
}

#[cfg(test)]
mod tests {
    use wva_core::decision::Target;

    use super::*;

    fn published(desired: u32, message: &str, evidence: i64) -> BTreeMap<VariantId, Fact> {
        let target = Target {
            desired: Replicas::new(desired),
            reason: Reason::Steady,
            message: message.into(),
            evidence: Timestamp::from_second(evidence).unwrap(),
        };
        let verdict = Verdict::Target(target);
        let decision = Decision { model: "m".into(), accelerator: None, current: None, verdict };
        facts(&BTreeMap::from([(VariantId::new("n", "v"), decision)]))
    }

    #[test]
    fn another_number_is_worth_a_write_and_other_words_are_not() {
        let old = published(2, "KV usage 40 %", 0);
        assert!(worth_writing(&old, &published(3, "KV usage 40 %", 0)));
        assert!(!worth_writing(&old, &published(2, "KV usage 41 %", 5)));
        assert!(worth_writing(&old, &BTreeMap::new()), "a variant is gone");
    }

    #[test]
    fn evidence_is_refreshed_once_a_minute() {
        let old = published(2, "", 0);
        assert!(!worth_writing(&old, &published(2, "", 59)));
        assert!(worth_writing(&old, &published(2, "", 60)));
    }
}
