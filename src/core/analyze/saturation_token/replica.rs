//! What one replica can carry and what is asked of it (algorithm reference §3.1 and §3.2).

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use super::VariantInput;
use super::history::{OutputLength, Setting};
use super::knowledge::{Knowledge, Learned, Record};
use super::policy::TokenPolicy;
use crate::model::{Compat, Role};
use crate::units::{Cost, Tokens, float};

/// What was seen of one serving process (several a pod with data parallelism).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Observation<'a> {
    /// Its name.
    pub replica: &'a str,
    /// Its variant.
    pub variant: &'a str,
    /// The accelerator's name; empty when not known.
    pub accelerator: &'a str,
    /// What a replica costs.
    pub cost: Cost,
    /// Peak share of the KV cache in use, 0 to 1.
    pub kv: f64,
    /// U: the same in tokens.
    pub in_use: Tokens,
    /// C: tokens that fit into the KV cache; 0 is not known.
    pub capacity: Tokens,
    /// q: peak waiting requests.
    pub queue: u32,
    /// I: mean prompt tokens of a finished request; 0 when none finished.
    pub prompt: f64,
    /// O: mean generated tokens of a finished request; 0 when none finished.
    pub output: f64,
    /// h: share of prompt tokens found in the prefix cache, 0 to 1.
    pub prefix_hits: f64,
}

impl Observation<'_> {
    /// Without values that no replica can have: they count as zero, and the largest are cut at 2⁶³.
    pub(super) fn cleaned(self) -> Self {
        let tokens = |value: f64| if value.is_finite() { value.clamp(0.0, float(i64::MAX)) } else { 0.0 };
        let prefix_hits = tokens(self.prefix_hits).min(1.0);
        Self {
            kv: tokens(self.kv),
            prompt: tokens(self.prompt),
            output: tokens(self.output),
            prefix_hits,
            ..self
        }
    }
}

/// U: `share` of `capacity` in whole tokens, at most all of it (algorithm reference §1.1).
#[must_use]
pub fn tokens_in_use(share: f64, capacity: Tokens) -> Tokens {
    Tokens::trunc((share * capacity.float()).round()).min(capacity)
}

/// How the bound on resident tokens was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Seen now: requests wait.
    Observed,
    /// Seen before with the same hardware and length of output.
    History,
    /// Seen before with the same hardware and another length of output (ours).
    OtherLength,
    /// Estimated from the engine's arguments.
    Arguments,
    /// Only memory bounds it.
    Memory,
    /// From the variant's record.
    Stored,
}

impl Source {
    /// As in upstream's reports.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Observed => "P1-obs",
            Self::History => "P2-hist",
            Self::OtherLength => "P2-near",
            Self::Arguments => "P3-k2",
            Self::Memory => "P4-k1",
            Self::Stored => "P0-store",
        }
    }
}

impl Serialize for Source {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.label())
    }
}

/// One replica's part in the result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReplicaCapacity<'a> {
    /// Its name.
    pub replica: &'a str,
    /// Its variant.
    pub variant: &'a str,
    /// k1: tokens that may be resident by the threshold on memory.
    pub k1: Tokens,
    /// k2: tokens that were or would be resident when requests queue.
    pub k2: Tokens,
    /// What it can carry: the smaller.
    pub effective: Tokens,
    /// What is asked of it: tokens in use and those of the waiting requests.
    pub demand: Tokens,
    /// Where k2 is from.
    pub source: Source,
    /// At least as much is asked as it can carry.
    pub saturated: bool,
}

/// A replica with what is known of its variant.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen<'a> {
    pub(super) observed: Observation<'a>,
    pub(super) setting: Setting<'a>,
    /// The variant's role, also where its histories are those of all roles.
    pub(super) role: Role,
    /// The variant's place in the input.
    pub(super) place: Option<usize>,
}

impl<'a> Seen<'a> {
    pub(super) fn new(
        one: &Observation<'a>,
        place: Option<usize>,
        variant: Option<&VariantInput<'a>>,
        compat: Compat,
    ) -> Self {
        let (role, gpus) = variant.map_or((Role::Both, 0), |variant| (variant.role, variant.gpus));
        let remembered = if compat.is_upstream() { Role::Both } else { role };
        let observed = one.cleaned();
        let (accelerator, length) = (observed.accelerator, OutputLength::of(observed.output));
        Self { observed, setting: Setting { accelerator, gpus, role: remembered, length }, role, place }
    }

    fn knows_capacity(&self) -> bool {
        self.observed.capacity > Tokens::ZERO
    }
}

/// By whose rules and when.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look<'p> {
    pub(super) policy: &'p TokenPolicy,
    pub(super) compat: Compat,
    pub(super) now: Timestamp,
}

impl Look<'_> {
    /// Every replica in input order, `None` for one of which nothing is known. Upstream learns while it walks, so that an
    /// earlier replica changes a later one; ours learns from all first.
    pub(super) fn replicas<'a>(
        &self,
        seen: &[Seen<'a>],
        knowledge: &mut Knowledge,
    ) -> Vec<Option<ReplicaCapacity<'a>>> {
        if self.compat.is_upstream() {
            return seen.iter().map(|one| self.walk(one, knowledge)).collect();
        }
        let full = seen.iter().filter(|one| one.knows_capacity() && self.at_limit(one));
        knowledge.histories.add_moment(full.map(|one| (one.setting, one.observed.in_use)), self.now);
        let sighted = |one: &Seen<'a>| one.knows_capacity().then(|| self.sighted(one, knowledge));
        let mut found: Vec<_> = seen.iter().map(sighted).collect();
        knowledge.learn_medians(seen, &found, self.now);
        for (slot, one) in found.iter_mut().zip(seen).filter(|(slot, _)| slot.is_none()) {
            *slot = self.blind(one, knowledge);
        }
        found
    }

    fn walk<'a>(&self, one: &Seen<'a>, knowledge: &mut Knowledge) -> Option<ReplicaCapacity<'a>> {
        if !one.knows_capacity() {
            return self.blind(one, knowledge);
        }
        if self.at_limit(one) {
            knowledge.histories.add(one.setting, one.observed.in_use, self.now);
        }
        let found = self.sighted(one, knowledge);
        knowledge.learn(one, found.effective, self.now);
        Some(found)
    }

    /// Requests wait and tokens are resident: that many is what the replica can carry.
    fn at_limit(&self, one: &Seen<'_>) -> bool {
        let queued = f64::from(one.observed.queue) >= self.policy.queue_length_threshold.trunc();
        queued && one.observed.in_use > Tokens::ZERO
    }

    /// A replica that tells its capacity (§3.1).
    fn sighted<'a>(&self, one: &Seen<'a>, knowledge: &Knowledge) -> ReplicaCapacity<'a> {
        let k1 = one.observed.capacity.share(self.policy.kv_cache_threshold);
        let (k2, source) = self.compute_bound(one, k1, knowledge);
        let demand = one.observed.in_use.plus(self.queue_charge(one));
        made(one, (k1, k2), demand, source)
    }

    /// k2 and where it is from.
    fn compute_bound(&self, one: &Seen<'_>, k1: Tokens, knowledge: &Knowledge) -> (Tokens, Source) {
        if self.at_limit(one) {
            return (one.observed.in_use, Source::Observed);
        }
        if let Some(mean) = knowledge.histories.mean(one.setting) {
            return (mean, Source::History);
        }
        let record = knowledge.records.get(one.observed.variant);
        let estimate = record.and_then(|record| record.estimate(one.observed.prompt, one.observed.output));
        // A mean output that crosses a boundary between lengths must not wipe out what saturation taught.
        let remembered = if self.compat.is_upstream() {
            None
        } else {
            knowledge.histories.least_of_other_lengths(one.setting)
        };
        match (remembered, estimate) {
            (Some(seen), estimate) if estimate.is_none_or(|estimate| seen <= estimate) => {
                (seen, Source::OtherLength)
            }
            (_, Some(estimate)) => (estimate, Source::Arguments),
            _ => (k1, Source::Memory),
        }
    }

    /// A replica that does not tell its capacity (§3.2): by the record of its variant, without which nothing is known.
    fn blind<'a>(&self, one: &Seen<'a>, knowledge: &Knowledge) -> Option<ReplicaCapacity<'a>> {
        let record =
            knowledge.records.get(one.observed.variant).filter(|record| record.effective > Tokens::ZERO)?;
        let (effective, resident, source) = if self.compat.is_upstream() {
            let effective = record.effective.share(self.policy.kv_cache_threshold);
            (effective, effective.share(one.observed.kv), Source::Memory)
        } else {
            let (effective, whole) = self.by_record(one, record);
            (effective, tokens_in_use(one.observed.kv, whole), Source::Stored)
        };
        let demand = resident.plus(self.queue_charge(one));
        (effective > Tokens::ZERO).then(|| made(one, (effective, effective), demand, source))
    }

    /// What the replica can carry, and what its whole KV cache holds: the usage is a share of that. A live record has the
    /// threshold in it already; one from arguments without a size knows only the estimate of resident tokens.
    fn by_record(&self, one: &Seen<'_>, record: &Record) -> (Tokens, Tokens) {
        let estimate = record.estimate(one.observed.prompt, one.observed.output);
        let known = Some(record.capacity).filter(|capacity| *capacity > Tokens::ZERO);
        match record.learned {
            Learned::Live => (record.effective, known.unwrap_or(record.effective)),
            Learned::Arguments => {
                let whole = known.or(estimate).unwrap_or(record.effective);
                let k1 = whole.share(self.policy.kv_cache_threshold);
                (estimate.map_or(k1, |estimate| estimate.min(k1)), whole)
            }
        }
    }

    /// Tokens of the waiting requests. June counts their prompts only; August prompts and outputs, except where prompts are
    /// all that is computed, and what does not fit into 63 bits as nothing.
    fn queue_charge(&self, one: &Seen<'_>) -> Tokens {
        const TOO_MANY: f64 = float(i64::MAX);
        if self.compat == Compat::UpstreamJune {
            return Tokens::trunc(one.observed.prompt).times(one.observed.queue);
        }
        let output = if one.role == Role::Prefill { 0.0 } else { one.observed.output };
        let charge = f64::from(one.observed.queue) * (one.observed.prompt + output);
        if self.compat.is_upstream() && charge >= TOO_MANY { Tokens::ZERO } else { Tokens::trunc(charge) }
    }
}

fn made<'a>(
    one: &Seen<'a>,
    (k1, k2): (Tokens, Tokens),
    demand: Tokens,
    source: Source,
) -> ReplicaCapacity<'a> {
    let effective = k1.min(k2);
    let (replica, variant) = (one.observed.replica, one.observed.variant);
    ReplicaCapacity { replica, variant, k1, k2, effective, demand, source, saturated: demand >= effective }
}
