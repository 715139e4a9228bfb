//! Which required signals an engine lacks: missing, too old, or contradicted by another signal of the same engine. A contradicted
//! signal is as good as missing: a counter that stands still while requests run says no more than one that is absent.

use jiff::{SignedDuration, Timestamp};

use super::analyzer_signals::{CROSS_CHECK_SIGNALS, Declared};
use super::baseline_deviation::{compare, find_deviating};
use super::derived_metrics::DerivedMetrics;
use super::flow_balance::find_unbalanced;
use super::freshness::{Freshness, grade, stale_limit};
use super::sample_window::{GaugeRange, MIN_REQUESTS, MIN_RUNNING, MIN_TOKENS, Span, Window};
use super::signal_history::Baseline;
use crate::snapshot::{Rows, Sample, Signal, SignalSet, Signals};
use crate::units::Seconds;

/// What an engine shows of the signals that are required of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct EngineCoverage {
    /// Required, and absent or stale.
    pub(crate) missing: SignalSet,
    /// Read by the analyzer or a witness, and contradicted by another signal of the engine.
    pub(crate) contradicted: SignalSet,
    /// How old the oldest of the newest samples is.
    pub(crate) freshness: Freshness,
    pub(super) metrics: DerivedMetrics,
}

impl EngineCoverage {
    pub(crate) fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.contradicted.is_empty()
    }
}

/// What is known of an engine beside its samples.
#[derive(Debug, Clone, Copy)]
pub(super) struct EngineContext<'a> {
    /// Requests that it runs at once, by its arguments.
    pub(super) max_sequences: Option<f64>,
    /// The baseline of its variant, and when that was completed.
    pub(super) baseline: Option<(Timestamp, &'a Baseline)>,
    pub(super) ready_since: Timestamp,
    /// Its last scrape that is known to contradict itself.
    pub(super) trusted_after: Option<Timestamp>,
}

/// Looks for what is `declared` in `signals`, as of `now`.
pub(super) fn assess_signals(
    signals: &Signals,
    declared: Declared,
    engine: EngineContext<'_>,
    now: Timestamp,
) -> EngineCoverage {
    let (missing, freshness) = find_missing(signals, declared.required(), now);
    let (contradicted, metrics) =
        find_contradicted(signals, declared.all().with(CROSS_CHECK_SIGNALS), engine);
    EngineCoverage { missing, contradicted, freshness, metrics }
}

/// The signals of `required` that are absent or stale, and how old the oldest of the newest samples of the others is.
pub(super) fn find_missing(signals: &Signals, required: SignalSet, now: Timestamp) -> (SignalSet, Freshness) {
    let interval = signals.interval();
    // Nearly always every scrape shows every signal: then one time stamp is enough.
    if let Some(at) = signals.complete_until(required) {
        let freshness = grade(Some(Sample { at, value: 0.0 }), interval, now);
        return (if freshness >= Freshness::Stale { required } else { SignalSet::NONE }, freshness);
    }
    let (mut missing, mut worst) = (SignalSet::NONE, Freshness::Fresh);
    for signal in required.iter() {
        let freshness = grade(signals.newest(signal), interval, now);
        if freshness >= Freshness::Stale {
            missing = missing.with(SignalSet::new(&[signal]));
        } else {
            worst = worst.max(freshness);
        }
    }
    (missing, worst)
}

/// Counters that stand still for this long, in this many scrapes, while requests run are frozen: a step takes seconds at most.
const FROZEN_WINDOW: Seconds = Seconds::whole(30);
const FROZEN_MIN_SCRAPES: usize = 3;
/// Nearly all requests are answered within this time.
const ANSWER_WINDOW: Seconds = Seconds::whole(300);
/// Sums are compared over at most this time: then requests that are in progress at its ends are a small part.
const SUMS_WINDOW: Seconds = Seconds::whole(120);
/// And over at least this: three scrapes of the usual 15 s.
const MIN_SUMS_WINDOW: Seconds = Seconds::whole(45);
/// Two counts of the same thing differ by chance and by what is in progress, but not by more than this factor.
const MAX_COUNT_RATIO: f64 = 1.5;
/// Tokens that running requests have generated, in mean sizes: seen at a moment, exponential sizes are twice the mean.
const IN_PROGRESS_SIZES: f64 = 2.0;
/// Fewer finished requests have no mean size.
const MIN_FINISHED: f64 = 10.0;
/// Clients give up when more than this times as many requests start as finish.
const MAX_STARTED_RATIO: f64 = 1.25;
/// Seconds of inter-token latency per second that each running request may show at most, by ratio and by chance: running requests
/// are only sampled.
const MAX_LATENCY_PER_RUNNING: f64 = 1.3;
const LATENCY_SLACK: f64 = 2.0;
/// With so few running requests the maximum over the scrapes is far above the mean, which the latency follows.
const FEW_RUNNING: f64 = 6.0;
/// Share of the running requests that latencies must account for when nothing waits.
const MIN_LATENCY_PER_RUNNING: f64 = 0.6;

/// Requests that start are compared with those that leave over at least this time.
const FLOW_WINDOW: Seconds = Seconds::whole(10);

/// A queue may have the same length by chance for less than this, or in fewer scrapes.
const QUEUE_WINDOW: Seconds = Seconds::whole(45);
const QUEUE_MIN_SCRAPES: usize = 4;
/// Below this share of its sequences and of its KV cache, an engine has capacity for waiting requests.
const FULL_SHARE: f64 = 0.9;

/// Sum and count of each histogram: they grow together, and restart together.
const HISTOGRAMS: [[Signal; 2]; 4] = [
    [Signal::TimeToFirstTokenSum, Signal::TimeToFirstTokenCount],
    [Signal::InterTokenLatencySum, Signal::InterTokenLatencyCount],
    [Signal::RequestPromptTokensSum, Signal::RequestPromptTokensCount],
    [Signal::RequestGenerationTokensSum, Signal::RequestGenerationTokensCount],
];

/// The signals of an engine that contradict each other, and the derived metrics of the others.
fn find_contradicted(
    signals: &Signals,
    reads: SignalSet,
    engine: EngineContext<'_>,
) -> (SignalSet, DerivedMetrics) {
    let unknown = DerivedMetrics::default();
    let rows = signals.rows();
    let Some(newest) = Window::newest(rows, FROZEN_WINDOW, FROZEN_MIN_SCRAPES) else {
        return (SignalSet::NONE, unknown);
    };
    let span = Span::new(&newest, reads);
    // Without running requests nothing has to grow, and without knowing them nothing can be compared with them.
    let Some(running) = span.range(Signal::Running) else {
        return (find_broken_histograms(&span), unknown);
    };
    if let Some(frozen) = find_frozen(&span, running) {
        return (frozen, unknown);
    }
    let queue = Window::newest(rows, QUEUE_WINDOW, QUEUE_MIN_SCRAPES)
        .map_or(SignalSet::NONE, |window| find_stuck_queue(&Span::new(&window, reads), engine.max_sequences));
    let implausible = find_broken_histograms(&span)
        .with(find_stopped_counters(&span))
        .with(find_stuck_usage(&span))
        .with(queue);
    // A signal that is implausible by itself is no evidence against another, and neither is a scrape known to contradict itself.
    let reads = reads.without(implausible);
    let interval = signals.interval();
    let from = engine.trusted_after.and_then(|at| at.checked_add(SignedDuration::from_nanos(1)).ok());
    let (found, metrics) = match from.map(|from| rows.since(from)) {
        None => compare_signals(rows, Some(&newest), reads, engine, interval),
        Some(rows) => {
            let newest = Window::newest(rows, FROZEN_WINDOW, FROZEN_MIN_SCRAPES);
            compare_signals(rows, newest.as_ref(), reads, engine, interval)
        }
    };
    (implausible.with(found), metrics)
}

/// The signals to distrust when the engine's step or token counter stands still while requests run; `None` when it does not.
fn find_frozen(span: &Span<'_>, running: GaugeRange) -> Option<SignalSet> {
    let heartbeats = [Signal::EngineSteps, Signal::GenerationTokens];
    let heartbeat = heartbeats.into_iter().find_map(|signal| span.growth(signal))?;
    if running.min <= 0.0 || heartbeat > 0.0 {
        return None;
    }
    // Either only the first heartbeat is wrong, or all counters, or the whole exporter.
    let others = [Signal::GenerationTokens, Signal::InterTokenLatencyCount];
    let is_other_growing =
        others.into_iter().any(|signal| span.growth(signal).is_some_and(|growth| growth > 0.0));
    let gauges = SignalSet::new(&[Signal::KvUsage, Signal::Waiting, Signal::Running]);
    let is_gauge_moving =
        gauges.iter().any(|gauge| span.range(gauge).is_some_and(|range| range.min < range.max));
    Some(match (is_other_growing, is_gauge_moving) {
        (true, _) => SignalSet::new(&[Signal::EngineSteps]),
        (false, true) => span.reads().without(gauges),
        (false, false) => span.reads(),
    })
}

/// The signals of `rows` that contradict others or the baseline, and the derived metrics. The `newest` window is part of `rows`.
fn compare_signals(
    rows: Rows<'_>,
    newest: Option<&Window<'_>>,
    reads: SignalSet,
    engine: EngineContext<'_>,
    interval: Seconds,
) -> (SignalSet, DerivedMetrics) {
    let gapless = newest.filter(|window| window.is_gapless(interval));
    let metrics = gapless
        .map_or_else(DerivedMetrics::default, |window| DerivedMetrics::from_span(&Span::new(window, reads)));
    let last = |length: Seconds| rows.times().last().map(|newest| rows.since(length.before(*newest)));
    let recent_prompt_share = || Span::new(&Window::new(last(ANSWER_WINDOW)?), reads).prompt_share();
    let deviating = newest.map_or(SignalSet::NONE, |window| {
        let span = Span::new(window, reads);
        find_deviating(&span, recent_prompt_share, &metrics, engine.baseline, engine.ready_since)
    });
    let reads = reads.without(deviating);
    let baseline = engine.baseline.map(|(_, baseline)| baseline);
    let unbalanced = |window: &Window<'_>| find_unbalanced(&Span::new(window, reads), baseline);
    let mut found = deviating;
    if let Some(shortest) = Window::newest(rows, FLOW_WINDOW, 2) {
        found = found.with(unbalanced(&shortest));
    }
    if let Some(newest) = newest {
        found = found.with(unbalanced(newest));
    }
    let long = last(SUMS_WINDOW).map(Window::new);
    if let Some(long) = long.filter(|long| long.seconds() >= MIN_SUMS_WINDOW.get()) {
        let span = Span::new(&long, reads);
        found = found
            .with(find_broken_histograms(&span))
            .with(find_differing_sums(&span, baseline))
            .with(unbalanced(&long));
    }
    (found, metrics)
}

/// Histograms of which only sum or count grew, or restarted.
fn find_broken_histograms(span: &Span<'_>) -> SignalSet {
    let is_broken = |[sum, count]: &[Signal; 2]| {
        let (sums, counts) = (span.series(*sum), span.series(*count));
        if sums.is_empty() || counts.is_empty() {
            return false;
        }
        if sums.falls() != counts.falls() {
            return true;
        }
        span.growth(*sum)
            .zip(span.growth(*count))
            .is_some_and(|(sum, count)| (count >= MIN_REQUESTS && sum <= 0.0) || (sum > 0.0 && count <= 0.0))
    };
    let broken = HISTOGRAMS.iter().filter(|histogram| is_broken(histogram));
    broken.fold(SignalSet::NONE, |all, histogram| all.with(SignalSet::new(histogram)))
}

/// Counters that stand still while another one that implies them grows.
fn find_stopped_counters(span: &Span<'_>) -> SignalSet {
    use Signal::{
        GenerationTokens, InterTokenLatencyCount, PromptTokens, RequestGenerationTokensCount, Running,
        SchedulerAttempts, TimeToFirstTokenCount, Waiting,
    };
    let has_stopped = |signal| span.growth(signal).is_some_and(|growth| growth <= 0.0);
    let grew_by = |signal, minimum: f64| span.growth(signal).is_some_and(|growth| growth >= minimum);
    let started = span.growth(TimeToFirstTokenCount).unwrap_or(0.0);
    let max_waiting = span.max(Waiting).unwrap_or(0.0);
    let max_running = span.max(Running).unwrap_or(0.0);
    // Each counter, and whether another one shows that it should have grown.
    let rules = [
        // Requests that start without being dispatched can only come from the engine's own queue.
        (SchedulerAttempts, grew_by(TimeToFirstTokenCount, max_waiting + MIN_REQUESTS)),
        (PromptTokens, span.counts_tokens_live() && grew_by(TimeToFirstTokenCount, MIN_REQUESTS)),
        (GenerationTokens, span.counts_tokens_live() && grew_by(InterTokenLatencyCount, MIN_TOKENS)),
        // A first token has no gap before it; as many tokens again are allowed for.
        (InterTokenLatencyCount, grew_by(GenerationTokens, 2.0 * started + MIN_TOKENS)),
        // Requests that finish have started in the window, unless they were already running.
        (TimeToFirstTokenCount, grew_by(RequestGenerationTokensCount, max_running + MIN_REQUESTS)),
    ];
    let stopped = rules.into_iter().filter(|(signal, is_implied)| *is_implied && has_stopped(*signal));
    stopped.fold(SignalSet::NONE, |all, (signal, _)| all.with(SignalSet::new(&[signal])))
}

/// Whether two counts of the same thing differ by more than `slack` and by more than [`MAX_COUNT_RATIO`].
fn is_differing(counts: Option<(f64, f64)>, slack: f64) -> bool {
    counts.is_some_and(|(left, right)| {
        (left - right).abs() > slack && left.max(right) > MAX_COUNT_RATIO * left.min(right)
    })
}

/// Counters of the same requests, tokens or seconds that differ by more than what is in progress.
fn find_differing_sums(span: &Span<'_>, baseline: Option<&Baseline>) -> SignalSet {
    use Signal::{
        GenerationTokens, InterTokenLatencyCount, KvUsage, RequestGenerationTokensCount,
        RequestGenerationTokensSum, Running, SchedulerAttempts, TimeToFirstTokenCount, Waiting,
    };
    // Nearly every rule compares with the running requests.
    let Some(running) = span.range(Running) else { return SignalSet::NONE };
    let waiting = span.range(Waiting);
    let max_waiting = waiting.map_or(0.0, |waiting| waiting.max);
    let started = span.growth(TimeToFirstTokenCount);
    let generated = span.growth(GenerationTokens);
    let gaps = span.growth(InterTokenLatencyCount);

    // Requests that the scheduler dispatched have started or wait in the engine.
    let waiting_change = waiting.map_or(0.0, |waiting| waiting.max - waiting.min);
    let dispatched = span.growth(SchedulerAttempts);
    let is_dispatch_wrong = is_differing(dispatched.zip(started), waiting_change + MIN_REQUESTS);

    // Generated tokens belong to finished requests, or to those in progress, or to clients that gave up.
    let finished = span.growth(RequestGenerationTokensCount);
    let answered = span.growth(RequestGenerationTokensSum);
    let size = answered.zip(finished).map_or(
        0.0,
        |(tokens, requests)| {
            if requests > 0.0 { tokens / requests } else { 0.0 }
        },
    );
    let preempted =
        if span.max(KvUsage).is_some_and(|usage| usage >= FULL_SHARE) { max_waiting } else { 0.0 };
    let in_progress = IN_PROGRESS_SIZES * (running.max + preempted) * size + MIN_TOKENS;
    let usual_size = baseline.and_then(|baseline| baseline.generated);
    let is_size_unusual = compare(Some(size), usual_size, MAX_COUNT_RATIO) != 0;
    let is_answer_wrong = size > 0.0
        && finished >= Some(MIN_FINISHED)
        && (answered > generated || some_give_up(span, started, finished) == Some(false) && is_size_unusual)
        && is_differing(generated.zip(answered), in_progress);

    // Every gap ends with a token.
    let is_gap_wrong = span.counts_tokens_live()
        && generated.zip(gaps).is_some_and(|(tokens, gaps)| gaps >= MIN_TOKENS && tokens < 0.8 * gaps);

    let rules: [(bool, &[Signal]); 3] = [
        (is_dispatch_wrong, &[SchedulerAttempts]),
        (is_answer_wrong, &[GenerationTokens, RequestGenerationTokensSum]),
        (is_gap_wrong, &[GenerationTokens, InterTokenLatencyCount]),
    ];
    let broken = rules.iter().filter(|(is_broken, _)| *is_broken);
    let latencies = find_differing_latencies(span, running, waiting);
    broken.fold(latencies, |all, (_, signals)| all.with(SignalSet::new(signals)))
}

/// Latency that `running` requests cannot have added up to in the window, or must have exceeded.
fn find_differing_latencies(span: &Span<'_>, running: GaugeRange, waiting: Option<GaugeRange>) -> SignalSet {
    use Signal::{InterTokenLatencySum, Running, TimeToFirstTokenSum};
    let gap_seconds = span.growth(InterTokenLatencySum);

    // A request that runs for a second adds at most a second of latency.
    let per_second = |seconds: f64| seconds / span.seconds();
    let max_latency = if running.max <= FEW_RUNNING {
        let spread = (running.max - running.mean) / 2.0;
        MAX_LATENCY_PER_RUNNING * running.mean + spread.max(LATENCY_SLACK)
    } else {
        MAX_LATENCY_PER_RUNNING * running.max + LATENCY_SLACK
    };
    let is_latency_too_high = gap_seconds.is_some_and(|seconds| per_second(seconds) > max_latency);

    // And nearly a second, when nothing waits; one request is allowed for.
    let is_queue_empty = waiting.is_some_and(|waiting| waiting.max <= 0.0);
    let latency = gap_seconds.zip(span.growth(TimeToFirstTokenSum));
    let min_latency = MIN_LATENCY_PER_RUNNING * running.mean - 1.0;
    let is_latency_too_low = is_queue_empty
        && running.mean >= MIN_RUNNING
        && latency.is_some_and(|(gaps, first_tokens)| per_second(gaps + first_tokens) < min_latency);

    let rules: [(bool, &[Signal]); 2] = [
        (is_latency_too_high, &[InterTokenLatencySum, Running]),
        (is_latency_too_low, &[InterTokenLatencySum, TimeToFirstTokenSum, Running]),
    ];
    let broken = rules.iter().filter(|(is_broken, _)| *is_broken);
    broken.fold(SignalSet::NONE, |all, (_, signals)| all.with(SignalSet::new(signals)))
}

/// Whether some clients give up before their request finishes: more requests start than finish, or more prompts are computed
/// than finish. `None` when neither is known.
fn some_give_up(span: &Span<'_>, started: Option<f64>, finished: Option<f64>) -> Option<bool> {
    let exceeds = |starting: Option<f64>, finishing: Option<f64>| {
        starting.zip(finishing).map(|(starting, finishing)| starting > MAX_STARTED_RATIO * finishing)
    };
    exceeds(started, finished)
        .or_else(|| exceeds(span.growth(Signal::PromptTokens), span.growth(Signal::RequestPromptTokensSum)))
}

/// KV usage that repeats one value to the bit while the number of running requests changes.
fn find_stuck_usage(span: &Span<'_>) -> SignalSet {
    let (Some(usage), Some(running)) = (span.range(Signal::KvUsage), span.range(Signal::Running)) else {
        return SignalSet::NONE;
    };
    // A cache that is full in every scrape makes requests wait.
    let is_waiting = span.max(Signal::Waiting).is_some_and(|waiting| waiting > 0.0);
    let is_full = usage.min >= 1.0 && (is_waiting || span.series(Signal::Waiting).is_empty());
    let is_stuck = usage.max <= usage.min && usage.min > 0.0 && !is_full;
    let is_running_changing = running.max - running.min > (0.2 * running.mean).max(2.0);
    if is_stuck && is_running_changing { SignalSet::new(&[Signal::KvUsage]) } else { SignalSet::NONE }
}

/// A queue that repeats its length although the engine, which runs at most `max_sequences`, starts other requests and has room
/// for those that wait; or that is empty although the engine is exactly full in every scrape.
fn find_stuck_queue(span: &Span<'_>, max_sequences: Option<f64>) -> SignalSet {
    let (Some(waiting), Some(running)) = (span.range(Signal::Waiting), span.range(Signal::Running)) else {
        return SignalSet::NONE;
    };
    let Some(max_sequences) = max_sequences.filter(|_| waiting.max <= waiting.min) else {
        return SignalSet::NONE;
    };
    let max_usage = span.max(Signal::KvUsage).unwrap_or(1.0);
    let has_room = waiting.max > 0.0
        && running.min < running.max
        && running.max < FULL_SHARE * max_sequences
        && max_usage < FULL_SHARE;
    let is_full = waiting.max <= 0.0 && running.min >= max_sequences && running.max <= max_sequences;
    if has_room || is_full { SignalSet::new(&[Signal::Waiting]) } else { SignalSet::NONE }
}

/// The signals of `candidates` of which at least one of `engines` has a sample that is not stale.
pub(crate) fn shown_signals<'a>(
    engines: impl Iterator<Item = &'a Signals>,
    candidates: SignalSet,
    now: Timestamp,
) -> SignalSet {
    let is_shown = |signals: &Signals, signal| {
        let limit = stale_limit(signals.interval());
        signals.newest(signal).is_some_and(|newest| Seconds::between(newest.at, now) <= limit)
    };
    engines.fold(SignalSet::NONE, |all, signals| {
        let shown = candidates.iter().filter(|signal| is_shown(signals, *signal));
        shown.fold(all, |all, signal| all.with(SignalSet::new(&[signal])))
    })
}
