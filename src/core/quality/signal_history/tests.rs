//! Engines that lack signals, or show signals that contradict each other.

use super::*;
use crate::fixture::variant_state;
use crate::model::{Analyzer, Role};
use crate::quality::analyzer_signals::{CROSS_CHECK_SIGNALS, Tokens};
use crate::quality::{VariantCoverage, assess_variant};
use crate::snapshot::{Engine, EngineParameters, Phase, Sample, Scale, Signals, Template};
use crate::units::Replicas;

const START: Timestamp = Timestamp::constant(1_800_000_000, 0);
/// Seconds between two scrapes.
const SCRAPE: i64 = 5;

pub(super) fn at(second: i64) -> Timestamp {
    START + SignedDuration::from_secs(second)
}

/// What an engine shows at a second: its value of each signal.
type Shown = fn(Signal, f64) -> Option<f64>;

/// About ten requests run in three tenths of the cache; a step generates a token for each of them, and each begins with 30 tokens.
fn healthy(signal: Signal, second: f64) -> Option<f64> {
    match signal {
        Signal::KvUsage => Some(0.3),
        Signal::Waiting => Some(0.0),
        Signal::Running => Some(if second % 10.0 > 0.0 { 10.2 } else { 9.8 }),
        Signal::KvCapacity => Some(4_000.0),
        Signal::EngineSteps => Some(20.0 * second),
        Signal::GenerationTokens | Signal::RequestGenerationTokensSum => Some(200.0 * second),
        Signal::PromptTokens | Signal::RequestPromptTokensSum => Some(60.0 * second),
        Signal::RequestGenerationTokensCount | Signal::RequestPromptTokensCount => Some(2.0 * second),
        _ => None,
    }
}

/// A variant with one pod that shows `before` until `second` and `then` after it, for `lasts` seconds.
fn variant(before: Shown, second: i64, then: Shown, lasts: i64) -> VariantState {
    let mut signals = Signals::default();
    for signal in Signal::ALL {
        let shown = |now: i64| {
            let shows = if now <= second { before } else { then };
            shows(signal, now as f64).map(|value| Sample { at: at(now), value })
        };
        signals.add(signal, (0..=(second + lasts) / SCRAPE).filter_map(|scrape| shown(scrape * SCRAPE)));
    }
    with_pod(signals)
}

/// A variant with one pod that has shown `signals`.
pub(super) fn with_pod(signals: Signals) -> VariantState {
    let created = at(-900);
    let pod = Pod {
        name: "p".into(),
        phase: Phase::Ready,
        created,
        ready_since: Some(created),
        engines: [("0".into(), signals)].into(),
    };
    let engine = EngineParameters { max_sequences: 32, ..EngineParameters::defaults(Engine::Vllm) };
    let scale = Scale { spec: Replicas::ONE, current: Replicas::ONE, ready: Replicas::ONE };
    let template = Template { engine: Some(engine), ..Template::default() };
    VariantState { scale: Some(scale), template, ..variant_state(vec![pod]) }
}

/// The history after `analyzer` has assessed a healthy engine for some minutes.
fn healthy_history(analyzer: Analyzer) -> SignalHistory {
    history_of(healthy, analyzer)
}

/// The same of an engine that shows `shows`.
fn history_of(shows: Shown, analyzer: Analyzer) -> SignalHistory {
    [320, 450, 580].into_iter().fold(SignalHistory::default(), |history, second| {
        let state = variant(shows, second, shows, 0);
        let coverage = assess(analyzer, &state, &history, second);
        after(analyzer, &history, (&state, &coverage), second)
    })
}

/// What is remembered after `analyzer` has looked at `assess` at `second`.
fn after(
    analyzer: Analyzer,
    before: &SignalHistory,
    assess: (&VariantState, &VariantCoverage<'_>),
    second: i64,
) -> SignalHistory {
    let declared = analyzer.declared(Role::Both);
    before.after(
        [assess].into_iter(),
        declared.needed.with(declared.optional).with(CROSS_CHECK_SIGNALS),
        at(second),
    )
}

/// What `analyzer` distrusts in `state` at `now`, and the history after it.
pub(super) fn assess_and_remember(
    analyzer: Analyzer,
    state: &VariantState,
    before: &SignalHistory,
    now: Timestamp,
) -> (SignalSet, SignalHistory) {
    let declared = analyzer.declared(Role::Both);
    let coverage = assess_variant(state, declared, Some(before), now);
    let reads = declared.needed.with(declared.optional).with(CROSS_CHECK_SIGNALS);
    let healthy_history = before.after([(state, &coverage)].into_iter(), reads, now);
    let distrusted = coverage.contradictions.iter().map(|(_, contradictions)| contradictions.distrusted(now));
    (distrusted.fold(SignalSet::NONE, SignalSet::with), healthy_history)
}

/// What `analyzer` measures of `state` at `second`, with the history before it.
fn assess<'a>(
    analyzer: Analyzer,
    state: &'a VariantState,
    history: &'a SignalHistory,
    second: i64,
) -> VariantCoverage<'a> {
    assess_variant(state, analyzer.declared(Role::Both), Some(history), at(second))
}

/// The distrusted signals of an engine that was scraped at these seconds and shows `shows`.
fn contradicted_at(seconds: &[i64], shows: Shown) -> SignalSet {
    let mut signals = Signals::default();
    for signal in Signal::ALL {
        let shown =
            |second: &i64| shows(signal, *second as f64).map(|value| Sample { at: at(*second), value });
        signals.add(signal, seconds.iter().filter_map(shown));
    }
    let now = at(*seconds.last().unwrap());
    assess_and_remember(Analyzer::Rate, &with_pod(signals), &SignalHistory::default(), now).0
}

#[test]
fn frozen_counters_are_contradicted_after_three_scrapes_and_half_a_minute() {
    let still: Shown = |signal, second| healthy(signal, if signal.is_counter() { 100.0 } else { second });
    for calm in [&[0, 30][..], &[0, 45], &[0, 14, 29], &[0, 5, 10, 15, 20, 25, 29]] {
        assert_eq!(contradicted_at(calm, still), SignalSet::NONE, "{calm:?}");
    }
    for long in [&[0, 15, 30][..], &[0, 5, 10, 15, 20, 25, 30]] {
        let found = contradicted_at(long, still);
        assert!(found.has(Signal::GenerationTokens) && found.has(Signal::EngineSteps), "{long:?}");
    }
    // Nothing runs, and nothing has to move.
    let idle: Shown =
        |signal, _| healthy(signal, 100.0).map(|value| if signal == Signal::Running { 0.0 } else { value });
    assert_eq!(contradicted_at(&[0, 15, 30, 45], idle), SignalSet::NONE);
}

#[test]
fn a_histogram_is_contradicted_when_only_its_sum_or_count_moves_over_three_requests() {
    fn halves(signal: Signal, second: f64, [sum, count]: [f64; 2]) -> Option<f64> {
        match signal {
            Signal::RequestPromptTokensSum => Some(1000.0 + sum * second),
            Signal::RequestPromptTokensCount => Some(10.0 + count * second),
            _ => healthy(signal, second),
        }
    }
    let both = SignalSet::new(&[Signal::RequestPromptTokensSum, Signal::RequestPromptTokensCount]);
    let found = |shows: Shown| contradicted_at(&[0, 15, 30], shows).and(both);
    assert_eq!(found(|signal, second| halves(signal, second, [0.0, 0.1])), both, "three that have no size");
    assert_eq!(
        found(|signal, second| halves(signal, second, [0.0, 0.09])),
        SignalSet::NONE,
        "fewer may be cut"
    );
    assert_eq!(found(|signal, second| halves(signal, second, [10.0, 0.0])), both, "sizes of nobody");
    assert_eq!(found(|signal, second| halves(signal, second, [0.0, 0.0])), SignalSet::NONE, "none came");
    // One that falls alone was begun anew alone.
    assert_eq!(found(|signal, second| halves(signal, second, [-10.0, 0.0])), both);
    assert_eq!(found(|signal, second| halves(signal, second, [-10.0, -0.1])), SignalSet::NONE, "a restart");
}

#[test]
fn kv_usage_that_doubles_with_the_same_requests_is_estimated_from_them() {
    let history = healthy_history(Analyzer::SaturationPercent);
    let doubled: Shown = |signal, second| {
        if signal == Signal::KvUsage { Some(0.6) } else { healthy(signal, second) }
    };
    let state = variant(healthy, 900, doubled, 30);
    let coverage = assess(Analyzer::SaturationPercent, &state, &history, 930);
    assert!(coverage.contradicted.has(Signal::KvUsage), "{:?}", coverage.contradicted);
    assert!((coverage.observations[0].kv - 0.3).abs() < 0.01, "{}", coverage.observations[0].kv);
    assert_eq!((coverage.lacking, coverage.estimated), (1, 1));
}

#[test]
fn longer_prompts_fill_a_cache_and_contradict_nothing() {
    let history = healthy_history(Analyzer::SaturationPercent);
    let longer: Shown = |signal, second| match signal {
        Signal::KvUsage => Some(0.6),
        Signal::PromptTokens => Some(60.0 * 900.0 + 300.0 * (second - 900.0)),
        _ => healthy(signal, second),
    };
    let state = variant(healthy, 900, longer, 45);
    let coverage = assess(Analyzer::SaturationPercent, &state, &history, 945);
    assert!(coverage.contradicted.is_empty(), "{:?}", coverage.contradicted);
}

#[test]
fn a_missing_queue_is_long_in_a_full_engine_and_empty_in_one_with_room() {
    let history = healthy_history(Analyzer::SaturationPercent);
    let full: Shown = |signal, second| match signal {
        Signal::Waiting => None,
        Signal::Running => Some(32.0),
        Signal::KvUsage => Some(if second % 10.0 > 0.0 { 0.9 } else { 0.8 }),
        _ => healthy(signal, second),
    };
    let calm: Shown = |signal, second| if signal == Signal::Waiting { None } else { healthy(signal, second) };
    let states = [full, calm].map(|shows| variant(healthy, 600, shows, 120));
    let queues = states.each_ref().map(|state| {
        let coverage = assess(Analyzer::SaturationPercent, state, &history, 720);
        (coverage.observations[0].queue, coverage.queue_distrusted.clone())
    });
    assert_eq!(queues, [(5, vec![("p", Some(true))]), (0, vec![("p", Some(false))])]);
}

/// 256 requests run, 25 times as much in every way as in [`healthy`].
fn crowded(signal: Signal, second: f64) -> Option<f64> {
    match signal {
        Signal::Running => Some(256.0),
        Signal::KvUsage => Some(if second % 10.0 > 0.0 { 0.31 } else { 0.3 }),
        Signal::Waiting | Signal::EngineSteps => healthy(signal, second),
        _ => healthy(signal, second).map(|value| 25.0 * value),
    }
}

/// `state` on `accelerator`, with what the arguments of its engines say.
fn made(mut state: VariantState, accelerator: &str, argument: Option<i64>) -> VariantState {
    let engine = EngineParameters::defaults(Engine::Vllm);
    let max_sequences = argument.unwrap_or(engine.max_sequences);
    let engine = EngineParameters { max_sequences, has_max_sequences: argument.is_some(), ..engine };
    state.variant.accelerator = Some(accelerator.into());
    state.template.engine = Some(engine);
    state
}

#[test]
fn without_the_argument_an_engine_is_full_by_the_default_of_its_device() {
    let history = history_of(crowded, Analyzer::SaturationPercent);
    let silent: Shown =
        |signal, second| if signal == Signal::Waiting { None } else { crowded(signal, second) };
    let queue = |accelerator, argument| {
        let state = made(variant(crowded, 600, silent, 120), accelerator, argument);
        let coverage = assess(Analyzer::SaturationPercent, &state, &history, 720);
        (coverage.observations[0].queue, coverage.queue_distrusted[0].1)
    };
    assert_eq!(queue("H100", Some(256)), (5, Some(true)));
    assert_eq!(queue("H100", Some(1024)), (0, Some(false)));
    // By its device's default the first has room, and the second none: enough for an estimate, and no evidence.
    assert_eq!(queue("H100", None), (0, None));
    assert_eq!(queue("A100", None), (5, None));
}

#[test]
fn an_assumed_limit_contradicts_no_queue() {
    let history = history_of(crowded, Analyzer::SaturationPercent);
    let contradicted = |argument| {
        let state = made(variant(crowded, 720, crowded, 0), "H100", argument);
        assess(Analyzer::SaturationPercent, &state, &history, 720).contradicted.has(Signal::Waiting)
    };
    assert_eq!([contradicted(Some(256)), contradicted(None)], [true, false]);
}

#[test]
fn missing_sizes_are_taken_from_the_baseline() {
    let history = healthy_history(Analyzer::Saturation);
    let silent: Shown = |signal, second| {
        if signal == Signal::RequestPromptTokensSum { None } else { healthy(signal, second) }
    };
    let state = variant(healthy, 600, silent, 400);
    let coverage = assess(Analyzer::Saturation, &state, &history, 1000);
    assert!(coverage.missing.has(Signal::RequestPromptTokensSum), "{:?}", coverage.missing);
    let load = coverage.loads[0].for_analyzer::<Tokens>();
    assert!((load.prompt().unwrap() - 30.0).abs() < 0.1, "{:?}", load.prompt());
}

#[test]
fn a_counter_that_catches_up_after_freezing_gives_no_size() {
    let history = healthy_history(Analyzer::Saturation);
    const FROZEN: Shown = |signal, second| {
        let count = signal == Signal::RequestGenerationTokensCount && second > 600.0;
        healthy(signal, if count { 600.0 } else { second })
    };
    let state = variant(FROZEN, 800, FROZEN, 0);
    let coverage = assess(Analyzer::Saturation, &state, &history, 800);
    assert!(coverage.contradicted.has(Signal::RequestGenerationTokensCount), "{:?}", coverage.contradicted);
    let history = after(Analyzer::Saturation, &history, (&state, &coverage), 800);
    let returned: Shown =
        |signal, second| if second <= 800.0 { FROZEN(signal, second) } else { healthy(signal, second) };
    let state = variant(returned, 890, healthy, 0);
    let coverage = assess(Analyzer::Saturation, &state, &history, 890);
    let load = coverage.loads[0].for_analyzer::<Tokens>();
    assert!((load.generated().unwrap() - 100.0).abs() < 1.0, "{:?}", load.generated());
    assert!(coverage.contradicted.is_empty(), "{:?}", coverage.contradicted);
}

#[test]
fn a_frozen_exporter_is_distrusted_and_frozen_counters_leave_the_gauges() {
    let history = healthy_history(Analyzer::Saturation);
    let all: Shown = |signal, _| healthy(signal, 600.0);
    let counters: Shown = |signal, second| match signal {
        Signal::KvUsage => Some(if second % 10.0 > 0.0 { 0.31 } else { 0.3 }),
        _ => healthy(signal, 600.0),
    };
    let contradicted = |shows: Shown| {
        let state = variant(healthy, 600, shows, 60);
        let coverage = assess(Analyzer::Saturation, &state, &history, 660);
        [Signal::KvUsage, Signal::RequestPromptTokensSum].map(|signal| coverage.contradicted.has(signal))
    };
    assert_eq!([contradicted(all), contradicted(counters)], [[true, true], [false, true]]);
}

#[test]
fn a_contradiction_lasts_from_its_last_scrape_and_another_one_does_not_prolong_it() {
    let [usage, steps] = [Signal::KvUsage, Signal::EngineSteps].map(|signal| SignalSet::new(&[signal]));
    let contradictions = Contradictions::default().with(usage, at(0)).with(steps, at(60));
    assert_eq!(
        (contradictions.distrusted(at(70)), contradictions.distrusted(at(80))),
        (usage.with(steps), steps)
    );
    assert_eq!(
        (contradictions.last_of(usage), contradictions.last_of(steps), contradictions.newest()),
        (Some(at(0)), Some(at(60)), Some(at(60)))
    );
    assert_eq!(contradictions.recent(at(310)).last_of(usage), None);
    let others = [Signal::Running, Signal::Waiting].map(|signal| SignalSet::new(&[signal]));
    let many = contradictions.with(others[0], at(61)).with(others[1], at(62));
    assert_eq!(
        many.last_of(usage),
        Some(at(60)),
        "of too many the oldest last longer, and none is forgotten"
    );
}

#[test]
fn history_after_now_is_found_when_the_clock_was_set_back() {
    let history = healthy_history(Analyzer::SaturationPercent);
    assert!(history.is_after(at(579)) && !history.is_after(at(580)));
}

/// What of an engine that shows `before`, and `shows` from 900 s on, is contradicted for the rate policy at any look of two minutes.
fn contradicted(before: Shown, shows: Shown) -> SignalSet {
    let history = history_of(before, Analyzer::Rate);
    (5..=120).step_by(5).fold(SignalSet::NONE, |all, lasts| {
        let state = variant(before, 900, shows, lasts);
        let contradictions = assess(Analyzer::Rate, &state, &history, 900 + lasts).contradictions;
        contradictions
            .iter()
            .fold(all, |all, (_, contradictions)| all.with(contradictions.distrusted(at(900 + lasts))))
    })
}

/// A healthy engine with its latencies: ten run all the time, and two begin in a second.
fn with_latencies(signal: Signal, second: f64) -> Option<f64> {
    match signal {
        Signal::TimeToFirstTokenCount => Some(2.0 * second),
        Signal::TimeToFirstTokenSum => Some(0.2 * second),
        Signal::InterTokenLatencyCount => Some(198.0 * second),
        Signal::InterTokenLatencySum => Some(9.8 * second),
        _ => healthy(signal, second),
    }
}

#[test]
fn requests_that_clients_give_up_contradict_no_count() {
    let half: Shown = |signal, second| {
        let finished = SignalSet::new(&[
            Signal::RequestGenerationTokensCount,
            Signal::RequestGenerationTokensSum,
            Signal::RequestPromptTokensCount,
            Signal::RequestPromptTokensSum,
        ]);
        let second = if finished.has(signal) { second - 0.5 * (second - 900.0).max(0.0) } else { second };
        with_latencies(signal, second)
    };
    assert_eq!(contradicted(with_latencies, half).iter().collect::<Vec<_>>(), []);
}

#[test]
fn first_tokens_that_double_while_prompts_do_not_are_contradicted() {
    assert!(contradicted(with_latencies, DOUBLED).has(Signal::TimeToFirstTokenCount));
}

const DOUBLED: Shown = |signal, second| match signal {
    Signal::TimeToFirstTokenCount => Some(2.0 * second + 2.0 * (second - 900.0).max(0.0)),
    _ => with_latencies(signal, second),
};

#[test]
fn of_two_counts_of_the_same_requests_the_one_whose_sizes_change_is_contradicted() {
    let answers: Shown = |signal, second| match signal {
        Signal::RequestGenerationTokensCount => Some(2.0 * second - (second - 900.0).max(0.0)),
        _ => with_latencies(signal, second),
    };
    let prompts: Shown = |signal, second| match signal {
        Signal::RequestPromptTokensCount => Some(2.0 * second + 2.0 * (second - 900.0).max(0.0)),
        _ => with_latencies(signal, second),
    };
    let counts = [Signal::RequestGenerationTokensCount, Signal::RequestPromptTokensCount];
    for (count, shows) in counts.into_iter().zip([answers, prompts]) {
        assert_eq!(contradicted(with_latencies, shows), SignalSet::new(&[count]));
    }
}

#[test]
fn tokens_that_neither_leave_nor_are_in_the_cache_were_not_computed() {
    let computed: Shown = |signal, second| match signal {
        Signal::PromptTokens => Some(60.0 * second + 60.0 * (second - 900.0).max(0.0)),
        _ => with_latencies(signal, second),
    };
    assert_eq!(contradicted(with_latencies, computed), SignalSet::new(&[Signal::PromptTokens]));
    let finished: Shown = |signal, second| match signal {
        Signal::RequestPromptTokensSum => Some(60.0 * second + 60.0 * (second - 900.0).max(0.0)),
        _ => with_latencies(signal, second),
    };
    assert_eq!(contradicted(with_latencies, finished), SignalSet::new(&[Signal::RequestPromptTokensSum]));
}

#[test]
fn ranges_leave_out_the_last_two_minutes() {
    let bent: Shown = |signal, second| match signal {
        Signal::InterTokenLatencyCount => Some(198.0 * second - 66.0 * (second - 900.0).max(0.0)),
        _ => with_latencies(signal, second),
    };
    // A lie that is a little too small to show while it is in half of a window is in the range by which it is judged then.
    let mut history = SignalHistory::default();
    for second in (60..1200).step_by(5) {
        let state = variant(with_latencies, 900, bent, second - 900);
        let state = if second <= 900 { variant(with_latencies, second, bent, 0) } else { state };
        let coverage = assess(Analyzer::Throughput, &state, &history, second);
        let found = coverage.contradictions.iter().any(|(_, contradictions)| {
            contradictions.distrusted(at(second)).has(Signal::InterTokenLatencyCount)
        });
        assert!(!(960..=970).contains(&second) || found, "not at {second}");
        history = after(Analyzer::Throughput, &history, (&state, &coverage), second);
    }
}

#[test]
fn a_new_pod_is_distrusted_like_most_of_the_pods_that_it_joins() {
    let history = history_of(with_latencies, Analyzer::Rate);
    let pod = |name: &str, ready: i64, shows: Shown| Pod {
        name: name.into(),
        ready_since: Some(at(ready)),
        ..variant(with_latencies, 900, shows, 60).pods.remove(0)
    };
    let still = |old: &[&str]| {
        let mut state = variant(with_latencies, 900, DOUBLED, 60);
        state.pods = old.iter().map(|name| pod(name, -900, DOUBLED)).collect();
        let first = assess(Analyzer::Rate, &state, &history, 960);
        let history = after(Analyzer::Rate, &history, (&state, &first), 960);
        state.pods.push(pod("young", 760, with_latencies));
        let coverage = assess(Analyzer::Rate, &state, &history, 960);
        let young = coverage.contradictions.iter().find(|(engine, _)| engine == "young");
        young.is_some_and(|(_, contradictions)| {
            contradictions.distrusted(at(960)).has(Signal::TimeToFirstTokenCount)
        })
    };
    assert!(still(&["p", "q"]));
    assert!(!still(&["p"]), "one old pod is not most of a rolling update");
}

#[test]
fn an_engine_that_counts_tokens_when_requests_finish_contradicts_nothing() {
    // SGLang has no counter of steps, and adds the tokens of a request at its end: here once a minute.
    let at_the_end: Shown = |signal, second| match signal {
        Signal::EngineSteps => None,
        Signal::PromptTokens | Signal::GenerationTokens => healthy(signal, (second / 60.0).floor() * 60.0),
        _ => with_latencies(signal, second),
    };
    let found = contradicted(at_the_end, at_the_end);
    let tokens = [Signal::PromptTokens, Signal::GenerationTokens, Signal::InterTokenLatencyCount];
    assert!(found.and(SignalSet::new(&tokens)).is_empty(), "{found:?}");
}

#[test]
fn distrusted_running_requests_do_not_contradict_latencies() {
    let doubled: Shown = |signal, second| match signal {
        Signal::Running => with_latencies(signal, second).map(|running| 2.0 * running),
        _ => with_latencies(signal, second),
    };
    let found = contradicted(with_latencies, doubled);
    assert!(found.has(Signal::Running) && !found.has(Signal::InterTokenLatencySum), "{found:?}");
}
