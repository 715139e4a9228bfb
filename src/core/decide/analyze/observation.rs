//! The input of capacity analyzers about each variant; unmeasured pods are estimated from measured ones.

use crate::decide::context::{ModelContext, VariantContext};
use crate::model::Utilisation;
use crate::observe::scheduler_queue;
use crate::quality::EngineLoad;
use crate::quality::analyzer_signals::Reads;
use crate::units::{Replicas, Requests};

pub(crate) struct VariantObservation<'m, 'a> {
    pub(crate) variant: &'m VariantContext<'a>,
    /// The loads of its engines; those of unmeasured pods are estimated from measured ones.
    loads: Vec<EngineLoad<'a, ()>>,
    /// Replicas that do not serve yet, or serve and were not observed yet.
    pub(crate) pending: Replicas,
    /// Replicas that serve or will: those asked for, without those that will not come.
    pub(crate) counted: Replicas,
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
    /// All of its variant in turn: their mean.
    Alike,
    /// The busiest of its variant.
    Busiest,
}

/// The loads of a variant's engines, with estimates for pods without evidence.
fn loads<'a>(variant: &VariantContext<'a>, unmeasured: u32, estimate: Estimate) -> Vec<EngineLoad<'a, ()>> {
    let all = &variant.coverage.loads;
    let engines = unmeasured.saturating_mul(variant.coverage.engines_per_pod.max(1));
    let engines = usize::try_from(engines).unwrap_or(usize::MAX);
    let measured = || all.iter().filter(|load| !load.is_estimated());
    match estimate {
        Estimate::Alike => all.iter().chain(all.iter().cycle().take(engines)).copied().collect(),
        Estimate::Busiest => {
            let busiest = measured().max_by(|a, b| a.busyness().total_cmp(&b.busyness()));
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
    // A new pod without series may not have been scraped yet; an older one does serve.
    let silent = variant.coverage.absent.min(variant.coverage.incomplete);
    let unmeasured = variant.coverage.unmeasured().saturating_sub(variant.coverage.estimated);
    let hidden = unmeasured.saturating_sub(variant.coverage.absent).saturating_add(silent);
    let hidden = if context.compat.is_upstream() || variant.coverage.loads.is_empty() { 0 } else { hidden };
    let loads = loads(variant, hidden, estimate);
    let unseen = Replicas::new(variant.coverage.absent.saturating_sub(if hidden > 0 { silent } else { 0 }));
    let starting =
        if context.compat.is_upstream() { variant.scale.pending() } else { variant.credited(context.now) };
    let pending = Replicas::new(starting.get().saturating_add(unseen.get())).min(variant.scale.base());
    // Pods that neither start nor serve have no capacity.
    let lost = variant.scale.pending().saturating_sub(starting);
    VariantObservation { variant, loads, pending, counted: variant.scale.base().saturating_sub(lost) }
}

impl<'a> VariantObservation<'_, 'a> {
    pub(crate) fn loads<A: Reads>(&self) -> impl Iterator<Item = EngineLoad<'a, A>> {
        self.loads.iter().map(EngineLoad::for_analyzer)
    }

    /// Serving processes of a pod, at least 1.
    pub(crate) fn engines_per_pod(&self) -> u32 {
        self.variant.coverage.engines_per_pod.max(1)
    }

    /// `pods` counted as engines, where an analyzer counts these (ours).
    pub(crate) fn engines(&self, context: ModelContext<'_>, pods: Replicas) -> Replicas {
        let each = if context.compat.is_upstream() { 1 } else { self.engines_per_pod() };
        Replicas::new(pods.get().saturating_mul(each))
    }
}

/// Requests that the scheduler holds for the model; none when that is not known.
pub(crate) fn queued(context: ModelContext<'_>) -> Requests {
    let held = scheduler_queue(context.now, &context.group.scheduler);
    held.and_then(|sample| Requests::new(sample.value).ok()).unwrap_or_default()
}
