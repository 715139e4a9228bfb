//! Times that have not come yet: a clock that was set back, or one that is ahead elsewhere. Ages never fall below 0, so
//! such a time would look new until the clock has caught up.

use std::borrow::Cow;

use jiff::{SignedDuration, Timestamp};

use crate::memory::GroupMemory;
use crate::snapshot::{Replica, Signals, Snapshot};

/// How far clocks of one cluster may differ: a sample beyond is a bad sample. Time synchronisation keeps them within
/// seconds; a minute is the peak window.
const SKEW: SignedDuration = SignedDuration::from_secs(60);

/// `snapshot` without the samples that are from too far in the future; borrowed when there is none.
pub(crate) fn without_future(snapshot: &Snapshot) -> Cow<'_, Snapshot> {
    let latest = snapshot.now.checked_add(SKEW).unwrap_or(Timestamp::MAX);
    let ahead = |signals: &Signals| signals.ahead_of(latest);
    let engines_ahead = |replica: &Replica| replica.engines.values().any(ahead);
    let any = snapshot.groups.values().any(|group| {
        ahead(&group.scheduler) || group.variants.iter().flat_map(|one| &one.replicas).any(engines_ahead)
    });
    if !any {
        return Cow::Borrowed(snapshot);
    }
    let mut cleaned = snapshot.clone();
    for group in cleaned.groups.values_mut() {
        group.scheduler.cut_after(latest);
        let replicas = group.variants.iter_mut().flat_map(|one| &mut one.replicas);
        replicas.flat_map(|replica| replica.engines.values_mut()).for_each(|one| one.cut_after(latest));
    }
    Cow::Owned(cleaned)
}

/// Makes the moments of `memory` that are after `now` be now. The look of the analyzer keeps its time: one in the future
/// is due again.
pub(crate) fn not_after(memory: &mut GroupMemory, now: Timestamp) {
    let clamp = |moment: &mut Option<Timestamp>| *moment = moment.map(|at| at.min(now));
    clamp(&mut memory.idle_since);
    clamp(&mut memory.observed_at);
    for variant in memory.variants.values_mut() {
        clamp(&mut variant.target_since);
        clamp(&mut variant.evidence);
        clamp(&mut variant.blind_since);
        variant.wanted.not_after(now);
    }
}
