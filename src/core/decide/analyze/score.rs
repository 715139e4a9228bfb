//! The score policies (`threshold` and `weighted`): each variant on its own, by the mean score of its engines, a step at a time.

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
use crate::model::Steps;
use crate::quality::analyzer_signals::{Percent, Reads, Weighted};
use crate::quality::{AllowedMoves, CoverageState, EngineLoad};
use crate::report::{Analysis, AnalysisStep, Detail, Direction, Finding, Side, Step, Threshold, Value};
use crate::units::{Replicas, count, figure, truncated_u32};

/// Decides about each variant of one role: by the weighted score where there are `bests` that speeds are compared with, else by the
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
            engines: count(scored.each.len()),
        });
        steps.push(analysis_step(variant, &scored, analysis.clone()));
        let allowed_moves = state.allowed_moves();
        let (number, reason) = settle(context, allowed_moves, variant, scored.wanted);
        Proposal::analyzed(
            variant,
            Analyzed { number, reason, evidence, allowed_moves, analysis: &analysis, caveat: None },
        )
    };
    variants.iter().map(&mut proposal).collect()
}

/// Fewer only if that would do with the engines that have no score as loaded as the busiest that has one: those of pods that are not
/// measured, and those whose cache or queue is not known.
fn cautious(
    context: ModelContext<'_>,
    state: CoverageState,
    variant: &VariantContext<'_>,
    scored: Scored,
) -> Scored {
    let base = variant.scale.base();
    let of_pods = variant.coverage.unmeasured().saturating_mul(variant.coverage.engines_per_pod.max(1));
    let of_pods = if state == CoverageState::Estimated { of_pods } else { 0 };
    let unscored = variant.coverage.loads.len().saturating_sub(scored.each.len());
    let unscored = unscored.saturating_add(usize::try_from(of_pods).unwrap_or(usize::MAX));
    if unscored == 0 || scored.wanted >= base {
        return scored;
    }
    let Some(busiest) = scored.each.iter().copied().reduce(f64::max) else {
        return Scored { wanted: base, ..scored };
    };
    let rules = context.policy.scoring;
    let steps = Steps { up: rules.up, down: rules.down, more: rules.more, fewer: rules.fewer };
    let copies = std::iter::repeat_n(busiest, unscored);
    let all = scored.each.iter().copied().chain(copies).collect();
    let wanted = step(all, base, variant.state.variant.bounds, steps).wanted;
    Scored { wanted: scored.wanted.max(wanted.min(base)), ..scored }
}

/// Learns from every engine before any is compared with the best, so that the order of variants does not matter.
fn learn(context: ModelContext<'_>, variant: &VariantContext<'_>, bests: &mut BestSpeeds) {
    for load in &variant.coverage.loads {
        let (key, speed) = hardware_speed(variant, load);
        speed.into_iter().for_each(|speed| bests.observe(&key, context.now, speed));
    }
}

/// With which engines one is compared, and how fast one of its requests is; no speed while the length of its answers is unknown.
fn hardware_speed(variant: &VariantContext<'_>, load: &EngineLoad<'_, ()>) -> (SmolStr, Option<f64>) {
    let load = load.for_analyzer::<Weighted>();
    let accelerator = variant.state.variant.accelerator.as_deref().unwrap_or_default();
    let Some(generated) = load.generated() else { return (SmolStr::default(), None) };
    let key = hardware_key(accelerator, variant.state.template.gpus, generated);
    let (running, latency) = (load.running().unwrap_or(0.0), load.between_tokens().unwrap_or(0.0));
    (key, speed(load.generating(), running, latency))
}

/// Fewer only if that would do by the best speeds of the last week, too: who forgets that a replica was faster takes a slow one for a
/// calm one.
fn against_old_bests(
    context: ModelContext<'_>,
    state: CoverageState,
    variant: &VariantContext<'_>,
    scored: Scored,
    bests: Option<&BestSpeeds>,
) -> Scored {
    if bests.is_none() || scored.wanted >= variant.scale.base() {
        return scored;
    }
    let strict = score(context, variant, &variant.coverage.loads, bests, BestSpeeds::for_removals);
    let least = cautious(context, state, variant, strict).wanted.min(variant.scale.base());
    Scored { wanted: scored.wanted.max(least), ..scored }
}

/// What is wanted of `variant`, each engine compared with the `best` speed of its hardware where there are `bests`.
fn score(
    context: ModelContext<'_>,
    variant: &VariantContext<'_>,
    loads: &[EngineLoad<'_, ()>],
    bests: Option<&BestSpeeds>,
    best: fn(&BestSpeeds, &str, Timestamp) -> f64,
) -> Scored {
    let rules = context.policy.scoring;
    let steps = Steps { up: rules.up, down: rules.down, more: rules.more, fewer: rules.fewer };
    let (current, bounds) = (variant.scale.base(), variant.state.variant.bounds);
    // An engine whose cache or queue is not known has no score.
    fn read<A: Reads>(load: EngineLoad<'_, A>) -> Option<(f64, u32)> {
        Some((load.kv()?, truncated_u32(load.queue()?)))
    }
    if let Some(bests) = bests {
        let limit = rules.queue_limit.unwrap_or(weighted::QUEUE_LIMIT);
        let observed = |load: &EngineLoad<'_, ()>| {
            let (key, speed) = hardware_speed(variant, load);
            let (best, (kv, queue)) =
                (best(bests, &key, context.now), read(load.for_analyzer::<Weighted>())?);
            Some(weighted::WeightedObservation { kv, queue, speed, best })
        };
        let observed: Vec<_> = loads.iter().filter_map(observed).collect();
        return weighted::analyze(&observed, current, bounds, steps, limit);
    }
    let usual = threshold::ThresholdSettings::default().queue_limit;
    let rules = threshold::ThresholdSettings { steps, queue_limit: rules.queue_limit.unwrap_or(usual) };
    let observed = |load: &EngineLoad<'_, ()>| {
        let (kv, queue) = read(load.for_analyzer::<Percent>())?;
        Some(threshold::ThresholdObservation { kv, queue })
    };
    let observed: Vec<_> = loads.iter().filter_map(observed).collect();
    threshold::analyze(&observed, current, bounds, &rules)
}

/// `wanted`, unless the last step has not finished or the coverage does not allow it.
fn settle(
    context: ModelContext<'_>,
    allowed_moves: AllowedMoves,
    variant: &VariantContext<'_>,
    wanted: Replicas,
) -> (Replicas, Reason) {
    let (base, promised) = (variant.scale.base(), variant.committed());
    let movement = movement(variant, context.now);
    let waits = match movement {
        Movement::Growing | Movement::Unschedulable => wanted > base,
        Movement::Shrinking => wanted < base,
        Movement::Settled | Movement::Overdue => false,
    };
    let held = promised.unwrap_or(base);
    if waits || (movement == Movement::Growing && wanted >= base) {
        return (held, Reason::Transition);
    }
    if wanted < held && !allowed_moves.down {
        return (held, Reason::Partial);
    }
    let reason = match wanted.cmp(&base) {
        std::cmp::Ordering::Greater => Reason::ScaleUp,
        std::cmp::Ordering::Equal => Reason::Steady,
        std::cmp::Ordering::Less => Reason::ScaleDown,
    };
    (wanted, reason)
}

fn analysis_step(variant: &VariantContext<'_>, scored: &Scored, analysis: Analysis) -> Step {
    let mean = scored.mean.unwrap_or(0.0);
    let threshold = |to, is, at: Option<f64>| {
        at.map(|at| Threshold { to, when: SmolStr::new_static(MEAN), is, at, now: mean })
    };
    let more = threshold(Direction::More, Side::Above, scored.more_above.filter(|at| mean <= *at));
    let fewer = threshold(Direction::Fewer, Side::Below, scored.fewer_below.filter(|at| mean >= *at));
    let scores = scored.each.iter().map(|score| Value::new("score of an engine", *score));
    let step = AnalysisStep {
        analysis,
        values: std::iter::once(Value::new(MEAN, mean)).chain(scores).collect(),
        thresholds: more.into_iter().chain(fewer).collect(),
    };
    Step::of_variant(variant.name(), Detail::Analysis(step))
}

const MEAN: &str = "mean score";
