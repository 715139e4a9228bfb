//! What an analyzer does not know about its pods is reported with its cause, and a fallback decides about additions meanwhile.

use crate::tests::support::prelude::*;
use crate::tests::support::steady::scrapes;
use wva_core::check;
use wva_core::decision::{GapCause, SignalGap};
use wva_core::quality::{RemainingCapacity, Shortfall, mark_sleepers};

/// Four pods that have served for a quarter of an hour, scraped every 15 s.
struct Fleet {
    policy: Policy,
    memory: Memory,
    now: i64,
    pods: u32,
    /// Requests/s of each pod, with 1000 prompt tokens, 200 generated ones, and 20 ms between two of these.
    rate: f64,
    kv: f64,
    waiting: f64,
    /// Tokens of an answer.
    output: f64,
    /// Signals that the first so many pods do not show.
    lacking: (Vec<Signal>, u32),
    /// The counters of all pods stand still since this second.
    frozen_since: Option<i64>,
    /// A last change to the model as the snapshot shows it.
    adjust: fn(&mut ModelGroup),
}

fn fleet(analyzer: Analyzer) -> Fleet {
    let mut policy = policy_of(analyzer);
    let latency = LatencyTargets { ttft_ms: 1000.0, itl_ms: 100.0 };
    policy.global.default.queueing.targets = Some(latency);
    policy.service_classes = premium(latency);
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
        adjust: |_| {},
    }
}

impl Fleet {
    /// The same fleet, none of whose pods shows `signals`.
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
            signals.add(signal, scrapes(now).map(|second| Sample { at: at(second), value: value(second) }));
        }
        signals
    }

    fn state(&self) -> VariantState {
        let (lacking, pods) = &self.lacking;
        let pod = |index: u32| {
            let lacking = if index < *pods { lacking.as_slice() } else { &[] };
            ready_pod(format!("llama-{index}"), self.signals(lacking))
        };
        let mut state = variant_state("llama", (0..self.pods).map(pod).collect());
        state.variant.bounds.max = Some(Replicas::new(20));
        state
    }

    fn snapshot(&self) -> Snapshot {
        let mut group = model_group(vec![self.state()]);
        (self.adjust)(&mut group);
        snapshot_of(at(self.now), group)
    }

    /// One evaluation, `later` seconds after the last one.
    fn decide(&mut self, later: i64) -> Decision {
        self.now += later;
        let snapshot = self.snapshot();
        let mut outcome = evaluate(&snapshot, std::mem::take(&mut self.memory), &self.policy);
        self.memory = outcome.memory;
        outcome.decisions.remove(&id("llama")).unwrap()
    }

    fn gap(&mut self, later: i64) -> Option<SignalGap> {
        self.decide(later).gap
    }

    /// The numbers decided by so many evaluations, 15 s apart. The fleet has as many pods as the last one decided.
    fn follow(&mut self, evaluations: u32) -> Vec<u32> {
        let follow = |_| {
            let number = number_of(&self.decide(15).verdict).unwrap().get();
            if self.lacking.1 == self.pods {
                self.lacking.1 = number;
            }
            self.pods = number;
            number
        };
        (0..evaluations).map(follow).collect()
    }
}

const GAPS: Signal = Signal::InterTokenLatencySum;

/// The second pod reports that it sleeps, and shows nothing else.
fn send_to_sleep(group: &mut ModelGroup) {
    let variant = &mut group.variants[0];
    fall_asleep(variant.pods[1].engines.get_mut("0").unwrap());
    mark_sleepers(variant, at(0));
}

fn lose_a_store(group: &mut ModelGroup) {
    group.source = SourceHealth::Partial { warnings: vec!["a store is down".into()] };
}

#[test]
fn each_cause_of_a_gap_is_reported_by_its_own_name() {
    let all: [(GapCause, Fleet); 8] = [
        (GapCause::NotScraped, Fleet { lacking: (Signal::ALL.to_vec(), 1), ..fleet(Analyzer::Rate) }),
        (GapCause::UnknownEngine, fleet(Analyzer::Rate).without(&Signal::ALL)),
        (GapCause::SeriesDropped, fleet(Analyzer::Rate).without(&[GAPS])),
        (GapCause::EngineVersion, Fleet { lacking: (vec![GAPS], 2), ..fleet(Analyzer::Rate) }),
        (GapCause::Contradicted, Fleet { frozen_since: Some(-100), ..fleet(Analyzer::Rate) }),
        (GapCause::PartialSource, Fleet { adjust: lose_a_store, ..fleet(Analyzer::Rate) }),
        (GapCause::Asleep, Fleet { adjust: send_to_sleep, ..fleet(Analyzer::Rate) }),
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
    down.adjust = |group| group.source = SourceHealth::Down { cause: "refused".into() };
    assert_eq!(down.gap(0), None, "nothing is known while the source is down");
    assert_eq!(fleet(Analyzer::Rate).gap(0), None);
}

/// The engine reports that it sleeps, and shows nothing else.
fn fall_asleep(engine: &mut Signals) {
    *engine = Signals::default();
    engine.add(Signal::Asleep, [Sample { at: at(-1), value: 1.0 }]);
}

#[test]
fn pods_that_stay_out_of_the_list_of_pods_are_a_gap() {
    let mut fleet = fleet(Analyzer::Rate);
    fleet.adjust = |group| group.variants[0].scale.as_mut().unwrap().ready = Replicas::new(6);
    assert_eq!(fleet.gap(0), None, "the list may be a moment behind");
    assert_eq!(fleet.gap(45), None);
    let gap = fleet.gap(15).unwrap();
    assert_eq!((gap.cause, gap.pods, gap.serving), (GapCause::PodsNotListed, 2, 6));
    fleet.adjust = |_| {};
    assert_eq!(fleet.gap(15), None);
    fleet.adjust = |group| group.variants[0].scale.as_mut().unwrap().ready = Replicas::new(5);
    assert_eq!(fleet.gap(15), None, "another moment");
}

#[test]
fn the_best_analyzer_that_can_be_measured_is_the_fallback() {
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
    for (analyzer, signals, fallback) in cases {
        let gap = fleet(analyzer).without(signals).gap(0).unwrap();
        assert_eq!(gap.fallback, fallback, "{analyzer:?} without {signals:?}");
        let needed = analyzer.needed(Role::Both);
        let missing: Vec<_> = signals.iter().copied().filter(|signal| needed.has(*signal)).collect();
        assert_eq!(gap.missing, missing);
    }
}

#[test]
fn a_fallback_adds_and_never_removes() {
    for signals in [vec![GAPS], vec![GAPS, Signal::KvCapacity]] {
        let calm = |analyzer| Fleet { kv: 0.02, rate: 0.1, ..fleet(analyzer) };
        let numbers = calm(Analyzer::Rate).without(&signals).follow(60);
        assert!(numbers.iter().all(|number| *number == 4), "{signals:?}: {numbers:?}");
    }
    let mut own = Fleet { kv: 0.02, rate: 0.1, ..fleet(Analyzer::Saturation) };
    assert!(own.follow(60).last() < Some(&4), "the same analyzer removes where it is the model's own");
}

#[test]
fn without_a_needed_signal_the_number_grows_and_does_not_fall() {
    for analyzer in Analyzer::ALL {
        for signal in analyzer.needed(Role::Both).iter() {
            // Three waiting requests: many for an analyzer that reads only the queue, but the fleet is not saturated.
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
                grows || !(reads_half || gap.fallback.is_some()),
                "{analyzer:?} without {signal:?}: {last:?}"
            );
            // The chosen analyzer still finds something in the remaining gauges, or in answers instead of first tokens.
            let does_without = match analyzer {
                Analyzer::Rate => false,
                Analyzer::Throughput => [Signal::Waiting, Signal::TimeToFirstTokenCount].contains(&signal),
                Analyzer::Weighted => signal == Signal::Waiting,
                // It has neither a queue nor a maximum of sequences by which a queue could be estimated.
                Analyzer::Saturation => false,
                _ => [Signal::KvUsage, Signal::Waiting].contains(&signal),
            };
            assert_eq!(gap.fallback.is_none(), does_without, "{analyzer:?} without {signal:?}");
        }
    }
}

#[test]
fn an_analyzer_that_never_learns_although_all_signals_are_there_is_a_gap() {
    // Answers of one token have no gaps between tokens.
    let one_token = || Fleet { output: 1.0, rate: 20.0, kv: 0.93, ..fleet(Analyzer::Rate) };
    let mut fleet = one_token();
    for _ in 0..12 {
        assert_eq!(fleet.gap(15), None, "it may be learning");
    }
    let decision = fleet.decide(15);
    let gap = decision.gap.clone().unwrap();
    assert_eq!((gap.cause, gap.missing.len()), (GapCause::NotLearned, 0));
    assert_eq!(gap.fallback, Some(Analyzer::Saturation));
    assert!(fleet.follow(10).last() > Some(&4), "the cache is full");
    // Without load nothing can be learned, and nothing is wrong.
    let mut idle = Fleet { rate: 0.0, kv: 0.0, ..one_token() };
    for _ in 0..40 {
        assert_eq!(idle.gap(15), None);
    }
    // Once it has learned, there is no gap.
    fleet.output = 200.0;
    fleet.rate = 2.0;
    fleet.memory.groups.values_mut().for_each(|group| group.signal_history = None);
    fleet.follow(30);
    assert_eq!(fleet.gap(15).map(|gap| gap.cause), None);
}

#[test]
fn time_without_pods_does_not_count_as_learning_time() {
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

/// The model's pods only generate; four more, which are idle, only compute prompts.
fn split_from_idle_prefill(group: &mut ModelGroup) {
    let newest = group.variants[0].pods[0].engines.get("0").unwrap().newest(Signal::Running).unwrap();
    let now = newest.at.as_second() - at(0).as_second() + 2;
    let mut idle = Fleet { rate: 0.0, kv: 0.0, now, ..fleet(Analyzer::Rate) }.state();
    group.variants[0].variant.role = Role::Decode;
    idle.variant.role = Role::Prefill;
    (idle.variant.id, idle.variant.target.name) = (id("idle"), "idle".into());
    for (index, pod) in idle.pods.iter_mut().enumerate() {
        pod.name = format!("idle-{index}").into();
    }
    group.variants.push(idle);
    group.sort();
}

#[test]
fn a_busy_role_gets_its_fallback_although_another_role_is_idle() {
    for analyzer in [Analyzer::QueueingModel, Analyzer::Throughput] {
        let mut fleet = Fleet { output: 1.0, rate: 20.0, kv: 0.93, ..fleet(analyzer) };
        fleet.adjust = split_from_idle_prefill;
        let numbers = fleet.follow(30);
        assert_eq!(fleet.gap(15).unwrap().fallback, Some(Analyzer::Saturation), "{analyzer:?}");
        assert!(numbers.last() > Some(&4), "{analyzer:?}: the cache is full: {numbers:?}");
    }
}

#[test]
fn the_fallback_is_reported_between_two_cycles_too() {
    for analyzer in [Analyzer::QueueingModel, Analyzer::Inferno] {
        let mut fleet = fleet(analyzer).without(&[GAPS]);
        let fallbacks: Vec<_> = (0..12).map(|_| fleet.gap(5).unwrap().fallback).collect();
        assert!(fallbacks.iter().all(|fallback| *fallback == Some(Analyzer::Saturation)), "{fallbacks:?}");
    }
}

#[test]
fn what_was_learned_is_read_as_the_previous_version_wrote_it() {
    let learned: Learned = serde_json::from_str(r#"{"stand_in_share":0.5}"#).unwrap();
    assert_eq!((learned.fallback_share, learned.unlearned.len()), (Some(0.5), 0));
    let text = r#"{"cause":"NotScraped","pods":1,"serving":2,"missing":["running"]}"#;
    let gap: SignalGap = serde_json::from_str(text).unwrap();
    assert_eq!((gap.cause, gap.warning), (GapCause::NotScraped, None));
    let mut fleet = fleet(Analyzer::QueueingModel).without(&[GAPS]);
    fleet.decide(0);
    let text = serde_json::to_string(&fleet.memory).unwrap();
    assert_eq!(serde_json::from_str::<Memory>(&text).unwrap(), fleet.memory);
}

#[test]
fn a_secondary_analyzer_keeps_its_veto_whatever_signal_it_lacks() {
    let both = || {
        let mut fleet = Fleet { kv: 0.2, rate: 4.0, ..fleet(Analyzer::Saturation) };
        let secondary = SecondaryAnalyzer { analyzer: Analyzer::Throughput, score: 1.0, utilisation: None };
        fleet.policy.global.default.secondary = vec![secondary];
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

/// Six pods, of which `sleepers` sleep; each of the others runs 20.4 requests of at most 32.
fn sleeping(sleepers: usize) -> VariantState {
    let mut state = Fleet { pods: 6, rate: 5.0, ..fleet(Analyzer::Rate) }.state();
    let engine = EngineParameters { max_sequences: 32, ..EngineParameters::defaults(Engine::Vllm) };
    state.template.engine = Some(engine);
    for (index, pod) in state.pods.iter_mut().enumerate() {
        let engine = pod.engines.get_mut("0").unwrap();
        if index < sleepers {
            fall_asleep(engine);
        }
    }
    mark_sleepers(&mut state, at(0));
    state
}

#[test]
fn a_removal_does_not_count_on_pods_that_sleep() {
    let (awake, half) = (sleeping(0), sleeping(3));
    assert_eq!(half.scale.unwrap().ready, Replicas::new(3));
    assert_eq!(half.pods.iter().filter(|pod| pod.phase == Phase::Asleep).count(), 3);
    assert_eq!(RemainingCapacity::new([(&awake, 0)], at(0)).find_shortfall(&[5]), None);
    // 61 requests, and two of the three that are awake if the sleepers stay.
    let find_shortfall = RemainingCapacity::new([(&half, 0)], at(0)).find_shortfall(&[5]);
    let Some(Shortfall::Sequences { used, remaining: left }) = find_shortfall else {
        panic!("{find_shortfall:?}")
    };
    assert_eq!((used.round(), left), (61.0, 64.0));
    assert_eq!(RemainingCapacity::new([(&half, 0)], at(0)).find_shortfall(&[6]), None);
    // The checker says the same by itself.
    let mut fleet = Fleet { pods: 6, ..fleet(Analyzer::Rate) };
    fleet.adjust = |group| group.variants = vec![sleeping(3)];
    let snapshot = fleet.snapshot();
    let mut outcome = decide(&snapshot, &observe(&snapshot, Memory::default()), &fleet.policy);
    let Verdict::Target(target) = &mut outcome.decisions.get_mut(&id("llama")).unwrap().verdict else {
        panic!()
    };
    assert!(target.desired >= Replicas::new(6));
    target.desired = Replicas::new(5);
    let found = check::check(&snapshot, &outcome.memory, &fleet.policy, &outcome.decisions);
    assert!(found.iter().any(|violation| violation.rule == Rule::FitsRemaining), "{found:?}");
}

#[test]
fn a_pod_is_asleep_while_all_its_engines_say_so_and_do_nothing() {
    // Old recordings have such pods as Ready ones: they are read, and decided about, as before.
    let mut old = sleeping(2);
    old.pods.iter_mut().for_each(|pod| pod.phase = Phase::Ready);
    let text = serde_json::to_string(&old).unwrap();
    assert_eq!(serde_json::from_str::<VariantState>(&text).unwrap(), old);
    // An engine that shows its cache is awake, and one that has not been heard of for long is not known to sleep.
    let marked = |engine: fn(&mut Signals)| {
        let mut state = sleeping(1);
        state.pods[0].phase = Phase::Ready;
        engine(state.pods[0].engines.get_mut("0").unwrap());
        mark_sleepers(&mut state, at(0));
        state.pods[0].phase
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
