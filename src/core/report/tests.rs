//! Texts of reasons, and what comes back from the wire.

use crate::bound::stability::StabilityRule;
use crate::decision::{Decision, Reason, Target, Verdict};
use crate::limit::Binding;
use crate::memory::VariantMemory;
use crate::model::{Analyzer, Role};
use crate::quality::Shortfall;
use crate::units::{Replicas, figure};

use super::*;

fn rate(role: Role) -> Analysis {
    Analysis::from(Finding::Rate(RateExplanation {
        role,
        demand: figure(11.4951),
        refused: None,
        forecast: Some(Forecast { rate: figure(14.9), seconds: figure(62.0) }),
        capacity: 24.0,
        replicas: 3.0,
        constraint: RateConstraint::SurgeReserve { share: 0.57 },
        supports: figure(15.3),
        removal_in: None,
    }))
}

fn explained(running: u32, number: u32, basis: Basis, analysis: Option<Analysis>) -> Reasoning {
    let (running, number) = (Some(Replicas::new(running)), Some(Replicas::new(number)));
    Reasoning { running, number, basis, analysis, adjustments: Vec::new(), withheld: None, hindrance: None }
}

fn binding() -> Binding {
    Binding { limit: "team".into(), key: "H100".into(), budget: 8.0, used: 8.0, elsewhere: 0.0, free: 0.0 }
}

fn adjusted(stage: Stage, from: u32, to: u32, why: AdjustmentReason) -> Adjustment {
    Adjustment { stage, from: Some(Replicas::new(from)), to: Replicas::new(to), why }
}

#[test]
fn a_number_is_explained_by_demand_capacity_and_what_binds() {
    let analyzed = Basis::Analyzed { caveat: None };
    let text = explained(3, 4, analyzed.clone(), Some(rate(Role::Both))).to_string();
    let expected = "demand 11.5 req/s (forecast 14.9 in 62 s); capacity 24.0 req/s with 3 replicas; surge reserve supports 15.3 req/s → 4 replicas";
    assert_eq!(text, expected);
    let mut refusing = rate(Role::Both);
    if let Finding::Rate(found) = &mut refusing.finding {
        found.refused = Some(figure(4.37));
    }
    let text = explained(3, 4, analyzed.clone(), Some(refusing)).to_string();
    assert!(
        text.starts_with("demand 11.5 req/s, of which 4.37 refused (forecast 14.9 in 62 s); capacity"),
        "{text}"
    );
    let mut limited = explained(3, 5, analyzed, Some(rate(Role::Decode)));
    let why = AdjustmentReason::Limit { binding: Some(binding()) };
    limited.adjustments.push(adjusted(Stage::Limit, 5, 3, why));
    limited.number = Some(Replicas::new(3));
    let expected = "decode: demand 11.5 req/s (forecast 14.9 in 62 s); capacity 24.0 req/s with 3 replicas; surge reserve supports 15.3 req/s; 3 instead of 5: team of H100: 0.0 of 8.0 free, 8.0 used → 3 replicas";
    assert_eq!(limited.to_string(), expected);
}

#[test]
fn what_is_held_says_so_until_it_is_withheld() {
    let mut held = explained(2, 2, Basis::NoSeries { ready: 1 }, None);
    let why = "no series from 1 Ready pod: check that they serve /metrics and that the source scrapes them";
    assert_eq!(held.to_string(), format!("{why}; holding 2 replicas"));
    held.withheld = Some(Withheld::EvidenceTooOld { age: 301.0, limit: 300.0 });
    let expected = format!("the newest evidence is 301 s old, more than max-stale (300 s); {why}");
    assert_eq!(held.to_string(), expected);
}

#[test]
fn an_order_that_did_not_come_at_zero_says_that_an_hpa_does_nothing_there() {
    let mut state = saturation(Relief::NotComing, 0);
    assert!(state.to_string().contains("an HPA never scales a target that has 0 replicas"), "{state}");
    (state.running, state.ordered) = (Replicas::ONE, Replicas::new(2));
    assert!(
        state
            .to_string()
            .ends_with("1 of 2 ordered replicas run: check the HPA's maximum and quotas on pods")
    );
}

/// Explanations of every kind of structure.
fn all() -> Vec<Explanation> {
    let zero = Replicas::ZERO;
    let fallback = Fallback { own: Analyzer::Rate, analyzer: Analyzer::Saturation };
    let totals = CapacityTotals {
        role: Some(Role::Prefill),
        demand: 1.5,
        supply: 2.0,
        anticipated: 3.0,
        required: 0.0,
        spare: 0.25,
    };
    let capacity = CapacityFinding { analyzer: Analyzer::Saturation, totals: vec![totals] };
    let analysis = Analysis {
        finding: Finding::Capacity { analyzers: vec![capacity] },
        fallback: Some(fallback),
        removal_limit: Some(Shortfall::KvCache { used: 0.1, remaining: 0.3 }),
    };
    let caveat = Some(Caveat::Blocked { by: Blocker::NoNode { pods: 2 } });
    let mut full = explained(1, 2, Basis::Analyzed { caveat }, Some(analysis));
    full.adjustments = vec![
        adjusted(
            Stage::Bound,
            4,
            2,
            AdjustmentReason::Stability { rule: StabilityRule::Dwell { seconds: 60.0 } },
        ),
        adjusted(Stage::Limit, 4, 2, AdjustmentReason::Limit { binding: Some(binding()) }),
        adjusted(Stage::Bound, 4, 2, AdjustmentReason::HpaTolerance { tolerance: 0.1 }),
    ];
    full.withheld = Some(Withheld::NothingKnown);
    let bases = [
        Basis::Recorded { text: "as it was".into() },
        Basis::Idle,
        Basis::AwaitingReplicas { variant: Some("b".into()), desired: Replicas::ONE, running: zero },
        Basis::RuleBroken { rule: Rule::OneStep, detail: Breach::Recorded("two steps".into()) },
        Basis::RuleBroken {
            rule: Rule::WithinBounds,
            detail: Breach::OutOfBounds { decided: 9, nearest: 5 },
        },
        Basis::DecisionFailed { cause: "panic".into(), retry_at: jiff::Timestamp::UNIX_EPOCH },
    ];
    let bases = bases.into_iter().map(|basis| explained(0, 1, basis, None).into());
    bases.chain([Explanation::from(full), Explanation::text("only text")]).collect()
}

#[test]
fn explanations_come_back_from_the_wire_as_they_were() {
    for explanation in all() {
        let text = explanation.to_string();
        let target = Target {
            desired: Replicas::ONE,
            reason: Reason::Steady,
            explanation,
            evidence: jiff::Timestamp::UNIX_EPOCH,
        };
        let json = serde_json::to_value(&target).unwrap();
        assert_eq!(json["message"], text.as_str(), "what earlier versions and people read");
        assert_eq!(serde_json::from_value::<Target>(json).unwrap(), target);
        let memory =
            VariantMemory { explanation: Some(target.explanation.clone()), ..VariantMemory::default() };
        let json = serde_json::to_string(&memory).unwrap();
        assert_eq!(serde_json::from_str::<VariantMemory>(&json).unwrap(), memory);
    }
}

#[test]
fn decisions_and_memories_of_earlier_versions_are_read_and_written_as_text() {
    let target = r#"{"desired":3,"reason":"ScaleUp","message":"2 to 3","evidence":"2026-11-21T12:00:00Z"}"#;
    let json = format!(r#"{{"model":"m","verdict":{{"target":{target}}}}}"#);
    let decision: Decision = serde_json::from_str(&json).unwrap();
    let Verdict::Target(read) = &decision.verdict else { panic!("no number") };
    assert_eq!((read.desired, read.explanation.clone()), (Replicas::new(3), Explanation::text("2 to 3")));
    assert_eq!(serde_json::to_string(&decision).unwrap(), json, "so that earlier versions read it");
    let memory = r#"{"target":3,"reason":"ScaleUp","message":"2 to 3"}"#;
    let read: VariantMemory = serde_json::from_str(memory).unwrap();
    assert_eq!(read.explanation, Some(Explanation::text("2 to 3")));
    assert_eq!(serde_json::to_string(&read).unwrap(), memory);
    let empty: VariantMemory = serde_json::from_str("{}").unwrap();
    assert_eq!((empty.explanation.is_none(), serde_json::to_string(&empty).unwrap().as_str()), (true, "{}"));
}

#[test]
fn reasons_are_the_same_whatever_their_numbers_are() {
    let analyzed = |caveat, demand| {
        let mut reasoning = explained(3, 3, Basis::Analyzed { caveat }, Some(rate(Role::Both)));
        if let Some(Analysis { finding: Finding::Rate(rate), .. }) = &mut reasoning.analysis {
            rate.demand = demand;
        }
        Explanation::from(reasoning)
    };
    assert!(analyzed(None, 1.0).has_same_reasons(&analyzed(None, 2.0)));
    assert!(!analyzed(None, 1.0).has_same_reasons(&analyzed(Some(Caveat::EstimatedPods), 1.0)));
    assert!(!analyzed(None, 1.0).has_same_reasons(&Explanation::text("calm")));
    assert!(Explanation::text("calm").has_same_reasons(&Explanation::text("calm")));
    assert!(!Explanation::text("calm").has_same_reasons(&Explanation::text("calmer")));
    let mut limited = analyzed(None, 1.0);
    let why = AdjustmentReason::Limit { binding: None };
    limited.to_mut().adjustments.push(adjusted(Stage::Limit, 4, 3, why));
    assert!(!limited.has_same_reasons(&analyzed(None, 1.0)));
}

/// V1's finding, with the spare KV cache and its trigger.
fn percent((spare_kv, kv_trigger): (f64, f64), spare_queue: f64) -> Finding {
    Finding::SaturationPercent {
        spare_kv,
        kv_trigger,
        spare_queue,
        queue_trigger: 3.0,
        non_saturated: 2,
        total: 2,
    }
}

#[test]
fn a_status_kept_the_triggers_of_before_a_new_configuration_for_a_minute() {
    let by = |kv_trigger| {
        let analysis = Analysis::from(percent((0.3, kv_trigger), 4.0));
        Explanation::from(explained(2, 2, Basis::Analyzed { caveat: None }, Some(analysis)))
    };
    assert!(by(0.1).has_same_reasons(&by(0.1)));
    assert!(!by(0.1).has_same_reasons(&by(0.79)), "another trigger counted as another measured value");
}

#[test]
fn another_limit_rule_or_state_was_taken_for_the_same_reason_with_other_figures() {
    let limited = |limit: &str, key: &str, used| AdjustmentReason::Limit {
        binding: Some(Binding { limit: limit.into(), key: key.into(), used, ..binding() }),
    };
    let stable = |rule| AdjustmentReason::Stability { rule };
    let must_fit = |limit| AdjustmentReason::MustFit { limit };
    let (sequences, cache) = (
        |used| must_fit(Shortfall::Sequences { used, remaining: 9.0 }),
        must_fit(Shortfall::KvCache { used: 1.0, remaining: 9.0 }),
    );
    let (window, dwell) =
        (|seconds| stable(StabilityRule::Window { seconds }), stable(StabilityRule::Dwell { seconds: 45.0 }));
    let cases = [
        ("figures of a limit", limited("team", "H100", 8.0), limited("team", "H100", 7.0), true),
        ("another limit", limited("team", "H100", 8.0), limited("power", "H100", 8.0), false),
        ("another key", limited("team", "H100", 8.0), limited("team", "A100", 8.0), false),
        ("no named limit", limited("team", "H100", 8.0), AdjustmentReason::Limit { binding: None }, false),
        ("figures of a rule", window(45.0), window(60.0), true),
        ("another rule", window(45.0), dwell, false),
        ("figures of a shortfall", sequences(9.0), sequences(8.5), true),
        ("another shortfall", sequences(9.0), cache, false),
        ("figures of a state", saturated(Relief::Starting, 2), saturated(Relief::Starting, 3), true),
        ("another state", saturated(Relief::Starting, 2), saturated(Relief::AtMaximum, 2), false),
    ];
    for (what, before, after, is_same) in cases {
        let [before, after] = [before, after].map(|why| {
            let mut reasoning = explained(3, 3, Basis::Analyzed { caveat: None }, Some(rate(Role::Both)));
            reasoning.adjustments = vec![adjusted(Stage::Bound, 4, 3, why)];
            Explanation::from(reasoning)
        });
        assert_eq!(before.has_same_reasons(&after), is_same, "{what}");
    }
}

#[test]
fn figures_are_short_and_finite() {
    let figures = [1.0 / 3.0, f64::NAN, f64::INFINITY, 1e300, -0.00004].map(figure);
    assert_eq!(figures.map(f64::to_bits), [0.3333, 0.0, f64::MAX, 1e300, -0.0].map(f64::to_bits));
}

#[test]
fn a_constraint_of_capacity_names_the_limit_what_it_holds_back_and_what_ends_it() {
    let analyzed = Basis::Analyzed { caveat: None };
    let limited = |from: Option<u32>, binding| {
        let why = AdjustmentReason::Limit { binding };
        let mut reasoning = explained(3, 3, analyzed.clone(), Some(rate(Role::Both)));
        let own = Adjustment { from: from.map(Replicas::new), ..adjusted(Stage::Limit, 5, 3, why) };
        let bounds = AdjustmentReason::Bounds { min: Replicas::ONE, max: None };
        reasoning.adjustments = vec![own, adjusted(Stage::Bound, 3, 3, bounds)];
        reasoning
    };
    let of = |limit: &str, key: &str| Some(Binding { limit: limit.into(), key: key.into(), ..binding() });
    let full = "0.0 of 8.0 free, 8.0 used";
    for (reasoning, limit, text) in [
        (
            limited(Some(5), of("team", "H100")),
            "team",
            format!(
                "3 instead of 5: team of H100: {full}; it ends when the limit is raised, or others use less of it"
            ),
        ),
        (
            limited(None, of("inventory", "H100")),
            "inventory",
            format!(
                "more replicas are needed, but limited by inventory of H100: {full}; it ends when nodes with H100 are added, or others use fewer"
            ),
        ),
        (
            limited(Some(4), of("power", "unknown")),
            "power",
            format!(
                "3 instead of 4: power of unknown: {full}; what a replica uses of it is not known: name the variant's accelerator, and list it in the limit"
            ),
        ),
        (
            limited(Some(4), None),
            "free GPUs",
            "3 instead of 4: free GPUs; it ends when GPUs of the accelerator are freed or added".into(),
        ),
    ] {
        let constraint = reasoning.capacity_constraint().unwrap();
        assert_eq!((constraint.as_str(), reasoning.limit()), ("LimitReached", Some(limit)));
        assert_eq!(constraint.to_string(), text);
    }
    let hindered = |hindrance| {
        let limited = limited(Some(5), of("team", "H100"));
        Reasoning { hindrance: Some(hindrance), ..limited }
    };
    let (without_room, denied) = (
        hindered(Hindrance::NoNode { pods: 2, message: Some("0/1 nodes are available".into()) }),
        hindered(Hindrance::Denied),
    );
    let constraint = without_room.capacity_constraint().unwrap();
    assert_eq!((constraint.as_str(), without_room.limit()), ("NoNodeHasRoom", Some("team")));
    assert_eq!(
        constraint.to_string(),
        "no node has room for 2 pods; the scheduler says: 0/1 nodes are available; it ends when nodes are added, or room on \
         them is freed"
    );
    assert!(!denied.capacity_constraint().unwrap().is_earlier(), "denied again, by a limit that is known");
    let earlier = Reasoning { adjustments: Vec::new(), ..denied };
    let constraint = earlier.capacity_constraint().unwrap();
    assert_eq!((constraint.as_str(), constraint.is_earlier(), earlier.limit()), ("LimitReached", true, None));
    let mut at_maximum = explained(3, 3, analyzed.clone(), None);
    let max = Some(Replicas::new(3));
    at_maximum.adjustments =
        vec![adjusted(Stage::Bound, 5, 3, AdjustmentReason::Bounds { min: Replicas::ONE, max })];
    assert_eq!(at_maximum.capacity_constraint(), None, "its owner chose the maximum");
}

#[test]
fn figures_of_capacity_are_those_of_the_variants_role_in_the_analyzers_unit() {
    let totals = |role, required, spare| CapacityTotals {
        role,
        demand: 1.0,
        supply: 2.0,
        anticipated: 2.0,
        required,
        spare,
    };
    let capacity =
        |analyzer, totals| Finding::Capacity { analyzers: vec![CapacityFinding { analyzer, totals }] };
    let roles = || vec![totals(Some(Role::Prefill), 5.0, 0.0), totals(Some(Role::Decode), 0.0, 7.0)];
    let figures = |unit, required, spare| Some(CapacityFigures { unit, required, spare });
    for (finding, role, expected) in [
        (percent((0.3, 0.1), 4.0), Role::Both, figures(CapacityUnit::Share, 0.0, 0.3)),
        (percent((0.3, 0.1), 2.0), Role::Both, figures(CapacityUnit::Share, 1.0, 0.3)),
        (capacity(Analyzer::Saturation, roles()), Role::Decode, figures(CapacityUnit::Tokens, 0.0, 7.0)),
        (
            capacity(Analyzer::Throughput, roles()),
            Role::Prefill,
            figures(CapacityUnit::TokensPerSecond, 5.0, 0.0),
        ),
        (capacity(Analyzer::Saturation, roles()), Role::Both, None),
        (
            capacity(Analyzer::QueueingModel, vec![totals(None, 2.0, 0.0)]),
            Role::Decode,
            figures(CapacityUnit::RequestsPerSecond, 2.0, 0.0),
        ),
        (Finding::Allocation, Role::Both, None),
    ] {
        let reasoning = explained(2, 2, Basis::Analyzed { caveat: None }, Some(Analysis::from(finding)));
        assert_eq!(reasoning.capacity_figures(role), expected, "{reasoning:?}");
    }
    assert_eq!(explained(2, 2, Basis::Idle, None).capacity_figures(Role::Both), None);
}

fn saturation(relief: Relief, running: u32) -> Saturation {
    Saturation {
        saturated_by: SaturationCause::Queue,
        relief,
        running: Replicas::new(running),
        ordered: Replicas::ONE,
        max: None,
        starting: 0,
        unschedulable: 0,
        not_ready: 0,
        start_up: 95,
    }
}

fn saturated(relief: Relief, running: u32) -> AdjustmentReason {
    AdjustmentReason::Saturated { state: saturation(relief, running) }
}

/// The kinds of the constraints in one direction.
fn kinds(reasoning: &Reasoning, direction: Direction) -> Vec<ConstraintKind> {
    reasoning.binding_constraints(direction).into_iter().map(|constraint| constraint.kind).collect()
}

#[test]
fn what_keeps_a_number_from_being_higher_is_the_limit_and_from_being_lower_the_demand() {
    let mut limited = explained(3, 5, Basis::Analyzed { caveat: None }, Some(rate(Role::Both)));
    let why = AdjustmentReason::Limit { binding: Some(binding()) };
    limited.adjustments.push(adjusted(Stage::Limit, 5, 3, why));
    let higher = limited.binding_constraints(Direction::More);
    assert_eq!(kinds(&limited, Direction::More), [ConstraintKind::Limit]);
    assert!(higher[0].text.starts_with("3 instead of 5: team of H100: 0.0 of 8.0 free"), "{higher:?}");
    assert!(higher[0].text.contains("it ends when the limit is raised"), "{higher:?}");
    assert_eq!(kinds(&limited, Direction::Fewer), [ConstraintKind::Demand]);
}

#[test]
fn bounds_cooldowns_and_held_numbers_bind_where_they_apply() {
    let analyzed = |caveat| explained(3, 3, Basis::Analyzed { caveat }, Some(rate(Role::Both)));
    let with = |from, to, why| {
        let mut reasoning = analyzed(None);
        reasoning.adjustments.push(adjusted(Stage::Bound, from, to, why));
        reasoning
    };
    let bounds = || AdjustmentReason::Bounds { min: Replicas::ONE, max: Some(Replicas::new(3)) };
    let cooldown = AdjustmentReason::Stability { rule: StabilityRule::Dwell { seconds: 60.0 } };
    let (more, fewer, demand) = (Direction::More, Direction::Fewer, ConstraintKind::Demand);
    for (reasoning, higher, lower) in [
        (analyzed(None), demand, demand),
        (with(5, 3, bounds()), ConstraintKind::Maximum, demand),
        (with(0, 1, bounds()), demand, ConstraintKind::Minimum),
        (with(2, 3, cooldown), demand, ConstraintKind::Stability),
        (analyzed(Some(Caveat::UnmeasuredPods)), demand, ConstraintKind::MissingSignal),
        (
            analyzed(Some(Caveat::Blocked { by: Blocker::Maximum { max: Replicas::new(3) } })),
            ConstraintKind::Maximum,
            demand,
        ),
        (
            explained(2, 2, Basis::SourceDown { cause: "refused".into() }, None),
            ConstraintKind::MissingSignal,
            ConstraintKind::MissingSignal,
        ),
        (explained(1, 1, Basis::LastReplicaKept, None), demand, ConstraintKind::Minimum),
    ] {
        let found = (kinds(&reasoning, more), kinds(&reasoning, fewer));
        assert_eq!(found, (vec![higher], vec![lower]), "{reasoning}");
    }
}

#[test]
fn a_saturated_fleet_at_its_maximum_is_not_lower_because_it_is_saturated() {
    let mut reasoning = explained(3, 3, Basis::Analyzed { caveat: None }, Some(rate(Role::Both)));
    reasoning.adjustments.push(adjusted(Stage::Bound, 3, 3, saturated(Relief::AtMaximum, 3)));
    assert_eq!(kinds(&reasoning, Direction::More), [ConstraintKind::Maximum]);
    assert_eq!(kinds(&reasoning, Direction::Fewer), [ConstraintKind::Saturated]);
}

#[test]
fn a_quota_was_once_not_named_while_a_pod_had_no_node() {
    let mut limited = explained(3, 5, Basis::Analyzed { caveat: None }, Some(rate(Role::Both)));
    let why = AdjustmentReason::Limit { binding: Some(binding()) };
    limited.adjustments.push(adjusted(Stage::Limit, 5, 3, why));
    limited.hindrance = Some(Hindrance::NoNode { pods: 1, message: None });
    assert_eq!(kinds(&limited, Direction::More), [ConstraintKind::NoNode, ConstraintKind::Limit]);
}
