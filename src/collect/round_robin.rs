//! The order of requests when there may not be time for all: targets that did not answer last time come last, and take turns
//! there. Targets that hang thus get only the time that is left over.

use std::collections::BTreeMap;

/// Remembers the targets that did not answer.
#[derive(Debug)]
pub(super) struct RoundRobin<K> {
    round: u64,
    /// The last round in which each target did not answer. Limited to the targets in scope.
    silent: BTreeMap<K, u64>,
}

impl<K> Default for RoundRobin<K> {
    fn default() -> Self {
        Self { round: 0, silent: BTreeMap::new() }
    }
}

impl<K: Ord> RoundRobin<K> {
    /// Starts a round, and forgets targets that are no longer in scope.
    pub(super) fn start_round(&mut self, is_in_scope: impl Fn(&K) -> bool) {
        self.round += 1;
        self.silent.retain(|target, _| is_in_scope(target));
    }

    /// The sort key of a target: lower ones come first.
    pub(super) fn place(&self, target: &K) -> u64 {
        self.silent.get(target).copied().unwrap_or_default()
    }

    /// Records whether a target answered. Not to be called for targets that were not requested for lack of time: they keep their
    /// place.
    pub(super) fn record(&mut self, target: K, has_answered: bool) {
        if has_answered {
            self.silent.remove(&target);
        } else {
            self.silent.insert(target, self.round);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_targets_come_last_and_take_turns() {
        let mut round_robin = RoundRobin::default();
        round_robin.start_round(|_| true);
        round_robin.record("a", false);
        round_robin.record("b", false);
        round_robin.start_round(|_| true);
        round_robin.record("a", false);
        let mut order = ["a", "b", "c"];
        order.sort_by_key(|target| round_robin.place(target));
        assert_eq!(order, ["c", "b", "a"]);
        round_robin.record("a", true);
        assert_eq!(round_robin.place(&"a"), 0);
        round_robin.start_round(|target| *target != "b");
        assert_eq!(round_robin.place(&"b"), 0);
    }
}
