//! Signals that contradict the baseline of a variant: one that shows half or twice as much from one scrape to the next, while what
//! follows from the same requests does not change.

use jiff::Timestamp;

use super::derived_metrics::{DerivedMetric, DerivedMetrics, MetricRanges};
use super::sample_window::{MIN_RUNNING, Span, Window};
use super::signal_history::Baseline;
use crate::snapshot::{Signal, SignalSet};

/// Factor from a mean of the baseline beyond which a value is another one: half and twice are.
pub(super) const MAX_MEAN_RATIO: f64 = 1.5;
/// From one scrape to the next the tokens that running requests hold change by less than this factor,
const MAX_USAGE_JUMP: f64 = 1.7;
/// while the number of running requests changes by less than this one.
const SAME_RUNNING: f64 = 1.2;
/// In caches of the same size, the shares that a request holds differ by less than this factor.
const SAME_USAGE: f64 = 1.25;
/// Factor outside its range beyond which a metric deviates: half and twice do.
const DEVIATION: f64 = 1.35;
/// And up to which it counts as unchanged.
const UNCHANGED: f64 = 1.1;
/// Without speculative decoding an engine generates one token for each gap or first token, give or take some at the ends of the
/// window.
const MAX_TOKENS_PER_GAP: f64 = 1.2;
/// The engines of a variant have the same cache size, to within what each measures of its memory.
const SAME_CAPACITY: f64 = 1.1;

/// The signals of an engine that contradict its baseline. `prompt_share` is that of the time in which the running requests
/// started. An engine that became ready after the baseline was completed is not compared with all of it.
pub(super) fn find_deviating(
    span: &Span<'_>,
    prompt_share: impl Fn() -> Option<f64>,
    metrics: &DerivedMetrics,
    baseline: Option<(Timestamp, &Baseline)>,
    ready_since: Timestamp,
) -> SignalSet {
    let Some((completed_at, baseline)) = baseline else { return SignalSet::NONE };
    let is_part_of_baseline = ready_since < completed_at;
    let ratios = if is_part_of_baseline {
        find_deviating_metrics(span, prompt_share, metrics, &baseline.ranges)
    } else {
        SignalSet::NONE
    };
    find_usage_jump(span, &baseline.ranges)
        .with(find_capacity_change(span, baseline, is_part_of_baseline))
        .with(ratios)
}

/// How `value` compares with `usual`: 1 above by more than the factor `factor`, -1 below, 0 neither or unknown.
pub(super) fn compare(value: Option<f64>, usual: Option<f64>, factor: f64) -> i8 {
    let (Some(value), Some(usual)) = (value, usual) else { return 0 };
    match value / usual {
        ratio if ratio > factor => 1,
        ratio if ratio < 1.0 / factor => -1,
        _ => 0,
    }
}

/// KV usage that jumped in one scrape by more tokens than were computed, to more than running requests have ever held. A smaller
/// jump may come from long prompts, which fill the cache before they are counted.
fn find_usage_jump(span: &Span<'_>, ranges: &MetricRanges) -> SignalSet {
    let newest_two = |signal| {
        let mut newest = span.series(signal).iter().rev().map(|sample| sample.value);
        Some([newest.next()?, newest.next()?])
    };
    let growth =
        |signal| newest_two(signal).map(|[newest, before]| newest - before).filter(|growth| *growth >= 0.0);
    let computed = growth(Signal::PromptTokens)
        .zip(growth(Signal::GenerationTokens))
        .map(|(prompts, answers)| prompts + answers);
    let capacity = span.series(Signal::KvCapacity).last().map(|sample| sample.value);
    let (Some(usage), Some(running), Some(computed), Some(capacity)) =
        (newest_two(Signal::KvUsage), newest_two(Signal::Running), computed, capacity)
    else {
        return SignalSet::NONE;
    };
    let [usage, usage_before] = usage;
    let [running, running_before] = running;
    let is_running_alike = running_before >= MIN_RUNNING
        && compare(Some(running / running_before), Some(1.0), SAME_RUNNING) == 0;
    let is_jump = usage > MAX_USAGE_JUMP * usage_before
        && (usage - usage_before) * capacity > MAX_MEAN_RATIO * computed;
    let side = ranges.side_of_range(DerivedMetric::UsagePerRequest, Some(usage / running), DEVIATION);
    if is_running_alike && is_jump && side == Some(1) {
        SignalSet::new(&[Signal::KvUsage])
    } else {
        SignalSet::NONE
    }
}

/// A cache size that differs from the baseline's, although the engine is part of the baseline or its requests hold the same shares
/// of the cache.
fn find_capacity_change(span: &Span<'_>, baseline: &Baseline, is_part_of_baseline: bool) -> SignalSet {
    let capacity = span.series(Signal::KvCapacity).last().map(|sample| sample.value);
    let is_changed = compare(capacity, baseline.capacity, SAME_CAPACITY) != 0;
    let running = span.mean(Signal::Running).filter(|running| *running >= MIN_RUNNING / 2.0);
    let usage = span.mean(Signal::KvUsage).zip(running).map(|(usage, running)| usage / running);
    // In a cache of another size the same requests would hold other shares.
    let is_usage_same = usage.is_some() && compare(usage, baseline.usage_per_request, SAME_USAGE) == 0;
    if is_changed && (is_part_of_baseline || is_usage_same) {
        SignalSet::new(&[Signal::KvCapacity])
    } else {
        SignalSet::NONE
    }
}

/// Running requests, the cache that they hold, the tokens of a step and inter-token latencies depend on each other. Between two
/// scrapes other requests may have run than those that were sampled, so a signal is only distrusted if two metrics deviate.
fn find_deviating_metrics(
    span: &Span<'_>,
    recent_prompt_share: impl Fn() -> Option<f64>,
    metrics: &DerivedMetrics,
    ranges: &MetricRanges,
) -> SignalSet {
    let deviation = |metric| ranges.deviation(metric, metrics.get(metric), DEVIATION);
    let side = |metric| ranges.side_of_range(metric, metrics.get(metric), UNCHANGED);
    // A full cache cannot show more.
    let is_full = span.max(Signal::KvUsage).is_some_and(|usage| usage >= 1.0);
    let usage = deviation(DerivedMetric::UsagePerRequest);
    let usage = if is_full { usage.max(0) } else { usage };
    // Requests of other sizes explain another use of the cache for as long as they run, and so do prompts that other requests
    // hold already, where cache hits are counted.
    let is_workload_same = || {
        let recent = ranges.side_of_middle(DerivedMetric::PromptShare, recent_prompt_share(), SAME_RUNNING);
        let sizes = [side(DerivedMetric::PromptShare), recent, side(DerivedMetric::AnswerTokens)];
        sizes == [Some(0); 3] && side(DerivedMetric::CacheMisses).unwrap_or(0) == 0
    };
    // With speculative decoding a step brings a varying number of tokens, and more or fewer at other times.
    let is_speculative = ranges.max(DerivedMetric::TokensPerGap).is_none_or(|max| max > MAX_TOKENS_PER_GAP);
    let latency_per_token = deviation(DerivedMetric::LatencyPerStepToken);
    let tokens_per_gap = deviation(DerivedMetric::TokensPerGap);
    let distrusted: &[Signal] = match (latency_per_token, tokens_per_gap) {
        // Usage and step tokens per running request deviate alike: the running requests are wrong.
        (0, 0)
            if usage != 0
                && deviation(DerivedMetric::StepTokensPerRequest) == usage
                && side(DerivedMetric::LatencyPerRequest).unwrap_or(usage) == usage =>
        {
            &[Signal::Running]
        }
        // Only the usage deviates, and the workload explains nothing.
        (0, 0)
            if usage != 0 && side(DerivedMetric::StepTokensPerRequest) == Some(0) && is_workload_same() =>
        {
            // With few running requests, steps scatter too much to tell which of the two signals it is.
            let step_tokens = metrics.get(DerivedMetric::StepTokensPerRequest);
            let lean = ranges.side_of_middle(DerivedMetric::StepTokensPerRequest, step_tokens, SAME_RUNNING);
            if lean == Some(usage) { &[Signal::KvUsage, Signal::Running] } else { &[Signal::KvUsage] }
        }
        (0, 0) => &[],
        _ if is_speculative => &[],
        (0, _) => &[Signal::InterTokenLatencyCount],
        (_, gaps) if gaps != 0 => &[Signal::GenerationTokens],
        _ => span.busiest_pair().map_or(&[], |(pair, _)| {
            let busiest = DerivedMetrics::from_span(&span.with_window(&Window::new(pair)));
            find_latency_cause(metrics, &busiest, ranges)
        }),
    };
    SignalSet::new(distrusted)
}

/// Which signal makes the latency per step token deviate: the one whose metric changed by more than half as much, on a logarithmic
/// scale, in the `busiest` pair of scrapes.
fn find_latency_cause(
    metrics: &DerivedMetrics,
    busiest: &DerivedMetrics,
    ranges: &MetricRanges,
) -> &'static [Signal] {
    let metric = DerivedMetric::LatencyPerStepToken;
    let Some(deviation) = ranges.log_above_middle(metric, metrics.get(metric)) else { return &[] };
    let explains = |metric, sign: f64| {
        let change = ranges.log_above_middle(metric, busiest.get(metric));
        change.is_some_and(|change| change / (sign * deviation) > 0.5)
    };
    if explains(DerivedMetric::InterTokenLatency, 1.0) {
        &[Signal::InterTokenLatencySum]
    } else if explains(DerivedMetric::StepTokensPerRequest, -1.0) {
        // More steps mean fewer tokens in each.
        &[Signal::EngineSteps]
    } else if explains(DerivedMetric::LatencyPerRequest, 1.0) {
        // Latencies and gaps, and so every counter, are wrong by the same factor.
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
