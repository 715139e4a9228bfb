//! Which ScaledObjects KEDA's calls have made variants, and when each was called last: what one instance knows, and what all of them
//! share in a ConfigMap. Silence is counted in time that passed while calls could arrive, and by no clock: the times in the ConfigMap only say
//! whether somebody has called again. Pure; `call_register` reads and writes it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::cluster::objects::ObjectKey;
use crate::cluster::watch::is_object_name;

/// A ScaledObject that nobody called for this long is forgotten. KEDA calls at each `pollingInterval`, 30 s by default.
pub(super) const MAX_SILENCE: Duration = Duration::from_hours(1);
/// A stored call is at most this old while calls arrive: a write for each call would be thousands a minute.
const RENEWAL_INTERVAL: Duration = Duration::from_mins(15);
/// How often it is confirmed that calls can arrive.
pub(super) const CONFIRM_INTERVAL: Duration = Duration::from_mins(1);
/// A longer time between two confirmations does not count: this program, or its machine, was halted.
const MAX_GAP: Duration = Duration::from_mins(2);
/// Most ScaledObjects of a namespace, and of all: with the longest names, 2,000 lines are 720 KB, and etcd accepts 1 MiB.
pub(super) const MAX_OF_NAMESPACE: usize = 250;
pub(super) const MAX_OBJECTS: usize = 2000;
/// The longest name of a namespace, in bytes.
const MAX_NAMESPACE_BYTES: usize = 63;

/// What is stored of each ScaledObject: the time of a call.
pub(super) type Times = BTreeMap<ObjectKey, Timestamp>;

/// How much time has passed in which calls could arrive.
#[derive(Debug, Default)]
pub(super) struct ReachableTime {
    counted: Duration,
    /// When calls could arrive last, if they still can.
    confirmed: Option<Instant>,
}

impl ReachableTime {
    /// Calls can arrive: the API server, without which none is authorised and KEDA has none to make, has just answered.
    pub(super) fn confirm(&mut self, now: Instant) {
        let passed = self.confirmed.map(|before| now.duration_since(before));
        self.counted += passed.filter(|passed| *passed <= MAX_GAP).unwrap_or_default();
        self.confirmed = Some(now);
    }

    /// It has not: what has passed since the last confirmation does not count.
    pub(super) fn interrupt(&mut self) {
        self.confirmed = None;
    }

    /// The time that counts.
    pub(super) fn counted(&self) -> Duration {
        self.counted
    }

    /// The time of a call, which shows by itself that it could arrive.
    pub(super) fn of_call(&self, now: Instant) -> Duration {
        self.counted + self.confirmed.map_or(Duration::ZERO, |at| now.duration_since(at).min(MAX_GAP))
    }
}

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

/// What is known of a ScaledObject, in reachable time.
#[derive(Debug, Clone, Copy)]
struct Call {
    /// When it was called last, here or as another instance has stored it.
    called: Duration,
    /// When the stored time of it last became another one.
    stored: Duration,
}

/// The calls that this instance knows of. Times are reachable times, other than those that are stored.
#[derive(Debug, Default)]
pub(super) struct CallTimes {
    known: BTreeMap<ObjectKey, Call>,
    /// What the ConfigMap has; `None` before it was read.
    stored: Option<Times>,
    /// What was removed here, and is to be removed from the ConfigMap.
    removed: BTreeSet<ObjectKey>,
}

impl CallTimes {
    /// Notes a call; true for a ScaledObject that was not known.
    pub(super) fn note(&mut self, key: ObjectKey, at: Duration) -> Result<bool, Refusal> {
        if self.renew(&key, at) {
            return Ok(false);
        }
        if !is_valid(&key) {
            return Err(Refusal::Name);
        }
        self.room(&key)?;
        self.removed.remove(&key);
        self.known.insert(key, Call { called: at, stored: at });
        Ok(true)
    }

    /// Notes a call of a ScaledObject that is known; false for another one.
    pub(super) fn renew(&mut self, key: &ObjectKey, at: Duration) -> bool {
        self.known.get_mut(key).map(|call| call.called = call.called.max(at)).is_some()
    }

    fn room(&self, key: &ObjectKey) -> Result<(), Refusal> {
        if self.known.len() >= MAX_OBJECTS {
            return Err(Refusal::AllIsFull);
        }
        let of_namespace = self.known.range(ObjectKey::new(&key.namespace, "")..);
        let count = of_namespace.take_while(|(known, _)| known.namespace == key.namespace).count();
        if count < MAX_OF_NAMESPACE { Ok(()) } else { Err(Refusal::NamespaceIsFull) }
    }

    /// Takes in what the ConfigMap has. A time that was not there before is a call that another instance has heard, now or a moment ago; so is
    /// each at the start, since nobody could call while no instance ran. What another instance has removed, and nobody has called since, is
    /// removed here too; and what is stored takes precedence over what only this instance knows where both have no room. Otherwise two
    /// instances would write over each other for ever. `None` if there is no ConfigMap: somebody has deleted it, and nothing is removed.
    pub(super) fn merge(&mut self, stored: Option<Times>, at: Duration) {
        let before = self.stored.take();
        let is_there = stored.is_some();
        let stored = stored.unwrap_or_default();
        if let Some(before) = before.as_ref().filter(|_| is_there) {
            self.known.retain(|key, call| {
                let is_removed =
                    before.contains_key(key) && call.called <= call.stored && !stored.contains_key(key);
                !is_removed
            });
        }
        for (key, time) in &stored {
            let is_new = before.as_ref().is_none_or(|before| before.get(key) != Some(time));
            if !is_new || self.removed.contains(key) {
                continue;
            }
            if !self.renew(key, at) {
                self.make_room(key, &stored);
                if self.room(key).is_ok() {
                    self.known.insert(key.clone(), Call { called: at, stored: at });
                }
            }
            if let Some(call) = self.known.get_mut(key) {
                call.stored = at;
            }
        }
        self.removed.retain(|key| stored.contains_key(key));
        self.stored = Some(stored);
    }

    /// Forgets what is not stored, for one that is.
    fn make_room(&mut self, key: &ObjectKey, stored: &Times) {
        while let Err(full) = self.room(key) {
            let namespace = (full == Refusal::NamespaceIsFull).then_some(&key.namespace);
            let is_own = |own: &&ObjectKey| {
                !stored.contains_key(*own) && namespace.is_none_or(|namespace| own.namespace == *namespace)
            };
            let Some(own) = self.known.keys().find(is_own).cloned() else { break };
            self.known.remove(&own);
        }
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
    pub(super) fn expire(&mut self, at: Duration) {
        self.known.retain(|_, call| at.saturating_sub(call.called) <= MAX_SILENCE);
    }

    /// What the ConfigMap is to have; `None` where what it has will do, and before it was read. Of what was called again, the time becomes
    /// `now`.
    pub(super) fn to_store(&self, now: Timestamp) -> Option<Times> {
        let stored = self.stored.as_ref()?;
        let time = |(key, call): (&ObjectKey, &Call)| {
            let is_current = call.called.saturating_sub(call.stored) < RENEWAL_INTERVAL;
            (key.clone(), stored.get(key).copied().filter(|_| is_current).unwrap_or(now))
        };
        let times: Times = self.known.iter().map(time).collect();
        (times != *stored).then_some(times)
    }

    /// The ConfigMap has these times, which this instance has written: what was called again has been stored now.
    pub(super) fn note_stored(&mut self, written: Times, at: Duration) {
        let before = self.stored.replace(written);
        let (before, written) = (before.unwrap_or_default(), self.stored.as_ref());
        for (key, call) in &mut self.known {
            let time = written.and_then(|written| written.get(key));
            if time.is_some() && time != before.get(key) {
                call.stored = at.max(call.called);
            }
        }
        self.removed.retain(|key| written.is_some_and(|written| written.contains_key(key)));
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

    fn at(minute: u64) -> Duration {
        Duration::from_mins(minute)
    }

    fn time(minute: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_mins(minute)
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("llm", name)
    }

    fn times(entries: &[(&str, i64)]) -> Times {
        entries.iter().map(|(name, minute)| (key(name), time(*minute))).collect()
    }

    /// What is known at a minute.
    fn known(calls: &mut CallTimes, minute: u64) -> Vec<String> {
        calls.expire(at(minute));
        calls.known.keys().map(|key| key.name.to_string()).collect()
    }

    #[test]
    fn a_call_is_stored_once_and_renewed_each_quarter_of_an_hour() {
        let mut calls = CallTimes::default();
        assert_eq!(calls.note(key("a"), at(0)), Ok(true));
        assert_eq!(
            (calls.to_store(time(0)), calls.objects()),
            (None, None),
            "another instance may have stored some"
        );
        calls.merge(None, at(0));
        assert_eq!(calls.to_store(time(0)), Some(times(&[("a", 0)])));
        calls.note_stored(times(&[("a", 0)]), at(0));
        assert_eq!(calls.note(key("a"), at(14)), Ok(false));
        assert_eq!(calls.to_store(time(14)), None);
        calls.renew(&key("a"), at(15));
        assert_eq!(calls.to_store(time(15)), Some(times(&[("a", 15)])));
    }

    #[test]
    fn what_nobody_calls_for_an_hour_is_forgotten_and_taken_out_of_the_store() {
        let mut calls = CallTimes::default();
        calls.merge(Some(times(&[("a", 0), ("b", 0)])), at(0));
        calls.renew(&key("b"), at(50));
        assert_eq!(calls.to_store(time(50)), Some(times(&[("a", 0), ("b", 50)])));
        calls.note_stored(times(&[("a", 0), ("b", 50)]), at(50));
        assert_eq!(known(&mut calls, 61), ["b"], "a write for one is no call of the rest");
        assert_eq!(calls.to_store(time(61)), Some(times(&[("b", 50)])));
        calls.merge(Some(times(&[("a", 0), ("b", 50)])), at(62));
        assert_eq!(
            known(&mut calls, 62),
            ["b"],
            "what another instance has not forgotten yet does not return"
        );
    }

    #[test]
    fn an_hour_in_which_the_api_server_was_away_was_an_hour_of_silence() {
        let start = Instant::now();
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        let mut reachable = ReachableTime::default();
        let mut calls = CallTimes::default();
        calls.merge(Some(times(&[("a", 0)])), reachable.counted());
        reachable.confirm(after(0));
        reachable.confirm(after(60));
        assert_eq!(reachable.counted(), Duration::from_secs(60));
        assert_eq!(reachable.of_call(after(70)), Duration::from_secs(70));
        reachable.interrupt();
        reachable.confirm(after(36_000));
        assert_eq!(reachable.counted(), Duration::from_secs(60), "ten hours without the API server");
        reachable.confirm(after(72_000));
        assert_eq!(reachable.counted(), Duration::from_secs(60), "ten hours in which the machine slept");
        calls.expire(reachable.counted());
        assert_eq!(calls.known.len(), 1);
        for minute in 1..=60 {
            reachable.confirm(after(72_000 + 60 * minute));
        }
        calls.expire(reachable.counted());
        assert!(calls.known.is_empty());
    }

    #[test]
    fn a_clock_that_jumped_forgot_all_variants_or_kept_them_for_as_long() {
        let mut calls = CallTimes::default();
        calls.merge(Some(times(&[("a", 0), ("b", 0)])), at(0));
        // Another instance whose clock is a week ahead, and then a week behind, has heard a call.
        calls.merge(Some(times(&[("a", 10_080), ("b", 0)])), at(30));
        calls.merge(Some(times(&[("a", -10_080), ("b", 0)])), at(45));
        assert_eq!(known(&mut calls, 60), ["a", "b"]);
        assert_eq!(known(&mut calls, 61), ["a"]);
        assert!(known(&mut calls, 106).is_empty());
    }

    #[test]
    fn variants_were_forgotten_when_no_instance_ran_for_longer_than_an_hour() {
        let mut calls = CallTimes::default();
        calls.merge(Some(times(&[("a", -300)])), at(0));
        assert_eq!(known(&mut calls, 60), ["a"]);
        assert!(known(&mut calls, 61).is_empty());
    }

    #[test]
    fn another_instances_calls_count_here_too() {
        let mut calls = CallTimes::default();
        calls.merge(Some(times(&[("a", 0)])), at(0));
        calls.merge(Some(times(&[("a", 59), ("b", 59)])), at(59));
        assert_eq!(known(&mut calls, 100), ["a", "b"]);
        assert_eq!(calls.to_store(time(100)), None);
    }

    #[test]
    fn one_namespace_cannot_take_all_the_room() {
        let mut calls = CallTimes::default();
        for index in 0..MAX_OF_NAMESPACE {
            assert_eq!(calls.note(key(&format!("a{index}")), at(0)), Ok(true));
        }
        assert_eq!(calls.note(key("more"), at(0)), Err(Refusal::NamespaceIsFull));
        assert_eq!(calls.note(ObjectKey::new("ll", "a"), at(0)), Ok(true), "another one has room");
        let all = (0..MAX_OBJECTS * 2).map(|index| (ObjectKey::new(&format!("n{index}"), "a"), time(0)));
        calls.merge(Some(all.collect()), at(0));
        assert_eq!(calls.known.len(), MAX_OBJECTS);
        assert_eq!(calls.note(ObjectKey::new("other", "a"), at(0)), Err(Refusal::AllIsFull));
        assert_eq!(
            calls.note(key("a0"), at(1)),
            Err(Refusal::AllIsFull),
            "what all instances know stays known"
        );
    }

    /// The two write in turn until neither has anything to write.
    fn settle(a: &mut CallTimes, b: &mut CallTimes, minute: u64) -> usize {
        let mut stored = Times::new();
        for writes in 0..10 {
            let mut is_quiet = true;
            for calls in [&mut *a, &mut *b] {
                calls.merge(Some(stored.clone()), at(minute));
                if let Some(entries) = calls.to_store(time(0)) {
                    (stored, is_quiet) = (entries, false);
                    calls.note_stored(stored.clone(), at(minute));
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
    fn the_last_scaled_object_was_never_forgotten_by_two_instances() {
        let (mut a, mut b) = (CallTimes::default(), CallTimes::default());
        let mut stored = None;
        for minute in 0..=70 {
            if minute == 0 {
                a.note(key("x"), at(0)).unwrap();
            }
            if minute == 5 {
                a.renew(&key("x"), at(5));
            }
            for calls in [&mut b, &mut a] {
                calls.merge(stored.clone(), at(minute));
                calls.expire(at(minute));
                if let Some(times) = calls.to_store(time(minute.try_into().unwrap())) {
                    calls.note_stored(times.clone(), at(minute));
                    stored = Some(times);
                }
            }
        }
        assert_eq!((known(&mut a, 70), known(&mut b, 70)), (Vec::new(), Vec::new()));
        assert_eq!(stored, Some(Times::new()));
    }

    #[test]
    fn names_that_somebody_made_up_kept_their_places() {
        let (mut a, mut b) = (CallTimes::default(), CallTimes::default());
        a.note(key("made-up"), at(0)).unwrap();
        a.note(key("real"), at(0)).unwrap();
        settle(&mut a, &mut b, 0);
        a.remove([key("made-up")]);
        let stored = a.stored.clone().unwrap();
        a.merge(Some(stored), at(1));
        assert_eq!(known(&mut a, 1), ["real"], "what the ConfigMap still has does not return");
        let stored = a.to_store(time(1)).unwrap();
        b.merge(Some(stored), at(1));
        assert_eq!((known(&mut b, 1), b.to_store(time(1))), (vec!["real".to_owned()], None));
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
        let full: Times = (0..MAX_OBJECTS).map(|index| (longest(index), time(1))).collect();
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
