//! What flows through an engine. Each request that begins has its prompt computed, and finishes or is given up; a token that was
//! computed is in the cache until its request leaves. So counters of what comes in belong to those of what goes out, whatever the
//! sizes of requests are and however they scatter.

use super::baseline_deviation::{OFF, off};
use super::derived_metrics::DerivedMetric;
use super::sample_window::{SOME_REQUESTS, SOME_TOKENS, Span};
use super::signal_history::Baseline;
use crate::snapshot::{Signal, SignalSet};

/// Two histograms that count each finished request differ by less: labels may split them, one scrape reads both.
const MAX_COUNT_RATIO: f64 = 1.2;
/// Over all that was shown before, their ratio is within this factor of 1 where an engine counts the same requests in both.
const MAX_USUAL_COUNT_RATIO: f64 = 1.05;
/// Share of the requests by which what begins and what leaves may differ by chance, or by clients that give up.
const MAX_GIVEN_UP: f64 = 0.4;
/// Requests from which a mean prompt can be judged: those that clients give up may have the longest ones.
const MIN_REQUESTS: f64 = 20.0;
/// Share of the prompt tokens by which what is computed and what leaves may differ: prompts that are computed in part.
const MAX_PARTIAL_PROMPTS: f64 = 0.35;
/// Prompts that are counted a step before or after the cache holds them.
const PROMPTS_BETWEEN_STEPS: f64 = 3.0;
/// A counter is named the liar only if its mean size is off by this factor: a lie of half or twice is, once it fills half of the
/// window.
const MIN_SIZE_CHANGE: f64 = 1.25;
/// A running request holds what was computed for it, to within this factor.
const MAX_HELD_RATIO: f64 = 2.0;
/// Share of the KV cache from which on an engine may preempt.
const FULL_CACHE: f64 = 0.9;

/// The counters by which more, or fewer, requests or tokens have come into an engine than have left it or are still there.
pub(super) fn unbalanced(span: &Span<'_>, usual: Option<&Baseline>) -> SignalSet {
    let flow = Flow::of(span);
    if flow.has_two_finished_counts() {
        return flow.wrong_finished_count(usual);
    }
    let counts = flow.requests(span, usual);
    if counts.is_empty() { flow.tokens(usual) } else { counts }
}

/// What grew while it was looked at. What was not shown is `None`.
struct Flow {
    /// Requests with a first token.
    begun: Option<f64>,
    /// Requests that finished, by their answers and by their prompts.
    finished: [Option<f64>; 2],
    /// Prompt tokens, when they are computed and when their request finishes.
    prompts: [Option<f64>; 2],
    /// Tokens of answers of finished requests.
    answers: Option<f64>,
    /// Requests that run: more at the end.
    running: Option<f64>,
    /// Tokens that were computed, have not left, and are not in the cache.
    lost: Option<f64>,
    /// Prompt tokens found in the prefix cache, which hold no place of their own.
    shared: f64,
    /// Requests that a full cache may have sent back to the queue.
    preempted: f64,
}

impl Flow {
    fn of(span: &Span<'_>) -> Self {
        use Signal::{
            GenerationTokens, KvCapacity, KvUsage, PrefixCacheHits, PromptTokens,
            RequestGenerationTokensCount, RequestGenerationTokensSum, RequestPromptTokensCount,
            RequestPromptTokensSum, Running, TimeToFirstTokenCount, Waiting,
        };
        let grown = |signal| span.grown(signal);
        let prompts = [PromptTokens, RequestPromptTokensSum].map(grown);
        let answers = grown(RequestGenerationTokensSum);
        let lost = || {
            let (computed, left) = (prompts[0]? + grown(GenerationTokens)?, prompts[1]? + answers?);
            let capacity = span.range(KvCapacity).filter(|[least, _, most]| most <= least)?[0];
            let cached = span.moved(KvUsage)? * capacity;
            // A cache that changes by more than goes through it is not told rightly.
            (cached.abs() <= computed + left).then_some(computed - left - cached)
        };
        let most = |signal| span.range(signal).map_or(0.0, |[_, _, most]| most);
        Self {
            begun: grown(TimeToFirstTokenCount),
            finished: [RequestGenerationTokensCount, RequestPromptTokensCount].map(grown),
            prompts,
            answers,
            running: span.moved(Running),
            lost: if span.is_timely() { lost() } else { None },
            shared: grown(PrefixCacheHits).unwrap_or(0.0),
            preempted: if most(KvUsage) >= FULL_CACHE { most(Waiting) } else { 0.0 },
        }
    }

    /// How far prompts and answers of finished requests are from the usual: their ratio.
    fn sizes(&self, usual: Option<&Baseline>) -> [Option<f64>; 2] {
        let part = |tokens: Option<f64>, requests: Option<f64>, usual: Option<f64>| {
            Some(tokens? / requests? / usual?).filter(|part| part.is_finite() && *part > 0.0)
        };
        [
            part(self.prompts[1], self.finished[1], usual.and_then(|usual| usual.prompt)),
            part(self.answers, self.finished[0], usual.and_then(|usual| usual.generated)),
        ]
    }

    /// The histogram of answers and that of prompts do not count the same number of finished requests.
    fn has_two_finished_counts(&self) -> bool {
        let [Some(answers), Some(prompts)] = self.finished else { return false };
        let (least, most) = (answers.min(prompts), answers.max(prompts));
        most > least + SOME_REQUESTS && most > MAX_COUNT_RATIO * least
    }

    /// Of two counts that engines have always shown alike, the one whose sizes have changed. An engine may also count answers
    /// that were given up, or several to a prompt.
    fn wrong_finished_count(&self, usual: Option<&Baseline>) -> SignalSet {
        let alike = usual
            .is_some_and(|usual| usual.ranges.are_within(DerivedMetric::Finished, MAX_USUAL_COUNT_RATIO));
        let [prompt, answer] = self.sizes(usual).map(|part| part.map_or(0.0, |part| part.ln().abs()));
        SignalSet::of(match prompt.max(answer) {
            most if !alike || most <= MIN_SIZE_CHANGE.ln() => &[],
            _ if answer > prompt => &[Signal::RequestGenerationTokensCount],
            _ => &[Signal::RequestPromptTokensCount],
        })
    }

    /// Requests that have begun have finished, run, or were given up. The count, or gauge, that says otherwise.
    fn requests(&self, span: &Span<'_>, usual: Option<&Baseline>) -> SignalSet {
        let (Some(begun), [Some(finished), by_prompts], Some(running)) =
            (self.begun, self.finished, self.running)
        else {
            return SignalSet::NONE;
        };
        let left = (finished + running).max(0.0);
        let given_up = begun - left;
        // Who was preempted waits, runs again and has begun before.
        let preempted = if given_up < 0.0 { self.preempted } else { 0.0 };
        if given_up.abs() <= SOME_REQUESTS + preempted + MAX_GIVEN_UP * begun.max(left) {
            return SignalSet::NONE;
        }
        // Clients that give up have begun and not finished; but each had its prompt computed, which then leaves the cache.
        let prompt = self.prompts[0].filter(|_| span.is_timely()).map(|tokens| tokens / begun);
        let has_left = self.lost.zip(prompt).is_some_and(|(lost, prompt)| lost > 0.5 * prompt * given_up);
        let shorter =
            usual.and_then(|usual| usual.ranges.differs_by(DerivedMetric::Prompt, prompt, MIN_SIZE_CHANGE));
        if given_up > 0.0 && (begun < MIN_REQUESTS || has_left || shorter != Some(-1)) {
            return SignalSet::NONE;
        }
        let at_end = |signal| span.get(signal).last().map(|sample| sample.value);
        let usage =
            at_end(Signal::KvUsage).zip(at_end(Signal::Running)).filter(|(_, running)| *running > 0.0);
        let usage = usage.map(|(usage, running)| usage / running);
        let counts = [Signal::TimeToFirstTokenCount, Signal::RequestGenerationTokensCount];
        let Some(usual) = usual else { return SignalSet::of(&counts) };
        let [finished_prompt, finished_answer] =
            self.sizes(Some(usual)).map(|size| off(size, Some(1.0), OFF));
        let same_prompts = finished_prompt == 0 && off(prompt, usual.prompt, OFF) == 0;
        SignalSet::of(match by_prompts {
            _ if same_prompts && off(usage, usual.kv_a_request, OFF) != 0 => &[Signal::Running],
            Some(_) if finished_answer != 0 && finished_answer == finished_prompt => {
                &[Signal::RequestGenerationTokensCount, Signal::RequestPromptTokensCount]
            }
            Some(_) => &counts[..1],
            None if finished_answer != 0 => &counts[1..],
            None if usual.generated.is_some() => &counts[..1],
            None => &counts,
        })
    }

    /// Tokens that were computed have left or are in the cache. Where they have not, the counter whose mean size is furthest from
    /// the usual is the wrong one.
    fn tokens(&self, usual: Option<&Baseline>) -> SignalSet {
        let (Some(usual), Some(lost), [Some(computed), Some(left)], [Some(finished), _], Some(running)) =
            (usual, self.lost, self.prompts, self.finished, self.running)
        else {
            return SignalSet::NONE;
        };
        // Clients that give up may take any number of tokens along.
        let nobody_gives_up = self.begun.is_some_and(|begun| begun - finished - running < 1.0);
        if !holds_what_was_computed(usual) || lost > 0.0 && !nobody_gives_up {
            return SignalSet::NONE;
        }
        let begun = self.begun.unwrap_or(finished + running).max(1.0);
        let answer = self.answers.unwrap_or(0.0) / finished.max(1.0);
        let longest = usual.ranges.most(DerivedMetric::Prompt).unwrap_or(0.0);
        let prompt = (computed / begun).max(left / finished.max(1.0)).max(longest);
        let shared = if lost > 0.0 { self.shared } else { usual.hits.unwrap_or(0.0) * left };
        let under_way = SOME_TOKENS
            + (running.abs() + PROMPTS_BETWEEN_STEPS) * prompt
            + self.preempted * (prompt + answer)
            + shared;
        if lost.abs() <= under_way + MAX_PARTIAL_PROMPTS * computed.max(left) {
            return SignalSet::NONE;
        }
        let (sign, side) = (lost.signum(), if lost > 0.0 { 1 } else { -1 });
        let differs = usual.ranges.differs_by(DerivedMetric::Prompt, Some(computed / begun), MIN_SIZE_CHANGE);
        if differs == Some(side) {
            return SignalSet::of(&[Signal::PromptTokens]);
        }
        let sums = [Signal::RequestPromptTokensSum, Signal::RequestGenerationTokensSum];
        let changes = sums.into_iter().zip(self.sizes(Some(usual)));
        let changes = changes.filter_map(|(signal, size)| Some((-sign * size?.ln(), signal)));
        let wrong = changes
            .filter(|(change, _)| *change > MIN_SIZE_CHANGE.ln())
            .max_by(|(left, _), (right, _)| left.total_cmp(right));
        wrong.map_or(SignalSet::NONE, |(_, signal)| SignalSet::of(&[signal]))
    }
}

/// A running request holds what was computed for it: not where prompts are shared, windows slide, or blocks outlive requests.
fn holds_what_was_computed(usual: &Baseline) -> bool {
    let held = usual.kv_a_request.zip(usual.capacity).map(|(share, capacity)| share * capacity);
    let computed = usual.prompt.zip(usual.generated).map(|(prompt, answer)| prompt + 0.5 * answer);
    held.zip(computed)
        .is_some_and(|(held, computed)| held > computed / MAX_HELD_RATIO && held < computed * MAX_HELD_RATIO)
}
