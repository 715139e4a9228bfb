//! Which ScaledObjects KEDA's calls have made variants, and when each was called last: what one instance knows, and what all of them
//! share in a ConfigMap. Pure; `call_register` reads and writes it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::cluster::objects::ObjectKey;
use crate::cluster::watch::is_object_name;

/// A ScaledObject that nobody called for this long is forgotten. KEDA calls at each `pollingInterval`, 30 s by default.
pub(super) const MAX_SILENCE: SignedDuration = SignedDuration::from_hours(1);
/// A stored time is at most this old while calls arrive: a write for each call would be thousands a minute.
const RENEWAL_INTERVAL: SignedDuration = SignedDuration::from_mins(15);
/// Most ScaledObjects of a namespace, and of all: with the longest names, 2,000 lines are 720 KB, and etcd accepts 1 MiB.
pub(super) const MAX_OF_NAMESPACE: usize = 250;
pub(super) const MAX_OBJECTS: usize = 2000;
/// The longest name of a namespace, in bytes.
const MAX_NAMESPACE_BYTES: usize = 63;

/// When each ScaledObject was called last.
pub(super) type Times = BTreeMap<ObjectKey, Timestamp>;

/// Why a ScaledObject is not noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error(
        "a namespace may have {MAX_OF_NAMESPACE} ScaledObjects that are variants by modelID in their triggers: annotate this one instead"
    )]
    NamespaceIsFull,
    #[error(
        "{MAX_OBJECTS} ScaledObjects are variants by modelID in their triggers already, and no more may be: annotate this one instead"
    )]
    AllIsFull,
    #[error("its name or its namespace is none that an object can have")]
    Name,
}

/// A line of the ConfigMap.
#[derive(Serialize, Deserialize)]
struct Line {
    namespace: String,
    name: String,
    called: Timestamp,
}

/// The calls that this instance knows of.
#[derive(Debug, Default)]
pub(super) struct CallTimes {
    known: Times,
    /// What the ConfigMap has; `None` before it was read.
    stored: Option<Times>,
    /// What was removed here, and is to be removed from the ConfigMap.
    removed: BTreeSet<ObjectKey>,
}

impl CallTimes {
    /// Notes a call; true for a ScaledObject that was not known.
    pub(super) fn note(&mut self, key: ObjectKey, now: Timestamp) -> Result<bool, Refusal> {
        if self.renew(&key, now) {
            return Ok(false);
        }
        if !is_valid(&key) {
            return Err(Refusal::Name);
        }
        self.room(&key)?;
        self.removed.remove(&key);
        self.known.insert(key, now);
        Ok(true)
    }

    /// Notes a call of a ScaledObject that is known; false for another one.
    pub(super) fn renew(&mut self, key: &ObjectKey, now: Timestamp) -> bool {
        self.known.get_mut(key).map(|called| *called = now.max(*called)).is_some()
    }

    fn room(&self, key: &ObjectKey) -> Result<(), Refusal> {
        if self.known.len() >= MAX_OBJECTS {
            return Err(Refusal::AllIsFull);
        }
        let of_namespace = self.known.range(ObjectKey::new(&key.namespace, "")..);
        let count = of_namespace.take_while(|(known, _)| known.namespace == key.namespace).count();
        if count < MAX_OF_NAMESPACE { Ok(()) } else { Err(Refusal::NamespaceIsFull) }
    }

    /// Takes in what the ConfigMap has. What is stored when an instance starts counts as called now: while no instance ran, nobody could
    /// call. What another instance has removed, and nobody has called since, is removed here too; and what is stored takes precedence over what
    /// only this instance knows where both have no room. Otherwise two instances would write over each other for ever.
    pub(super) fn merge(&mut self, stored: Times, now: Timestamp) {
        // An empty one is new: somebody has deleted the last.
        if let Some(before) = self.stored.as_ref().filter(|_| !stored.is_empty()) {
            self.known.retain(|key, called| {
                let is_removed =
                    before.get(key).is_some_and(|before| *called <= *before) && !stored.contains_key(key);
                !is_removed
            });
        }
        let is_first = self.stored.is_none();
        for (key, called) in &stored {
            let called = if is_first { now } else { now.min(*called) };
            let is_forgotten = now.duration_since(called) > MAX_SILENCE || self.removed.contains(key);
            if !is_forgotten && !self.renew(key, called) {
                while let Err(full) = self.room(key) {
                    let namespace = (full == Refusal::NamespaceIsFull).then_some(&key.namespace);
                    let is_own = |own: &&ObjectKey| {
                        !stored.contains_key(*own)
                            && namespace.is_none_or(|namespace| own.namespace == *namespace)
                    };
                    let Some(own) = self.known.keys().find(is_own).cloned() else { break };
                    self.known.remove(&own);
                }
                if self.room(key).is_ok() {
                    self.known.insert(key.clone(), called);
                }
            }
        }
        self.removed.retain(|key| stored.contains_key(key));
        self.stored = Some(stored);
    }

    /// Forgets these, which make no variant.
    pub(super) fn remove(&mut self, keys: impl IntoIterator<Item = ObjectKey>) {
        for key in keys {
            if self.known.remove(&key).is_some() {
                self.removed.insert(key);
            }
        }
    }

    /// Forgets what was not called for long.
    pub(super) fn expire(&mut self, now: Timestamp) {
        self.known.retain(|_, called| now.duration_since(*called) <= MAX_SILENCE);
    }

    /// What the ConfigMap is to have; `None` where what it has will do, and before it was read.
    pub(super) fn to_store(&self) -> Option<&Times> {
        let stored = self.stored.as_ref()?;
        let is_current = |(key, called): (&ObjectKey, &Timestamp)| {
            stored.get(key).is_some_and(|stored| called.duration_since(*stored) < RENEWAL_INTERVAL)
        };
        let is_same = stored.len() == self.known.len() && self.known.iter().all(is_current);
        (!is_same).then_some(&self.known)
    }

    /// The ScaledObjects; `None` before the ConfigMap was read.
    pub(super) fn objects(&self) -> Option<BTreeSet<ObjectKey>> {
        self.stored.as_ref().map(|_| self.known.keys().cloned().collect())
    }
}

/// The text of the ConfigMap.
pub(super) fn encode(times: &Times) -> String {
    let lines = times.iter().filter_map(|(key, called)| {
        let line = Line { namespace: key.namespace.to_string(), name: key.name.to_string(), called: *called };
        serde_json::to_string(&line).ok()
    });
    lines.map(|line| line + "\n").collect()
}

/// The entries of a text. What is damaged is left out: the next call notes it again.
pub(super) fn decode(text: &str) -> Times {
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
    let times = lines.map(|line| (ObjectKey::new(&line.namespace, &line.name), line.called));
    times.filter(|(key, _)| is_valid(key)).take(MAX_OBJECTS).collect()
}

fn is_valid(key: &ObjectKey) -> bool {
    let is_namespace = key.namespace.len() <= MAX_NAMESPACE_BYTES && !key.namespace.contains('.');
    is_namespace && is_object_name(&key.namespace) && is_object_name(&key.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minute: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minute)
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("llm", name)
    }

    fn times(entries: &[(&str, i64)]) -> Times {
        entries.iter().map(|(name, minute)| (key(name), at(*minute))).collect()
    }

    /// What is known at a minute.
    fn known(calls: &mut CallTimes, minute: i64) -> Vec<String> {
        calls.expire(at(minute));
        calls.known.keys().map(|key| key.name.to_string()).collect()
    }

    #[test]
    fn a_call_is_stored_once_and_renewed_each_quarter_of_an_hour() {
        let mut calls = CallTimes::default();
        assert_eq!(calls.note(key("a"), at(0)), Ok(true));
        assert_eq!(
            (calls.to_store(), calls.objects()),
            (None, None),
            "another instance may have stored some"
        );
        calls.merge(Times::new(), at(0));
        assert_eq!(calls.to_store(), Some(&times(&[("a", 0)])));
        calls.merge(times(&[("a", 0)]), at(0));
        assert_eq!(calls.note(key("a"), at(14)), Ok(false));
        assert_eq!(calls.to_store(), None);
        calls.renew(&key("a"), at(15));
        assert_eq!(calls.to_store(), Some(&times(&[("a", 15)])));
    }

    #[test]
    fn what_nobody_calls_for_an_hour_is_forgotten_and_taken_out_of_the_store() {
        let mut calls = CallTimes::default();
        calls.merge(times(&[("a", 0), ("b", 0)]), at(0));
        calls.renew(&key("b"), at(50));
        assert_eq!(known(&mut calls, 61), ["b"]);
        assert_eq!(calls.to_store(), Some(&times(&[("b", 50)])));
        calls.merge(times(&[("a", 0), ("b", 0)]), at(62));
        assert_eq!(
            known(&mut calls, 62),
            ["b"],
            "what another instance has not forgotten yet does not return"
        );
    }

    #[test]
    fn variants_were_forgotten_when_no_instance_ran_for_longer_than_an_hour() {
        let mut calls = CallTimes::default();
        calls.merge(times(&[("a", 0)]), at(300));
        assert_eq!(known(&mut calls, 359), ["a"]);
        assert!(known(&mut calls, 361).is_empty());
    }

    #[test]
    fn a_clock_that_is_ahead_keeps_nothing_for_longer() {
        let mut calls = CallTimes::default();
        calls.merge(Times::new(), at(0));
        calls.merge(times(&[("a", 10_000)]), at(0));
        assert!(known(&mut calls, 61).is_empty());
    }

    #[test]
    fn another_instances_calls_count_here_too() {
        let mut calls = CallTimes::default();
        calls.merge(times(&[("a", 0)]), at(0));
        calls.merge(times(&[("a", 59), ("b", 59)]), at(59));
        assert_eq!(known(&mut calls, 100), ["a", "b"]);
        assert_eq!(calls.to_store(), None);
    }

    #[test]
    fn one_namespace_cannot_take_all_the_room() {
        let mut calls = CallTimes::default();
        for index in 0..MAX_OF_NAMESPACE {
            assert_eq!(calls.note(key(&format!("a{index}")), at(0)), Ok(true));
        }
        assert_eq!(calls.note(key("more"), at(0)), Err(Refusal::NamespaceIsFull));
        assert_eq!(calls.note(ObjectKey::new("ll", "a"), at(0)), Ok(true), "another one has room");
        let all = (0..MAX_OBJECTS * 2).map(|index| (ObjectKey::new(&format!("n{index}"), "a"), at(0)));
        calls.merge(all.collect(), at(0));
        assert_eq!(calls.known.len(), MAX_OBJECTS);
        assert_eq!(calls.note(ObjectKey::new("other", "a"), at(0)), Err(Refusal::AllIsFull));
        assert_eq!(
            calls.note(key("a0"), at(1)),
            Err(Refusal::AllIsFull),
            "what all instances know stays known"
        );
    }

    /// The two write in turn until neither has anything to write.
    fn settle(a: &mut CallTimes, b: &mut CallTimes, minute: i64) -> usize {
        let mut stored = Times::new();
        for writes in 0..10 {
            let mut is_quiet = true;
            for calls in [&mut *a, &mut *b] {
                calls.merge(stored.clone(), at(minute));
                if let Some(entries) = calls.to_store() {
                    (stored, is_quiet) = (entries.clone(), false);
                    calls.merge(stored.clone(), at(minute));
                }
            }
            if is_quiet {
                return writes;
            }
        }
        panic!("they write over each other for ever");
    }

    #[test]
    fn two_instances_of_a_full_namespace_wrote_over_each_other() {
        let (mut a, mut b) = (CallTimes::default(), CallTimes::default());
        for index in 0..MAX_OF_NAMESPACE {
            a.note(key(&format!("a{index}")), at(0)).unwrap();
            b.note(key(&format!("b{index}")), at(0)).unwrap();
        }
        assert!(settle(&mut a, &mut b, 0) <= 2);
        assert_eq!(a.objects(), b.objects());
    }

    #[test]
    fn names_that_somebody_made_up_kept_their_places() {
        let (mut a, mut b) = (CallTimes::default(), CallTimes::default());
        a.note(key("made-up"), at(0)).unwrap();
        a.note(key("real"), at(0)).unwrap();
        settle(&mut a, &mut b, 0);
        a.remove([key("made-up")]);
        let stored = a.stored.clone().unwrap();
        a.merge(stored, at(1));
        assert_eq!(known(&mut a, 1), ["real"], "what the ConfigMap still has does not return");
        let stored = a.to_store().unwrap().clone();
        b.merge(stored, at(1));
        assert_eq!((known(&mut b, 1), b.to_store()), (vec!["real".to_owned()], None));
    }

    #[test]
    fn what_is_stored_is_read_back_and_damaged_lines_are_left_out() {
        let text = encode(&times(&[("a", 3), ("b", 4)]));
        assert_eq!(decode(&text), times(&[("a", 3), ("b", 4)]));
        let line = |namespace: &str, name: &str| {
            format!(r#"{{"namespace":"{namespace}","name":"{name}","called":"1970-01-01T00:03:00Z"}}"#)
        };
        let lines = [line("llm", "a"), line("../x", "a"), line("", "a"), line("llm", "a/b"), "{".into()];
        assert_eq!(decode(&lines.join("\n")), times(&[("a", 3)]));
        let longest = |index: usize| ObjectKey::new(&"n".repeat(63), &format!("{index:0>253}"));
        let full: Times = (0..MAX_OBJECTS).map(|index| (longest(index), at(1))).collect();
        assert!(encode(&full).len() < 1000 * 1024, "{}", encode(&full).len());
        assert_eq!(decode(&encode(&full)).len(), MAX_OBJECTS);
    }

    #[test]
    fn names_that_no_object_has_are_refused() {
        let mut calls = CallTimes::default();
        for (namespace, name) in [("llm", ""), ("", "a"), ("llm", "A"), ("llm", "a b"), ("l.m", "a")] {
            assert_eq!(
                calls.note(ObjectKey::new(namespace, name), at(0)),
                Err(Refusal::Name),
                "{namespace}/{name}"
            );
        }
    }
}
