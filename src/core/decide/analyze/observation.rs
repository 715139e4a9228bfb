//! The input of capacity analyzers about each variant. Unmeasured pods are estimated from measured ones.

use crate::decide::context::{ModelContext, VariantContext};
use crate::model::Utilisation;
use crate::observe::scheduler_queue;
use crate::quality::EngineLoad;
use crate::quality::analyzer_signals::Reads;
use crate::units::{Replicas, Requests};

pub(crate) struct VariantObservation<'m, 'a> {
    pub(crate) variant: &'m VariantContext<'a>,
    /// The loads of its engines. Those of unmeasured pods are estimated from measured ones.
    loads: Vec<EngineLoad<'a, ()>>,
    /// Replicas that start, or serve and have not been scraped yet.
    pub(crate) pending: Replicas,
    /// Replicas that serve or will serve: the requested ones without those that are not expected to start.
    pub(crate) counted: Replicas,
    /// Engines that a pod counts as, at least 1.
    pub(crate) engines_per_pod: u32,
}

#[derive(Clone, Copy)]
pub(crate) struct AnalyzerInput<'q, 'm, 'a> {
    pub(crate) context: ModelContext<'q>,
    pub(crate) score: f64,
    pub(crate) utilisation: Utilisation,
    pub(crate) observations: &'q [VariantObservation<'m, 'a>],
}

/// Which measured pod stands for one that is not measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Estimate {
    /// All of its variant in turn, which leaves their mean as it is.
    Mean,
    /// The busiest of its variant.
    Busiest,
}

/// The loads of a variant's engines, and an estimate for each engine of `unmeasured` pods.
fn loads<'a>(variant: &VariantContext<'a>, unmeasured: u32, estimate: Estimate) -> Vec<EngineLoad<'a, ()>> {
    let all = &variant.coverage.loads;
    let engines = unmeasured.saturating_mul(variant.coverage.engines_per_pod.max(1));
    let engines = usize::try_from(engines).unwrap_or(usize::MAX);
    let measured = || all.iter().filter(|load| !load.is_estimated());
    match estimate {
        Estimate::Mean => all.iter().chain(all.iter().cycle().take(engines)).copied().collect(),
        Estimate::Busiest => {
            let busiest = measured().max_by(|left, right| left.busyness().total_cmp(&right.busyness()));
            let engines = engines + all.len() - measured().count();
            measured().chain(busiest.into_iter().cycle().take(engines)).copied().collect()
        }
    }
}

pub(crate) fn observe<'m, 'a>(
    context: ModelContext<'_>,
    variant: &'m VariantContext<'a>,
    estimate: Estimate,
) -> VariantObservation<'m, 'a> {
    let coverage = &variant.coverage;
    // A pod without series that became Ready just now may not have been scraped yet. An older one serves and is not seen.
    let unseen = coverage.absent.min(coverage.incomplete);
    let not_fresh = coverage.unmeasured().saturating_sub(coverage.estimated).saturating_sub(coverage.absent);
    let can_estimate = (context.inputs.can_estimate_from)(coverage.loads.len());
    let estimated = if can_estimate { not_fresh.saturating_add(unseen) } else { 0 };
    let loads = loads(variant, estimated, estimate);
    let not_scraped = if estimated > 0 { coverage.absent.saturating_sub(unseen) } else { coverage.absent };
    let starting = (context.inputs.starting)(variant.scale.pending(), variant.credited(context.now));
    let pending = starting.get().saturating_add(not_scraped);
    let pending = Replicas::new(pending).min(variant.scale.base());
    // Pods that neither serve nor are expected to start have no capacity.
    let lost = variant.scale.pending().saturating_sub(starting);
    let counted = variant.scale.base().saturating_sub(lost);
    let engines_per_pod = (context.inputs.engines_per_pod)(coverage.engines_per_pod);
    VariantObservation { variant, loads, pending, counted, engines_per_pod }
}

impl<'a> VariantObservation<'_, 'a> {
    pub(crate) fn loads<A: Reads>(&self) -> impl Iterator<Item = EngineLoad<'a, A>> {
        self.loads.iter().map(EngineLoad::for_analyzer)
    }

    /// The engines of `pods`.
    pub(crate) fn engines(&self, pods: Replicas) -> Replicas {
        Replicas::new(pods.get().saturating_mul(self.engines_per_pod))
    }
}

/// Requests that the scheduler holds for the model; 0 if that is not known.
pub(crate) fn queued(context: ModelContext<'_>) -> Requests {
    let held = scheduler_queue(context.now, &context.group.scheduler);
    held.and_then(|sample| Requests::new(sample.value).ok()).unwrap_or_default()
}
