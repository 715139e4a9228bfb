//! V1, the percent saturation analyzer: how much KV cache and queue the replicas have to spare, and whether that calls for one step up or
//! down. `decide` chooses the variant. Derived from WVA v0.9, `internal/saturation/analyzer.go`.

use std::collections::BTreeMap;

use serde::Serialize;
use smol_str::{SmolStr, format_smolstr};

use crate::model::SaturationPolicy;
use crate::quality::EnginePeaks;
use crate::units::Cost;

#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub(crate) struct PercentAnalysis {
    pub total: u32,
    /// Those below both thresholds.
    pub non_saturated: u32,
    /// Mean distance to the KV threshold over the non-saturated; 0 if there is none.
    pub avg_spare_kv: f64,
    /// Mean distance to the queue threshold over the non-saturated; 0 if there is none.
    pub avg_spare_queue: f64,
    pub scale_up: bool,
    /// One replica fewer could carry the load of the non-saturated.
    pub scale_down_safe: bool,
    pub variants: BTreeMap<SmolStr, VariantPercent>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct VariantPercent {
    pub count: u32,
    /// Those below both thresholds.
    pub non_saturated: u32,
    /// Mean distance to the KV threshold over its non-saturated; 0 if there is none.
    pub avg_spare_kv: f64,
    /// Mean distance to the queue threshold over its non-saturated; 0 if there is none.
    pub avg_spare_queue: f64,
    pub cost: Cost,
    /// The saturated ones, in input order.
    pub saturated: Vec<SmolStr>,
    /// Mean KV-cache usage over all its observations.
    pub mean_kv: f64,
}

/// Sums over replicas, in input order: the same input gives the same bits.
#[derive(Debug, Default)]
struct Sums {
    count: u32,
    non_saturated: u32,
    spare_kv: f64,
    spare_queue: f64,
    kv: f64,
}

impl Sums {
    /// Returns whether the observation is saturated. If so, it has nothing to spare and is left out of the means.
    fn add(&mut self, observation: &EnginePeaks<'_>, policy: &SaturationPolicy) -> bool {
        self.count += 1;
        self.kv += observation.kv;
        let queue = f64::from(observation.queue);
        let is_saturated =
            observation.kv >= policy.kv_cache_threshold || queue >= policy.queue_length_threshold;
        if !is_saturated {
            self.non_saturated += 1;
            self.spare_kv += policy.kv_cache_threshold - observation.kv;
            self.spare_queue += policy.queue_length_threshold - queue;
        }
        is_saturated
    }

    fn spare(&self) -> Spare {
        let mean = |sum: f64| if self.non_saturated == 0 { 0.0 } else { sum / f64::from(self.non_saturated) };
        Spare { kv: mean(self.spare_kv), queue: mean(self.spare_queue) }
    }
}

impl EnginePeaks<'_> {
    /// The pod's name, with the engine's where there are several.
    fn name(&self) -> SmolStr {
        self.engine.map_or_else(|| self.pod.into(), |engine| format_smolstr!("{}:{engine}", self.pod))
    }
}

pub(crate) fn analyze<'o>(
    observations: impl IntoIterator<Item = &'o EnginePeaks<'o>>,
    policy: &SaturationPolicy,
) -> PercentAnalysis {
    let mut all = Sums::default();
    let mut variants: BTreeMap<&str, VariantSums> = BTreeMap::new();
    for observation in observations {
        all.add(observation, policy);
        let variant = variants.entry(observation.variant).or_insert_with(|| VariantSums {
            sums: Sums::default(),
            cost: observation.cost,
            saturated: Vec::new(),
        });
        if variant.sums.add(observation, policy) {
            variant.saturated.push(observation.name());
        }
    }
    if all.count == 0 {
        return PercentAnalysis::default();
    }
    let spare = all.spare();
    PercentAnalysis {
        total: all.count,
        non_saturated: all.non_saturated,
        avg_spare_kv: spare.kv,
        avg_spare_queue: spare.queue,
        scale_up: spare.kv < policy.kv_spare_trigger || spare.queue < policy.queue_spare_trigger,
        scale_down_safe: is_safe_without(all.non_saturated, 1, spare, policy),
        variants: variants.into_iter().map(|(name, variant)| (name.into(), variant.finish())).collect(),
    }
}

/// Mean distances to the thresholds over the non-saturated.
#[derive(Clone, Copy)]
struct Spare {
    kv: f64,
    queue: f64,
}

struct VariantSums {
    sums: Sums,
    cost: Cost,
    saturated: Vec<SmolStr>,
}

impl VariantSums {
    fn finish(self) -> VariantPercent {
        let Self { sums, cost, saturated } = self;
        let spare = sums.spare();
        VariantPercent {
            count: sums.count,
            non_saturated: sums.non_saturated,
            avg_spare_kv: spare.kv,
            avg_spare_queue: spare.queue,
            cost,
            saturated,
            mean_kv: sums.kv / f64::from(sums.count),
        }
    }
}

impl PercentAnalysis {
    /// The mean spare KV cache and queue from which on removing one replica is safe.
    pub(crate) fn spare_of_one_fewer(&self, policy: &SaturationPolicy) -> (f64, f64) {
        // Without one of n replicas the mean load K - s grows by n/(n - 1): K - (K - s)·n/(n - 1) ≥ trigger, solved for s.
        let part = 1.0 - 1.0 / f64::from(self.non_saturated.max(1));
        let least = |threshold: f64, trigger: f64| threshold - (threshold - trigger) * part;
        (
            least(policy.kv_cache_threshold, policy.kv_spare_trigger),
            least(policy.queue_length_threshold, policy.queue_spare_trigger),
        )
    }

    /// Upstream's test for removing one observation, applied to `removed` at once.
    pub(crate) fn safe_without(&self, removed: u32, policy: &SaturationPolicy) -> bool {
        let spare = Spare { kv: self.avg_spare_kv, queue: self.avg_spare_queue };
        is_safe_without(self.non_saturated, removed, spare, policy)
    }
}

/// Spreads the load of the non-saturated replicas over `removed` fewer. The load of saturated ones is not spread, as upstream.
fn is_safe_without(non_saturated: u32, removed: u32, spare: Spare, policy: &SaturationPolicy) -> bool {
    let Some(left) = non_saturated.checked_sub(removed).filter(|left| *left > 0) else { return false };
    let growth = f64::from(non_saturated) / f64::from(left);
    let left_kv = policy.kv_cache_threshold - (policy.kv_cache_threshold - spare.kv) * growth;
    let left_queue = policy.queue_length_threshold - (policy.queue_length_threshold - spare.queue) * growth;
    left_kv >= policy.kv_spare_trigger && left_queue >= policy.queue_spare_trigger
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const PAGE: &str = include_str!("../../../docs/decisions/saturation-percent.md");

    fn shown(loads: &[(f64, u32)]) -> Vec<EnginePeaks<'static>> {
        let peaks =
            |kv, queue| EnginePeaks { pod: "r", engine: None, variant: "v", cost: Cost::ZERO, kv, queue };
        loads.iter().map(|(kv, queue)| peaks(*kv, *queue)).collect()
    }

    #[test]
    fn the_page_says_what_the_code_computes() {
        let policy = SaturationPolicy::default();
        let found = analyze(&shown(&[(0.85, 2), (0.5, 1), (0.6, 2)]), &policy);
        assert!(!found.scale_up && !found.scale_down_safe);
        let (kv, queue) = found.spare_of_one_fewer(&policy);
        let free = f64::from(found.non_saturated);
        let growth = free / (free - 1.0);
        let left = policy.kv_cache_threshold - (policy.kv_cache_threshold - found.avg_spare_kv) * growth;
        for number in [found.avg_spare_kv, found.avg_spare_queue, left, kv, queue] {
            let number = format!("{number:.3}");
            assert!(PAGE.contains(&number), "the page does not say {number}");
        }
    }

    #[test]
    fn from_the_spare_that_is_named_on_one_fewer_would_do() {
        let policy = SaturationPolicy::default();
        for free in 2..40 {
            let analysis = PercentAnalysis { non_saturated: free, ..PercentAnalysis::default() };
            let (kv, queue) = analysis.spare_of_one_fewer(&policy);
            let is_safe = |kv, queue| is_safe_without(free, 1, Spare { kv, queue }, &policy);
            assert!(is_safe(kv + 1e-9, queue + 1e-9), "{free}");
            assert!(!is_safe(kv - 1e-6, queue + 1e-9) && !is_safe(kv + 1e-9, queue - 1e-6), "{free}");
        }
    }

    proptest! {
        #![proptest_config(crate::tests::support::cases::quick())]

        /// Below saturation: a replica that crosses it is counted no more, and what it had weighs on nobody.
        #[test]
        fn more_load_never_asks_for_less_nor_lets_more_go(
            loads in vec((0.0..0.79_f64, 0_u32..5), 1..7), at in 0_usize..6, kv in 0.0..0.8_f64, queue in 0_u32..5,
        ) {
            let policy = SaturationPolicy::default();
            let mut more = loads.clone();
            let changed = &mut more[at % loads.len()];
            *changed = ((changed.0 + kv).min(0.799), (changed.1 + queue).min(4));
            let (before, after) = (analyze(&shown(&loads), &policy), analyze(&shown(&more), &policy));
            prop_assert!(after.scale_up >= before.scale_up, "{before:?} {after:?}");
            prop_assert!(after.scale_down_safe <= before.scale_down_safe, "{before:?} {after:?}");
        }

        #[test]
        fn the_units_of_usage_and_of_queues_are_irrelevant(loads in vec((0.0..1.0_f64, 0_u32..9), 0..7)) {
            let policy = SaturationPolicy::default();
            // Powers of two change no digit of a float.
            let scaled: Vec<_> = loads.iter().map(|(kv, queue)| (kv / 4.0, queue * 8)).collect();
            let in_other_units = SaturationPolicy {
                kv_cache_threshold: policy.kv_cache_threshold / 4.0,
                kv_spare_trigger: policy.kv_spare_trigger / 4.0,
                queue_length_threshold: policy.queue_length_threshold * 8.0,
                queue_spare_trigger: policy.queue_spare_trigger * 8.0,
            };
            let found = |loads: &[(f64, u32)], policy| {
                let PercentAnalysis { total, non_saturated, scale_up, scale_down_safe, .. } =
                    analyze(&shown(loads), policy);
                (total, non_saturated, scale_up, scale_down_safe)
            };
            prop_assert_eq!(found(&loads, &policy), found(&scaled, &in_other_units));
        }
    }
}
