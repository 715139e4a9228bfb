//! What is left of every limit while replicas are handed out.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::budget::{Claim, Footprint, Limit};
use crate::units::{to_f64, truncated_i64};

/// A limit that allowed fewer replicas than were proposed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Binding {
    /// The limit's name.
    pub limit: SmolStr,
    /// Which of its budgets: an accelerator, a namespace and an accelerator, the cluster, or `unknown`.
    pub key: SmolStr,
    /// How much there is, in the limit's unit.
    pub budget: f64,
    /// How much of it is used.
    pub used: f64,
    /// How much of that is used by workloads outside of this decision.
    #[serde(default)]
    pub elsewhere: f64,
    /// How much is left, at least 0.
    pub free: f64,
}

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, key, budget, used, elsewhere, free } = self;
        write!(f, "{limit} of {key}: {free:.1} of {budget:.1} free, {used:.1} used")?;
        if *elsewhere > 0.0 {
            write!(f, ", {elsewhere:.1} of these by others")?;
        }
        Ok(())
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Ledger<'a> {
    limits: &'a [Limit],
    used: Vec<BTreeMap<SmolStr, f64>>,
}

/// Share of a budget that counts as a rounding error: three replicas of 0.1 must fit into 0.3, although 3 × 0.1 > 0.3 in floats.
const ROUNDING: f64 = 1e-9;

impl<'a> Ledger<'a> {
    /// A ledger of `usage`, replicas by their footprint, and of what workloads outside of the decision use.
    pub(crate) fn new<'b>(
        limits: &'a [Limit],
        usage: impl IntoIterator<Item = (Footprint<'b>, i64)>,
    ) -> Self {
        let used = limits.iter().map(|limit| limit.elsewhere.clone()).collect();
        let mut ledger = Self { limits, used };
        for (replica, count) in usage {
            ledger.take(&replica, count);
        }
        ledger
    }

    /// How many more such replicas fit, and the first limit that allows no more; `i64::MAX` if nothing limits them.
    pub(crate) fn room(&self, replica: &Footprint<'_>) -> (i64, Option<Binding>) {
        let mut least = (i64::MAX, None);
        for (index, limit) in self.limits.iter().enumerate() {
            let Some(claim) = limit.claim(replica) else { continue };
            // A resource that a replica does not use does not limit it, and a division by 0 says nothing.
            if claim.per_replica <= 0.0 {
                continue;
            }
            let used = self.used(index, &claim.key);
            let free = (claim.budget - used).max(0.0);
            let fit = truncated_i64((free + ROUNDING * claim.budget.max(1.0)) / claim.per_replica);
            if fit < least.0 {
                let Claim { key, budget, .. } = claim;
                let elsewhere = limit.elsewhere.get(&key).copied().unwrap_or(0.0);
                let binding = Binding { limit: limit.name.clone(), key, budget, used, elsewhere, free };
                least = (fit, Some(binding));
            }
        }
        least
    }

    /// What is used of the budget `key` of the limit at this index.
    pub(super) fn used(&self, limit: usize, key: &str) -> f64 {
        self.used[limit].get(key).copied().unwrap_or(0.0)
    }

    /// Counts `count` such replicas as used; a negative count puts them back.
    pub(crate) fn take(&mut self, replica: &Footprint<'_>, count: i64) {
        for (limit, uses) in self.limits.iter().zip(&mut self.used) {
            if let Some(claim) = limit.claim(replica) {
                *uses.entry(claim.key).or_insert(0.0) += claim.per_replica * to_f64(count);
            }
        }
    }
}
