//! Balance of an engine. The prompt of each request that starts is computed, and the request finishes or is given up; a computed
//! token stays in the cache until its request leaves. So the counters of what comes in match those of what goes out, whatever the
//! sizes of requests are and however they scatter.

use super::baseline_deviation::{MAX_MEAN_RATIO, compare};
use super::derived_metrics::DerivedMetric;
use super::sample_window::{MIN_REQUESTS, MIN_TOKENS, Span};
use super::signal_history::Baseline;
use crate::snapshot::{Signal, SignalSet};

/// Two histograms that count each finished request differ by less than this factor: one scrape reads both, but labels may split them.
const MAX_FINISHED_RATIO: f64 = 1.2;
/// An engine that counts the same requests in both has always shown a ratio within this factor of 1.
const MAX_USUAL_FINISHED_RATIO: f64 = 1.05;
/// Share of the requests by which starting and leaving ones may differ by chance, or because clients give up.
const MAX_GIVEN_UP: f64 = 0.4;
/// Fewer requests have no mean prompt: those that clients give up may have the longest ones.
const MIN_PROMPTS: f64 = 20.0;
/// Share of the prompt tokens by which computed and leaving ones may differ: prompts that are computed in part.
const MAX_PARTIAL_PROMPTS: f64 = 0.35;
/// Prompts that may be counted a step before or after the cache holds them.
const PROMPTS_BETWEEN_STEPS: f64 = 3.0;
/// A counter is distrusted only if its mean size changed by this factor. One that shows half or twice as much does so once that
/// fills half of the window.
const MIN_SIZE_CHANGE: f64 = 1.25;
/// A running request holds what was computed for it, to within this factor.
const MAX_HELD_RATIO: f64 = 2.0;
/// Share of the KV cache above which an engine may preempt requests.
const PREEMPTION_USAGE: f64 = 0.9;

/// The counters by which more, or fewer, requests or tokens came into an engine than left it or are still there.
pub(super) fn find_unbalanced(span: &Span<'_>, baseline: Option<&Baseline>) -> SignalSet {
    let flow = Flow::from_span(span);
    if flow.has_differing_finished_counts() {
        return flow.find_wrong_finished_count(baseline);
    }
    let counts = flow.find_unbalanced_requests(span, baseline);
    if counts.is_empty() { flow.find_unbalanced_tokens(baseline) } else { counts }
}

/// Growth over a window. What was not shown is `None`.
struct Flow {
    /// Requests with a first token.
    started: Option<f64>,
    /// Requests that finished, as counted with their answers.
    finished_answers: Option<f64>,
    /// The same, as counted with their prompts.
    finished_prompts: Option<f64>,
    /// Prompt tokens, counted when they are computed.
    computed_prompt_tokens: Option<f64>,
    /// Prompt tokens, counted when their request finishes.
    finished_prompt_tokens: Option<f64>,
    answer_tokens: Option<f64>,
    /// Running requests: positive if there are more at the end.
    running_change: Option<f64>,
    /// Tokens that were computed, did not leave, and are not in the cache.
    lost_tokens: Option<f64>,
    /// Prompt tokens found in the prefix cache, which need no space of their own.
    shared_tokens: f64,
    /// Requests that a full cache may have sent back to the queue.
    preempted: f64,
}

impl Flow {
    fn from_span(span: &Span<'_>) -> Self {
        let computed_prompt_tokens = span.growth(Signal::PromptTokens);
        let finished_prompt_tokens = span.growth(Signal::RequestPromptTokensSum);
        let answer_tokens = span.growth(Signal::RequestGenerationTokensSum);
        let lost_tokens = || {
            let computed = computed_prompt_tokens? + span.growth(Signal::GenerationTokens)?;
            let left = finished_prompt_tokens? + answer_tokens?;
            let capacity = span.range(Signal::KvCapacity).filter(|capacity| capacity.max <= capacity.min)?;
            let cached = span.change(Signal::KvUsage)? * capacity.min;
            // A cache cannot change by more than goes through it: its usage is wrong then.
            (cached.abs() <= computed + left).then_some(computed - left - cached)
        };
        let is_full = span.max(Signal::KvUsage).is_some_and(|usage| usage >= PREEMPTION_USAGE);
        Self {
            started: span.growth(Signal::TimeToFirstTokenCount),
            finished_answers: span.growth(Signal::RequestGenerationTokensCount),
            finished_prompts: span.growth(Signal::RequestPromptTokensCount),
            computed_prompt_tokens,
            finished_prompt_tokens,
            answer_tokens,
            running_change: span.change(Signal::Running),
            lost_tokens: if span.counts_tokens_live() { lost_tokens() } else { None },
            shared_tokens: span.growth(Signal::PrefixCacheHits).unwrap_or(0.0),
            preempted: if is_full { span.max(Signal::Waiting).unwrap_or(0.0) } else { 0.0 },
        }
    }

    /// Mean prompt of finished requests, as a ratio to the baseline's.
    fn prompt_size_ratio(&self, baseline: Option<&Baseline>) -> Option<f64> {
        let usual = baseline.and_then(|baseline| baseline.prompt);
        size_ratio(self.finished_prompt_tokens, self.finished_prompts, usual)
    }

    /// Mean answer of finished requests, as a ratio to the baseline's.
    fn answer_size_ratio(&self, baseline: Option<&Baseline>) -> Option<f64> {
        let usual = baseline.and_then(|baseline| baseline.generated);
        size_ratio(self.answer_tokens, self.finished_answers, usual)
    }

    /// The histograms of answers and of prompts count different numbers of finished requests.
    fn has_differing_finished_counts(&self) -> bool {
        let (Some(answers), Some(prompts)) = (self.finished_answers, self.finished_prompts) else {
            return false;
        };
        let (min, max) = (answers.min(prompts), answers.max(prompts));
        max > min + MIN_REQUESTS && max > MAX_FINISHED_RATIO * min
    }

    /// Of two counts that engines have always shown alike, the one whose mean size changed. An engine may count answers that were
    /// given up, or several answers to a prompt; then the counts were never alike.
    fn find_wrong_finished_count(&self, baseline: Option<&Baseline>) -> SignalSet {
        let is_usually_alike = baseline.is_some_and(|baseline| {
            baseline.ranges.is_near_one(DerivedMetric::FinishedRatio, MAX_USUAL_FINISHED_RATIO)
        });
        let change = |ratio: Option<f64>| ratio.map_or(0.0, |ratio| ratio.ln().abs());
        let prompt = change(self.prompt_size_ratio(baseline));
        let answer = change(self.answer_size_ratio(baseline));
        if !is_usually_alike || prompt.max(answer) <= MIN_SIZE_CHANGE.ln() {
            SignalSet::NONE
        } else if answer > prompt {
            SignalSet::new(&[Signal::RequestGenerationTokensCount])
        } else {
            SignalSet::new(&[Signal::RequestPromptTokensCount])
        }
    }

    /// Requests that started have finished, still run, or were given up. The counter or gauge that says otherwise.
    fn find_unbalanced_requests(&self, span: &Span<'_>, baseline: Option<&Baseline>) -> SignalSet {
        let (Some(started), Some(finished), Some(running_change)) =
            (self.started, self.finished_answers, self.running_change)
        else {
            return SignalSet::NONE;
        };
        let accounted = (finished + running_change).max(0.0);
        let given_up = started - accounted;
        // A preempted request waits, runs again, and was counted as started before.
        let preempted = if given_up < 0.0 { self.preempted } else { 0.0 };
        if given_up.abs() <= MIN_REQUESTS + preempted + MAX_GIVEN_UP * started.max(accounted) {
            return SignalSet::NONE;
        }
        let prompt =
            self.computed_prompt_tokens.filter(|_| span.counts_tokens_live()).map(|tokens| tokens / started);
        if given_up > 0.0 && self.is_giving_up_plausible(started, given_up, prompt, baseline) {
            return SignalSet::NONE;
        }
        let counts = [Signal::TimeToFirstTokenCount, Signal::RequestGenerationTokensCount];
        let Some(baseline) = baseline else { return SignalSet::new(&counts) };
        let last = |signal| span.series(signal).last().map(|sample| sample.value);
        let running = last(Signal::Running).filter(|running| *running > 0.0);
        let usage = last(Signal::KvUsage).zip(running).map(|(usage, running)| usage / running);
        let compare_ratio = |ratio| compare(ratio, Some(1.0), MAX_MEAN_RATIO);
        let finished_prompt = compare_ratio(self.prompt_size_ratio(Some(baseline)));
        let finished_answer = compare_ratio(self.answer_size_ratio(Some(baseline)));
        let are_prompts_same = finished_prompt == 0 && compare(prompt, baseline.prompt, MAX_MEAN_RATIO) == 0;
        let is_usage_same = compare(usage, baseline.usage_per_request, MAX_MEAN_RATIO) == 0;
        let has_prompt_counts = self.finished_prompts.is_some();
        SignalSet::new(if are_prompts_same && !is_usage_same {
            &[Signal::Running]
        } else if has_prompt_counts && finished_answer != 0 && finished_answer == finished_prompt {
            &[Signal::RequestGenerationTokensCount, Signal::RequestPromptTokensCount]
        } else if has_prompt_counts {
            &[Signal::TimeToFirstTokenCount]
        } else if finished_answer != 0 {
            &[Signal::RequestGenerationTokensCount]
        } else if baseline.generated.is_some() {
            &[Signal::TimeToFirstTokenCount]
        } else {
            &counts
        })
    }

    /// Clients may have given up so many requests: these started and did not finish, but their prompts were computed and left
    /// the cache. Only prompts that became shorter than the engine has ever shown say that fewer requests started.
    fn is_giving_up_plausible(
        &self,
        started: f64,
        given_up: f64,
        prompt: Option<f64>,
        baseline: Option<&Baseline>,
    ) -> bool {
        let have_prompts_left =
            self.lost_tokens.zip(prompt).is_some_and(|(lost, prompt)| lost > 0.5 * prompt * given_up);
        let side = baseline.and_then(|baseline| {
            baseline.ranges.side_of_range(DerivedMetric::PromptTokens, prompt, MIN_SIZE_CHANGE)
        });
        started < MIN_PROMPTS || have_prompts_left || side != Some(-1)
    }

    /// Tokens that were computed have left or are in the cache. If they are not, the counter whose mean size is furthest from the
    /// baseline is wrong.
    fn find_unbalanced_tokens(&self, baseline: Option<&Baseline>) -> SignalSet {
        let (Some(baseline), Some(lost), Some(computed), Some(left)) =
            (baseline, self.lost_tokens, self.computed_prompt_tokens, self.finished_prompt_tokens)
        else {
            return SignalSet::NONE;
        };
        let (Some(finished), Some(running_change)) = (self.finished_answers, self.running_change) else {
            return SignalSet::NONE;
        };
        // Requests that clients give up take any number of tokens along.
        let nobody_gives_up = self.started.is_some_and(|started| started - finished - running_change < 1.0);
        if !holds_computed_tokens(baseline) || lost > 0.0 && !nobody_gives_up {
            return SignalSet::NONE;
        }
        let started = self.started.unwrap_or(finished + running_change).max(1.0);
        let answer = self.answer_tokens.unwrap_or(0.0) / finished.max(1.0);
        let longest = baseline.ranges.max(DerivedMetric::PromptTokens).unwrap_or(0.0);
        let prompt = (computed / started).max(left / finished.max(1.0)).max(longest);
        let shared = if lost > 0.0 { self.shared_tokens } else { baseline.hits.unwrap_or(0.0) * left };
        let in_progress = MIN_TOKENS
            + (running_change.abs() + PROMPTS_BETWEEN_STEPS) * prompt
            + self.preempted * (prompt + answer)
            + shared;
        if lost.abs() <= in_progress + MAX_PARTIAL_PROMPTS * computed.max(left) {
            return SignalSet::NONE;
        }
        // Lost tokens mean that too many were counted in, or too few out; a negative number the opposite.
        let sign = lost.signum();
        let expected_side = if lost > 0.0 { 1 } else { -1 };
        let prompt_tokens = Some(computed / started);
        let side = baseline.ranges.side_of_range(DerivedMetric::PromptTokens, prompt_tokens, MIN_SIZE_CHANGE);
        if side == Some(expected_side) {
            return SignalSet::new(&[Signal::PromptTokens]);
        }
        let sums = [
            (Signal::RequestPromptTokensSum, self.prompt_size_ratio(Some(baseline))),
            (Signal::RequestGenerationTokensSum, self.answer_size_ratio(Some(baseline))),
        ];
        let changes = sums.into_iter().filter_map(|(signal, ratio)| Some((-sign * ratio?.ln(), signal)));
        let wrong = changes
            .filter(|(change, _)| *change > MIN_SIZE_CHANGE.ln())
            .max_by(|(left, _), (right, _)| left.total_cmp(right));
        wrong.map_or(SignalSet::NONE, |(_, signal)| SignalSet::new(&[signal]))
    }
}

/// Mean size of `requests` that have `tokens`, as a ratio to the `usual` one.
fn size_ratio(tokens: Option<f64>, requests: Option<f64>, usual: Option<f64>) -> Option<f64> {
    Some(tokens? / requests? / usual?).filter(|ratio| ratio.is_finite() && *ratio > 0.0)
}

/// A running request holds the tokens that were computed for it: not where prompts are shared, attention windows slide, or blocks
/// outlive requests. On average half of its answer has been generated.
fn holds_computed_tokens(baseline: &Baseline) -> bool {
    let held = baseline.usage_per_request.zip(baseline.capacity).map(|(share, capacity)| share * capacity);
    let computed = baseline.prompt.zip(baseline.generated).map(|(prompt, answer)| prompt + 0.5 * answer);
    held.zip(computed)
        .is_some_and(|(held, computed)| held > computed / MAX_HELD_RATIO && held < computed * MAX_HELD_RATIO)
}
