//! The order in which objects are read. Namespaces take turns, and no namespace and no kind has more than its share of the reads
//! at a time: a tenant's many objects, or objects that hang, delay nobody else's. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use smol_str::SmolStr;
use tokio::time::Instant;
use wva_core::model::TargetRef;

use super::known_targets::TargetKey;
use super::served_kinds::GroupKind;

/// Time between two reads of an object: one for each evaluation, three times as often as the HPA controller reads it.
const READ_INTERVAL: Duration = Duration::from_secs(5);
/// The longest wait after failed reads, which double the interval: several are tried before a number is too old.
const MAX_BACKOFF: Duration = Duration::from_secs(20);
/// Most reads at a time, of one kind, and of one namespace. Four that take 60 ms are 66 a second; a kind or a namespace whose
/// reads all hang leaves half to the others.
const MAX_READS: usize = 16;
const MAX_READS_OF_KIND: usize = 8;
const MAX_READS_OF_NAMESPACE: usize = 4;

/// What a read came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Answered,
    Failed,
}

/// The objects that are read, and when.
#[derive(Debug)]
pub(super) struct ReadQueue {
    /// Time between two reads of an object.
    interval: Duration,
    namespaces: BTreeMap<SmolStr, NamespaceQueue>,
    /// The namespace whose turn was last.
    last: SmolStr,
    /// Running reads by kind, and of all.
    of_kind: BTreeMap<GroupKind, usize>,
    running: usize,
}

/// The objects of one namespace.
#[derive(Debug, Default)]
struct NamespaceQueue {
    waiting: BTreeSet<(Instant, TargetRef)>,
    /// Failed reads in a row, of every object.
    failures: BTreeMap<TargetRef, u32>,
    running: usize,
}

impl Default for ReadQueue {
    fn default() -> Self {
        let (interval, namespaces) = (READ_INTERVAL, BTreeMap::new());
        Self { interval, namespaces, last: SmolStr::default(), of_kind: BTreeMap::new(), running: 0 }
    }
}

impl ReadQueue {
    /// Reads each object once in this time from now on.
    pub(super) fn set_interval(&mut self, interval: Duration) {
        self.interval = interval;
    }

    /// Reads `wanted` from now on: new ones at once, and no others.
    pub(super) fn follow(&mut self, wanted: &BTreeSet<TargetKey>, now: Instant) {
        let mut targets: BTreeMap<&SmolStr, BTreeSet<&TargetRef>> = BTreeMap::new();
        for TargetKey { namespace, target } in wanted {
            targets.entry(namespace).or_default().insert(target);
        }
        let none = BTreeSet::new();
        self.namespaces.retain(|namespace, queue| {
            let wanted = targets.get(namespace).unwrap_or(&none);
            queue.failures.retain(|target, _| wanted.contains(target));
            queue.waiting.retain(|(_, target)| wanted.contains(target));
            !queue.failures.is_empty() || queue.running > 0
        });
        for (namespace, targets) in targets {
            let queue = self.namespaces.entry(namespace.clone()).or_default();
            for target in targets {
                if !queue.failures.contains_key(target) {
                    queue.failures.insert(target.clone(), 0);
                    queue.waiting.insert((now, target.clone()));
                }
            }
        }
    }

    /// The next object to read, or when to ask again; `Err(None)`: when something else changes. The object has to be given back
    /// by [`Self::finish`].
    pub(super) fn next(&mut self, now: Instant) -> Result<TargetKey, Option<Instant>> {
        if self.running >= MAX_READS {
            return Err(None);
        }
        let (mut first_due, mut found) = (None::<Instant>, None);
        let after = self.namespaces.range((Bound::Excluded(self.last.clone()), Bound::Unbounded));
        let before = self.namespaces.range(..=self.last.clone());
        for (namespace, queue) in after.chain(before) {
            let Some((due, target)) = queue.next(&self.of_kind) else { continue };
            if *due <= now {
                found = Some((namespace.clone(), (*due, target.clone())));
                break;
            }
            first_due = Some(first_due.map_or(*due, |first| first.min(*due)));
        }
        let Some((namespace, entry)) = found else { return Err(first_due) };
        if let Some(queue) = self.namespaces.get_mut(&namespace) {
            queue.waiting.remove(&entry);
            queue.running += 1;
        }
        let (_, target) = entry;
        self.running += 1;
        *self.of_kind.entry(kind(&target)).or_default() += 1;
        self.last = namespace.clone();
        Ok(TargetKey { namespace, target })
    }

    /// The read of `key` has ended.
    pub(super) fn finish(&mut self, key: TargetKey, outcome: Outcome, now: Instant) {
        let TargetKey { namespace, target } = key;
        self.running = self.running.saturating_sub(1);
        if let Some(count) = self.of_kind.get_mut(&kind(&target)) {
            *count = count.saturating_sub(1);
        }
        self.of_kind.retain(|_, count| *count > 0);
        let Some(queue) = self.namespaces.get_mut(&namespace) else { return };
        queue.running = queue.running.saturating_sub(1);
        let Some(failures) = queue.failures.get_mut(&target) else { return };
        *failures = if outcome == Outcome::Failed { failures.saturating_add(1) } else { 0 };
        let wait = READ_INTERVAL.saturating_mul(1 << (*failures).min(8)).min(MAX_BACKOFF);
        queue.waiting.insert((now + if *failures > 0 { wait } else { self.interval }, target));
    }

    /// Reads the objects of these kinds at once: what the API server serves of them has changed.
    pub(super) fn hurry(&mut self, kinds: &BTreeSet<GroupKind>, now: Instant) {
        for queue in self.namespaces.values_mut() {
            let waiting = std::mem::take(&mut queue.waiting);
            let sooner = |(due, target): (Instant, TargetRef)| {
                (if kinds.contains(&kind(&target)) { due.min(now) } else { due }, target)
            };
            queue.waiting = waiting.into_iter().map(sooner).collect();
        }
    }
}

impl NamespaceQueue {
    /// The first object that may be read when it is due.
    fn next(&self, of_kind: &BTreeMap<GroupKind, usize>) -> Option<&(Instant, TargetRef)> {
        if self.running >= MAX_READS_OF_NAMESPACE {
            return None;
        }
        let is_free =
            |target: &TargetRef| of_kind.get(&kind(target)).is_none_or(|count| *count < MAX_READS_OF_KIND);
        self.waiting.iter().find(|(_, target)| is_free(target))
    }
}

fn kind(target: &TargetRef) -> GroupKind {
    (target.group.clone(), target.kind.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(namespace: &str, kind: &str, index: usize) -> TargetKey {
        let name = format!("{kind}-{index}").into();
        let target = TargetRef { group: "example.com".into(), kind: kind.into(), name };
        TargetKey { namespace: namespace.into(), target }
    }

    fn queue(keys: impl IntoIterator<Item = TargetKey>, now: Instant) -> ReadQueue {
        let mut queue = ReadQueue::default();
        queue.follow(&keys.into_iter().collect(), now);
        queue
    }

    /// The namespaces of the reads that start now.
    fn started(queue: &mut ReadQueue, now: Instant) -> Vec<TargetKey> {
        std::iter::from_fn(|| queue.next(now).ok()).collect()
    }

    #[test]
    fn one_namespace_with_many_targets_does_not_delay_another() {
        let now = Instant::now();
        let crowd = (0..10_000).map(|index| key("crowded", "Rollout", index));
        let mut queue = queue(crowd.chain([key("llm", "Rollout", 0), key("other", "Rollout", 0)]), now);
        let first: Vec<_> = (0..3).map(|_| queue.next(now).unwrap().namespace).collect();
        assert_eq!(first, ["crowded", "llm", "other"], "namespaces take turns");
    }

    #[test]
    fn targets_that_hang_leave_reads_to_those_of_other_namespaces_and_kinds() {
        let now = Instant::now();
        let crowd = (0..100).map(|index| key("crowded", "Rollout", index));
        let mut queue = queue(crowd, now);
        assert_eq!(started(&mut queue, now).len(), MAX_READS_OF_NAMESPACE);
        let tenants = (0..100).map(|index| key(&format!("tenant-{index}"), "Rollout", 0));
        queue.follow(&tenants.chain([key("llm", "CloneSet", 0)]).collect(), now);
        let kinds: Vec<_> = started(&mut queue, now).into_iter().map(|key| key.target.kind).collect();
        assert_eq!(
            kinds.iter().filter(|kind| *kind == "Rollout").count(),
            MAX_READS_OF_KIND - MAX_READS_OF_NAMESPACE
        );
        assert_eq!(kinds.iter().filter(|kind| *kind == "CloneSet").count(), 1);
        assert_eq!(queue.next(now), Err(None), "until a read has ended, or something is wanted");
    }

    #[test]
    fn a_target_that_cannot_be_read_is_read_less_often_and_one_that_can_every_five_seconds() {
        let begin = Instant::now();
        let mut queue = queue([key("llm", "Rollout", 0)], begin);
        let mut now = begin;
        let mut waits = Vec::new();
        for outcome in
            [Outcome::Answered, Outcome::Failed, Outcome::Failed, Outcome::Failed, Outcome::Answered]
        {
            let key = queue.next(now).unwrap();
            queue.finish(key, outcome, now);
            let due = queue.next(now).unwrap_err().unwrap();
            waits.push(due.duration_since(now).as_secs());
            now = due;
        }
        assert_eq!(waits, [5, 10, 20, 20, 5]);
    }

    #[test]
    fn what_is_no_longer_wanted_is_not_read_and_a_kind_that_has_arrived_is_read_at_once() {
        let now = Instant::now();
        let mut queue = queue([key("llm", "Rollout", 0), key("llm", "Rollout", 1)], now);
        let running = queue.next(now).unwrap();
        queue.follow(&BTreeSet::from([key("llm", "Rollout", 1)]), now);
        queue.finish(running, Outcome::Answered, now);
        let left = queue.next(now).unwrap();
        assert_eq!(left, key("llm", "Rollout", 1));
        queue.finish(left, Outcome::Failed, now);
        assert_eq!(queue.next(now), Err(Some(now + Duration::from_secs(10))));
        queue.hurry(&BTreeSet::from([("example.com".into(), "Rollout".into())]), now);
        assert_eq!(queue.next(now), Ok(key("llm", "Rollout", 1)));
        assert_eq!((queue.running, queue.namespaces.len()), (1, 1));
    }
}
