//! When the CA and the leaf that all instances share take their next step. Pure.
//!
//! The API server verifies us by the APIService's `caBundle`, in its probes too, and instances verify each other. So a CA
//! is replaced in an order in which an observer that is late still verifies the leaf that is served:
//!
//! | phase | trusted | leaf signed by | next step, when |
//! |---|---|---|---|
//! | steady | CA | CA | announce: a new CA is wanted |
//! | announcing | old, new | old | switch: the APIServices have carried both for the settling time |
//! | retiring | new, old | new | retire: the leaf has been the new CA's for the settling time |
//!
//! Times are those that an instance has itself seen pass: no two clocks are compared, and after a crash an instance waits
//! anew. The phase follows from the Secret alone, so any instance can take the next step.

use std::time::Duration;

/// How far the replacement of the CA is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RotationPhase {
    /// One CA.
    Steady,
    /// A new CA is trusted, and signs nothing yet.
    Announcing,
    /// The new CA signs; the old one is still trusted.
    Retiring,
}

/// A change of the Secret's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RotationStep {
    /// A new CA and a leaf of it at once: the old CA has expired, so nothing is left to break.
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
pub(crate) struct RotationInputs {
    /// The CA has expired.
    pub(crate) has_expired: bool,
    /// A user requested a new CA, or the CA expires within the replacement period.
    pub(crate) wants_new_ca: bool,
    /// The leaf is accepted and will be for long enough, or was renewed so recently that it stays in any case.
    pub(crate) leaf_is_good: bool,
    /// How long this instance has seen the same CAs in the Secret.
    pub(crate) seen_for: Duration,
    /// How long it has seen every APIService that points to us carry all of them; `None` if one does not.
    pub(crate) carried_for: Option<Duration>,
}

/// The step that is due, if any; `settle` is the settling time.
pub(crate) fn next_step(
    phase: RotationPhase,
    inputs: &RotationInputs,
    settle: Duration,
) -> Option<RotationStep> {
    let has_settled = inputs.seen_for >= settle;
    match phase {
        // Callers that trust the new CA are served again; for the others nothing changes.
        RotationPhase::Announcing if inputs.has_expired => Some(RotationStep::Switch),
        _ if inputs.has_expired => Some(RotationStep::StartOver),
        _ if !inputs.leaf_is_good => Some(RotationStep::Renew),
        RotationPhase::Announcing if has_settled && inputs.carried_for >= Some(settle) => {
            Some(RotationStep::Switch)
        }
        RotationPhase::Retiring if has_settled => Some(RotationStep::Retire),
        RotationPhase::Steady if inputs.wants_new_ca => Some(RotationStep::Announce),
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
    /// How late an observer may be. Three times that is less than the settling time, because delays add up: a late instance
    /// writes an older bundle, we see it late, and an API server sees the repair late.
    const LAG: u64 = 6;

    /// The content of the Secret, with numbers for CAs; the leaf is of `signer`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    struct SecretContent {
        signer: u32,
        next: Option<u32>,
        old: BTreeSet<u32>,
    }

    impl SecretContent {
        fn phase(&self) -> RotationPhase {
            match (self.next, self.old.is_empty()) {
                (Some(_), _) => RotationPhase::Announcing,
                (None, false) => RotationPhase::Retiring,
                (None, true) => RotationPhase::Steady,
            }
        }

        /// The CA of the leaf first.
        fn trust(&self) -> Vec<u32> {
            [self.signer].into_iter().chain(self.next).chain(self.old.iter().copied()).collect()
        }

        fn after(&self, step: RotationStep, fresh: u32) -> Self {
            let mut after = self.clone();
            match step {
                RotationStep::Announce => after.next = Some(fresh),
                RotationStep::Switch => {
                    after.old.insert(self.signer);
                    after.signer = self.next.expect("something to switch to");
                    after.next = None;
                }
                RotationStep::Retire => after.old.clear(),
                RotationStep::Renew | RotationStep::StartOver => {}
            }
            after
        }
    }

    /// The versions of an object that others observe, each with its time.
    #[derive(Debug)]
    struct Shared<T>(Vec<(u64, T)>);

    impl<T: Clone> Shared<T> {
        fn now(&self) -> T {
            self.0.last().unwrap().1.clone()
        }

        /// The oldest version that an observer may still have at `time`.
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

    /// A Secret, an APIService, API servers that observe it, instances that observe both, each with its own lag.
    struct Simulation {
        time: u64,
        secret: Shared<SecretContent>,
        service: Shared<Vec<u32>>,
        api_servers: Vec<usize>,
        instances: Vec<Instance>,
        issued: u32,
        is_requested: bool,
    }

    impl Simulation {
        fn new() -> Self {
            let content = SecretContent { signer: 0, next: None, old: BTreeSet::new() };
            let secret = Shared(vec![(0, content.clone())]);
            let service = Shared(vec![(0, content.trust())]);
            let mut simulation = Self {
                time: 0,
                secret,
                service,
                api_servers: vec![0; 2],
                instances: Vec::new(),
                issued: 0,
                is_requested: false,
            };
            simulation.instances = (0..3).map(|_| simulation.started()).collect();
            simulation
        }

        /// A start, or a restart after a crash: it reads the present objects and has seen no time pass.
        fn started(&self) -> Instance {
            let secret = self.secret.0.len() - 1;
            let service = self.service.0.len() - 1;
            Instance { secret, service, trust: self.secret.now().trust(), since: self.time, carried: None }
        }

        fn observe(&mut self, at: usize, secret: usize, service: usize) {
            let instance = &mut self.instances[at];
            (instance.secret, instance.service) = (secret, service);
            let trust = self.secret.0[secret].1.trust();
            if trust != instance.trust {
                (instance.trust, instance.since, instance.carried) = (trust, self.time, None);
            }
            let carried = self.service.0[service].1 == instance.trust;
            instance.carried = carried.then(|| instance.carried.unwrap_or(self.time));
        }

        /// Time passes; observers whose lag is over update.
        fn pass(&mut self, seconds: u64) {
            for _ in 0..seconds {
                self.time += 1;
                let secret = self.secret.oldest(self.time);
                let service = self.service.oldest(self.time);
                for version in &mut self.api_servers {
                    *version = service.max(*version);
                }
                for at in 0..self.instances.len() {
                    let Instance { secret: last_secret, service: last_service, .. } = self.instances[at];
                    self.observe(at, secret.max(last_secret), service.max(last_service));
                }
            }
        }

        /// The version guards the write: an instance with an older Secret changes nothing.
        fn step(&mut self, at: usize) {
            let instance = &self.instances[at];
            if instance.secret + 1 != self.secret.0.len() {
                return;
            }
            let seconds = |since| Duration::from_secs(self.time - since);
            let inputs = RotationInputs {
                has_expired: false,
                wants_new_ca: self.is_requested,
                leaf_is_good: true,
                seen_for: seconds(instance.since),
                carried_for: instance.carried.map(seconds),
            };
            let content = self.secret.now();
            let Some(step) = next_step(content.phase(), &inputs, Duration::from_secs(SETTLE)) else { return };
            if step == RotationStep::Announce {
                self.issued += 1;
                self.is_requested = false;
            }
            self.secret.0.push((self.time, content.after(step, self.issued)));
            let service = self.instances[at].service;
            self.observe(at, self.secret.0.len() - 1, service);
        }

        fn act(&mut self, action: &Action) {
            let instance = |index: &Index| index.index(self.instances.len());
            match action {
                Action::Pass(seconds) => self.pass(*seconds),
                Action::Observe(index) => {
                    let at = instance(index);
                    self.observe(at, self.secret.0.len() - 1, self.service.0.len() - 1);
                }
                Action::ObserveAsApiServer(index) => {
                    let at = index.index(self.api_servers.len());
                    self.api_servers[at] = self.service.0.len() - 1;
                }
                Action::Write(index) => {
                    let trust = self.instances[instance(index)].trust.clone();
                    if self.service.now() != trust {
                        self.service.0.push((self.time, trust));
                    }
                }
                Action::TakeStep(index) => self.step(instance(index)),
                Action::Crash(index) => {
                    let at = instance(index);
                    self.instances[at] = self.started();
                }
                Action::RequestRotation => self.is_requested = true,
            }
        }

        /// Every leaf that is served is accepted by every API server and by every instance.
        fn holds(&self) -> Result<(), TestCaseError> {
            for server in &self.instances {
                let leaf = self.secret.0[server.secret].1.signer;
                for version in &self.api_servers {
                    let bundle = &self.service.0[*version].1;
                    prop_assert!(
                        bundle.contains(&leaf),
                        "leaf of {leaf}, bundle {bundle:?} at {}",
                        self.time
                    );
                }
                for peer in &self.instances {
                    prop_assert!(peer.trust.contains(&leaf), "leaf of {leaf}, trusted {:?}", peer.trust);
                }
            }
            Ok(())
        }
    }

    #[derive(Debug, Clone)]
    enum Action {
        Pass(u64),
        Observe(Index),
        ObserveAsApiServer(Index),
        Write(Index),
        TakeStep(Index),
        Crash(Index),
        RequestRotation,
    }

    fn act() -> impl Strategy<Value = Action> {
        prop_oneof![
            3 => (1..2 * SETTLE).prop_map(Action::Pass),
            4 => any::<Index>().prop_map(Action::Observe),
            2 => any::<Index>().prop_map(Action::ObserveAsApiServer),
            6 => any::<Index>().prop_map(Action::Write),
            8 => any::<Index>().prop_map(Action::TakeStep),
            1 => any::<Index>().prop_map(Action::Crash),
            1 => Just(Action::RequestRotation),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

        #[test]
        fn every_served_leaf_is_accepted_despite_lag_and_crashes(actions in prop::collection::vec(act(), 1..100)) {
            let mut simulation = Simulation::new();
            for action in &actions {
                simulation.act(action);
                simulation.holds()?;
            }
        }
    }

    #[test]
    fn a_rotation_ends_without_interference() {
        let mut simulation = Simulation::new();
        simulation.act(&Action::RequestRotation);
        for _ in 0..5 * SETTLE {
            simulation.pass(1);
            for at in 0..3 {
                simulation.step(at);
                let trust = simulation.instances[at].trust.clone();
                if simulation.service.now() != trust {
                    simulation.service.0.push((simulation.time, trust));
                }
            }
        }
        assert_eq!(simulation.secret.now(), SecretContent { signer: 1, next: None, old: BTreeSet::new() });
        assert_eq!(simulation.service.now(), [1]);
    }

    #[test]
    fn a_step_is_due_for_a_reason_and_waits_only_where_an_observer_may_be_late() {
        use RotationPhase::{Announcing, Retiring, Steady};
        const HOUR: Duration = Duration::from_secs(3600);
        let idle = RotationInputs {
            has_expired: false,
            wants_new_ca: false,
            leaf_is_good: true,
            seen_for: HOUR,
            carried_for: Some(HOUR),
        };
        let new = RotationInputs { seen_for: Duration::ZERO, carried_for: None, ..idle };
        let lacking = RotationInputs { leaf_is_good: false, ..new };
        let expired = RotationInputs { has_expired: true, ..new };
        for (case, phase, inputs, expected) in [
            ("no reason", Steady, idle, None),
            ("a leaf is renewed at once in any phase", Steady, lacking, Some(RotationStep::Renew)),
            ("a leaf is renewed at once in any phase", Announcing, lacking, Some(RotationStep::Renew)),
            ("a leaf is renewed at once in any phase", Retiring, lacking, Some(RotationStep::Renew)),
            (
                "an APIService lacks the bundle",
                Announcing,
                RotationInputs { carried_for: None, ..idle },
                None,
            ),
            ("every APIService carries it", Announcing, idle, Some(RotationStep::Switch)),
            ("an expired CA is replaced at once", Steady, expired, Some(RotationStep::StartOver)),
            ("an expired CA is replaced at once", Announcing, expired, Some(RotationStep::Switch)),
        ] {
            assert_eq!(next_step(phase, &inputs, Duration::from_secs(SETTLE)), expected, "{case}: {phase:?}");
        }
    }
}
