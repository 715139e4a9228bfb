//! The context of one model's decision, and of each of its variants.

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::Timestamp;
use smol_str::SmolStr;

use crate::analyze::input_rules::InputRules;
use crate::arithmetic;
use crate::learn::{LEAD, StartUpTimes, median_start, start_up_times};
use crate::memory::{GroupMemory, VariantMemory};
use crate::model::{
    Analyzer, Bounds, Compat, GroupId, ModelPolicy, Policy, Role, ScaleToZero, SecondaryAnalyzer,
    ServiceClass, UnitCost, VariantId,
};
use crate::quality::analyzer_signals::Declared;
use crate::quality::{
    OVERDUE_FACTOR, SignalHistory, VariantCoverage, count_lost_and_failing, is_growth_futile,
};
use crate::snapshot::{ModelGroup, Scale, VariantState};
use crate::units::{Replicas, Seconds};

/// How long a change may take before the analyzer decides anew: an HPA's default downscale window, so that an HPA that is only waiting is
/// left alone. Upstream waits without a limit, and so stops at a target that an HPA never reaches: the HPA has a lower maximum, its 10 %
/// tolerance ignores a step of one replica, or a pod fits on no node.
const TRANSITION_TIMEOUT: Seconds = Seconds::whole(300);

/// For this long after a limit denied a variant replicas, another variant grows instead, if one can.
pub(super) const DENIED_WINDOW: Seconds = Seconds::whole(60);

/// Start-up times are clamped to this range, seconds: pods that start warm say little about a cold node, and one that waited for a node says
/// nothing about the next.
const MIN_START: f64 = 60.0;
const MAX_START: f64 = 600.0;

/// What every stage of a model's decision reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct ModelContext<'a> {
    pub(super) now: Timestamp,
    pub(super) id: &'a GroupId,
    pub(super) policy: &'a ModelPolicy,
    /// The deciding analyzer: the model's own, or its fallback, which decides about additions only.
    pub(super) analyzer: Analyzer,
    pub(super) scale_to_zero: ScaleToZero,
    pub(super) compat: Compat,
    /// How the inputs of capacity analyzers are made.
    pub(super) inputs: &'static InputRules,
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
    /// The role is prefill or decode and the other of the two has replicas that it keeps, in a model that sleeps and wakes as a whole.
    pub(super) counterpart_runs: bool,
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
            inputs: arithmetic::input_rules(policy.compat),
            cycle: policy.cycle,
            max_stale: policy.max_stale,
            classes: model
                .service_class
                .as_ref()
                .map_or(policy.service_classes.as_slice(), std::slice::from_ref),
            unit_costs: &policy.accelerators,
            group,
            signal_history: before.and_then(|before| before.signal_history.as_deref()),
            due,
            limited,
            saturated: false,
            counterpart_runs: false,
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
    /// How long a start takes if none was seen: most pods take 40 to 240 s.
    prior: Seconds,
}

impl<'a> VariantContext<'a> {
    /// Learns how long starts take, whichever analyzer decides, and how many failing pods are replaced (see
    /// `ReplacedPods::update`).
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

    /// The longest of the last starts, if any was seen, between `MIN_START` and `MAX_START`.
    fn longest_start(&self) -> Option<Seconds> {
        let longest = self.memory.starts.longest()?;
        Seconds::new(longest.clamp(MIN_START, MAX_START)).ok()
    }

    /// A pod that takes longer to start is no longer expected to serve: a multiple of the longest start, or the usual time before one was seen.
    fn start_timeout(&self) -> Seconds {
        let longest = self.longest_start();
        longest
            .and_then(|longest| Seconds::new(OVERDUE_FACTOR * longest.get()).ok())
            .unwrap_or(TRANSITION_TIMEOUT)
    }

    /// Pending replicas that are expected to serve: without pods that will not become Ready and failed pods that are replaced.
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

    pub(super) fn role(&self) -> Role {
        self.state.variant.role
    }

    pub(super) fn bounds(&self) -> Bounds {
        self.state.variant.bounds
    }

    /// The last published target; after a start without memory the number in the object's status, if that is above 0.
    pub(super) fn committed(&self) -> Option<Replicas> {
        self.memory.target.or(self.state.last_status.filter(|last| *last > Replicas::ZERO))
    }

    /// At least one replica is requested.
    pub(super) fn is_active(&self) -> bool {
        self.scale.spec > Replicas::ZERO
    }

    /// Its last order was withdrawn, and more replicas run than its number says.
    pub(super) fn is_withdrawn(&self) -> bool {
        let VariantMemory { target_since, withdrawn_at, target, .. } = *self.memory;
        withdrawn_at.is_some() && withdrawn_at == target_since && target < Some(self.scale.base())
    }

    /// Ready pods that the scale target counts and the list of pods lacks.
    pub(super) fn unlisted(&self) -> u32 {
        self.scale.ready.get().saturating_sub(self.coverage.ready)
    }

    /// The last change may still be in progress. A target that comes from the object's status has just been adopted.
    pub(super) fn is_waiting(&self, now: Timestamp) -> bool {
        self.memory.target_since.is_none_or(|since| Seconds::between(since, now) <= TRANSITION_TIMEOUT)
    }

    /// The replicas of the last order should be Ready by now: a start-up time and the time that an HPA takes to act have passed.
    pub(super) fn is_order_late(&self, start_up: Seconds, now: Timestamp) -> bool {
        self.memory
            .target_since
            .is_some_and(|since| Seconds::between(since, now).get() >= start_up.get() + LEAD)
    }

    /// At zero replicas: the last order still counts, because the change may be in progress or the order is not late.
    pub(super) fn is_waking(&self, now: Timestamp) -> bool {
        self.is_waiting(now) || !self.is_order_late(self.start(), now)
    }

    /// Further pods would not serve either: no node has room, or two orders never became Ready.
    pub(super) fn is_growth_futile(&self, now: Timestamp) -> bool {
        self.coverage.starting > 0 && is_growth_futile(self.state, self.start(), self.start_timeout(), now)
    }

    /// The evidence of a number that is held: the newest sample that it ever rested on, or else when it was adopted without one.
    pub(super) fn old_evidence(&self, now: Timestamp) -> Timestamp {
        let sampled = self.memory.evidence.max(self.coverage.newest_any);
        sampled.or(self.memory.blind_since).unwrap_or(now)
    }

    /// The lower cost first, then the name.
    pub(super) fn by_cost(&self, other: &Self) -> std::cmp::Ordering {
        let cost = |variant: &Self| variant.state.variant.cost.get();
        cost(self).total_cmp(&cost(other)).then_with(|| self.name().cmp(other.name()))
    }

    /// The maximum allows `number`.
    pub(super) fn allows(&self, number: Replicas) -> bool {
        self.bounds().max.is_none_or(|max| number <= max)
    }
}

/// How long a pod of `variant` is expected to take to start, seconds: the longest of the last starts, as the rate policy has seen them
/// (`by_rate`) or, before it has, as they were seen while another analyzer decided. Before any was seen, the median of the Ready pods, at
/// least `prior`.
pub(super) fn expected_start(
    by_rate: Option<&StartUpTimes>,
    variant: &VariantContext<'_>,
    prior: Seconds,
) -> f64 {
    let longest = by_rate.and_then(StartUpTimes::longest).or_else(|| variant.memory.starts.longest());
    longest.unwrap_or_else(|| median_start(&start_up_times(variant.state), prior.get()))
}

/// Splits `variants`, which are sorted by role, into the variants of each role.
pub(super) fn by_role<'v, 'a>(
    variants: &'v [VariantContext<'a>],
) -> impl Iterator<Item = (Role, &'v [VariantContext<'a>])> {
    let chunks = variants.chunk_by(|left, right| left.role() == right.role());
    chunks.filter_map(|of_role| Some((of_role.first()?.role(), of_role)))
}

/// The same for changes.
pub(super) fn by_role_mut<'v, 'a>(
    variants: &'v mut [VariantContext<'a>],
) -> impl Iterator<Item = (Role, &'v mut [VariantContext<'a>])> {
    let chunks = variants.chunk_by_mut(|left, right| left.role() == right.role());
    chunks.filter_map(|of_role| Some((of_role.first()?.role(), of_role)))
}

/// The newest sample that a decision about `variants` rests on.
pub(super) fn newest_sample(variants: &[VariantContext<'_>], now: Timestamp) -> Timestamp {
    let active = variants.iter().filter(|variant| variant.is_active());
    active.filter_map(|variant| variant.coverage.newest).max().unwrap_or(now)
}
