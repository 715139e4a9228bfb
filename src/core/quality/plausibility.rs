//! Which of the signals that an analyzer needs an engine really shows: a series may be missing, too old, or contradicted by
//! what the same engine says elsewhere. Contradicted is as good as missing: a counter that stands still while requests run
//! says no more than one that is not there.

use jiff::{SignedDuration, Timestamp};

use super::baseline_deviation::{off, unusual};
use super::derived_metrics::DerivedMetrics;
use super::flow_balance::unbalanced;
use super::freshness::{Freshness, grade, stale_limit};
use super::sample_window::{MANY_RUNNING, SOME_REQUESTS, SOME_TOKENS, Span, Window};
use super::signal_history::Baseline;
use crate::quality::analyzer_signals::{Declared, WITNESSES};
use crate::snapshot::{Rows, Signal, SignalSet, Signals};
use crate::units::Seconds;

/// What an engine shows of the signals that are needed of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct EngineCoverage {
    /// Needed, and without a sample that is not stale.
    pub missing: SignalSet,
    /// Needed or a witness of what is, and contradicted by another signal of the engine.
    pub contradicted: SignalSet,
    /// How old the oldest of the newest samples is.
    pub freshness: Freshness,
    /// What belongs together of what it shows.
    pub(super) figures: DerivedMetrics,
}

impl EngineCoverage {
    /// Everything that is needed is there and can be true.
    #[must_use]
    pub(crate) fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.contradicted.is_empty()
    }
}

/// What is known of an engine beside its samples.
#[derive(Debug, Clone, Copy)]
pub(super) struct EngineContext<'a> {
    /// Requests that it runs at once, by its arguments.
    pub(super) sequences: Option<f64>,
    /// What engines of its variant usually do, and since when that is known.
    pub(super) usual: Option<(Timestamp, &'a Baseline)>,
    /// When its pod began to serve.
    pub(super) born: Timestamp,
    /// Its last scrape that is known to contradict itself.
    pub(super) after: Option<Timestamp>,
}

/// Looks for what is `declared` in what `engine` has shown by `now`.
#[must_use]
pub(super) fn assess_signals(
    signals: &Signals,
    declared: Declared,
    engine: EngineContext<'_>,
    now: Timestamp,
) -> EngineCoverage {
    let (missing, freshness) = missing_signals(signals, declared.required(), now);
    let (contradicted, figures) = contradicted(signals, declared.all().with(WITNESSES), engine);
    EngineCoverage { missing, contradicted, freshness, figures }
}

/// Of `needed`, what has no sample that is not stale; and how old the oldest of the newest samples is.
pub(super) fn missing_signals(
    signals: &Signals,
    needed: SignalSet,
    now: Timestamp,
) -> (SignalSet, Freshness) {
    let interval = signals.interval();
    // Nearly always every scrape has shown everything: then one time says it all.
    if let Some(at) = signals.whole_until(needed) {
        let newest = crate::snapshot::Sample { at, value: 0.0 };
        let freshness = grade(Some(newest), interval, now);
        return (if freshness >= Freshness::Stale { needed } else { SignalSet::NONE }, freshness);
    }
    let (mut missing, mut worst) = (SignalSet::NONE, Freshness::Fresh);
    for signal in needed.iter() {
        let freshness = grade(signals.newest(signal), interval, now);
        if freshness >= Freshness::Stale {
            missing = missing.with(SignalSet::of(&[signal]));
        } else {
            worst = worst.max(freshness);
        }
    }
    (missing, worst)
}

/// Counters that stand still for this long, and over [`STILL_SCRAPES`], while requests run: a step takes at most seconds.
const STILL_WINDOW: Seconds = Seconds::whole(30);
const STILL_SCRAPES: usize = 3;
/// Nearly all requests are answered in less.
const ANSWERING: Seconds = Seconds::whole(300);
/// Sums are compared over this time at most: long enough for what is under way at its ends to be a small part.
const SUMS_WINDOW: Seconds = Seconds::whole(120);
/// And at least over this: three scrapes of the usual 15 s.
const SUMS_AT_LEAST: Seconds = Seconds::whole(45);
/// Two counts of the same thing differ by chance and by what is under way; by more than this factor they do not.
const DIFFERENT: f64 = 1.5;
/// Tokens of running requests, in means: a length-biased mean of exponential sizes is twice the mean.
const UNDER_WAY: f64 = 2.0;
/// Fewer answers have no mean size.
const MANY_FINISHED: f64 = 10.0;
/// Clients give up where more than this times as many requests begin as finish.
const MOST_STAYED: f64 = 1.25;
/// Sequence-seconds a second that gaps between tokens may show for each request that runs at most,
const ABOVE_RUNNING: f64 = 1.3;
/// and how many more by chance: scrapes see what runs at moments.
const MORE_BY_CHANCE: f64 = 2.0;
/// Where so few run, the most that any scrape saw is far above what runs in the mean, which the seconds belong to.
const FEW_RUNNING: f64 = 6.0;
/// And the share of the running ones that latencies must account for, where nobody waits.
const BELOW_RUNNING: f64 = 0.6;

/// What comes in is held against what leaves over so long at least.
const FLOW_WINDOW: Seconds = Seconds::whole(10);

/// A queue that has one length for less than this, and in fewer scrapes, may just have it.
const QUEUE_WINDOW: Seconds = Seconds::whole(45);
const QUEUE_SCRAPES: usize = 4;
/// With so much of its sequences and of its cache in use at most, an engine has room for who waits.
const ROOMY: f64 = 0.9;

/// Of each histogram its sum and count: they move together, and fall together.
const PAIRS: [[Signal; 2]; 4] = [
    [Signal::TimeToFirstTokenSum, Signal::TimeToFirstTokenCount],
    [Signal::InterTokenLatencySum, Signal::InterTokenLatencyCount],
    [Signal::RequestPromptTokensSum, Signal::RequestPromptTokensCount],
    [Signal::RequestGenerationTokensSum, Signal::RequestGenerationTokensCount],
];

/// The signals of an engine that cannot be true together, and what belongs together of the others.
fn contradicted(
    signals: &Signals,
    reads: SignalSet,
    engine: EngineContext<'_>,
) -> (SignalSet, DerivedMetrics) {
    let nothing = DerivedMetrics::default();
    // Without running requests nothing has to move, and what is known of none can be held against nothing.
    let rows = signals.rows();
    let Some(newest) = Window::newest(rows, STILL_WINDOW, STILL_SCRAPES) else {
        return (SignalSet::NONE, nothing);
    };
    let still = Span::new(&newest, reads);
    let Some([least, ..]) = still.range(Signal::Running) else {
        return (halves(&still), nothing);
    };
    let pulse =
        [Signal::EngineSteps, Signal::GenerationTokens].into_iter().find_map(|pulse| still.grown(pulse));
    if least > 0.0 && pulse.is_some_and(|grown| grown <= 0.0) {
        // One pulse alone may be the liar.
        let others = [Signal::GenerationTokens, Signal::InterTokenLatencyCount];
        let moves = others.into_iter().any(|other| still.grown(other).is_some_and(|grown| grown > 0.0));
        let gauges = SignalSet::of(&[Signal::KvUsage, Signal::Waiting, Signal::Running]);
        let varies =
            gauges.iter().any(|gauge| still.range(gauge).is_some_and(|[least, _, most]| least < most));
        let found = match (moves, varies) {
            (true, _) => SignalSet::of(&[Signal::EngineSteps]),
            (false, true) => reads.without(gauges),
            (false, false) => reads,
        };
        return (found, nothing);
    }
    let queue = Window::newest(rows, QUEUE_WINDOW, QUEUE_SCRAPES)
        .map_or(SignalSet::NONE, |window| queue(&Span::new(&window, reads), engine.sequences));
    let alone = halves(&still).with(counts(&still)).with(gauges(&still)).with(queue);
    // Who contradicts itself is no witness against another, and nor is a scrape that is known to.
    let (reads, interval) = (reads.without(alone), signals.interval());
    let later = engine.after.and_then(|after| after.checked_add(SignedDuration::from_nanos(1)).ok());
    let (found, figures) = match later.map(|later| rows.since(later)) {
        None => beside_others(rows, Some(&newest), reads, engine, interval),
        Some(rows) => {
            let newest = Window::newest(rows, STILL_WINDOW, STILL_SCRAPES);
            beside_others(rows, newest.as_ref(), reads, engine, interval)
        }
    };
    (alone.with(found), figures)
}

/// The signals that cannot be true beside others of `rows`, whose `newest` are looked at first, and what belongs together of them.
fn beside_others(
    rows: Rows<'_>,
    newest: Option<&Window<'_>>,
    reads: SignalSet,
    EngineContext { usual, born, .. }: EngineContext<'_>,
    interval: Seconds,
) -> (SignalSet, DerivedMetrics) {
    let unbroken = newest.filter(|window| window.has_no_hole(interval));
    let figures =
        unbroken.map_or_else(DerivedMetrics::default, |window| DerivedMetrics::of(&Span::new(window, reads)));
    let since = |window: Seconds| rows.times().last().map(|newest| rows.since(window.before(*newest)));
    let begun = || Span::new(&Window::of(since(ANSWERING)?), reads).mix();
    let unusual = newest
        .map_or(SignalSet::NONE, |window| unusual(&Span::new(window, reads), begun, &figures, usual, born));
    let (reads, usual) = (reads.without(unusual), usual.map(|(_, usual)| usual));
    let flow = |window: &Window<'_>| unbalanced(&Span::new(window, reads), usual);
    let mut found = unusual;
    if let Some(shortest) = Window::newest(rows, FLOW_WINDOW, 2) {
        found = found.with(flow(&shortest));
    }
    if let Some(newest) = newest {
        found = found.with(flow(newest));
    }
    let long = since(SUMS_WINDOW).map(Window::of);
    if let Some(long) = long.filter(|long| long.seconds() >= SUMS_AT_LEAST.get()) {
        let span = Span::new(&long, reads);
        found = found.with(halves(&span)).with(sums(&span, usual)).with(flow(&long));
    }
    (found, figures)
}

/// Sums and counts of which only one has moved or fallen.
fn halves(span: &Span<'_>) -> SignalSet {
    let moved_alone = |[sum, count]: &[Signal; 2]| {
        if span.get(*sum).is_empty() || span.get(*count).is_empty() {
            return false;
        }
        if span.get(*sum).falls() != span.get(*count).falls() {
            return true;
        }
        let grown = span.grown(*sum).zip(span.grown(*count));
        grown
            .is_some_and(|(sum, count)| (count >= SOME_REQUESTS && sum <= 0.0) || (sum > 0.0 && count <= 0.0))
    };
    PAIRS
        .iter()
        .filter(|pair| moved_alone(pair))
        .fold(SignalSet::NONE, |set, pair| set.with(SignalSet::of(pair)))
}

/// Counters that stand still while another that implies them moves.
fn counts(span: &Span<'_>) -> SignalSet {
    use Signal::{
        GenerationTokens, InterTokenLatencyCount, PromptTokens, RequestGenerationTokensCount,
        SchedulerAttempts, TimeToFirstTokenCount, Waiting,
    };
    let grown = |signal| span.grown(signal);
    let still = |signal| grown(signal).is_some_and(|grown| grown <= 0.0);
    let least = |signal, least: f64| grown(signal).is_some_and(|grown| grown >= least);
    let begun = grown(TimeToFirstTokenCount).unwrap_or(0.0);
    let waited = span.range(Waiting).map_or(0.0, |[_, _, most]| most);
    let rules = [
        (SchedulerAttempts, least(TimeToFirstTokenCount, waited + SOME_REQUESTS)),
        (PromptTokens, span.is_timely() && least(TimeToFirstTokenCount, SOME_REQUESTS)),
        (GenerationTokens, span.is_timely() && least(InterTokenLatencyCount, SOME_TOKENS)),
        (InterTokenLatencyCount, least(GenerationTokens, 2.0 * begun + SOME_TOKENS)),
        (TimeToFirstTokenCount, least(RequestGenerationTokensCount, most_running(span) + SOME_REQUESTS)),
    ];
    let frozen = rules.into_iter().filter(|(signal, implied)| *implied && still(*signal));
    frozen.fold(SignalSet::NONE, |set, (signal, _)| set.with(SignalSet::of(&[signal])))
}

fn most_running(span: &Span<'_>) -> f64 {
    span.range(Signal::Running).map_or(0.0, |[_, _, most]| most)
}

/// Counts of the same requests, tokens and seconds that differ by more than what is under way.
fn sums(span: &Span<'_>, usual: Option<&Baseline>) -> SignalSet {
    use Signal::{
        GenerationTokens, InterTokenLatencyCount, InterTokenLatencySum, PromptTokens,
        RequestGenerationTokensCount, RequestGenerationTokensSum, RequestPromptTokensSum, Running,
        SchedulerAttempts, TimeToFirstTokenCount, TimeToFirstTokenSum, Waiting,
    };
    let grown = |signal| span.grown(signal);
    let differ = |pair: Option<(f64, f64)>, slack: f64| {
        pair.is_some_and(|(one, two)| (one - two).abs() > slack && one.max(two) > DIFFERENT * one.min(two))
    };
    // Who runs is what most of it is held against.
    let Some([_, mean, most]) = span.range(Running) else { return SignalSet::NONE };
    let (begun, finished) = (grown(TimeToFirstTokenCount), grown(RequestGenerationTokensCount));
    let (generated, answered) = (grown(GenerationTokens), grown(RequestGenerationTokensSum));
    let (gaps, gap_seconds) = (grown(InterTokenLatencyCount), grown(InterTokenLatencySum));
    let size = answered
        .zip(finished)
        .map_or(0.0, |(tokens, requests)| if requests > 0.0 { tokens / requests } else { 0.0 });
    let shown = |seconds: f64| seconds / span.seconds();
    let most_shown = if most <= FEW_RUNNING {
        ABOVE_RUNNING * mean + ((most - mean) / 2.0).max(MORE_BY_CHANCE)
    } else {
        ABOVE_RUNNING * most + MORE_BY_CHANCE
    };
    let nobody_waits = span.range(Waiting).is_some_and(|[_, _, most]| most <= 0.0);
    let accounted = gap_seconds.zip(grown(TimeToFirstTokenSum)).map(|(gaps, firsts)| shown(gaps + firsts));
    let waited = span.range(Waiting).map_or(0.0, |[least, _, most]| most - least);
    let left_early =
        |came: Option<f64>, left: Option<f64>| came.zip(left).map(|(came, left)| came > MOST_STAYED * left);
    let prompts = [PromptTokens, RequestPromptTokensSum].map(grown);
    let some_give_up = left_early(begun, finished).or_else(|| left_early(prompts[0], prompts[1]));
    let full = span.range(Signal::KvUsage).is_some_and(|[_, _, most]| most >= ROOMY);
    let preempted = span.range(Waiting).filter(|_| full).map_or(0.0, |[_, _, most]| most);
    let rules: [(bool, &[Signal]); 5] = [
        (
            // Whom the scheduler sends has begun or waits.
            differ(grown(SchedulerAttempts).zip(begun), waited + SOME_REQUESTS),
            &[SchedulerAttempts],
        ),
        (
            // Answers to clients that gave up were generated and are of no finished request.
            size > 0.0
                && finished >= Some(MANY_FINISHED)
                && (answered > generated
                    || some_give_up == Some(false)
                        && off(Some(size), usual.and_then(|usual| usual.generated), DIFFERENT) != 0)
                && differ(generated.zip(answered), UNDER_WAY * (most + preempted) * size + SOME_TOKENS),
            &[GenerationTokens, RequestGenerationTokensSum],
        ),
        (
            // Every gap ends with a token.
            span.is_timely()
                && generated
                    .zip(gaps)
                    .is_some_and(|(tokens, gaps)| gaps >= SOME_TOKENS && tokens < 0.8 * gaps),
            &[GenerationTokens, InterTokenLatencyCount],
        ),
        (gap_seconds.is_some_and(|seconds| shown(seconds) > most_shown), &[InterTokenLatencySum, Running]),
        (
            nobody_waits
                && mean >= MANY_RUNNING
                && accounted.is_some_and(|shown| shown < BELOW_RUNNING * mean - 1.0),
            &[InterTokenLatencySum, TimeToFirstTokenSum, Running],
        ),
    ];
    rules
        .iter()
        .filter(|(broken, _)| *broken)
        .fold(SignalSet::NONE, |set, (_, signals)| set.with(SignalSet::of(signals)))
}

/// A cache whose use repeats one value to the bit while the number of running requests changes.
fn gauges(span: &Span<'_>) -> SignalSet {
    let ranges = [Signal::KvUsage, Signal::Running].map(|signal| span.range(signal));
    let [Some([kv_least, _, kv_most]), Some([least, mean, most])] = ranges else { return SignalSet::NONE };
    let waits = span.range(Signal::Waiting).is_some_and(|[_, _, most]| most > 0.0);
    // A cache that is full scrape after scrape has some wait.
    let overfull = kv_least >= 1.0 && (waits || span.get(Signal::Waiting).is_empty());
    let still = kv_most <= kv_least && kv_least > 0.0 && !overfull;
    if still && most - least > (0.2 * mean).max(2.0) {
        SignalSet::of(&[Signal::KvUsage])
    } else {
        SignalSet::NONE
    }
}

/// A queue that repeats its length while the engine, which runs `sequences` requests at once, takes others in and has room for who
/// waits, or had none for anybody: what is exactly as full as it can be, scrape after scrape, has some wait.
fn queue(span: &Span<'_>, sequences: Option<f64>) -> SignalSet {
    let [Some([least_waiting, _, most_waiting]), Some([least, _, most])] =
        [Signal::Waiting, Signal::Running].map(|signal| span.range(signal))
    else {
        return SignalSet::NONE;
    };
    let Some(sequences) = sequences.filter(|_| most_waiting <= least_waiting) else {
        return SignalSet::NONE;
    };
    let [_, _, usage] = span.range(Signal::KvUsage).unwrap_or([0.0, 0.0, 1.0]);
    let has_room = most_waiting > 0.0 && least < most && most < ROOMY * sequences && usage < ROOMY;
    let is_full = most_waiting <= 0.0 && least >= sequences && most <= sequences;
    if has_room || is_full { SignalSet::of(&[Signal::Waiting]) } else { SignalSet::NONE }
}

/// The signals of `all` that at least one of `engines` shows lately.
pub fn shown<'a>(engines: impl Iterator<Item = &'a Signals>, all: SignalSet, now: Timestamp) -> SignalSet {
    let lately = |signals: &'a Signals, signal| {
        let limit = stale_limit(signals.interval());
        signals.newest(signal).is_some_and(|newest| Seconds::between(newest.at, now) <= limit)
    };
    engines.fold(SignalSet::NONE, |set, signals| {
        all.iter()
            .filter(|signal| lately(signals, *signal))
            .fold(set, |set, signal| set.with(SignalSet::of(&[signal])))
    })
}
