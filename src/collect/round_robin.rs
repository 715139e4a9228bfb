//! Who is asked first when there may not be time for all: whoever answered last time, or was never asked. So what hangs
//! takes only the time that is left over, and those that hang take turns at it. Pure.

use std::collections::BTreeMap;

/// Remembers who was asked and said nothing.
#[derive(Debug)]
pub(super) struct RoundRobin<K> {
    round: u64,
    /// The round in which each was asked last, in vain. Bounded by what is in scope.
    silent: BTreeMap<K, u64>,
}

impl<K> Default for RoundRobin<K> {
    fn default() -> Self {
        Self { round: 0, silent: BTreeMap::new() }
    }
}

impl<K: Ord> RoundRobin<K> {
    /// Starts a round, and forgets who left.
    pub(super) fn start(&mut self, in_scope: impl Fn(&K) -> bool) {
        self.round += 1;
        self.silent.retain(|who, _| in_scope(who));
    }

    /// The smaller the earlier.
    pub(super) fn place(&self, who: &K) -> u64 {
        self.silent.get(who).copied().unwrap_or_default()
    }

    /// What came of asking. Not to be called for those whom there was no time to ask: they keep their place.
    pub(super) fn note(&mut self, who: K, answered: bool) {
        if answered {
            self.silent.remove(&who);
        } else {
            self.silent.insert(who, self.round);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_hangs_goes_last_and_those_who_hang_take_turns() {
        let mut turns = RoundRobin::default();
        turns.start(|_| true);
        turns.note("a", false);
        turns.note("b", false);
        turns.start(|_| true);
        turns.note("a", false);
        let mut order = ["a", "b", "c"];
        order.sort_by_key(|who| turns.place(who));
        assert_eq!(order, ["c", "b", "a"]);
        turns.note("a", true);
        assert_eq!(turns.place(&"a"), 0);
        turns.start(|who| *who != "b");
        assert_eq!(turns.place(&"b"), 0);
    }
}
