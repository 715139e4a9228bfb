//! The rule that what runs fits into what remains, asked of decisions that nobody would make: whoever decides holds a removal
//! before the rule sees it.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use wva_core::check::check;
use wva_core::decision::{Decision, Reason, Target, Verdict};
use wva_core::memory::{GroupMemory, Memory, VariantMemory};
use wva_core::model::{Bounds, Role, ScaleToZero, TargetRef, Variant};
use wva_core::report::Rule;
use wva_core::snapshot::{
    Engine, EngineParameters, ModelGroup, Phase, Replica, Sample, Scale, Signal, Signals, SourceHealth,
    Template, VariantState,
};
use wva_core::units::{Cost, Replicas, Seconds};
use wva_core::{GroupId, Policy, Snapshot, VariantId, observe};

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

fn ago(seconds: i64) -> Timestamp {
    NOW - SignedDuration::from_secs(seconds)
}

/// A variant whose Ready pods all show the same.
#[derive(Clone)]
struct Fleet {
    name: &'static str,
    role: Role,
    ready: u32,
    /// Pods that are not Ready.
    starting: u32,
    engine: Engine,
    /// What the arguments say of the sequences of an engine.
    argument: Option<i64>,
    running: f64,
    waiting: f64,
    kv: f64,
    /// Tokens that its KV cache holds, if that is shown.
    cache: Option<f64>,
    max: Option<u32>,
    /// What was published before.
    promised: u32,
    /// What is decided now.
    decided: u32,
}

/// Four pods of 32 sequences each, one of which is to go.
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
    fn id(&self) -> VariantId {
        VariantId::new("default", self.name)
    }

    fn pod(&self, index: u32, phase: Phase) -> Replica {
        let mut signals = Signals::default();
        let gauges = [
            (Signal::Running, Some(self.running)),
            (Signal::Waiting, Some(self.waiting)),
            (Signal::KvUsage, Some(self.kv)),
            (Signal::KvCapacity, self.cache),
            (Signal::TimeToFirstTokenCount, Some(9.0)),
        ];
        for (signal, value) in gauges {
            let samples = (0..6).filter_map(|back| Some(Sample { at: ago(2 + 15 * back), value: value? }));
            signals.add(signal, samples);
        }
        let is_ready = phase == Phase::Ready;
        Replica {
            pod: format!("{}-{index}", self.name).into(),
            phase,
            created: ago(900),
            ready_since: is_ready.then(|| ago(800)),
            engines: is_ready.then(|| ("0".into(), signals)).into_iter().collect(),
        }
    }

    fn state(&self) -> VariantState {
        let all = Replicas::new(self.ready + self.starting);
        let ready = (0..self.ready).map(|index| self.pod(index, Phase::Ready));
        let starting = (self.ready..all.get()).map(|index| self.pod(index, Phase::Starting));
        let usual = EngineParameters::defaults(self.engine);
        let max_sequences = self.argument.unwrap_or(usual.max_sequences);
        let engine = EngineParameters { max_sequences, has_max_sequences: self.argument.is_some(), ..usual };
        VariantState {
            variant: Variant {
                id: self.id(),
                model: "m".into(),
                target: TargetRef { kind: "Deployment".into(), name: self.name.into() },
                cost: Cost::new(10.0).unwrap(),
                bounds: Bounds { min: Replicas::ZERO, max: self.max.map(Replicas::new) },
                accelerator: Some("H100".into()),
                role: self.role,
            },
            scale: Some(Scale { spec: all, current: all, ready: Replicas::new(self.ready) }),
            replicas: ready.chain(starting).collect(),
            last_status: None,
            template: Template { engine: Some(engine), ..Template::default() },
        }
    }

    fn decision(&self) -> Decision {
        let (desired, reason) = (Replicas::new(self.decided), Reason::ScaleDown);
        let target = Target { desired, reason, explanation: "by hand".into(), evidence: NOW };
        let (model, verdict) = ("m".into(), Verdict::Target(target));
        Decision { model, accelerator: None, current: None, verdict, gap: None }
    }
}

fn id() -> GroupId {
    GroupId::new("default", "m")
}

fn snapshot(fleets: &[Fleet]) -> Snapshot {
    let mut scheduler = Signals::default();
    scheduler.add(Signal::SchedulerQueueSize, [Sample { at: ago(2), value: 0.0 }]);
    let variants = fleets.iter().map(Fleet::state).collect();
    let group = ModelGroup { source: SourceHealth::Complete, variants, scheduler };
    let groups = [(id(), group)].into();
    Snapshot { now: NOW, groups, invalid: vec![], inventory: None, elsewhere: [].into(), unlabelled: None }
}

fn memory(fleets: &[Fleet]) -> Memory {
    let own = |fleet: &Fleet| {
        let target = Some(Replicas::new(fleet.promised));
        (
            fleet.name.into(),
            VariantMemory { target, target_since: Some(ago(600)), ..VariantMemory::default() },
        )
    };
    let variants = fleets.iter().map(own).collect();
    Memory {
        groups: [(id(), GroupMemory { variants, ..GroupMemory::default() })].into(),
        ..Memory::default()
    }
}

/// The variants whose removal is refused, and why the first is, by `memory` and `policy`.
fn refused_by(fleets: &[Fleet], memory: &Memory, policy: &Policy) -> (Vec<String>, String) {
    let decisions: BTreeMap<VariantId, Decision> =
        fleets.iter().map(|fleet| (fleet.id(), fleet.decision())).collect();
    let violations = check(&snapshot(fleets), memory, policy, &decisions);
    let of_rule = violations.iter().filter(|one| one.rule == Rule::FitsRemaining);
    let detail = of_rule.clone().next().map(|one| one.detail.clone()).unwrap_or_default();
    (of_rule.map(|one| one.variant.name.to_string()).collect(), detail)
}

fn refused(fleets: &[Fleet]) -> (Vec<String>, String) {
    refused_by(fleets, &memory(fleets), &Policy::default())
}

fn names(fleets: &[Fleet]) -> Vec<String> {
    refused(fleets).0
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
    let kept = [Fleet { decided: 2, ..large.clone() }, Fleet { decided: 2, ..small.clone() }];
    assert_eq!(names(&kept), [""; 0]);
    // And where both lose, both are named.
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
fn a_large_replica_that_serves_was_once_given_for_a_small_one_that_does_not_yet() {
    let large =
        Fleet { name: "large", argument: Some(64), running: 50.0, ready: 2, promised: 2, decided: 1, ..FOUR };
    let small =
        Fleet { name: "small", argument: Some(8), running: 1.0, ready: 1, promised: 1, decided: 2, ..FOUR };
    // As many as before in all, and 64 + 8 sequences for 101 requests.
    let (variants, detail) = refused(&[large.clone(), small.clone()]);
    assert_eq!(variants, ["large"], "{detail}");
    assert!(detail.ends_with("of the 72 sequences that remain"), "{detail}");
    // Nor do twenty that are ordered, or start.
    let many = Fleet { decided: 21, ..small.clone() };
    assert_eq!(names(&[large.clone(), many.clone()]), ["large"]);
    assert_eq!(names(&[large.clone(), Fleet { starting: 20, promised: 21, ..many.clone() }]), ["large"]);
    // Once they serve, they have room.
    assert_eq!(names(&[large.clone(), Fleet { ready: 21, promised: 21, running: 1.0, ..many }]), [""; 0]);
    // And what does not serve may go for another one, whatever runs.
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
fn what_a_limit_takes_of_a_promise_is_the_limits_and_what_runs_is_not() {
    let mut limited = Policy::default();
    limited.limits.spend = Some(Cost::new(40.0).unwrap());
    // Nine were promised, and four run.
    let promised = Fleet { running: 30.0, promised: 9, decided: 4, ..FOUR };
    let by = |fleet: &Fleet, policy: &Policy| {
        let fleets = [fleet.clone()];
        refused_by(&fleets, &memory(&fleets), policy).0
    };
    assert_eq!(by(&promised, &Policy::default()), ["a"]);
    assert_eq!(by(&promised, &limited), [""; 0]);
    assert_eq!(by(&Fleet { decided: 3, ..promised }, &limited), ["a"]);
}

#[test]
fn what_is_measured_idle_may_go() {
    let idle = Fleet { running: 0.0, kv: 0.95, decided: 0, ..FOUR };
    let mut policy = Policy::default();
    let by = |policy: &Policy, since: Option<i64>| {
        let fleets = [idle.clone()];
        let mut memory = memory(&fleets);
        memory.groups.values_mut().for_each(|group| group.idle_since = since.map(ago));
        refused_by(&fleets, &memory, policy).0
    };
    assert_eq!(by(&policy, Some(600)), ["a"], "it may not sleep");
    policy.global.default.scale_to_zero = Some(ScaleToZero { enabled: true, retention: Seconds::whole(60) });
    assert_eq!([by(&policy, None), by(&policy, Some(600))], [vec!["a".to_owned()], vec![]]);
}

#[test]
fn an_h100_fleet_without_the_argument_once_had_256_sequences_a_pod_and_might_not_shrink() {
    let busy = Fleet { running: 200.0, argument: None, ..FOUR };
    assert_eq!(names(&[Fleet { argument: Some(256), ..busy.clone() }]), ["a"]);
    assert_eq!(names(std::slice::from_ref(&busy)), [""; 0], "nobody knows how many it runs");
    assert_eq!(names(&[Fleet { engine: Engine::Sglang, ..busy.clone() }]), [""; 0]);
    // Of two variants one is enough not to know.
    let known = Fleet { name: "b", argument: Some(64), running: 60.0, decided: 4, ..FOUR };
    assert_eq!(names(&[busy.clone(), known]), [""; 0]);
    // What its KV caches hold is known all the same.
    assert_eq!(names(&[Fleet { kv: 0.7, ..busy }]), ["a"]);
}

#[test]
fn what_was_ever_seen_running_counts_where_it_is_more_than_the_argument_and_does_not_flicker() {
    let full = [Fleet { running: 30.0, ..FOUR }];
    assert_eq!(names(&full), ["a"]);
    let busier = [Fleet { running: 64.0, ..FOUR }];
    let mut remembered = memory(&full);
    for _ in 0..2 {
        remembered = observe(&snapshot(&busier), remembered);
    }
    let by = |memory: &Memory, fleets: &[Fleet]| refused_by(fleets, memory, &Policy::default()).0;
    assert_eq!(by(&remembered, &full), [""; 0], "4 × 30 of 3 × 64");
    let remembered = observe(&snapshot(&full), remembered);
    assert_eq!(by(&remembered, &full), [""; 0], "minutes later too");
    let other = [Fleet { argument: Some(31), ..full[0].clone() }];
    assert_eq!(by(&remembered, &other), ["a"], "pods that are made otherwise run what theirs says");
    let unknown = [Fleet { argument: None, ..full[0].clone() }];
    assert_eq!(
        by(&observe(&snapshot(&unknown), remembered), &unknown),
        [""; 0],
        "and that alone is no maximum"
    );
}

#[test]
fn nothing_that_was_learned_says_what_fits() {
    // Capacities of a million, learned by every analyzer; and nothing learned.
    let text = r#"{"tokens":{"records":{"a":{"accelerator":"H100","gpus":1,"capacity":9000000,"effective":9000000,
        "learned":"live","updated":"2027-01-15T08:00:00Z"}}},
        "rate":{"knowledge":{"variants":{"a":{"capacity":9e6,"limit":9e3,"most_running":9e3}}}}}"#;
    let learned: wva_core::memory::Learned = serde_json::from_str(text).unwrap();
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
        // Without any memory, what runs is what was promised.
        assert_eq!(by(&bare), by(&Memory::default()));
    }
}
