//! The fallback: the analyzer that decides about additions while the model's own analyzer cannot, and the report of what is missing.

use smol_str::SmolStr;

use super::rate;
use crate::analyze::finding::{Finding, Totals};
use crate::decide::context::{ModelContext, VariantContext, by_role, by_role_mut};
use crate::decide::model::ModelDecision;
use crate::decision::{GapCause, SignalGap};
use crate::memory::{Learned, Unlearned};
use crate::model::{Analyzer, Role, Utilisation};
use crate::quality::{MIN_STALE_LIMIT, VariantCoverage, assess_variant, judged_engines, shown_signals};
use crate::snapshot::{Phase, Signal, SignalSet, SourceHealth};
use crate::units::Seconds;

#[cfg(test)]
mod tests;

/// An analyzer that gets all the signals it needs and has still found nothing after this time, while requests run, is not expected to.
/// Two scrapes under load are enough for each analyzer, and slow scrapes come once a minute: three of these.
const LEARNING_TIMEOUT: Seconds = Seconds::whole(180);

/// Characters of a source's warning that are reported.
const MAX_WARNING_CHARS: usize = 160;

/// A role about which the model's own analyzer was asked in this evaluation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AskedRole {
    pub(crate) role: Role,
    /// The analyzer found nothing: it does not know the capacity of a replica, or the demand.
    pub(crate) is_silent: bool,
}

/// Capacity analyzers run for all roles of a model together, and so are replaced in all of them.
const fn covers_all_roles(analyzer: Analyzer) -> bool {
    matches!(
        analyzer,
        Analyzer::Saturation | Analyzer::Throughput | Analyzer::QueueingModel | Analyzer::Inferno
    )
}

/// Chooses a fallback for each role whose pods show something that the model's analyzer cannot use: it can measure no pod, or no pod shows
/// an indispensable signal. A capacity analyzer, which is asked about all roles together, is replaced in all of them. Assesses the variants
/// of these roles again, for the fallback.
pub(crate) fn choose_for_unmeasured<'a>(
    context: ModelContext<'a>,
    variants: &mut [VariantContext<'a>],
    learned: &mut Learned,
) -> Vec<(Role, Analyzer)> {
    let (indispensable, measures_caches) =
        (context.analyzer.indispensable(), context.analyzer.measures_caches());
    let is_unmeasured = |variants: &[VariantContext<'a>]| {
        let active = || variants.iter().filter(|variant| variant.is_active());
        let mut loads = active().flat_map(|variant| &variant.coverage.loads);
        active().any(|variant| !variant.coverage.observations.is_empty())
            && !loads.any(|load| load.has(indispensable) && (!measures_caches || load.has_usage()))
    };
    let unmeasured: Vec<Role> =
        by_role(variants).filter(|(_, variants)| is_unmeasured(variants)).map(|(role, _)| role).collect();
    // The rate policy reads arrivals from gauges where counters are missing.
    let mut reads_gauges = |role: &Role| {
        context.analyzer == Analyzer::Rate
            && rate::remembered(context, learned).reads_gauges(*role, context.now)
    };
    let without_arrivals: Vec<Role> = unmeasured.into_iter().filter(|role| !reads_gauges(role)).collect();
    if without_arrivals.is_empty() {
        return Vec::new();
    }
    let is_for_all = covers_all_roles(context.analyzer);
    choose_where(context, variants, |role| is_for_all || without_arrivals.contains(&role))
}

/// Chooses a fallback for each role of `variants` that needs it.
fn choose_where<'a>(
    context: ModelContext<'a>,
    variants: &mut [VariantContext<'a>],
    needs_fallback: impl Fn(Role) -> bool,
) -> Vec<(Role, Analyzer)> {
    let roles = by_role_mut(variants).filter(|(role, _)| needs_fallback(*role));
    roles.filter_map(|(role, variants)| Some((role, assess_for_fallback(context, role, variants)?))).collect()
}

/// Returns the best other analyzer whose signals the pods of `role` show, and assesses `variants`, which are all of that role, for it.
fn assess_for_fallback<'a>(
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
        let is_last = fallbacks.last() == Some(analyzer);
        let mut loads = coverages.iter().flat_map(|coverage| &coverage.loads);
        if is_last || loads.any(|load| load.suffices(declared.needed)) {
            variants
                .iter_mut()
                .zip(coverages)
                .for_each(|(variant, coverage)| variant.coverage.adopt_measurements(coverage));
            return Some(*analyzer);
        }
    }
    None
}

/// Chooses a fallback for each role of `asked` about which the model's analyzer found nothing: at once if no pod shows all the signals it
/// needs, so that it cannot learn, and otherwise after [`LEARNING_TIMEOUT`]. A role that was not asked about keeps the state of the last
/// time it was.
pub(crate) fn choose_for_silent<'a>(
    context: ModelContext<'a>,
    variants: &mut [VariantContext<'a>],
    asked_roles: &[AskedRole],
    learned: &mut Learned,
) -> Vec<(Role, Analyzer)> {
    // Nothing can be learned at zero replicas, so the time begins when pods serve.
    let serves =
        |variant: &VariantContext<'_>| variant.state.pods.iter().any(|pod| pod.phase == Phase::Ready);
    learned
        .unlearned
        .retain(|role, _| variants.iter().any(|variant| variant.role() == *role && serves(variant)));
    if asked_roles.iter().all(|own| !own.is_silent) && learned.unlearned.is_empty() {
        return Vec::new();
    }
    let mut chosen = Vec::new();
    for (role, variants) in by_role_mut(variants) {
        match asked_roles.iter().find(|own| own.role == role) {
            Some(own) if own.is_silent => {
                let fallback = fallback_for_silent(context, role, variants, learned);
                chosen.extend(fallback.map(|analyzer| (role, analyzer)));
            }
            Some(_) => {
                learned.unlearned.remove(&role);
            }
            None => {}
        }
    }
    if !chosen.is_empty() && covers_all_roles(context.analyzer) {
        let is_chosen = |role: Role| chosen.iter().any(|(own, _)| *own == role);
        let others = choose_where(context, variants, |role| !is_chosen(role));
        chosen.extend(others);
    }
    chosen
}

/// The fallback for `role`, about which the model's analyzer found nothing, if one is due.
fn fallback_for_silent<'a>(
    context: ModelContext<'a>,
    role: Role,
    variants: &mut [VariantContext<'a>],
    learned: &mut Learned,
) -> Option<Analyzer> {
    let lacks_signals = lacks_signals(context.analyzer.needed(role), variants);
    let known = learned.unlearned.get(&role).copied();
    if known.is_none() && !lacks_signals && !is_busy(variants) {
        return None;
    }
    let since = known.map_or(context.now, |known| known.since);
    let has_waited =
        context.inputs.replaces_silent_analyzer && Seconds::between(since, context.now) >= LEARNING_TIMEOUT;
    let fallback =
        if lacks_signals || has_waited { assess_for_fallback(context, role, variants) } else { None };
    learned.unlearned.insert(role, Unlearned { since, fallback });
    if fallback.is_some() {
        count_all_demand(context, learned);
    }
    fallback
}

/// Makes a fallback count all the demand that it finds, if the model's own analyzer never knew the capacity of a replica: then nothing
/// says that the replicas of when the fallback began were enough. See [`scale_demand`].
pub(crate) fn count_all_demand(context: ModelContext<'_>, learned: &mut Learned) {
    if !has_learned(context.analyzer, learned) {
        learned.fallback_share.get_or_insert(1.0);
    }
}

/// No Ready pod of `variants` shows all `needed` signals, although some have served for long enough to be scraped.
fn lacks_signals(needed: SignalSet, variants: &[VariantContext<'_>]) -> bool {
    let active = || variants.iter().filter(|variant| variant.is_active());
    active().any(|variant| variant.coverage.incomplete > 0)
        && !active().flat_map(|variant| &variant.coverage.loads).any(|load| load.has(needed))
}

/// A request runs or waits in a pod of `variants`.
fn is_busy(variants: &[VariantContext<'_>]) -> bool {
    let pods = variants.iter().flat_map(|variant| &variant.state.pods);
    let engines = pods.filter(|pod| pod.phase == Phase::Ready).flat_map(judged_engines);
    let mut gauges = engines.flat_map(|(_, signals)| {
        [Signal::Running, Signal::Waiting].map(|gauge| signals.newest(gauge)).into_iter().flatten()
    });
    gauges.any(|newest| newest.value > 0.0)
}

/// `analyzer` knows the capacity of a replica, or has known it.
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

/// The fallbacks of the roles that were not asked about in this evaluation, as they were chosen in the last cycle.
pub(crate) fn of_last_cycle<'l>(
    context: ModelContext<'_>,
    asked_roles: &[AskedRole],
    learned: &'l Learned,
) -> impl Iterator<Item = (Role, Analyzer)> + 'l {
    let fallbacks = context.analyzer.fallbacks();
    let asked_roles: Vec<Role> = asked_roles.iter().map(|own| own.role).collect();
    let not_asked = learned.unlearned.iter().filter(move |(role, _)| !asked_roles.contains(role));
    not_asked
        .filter_map(|(role, unlearned)| Some((*role, unlearned.fallback?)))
        .filter(move |(_, analyzer)| fallbacks.contains(analyzer))
}

/// The analyzer has not learned the capacity of a replica of `role` within [`LEARNING_TIMEOUT`].
fn has_timed_out(context: ModelContext<'_>, role: Role, learned: Option<&Learned>) -> bool {
    let known = learned.and_then(|learned| learned.unlearned.get(&role));
    known.is_some_and(|known| Seconds::between(known.since, context.now) >= LEARNING_TIMEOUT)
}

/// What is not known about the pods of `variant`, which is one of `model`, and the likely cause.
pub(crate) fn find_gap(model: &ModelDecision<'_>, variant: &VariantContext<'_>) -> Option<SignalGap> {
    let (context, learned) = (model.context, model.memory.learned.as_deref());
    let fallback = model.fallback(variant.role());
    let coverage = &variant.coverage;
    let warning = match &context.group.source {
        SourceHealth::Down { .. } => return None,
        SourceHealth::Partial { warnings } => {
            Some(SmolStr::from_iter(warnings.join("; ").chars().take(MAX_WARNING_CHARS)))
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
    } else if coverage.ready > 0 && has_timed_out(context, variant.role(), learned) {
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

/// Why some pods of `variant`, which is one of `variants`, do not show all required signals.
fn cause_of_missing(
    context: ModelContext<'_>,
    variants: &[VariantContext<'_>],
    variant: &VariantContext<'_>,
) -> GapCause {
    let coverage = &variant.coverage;
    let pods = variants.iter().flat_map(|variant| &variant.state.pods);
    let engines = pods.filter(|pod| pod.phase == Phase::Ready).flat_map(judged_engines);
    let needed = context.declared(variant.role()).required();
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

/// Scales the demand of a fallback's `finding` by the share of it that the replicas of when the fallback began covered. Analyzers measure
/// the same load differently, and a change of analyzer alone must not add replicas: only growth beyond that demand does.
pub(crate) fn scale_demand(
    mut finding: Finding,
    Utilisation { up, down }: Utilisation,
    learned: &mut Learned,
) -> Finding {
    let Totals { demand, anticipated, .. } = finding.total;
    let covered = || if demand > 0.0 { (up * anticipated / demand).min(1.0) } else { 1.0 };
    let share = *learned.fallback_share.get_or_insert_with(covered);
    finding.total = finding.total.with_share(share, up, down);
    finding.roles.values_mut().for_each(|totals| *totals = totals.with_share(share, up, down));
    finding
}
