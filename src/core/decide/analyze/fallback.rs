//! The fallback: the analyzer that decides where the model's own cannot, and the report of what is missing.

use smol_str::SmolStr;

use crate::analyze::finding::{Finding, Totals};
use crate::decide::context::{ModelContext, VariantContext};
use crate::decide::model::ModelDecision;
use crate::decision::{GapCause, SignalGap};
use crate::memory::{Learned, Unlearned};
use crate::model::{Analyzer, Role, Utilisation};
use crate::quality::{MIN_STALE_LIMIT, VariantCoverage, assess_variant, judged_engines, shown_signals};
use crate::snapshot::{Phase, Signal, SignalSet, SourceHealth};
use crate::units::Seconds;

#[cfg(test)]
mod tests;

/// An analyzer that is shown all it needs and has found nothing for this long, while requests run, will not by waiting. Two scrapes
/// under load are enough for each of them, and slow ones come once a minute: three of these.
const LEARNING: Seconds = Seconds::whole(180);

/// Characters of a source's warning that are reported.
const WARNING: usize = 160;

fn role(variant: &VariantContext<'_>) -> Role {
    variant.state.variant.role
}

fn is_of_one_role(first: &VariantContext<'_>, next: &VariantContext<'_>) -> bool {
    role(first) == role(next)
}

/// Capacity analyzers run for all roles of a model together, and so are replaced in all of them.
const fn looks_at_all_roles(analyzer: Analyzer) -> bool {
    matches!(
        analyzer,
        Analyzer::Saturation | Analyzer::Throughput | Analyzer::QueueingModel | Analyzer::Inferno
    )
}

/// The roles of which the model's analyzer can measure no pod although something is seen of them, or lacks an indispensable signal
/// of every pod, each with the best analyzer that can. Their variants are looked at anew, for that one.
pub(crate) fn choose<'a>(
    context: ModelContext<'a>,
    variants: &mut [VariantContext<'a>],
) -> Vec<(Role, Analyzer)> {
    let (indispensable, measures_caches) =
        (context.analyzer.indispensable(), context.analyzer.measures_caches());
    let unmeasured = |variants: &[VariantContext<'a>]| {
        let active = || variants.iter().filter(|variant| variant.is_active());
        let mut loads = active().flat_map(|variant| &variant.coverage.loads);
        active().any(|variant| !variant.coverage.observations.is_empty())
            && !loads.any(|load| load.has(indispensable) && (!measures_caches || load.has_usage()))
    };
    let together = looks_at_all_roles(context.analyzer);
    let any = variants.chunk_by(is_of_one_role).any(unmeasured);
    let mut chosen = Vec::new();
    if !any {
        return chosen;
    }
    for variants in variants.chunk_by_mut(is_of_one_role) {
        let Some(role) = variants.first().map(role).filter(|_| together || unmeasured(variants)) else {
            continue;
        };
        chosen.extend(measure(context, role, variants).map(|analyzer| (role, analyzer)));
    }
    chosen
}

/// Returns the best other analyzer whose signals the pods of `role` show, and assesses `variants`, which are all of that role, for it.
fn measure<'a>(
    context: ModelContext<'a>,
    role: Role,
    variants: &mut [VariantContext<'a>],
) -> Option<Analyzer> {
    let fallbacks = context.analyzer.fallbacks();
    for analyzer in fallbacks {
        let declared = analyzer.declared(role);
        let coverages: Vec<VariantCoverage<'_>> = variants
            .iter()
            .map(|variant| assess_variant(variant.state, declared, context.signal_history, context.now))
            .collect();
        let last = fallbacks.last() == Some(analyzer);
        let mut loads = coverages.iter().flat_map(|coverage| &coverage.loads);
        if last || loads.any(|load| load.suffices(declared.needed)) {
            variants
                .iter_mut()
                .zip(coverages)
                .for_each(|(variant, coverage)| variant.coverage.adopt_measurements(coverage));
            return Some(*analyzer);
        }
    }
    None
}

/// The roles about which the model's analyzer has been asked and finds nothing, each with who decides meanwhile: at once where no pod
/// shows all that it needs, so that nothing can be learned, and after [`LEARNING`] where they do. `looks` are the roles of this look,
/// each with whether nothing was found; of the others what was so at the last look still is.
pub(crate) fn choose_unlearned<'a>(
    context: ModelContext<'a>,
    variants: &mut [VariantContext<'a>],
    looks: &[(Role, bool)],
    learned: &mut Learned,
) -> Vec<(Role, Analyzer)> {
    // Hours at zero teach nothing: the time begins when pods serve.
    let serves =
        |variant: &VariantContext<'_>| variant.state.pods.iter().any(|pod| pod.phase == Phase::Ready);
    learned.unlearned.retain(|of, _| variants.iter().any(|variant| role(variant) == *of && serves(variant)));
    let mut chosen = Vec::new();
    if looks.iter().all(|(_, silent)| !silent) && learned.unlearned.is_empty() {
        return chosen;
    }
    for variants in variants.chunk_by_mut(is_of_one_role) {
        let Some(role) = variants.first().map(role) else { continue };
        match looks.iter().find(|(of, _)| *of == role) {
            Some((_, false)) => {
                learned.unlearned.remove(&role);
            }
            Some((_, true)) => {
                let fallback = unlearned(context, role, variants, learned);
                chosen.extend(fallback.map(|analyzer| (role, analyzer)));
            }
            None => {}
        }
    }
    if !chosen.is_empty() && looks_at_all_roles(context.analyzer) {
        for variants in variants.chunk_by_mut(is_of_one_role) {
            let others = variants.first().map(role).filter(|role| chosen.iter().all(|(of, _)| of != role));
            let Some(role) = others else { continue };
            chosen.extend(measure(context, role, variants).map(|analyzer| (role, analyzer)));
        }
    }
    chosen
}

/// The analyzer that decides about `role`, for which the model's own finds nothing.
fn unlearned<'a>(
    context: ModelContext<'a>,
    role: Role,
    variants: &mut [VariantContext<'a>],
    learned: &mut Learned,
) -> Option<Analyzer> {
    let lacks = lacks_signals(context.analyzer.needed(role), variants);
    let known = learned.unlearned.get(&role).copied();
    if known.is_none() && !lacks && !is_busy(variants) {
        return None;
    }
    let since = known.map_or(context.now, |known| known.since);
    let waited = !context.compat.is_upstream() && Seconds::between(since, context.now) >= LEARNING;
    let fallback = if lacks || waited { measure(context, role, variants) } else { None };
    learned.unlearned.insert(role, Unlearned { since, fallback });
    if fallback.is_some() {
        count_all_demand(context, learned);
    }
    fallback
}

/// Where the model's analyzer never knew what a replica carries, nobody had another opinion of what there is: all that a fallback
/// finds missing is asked.
pub(crate) fn count_all_demand(context: ModelContext<'_>, learned: &mut Learned) {
    if !has_learned(context.analyzer, learned) {
        learned.fallback_share.get_or_insert(1.0);
    }
}

/// No Ready pod of `variants` shows all that is `needed`, and some have served for long enough to be scraped.
fn lacks_signals(needed: SignalSet, variants: &[VariantContext<'_>]) -> bool {
    let active = || variants.iter().filter(|variant| variant.is_active());
    active().any(|variant| variant.coverage.incomplete > 0)
        && !active().flat_map(|variant| &variant.coverage.loads).any(|load| load.has(needed))
}

/// A request runs or waits in a pod of `variants`.
fn is_busy(variants: &[VariantContext<'_>]) -> bool {
    let pods = variants.iter().flat_map(|variant| &variant.state.pods);
    let engines = pods.filter(|replica| replica.phase == Phase::Ready).flat_map(judged_engines);
    let mut gauges = engines.flat_map(|(_, signals)| {
        [Signal::Running, Signal::Waiting].map(|gauge| signals.newest(gauge)).into_iter().flatten()
    });
    gauges.any(|newest| newest.value > 0.0)
}

/// `analyzer` has known the capacity of a replica before.
fn has_learned(analyzer: Analyzer, learned: &Learned) -> bool {
    match analyzer {
        Analyzer::Rate => learned.rate.as_ref().is_some_and(|rate| {
            rate.knowledge.variants.values().any(|variant| variant.fit.learned_at().is_some())
        }),
        Analyzer::QueueingModel | Analyzer::Inferno => !learned.queueing.is_empty(),
        Analyzer::Throughput => learned.throughput.informative.is_some(),
        Analyzer::Saturation | Analyzer::SaturationPercent | Analyzer::Threshold | Analyzer::Weighted => true,
    }
}

/// The analyzers that stand in between two cycles, as chosen in the last one.
pub(crate) fn between_cycles<'l>(
    context: ModelContext<'_>,
    looks: &[(Role, bool)],
    learned: &'l Learned,
) -> impl Iterator<Item = (Role, Analyzer)> + 'l {
    let fallbacks = context.analyzer.fallbacks();
    let looked: Vec<Role> = looks.iter().map(|(role, _)| *role).collect();
    let of_last_look = learned.unlearned.iter().filter(move |(role, _)| !looked.contains(role));
    of_last_look
        .filter_map(|(role, unlearned)| Some((*role, unlearned.fallback?)))
        .filter(move |(_, analyzer)| fallbacks.contains(analyzer))
}

/// The analyzer has had its time and has not learned the capacity of a replica of `role`.
fn has_not_learned(context: ModelContext<'_>, role: Role, learned: Option<&Learned>) -> bool {
    let known = learned.and_then(|learned| learned.unlearned.get(&role));
    known.is_some_and(|known| Seconds::between(known.since, context.now) >= LEARNING)
}

/// What is unknown about the pods of `variant`, one of those of `model`, and the likely cause.
pub(crate) fn gap(model: &ModelDecision<'_>, variant: &VariantContext<'_>) -> Option<SignalGap> {
    let (context, learned) = (model.context, model.memory.learned.as_deref());
    let fallback = model.fallback(role(variant));
    let coverage = &variant.coverage;
    let warning = match &context.group.source {
        SourceHealth::Down { .. } => return None,
        SourceHealth::Partial { warnings } => {
            Some(SmolStr::from_iter(warnings.join("; ").chars().take(WARNING)))
        }
        SourceHealth::Complete => None,
    };
    let unlisted = match variant.memory.unlisted_since {
        // The lists of pods and the counts of scale targets come one after the other.
        Some(since) if Seconds::between(since, context.now) >= MIN_STALE_LIMIT => variant.unlisted(),
        _ => 0,
    };
    let (cause, pods) = if warning.is_some() {
        (GapCause::PartialSource, coverage.incomplete)
    } else if coverage.incomplete > 0 {
        (cause_of_missing(context, &model.variants, variant), coverage.incomplete)
    } else if unlisted > 0 {
        (GapCause::PodsNotListed, unlisted)
    } else if coverage.ready > 0 && has_not_learned(context, role(variant), learned) {
        (GapCause::NotLearned, coverage.ready)
    } else if coverage.asleep > 0 {
        (GapCause::Asleep, coverage.asleep)
    } else {
        return None;
    };
    Some(SignalGap {
        cause,
        pods,
        serving: coverage.ready.saturating_add(unlisted),
        missing: coverage.missing.iter().collect(),
        contradicted: coverage.contradicted.iter().collect(),
        fallback,
        warning,
    })
}

/// Why pods of `variant`, one of `variants`, do not show everything.
fn cause_of_missing(
    context: ModelContext<'_>,
    variants: &[VariantContext<'_>],
    variant: &VariantContext<'_>,
) -> GapCause {
    let coverage = &variant.coverage;
    let all = variants.iter().flat_map(|variant| &variant.state.pods);
    let engines = all.filter(|replica| replica.phase == Phase::Ready).flat_map(judged_engines);
    let needed = context.declared(role(variant)).required();
    let known = shown_signals(engines.map(|(_, signals)| signals), needed, context.now);
    if coverage.missing.is_empty() {
        GapCause::Contradicted
    } else if known.is_empty() {
        GapCause::UnknownEngine
    } else if coverage.missing == needed {
        GapCause::NotScraped
    } else if known.contains(coverage.missing) {
        GapCause::EngineVersion
    } else {
        GapCause::SeriesDropped
    }
}

/// The finding of a fallback, which has another opinion of the same load than the analyzer it stands in for: what there was when it
/// began was enough, so only what is asked beyond that adds replicas.
pub(crate) fn beyond(
    mut finding: Finding,
    Utilisation { up, down }: Utilisation,
    learned: &mut Learned,
) -> Finding {
    let Totals { demand, anticipated, .. } = finding.total;
    let enough = || if demand > 0.0 { (up * anticipated / demand).min(1.0) } else { 1.0 };
    let share = *learned.fallback_share.get_or_insert_with(enough);
    finding.total = finding.total.with_share(share, up, down);
    finding.roles.values_mut().for_each(|totals| *totals = totals.with_share(share, up, down));
    finding
}
