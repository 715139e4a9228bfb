//! Runs the score policies (`threshold` and `weighted`), which move each variant on its own by one step, by the mean score of its engines.

use std::cmp::Ordering;

use jiff::Timestamp;
use smol_str::SmolStr;

use super::input::RoleInput;
use super::movement::{Movement, movement};
use crate::analyze::score::{Scored, step};
use crate::analyze::weighted::{BestSpeeds, hardware_key, speed};
use crate::analyze::{threshold, weighted};
use crate::decide::context::{ModelContext, VariantContext, newest_sample};
use crate::decide::holds;
use crate::decide::proposal::{Analyzed, Proposal};
use crate::decision::Reason;
use crate::quality::analyzer_signals::{Percent, Reads, Weighted};
use crate::quality::{AllowedMoves, CoverageState, EngineLoad};
use crate::report::{
    Analysis, AnalysisStep, Detail, Direction, Finding, Quantity, Side, Step, Threshold, Value,
};
use crate::units::{Replicas, count, figure, truncated_u32};

/// Proposes a number for each variant of one role: by the weighted score if there are `bests` to compare speeds with, or else by the
/// threshold score.
pub(crate) fn propose(
    input: &RoleInput<'_, '_>,
    mut bests: Option<&mut BestSpeeds>,
    steps: &mut Vec<Step>,
) -> Vec<Proposal> {
    let RoleInput { context, state, variants, .. } = *input;
    let evidence = newest_sample(variants, context.now);
    if let Some(bests) = &mut bests {
        let active = variants.iter().filter(|variant| variant.is_active());
        active.for_each(|variant| learn(context, variant, bests));
    }
    let bests = bests.as_deref();
    let mut proposal = |variant: &VariantContext<'_>| {
        if !variant.is_active() {
            return holds::at_zero(context, variant);
        }
        let loads = &variant.coverage.loads;
        if loads.is_empty() {
            return holds::unmeasured_among_measured(context, evidence, variant);
        }
        let scored = score(context, variant, loads, bests, BestSpeeds::get);
        let scored = cautious(context, state, variant, scored);
        let scored = against_old_bests(context, state, variant, scored, bests);
        let analysis = Analysis::from(Finding::Score {
            mean: figure(scored.mean.unwrap_or(0.0)),
            engines: count(scored.scores.len()),
        });
        steps.push(analysis_step(variant, &scored, analysis.clone()));
        let allowed_moves = state.allowed_moves();
        let (number, reason) = settle(context, allowed_moves, variant, scored.proposed);
        Proposal::analyzed(
            variant,
            Analyzed { number, reason, evidence, allowed_moves, analysis: &analysis, caveat: None },
        )
    };
    variants.iter().map(&mut proposal).collect()
}

/// Lowers the number only if that is right even with engines without a score as loaded as the busiest engine that has one. These are the
/// engines of unmeasured pods, and those whose KV usage or queue is not known.
fn cautious(
    context: ModelContext<'_>,
    state: CoverageState,
    variant: &VariantContext<'_>,
    scored: Scored,
) -> Scored {
    let base = variant.scale.base();
    let of_pods = variant.coverage.unmeasured().saturating_mul(variant.coverage.engines_per_pod.max(1));
    let of_pods = if state == CoverageState::Estimated { of_pods } else { 0 };
    let unscored = variant.coverage.loads.len().saturating_sub(scored.scores.len());
    let unscored = unscored.saturating_add(usize::try_from(of_pods).unwrap_or(usize::MAX));
    if unscored == 0 || scored.proposed >= base {
        return scored;
    }
    let Some(busiest) = scored.scores.iter().copied().reduce(f64::max) else {
        return Scored { proposed: base, ..scored };
    };
    let copies = std::iter::repeat_n(busiest, unscored);
    let all = scored.scores.iter().copied().chain(copies).collect();
    let proposed = step(all, base, variant.bounds(), context.policy.scoring.steps()).proposed;
    Scored { proposed: scored.proposed.max(proposed.min(base)), ..scored }
}

/// Learns the speed of every engine. It comes before any comparison with the best speed, so that the order of variants does not matter.
fn learn(context: ModelContext<'_>, variant: &VariantContext<'_>, bests: &mut BestSpeeds) {
    for load in &variant.coverage.loads {
        let (key, speed) = hardware_speed(variant, load);
        speed.into_iter().for_each(|speed| bests.observe(&key, context.now, speed));
    }
}

/// The key of the engines that this one is compared with, and the speed of one of its requests; no speed while the length of its answers
/// is not known.
fn hardware_speed(variant: &VariantContext<'_>, load: &EngineLoad<'_, ()>) -> (SmolStr, Option<f64>) {
    let load = load.for_analyzer::<Weighted>();
    let accelerator = variant.state.variant.accelerator.as_deref().unwrap_or_default();
    let Some(generated) = load.generated() else { return (SmolStr::default(), None) };
    let key = hardware_key(accelerator, variant.state.template.gpus.unwrap_or_default(), generated);
    let (running, latency) = (load.running().unwrap_or(0.0), load.between_tokens().unwrap_or(0.0));
    (key, speed(load.generating(), running, latency))
}

/// Lowers the number only if that is right by the best speeds of the last week too: compared with the best speed of a slow hour, an
/// overloaded engine would look calm.
fn against_old_bests(
    context: ModelContext<'_>,
    state: CoverageState,
    variant: &VariantContext<'_>,
    scored: Scored,
    bests: Option<&BestSpeeds>,
) -> Scored {
    if bests.is_none() || scored.proposed >= variant.scale.base() {
        return scored;
    }
    let strict = score(context, variant, &variant.coverage.loads, bests, BestSpeeds::for_removals);
    let least = cautious(context, state, variant, strict).proposed.min(variant.scale.base());
    Scored { proposed: scored.proposed.max(least), ..scored }
}

/// Scores `variant`: by the weighted score, which compares each engine with the `best` speed of its hardware, if there are `bests`.
fn score(
    context: ModelContext<'_>,
    variant: &VariantContext<'_>,
    loads: &[EngineLoad<'_, ()>],
    bests: Option<&BestSpeeds>,
    best: fn(&BestSpeeds, &str, Timestamp) -> f64,
) -> Scored {
    let policy = context.policy.scoring;
    let steps = policy.steps();
    let (current, bounds) = (variant.scale.base(), variant.bounds());
    // An engine whose KV usage or queue is not known has no score.
    fn read<A: Reads>(load: EngineLoad<'_, A>) -> Option<(f64, u32)> {
        Some((load.kv()?, truncated_u32(load.queue()?)))
    }
    if let Some(bests) = bests {
        let limit = policy.queue_limit.unwrap_or(weighted::QUEUE_LIMIT);
        let observed = |load: &EngineLoad<'_, ()>| {
            let (key, speed) = hardware_speed(variant, load);
            let (best, (kv, queue)) =
                (best(bests, &key, context.now), read(load.for_analyzer::<Weighted>())?);
            Some(weighted::WeightedObservation { kv, queue, speed, best })
        };
        let observed: Vec<_> = loads.iter().filter_map(observed).collect();
        return weighted::analyze(&observed, current, bounds, steps, limit);
    }
    let default = threshold::ThresholdSettings::default().queue_limit;
    let settings = threshold::ThresholdSettings { steps, queue_limit: policy.queue_limit.unwrap_or(default) };
    let observed = |load: &EngineLoad<'_, ()>| {
        let (kv, queue) = read(load.for_analyzer::<Percent>())?;
        Some(threshold::ThresholdObservation { kv, queue })
    };
    let observed: Vec<_> = loads.iter().filter_map(observed).collect();
    threshold::analyze(&observed, current, bounds, &settings)
}

/// `proposed`, unless the last step has not finished or the coverage does not allow it.
fn settle(
    context: ModelContext<'_>,
    allowed_moves: AllowedMoves,
    variant: &VariantContext<'_>,
    proposed: Replicas,
) -> (Replicas, Reason) {
    let (base, committed) = (variant.scale.base(), variant.committed());
    let movement = movement(variant, context.now);
    let repeats_last_step = match movement {
        Movement::Growing | Movement::Unschedulable => proposed > base,
        Movement::Shrinking => proposed < base,
        Movement::Settled | Movement::Overdue => false,
    };
    let held = committed.unwrap_or(base);
    if repeats_last_step || (movement == Movement::Growing && proposed >= base) {
        return (held, Reason::Transition);
    }
    if proposed < held && !allowed_moves.down {
        return (held, Reason::Partial);
    }
    let reason = match proposed.cmp(&base) {
        Ordering::Greater => Reason::ScaleUp,
        Ordering::Equal => Reason::Steady,
        Ordering::Less => Reason::ScaleDown,
    };
    (proposed, reason)
}

fn analysis_step(variant: &VariantContext<'_>, scored: &Scored, analysis: Analysis) -> Step {
    let mean = scored.mean.unwrap_or(0.0);
    let threshold = |to, is, at: Option<f64>| {
        at.map(|at| Threshold { to, quantity: Quantity::MeanScore, is, at, now: mean })
    };
    let more = threshold(Direction::More, Side::Above, scored.more_above.filter(|at| mean <= *at));
    let fewer = threshold(Direction::Fewer, Side::Below, scored.fewer_below.filter(|at| mean >= *at));
    let scores = scored.scores.iter().map(|score| Value::new(Quantity::EngineScore, *score));
    let step = AnalysisStep {
        analysis,
        values: std::iter::once(Value::new(Quantity::MeanScore, mean)).chain(scores).collect(),
        thresholds: more.into_iter().chain(fewer).collect(),
    };
    Step::of_variant(variant.name(), Detail::Analysis(step))
}
