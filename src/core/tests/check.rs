//! The checker's rule that the load fits into the remaining replicas, applied to decisions written by hand: `decide` holds such
//! a removal before the checker sees it.

use crate::tests::support::prelude::*;
use wva_core::check::check;

/// A variant whose Ready pods all show the same values.
#[derive(Clone)]
struct Fleet {
    name: &'static str,
    role: Role,
    ready: u32,
    /// Pods that are not Ready.
    starting: u32,
    engine: Engine,
    /// The maximum of sequences that an engine's arguments set.
    argument: Option<i64>,
    running: f64,
    waiting: f64,
    kv: f64,
    /// Tokens that a KV cache holds, if it is shown.
    cache: Option<f64>,
    max: Option<u32>,
    /// The number published before.
    promised: u32,
    /// The number decided now.
    decided: u32,
}

/// Four pods with 32 sequences each, one of which is to be removed.
const FOUR: Fleet = Fleet {
    name: "a",
    role: Role::Both,
    ready: 4,
    starting: 0,
    engine: Engine::Vllm,
    argument: Some(32),
    running: 10.0,
    waiting: 0.0,
    kv: 0.3,
    cache: Some(100_000.0),
    max: None,
    promised: 4,
    decided: 3,
};

impl Fleet {
    fn pod(&self, index: u32) -> Pod {
        let name = format!("{}-{index}", self.name);
        if index >= self.ready {
            let pod = ready_pod(name, Signals::default());
            return Pod { phase: Phase::Starting, ready_since: None, ..pod };
        }
        let mut signals = Signals::default();
        let gauges = [
            (Signal::Running, Some(self.running)),
            (Signal::Waiting, Some(self.waiting)),
            (Signal::KvUsage, Some(self.kv)),
            (Signal::KvCapacity, self.cache),
            (Signal::TimeToFirstTokenCount, Some(9.0)),
        ];
        for (signal, value) in gauges {
            let sample = |back: i64| Some(Sample { at: at(-2 - 15 * back), value: value? });
            signals.add(signal, (0..6).filter_map(sample));
        }
        ready_pod(name, signals)
    }

    fn state(&self) -> VariantState {
        let pods = (0..self.ready + self.starting).map(|index| self.pod(index)).collect();
        let mut state = variant_state(self.name, pods);
        let usual = EngineParameters::defaults(self.engine);
        let max_sequences = self.argument.unwrap_or(usual.max_sequences);
        let has_max_sequences = self.argument.is_some();
        state.template.engine = Some(EngineParameters { max_sequences, has_max_sequences, ..usual });
        state.variant.bounds = Bounds { min: Replicas::ZERO, max: self.max.map(Replicas::new) };
        (state.variant.accelerator, state.variant.role) = (Some("H100".into()), self.role);
        state
    }

    fn decision(&self) -> Decision {
        let (desired, reason) = (Replicas::new(self.decided), Reason::ScaleDown);
        let target = Target { desired, reason, explanation: "by hand".into(), evidence: at(0) };
        let (model, verdict) = ("m".into(), Verdict::Target(target));
        Decision { model, accelerator: None, current: None, verdict, gap: None }
    }
}

fn snapshot(fleets: &[Fleet]) -> Snapshot {
    let mut group = model_group(fleets.iter().map(Fleet::state).collect());
    group.scheduler.add(Signal::SchedulerQueueSize, [Sample { at: at(-2), value: 0.0 }]);
    snapshot_of(at(0), group)
}

fn memory(fleets: &[Fleet]) -> Memory {
    let mut group = GroupMemory::default();
    for fleet in fleets {
        let (target, target_since) = (Some(Replicas::new(fleet.promised)), Some(at(-600)));
        let own = VariantMemory { target, target_since, ..VariantMemory::default() };
        group.variants.insert(fleet.name.into(), own);
    }
    Memory { groups: [(group_id(), group)].into(), ..Memory::default() }
}

/// The variants whose removal is refused, and why the first one is.
fn refused_by(fleets: &[Fleet], memory: &Memory, policy: &Policy) -> (Vec<String>, String) {
    let decisions = fleets.iter().map(|fleet| (id(fleet.name), fleet.decision())).collect();
    let mut violations = check(&snapshot(fleets), memory, policy, &decisions);
    violations.retain(|violation| violation.rule == Rule::FitsRemaining);
    let detail = violations.first().map(ToString::to_string).unwrap_or_default();
    let detail = detail.rsplit(": ").next().unwrap_or_default().to_owned();
    (violations.iter().map(|violation| violation.variant.name.to_string()).collect(), detail)
}

fn refused(fleets: &[Fleet]) -> (Vec<String>, String) {
    refused_by(fleets, &memory(fleets), &Policy::default())
}

fn names(fleets: &[Fleet]) -> Vec<String> {
    refused(fleets).0
}

/// The same for one fleet, with a policy.
fn names_by(fleet: &Fleet, policy: &Policy) -> Vec<String> {
    let fleets = std::slice::from_ref(fleet);
    refused_by(fleets, &memory(fleets), policy).0
}

/// The same for one fleet, with a memory.
fn names_with(fleet: &Fleet, memory: &Memory) -> Vec<String> {
    refused_by(std::slice::from_ref(fleet), memory, &Policy::default()).0
}

#[test]
fn a_removal_that_leaves_too_few_sequences_is_refused() {
    // Four pods hold 88; three have 96 sequences, nine tenths of which are 86.4.
    let (variants, detail) = refused(&[Fleet { running: 20.0, waiting: 2.0, ..FOUR }]);
    assert_eq!(variants, ["a"]);
    assert_eq!(detail, "running + waiting requests peaked at 88 of the 96 sequences that remain");
    assert_eq!(names(&[Fleet { running: 20.0, waiting: 1.0, ..FOUR }]), [""; 0], "84 fit");
    assert_eq!(names(&[Fleet { running: 20.0, waiting: 2.0, decided: 4, ..FOUR }]), [""; 0], "nothing goes");
}

#[test]
fn a_removal_that_leaves_too_small_kv_caches_is_refused() {
    let (variants, detail) = refused(&[Fleet { kv: 0.7, ..FOUR }]);
    assert_eq!(variants, ["a"]);
    assert_eq!(detail, "KV caches held 280000 tokens at their peaks, of the 300000 that remain");
    assert_eq!(names(&[Fleet { kv: 0.67, ..FOUR }]), [""; 0], "268,000 of 270,000");
    let (variants, detail) = refused(&[Fleet { kv: 0.7, cache: None, ..FOUR }]);
    assert_eq!((variants.len(), detail.contains("filled 2.80 times")), (1, true), "{detail}");
}

#[test]
fn variants_of_one_role_have_what_remains_together() {
    let (large, small) = (
        Fleet { name: "large", argument: Some(64), running: 40.0, ready: 2, promised: 2, decided: 1, ..FOUR },
        Fleet { name: "small", argument: Some(8), running: 5.0, decided: 4, ..FOUR },
    );
    // 100 requests run, 64 + 4 × 8 sequences remain.
    assert_eq!(names(&[large.clone(), small.clone()]), ["large"]);
    // Without two of the small ones, 2 × 64 + 2 × 8 are 144.
    let fewer = [Fleet { decided: 2, ..large.clone() }, Fleet { decided: 2, ..small.clone() }];
    assert_eq!(names(&fewer), [""; 0]);
    // If both lose replicas, both are named.
    assert_eq!(names(&[large, Fleet { decided: 3, ..small }]), ["large", "small"]);
}

#[test]
fn one_role_has_no_room_for_what_another_runs() {
    let full = Fleet { name: "d", role: Role::Decode, running: 24.0, ..FOUR };
    let empty =
        Fleet { name: "p", role: Role::Prefill, running: 0.0, ready: 9, promised: 9, decided: 8, ..FOUR };
    assert_eq!(names(&[full.clone(), empty.clone()]), ["d"]);
    assert_eq!(names(&[Fleet { decided: 4, ..full }, empty]), [""; 0]);
}

#[test]
fn a_large_replica_that_serves_does_not_go_for_a_small_one_that_does_not() {
    let large =
        Fleet { name: "large", argument: Some(64), running: 50.0, ready: 2, promised: 2, decided: 1, ..FOUR };
    let small =
        Fleet { name: "small", argument: Some(8), running: 1.0, ready: 1, promised: 1, decided: 2, ..FOUR };
    // As many as before in all, and 64 + 8 sequences for 101 requests.
    let (variants, detail) = refused(&[large.clone(), small.clone()]);
    assert_eq!(variants, ["large"], "{detail}");
    assert!(detail.ends_with("of the 72 sequences that remain"), "{detail}");
    // Twenty that are ordered, or that start, do not help either.
    let many = Fleet { decided: 21, ..small.clone() };
    assert_eq!(names(&[large.clone(), many.clone()]), ["large"]);
    assert_eq!(names(&[large.clone(), Fleet { starting: 20, promised: 21, ..many.clone() }]), ["large"]);
    // Once they serve, they have room.
    assert_eq!(names(&[large.clone(), Fleet { ready: 21, promised: 21, running: 1.0, ..many }]), [""; 0]);
    // A pod that does not serve may be replaced, whatever runs.
    let unready = Fleet { ready: 2, starting: 1, promised: 3, decided: 2, running: 63.0, ..large };
    assert_eq!(names(&[unready, small]), [""; 0]);
}

#[test]
fn what_a_lowered_maximum_takes_is_the_users() {
    let full = Fleet { running: 30.0, kv: 0.9, ..FOUR };
    assert_eq!(names(std::slice::from_ref(&full)), ["a"]);
    assert_eq!(names(&[Fleet { max: Some(3), ..full.clone() }]), [""; 0]);
    assert_eq!(names(&[Fleet { max: Some(3), decided: 2, ..full }]), ["a"], "and not what goes beyond it");
}

#[test]
fn a_limit_may_cut_published_replicas_but_not_running_ones() {
    let mut limited = Policy::default();
    limited.limits.spend = Some(Cost::new(40.0).unwrap());
    // Nine were promised, four run.
    let promised = Fleet { running: 30.0, promised: 9, decided: 4, ..FOUR };
    assert_eq!(names_by(&promised, &Policy::default()), ["a"]);
    assert_eq!(names_by(&promised, &limited), [""; 0]);
    assert_eq!(names_by(&Fleet { decided: 3, ..promised }, &limited), ["a"]);
}

#[test]
fn what_is_measured_idle_may_go() {
    let idle = Fleet { running: 0.0, kv: 0.95, decided: 0, ..FOUR };
    let mut policy = Policy::default();
    let by = |policy: &Policy, since: Option<i64>| {
        let fleets = [idle.clone()];
        let mut memory = memory(&fleets);
        memory.groups.values_mut().for_each(|group| group.idle_since = since.map(at));
        refused_by(&fleets, &memory, policy).0
    };
    assert_eq!(by(&policy, Some(-600)), ["a"], "it may not sleep");
    policy.global.default.scale_to_zero = Some(ScaleToZero { enabled: true, retention: Seconds::whole(60) });
    assert_eq!([by(&policy, None), by(&policy, Some(-600))], [vec!["a".to_owned()], vec![]]);
}

#[test]
fn an_h100_fleet_without_the_argument_may_shrink() {
    let busy = Fleet { running: 200.0, argument: None, ..FOUR };
    assert_eq!(names(&[Fleet { argument: Some(256), ..busy.clone() }]), ["a"]);
    assert_eq!(names(std::slice::from_ref(&busy)), [""; 0], "nobody knows how many it runs");
    assert_eq!(names(&[Fleet { engine: Engine::Sglang, ..busy.clone() }]), [""; 0]);
    // If it is unknown for one of two variants, it is unknown for both together.
    let known = Fleet { name: "b", argument: Some(64), running: 60.0, decided: 4, ..FOUR };
    assert_eq!(names(&[busy.clone(), known]), [""; 0]);
    // The tokens in its KV caches are known nevertheless.
    assert_eq!(names(&[Fleet { kv: 0.7, ..busy }]), ["a"]);
}

#[test]
fn peaks_above_the_argument_count_and_do_not_flicker() {
    let full = Fleet { running: 30.0, ..FOUR };
    assert_eq!(names(std::slice::from_ref(&full)), ["a"]);
    let busier = snapshot(&[Fleet { running: 64.0, ..FOUR }]);
    let remembered = (0..2).fold(memory(std::slice::from_ref(&full)), |memory, _| observe(&busier, memory));
    assert_eq!(names_with(&full, &remembered), [""; 0], "4 × 30 of 3 × 64");
    let remembered = observe(&snapshot(std::slice::from_ref(&full)), remembered);
    assert_eq!(names_with(&full, &remembered), [""; 0], "minutes later too");
    let changed = Fleet { argument: Some(31), ..full.clone() };
    assert_eq!(names_with(&changed, &remembered), ["a"], "pods that are made otherwise run what theirs says");
    let unknown = Fleet { argument: None, ..full };
    let remembered = observe(&snapshot(std::slice::from_ref(&unknown)), remembered);
    assert_eq!(names_with(&unknown, &remembered), [""; 0], "and that alone is no maximum");
}

#[test]
fn nothing_that_was_learned_says_what_fits() {
    // With huge capacities learned by the analyzers, and with nothing learned.
    let text = r#"{"tokens":{"records":{"a":{"accelerator":"H100","gpus":1,"capacity":9000000,"effective":9000000,
        "learned":"live","updated":"2027-01-15T08:00:00Z"}}},
        "rate":{"knowledge":{"variants":{"a":{"capacity":9e6,"limit":9e3,"most_running":9e3}}}}}"#;
    let learned: Learned = serde_json::from_str(text).unwrap();
    assert!(learned.rate.is_some());
    for fleet in [
        Fleet { running: 24.0, ..FOUR },
        Fleet { kv: 0.7, ..FOUR },
        FOUR,
        Fleet { running: 200.0, argument: None, ..FOUR },
    ] {
        let fleets = [fleet];
        let bare = memory(&fleets);
        let mut knowing = bare.clone();
        knowing.groups.values_mut().for_each(|group| group.learned = Some(Box::new(learned.clone())));
        let by = |memory: &Memory| refused_by(&fleets, memory, &Policy::default());
        assert_eq!(by(&bare), by(&knowing));
        // Without any memory, the running replicas count as promised.
        assert_eq!(by(&bare), by(&Memory::default()));
    }
}
