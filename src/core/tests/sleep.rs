//! What sends a model to zero, what wakes it, and what belongs together while it sleeps and wakes.

use proptest::prelude::*;
use wva_core::decision::GapCause;
use wva_core::snapshot::VariantLimit;

use crate::tests::support::cases;
use crate::tests::support::prelude::*;

const RETENTION: u32 = 60;
const STEP: i64 = 15;

/// Variants of one model in a closed loop: an autoscaler that follows every number at once, and pods that start within a step.
struct Model {
    now: i64,
    variants: Vec<(&'static str, Role, f64)>,
    replicas: BTreeMap<&'static str, u32>,
    /// Requests at the scheduler; `None` if its queue is not measured.
    queue: Option<f64>,
    /// Requests that every engine has finished, and how many that were in the last steps.
    finished: f64,
    history: Vec<f64>,
    /// The scheduler counts the requests, and not the engines.
    is_counted_by_scheduler: bool,
    /// Variants whose pods have no node.
    without_node: BTreeSet<&'static str>,
    /// Variants for which a quota leaves no GPU.
    without_quota: BTreeSet<&'static str>,
    woken_by: Option<&'static str>,
    policy: Policy,
    memory: Memory,
}

impl Model {
    fn new(variants: &[(&'static str, Role, f64)], replicas: u32) -> Self {
        let retention = Seconds::whole(RETENTION);
        let mut policy = policy_of(Analyzer::SaturationPercent);
        policy.global.default.scale_to_zero = Some(ScaleToZero { enabled: true, retention });
        Self {
            now: 0,
            variants: variants.to_vec(),
            replicas: variants.iter().map(|(name, ..)| (*name, replicas)).collect(),
            queue: Some(0.0),
            finished: 7.0,
            history: Vec::new(),
            is_counted_by_scheduler: false,
            without_node: BTreeSet::new(),
            without_quota: BTreeSet::new(),
            woken_by: None,
            policy,
            memory: Memory::default(),
        }
    }

    fn alone(replicas: u32) -> Self {
        Self::new(&[("llama", Role::Both, 10.0)], replicas)
    }

    fn engine(&self) -> Signals {
        let mut signals = Signals::default();
        let sample = |back: i64, value| Sample { at: at(self.now - 2 - STEP * back), value };
        for signal in [Signal::KvUsage, Signal::Waiting, Signal::Running] {
            signals.add(signal, (0..5).map(|back| sample(back, 0.0)));
        }
        let counter = if self.is_counted_by_scheduler {
            Signal::SchedulerAttempts
        } else {
            Signal::TimeToFirstTokenCount
        };
        let counts = self.history.iter().rev().zip(0..5);
        signals.add(counter, counts.map(|(count, back)| sample(back, *count)));
        signals
    }

    fn state(&self, (name, role, cost): (&'static str, Role, f64)) -> VariantState {
        let nowhere = self.without_node.contains(name);
        let pod = |index| {
            let pod = ready_pod(format!("{name}-{index}"), Signals::default());
            if nowhere {
                return Pod {
                    phase: Phase::Unschedulable,
                    ready_since: None,
                    created: at(self.now - 5),
                    ..pod
                };
            }
            Pod { engines: [("0".into(), self.engine())].into_iter().collect(), ..pod }
        };
        let mut state = variant_state(name, (0..self.replicas[name]).map(pod).collect());
        state.variant.bounds.min = Replicas::ZERO;
        state.variant.role = role;
        state.variant.cost = Cost::new(cost).unwrap();
        state.variant.woken_by = self.woken_by.map(SmolStr::new_static);
        state
    }

    fn snapshot(&self) -> Snapshot {
        let mut group = model_group(self.variants.iter().map(|variant| self.state(*variant)).collect());
        group.sort();
        let queue = self.queue.map(|value| Sample { at: at(self.now - 2), value });
        group.scheduler.add(Signal::SchedulerQueueSize, queue);
        let mut snapshot = snapshot_of(at(self.now), group);
        if !self.without_quota.is_empty() {
            snapshot.limits = vec![VariantLimit {
                limit: VariantLimit::RESOURCE_QUOTA.into(),
                key: "nvidia.com/gpu in default/none".into(),
                gpus: 0,
                elsewhere: 0,
                variants: self.without_quota.iter().map(|name| id(name)).collect(),
            }];
        }
        snapshot
    }

    /// One evaluation a step later, which the autoscalers follow.
    fn step(&mut self) -> Outcome {
        self.now += STEP;
        self.history.push(self.finished);
        let outcome = evaluate(&self.snapshot(), std::mem::take(&mut self.memory), &self.policy);
        self.memory = outcome.memory.clone();
        for (name, replicas) in &mut self.replicas {
            if let Some(number) = number_of(&outcome.decisions[&id(name)].verdict) {
                *replicas = number.get();
            }
        }
        outcome
    }

    fn steps(&mut self, count: usize) -> Vec<u32> {
        (0..count).for_each(|_| drop(self.step()));
        self.replicas.values().copied().collect()
    }

    fn gap(&mut self) -> Option<GapCause> {
        let outcome = self.step();
        outcome.decisions.values().find_map(|decision| decision.gap.as_ref()).map(|gap| gap.cause)
    }
}

#[test]
fn without_a_queue_a_model_was_never_put_to_sleep_although_its_object_says_what_wakes_it() {
    let mut model = Model { queue: None, ..Model::alone(1) };
    assert_eq!(model.steps(40), [1], "nothing would wake it");
    model.woken_by = Some("an HTTP proxy");
    assert_eq!(model.steps(1), [0], "its engines have been idle for long");
    assert_eq!(model.steps(4 * 60 * 4), [0], "and it sleeps for as long as nothing comes");
    // The proxy scales it up: it stays for its retention, without a request as far as is measured.
    model.replicas.insert("llama", 1);
    for _ in 0..3 {
        assert_eq!(model.steps(1), [1]);
    }
    assert_eq!(model.steps(2), [0]);
}

#[test]
fn a_model_that_nothing_would_wake_says_which_signal_is_missing() {
    let mut model = Model { queue: None, ..Model::alone(1) };
    assert_eq!(model.gap(), Some(GapCause::NoWakeUpSignal));
    model.woken_by = Some("KEDA");
    assert_eq!(model.gap(), None);
    (model.woken_by, model.queue) = (None, Some(0.0));
    assert_eq!(model.gap(), None);
    // One that is never to be at zero lacks nothing.
    model.queue = None;
    model.policy.global.default.scale_to_zero = None;
    assert_eq!(model.gap(), None);
}

#[test]
fn requests_that_only_the_engines_or_only_the_scheduler_count_keep_a_model_awake() {
    for is_counted_by_scheduler in [false, true] {
        let woken_by = Some("a proxy");
        let mut model = Model { woken_by, queue: None, is_counted_by_scheduler, ..Model::alone(1) };
        for _ in 0..20 {
            model.finished += 1.0;
            assert_eq!(model.steps(1), [1]);
        }
        assert_eq!(model.steps(8), [0]);
    }
}

#[test]
fn a_model_whose_cheapest_variant_a_quota_denies_never_woke() {
    let variants = [("cheap", Role::Both, 1.0), ("dear", Role::Both, 10.0)];
    let mut model = Model { without_quota: ["cheap"].into(), ..Model::new(&variants, 0) };
    model.steps(2);
    model.queue = Some(1.0);
    assert_eq!(model.steps(2), [0, 1], "the next one, an evaluation later");
    model.queue = Some(0.0);
    assert_eq!(model.steps(10), [0, 0]);
    // With room for none, both are tried again and again.
    model.without_quota = ["cheap", "dear"].into();
    model.queue = Some(1.0);
    assert_eq!(model.steps(20), [0, 0]);
    model.without_quota.remove("dear");
    assert!(model.steps(8) == [0, 1], "{:?}", model.replicas);
}

#[test]
fn a_decode_variant_woke_alone_where_a_quota_denied_its_prefill() {
    let variants = [("decode", Role::Decode, 10.0), ("prefill", Role::Prefill, 10.0)];
    for denied in ["prefill", "decode"] {
        let mut model = Model { without_quota: [denied].into(), ..Model::new(&variants, 0) };
        model.steps(2);
        model.queue = Some(1.0);
        for _ in 0..20 {
            assert_eq!(model.steps(1), [0, 0], "without {denied}");
        }
        model.without_quota.clear();
        assert_eq!(model.steps(2), [1, 1]);
    }
}

#[test]
fn a_number_that_was_published_is_not_taken_back_because_the_counterpart_has_no_room() {
    let variants = [("decode", Role::Decode, 10.0), ("prefill", Role::Prefill, 10.0)];
    let mut model = Model::new(&variants, 0);
    model.queue = Some(1.0);
    let mut decode = model.snapshot();
    decode
        .groups
        .values_mut()
        .for_each(|group| group.variants.retain(|state| &state.variant.id.name == "decode"));
    let published = decide(&decode, &observe(&decode, Memory::default()), &model.policy).memory;
    model.without_quota = ["prefill"].into();
    let snapshot = model.snapshot();
    let outcome = decide(&snapshot, &observe(&snapshot, published), &model.policy);
    let number = |name| number_of(&outcome.decisions[&id(name)].verdict);
    assert_eq!([number("decode"), number("prefill")], [1, 0].map(|number| Some(Replicas::new(number))));
}

#[test]
fn a_decode_variant_that_something_else_woke_was_left_without_prefill() {
    let variants = [("decode", Role::Decode, 10.0), ("prefill", Role::Prefill, 10.0)];
    let mut model = Model { woken_by: Some("a proxy"), queue: None, ..Model::new(&variants, 1) };
    assert_eq!(model.steps(10), [0, 0], "they sleep together");
    model.replicas.insert("decode", 1);
    assert_eq!(model.steps(2), [1, 1]);
    assert_eq!(model.steps(12), [0, 0]);
}

#[test]
fn a_decode_variant_that_was_kept_awake_got_its_prefill_only_at_the_next_read() {
    let variants = [("decode", Role::Decode, 10.0), ("prefill", Role::Prefill, 10.0)];
    let mut model = Model::new(&variants, 1);
    while model.steps(1) != [0, 0] {}
    // Nothing shows that it is idle any more, and something starts it.
    model.queue = None;
    model.replicas.insert("decode", 1);
    assert_eq!(model.steps(1), [1, 1]);
}

#[test]
fn an_autoscaler_that_is_late_does_not_keep_the_counterpart_of_a_sleeping_variant_awake() {
    let variants = [("decode", Role::Decode, 10.0), ("prefill", Role::Prefill, 10.0)];
    let mut model = Model::new(&variants, 1);
    while model.steps(1) != [0, 0] {}
    for _ in 0..10 {
        // It has the number, and has not scaled yet.
        model.replicas.insert("decode", 1);
        assert_eq!(model.steps(1), [0, 0]);
    }
}

#[test]
fn where_the_cheapest_variant_has_no_node_the_next_one_is_woken_too() {
    let variants = [("a", Role::Both, 30.0), ("b", Role::Both, 10.0), ("c", Role::Both, 20.0)];
    let mut model = Model { without_node: ["b"].into(), ..Model::new(&variants, 0) };
    model.queue = Some(1.0);
    assert_eq!(model.steps(1), [0, 1, 0], "the cheapest");
    assert_eq!(model.steps(1), [0, 1, 1], "no node has room for it");
    let mut fits = Model { queue: Some(1.0), ..Model::new(&variants, 0) };
    assert_eq!(fits.steps(1), [0, 1, 0]);
}

proptest! {
    #![proptest_config(cases::slow())]

    /// Whatever comes when, with autoscalers that follow: a woken model stays for its retention, and prefill and decode are never apart.
    #[test]
    fn a_model_sleeps_and_wakes_as_a_whole_and_stays_for_its_retention(
        queues in proptest::collection::vec(prop_oneof![6 => Just(0.0), 1 => 1.0..9.0_f64], 20..80),
        others in proptest::collection::vec(any::<bool>(), 80),
        roles in any::<bool>(),
        woken_by in proptest::option::of(Just("a proxy")),
    ) {
        let split = [("decode", Role::Decode, 10.0), ("prefill", Role::Prefill, 5.0)];
        let variants = if roles { &split[..] } else { &[("a", Role::Both, 10.0), ("b", Role::Both, 5.0)] };
        let mut model = Model { woken_by, ..Model::new(variants, 0) };
        let mut last_request = None;
        for (queue, served) in queues.into_iter().zip(others) {
            model.queue = Some(queue);
            let is_awake = model.replicas.values().any(|replicas| *replicas > 0);
            if queue > 0.0 {
                last_request = Some(model.now + STEP);
            }
            if served && is_awake && queue > 0.0 {
                model.finished += 1.0;
            }
            let numbers = model.steps(1);
            let awake = numbers.iter().filter(|number| **number > 0).count();
            if queue > 0.0 {
                prop_assert!(awake > 0, "a waiting request wakes it: {numbers:?}");
            }
            if roles {
                prop_assert!(awake == 0 || awake == 2, "{numbers:?}");
            }
            if last_request.is_some_and(|at| model.now - at < i64::from(RETENTION)) {
                prop_assert!(awake > 0, "{} s after a request: {numbers:?}", model.now - last_request.unwrap());
            }
        }
    }
}
