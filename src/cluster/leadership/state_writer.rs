//! When the holder writes its state objects: decisions when they change, memory now and then, both once more before the
//! lease is handed over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

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

use super::state_encoding::{Cut, Encoded, Kept, SHARDS_MAX, Shard, encode, shard_of};
use super::state_store::{Kind, StateError, StateStore};
use super::state_watch::{Existence, existence};
use crate::engine::{Holder, Leadership, Origin, Published};
use crate::telemetry::StateMetrics;

/// Shortest time between two writes of decisions.
const DECISIONS_EVERY: Duration = Duration::from_secs(2);
/// Evidence that is this much newer, or a fifth of `max-stale` where that is less, is written though nothing else
/// changed: a follower's answer looks at most that much older than it is, and a quiet installation writes once a minute.
const EVIDENCE_EVERY: Duration = Duration::from_secs(60);
/// The part of `max-stale` that a follower's evidence may be behind.
const EVIDENCE_PART: u32 = 5;
/// Longest time between two writes of memory.
const MEMORY_EVERY: Duration = Duration::from_secs(300);
/// Shortest time between two writes of memory, when a number is about to be known to the memory only.
const MEMORY_SOONEST: Duration = Duration::from_secs(10);

/// Writes the state objects. [`StateWriter::run`] it in a task.
pub struct StateWriter {
    store: StateStore,
    published: watch::Receiver<Arc<Published>>,
    memory: watch::Receiver<Arc<Memory>>,
    leadership: watch::Receiver<Leadership>,
    decisions: Objects,
    memories: Objects,
    facts: BTreeMap<VariantId, Fact>,
    /// When the memory was last written; or first could have been, when this holder has not yet.
    memory_at: Option<Instant>,
    /// When this holder last wrote the memory.
    memory_written: Option<Instant>,
    /// True while the memory knows targets that the written decisions do not show any more.
    memory_owed: bool,
    evidence_every: SignedDuration,
    metrics: StateMetrics,
}

/// The objects of one kind.
#[derive(Default)]
struct Objects {
    /// In whose name they were written here; `None` before that.
    holder: Option<Holder>,
    /// How many were written in that name.
    count: usize,
    /// Those that are known to exist, by their number; `None` for one that somebody has deleted since.
    known: BTreeMap<usize, Option<Stored>>,
    /// What the log was last told that they do not contain.
    cut: Cut,
}

/// What one object contains, and since when it is known to exist.
#[derive(Clone)]
struct Stored {
    /// `None` for what an earlier holder left.
    lines: Option<String>,
    at: Instant,
}

impl Objects {
    /// Takes in which objects exist. Until this holder writes them it has to be told; from then on it knows.
    fn note(&mut self, existence: &Existence, name: impl Fn(usize) -> String) {
        for index in 0..SHARDS_MAX as usize {
            let name = name(index);
            let (exists, at) = match existence {
                Existence::Listed(names, asked) => (names.contains(&name), *asked),
                Existence::Written(written) if *written == name => (true, Instant::now()),
                Existence::Deleted(deleted) if *deleted == name => (false, Instant::now()),
                _ => continue,
            };
            if exists && self.holder.is_none() {
                self.known.insert(index, Some(Stored { lines: None, at }));
            } else if let Some(known) = self.known.get_mut(&index)
                && !exists
                && known.take_if(|stored| stored.at < at).is_some()
            {
                tracing::info!(name, "a state object was deleted");
            }
        }
    }

    /// What is known to exist is from now on what an earlier holder left.
    fn inherit(&mut self) {
        let known = std::mem::take(&mut self.known);
        let left = |stored: Stored| Stored { lines: None, ..stored };
        let known = known.into_iter().map(|(index, stored)| (index, stored.map(left))).collect();
        *self = Self { known, ..Self::default() };
    }

    /// Leaves to whoever holds the lease what somebody has deleted.
    fn leave(&mut self) {
        self.inherit();
        self.known.retain(|_, stored| stored.is_some());
    }

    /// True when an object that existed does not any more.
    fn has_lost(&self) -> bool {
        self.known.values().any(Option::is_none)
    }
}

/// Which objects are worth a write.
enum Due {
    /// All whose lines differ.
    All,
    /// Those with one of these variants.
    Only(Vec<VariantId>),
}

impl Due {
    fn has(&self, index: usize, count: usize) -> bool {
        match self {
            Self::All => true,
            Self::Only(ids) => ids.iter().any(|id| shard_of(id, count) == index),
        }
    }
}

/// What of a decision is worth a write when it changes.
#[derive(Debug, Clone, PartialEq)]
struct Fact {
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
        let (decisions, memories) = (Objects::default(), Objects::default());
        Self {
            store,
            published,
            memory,
            leadership,
            decisions,
            memories,
            facts: BTreeMap::new(),
            memory_at: None,
            memory_written: None,
            memory_owed: false,
            evidence_every: evidence_every(max_stale),
            metrics: StateMetrics::default(),
        }
    }

    /// The same writer, which counts in `metrics` what does not fit.
    #[must_use]
    pub fn counted_by(self, metrics: StateMetrics) -> Self {
        Self { metrics, ..self }
    }

    /// Writes until cancelled, then writes everything once more. Wait for the end of this before the lease is given
    /// up: the next holder starts from what is written here.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut not_before = Instant::now();
        let mut existence = existence(&self.store).boxed();
        loop {
            tokio::select! {
                () = cancel.cancelled() => break,
                changed = self.published.changed() => if changed.is_err() { break },
                Some(existence) = existence.next() => {
                    self.note(&existence);
                    if !self.decisions.has_lost() && !self.memories.has_lost() {
                        continue;
                    }
                }
            }
            if cancel.run_until_cancelled(sleep_until(not_before)).await.is_none() {
                break;
            }
            if self.turn(false).await {
                not_before = Instant::now() + DECISIONS_EVERY;
            }
        }
        self.turn(true).await;
    }

    fn note(&mut self, existence: &Existence) {
        let store = &self.store;
        self.decisions.note(existence, |index| store.name(Kind::Decisions, index));
        self.memories.note(existence, |index| store.name(Kind::Memory, index));
    }

    /// Writes what changed, or everything at the `end`; true when it tried to.
    async fn turn(&mut self, end: bool) -> bool {
        let published = self.published.borrow_and_update().clone();
        let leadership = self.leadership.borrow().clone();
        let Some(holder) = leadership.holder.clone().filter(|_| leadership.is_mine()) else {
            self.forget();
            return false;
        };
        // What an earlier term of ours has made is older than what was written down since.
        let is_earlier = published.term.is_some() && published.term != leadership.term();
        if published.origin != Origin::Computed || is_earlier {
            return false;
        }
        let facts = facts(&published.decisions);
        self.memory_owed |= lost_number(&self.facts, &facts);
        let with_memory = end || self.memory_due() || self.memories.has_lost();
        let anew = self.decisions.holder.as_ref() != Some(&holder) || self.decisions.has_lost();
        let due = match changed(&self.facts, &facts, self.evidence_every) {
            _ if end || anew => Due::All,
            ids => Due::Only(ids),
        };
        if !with_memory && matches!(&due, Due::Only(ids) if ids.is_empty()) {
            return false;
        }
        let result = self.write(&published, facts, &holder, &due, with_memory).await;
        if let Err(error) = result {
            tracing::warn!(%error, "state objects were not written; trying again after the next evaluation");
        }
        true
    }

    /// The next time we hold the lease, everything is written in the name of that time.
    fn forget(&mut self) {
        self.decisions.leave();
        self.memories.leave();
        (self.memory_at, self.memory_written, self.memory_owed) = (None, None, false);
        self.facts.clear();
    }

    /// True when the memory is to be written: now and then, and at once when it is the only place that knows a number.
    fn memory_due(&mut self) -> bool {
        // Counted from the first look: what the last holder remembered is not replaced by a cold start.
        let periodic = self.memory_at.get_or_insert_with(Instant::now).elapsed() >= MEMORY_EVERY;
        let soon = self.memory_written.is_none_or(|at| at.elapsed() >= MEMORY_SOONEST);
        periodic || (self.memory_owed && soon)
    }

    /// The memory goes first, so that in between a number is in one of the two. When it fails, decisions are written
    /// all the same: followers answer from them.
    async fn write(
        &mut self,
        published: &Published,
        facts: BTreeMap<VariantId, Fact>,
        holder: &Holder,
        due: &Due,
        with_memory: bool,
    ) -> Result<(), StateError> {
        let (store, leadership, metrics) = (&self.store, &self.leadership, &self.metrics);
        let place = |kind| Place { store, leadership, metrics, kind, holder };
        let mut remembered = Ok(());
        if with_memory {
            self.store.still_ours(holder).await?;
            let memory = self.memory.borrow().clone();
            let written = place(Kind::Memory).write(&memory.groups, &mut self.memories, &Due::All).await;
            if written.is_ok() {
                (self.memory_at, self.memory_written) = (Some(Instant::now()), Some(Instant::now()));
                self.memory_owed = false;
            }
            remembered = written.map(drop);
        }
        let agree = place(Kind::Decisions).write(&published.decisions, &mut self.decisions, due).await?;
        let count = self.decisions.count;
        let settled = |id: &VariantId| agree.contains(&shard_of(id, count));
        self.facts.retain(|id, _| !settled(id));
        self.facts.extend(facts.into_iter().filter(|(id, _)| settled(id)));
        remembered
    }
}

/// The objects of one kind, and in whose name they are written.
struct Place<'a> {
    store: &'a StateStore,
    leadership: &'a watch::Receiver<Leadership>,
    metrics: &'a StateMetrics,
    kind: Kind,
    holder: &'a Holder,
}

impl Place<'_> {
    /// Writes the objects that are `due` and differ from what this holder has `written`, all of them when their number
    /// changes. The result says which contain exactly `entries` now.
    async fn write<V: Kept>(
        &self,
        entries: &BTreeMap<V::Id, V>,
        written: &mut Objects,
        due: &Due,
    ) -> Result<BTreeSet<usize>, StateError> {
        if written.holder.as_ref() != Some(self.holder) {
            written.inherit();
        }
        let layout = u32::try_from(written.count).unwrap_or_default();
        let Encoded { shards: new, cut } = encode(entries, layout);
        self.tell_cut(written.cut, cut);
        let (count, mut agree) = (new.len(), BTreeSet::new());
        let laid_out_anew = written.count != count;
        let mut known = BTreeMap::new();
        for (index, lines) in new.into_iter().enumerate() {
            let old = written.known.get(&index).and_then(Option::as_ref).filter(|_| !laid_out_anew);
            match old {
                Some(old) if old.lines.as_ref() != Some(&lines) && !due.has(index, count) => {
                    known.insert(index, Some(old.clone()));
                    continue;
                }
                Some(old) if old.lines.as_ref() == Some(&lines) => {
                    drop(known.insert(index, Some(old.clone())))
                }
                _ => {
                    if !self.leadership.borrow().is_mine() {
                        return Ok(BTreeSet::new());
                    }
                    let header = self.store.header(self.kind, self.holder);
                    let shard = Shard { header, lines: lines.clone() };
                    self.store.put(self.kind, index, &shard).await?;
                    known.insert(index, Some(Stored { lines: Some(lines), at: Instant::now() }));
                }
            }
            agree.insert(index);
        }
        if laid_out_anew {
            let may_write = || self.leadership.borrow().is_mine();
            self.store.remove_from(self.kind, count, self.holder, may_write).await?;
        }
        *written = Objects { holder: Some(self.holder.clone()), count, known, cut };
        Ok(agree)
    }

    /// In the metrics always, in the log when it begins, ends or becomes worse in kind.
    fn tell_cut(&self, before: Cut, now: Cut) {
        let kind = self.kind.name();
        let parts = |cut: Cut| [("learned", cut.learned), ("words", cut.words), ("all", cut.all)];
        for (lost, entries) in parts(now) {
            self.metrics.cut(kind, lost, entries);
        }
        let some = |cut| parts(cut).map(|(_, entries)| entries > 0);
        if some(before) == some(now) {
            return;
        }
        let Cut { learned, words, all } = now;
        if now == Cut::default() {
            tracing::info!(kind, "state objects have room for everything again");
        } else {
            tracing::warn!(
                kind,
                without_what_was_learned = learned,
                without_words = words,
                left_out = all,
                "state objects are full, so a next holder learns some anew: split the installation by namespace"
            );
        }
    }
}

fn evidence_every(max_stale: Duration) -> SignedDuration {
    SignedDuration::try_from(EVIDENCE_EVERY.min(max_stale / EVIDENCE_PART)).unwrap_or(SignedDuration::MAX)
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

/// The variants of which something changed that a reader of the state objects would miss.
fn changed(
    old: &BTreeMap<VariantId, Fact>,
    new: &BTreeMap<VariantId, Fact>,
    evidence_every: SignedDuration,
) -> Vec<VariantId> {
    let differs = |(id, new): &(&VariantId, &Fact)| {
        old.get(id).is_none_or(|old| {
            let same_time = Fact { time: new.time, ..old.clone() };
            same_time != **new || new.time.duration_since(old.time).abs() >= evidence_every
        })
    };
    let gone = old.keys().filter(|id| !new.contains_key(id));
    new.iter().filter(differs).map(|(id, _)| id).chain(gone).cloned().collect()
}

/// True when a number is not in the decisions any more: from now on the memory alone knows it.
fn lost_number(old: &BTreeMap<VariantId, Fact>, new: &BTreeMap<VariantId, Fact>) -> bool {
    let had_one = |id| old.get(id).is_none_or(|fact| fact.number.is_ok());
    new.iter().any(|(id, fact)| fact.number.is_err() && had_one(id))
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
        let decision = Decision { model: "m".into(), accelerator: None, current: None, verdict, gap: None };
        facts(&BTreeMap::from([(VariantId::new("n", "v"), decision)]))
    }

    fn worth_writing(
        old: &BTreeMap<VariantId, Fact>,
        new: &BTreeMap<VariantId, Fact>,
        max_stale: u64,
    ) -> bool {
        !changed(old, new, evidence_every(Duration::from_secs(max_stale))).is_empty()
    }

    #[test]
    fn another_number_is_worth_a_write_and_other_words_are_not() {
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
    fn evidence_is_refreshed_well_before_the_shortest_max_stale_refuses_it() {
        let old = published(2, "", 0);
        assert!(!worth_writing(&old, &published(2, "", 8), 45));
        assert!(worth_writing(&old, &published(2, "", 9), 45));
    }
}
