//! When the CA and the leaf that all instances share take their next step. Pure.
//!
//! The API server verifies us by the APIService's `caBundle`, in its probes too, and instances verify each other. So a CA
//! is changed in an order in which whoever looks late still verifies what is shown:
//!
//! | place | trusted | leaf of | next step, when |
//! |---|---|---|---|
//! | steady | CA | CA | announce: a new CA is wanted |
//! | announcing | old, new | old | switch: for the settling time we have seen the APIServices carry both |
//! | retiring | new, old | new | retire: for the settling time we have known that the leaf is of the new one |
//!
//! Times are those that an instance has seen pass itself: no clock is compared with another one's, and after a crash an
//! instance waits anew. What a place is follows from the Secret alone, so any instance takes the next step.

use std::time::Duration;

/// How far a change of the CA is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// One CA.
    Steady,
    /// A new CA is trusted, and signs nothing yet.
    Announcing,
    /// The new CA signs; the old one is still trusted.
    Retiring,
}

/// A change of what the Secret holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// A new CA and a leaf of it, at once: the old CA has ended, so that nothing is left to break.
    StartOver,
    /// A new leaf of the same CA.
    Renew,
    /// A new CA beside the one that signs.
    Announce,
    /// A leaf of the new CA.
    Switch,
    /// No CA but the one that signs.
    Retire,
}

/// What an instance knows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    /// The CA has ended.
    pub(crate) over: bool,
    /// A person asked for a new CA, or the CA ends in time to come.
    pub(crate) wanted: bool,
    /// The leaf is accepted, and will be for long enough; or it was renewed so lately that it stays in any case.
    pub(crate) leaf_good: bool,
    /// How long this instance has seen the same CAs in the Secret.
    pub(crate) seen_for: Duration,
    /// How long it has seen every APIService that points to us carry all of them; `None`: not at the moment.
    pub(crate) carried_for: Option<Duration>,
}

/// The step that is due.
pub(crate) fn due(place: Place, facts: &Facts, settle: Duration) -> Option<Step> {
    let settled = facts.seen_for >= settle;
    match place {
        // Whoever trusts the new one is helped by it; whoever does not is not served either way.
        Place::Announcing if facts.over => Some(Step::Switch),
        _ if facts.over => Some(Step::StartOver),
        _ if !facts.leaf_good => Some(Step::Renew),
        Place::Announcing if settled && facts.carried_for >= Some(settle) => Some(Step::Switch),
        Place::Retiring if settled => Some(Step::Retire),
        Place::Steady if facts.wanted => Some(Step::Announce),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;

    const SETTLE: u64 = 20;
    /// How late whoever looks may be. Three times that is less than the settling time, because lateness adds up: a late
    /// instance writes an older bundle, we are late to see it, and an API server is late to see it put right.
    const LAG: u64 = 6;

    /// What the Secret holds, with numbers for CAs; the leaf is of `signer`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    struct Kept {
        signer: u32,
        next: Option<u32>,
        old: BTreeSet<u32>,
    }

    impl Kept {
        fn place(&self) -> Place {
            match (self.next, self.old.is_empty()) {
                (Some(_), _) => Place::Announcing,
                (None, false) => Place::Retiring,
                (None, true) => Place::Steady,
            }
        }

        /// In the order of a bundle: that of the leaf first.
        fn trust(&self) -> Vec<u32> {
            [self.signer].into_iter().chain(self.next).chain(self.old.iter().copied()).collect()
        }

        fn after(&self, step: Step, fresh: u32) -> Self {
            let mut after = self.clone();
            match step {
                Step::Announce => after.next = Some(fresh),
                Step::Switch => {
                    after.old.insert(self.signer);
                    after.signer = self.next.expect("something to switch to");
                    after.next = None;
                }
                Step::Retire => after.old.clear(),
                Step::Renew | Step::StartOver => {}
            }
            after
        }
    }

    /// Something that others look at: what it was, and since when it is so.
    #[derive(Debug)]
    struct Shared<T>(Vec<(u64, T)>);

    impl<T: Clone> Shared<T> {
        fn now(&self) -> T {
            self.0.last().unwrap().1.clone()
        }

        /// The oldest version that somebody may still hold at `time`.
        fn oldest(&self, time: u64) -> usize {
            let too_old = |next: &(u64, T)| next.0 + LAG <= time;
            self.0.iter().skip(1).take_while(|next| too_old(next)).count()
        }
    }

    #[derive(Debug)]
    struct Instance {
        secret: usize,
        service: usize,
        trust: Vec<u32>,
        since: u64,
        carried: Option<u64>,
    }

    /// A Secret, an APIService, API servers that look at it, instances that look at both; each late in its own way.
    struct World {
        time: u64,
        secret: Shared<Kept>,
        service: Shared<Vec<u32>>,
        api_servers: Vec<usize>,
        instances: Vec<Instance>,
        made: u32,
        wanted: bool,
    }

    impl World {
        fn new() -> Self {
            let kept = Kept { signer: 0, next: None, old: BTreeSet::new() };
            let (secret, service) = (Shared(vec![(0, kept.clone())]), Shared(vec![(0, kept.trust())]));
            let mut world = Self {
                time: 0,
                secret,
                service,
                api_servers: vec![0; 2],
                instances: Vec::new(),
                made: 0,
                wanted: false,
            };
            world.instances = (0..3).map(|_| world.started()).collect();
            world
        }

        /// A start, or a start anew after a crash: it reads what is there now and has seen nothing.
        fn started(&self) -> Instance {
            let (secret, service) = (self.secret.0.len() - 1, self.service.0.len() - 1);
            Instance { secret, service, trust: self.secret.now().trust(), since: self.time, carried: None }
        }

        fn look(&mut self, at: usize, secret: usize, service: usize) {
            let instance = &mut self.instances[at];
            (instance.secret, instance.service) = (secret, service);
            let trust = self.secret.0[secret].1.trust();
            if trust != instance.trust {
                (instance.trust, instance.since, instance.carried) = (trust, self.time, None);
            }
            let carried = self.service.0[service].1 == instance.trust;
            instance.carried = carried.then(|| instance.carried.unwrap_or(self.time));
        }

        /// Time passes; whoever is too late looks.
        fn pass(&mut self, seconds: u64) {
            for _ in 0..seconds {
                self.time += 1;
                let (secret, service) = (self.secret.oldest(self.time), self.service.oldest(self.time));
                for seen in &mut self.api_servers {
                    *seen = service.max(*seen);
                }
                for at in 0..self.instances.len() {
                    let seen = &self.instances[at];
                    self.look(at, secret.max(seen.secret), service.max(seen.service));
                }
            }
        }

        /// The version guards the write: whoever saw an older Secret changes nothing.
        fn step(&mut self, at: usize) {
            let instance = &self.instances[at];
            if instance.secret + 1 != self.secret.0.len() {
                return;
            }
            let seconds = |since| Duration::from_secs(self.time - since);
            let facts = Facts {
                over: false,
                wanted: self.wanted,
                leaf_good: true,
                seen_for: seconds(instance.since),
                carried_for: instance.carried.map(seconds),
            };
            let kept = self.secret.now();
            let Some(step) = due(kept.place(), &facts, Duration::from_secs(SETTLE)) else { return };
            if step == Step::Announce {
                self.made += 1;
                self.wanted = false;
            }
            self.secret.0.push((self.time, kept.after(step, self.made)));
            let service = self.instances[at].service;
            self.look(at, self.secret.0.len() - 1, service);
        }

        fn act(&mut self, what: &Act) {
            let instance = |index: &Index| index.index(self.instances.len());
            match what {
                Act::Pass(seconds) => self.pass(*seconds),
                Act::Look(index) => {
                    let at = instance(index);
                    self.look(at, self.secret.0.len() - 1, self.service.0.len() - 1);
                }
                Act::LookServer(index) => {
                    let at = index.index(self.api_servers.len());
                    self.api_servers[at] = self.service.0.len() - 1;
                }
                Act::Write(index) => {
                    let trust = self.instances[instance(index)].trust.clone();
                    if self.service.now() != trust {
                        self.service.0.push((self.time, trust));
                    }
                }
                Act::Step(index) => self.step(instance(index)),
                Act::Crash(index) => {
                    let at = instance(index);
                    self.instances[at] = self.started();
                }
                Act::Ask => self.wanted = true,
            }
        }

        /// Every leaf that is shown is accepted by every API server and by every other instance.
        fn holds(&self) -> Result<(), TestCaseError> {
            for shown in &self.instances {
                let leaf = self.secret.0[shown.secret].1.signer;
                for seen in &self.api_servers {
                    let bundle = &self.service.0[*seen].1;
                    prop_assert!(
                        bundle.contains(&leaf),
                        "leaf of {leaf}, bundle {bundle:?} at {}",
                        self.time
                    );
                }
                for other in &self.instances {
                    prop_assert!(other.trust.contains(&leaf), "leaf of {leaf}, trusted {:?}", other.trust);
                }
            }
            Ok(())
        }
    }

    #[derive(Debug, Clone)]
    enum Act {
        Pass(u64),
        Look(Index),
        LookServer(Index),
        Write(Index),
        Step(Index),
        Crash(Index),
        Ask,
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            3 => (1..2 * SETTLE).prop_map(Act::Pass),
            4 => any::<Index>().prop_map(Act::Look),
            2 => any::<Index>().prop_map(Act::LookServer),
            6 => any::<Index>().prop_map(Act::Write),
            8 => any::<Index>().prop_map(Act::Step),
            1 => any::<Index>().prop_map(Act::Crash),
            1 => Just(Act::Ask),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

        #[test]
        fn whoever_is_late_or_dies_every_leaf_that_is_shown_is_accepted(acts in prop::collection::vec(act(), 1..100)) {
            let mut world = World::new();
            for what in &acts {
                world.act(what);
                world.holds()?;
            }
        }
    }

    #[test]
    fn left_alone_a_rotation_comes_to_its_end() {
        let mut world = World::new();
        world.act(&Act::Ask);
        for _ in 0..5 * SETTLE {
            world.pass(1);
            for at in 0..3 {
                world.step(at);
                let trust = world.instances[at].trust.clone();
                if world.service.now() != trust {
                    world.service.0.push((world.time, trust));
                }
            }
        }
        assert_eq!(world.secret.now(), Kept { signer: 1, next: None, old: BTreeSet::new() });
        assert_eq!(world.service.now(), [1]);
    }

    const QUIET: Facts = Facts {
        over: false,
        wanted: false,
        leaf_good: true,
        seen_for: Duration::from_secs(3600),
        carried_for: Some(Duration::from_secs(3600)),
    };

    #[test]
    fn nothing_is_done_without_a_reason() {
        assert_eq!(due(Place::Steady, &QUIET, Duration::from_secs(SETTLE)), None);
    }

    #[test]
    fn a_leaf_is_renewed_in_any_place_and_at_once() {
        let now = Facts { leaf_good: false, seen_for: Duration::ZERO, carried_for: None, ..QUIET };
        for place in [Place::Steady, Place::Announcing, Place::Retiring] {
            assert_eq!(due(place, &now, Duration::from_secs(SETTLE)), Some(Step::Renew));
        }
    }

    #[test]
    fn a_bundle_that_an_api_service_does_not_carry_holds_the_new_leaf_back() {
        let waiting = Facts { carried_for: None, ..QUIET };
        assert_eq!(due(Place::Announcing, &waiting, Duration::from_secs(SETTLE)), None);
        assert_eq!(due(Place::Announcing, &QUIET, Duration::from_secs(SETTLE)), Some(Step::Switch));
    }

    #[test]
    fn an_authority_that_has_ended_is_replaced_without_waiting() {
        let over = Facts { over: true, seen_for: Duration::ZERO, carried_for: None, ..QUIET };
        assert_eq!(due(Place::Steady, &over, Duration::from_secs(SETTLE)), Some(Step::StartOver));
        assert_eq!(due(Place::Announcing, &over, Duration::from_secs(SETTLE)), Some(Step::Switch));
    }
}
