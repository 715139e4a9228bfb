//! Scale to zero and its opposite, the last replica kept: upstream's enforcer, exactly. Not who may call it: that every
//! variant of the model has a minimum of 0 and that idleness was measured is for the caller to know.

use smol_str::SmolStr;

use crate::units::{Cost, Replicas};

/// One variant's number before and after.
#[derive(Debug, Clone, PartialEq)]
pub struct Enforced {
    /// The variant's name.
    pub name: SmolStr,
    /// Its number.
    pub target: Replicas,
    /// What a replica costs.
    pub cost: Cost,
}

/// What was done to the numbers of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Unchanged,
    /// All of them are 0 now.
    ToZero,
    /// All were 0; the variant at this position has 1 now.
    KeptOne(usize),
}

/// What a cost of 0 counts as when the cheapest is chosen: the custom resource's default.
const UNSET_COST: f64 = crate::model::Variant::DEFAULT_COST;

/// `requests` are those of the retention period; `None` is not known, and then nothing is taken away.
pub fn enforce(decisions: &mut [Enforced], enabled: bool, requests: Option<f64>) -> Action {
    if enabled {
        if requests.is_none_or(|seen| seen > 0.0) {
            return Action::Unchanged;
        }
        for decision in decisions {
            decision.target = Replicas::ZERO;
        }
        return Action::ToZero;
    }
    if decisions.iter().any(|decision| decision.target > Replicas::ZERO) {
        return Action::Unchanged;
    }
    let Some(kept) = cheapest(decisions) else { return Action::Unchanged };
    decisions[kept].target = Replicas::ONE;
    Action::KeptOne(kept)
}

fn cheapest(decisions: &[Enforced]) -> Option<usize> {
    let cost = |one: &Enforced| if one.cost.get() > 0.0 { one.cost.get() } else { UNSET_COST };
    let order = |a: &Enforced, b: &Enforced| cost(a).total_cmp(&cost(b)).then_with(|| a.name.cmp(&b.name));
    decisions.iter().enumerate().min_by(|(_, a), (_, b)| order(a, b)).map(|(position, _)| position)
}
