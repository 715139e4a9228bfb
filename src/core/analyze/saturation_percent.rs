//! V1, the percent saturation analyzer: how much KV cache and queue the replicas have to spare, and one step up or down.
//! [`analyze`] is what every decision uses; [`targets`] is upstream's own choice of targets, kept to the digit for
//! comparison. The product's choice, with its improvements, is in `decide`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use smol_str::{SmolStr, format_smolstr};

use crate::model::{Bounds, SaturationPolicy};
use crate::quality::EnginePeaks;
use crate::units::{Cost, Replicas};

/// The finding over all observations of a role group.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Analysis {
    /// Observations.
    pub total: u32,
    /// Those below both thresholds.
    pub non_saturated: u32,
    /// Mean distance to the KV threshold over the non-saturated; 0 when there is none.
    pub avg_spare_kv: f64,
    /// Mean distance to the queue threshold over the non-saturated; 0 when there is none.
    pub avg_spare_queue: f64,
    /// Too little to spare.
    pub scale_up: bool,
    /// One fewer could carry the load of the non-saturated.
    pub scale_down_safe: bool,
    /// By variant.
    pub variants: BTreeMap<SmolStr, VariantAnalysis>,
}

/// The finding over one variant's observations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VariantAnalysis {
    /// Observations.
    pub count: u32,
    /// Those below both thresholds.
    pub non_saturated: u32,
    /// Mean distance to the KV threshold over its non-saturated; 0 when there is none.
    pub avg_spare_kv: f64,
    /// Mean distance to the queue threshold over its non-saturated; 0 when there is none.
    pub avg_spare_queue: f64,
    /// What a replica costs.
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
    free: u32,
    spare_kv: f64,
    spare_queue: f64,
    kv: f64,
}

impl Sums {
    fn add(&mut self, one: &EnginePeaks<'_>, policy: &SaturationPolicy) -> bool {
        self.count += 1;
        self.kv += one.kv;
        let queue = f64::from(one.queue);
        let saturated = one.kv >= policy.kv_cache_threshold || queue >= policy.queue_length_threshold;
        if !saturated {
            self.free += 1;
            self.spare_kv += policy.kv_cache_threshold - one.kv;
            self.spare_queue += policy.queue_length_threshold - queue;
        }
        saturated
    }

    fn mean(&self, sum: f64) -> f64 {
        if self.free == 0 { 0.0 } else { sum / f64::from(self.free) }
    }
}

impl EnginePeaks<'_> {
    /// The pod's name, with the engine's where there are several.
    fn name(&self) -> SmolStr {
        self.engine.map_or_else(|| self.replica.into(), |engine| format_smolstr!("{}:{engine}", self.replica))
    }
}

/// Looks at all observations of a role group.
#[must_use]
pub fn analyze<'o>(
    observations: impl IntoIterator<Item = &'o EnginePeaks<'o>>,
    policy: &SaturationPolicy,
) -> Analysis {
    let mut all = Sums::default();
    let mut variants: BTreeMap<&str, (Sums, Cost, Vec<SmolStr>)> = BTreeMap::new();
    for one in observations {
        all.add(one, policy);
        let (sums, _, saturated) =
            variants.entry(one.variant).or_insert_with(|| (Sums::default(), one.cost, Vec::new()));
        if sums.add(one, policy) {
            saturated.push(one.name());
        }
    }
    if all.count == 0 {
        return Analysis::default();
    }
    let (kv, queue) = (all.mean(all.spare_kv), all.mean(all.spare_queue));
    Analysis {
        total: all.count,
        non_saturated: all.free,
        avg_spare_kv: kv,
        avg_spare_queue: queue,
        scale_up: kv < policy.kv_spare_trigger || queue < policy.queue_spare_trigger,
        scale_down_safe: fewer_would_do(all.free, 1, (kv, queue), policy),
        variants: variants.into_iter().map(|(name, found)| (name.into(), variant_finding(found))).collect(),
    }
}

fn variant_finding((sums, cost, saturated): (Sums, Cost, Vec<SmolStr>)) -> VariantAnalysis {
    VariantAnalysis {
        count: sums.count,
        non_saturated: sums.free,
        avg_spare_kv: sums.mean(sums.spare_kv),
        avg_spare_queue: sums.mean(sums.spare_queue),
        cost,
        saturated,
        mean_kv: sums.kv / f64::from(sums.count),
    }
}

impl Analysis {
    /// The mean spare KV cache and queue from which on one replica fewer would do.
    #[must_use]
    pub fn spare_of_one_fewer(&self, policy: &SaturationPolicy) -> (f64, f64) {
        // From K - (K - s)·n/(n - 1) ≥ trigger.
        let part = 1.0 - 1.0 / f64::from(self.non_saturated.max(1));
        let least = |threshold: f64, trigger: f64| threshold - (threshold - trigger) * part;
        (
            least(policy.kv_cache_threshold, policy.kv_spare_trigger),
            least(policy.queue_length_threshold, policy.queue_spare_trigger),
        )
    }

    /// Upstream's test of one fewer, for `removed` observations fewer at once.
    #[must_use]
    pub fn safe_without(&self, removed: u32, policy: &SaturationPolicy) -> bool {
        fewer_would_do(self.non_saturated, removed, (self.avg_spare_kv, self.avg_spare_queue), policy)
    }
}

/// Spreads the load of `free` replicas over `removed` fewer. The load of saturated ones is not spread, as upstream.
fn fewer_would_do(free: u32, removed: u32, (kv, queue): (f64, f64), policy: &SaturationPolicy) -> bool {
    let Some(left) = free.checked_sub(removed).filter(|left| *left > 0) else { return false };
    let growth = f64::from(free) / f64::from(left);
    let left_kv = policy.kv_cache_threshold - (policy.kv_cache_threshold - kv) * growth;
    let left_queue = policy.queue_length_threshold - (policy.queue_length_threshold - queue) * growth;
    left_kv >= policy.kv_spare_trigger && left_queue >= policy.queue_spare_trigger
}

/// Which of upstream's two sets of target rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tree {
    /// 2026-06: a number of observations other than the current count is a transition; steps start from it.
    June,
    /// 2026-08: pending replicas are a transition; steps start from the current count. The product builds on this.
    August,
}

/// What upstream's targets look at of one variant.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// Its name.
    pub name: SmolStr,
    /// What a replica costs; 0 is taken literally.
    pub cost: Cost,
    /// Its observations; a variant without any takes no part.
    pub observations: u32,
    /// The scale target's replicas.
    pub current: Replicas,
    /// The last published number; 0 when there is none.
    pub desired: Replicas,
    /// Replicas that are not ready.
    pub pending: Replicas,
    /// Its bounds.
    pub bounds: Bounds,
}

/// Upstream's targets, exactly: unclamped in a transition, and a step that meets a maximum is lost.
#[must_use]
pub fn targets(tree: Tree, up: bool, down: bool, candidates: &[Candidate]) -> BTreeMap<SmolStr, Replicas> {
    let taking_part: Vec<&Candidate> = candidates.iter().filter(|one| one.observations > 0).collect();
    let moving = |one: &Candidate| one.desired != Replicas::ZERO && one.desired != one.current;
    let unsettled = |one: &Candidate| match tree {
        Tree::June => Replicas::new(one.observations) != one.current,
        Tree::August => one.pending > Replicas::ZERO,
    };
    if taking_part.iter().any(|one| moving(one) || unsettled(one)) {
        let held = |one: &&Candidate| (one.name.clone(), if moving(one) { one.desired } else { one.current });
        return taking_part.iter().map(held).collect();
    }
    let base = |one: &Candidate| match tree {
        Tree::June => Replicas::new(one.observations),
        Tree::August => one.current,
    };
    let stepping = if up {
        cheapest(taking_part.iter().copied().filter(|one| one.pending == Replicas::ZERO))
    } else if down {
        dearest(taking_part.iter().copied().filter(|one| base(one) > Replicas::ONE))
    } else {
        None
    };
    let target = |one: &&Candidate| {
        let wanted = match stepping {
            Some(name) if name == one.name => {
                if up {
                    base(one).plus_one()
                } else {
                    base(one).minus_one()
                }
            }
            _ => base(one),
        };
        (one.name.clone(), one.bounds.clamp(wanted))
    };
    taking_part.iter().map(target).collect()
}

fn cheapest<'a>(candidates: impl Iterator<Item = &'a Candidate>) -> Option<&'a str> {
    candidates.min_by(|a, b| by_cost_and_name(a, b)).map(|one| one.name.as_str())
}

fn dearest<'a>(candidates: impl Iterator<Item = &'a Candidate>) -> Option<&'a str> {
    candidates.max_by(|a, b| by_cost_and_name(a, b)).map(|one| one.name.as_str())
}

fn by_cost_and_name(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    a.cost.get().total_cmp(&b.cost.get()).then_with(|| a.name.cmp(&b.name))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const PAGE: &str = include_str!("../../../docs/decisions/saturation-percent.md");

    #[test]
    fn the_page_says_what_the_code_computes() {
        let policy = SaturationPolicy::default();
        let one =
            |kv, queue| EnginePeaks { replica: "r", engine: None, variant: "v", cost: Cost::ZERO, kv, queue };
        let found = analyze(&[one(0.85, 2), one(0.5, 1), one(0.6, 2)], &policy);
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
            let analysis = Analysis { non_saturated: free, ..Analysis::default() };
            let (kv, queue) = analysis.spare_of_one_fewer(&policy);
            let enough = |kv, queue| fewer_would_do(free, 1, (kv, queue), &policy);
            assert!(enough(kv + 1e-9, queue + 1e-9), "{free}");
            assert!(!enough(kv - 1e-6, queue + 1e-9) && !enough(kv + 1e-9, queue - 1e-6), "{free}");
        }
    }

    fn seen(loads: &[(f64, u32)]) -> Vec<EnginePeaks<'static>> {
        let one = |(kv, queue): &(f64, u32)| {
            let (kv, queue) = (*kv, *queue);
            EnginePeaks { replica: "r", engine: None, variant: "v", cost: Cost::ZERO, kv, queue }
        };
        loads.iter().map(one).collect()
    }

    proptest! {
        #![proptest_config(crate::cases::quick())]

        /// Below saturation: a replica that crosses it is counted no more, and what it had weighs on nobody.
        #[test]
        fn more_load_never_asks_for_less_nor_lets_more_go(
            loads in vec((0.0..0.79_f64, 0_u32..5), 1..7), at in 0_usize..6, kv in 0.0..0.8_f64, queue in 0_u32..5,
        ) {
            let policy = SaturationPolicy::default();
            let mut more = loads.clone();
            let changed = &mut more[at % loads.len()];
            *changed = ((changed.0 + kv).min(0.799), (changed.1 + queue).min(4));
            let (before, after) = (analyze(&seen(&loads), &policy), analyze(&seen(&more), &policy));
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
            let (one, other) = (analyze(&seen(&loads), &policy), analyze(&seen(&scaled), &in_other_units));
            prop_assert_eq!((one.scale_up, one.scale_down_safe), (other.scale_up, other.scale_down_safe));
            prop_assert_eq!((one.total, one.non_saturated), (other.total, other.non_saturated));
        }
    }
}
