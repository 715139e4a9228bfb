//! What an engine shows that cannot be true beside what its variant's engines usually do: a signal that shows half or twice as
//! much from one scrape to the next, while what follows from the same requests does not change.

use jiff::Timestamp;

use super::derived_metrics::{DerivedMetric, DerivedMetrics, MetricRanges};
use super::sample_window::{MANY_RUNNING, Span, Window};
use super::signal_history::Baseline;
use crate::snapshot::{Signal, SignalSet};

/// A figure is another one when it is by this factor away from the usual mean: half and twice are.
pub(super) const OFF: f64 = 1.5;
/// From one scrape to the next the tokens of running requests change by less.
const JUMP: f64 = 1.7;
/// While running requests change by less than this.
const ALIKE: f64 = 1.2;
/// A request holds of caches of the same size shares that differ by less.
const SAME_SHARE: f64 = 1.25;
/// A figure is off when it is beyond everything that engines have shown of it by this factor: half and twice are.
const BEYOND: f64 = 1.35;
/// And it is as it was when it is beyond it by less than this one.
const AS_SHOWN: f64 = 1.1;
/// An engine that guesses no tokens generates one for each gap and first token, and some at the ends of what is compared.
const GUESSED: f64 = 1.2;
/// All engines of a variant are started with the same cache, to within what each measures of its memory.
const SAME_CACHE: f64 = 1.1;

/// The signals of an engine, seen over `span` and showing what is `shown`, that are not as usual. `mix` is that of the time in which
/// what runs has begun. `born` is when its pod began to serve: one that is younger than what is usual is not judged by it.
pub(super) fn unusual(
    span: &Span<'_>,
    mix: impl Fn() -> Option<f64>,
    shown: &DerivedMetrics,
    usual: Option<(Timestamp, &Baseline)>,
    born: Timestamp,
) -> SignalSet {
    let Some((at, usual)) = usual else { return SignalSet::NONE };
    let (known, leapt) = (born < at, leapt(span, &usual.ranges));
    let ratios = if known { ratios(span, mix, shown, &usual.ranges) } else { SignalSet::NONE };
    leapt.with(cache(span, usual, known)).with(ratios)
}

/// How far `ratio` is from the usual one: -1 lower, 1 higher, 0 as usual or not known.
pub(super) fn off(ratio: Option<f64>, usual: Option<f64>, by: f64) -> i8 {
    let (Some(ratio), Some(usual)) = (ratio, usual) else { return 0 };
    match ratio / usual {
        part if part > by => 1,
        part if part < 1.0 / by => -1,
        _ => 0,
    }
}

/// The use of the cache has leapt in one scrape by more tokens than were computed, and to more than what runs has ever held. Long
/// prompts fill it before they are counted.
fn leapt(span: &Span<'_>, ranges: &MetricRanges) -> SignalSet {
    let two = |signal| {
        let mut newest = span.get(signal).iter().rev().map(|sample| sample.value);
        Some([newest.next()?, newest.next()?])
    };
    let grown = |signal| two(signal).map(|[newest, before]| newest - before).filter(|grown| *grown >= 0.0);
    let computed =
        grown(Signal::PromptTokens).zip(grown(Signal::GenerationTokens)).map(|(one, other)| one + other);
    let capacity = span.get(Signal::KvCapacity).last().map(|sample| sample.value);
    let (Some(usage), Some(running), Some(computed), Some(capacity)) =
        (two(Signal::KvUsage), two(Signal::Running), computed, capacity)
    else {
        return SignalSet::NONE;
    };
    let alike = running[1] >= MANY_RUNNING && off(Some(running[0] / running[1]), Some(1.0), ALIKE) == 0;
    let leapt = usage[0] > JUMP * usage[1] && (usage[0] - usage[1]) * capacity > OFF * computed;
    let most = ranges.differs_by(DerivedMetric::KvARequest, Some(usage[0] / running[0]), BEYOND) == Some(1);
    if alike && leapt && most { SignalSet::of(&[Signal::KvUsage]) } else { SignalSet::NONE }
}

/// The size of the cache is that of an engine's own past, and fits what a request holds of it.
fn cache(span: &Span<'_>, usual: &Baseline, known: bool) -> SignalSet {
    let newest = span.get(Signal::KvCapacity).last().map(|sample| sample.value);
    let running = span.mean(Signal::Running).filter(|running| *running >= MANY_RUNNING / 2.0);
    let kv_a_request = span.mean(Signal::KvUsage).zip(running).map(|(usage, running)| usage / running);
    // A cache of another size holds other shares of the same requests.
    let as_before = known || kv_a_request.is_some() && off(kv_a_request, usual.kv_a_request, SAME_SHARE) == 0;
    let changed = off(newest, usual.capacity, SAME_CACHE) != 0;
    if changed && as_before { SignalSet::of(&[Signal::KvCapacity]) } else { SignalSet::NONE }
}

/// Running requests, the cache that they hold, the tokens of a step and the seconds between tokens belong together. Between two
/// scrapes others may have run than those that were seen: what is held against the seen ones is told by two figures.
fn ratios(
    span: &Span<'_>,
    begun: impl Fn() -> Option<f64>,
    shown: &DerivedMetrics,
    ranges: &MetricRanges,
) -> SignalSet {
    let off = |figure| ranges.off(figure, shown, BEYOND);
    let differs = |figure| ranges.differs(figure, shown, AS_SHOWN);
    let full = span.range(Signal::KvUsage).is_some_and(|[_, _, most]| most >= 1.0);
    let holds = if full { off(DerivedMetric::KvARequest).max(0) } else { off(DerivedMetric::KvARequest) };
    let [steps, seconds, mix, answer, missed] = [
        DerivedMetric::StepARequest,
        DerivedMetric::SecondsARequest,
        DerivedMetric::Mix,
        DerivedMetric::Answer,
        DerivedMetric::Missed,
    ]
    .map(differs);
    // Requests of other sizes explain another use of the cache for as long as they run, and so do prompts that others hold
    // already, where that is counted.
    let same_mix = || {
        let lately = ranges.leans_to(DerivedMetric::Mix, begun(), ALIKE);
        [mix, lately, answer] == [Some(0); 3] && missed.unwrap_or(0) == 0
    };
    // Where a step brings a varying number of tokens for each request, it guesses, and may guess better or worse.
    let guesses = ranges.most(DerivedMetric::TokensAGap).is_none_or(|most| most > GUESSED);
    let liars: &[Signal] = match (off(DerivedMetric::SecondsAStep), off(DerivedMetric::TokensAGap)) {
        (0, 0)
            if holds != 0
                && off(DerivedMetric::StepARequest) == holds
                && seconds.unwrap_or(holds) == holds =>
        {
            &[Signal::Running]
        }
        (0, 0) if holds != 0 && steps == Some(0) && same_mix() => {
            // Where few run, steps vary too much to tell which of the two it is.
            if ranges.leans(DerivedMetric::StepARequest, shown, ALIKE) == Some(holds) {
                &[Signal::KvUsage, Signal::Running]
            } else {
                &[Signal::KvUsage]
            }
        }
        (0, 0) => &[],
        _ if guesses => &[],
        (0, _) => &[Signal::InterTokenLatencyCount],
        (_, gaps) if gaps != 0 => &[Signal::GenerationTokens],
        _ => span.busiest().map_or(&[], |(pair, _)| {
            let busiest = DerivedMetrics::of(&span.with(&Window::of(pair)));
            too_many_seconds(shown, &busiest, ranges)
        }),
    };
    SignalSet::of(liars)
}

/// Who makes the seconds between tokens others than the tokens of steps take: whose figure has changed by more than half as much
/// between the two scrapes of `busiest`.
fn too_many_seconds(
    shown: &DerivedMetrics,
    busiest: &DerivedMetrics,
    ranges: &MetricRanges,
) -> &'static [Signal] {
    let above = |figure| ranges.above_middle(figure, busiest);
    let Some(seconds) = ranges.above_middle(DerivedMetric::SecondsAStep, shown) else { return &[] };
    let changed = |figure, with: f64| above(figure).is_some_and(|above| above / (with * seconds) > 0.5);
    if changed(DerivedMetric::Gap, 1.0) {
        &[Signal::InterTokenLatencySum]
    } else if changed(DerivedMetric::StepARequest, -1.0) {
        &[Signal::EngineSteps]
    } else if changed(DerivedMetric::SecondsARequest, 1.0) {
        // Seconds and gaps, and so all that is counted, by the same factor.
        &COUNTERS
    } else {
        &[]
    }
}

const COUNTERS: [Signal; 12] = [
    Signal::PromptTokens,
    Signal::GenerationTokens,
    Signal::InterTokenLatencySum,
    Signal::InterTokenLatencyCount,
    Signal::TimeToFirstTokenSum,
    Signal::TimeToFirstTokenCount,
    Signal::RequestPromptTokensSum,
    Signal::RequestPromptTokensCount,
    Signal::RequestGenerationTokensSum,
    Signal::RequestGenerationTokensCount,
    Signal::SchedulerAttempts,
    Signal::EngineSteps,
];
