//! When the leader writes its state objects: decisions when they change, the memory now and then, and both once more before
//! the lease is released.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use smol_str::SmolStr;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use wva_core::decision::{Cause, Reason, Verdict};
use wva_core::memory::Memory;
use wva_core::units::Replicas;
use wva_core::{Decision, VariantId};

use super::state_encoding::{DroppedCounts, EncodedShards, MAX_SHARDS, Shard, StateValue, encode, shard_of};
use super::state_store::{StateError, StateKind, StateStore};
use super::state_watch::{Existence, watch_existence};
use crate::engine::{Holder, Leadership, Origin, Published};
use crate::telemetry::StateMetrics;

/// Shortest time between two writes of decisions.
const DECISIONS_INTERVAL: Duration = Duration::from_secs(2);
/// Evidence that is this much newer is written although nothing else changed: a follower's answer seems at most that much
/// older than it is, and a quiet installation writes once a minute.
const EVIDENCE_INTERVAL: Duration = Duration::from_secs(60);
/// Where a fifth of `max-stale` is less than that, it counts instead.
const EVIDENCE_DIVISOR: u32 = 5;
/// Longest time between two writes of the memory.
const MEMORY_INTERVAL: Duration = Duration::from_secs(300);
/// Shortest time between two writes of the memory, when only the memory still has a number.
const MIN_MEMORY_INTERVAL: Duration = Duration::from_secs(10);

/// Writes the state objects. [`StateWriter::run`] it in a task.
pub struct StateWriter {
    store: StateStore,
    published: watch::Receiver<Arc<Published>>,
    memory: watch::Receiver<Arc<Memory>>,
    leadership: watch::Receiver<Leadership>,
    decisions: WrittenObjects,
    memories: WrittenObjects,
    /// What the written decisions say.
    facts: BTreeMap<VariantId, DecisionFacts>,
    /// When the memory was last written; before this leader has, when it first could.
    memory_interval_since: Option<Instant>,
    /// When this leader last wrote the memory.
    memory_written: Option<Instant>,
    /// True while the memory has targets that the written decisions have lost.
    memory_is_overdue: bool,
    evidence_interval: SignedDuration,
    metrics: StateMetrics,
}

/// What is known of the objects of one kind.
#[derive(Default)]
struct WrittenObjects {
    /// The term in which they were written here; `None` before that.
    holder: Option<Holder>,
    /// How many were written in that term.
    count: usize,
    /// Those that are known to exist, by index; `None` for one that was deleted since.
    known: BTreeMap<usize, Option<StoredObject>>,
    /// What they last lacked according to the log.
    dropped: DroppedCounts,
}

/// What one object contains, and since when it is known to exist.
#[derive(Clone)]
struct StoredObject {
    /// Of its lines, which would take megabytes; `None` for what an earlier leader wrote.
    digest: Option<[u8; SHA256_OUTPUT_LEN]>,
    at: Instant,
}

impl WrittenObjects {
    /// Applies a change of which objects exist. Before this leader has written them, only the watch knows.
    fn apply(&mut self, existence: &Existence, name: impl Fn(usize) -> String) {
        for index in 0..MAX_SHARDS {
            let name = name(index);
            let (exists, at) = match existence {
                Existence::Listed(names, requested) => (names.contains(&name), *requested),
                Existence::Written(written) if *written == name => (true, Instant::now()),
                Existence::Deleted(deleted) if *deleted == name => (false, Instant::now()),
                _ => continue,
            };
            if exists && self.holder.is_none() {
                self.known.insert(index, Some(StoredObject { digest: None, at }));
            } else if let Some(known) = self.known.get_mut(&index)
                && !exists
                && known.take_if(|stored| stored.at < at).is_some()
            {
                tracing::info!(name, "a state object was deleted");
            }
        }
    }

    /// A new term: the objects that exist are an earlier leader's.
    fn start_term(&mut self) {
        let known = std::mem::take(&mut self.known)
            .into_iter()
            .map(|(index, stored)| (index, stored.map(|stored| StoredObject { digest: None, ..stored })));
        *self = Self { known: known.collect(), ..Self::default() };
    }

    /// The end of a term: the next leader restores deleted objects.
    fn end_term(&mut self) {
        self.start_term();
        self.known.retain(|_, stored| stored.is_some());
    }

    /// True when an object that existed was deleted.
    fn has_lost(&self) -> bool {
        self.known.values().any(Option::is_none)
    }
}

/// Which objects to write.
enum WriteScope {
    /// All whose lines differ.
    All,
    /// Those with one of these variants.
    Only(Vec<VariantId>),
}

impl WriteScope {
    fn contains(&self, index: usize, count: usize) -> bool {
        match self {
            Self::All => true,
            Self::Only(ids) => ids.iter().any(|id| shard_of(id, count) == index),
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::Only(ids) if ids.is_empty())
    }
}

/// The parts of a decision whose change is worth a write.
#[derive(Debug, Clone, PartialEq)]
struct DecisionFacts {
    number: Result<(Replicas, Reason), Cause>,
    current: Option<Replicas>,
    model: SmolStr,
    accelerator: Option<SmolStr>,
    time: Timestamp,
}

impl StateWriter {
    /// A writer that has not started. `max_stale` is the age at which a reader refuses evidence.
    #[must_use]
    pub fn new(
        store: StateStore,
        published: watch::Receiver<Arc<Published>>,
        memory: watch::Receiver<Arc<Memory>>,
        leadership: watch::Receiver<Leadership>,
        max_stale: Duration,
    ) -> Self {
        Self {
            store,
            published,
            memory,
            leadership,
            decisions: WrittenObjects::default(),
            memories: WrittenObjects::default(),
            facts: BTreeMap::new(),
            memory_interval_since: None,
            memory_written: None,
            memory_is_overdue: false,
            evidence_interval: evidence_interval(max_stale),
            metrics: StateMetrics::default(),
        }
    }

    /// The same writer, which counts in `metrics` what does not fit.
    #[must_use]
    pub fn with_metrics(self, metrics: StateMetrics) -> Self {
        Self { metrics, ..self }
    }

    /// Writes until cancelled, then writes everything once more. Wait for this to end before the lease is released: the
    /// next leader starts from what is written here.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut not_before = Instant::now();
        let mut existence = watch_existence(&self.store).boxed();
        loop {
            tokio::select! {
                () = cancel.cancelled() => break,
                changed = self.published.changed() => if changed.is_err() { break },
                Some(existence) = existence.next() => {
                    self.apply(&existence);
                    if !self.decisions.has_lost() && !self.memories.has_lost() {
                        continue;
                    }
                }
            }
            if cancel.run_until_cancelled(sleep_until(not_before)).await.is_none() {
                break;
            }
            if self.write_changes(false).await {
                not_before = Instant::now() + DECISIONS_INTERVAL;
            }
        }
        self.write_changes(true).await;
    }

    fn apply(&mut self, existence: &Existence) {
        let store = &self.store;
        self.decisions.apply(existence, |index| store.name(StateKind::Decisions, index));
        self.memories.apply(existence, |index| store.name(StateKind::Memory, index));
    }

    /// Writes what changed, or everything when `is_last`; true when it tried to.
    async fn write_changes(&mut self, is_last: bool) -> bool {
        let published = self.published.borrow_and_update().clone();
        let leadership = self.leadership.borrow().clone();
        let Some(holder) = leadership.holder.clone().filter(|_| leadership.is_mine()) else {
            self.end_term();
            return false;
        };
        // What an earlier term of ours computed is older than what other leaders have written since.
        let is_of_earlier_term = published.term.is_some() && published.term != leadership.term();
        if published.origin != Origin::Computed || is_of_earlier_term {
            return false;
        }
        let facts = facts(&published.decisions);
        self.memory_is_overdue |= has_lost_number(&self.facts, &facts);
        let with_memory = is_last || self.is_memory_due() || self.memories.has_lost();
        let is_new_term = self.decisions.holder.as_ref() != Some(&holder);
        let scope = if is_last || is_new_term || self.decisions.has_lost() {
            WriteScope::All
        } else {
            WriteScope::Only(changed(&self.facts, &facts, self.evidence_interval))
        };
        if !with_memory && scope.is_empty() {
            return false;
        }
        let result = self.write(&published, facts, &holder, &scope, with_memory).await;
        if let Err(error) = result {
            tracing::warn!(%error, "state objects were not written; retrying after the next evaluation");
        }
        true
    }

    /// When this instance becomes the leader again, it writes everything anew.
    fn end_term(&mut self) {
        self.decisions.end_term();
        self.memories.end_term();
        self.memory_interval_since = None;
        self.memory_written = None;
        self.memory_is_overdue = false;
        self.facts.clear();
    }

    /// True when the memory is to be written: periodically, and soon when only it has a number.
    fn is_memory_due(&mut self) -> bool {
        // Counted from the first call: a cold start must not replace the memory of the last leader at once.
        let since = *self.memory_interval_since.get_or_insert_with(Instant::now);
        let may_write = self.memory_written.is_none_or(|at| at.elapsed() >= MIN_MEMORY_INTERVAL);
        since.elapsed() >= MEMORY_INTERVAL || (self.memory_is_overdue && may_write)
    }

    /// Writes the memory before the decisions, so that a number which moves between them is always in one of the two.
    /// When that fails, decisions are written all the same, because followers answer from them.
    async fn write(
        &mut self,
        published: &Published,
        facts: BTreeMap<VariantId, DecisionFacts>,
        holder: &Holder,
        scope: &WriteScope,
        with_memory: bool,
    ) -> Result<(), StateError> {
        let store = &self.store;
        let leadership = &self.leadership;
        let metrics = &self.metrics;
        let writer = |kind| ShardWriter { store, leadership, metrics, kind, holder };
        let memory_writer = writer(StateKind::Memory);
        let decision_writer = writer(StateKind::Decisions);
        let mut memory_result = Ok(());
        if with_memory {
            store.ensure_current(holder).await?;
            let memory = self.memory.borrow().clone();
            let written = memory_writer.write(&memory.groups, &mut self.memories, &WriteScope::All).await;
            if written.is_ok() {
                self.memory_interval_since = Some(Instant::now());
                self.memory_written = self.memory_interval_since;
                self.memory_is_overdue = false;
            }
            memory_result = written.map(drop);
        }
        let up_to_date = decision_writer.write(&published.decisions, &mut self.decisions, scope).await?;
        let count = self.decisions.count;
        let is_written = |id: &VariantId| up_to_date.contains(&shard_of(id, count));
        self.facts.retain(|id, _| !is_written(id));
        self.facts.extend(facts.into_iter().filter(|(id, _)| is_written(id)));
        memory_result
    }
}

/// Writes the objects of one kind in the name of `holder`.
struct ShardWriter<'a> {
    store: &'a StateStore,
    leadership: &'a watch::Receiver<Leadership>,
    metrics: &'a StateMetrics,
    kind: StateKind,
    holder: &'a Holder,
}

impl ShardWriter<'_> {
    /// Writes the objects in `scope` that differ from what this leader has `written`, and all of them when their number
    /// changes. Returns the indices of those that contain exactly `entries` now.
    async fn write<V: StateValue>(
        &self,
        entries: &BTreeMap<V::Id, V>,
        written: &mut WrittenObjects,
        scope: &WriteScope,
    ) -> Result<BTreeSet<usize>, StateError> {
        if written.holder.as_ref() != Some(self.holder) {
            written.start_term();
        }
        let EncodedShards { shards, dropped } = encode(entries, written.count);
        self.report_dropped(written.dropped, dropped);
        let count = shards.len();
        let has_new_layout = written.count != count;
        let mut up_to_date = BTreeSet::new();
        let mut known = BTreeMap::new();
        for (index, lines) in shards.into_iter().enumerate() {
            let old = written.known.get(&index).and_then(Option::as_ref).filter(|_| !has_new_layout);
            let digest = Some(digest_of(&lines));
            let is_same = old.is_some_and(|old| old.digest == digest);
            let stored = match old {
                Some(old) if is_same || !scope.contains(index, count) => old.clone(),
                _ => {
                    if !self.leadership.borrow().is_mine() {
                        return Ok(BTreeSet::new());
                    }
                    let header = self.store.header(self.kind, self.holder);
                    let shard = Shard { header, lines };
                    self.store.put(self.kind, index, &shard).await?;
                    up_to_date.insert(index);
                    StoredObject { digest, at: Instant::now() }
                }
            };
            if is_same {
                up_to_date.insert(index);
            }
            known.insert(index, Some(stored));
        }
        if has_new_layout {
            let may_write = || self.leadership.borrow().is_mine();
            self.store.remove_from(self.kind, count, self.holder, may_write).await?;
        }
        *written = WrittenObjects { holder: Some(self.holder.clone()), count, known, dropped };
        Ok(up_to_date)
    }

    /// In the metrics always; in the log when it begins, ends, or something of another kind is dropped.
    fn report_dropped(&self, before: DroppedCounts, now: DroppedCounts) {
        let kind = self.kind.name();
        let parts = |counts: DroppedCounts| {
            [("learned", counts.learned), ("words", counts.messages), ("all", counts.entries)]
        };
        for (label, entries) in parts(now) {
            self.metrics.set_cut(kind, label, entries);
        }
        let any = |counts| parts(counts).map(|(_, entries)| entries > 0);
        if any(before) == any(now) {
            return;
        }
        if now == DroppedCounts::default() {
            tracing::info!(kind, "the state objects have room for everything again");
        } else {
            tracing::warn!(
                kind,
                without_learned = now.learned,
                without_messages = now.messages,
                missing = now.entries,
                "the state objects are full, so the next leader has to learn some values again: split the installation by \
                 namespace"
            );
        }
    }
}

/// Two objects with the same digest contain the same lines.
fn digest_of(lines: &str) -> [u8; SHA256_OUTPUT_LEN] {
    let mut bytes = [0; SHA256_OUTPUT_LEN];
    bytes.copy_from_slice(digest(&SHA256, lines.as_bytes()).as_ref());
    bytes
}

fn evidence_interval(max_stale: Duration) -> SignedDuration {
    let interval = EVIDENCE_INTERVAL.min(max_stale / EVIDENCE_DIVISOR);
    SignedDuration::try_from(interval).unwrap_or(SignedDuration::MAX)
}

fn facts(decisions: &BTreeMap<VariantId, Decision>) -> BTreeMap<VariantId, DecisionFacts> {
    let facts = |decision: &Decision| {
        let (number, time) = match &decision.verdict {
            Verdict::Target(target) => (Ok((target.desired, target.reason)), target.evidence),
            Verdict::Unknown(unknown) => (Err(unknown.cause), unknown.since),
        };
        DecisionFacts {
            number,
            current: decision.current,
            model: decision.model.clone(),
            accelerator: decision.accelerator.clone(),
            time,
        }
    };
    decisions.iter().map(|(id, decision)| (id.clone(), facts(decision))).collect()
}

/// The variants of which something changed that a reader of the state objects would miss.
fn changed(
    old: &BTreeMap<VariantId, DecisionFacts>,
    new: &BTreeMap<VariantId, DecisionFacts>,
    evidence_interval: SignedDuration,
) -> Vec<VariantId> {
    let differs = |(id, new): &(&VariantId, &DecisionFacts)| {
        old.get(id).is_none_or(|old| {
            let same_time = DecisionFacts { time: new.time, ..old.clone() };
            same_time != **new || new.time.duration_since(old.time).abs() >= evidence_interval
        })
    };
    let gone = old.keys().filter(|id| !new.contains_key(id));
    new.iter().filter(differs).map(|(id, _)| id).chain(gone).cloned().collect()
}

/// True when a decision has no number any more: from now on only the memory has it.
fn has_lost_number(
    old: &BTreeMap<VariantId, DecisionFacts>,
    new: &BTreeMap<VariantId, DecisionFacts>,
) -> bool {
    let had_number = |id| old.get(id).is_none_or(|facts| facts.number.is_ok());
    new.iter().any(|(id, facts)| facts.number.is_err() && had_number(id))
}

#[cfg(test)]
mod tests {
    use wva_core::decision::Target;

    use super::*;

    fn published(desired: u32, message: &str, evidence: i64) -> BTreeMap<VariantId, DecisionFacts> {
        let target = Target {
            desired: Replicas::new(desired),
            reason: Reason::Steady,
            explanation: message.into(),
            evidence: Timestamp::from_second(evidence).unwrap(),
        };
        let verdict = Verdict::Target(target);
        let decision = Decision { model: "m".into(), accelerator: None, current: None, verdict, gap: None };
        facts(&BTreeMap::from([(VariantId::new("n", "v"), decision)]))
    }

    fn worth_writing(
        old: &BTreeMap<VariantId, DecisionFacts>,
        new: &BTreeMap<VariantId, DecisionFacts>,
        max_stale: u64,
    ) -> bool {
        !changed(old, new, evidence_interval(Duration::from_secs(max_stale))).is_empty()
    }

    #[test]
    fn another_number_is_worth_a_write_and_another_message_is_not() {
        let old = published(2, "KV usage 40 %", 0);
        assert!(worth_writing(&old, &published(3, "KV usage 40 %", 0), 300));
        assert!(!worth_writing(&old, &published(2, "KV usage 41 %", 5), 300));
        assert!(worth_writing(&old, &BTreeMap::new(), 300), "a variant is gone");
    }

    #[test]
    fn evidence_is_refreshed_once_a_minute() {
        let old = published(2, "", 0);
        assert!(!worth_writing(&old, &published(2, "", 59), 300));
        assert!(worth_writing(&old, &published(2, "", 60), 300));
    }

    #[test]
    fn evidence_is_refreshed_well_before_max_stale() {
        let old = published(2, "", 0);
        assert!(!worth_writing(&old, &published(2, "", 8), 45));
        assert!(worth_writing(&old, &published(2, "", 9), 45));
    }
}
