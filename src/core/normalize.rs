//! Normal form of snapshots and memories, which every decision relies on. No time is in the future, as it may be when a clock was set back
//! or is ahead: ages are never below 0, so such a sample would look new until the clock has caught up. Variants and pods are in the
//! order of their names, because sums of floats depend on it.

use std::borrow::Cow;

use jiff::Timestamp;

use crate::isolate::guarded;
use crate::memory::{GroupMemory, VariantMemory};
use crate::moment::MAX_CLOCK_SKEW;
use crate::snapshot::{ModelGroup, Snapshot};

/// `group` in normal form; borrowed if it already is.
pub(crate) fn normalize_group(group: &ModelGroup, now: Timestamp) -> Cow<'_, ModelGroup> {
    if is_normal(group, now) {
        return Cow::Borrowed(group);
    }
    let (mut group, latest) = (group.clone(), latest(now));
    group.sort();
    group.scheduler.cut_after(latest);
    let pods = group.variants.iter_mut().flat_map(|state| &mut state.pods);
    pods.flat_map(|pod| pod.engines.values_mut()).for_each(|engine| engine.cut_after(latest));
    Cow::Owned(group)
}

fn latest(now: Timestamp) -> Timestamp {
    now.checked_add(MAX_CLOCK_SKEW).unwrap_or(Timestamp::MAX)
}

pub(crate) fn is_normal(group: &ModelGroup, now: Timestamp) -> bool {
    let latest = latest(now);
    let mut pods = group.variants.iter().flat_map(|state| &state.pods);
    group.variants.is_sorted_by(|left, right| left.variant.id <= right.variant.id)
        && group.variants.iter().all(|state| state.pods.is_sorted_by(|left, right| left.name <= right.name))
        && !group.scheduler.has_samples_after(latest)
        && pods.all(|pod| !pod.engines.values().any(|engine| engine.has_samples_after(latest)))
}

/// Puts `snapshot` into normal form, so that a decision does not have to copy it: one pod with a sample of the future would cost the whole
/// fleet a copy. A model whose computation panics here is left as it was; it panics again in its decision, which is isolated.
pub fn normalize(snapshot: &mut Snapshot) {
    let now = snapshot.now;
    for (id, group) in &mut snapshot.groups {
        let normalized = guarded(id, || match normalize_group(group, now) {
            Cow::Borrowed(_) => None,
            Cow::Owned(normalized) => Some(normalized),
        });
        if let Ok(Some(normalized)) = normalized {
            *group = normalized;
        }
    }
}

/// The memory of a variant without times after `now`; borrowed if there are none, and nothing that a decision changes in place.
pub(crate) fn remembered(memory: &VariantMemory, now: Timestamp) -> Cow<'_, VariantMemory> {
    let net = memory.safety_net;
    let ordered = memory.ordered_from.map(|(at, _)| at);
    let own = [
        memory.target_since,
        memory.evidence,
        memory.blind_since,
        memory.unlisted_since,
        memory.withdrawn_at,
        ordered,
    ];
    let all = own.into_iter().chain([net.grew, net.denied, memory.most_running.latest()]);
    if memory.proposals.is_empty() && all.flatten().all(|at| at <= now) {
        return Cow::Borrowed(memory);
    }
    let mut memory = memory.clone();
    variant_not_after(&mut memory, now);
    Cow::Owned(memory)
}

/// Moves times of `memory` after `now` to now. The time of the last analysis stays: one in the future makes the next analysis due.
pub(crate) fn not_after(memory: &mut GroupMemory, now: Timestamp) {
    memory.idle_since = memory.idle_since.map(|at| at.min(now));
    memory.observed_at = memory.observed_at.map(|at| at.min(now));
    if let Some(rate) = memory.learned.as_mut().and_then(|learned| learned.rate.as_mut()) {
        rate.not_after(now);
    }
    if let Some(learned) = &mut memory.learned {
        learned.rollback.not_after(latest(now).into());
        learned.unlearned.values_mut().for_each(|role| role.since = role.since.min(now));
        learned.informative = learned.informative.map(|at| at.min(now));
        learned.throughput.not_after(now);
        for parameters in learned.queueing.values_mut() {
            parameters.learned_at = parameters.learned_at.map(|at| at.min(now));
        }
    }
    memory.signal_history.take_if(|history| history.is_after(latest(now)));
    memory.variants.values_mut().for_each(|variant| variant_not_after(variant, now));
}

fn variant_not_after(variant: &mut VariantMemory, now: Timestamp) {
    variant.ordered_from = variant.ordered_from.map(|(at, from)| (at.min(now), from));
    let net = &mut variant.safety_net;
    let own = [
        &mut variant.target_since,
        &mut variant.evidence,
        &mut variant.blind_since,
        &mut variant.unlisted_since,
        &mut variant.withdrawn_at,
    ];
    for at in own.into_iter().chain([&mut net.grew, &mut net.denied]) {
        *at = at.map(|at| at.min(now));
    }
    variant.proposals.not_after(now);
    variant.most_running.not_after(now);
    variant.starts.not_after(now.into());
}
