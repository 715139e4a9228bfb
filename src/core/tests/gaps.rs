//! What the model's analyzers do not know of its pods is told with its cause, and somebody decides about additions meanwhile.

use crate::support::fixture::at;
use wva_core::decision::{Decision, GapCause, SignalGap, Verdict};
use wva_core::memory::{Learned, Memory};
use wva_core::model::{
    Analyzer, Beside, Bounds, ClassTarget, LatencyTargets, Role, ServiceClass, TargetRef, Variant,
};
use wva_core::quality::{RemainingCapacity, Shortfall, mark_sleepers};
use wva_core::snapshot::{
    Engine, EngineParameters, ModelGroup, Phase, Replica, Sample, Scale, Signal, Signals, SourceHealth,
    Template, VariantState,
};
use wva_core::units::{Cost, Replicas, Seconds};
use wva_core::{GroupId, Policy, Snapshot, VariantId, check, decide, observe};

/// Four pods that have served for a quarter of an hour, scraped every 15 s.
struct Fleet {
    policy: Policy,
    memory: Memory,
    now: i64,
    pods: u32,
    /// Requests a second of a pod: 1000 tokens of prompt, 200 generated, 20 ms between two.
    rate: f64,
    kv: f64,
    waiting: f64,
    /// Tokens that an answer has.
    output: f64,
    /// What so many of the pods do not show.
    lacking: (Vec<Signal>, u32),
    /// The counters of all pods stand still since this second.
    frozen_since: Option<i64>,
    /// What else is so of what is seen.
    bend: fn(&mut ModelGroup),
}

fn fleet(analyzer: Analyzer) -> Fleet {
    let mut policy = Policy::default();
    policy.global.default.analyzer = analyzer;
    let latency = LatencyTargets { ttft_ms: 1000.0, itl_ms: 100.0 };
    policy.global.default.queueing.targets = Some(latency);
    let targets = vec![ClassTarget { model: "m".into(), latency }];
    policy.service_classes = vec![ServiceClass { name: "Premium".into(), priority: 1, targets }];
    Fleet {
        policy,
        memory: Memory::default(),
        now: 0,
        pods: 4,
        rate: 2.0,
        kv: 0.3,
        waiting: 0.0,
        output: 200.0,
        lacking: (Vec::new(), 0),
        frozen_since: None,
        bend: |_| {},
    }
}

impl Fleet {
    /// Of all pods.
    fn without(self, signals: &[Signal]) -> Self {
        let pods = self.pods;
        Self { lacking: (signals.to_vec(), pods), ..self }
    }

    fn signals(&self, lacking: &[Signal]) -> Signals {
        let Self { rate, output, kv, waiting, now, .. } = *self;
        let gaps = (output - 1.0).max(0.0);
        let shows = [
            (Signal::KvUsage, kv),
            (Signal::Waiting, waiting),
            (Signal::Running, rate * (0.1 + 0.02 * gaps)),
            (Signal::KvCapacity, 100_000.0),
            (Signal::PromptTokens, 1000.0),
            (Signal::GenerationTokens, output),
            (Signal::InterTokenLatencySum, 0.02 * gaps),
            (Signal::InterTokenLatencyCount, gaps),
            (Signal::TimeToFirstTokenSum, 0.1),
            (Signal::TimeToFirstTokenCount, 1.0),
            (Signal::RequestPromptTokensSum, 1000.0),
            (Signal::RequestPromptTokensCount, 1.0),
            (Signal::RequestGenerationTokensSum, output),
            (Signal::RequestGenerationTokensCount, 1.0),
        ];
        let mut signals = Signals::default();
        for (signal, value) in shows.into_iter().filter(|(signal, _)| !lacking.contains(signal)) {
            let value = |second: i64| {
                let counted = self.frozen_since.map_or(second, |since| second.min(since));
                if signal.is_counter() { value * rate * (10_000 + counted) as f64 } else { value }
            };
            let scrapes = (0..21).map(|back| now - 2 - 15 * back);
            signals.add(signal, scrapes.map(|second| Sample { at: at(second), value: value(second) }));
        }
        signals
    }

    fn state(&self) -> VariantState {
        let replica = |index: u32| {
            let (signals, pods) = &self.lacking;
            let lacking = if index < *pods { signals.as_slice() } else { &[] };
            let signals = self.signals(lacking);
            let engines =
                [("0".into(), signals)].into_iter().filter(|(_, signals)| !signals.is_empty()).collect();
            let (pod, ready_since) = (format!("llama-{index}").into(), Some(at(-800)));
            Replica { pod, phase: Phase::Ready, created: at(-900), ready_since, engines }
        };
        let count = Replicas::new(self.pods);
        VariantState {
            variant: Variant {
                id: VariantId::new("default", "llama"),
                model: "m".into(),
                target: TargetRef { kind: "Deployment".into(), name: "llama".into() },
                cost: Cost::new(10.0).unwrap(),
                bounds: Bounds { min: Replicas::ONE, max: Some(Replicas::new(20)) },
                accelerator: None,
                role: Role::Both,
            },
            scale: Some(Scale { spec: count, current: count, ready: count }),
            replicas: (0..self.pods).map(replica).collect(),
            last_status: None,
            template: Template::default(),
        }
    }

    fn snapshot(&self) -> Snapshot {
        let (source, scheduler) = (SourceHealth::Complete, Signals::default());
        let mut group = ModelGroup { source, variants: vec![self.state()], scheduler };
        (self.bend)(&mut group);
        Snapshot {
            now: at(self.now),
            groups: [(GroupId::new("default", "m"), group)].into(),
            invalid: vec![],
            inventory: None,
            elsewhere: [].into(),
            unlabelled: None,
        }
    }

    /// One evaluation, `later` seconds after the last one.
    fn decide(&mut self, later: i64) -> Decision {
        self.now += later;
        let snapshot = self.snapshot();
        let memory = observe(&snapshot, std::mem::take(&mut self.memory));
        let mut outcome = decide(&snapshot, &memory, &self.policy);
        assert_eq!((outcome.report.violations, outcome.report.failed), (vec![], vec![]));
        self.memory = outcome.memory;
        outcome.decisions.remove(&VariantId::new("default", "llama")).unwrap()
    }

    fn gap(&mut self, later: i64) -> Option<SignalGap> {
        self.decide(later).gap
    }

    /// The numbers of `looks` evaluations, 15 s apart, while the pods are as many as that.
    fn follow(&mut self, looks: u32) -> Vec<u32> {
        let look = |_| {
            let number = number(&self.decide(15));
            if self.lacking.1 == self.pods {
                self.lacking.1 = number;
            }
            self.pods = number;
            number
        };
        (0..looks).map(look).collect()
    }
}

fn number(decision: &Decision) -> u32 {
    match &decision.verdict {
        Verdict::Target(target) => target.desired.get(),
        Verdict::Unknown(unknown) => panic!("{}", unknown.explanation),
    }
}

const GAPS: Signal = Signal::InterTokenLatencySum;

#[test]
fn each_cause_of_a_gap_is_told_by_its_own_name() {
    let all: [(GapCause, Fleet); 8] = [
        (GapCause::NotScraped, Fleet { lacking: (Signal::ALL.to_vec(), 1), ..fleet(Analyzer::Rate) }),
        (GapCause::UnknownEngine, fleet(Analyzer::Rate).without(&Signal::ALL)),
        (GapCause::SeriesDropped, fleet(Analyzer::Rate).without(&[GAPS])),
        (GapCause::EngineVersion, Fleet { lacking: (vec![GAPS], 2), ..fleet(Analyzer::Rate) }),
        (GapCause::Contradicted, Fleet { frozen_since: Some(-100), ..fleet(Analyzer::Rate) }),
        (
            GapCause::PartialSource,
            Fleet {
                bend: |group| {
                    group.source = SourceHealth::Partial { warnings: vec!["a store is down".into()] }
                },
                ..fleet(Analyzer::Rate)
            },
        ),
        (
            GapCause::Asleep,
            Fleet {
                bend: |group| {
                    let variant = &mut group.variants[0];
                    let engine = variant.replicas[1].engines.get_mut("0").unwrap();
                    fall_asleep(engine);
                    mark_sleepers(variant, at(0));
                },
                ..fleet(Analyzer::Rate)
            },
        ),
        (GapCause::NotLearned, Fleet { output: 1.0, rate: 20.0, now: -190, ..fleet(Analyzer::Rate) }),
    ];
    for (cause, mut fleet) in all {
        if cause == GapCause::NotLearned {
            assert_eq!(fleet.gap(0), None);
        }
        let later = -fleet.now;
        let gap = fleet.gap(later).unwrap_or_else(|| panic!("{cause:?}: no gap"));
        assert_eq!(gap.cause, cause);
        assert_eq!(gap.warning.as_deref(), (cause == GapCause::PartialSource).then_some("a store is down"));
    }
    let mut down = fleet(Analyzer::Rate).without(&[GAPS]);
    down.bend = |group| group.source = SourceHealth::Down { cause: "refused".into() };
    assert_eq!(down.gap(0), None, "of a source that is down everything is unknown");
    assert_eq!(fleet(Analyzer::Rate).gap(0), None);
}

/// The engine says that it sleeps, and nothing else.
fn fall_asleep(engine: &mut Signals) {
    *engine = Signals::default();
    engine.add(Signal::Asleep, [Sample { at: at(-1), value: 1.0 }]);
}

#[test]
fn pods_that_stay_out_of_the_list_of_pods_were_told_as_measured() {
    let mut fleet = fleet(Analyzer::Rate);
    fleet.bend = |group| group.variants[0].scale.as_mut().unwrap().ready = Replicas::new(6);
    assert_eq!(fleet.gap(0), None, "the list may be a moment behind");
    assert_eq!(fleet.gap(45), None);
    let gap = fleet.gap(15).unwrap();
    assert_eq!((gap.cause, gap.pods, gap.serving), (GapCause::PodsNotListed, 2, 6));
    fleet.bend = |_| {};
    assert_eq!(fleet.gap(15), None);
    fleet.bend = |group| group.variants[0].scale.as_mut().unwrap().ready = Replicas::new(5);
    assert_eq!(fleet.gap(15), None, "another moment");
}

#[test]
fn the_best_analyzer_that_can_be_measured_stands_in() {
    let sizes = Signal::RequestPromptTokensSum;
    let cases: [(Analyzer, &[Signal], Option<Analyzer>); 10] = [
        (Analyzer::Rate, &[GAPS], Some(Analyzer::Saturation)),
        (Analyzer::Rate, &[GAPS, Signal::KvCapacity], Some(Analyzer::SaturationPercent)),
        (Analyzer::Rate, &[Signal::RequestGenerationTokensSum], Some(Analyzer::SaturationPercent)),
        (Analyzer::Throughput, &[GAPS], Some(Analyzer::Saturation)),
        (Analyzer::Throughput, &[sizes], Some(Analyzer::SaturationPercent)),
        (Analyzer::QueueingModel, &[GAPS], Some(Analyzer::Saturation)),
        (Analyzer::Inferno, &[Signal::TimeToFirstTokenSum], Some(Analyzer::Saturation)),
        (Analyzer::Saturation, &[sizes], Some(Analyzer::SaturationPercent)),
        (Analyzer::Weighted, &[Signal::RequestGenerationTokensSum], Some(Analyzer::SaturationPercent)),
        (Analyzer::SaturationPercent, &[Signal::Waiting], None),
    ];
    for (analyzer, signals, stand_in) in cases {
        let gap = fleet(analyzer).without(signals).gap(0).unwrap();
        assert_eq!(gap.stand_in, stand_in, "{analyzer:?} without {signals:?}");
        assert_eq!(
            gap.missing,
            signals.iter().copied().filter(|one| reads(analyzer, *one)).collect::<Vec<_>>()
        );
    }
}

fn reads(analyzer: Analyzer, signal: Signal) -> bool {
    analyzer.needed(Role::Both).has(signal)
}

#[test]
fn who_stands_in_adds_and_never_removes() {
    for signals in [vec![GAPS], vec![GAPS, Signal::KvCapacity]] {
        let calm = |analyzer| Fleet { kv: 0.02, rate: 0.1, ..fleet(analyzer) };
        let numbers = calm(Analyzer::Rate).without(&signals).follow(60);
        assert!(numbers.iter().all(|number| *number == 4), "{signals:?}: {numbers:?}");
    }
    let mut own = Fleet { kv: 0.02, rate: 0.1, ..fleet(Analyzer::Saturation) };
    assert!(own.follow(60).last() < Some(&4), "the same analyzer removes where it is the model's own");
}

#[test]
fn a_needed_signal_that_never_comes_left_the_analyzer_with_nothing_to_say_and_the_number_held() {
    for analyzer in Analyzer::ALL {
        for signal in analyzer.needed(Role::Both).iter() {
            // Two waiting requests: much for who reads the queue alone, and no saturated fleet.
            let busy = Fleet { kv: 0.93, waiting: 3.0, rate: 10.0, ..fleet(analyzer) };
            let mut lacking = busy.without(&[signal]);
            let gap = lacking.gap(0).unwrap();
            assert_eq!((gap.pods, gap.missing), (4, vec![signal]), "{analyzer:?}");
            let numbers = lacking.follow(40);
            let fewer = numbers.windows(2).any(|two| two[1] < two[0]);
            assert!(!fewer, "{analyzer:?} without {signal:?}: {numbers:?}");
            let reads_half = [Analyzer::Saturation, Analyzer::SaturationPercent].contains(&analyzer);
            let last = lacking.decide(15);
            let grows = numbers.last() > Some(&4);
            assert!(
                grows || !(reads_half || gap.stand_in.is_some()),
                "{analyzer:?} without {signal:?}: {last:?}"
            );
            // By what is left of gauges, or by answers instead of first tokens, the chosen one still finds something.
            let does_without = match analyzer {
                Analyzer::Rate => false,
                Analyzer::Throughput => [Signal::Waiting, Signal::TimeToFirstTokenCount].contains(&signal),
                Analyzer::Weighted => signal == Signal::Waiting,
                // Without a queue, and without a limit of sequences by which it could be estimated.
                Analyzer::Saturation => false,
                _ => [Signal::KvUsage, Signal::Waiting].contains(&signal),
            };
            assert_eq!(gap.stand_in.is_none(), does_without, "{analyzer:?} without {signal:?}");
        }
    }
}

#[test]
fn an_analyzer_that_never_learns_although_all_signals_are_there_was_told_as_steady_and_complete() {
    // Answers of one token have no gaps between tokens.
    let one_token = || Fleet { output: 1.0, rate: 20.0, kv: 0.93, ..fleet(Analyzer::Rate) };
    let mut fleet = one_token();
    for _ in 0..12 {
        assert_eq!(fleet.gap(15), None, "it may be learning");
    }
    let decision = fleet.decide(15);
    let gap = decision.gap.clone().unwrap();
    assert_eq!((gap.cause, gap.missing.len()), (GapCause::NotLearned, 0));
    assert_eq!(gap.stand_in, Some(Analyzer::Saturation));
    assert!(fleet.follow(10).last() > Some(&4), "the cache is full");
    // At rest nobody can learn, and nothing is wrong.
    let mut idle = Fleet { rate: 0.0, kv: 0.0, ..one_token() };
    for _ in 0..40 {
        assert_eq!(idle.gap(15), None);
    }
    // And one that has learned is told no longer.
    fleet.output = 200.0;
    fleet.rate = 2.0;
    fleet.memory.groups.values_mut().for_each(|group| group.evidence = None);
    fleet.follow(30);
    assert_eq!(fleet.gap(15).map(|gap| gap.cause), None);
}

#[test]
fn hours_without_pods_once_counted_as_time_in_which_it_could_have_learned() {
    let mut fleet = Fleet { output: 1.0, rate: 20.0, ..fleet(Analyzer::Rate) };
    assert_eq!(fleet.gap(15), None);
    fleet.pods = 0;
    assert_eq!([15, 2 * 60 * 60].map(|later| fleet.gap(later)), [None, None]);
    fleet.pods = 4;
    for _ in 0..12 {
        assert_eq!(fleet.gap(15), None, "it may be learning");
    }
    assert_eq!(fleet.gap(15).map(|gap| gap.cause), Some(GapCause::NotLearned));
}

/// The model's pods only generate, and four more, which are idle, only compute prompts.
fn split_from_idle_prefill(group: &mut ModelGroup) {
    let newest = group.variants[0].replicas[0].engines.get("0").unwrap().newest(Signal::Running).unwrap();
    let now = newest.at.as_second() - at(0).as_second() + 2;
    let mut idle = Fleet { rate: 0.0, kv: 0.0, now, ..fleet(Analyzer::Rate) }.state();
    group.variants[0].variant.role = Role::Decode;
    idle.variant.role = Role::Prefill;
    idle.variant.id.name = "idle".into();
    idle.variant.target.name = "idle".into();
    for (index, replica) in idle.replicas.iter_mut().enumerate() {
        replica.pod = format!("idle-{index}").into();
    }
    group.variants.push(idle);
    group.sort();
}

#[test]
fn who_stood_in_for_a_busy_role_was_once_not_asked_when_another_role_was_idle() {
    for analyzer in [Analyzer::QueueingModel, Analyzer::Throughput] {
        let mut fleet = Fleet { output: 1.0, rate: 20.0, kv: 0.93, ..fleet(analyzer) };
        fleet.bend = split_from_idle_prefill;
        let numbers = fleet.follow(30);
        assert_eq!(fleet.gap(15).unwrap().stand_in, Some(Analyzer::Saturation), "{analyzer:?}");
        assert!(numbers.last() > Some(&4), "{analyzer:?}: the cache is full: {numbers:?}");
    }
}

#[test]
fn between_two_looks_it_is_told_who_stood_in_at_the_last_one() {
    for analyzer in [Analyzer::QueueingModel, Analyzer::Inferno] {
        let mut fleet = fleet(analyzer).without(&[GAPS]);
        let stand_ins: Vec<_> = (0..12).map(|_| fleet.gap(5).unwrap().stand_in).collect();
        assert!(stand_ins.iter().all(|stand_in| *stand_in == Some(Analyzer::Saturation)), "{stand_ins:?}");
    }
}

#[test]
fn what_was_learned_is_read_as_the_previous_version_wrote_it() {
    let learned: Learned = serde_json::from_str(r#"{"stand_in_share":0.5}"#).unwrap();
    assert_eq!((learned.stand_in_share, learned.unlearned.len()), (Some(0.5), 0));
    let text = r#"{"cause":"NotScraped","pods":1,"serving":2,"missing":["running"]}"#;
    let gap: SignalGap = serde_json::from_str(text).unwrap();
    assert_eq!((gap.cause, gap.warning), (GapCause::NotScraped, None));
    let mut fleet = fleet(Analyzer::QueueingModel).without(&[GAPS]);
    fleet.decide(0);
    let text = serde_json::to_string(&fleet.memory).unwrap();
    assert_eq!(serde_json::from_str::<Memory>(&text).unwrap(), fleet.memory);
}

#[test]
fn what_an_analyzer_beside_the_first_lacks_takes_its_veto_away_no_more() {
    let both = || {
        let mut fleet = Fleet { kv: 0.2, rate: 4.0, ..fleet(Analyzer::Saturation) };
        let beside = Beside { analyzer: Analyzer::Throughput, score: 1.0, utilisation: None };
        fleet.policy.global.default.beside = vec![beside];
        fleet
    };
    let mut whole = both();
    assert_eq!((whole.gap(0), whole.follow(20).last()), (None, Some(&4)), "throughput has nothing to spare");
    let mut half = Fleet { lacking: (vec![Signal::TimeToFirstTokenCount], 2), ..both() };
    let gap = half.gap(0).unwrap();
    assert_eq!((gap.cause, gap.pods), (GapCause::EngineVersion, 2));
    assert_eq!(gap.missing, [Signal::TimeToFirstTokenCount]);
    let numbers = half.follow(20);
    assert!(numbers.iter().all(|number| *number >= 4), "{numbers:?}");
}

/// The state of six pods of which `sleepers` sleep and the others run 20.4 requests each of 32.
fn sleeping(sleepers: usize) -> VariantState {
    let mut state = Fleet { pods: 6, rate: 5.0, ..fleet(Analyzer::Rate) }.state();
    let engine = EngineParameters { max_sequences: 32, ..EngineParameters::defaults(Engine::Vllm) };
    state.template.engine = Some(engine);
    for (at_place, replica) in state.replicas.iter_mut().enumerate() {
        let engine = replica.engines.get_mut("0").unwrap();
        if at_place < sleepers {
            fall_asleep(engine);
        }
    }
    mark_sleepers(&mut state, at(0));
    state
}

#[test]
fn a_removal_once_counted_on_pods_that_sleep_and_could_leave_only_these() {
    let (awake, half) = (sleeping(0), sleeping(3));
    assert_eq!(half.scale.unwrap().ready, Replicas::new(3));
    assert_eq!(half.replicas.iter().filter(|pod| pod.phase == Phase::Asleep).count(), 3);
    assert_eq!(RemainingCapacity::new([(&awake, 0)], at(0)).find_shortfall(&[5]), None);
    // 61 requests, and two of the three that are awake if the sleepers stay.
    let find_shortfall = RemainingCapacity::new([(&half, 0)], at(0)).find_shortfall(&[5]);
    let Some(Shortfall::Sequences(used, left)) = find_shortfall else { panic!("{find_shortfall:?}") };
    assert_eq!((used.round(), left), (61.0, 64.0));
    assert_eq!(RemainingCapacity::new([(&half, 0)], at(0)).find_shortfall(&[6]), None);
    // The checker says the same by itself.
    let mut fleet = Fleet { pods: 6, ..fleet(Analyzer::Rate) };
    fleet.bend = |group| group.variants = vec![sleeping(3)];
    let snapshot = fleet.snapshot();
    let mut outcome = decide(&snapshot, &observe(&snapshot, Memory::default()), &fleet.policy);
    let id = VariantId::new("default", "llama");
    let Verdict::Target(target) = &mut outcome.decisions.get_mut(&id).unwrap().verdict else { panic!() };
    assert!(target.desired >= Replicas::new(6));
    target.desired = Replicas::new(5);
    let found = check::check(&snapshot, &outcome.memory, &fleet.policy, &outcome.decisions);
    assert!(
        found.iter().any(|violation| violation.rule == wva_core::report::Rule::FitsRemaining),
        "{found:?}"
    );
}

#[test]
fn a_pod_that_sleeps_is_no_capacity_and_no_pod_that_comes() {
    let state = sleeping(2);
    let declared = Analyzer::SaturationPercent.declared(Role::Both);
    let look = wva_core::quality::assess_coverage(&SourceHealth::Complete, &[&state], declared, at(0));
    let sight = &look.variants[0];
    assert_eq!((sight.ready, sight.asleep, sight.starting), (4, 2, 0));
    assert_eq!(look.state, wva_core::quality::CoverageState::Fresh, "what sleeps hides nothing");
    assert_eq!(sight.expected_pending(&state, Seconds::whole(300), 0, at(0)), Replicas::ZERO);
    // Old recordings have such pods as Ready ones: they are read, and decided about, as before.
    let mut old = sleeping(2);
    old.replicas.iter_mut().for_each(|pod| pod.phase = Phase::Ready);
    let text = serde_json::to_string(&old).unwrap();
    assert_eq!(serde_json::from_str::<VariantState>(&text).unwrap(), old);
    // An engine that shows its cache is awake, and one that has not been heard of for long is not known to sleep.
    let marked = |engine: fn(&mut Signals)| {
        let mut state = sleeping(1);
        state.replicas[0].phase = Phase::Ready;
        engine(state.replicas[0].engines.get_mut("0").unwrap());
        mark_sleepers(&mut state, at(0));
        state.replicas[0].phase
    };
    assert_eq!(marked(|_| {}), Phase::Asleep);
    let works = |engine: &mut Signals| {
        *engine = Signals::default();
        let sample = |second: i64, value| Sample { at: at(second), value };
        engine.add(Signal::Asleep, [sample(-17, 1.0), sample(-2, 1.0)]);
        engine.add(Signal::GenerationTokens, [sample(-17, 1.0), sample(-2, 2.0)]);
    };
    assert_eq!(marked(works), Phase::Ready, "it says so, and generates");
    assert_eq!(marked(|engine| engine.add(Signal::Asleep, [Sample { at: at(0), value: 0.0 }])), Phase::Ready);
    let stale = |engine: &mut Signals| {
        *engine = Signals::default();
        engine.add(Signal::Asleep, [Sample { at: at(-61), value: 1.0 }]);
    };
    assert_eq!(marked(stale), Phase::Ready);
}
