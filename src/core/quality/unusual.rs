//! What an engine shows that cannot be true beside what its variant's engines usually do: a signal that shows half or twice as
//! much from one scrape to the next, while what follows from the same requests does not change.

use jiff::Timestamp;

use super::believed::Usual;
use super::coverage::{MANY_RUNNING, SOME_REQUESTS, Span};
use crate::snapshot::{Signal, SignalSet};

/// Two figures that belong together are off when their ratio is by this factor another one than usual. Half and twice are; what
/// comes and goes in half a minute is not.
const OFF: f64 = 1.5;
/// From one scrape to the next the tokens of running requests change by less.
const JUMP: f64 = 1.7;
/// While running requests change by less than this.
const ALIKE: f64 = 1.2;
/// Tokens of prompts for each that is generated: a mix of requests that has changed by more explains another use of the cache.
const MIX: f64 = 1.25;
/// Shares of prompts found in the prefix cache that differ by less are the same.
const SAME_HITS: f64 = 0.1;
/// Of requests that begin in ten seconds, those that clients give up meanwhile.
const BALANCED: f64 = 0.4;
/// All engines of a variant are started with the same cache, to within what each measures of its memory.
const SAME_CACHE: f64 = 1.1;

/// The signals of an engine, seen over `span`, that are not as usual. `born` is when its pod began to serve: one that is younger
/// than what is usual is not judged by it.
pub(super) fn unusual(span: &Span<'_>, usual: Option<(Timestamp, &Usual)>, born: Timestamp) -> SignalSet {
    let leapt = leapt(span);
    let Some((at, usual)) = usual else { return leapt };
    let known = born < at;
    let ratios = if known { ratios(span, usual) } else { SignalSet::NONE };
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

/// The use of the cache has leapt in one scrape by more tokens than were computed, and what runs has not.
fn leapt(span: &Span<'_>) -> SignalSet {
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
    if alike && leapt { SignalSet::of(&[Signal::KvUsage]) } else { SignalSet::NONE }
}

/// Requests that have begun, and not finished and do not run either (or the other way round). Of the two counts the one whose
/// requests are not as large as usual is the liar.
pub(super) fn balance(span: &Span<'_>, usual: Option<&Usual>) -> SignalSet {
    let counts = [Signal::TimeToFirstTokenCount, Signal::RequestGenerationTokensCount];
    let [Some(begun), Some(finished)] = counts.map(|count| span.grown(count)) else { return SignalSet::NONE };
    let running = span.get(Signal::Running);
    let (Some(first), Some(last)) = (running.first(), running.last()) else { return SignalSet::NONE };
    let left = (finished + last.value - first.value).max(0.0);
    if (begun - left).abs() <= SOME_REQUESTS + BALANCED * begun.max(left) {
        return SignalSet::NONE;
    }
    // Clients that give up have begun and not finished; but each had its prompt computed.
    let prompt = span.grown(Signal::PromptTokens).map(|tokens| tokens / begun);
    if begun > left && off(prompt, usual.and_then(|usual| usual.prompt), OFF) == 0 {
        return SignalSet::NONE;
    }
    let usage = span.get(Signal::KvUsage).last().map(|usage| usage.value / last.value);
    let answer = span.grown(Signal::RequestGenerationTokensSum).map(|tokens| tokens / finished);
    match usual {
        Some(usual) if off(usage, usual.kv_a_request, OFF) != 0 => SignalSet::of(&[Signal::Running]),
        Some(usual) if off(answer, usual.generated, OFF) != 0 => SignalSet::of(&counts[1..]),
        Some(usual) if usual.generated.is_some() => SignalSet::of(&counts[..1]),
        _ => SignalSet::of(&counts),
    }
}

/// The size of the cache is that of an engine's own past, and fits what a request holds of it.
fn cache(span: &Span<'_>, usual: &Usual, known: bool) -> SignalSet {
    let newest = span.get(Signal::KvCapacity).last().map(|sample| sample.value);
    let running = mean(span, Signal::Running).filter(|running| *running >= MANY_RUNNING / 2.0);
    let each = mean(span, Signal::KvUsage).zip(running).map(|(usage, running)| usage / running);
    // A cache of another size holds other shares of the same requests.
    let as_before = known || each.is_some() && off(each, usual.kv_a_request, MIX) == 0;
    let changed = off(newest, usual.capacity, SAME_CACHE) != 0;
    if changed && as_before { SignalSet::of(&[Signal::KvCapacity]) } else { SignalSet::NONE }
}

fn mean(span: &Span<'_>, signal: Signal) -> Option<f64> {
    span.range(signal).map(|[_, mean, _]| mean)
}

/// Running requests, the cache that they hold, the tokens of a step and the seconds between tokens belong together.
fn ratios(span: &Span<'_>, usual: &Usual) -> SignalSet {
    let Some(running) = mean(span, Signal::Running).filter(|running| *running >= MANY_RUNNING / 2.0) else {
        return SignalSet::NONE;
    };
    let full = span.range(Signal::KvUsage).is_some_and(|[_, _, most]| most >= 1.0);
    let a_request = |all: Option<f64>| all.map(|all| all / running);
    let holds = off(a_request(mean(span, Signal::KvUsage)), usual.kv_a_request, OFF);
    let holds = if full { holds.max(0) } else { holds };
    let steps = off(a_request(span.tokens_a_step()), usual.step_a_request, OFF);
    let seconds = off(a_request(span.gap_seconds_a_second()), usual.seconds_a_request, OFF);
    let gaps = off(span.tokens_a_gap(), usual.tokens_a_gap, OFF);
    let same_gap = off(span.gap(), usual.gap, MIX) == 0;
    // Requests of other sizes, and prompts that others hold already, explain another use of the cache.
    let same_mix = off(span.mix(), usual.mix, MIX) == 0
        && off(span.answer(), usual.generated, MIX) == 0
        && span.hits().zip(usual.hits).is_none_or(|(hits, usual)| (hits - usual).abs() < SAME_HITS);
    match (holds, steps, seconds) {
        (0, 0, 0) if gaps != 0 => SignalSet::of(&[Signal::InterTokenLatencyCount]),
        (0, 0, 0) => SignalSet::NONE,
        // Seconds and gaps, and so all that is counted, by the same factor.
        (0, 0, _) if same_gap => COUNTERS,
        (0, 0, _) => SignalSet::of(&[Signal::InterTokenLatencySum]),
        (0, _, _) if gaps != 0 => SignalSet::of(&[Signal::GenerationTokens]),
        (0, _, _) => SignalSet::of(&[Signal::EngineSteps]),
        (_, 0, _) if same_mix => SignalSet::of(&[Signal::KvUsage]),
        (holds, steps, _) if holds == steps => SignalSet::of(&[Signal::Running]),
        _ => SignalSet::NONE,
    }
}

const COUNTERS: SignalSet = SignalSet::of(&[
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
]);
