//! The context of one model's decision, and of each of its variants.

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::Timestamp;
use smol_str::SmolStr;

use crate::learn::LEAD;
use crate::memory::{GroupMemory, VariantMemory};
use crate::model::Analyzer;
use crate::model::{
    Compat, GroupId, ModelPolicy, Policy, Role, ScaleToZero, SecondaryAnalyzer, ServiceClass, UnitCost,
    VariantId,
};
use crate::quality::analyzer_signals::Declared;
use crate::quality::{
    OVERDUE_FACTOR, SignalHistory, VariantCoverage, count_lost_and_failing, is_growth_futile,
};
use crate::snapshot::{ModelGroup, Scale, VariantState};
use crate::units::{Replicas, Seconds};

/// How long a change may take before the analyzer decides anew: HPA's default downscale window, so that an HPA that is merely
/// waiting is never hurried. Upstream waits for ever, and so stops at a target that an HPA never reaches (its maximum is lower, its
/// 10 % tolerance swallows a step of one, a pod fits on no node).
const TRANSITION_TIMEOUT: Seconds = Seconds::whole(300);

/// Bounds of the start-up times that are believed, in seconds: one minute and ten.
const MIN_START: f64 = 60.0;
const MAX_START: f64 = 600.0;

/// What every stage of a model's decision reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct ModelContext<'a> {
    pub(super) now: Timestamp,
    pub(super) id: &'a GroupId,
    pub(super) policy: &'a ModelPolicy,
    /// The deciding analyzer: the model's own, or the one that stands in for it, about additions only.
    pub(super) analyzer: Analyzer,
    pub(super) scale_to_zero: ScaleToZero,
    pub(super) compat: Compat,
    pub(super) cycle: Seconds,
    pub(super) max_stale: Seconds,
    /// For the legacy solver.
    pub(super) classes: &'a [ServiceClass],
    pub(super) unit_costs: &'a BTreeMap<SmolStr, UnitCost>,
    pub(super) group: &'a ModelGroup,
    pub(super) signal_history: Option<&'a SignalHistory>,
    /// The analyzer's next cycle is due.
    pub(super) due: bool,
    /// A limit is in force, so that additions may be held back.
    pub(super) limited: bool,
    /// The role is saturated: none of its replicas is removed.
    pub(super) saturated: bool,
}

impl<'a> ModelContext<'a> {
    pub(super) fn new(
        now: Timestamp,
        id: &'a GroupId,
        group: &'a ModelGroup,
        before: Option<&'a GroupMemory>,
        policy: &'a Policy,
        limited: bool,
    ) -> Self {
        // A cycle in the future was before the clock was set back.
        let last_cycle = before.and_then(|before| before.cycle_at);
        let due = last_cycle.is_none_or(|at| at > now || Seconds::between(at, now) >= policy.cycle);
        let model = policy.of(id);
        Self {
            now,
            id,
            policy: model,
            analyzer: model.analyzer,
            scale_to_zero: policy.scale_to_zero(id),
            compat: policy.compat,
            cycle: policy.cycle,
            max_stale: policy.max_stale,
            classes: &policy.service_classes,
            unit_costs: &policy.accelerators,
            group,
            signal_history: before.and_then(|before| before.signal_history.as_deref()),
            due,
            limited,
            saturated: false,
        }
    }

    /// The signals that the deciding analyzer and the secondary ones read of an engine of `role`.
    pub(super) fn declared(&self, role: Role) -> Declared {
        let own = self.analyzer.declared(role);
        let secondary: &[SecondaryAnalyzer] = if self.is_fallback() { &[] } else { &self.policy.secondary };
        secondary.iter().fold(own, |declared, listed| declared.with(listed.analyzer, role))
    }

    pub(super) fn by(self, analyzer: Analyzer) -> Self {
        Self { analyzer, ..self }
    }

    pub(super) fn is_fallback(&self) -> bool {
        self.analyzer != self.policy.analyzer
    }
}

/// A variant whose scale target exists.
#[derive(Debug, Clone)]
pub(super) struct VariantContext<'a> {
    pub(super) state: &'a VariantState,
    pub(super) scale: Scale,
    pub(super) memory: Cow<'a, VariantMemory>,
    pub(super) coverage: VariantCoverage<'a>,
    /// How long a start takes where none was seen: most pods take 40 to 240 s.
    prior: Seconds,
}

impl<'a> VariantContext<'a> {
    /// Learns how long starts take, whichever analyzer decides, and which of the pods that fail are replaced: more of them only once in the time
    /// that a start takes, and those that come back no longer.
    pub(super) fn new(
        context: ModelContext<'_>,
        state: &'a VariantState,
        scale: Scale,
        mut memory: Cow<'a, VariantMemory>,
        coverage: VariantCoverage<'a>,
    ) -> Self {
        if let Some(starts) = memory.starts.after(state) {
            memory.to_mut().starts = starts;
        }
        let mut variant = Self { state, scale, memory, coverage, prior: context.policy.rate.start_up };
        let mut replaced = variant.memory.starts.replaced;
        if variant.coverage.starting > 0 || replaced.pods > 0 {
            let (_, failing) = count_lost_and_failing(state, variant.start_timeout(), context.now);
            replaced.update(failing, variant.start().get(), context.now.into());
            if replaced != variant.memory.starts.replaced {
                variant.memory.to_mut().starts.replaced = replaced;
            }
        }
        variant
    }
}

impl VariantContext<'_> {
    pub(super) fn start(&self) -> Seconds {
        self.longest_start().unwrap_or(self.prior)
    }

    /// How long the last starts took, if any was seen: within bounds, since what starts warm says little of a cold node, and one that
    /// waited for a node says nothing of the next.
    fn longest_start(&self) -> Option<Seconds> {
        let longest = self.memory.starts.longest()?;
        Seconds::new(longest.clamp(MIN_START, MAX_START)).ok()
    }

    /// How long a pod of it may take to start before it is not counted on any more: by what starts took, and the usual time only where
    /// none was seen.
    fn start_timeout(&self) -> Seconds {
        let longest = self.longest_start();
        longest
            .and_then(|longest| Seconds::new(OVERDUE_FACTOR * longest.get()).ok())
            .unwrap_or(TRANSITION_TIMEOUT)
    }

    /// Pods that are on their way: without those that will not come, and those that failed and are replaced.
    pub(super) fn credited(&self, now: Timestamp) -> Replicas {
        let replaced = self.memory.starts.replaced.pods;
        self.coverage.expected_pending(self.state, self.start_timeout(), replaced, now)
    }

    pub(super) fn id(&self) -> &VariantId {
        &self.state.variant.id
    }

    pub(super) fn name(&self) -> &SmolStr {
        &self.state.variant.id.name
    }

    /// The last published target; after a start without memory the object's last status number if above 0.
    pub(super) fn committed(&self) -> Option<Replicas> {
        self.memory.target.or(self.state.last_status.filter(|last| *last > Replicas::ZERO))
    }

    /// At least one replica is requested.
    pub(super) fn is_active(&self) -> bool {
        self.scale.spec > Replicas::ZERO
    }

    /// Its number is what remains of a withdrawn order, and more replicas than that run.
    pub(super) fn is_withdrawn(&self) -> bool {
        let VariantMemory { target_since, withdrawn_at, target, .. } = *self.memory;
        withdrawn_at.is_some() && withdrawn_at == target_since && target < Some(self.scale.base())
    }

    /// Ready pods that the scale target counts and that are not listed.
    pub(super) fn unlisted(&self) -> u32 {
        self.scale.ready.get().saturating_sub(self.coverage.ready)
    }

    /// The last change may still be on its way. A target that comes from the object's status has just been adopted.
    pub(super) fn is_waiting(&self, now: Timestamp) -> bool {
        self.memory.target_since.is_none_or(|since| Seconds::between(since, now) <= TRANSITION_TIMEOUT)
    }

    /// Seconds after which replicas of an order should be Ready: a start-up time and the time that an HPA takes to act. One that
    /// takes longer is late, and replicas are ordered elsewhere.
    pub(super) fn is_order_late(&self, start_up: Seconds, now: Timestamp) -> bool {
        self.memory
            .target_since
            .is_some_and(|since| Seconds::between(since, now).get() >= start_up.get() + LEAD)
    }

    /// At zero replicas the last order is still open: it has not been late for longer than any other change may take.
    pub(super) fn is_waking(&self, now: Timestamp) -> bool {
        self.is_waiting(now) || !self.is_order_late(self.start(), now)
    }

    /// More pods of it would not serve either: no node has room, or two orders never became ready.
    pub(super) fn is_growth_futile(&self, now: Timestamp) -> bool {
        self.coverage.starting > 0 && is_growth_futile(self.state, self.start(), self.start_timeout(), now)
    }

    /// What a number that is not measured anew rests on: the newest sample it ever rested on, else the moment it was
    /// adopted without one.
    pub(super) fn old_evidence(&self, now: Timestamp) -> Timestamp {
        let sampled = self.memory.evidence.max(self.coverage.newest_any);
        sampled.or(self.memory.blind_since).unwrap_or(now)
    }

    /// Cheaper first; of equals the name that sorts first.
    pub(super) fn by_cost(&self, other: &Self) -> std::cmp::Ordering {
        let cost = |variant: &Self| variant.state.variant.cost.get();
        cost(self).total_cmp(&cost(other)).then_with(|| self.name().cmp(other.name()))
    }

    /// `more` is allowed by the maximum.
    pub(super) fn allows(&self, more: Replicas) -> bool {
        self.state.variant.bounds.max.is_none_or(|max| more <= max)
    }
}

/// The newest sample that a decision about `variants` rests on.
pub(super) fn newest_sample(variants: &[VariantContext<'_>], now: Timestamp) -> Timestamp {
    let active = variants.iter().filter(|variant| variant.is_active());
    active.filter_map(|variant| variant.coverage.newest).max().unwrap_or(now)
}
