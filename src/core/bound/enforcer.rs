//! Scaling to zero, and keeping the last replica if it is off: exactly as upstream's enforcer. The caller ensures that every variant of the model
//! has a minimum of 0, and that idleness was measured.

use smol_str::SmolStr;

use crate::units::{Cost, Replicas};

/// One variant's number before and after.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Enforced {
    /// The variant's name.
    pub name: SmolStr,
    /// Its number.
    pub target: Replicas,
    /// What a replica costs.
    pub cost: Cost,
}

/// What was done to the numbers of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Nothing.
    Unchanged,
    /// All of them are 0 now.
    ToZero,
    /// All were 0; the variant at this position has 1 now.
    KeptOne(usize),
}

/// When the cheapest is chosen, a cost of 0 counts as the default of the custom resource.
const UNSET_COST: f64 = crate::model::Variant::DEFAULT_COST;

/// Sets all numbers to 0 if scaling to zero is `enabled` and the retention period had no `requests` (`None`: not known, so nothing changes). If it
/// is not, the cheapest variant keeps a replica.
pub(crate) fn enforce(decisions: &mut [Enforced], enabled: bool, requests: Option<f64>) -> Action {
    if enabled {
        if requests.is_none_or(|requests| requests > 0.0) {
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
    let cost = |variant: &Enforced| if variant.cost.get() > 0.0 { variant.cost.get() } else { UNSET_COST };
    let order = |a: &Enforced, b: &Enforced| cost(a).total_cmp(&cost(b)).then_with(|| a.name.cmp(&b.name));
    decisions.iter().enumerate().min_by(|(_, a), (_, b)| order(a, b)).map(|(position, _)| position)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decisions(of: &[(&str, u32, f64)]) -> Vec<Enforced> {
        let enforced = |(name, target, cost): &(&str, u32, f64)| {
            let (target, cost) = (Replicas::new(*target), Cost::new(*cost).unwrap());
            Enforced { name: (*name).into(), target, cost }
        };
        of.iter().map(enforced).collect()
    }

    fn kept(of: &[(&str, u32, f64)]) -> Action {
        let mut all = decisions(of);
        let action = enforce(&mut all, false, Some(0.0));
        let numbers: Vec<_> = all.iter().map(|variant| variant.target).collect();
        if let Action::KeptOne(at) = action {
            assert_eq!(numbers.iter().position(|number| *number == Replicas::ONE), Some(at));
        }
        action
    }

    #[test]
    fn the_cheapest_keeps_its_replica_and_a_cost_of_nothing_is_the_default_cost() {
        assert_eq!(kept(&[("a", 0, 3.0), ("b", 0, 2.0)]), Action::KeptOne(1));
        assert_eq!(kept(&[("a", 0, 0.0), ("b", 0, 9.0)]), Action::KeptOne(1));
        assert_eq!(kept(&[("b", 0, 11.0), ("a", 0, 0.0)]), Action::KeptOne(1));
    }

    #[test]
    fn where_something_runs_or_there_is_nothing_at_all_nothing_is_done() {
        assert_eq!(kept(&[("a", 0, 3.0), ("b", 1, 2.0)]), Action::Unchanged);
        assert_eq!(kept(&[]), Action::Unchanged);
    }

    #[test]
    fn only_a_measured_nothing_sends_a_model_to_sleep() {
        let enforced = |requests| {
            let mut all = decisions(&[("a", 2, 3.0)]);
            (enforce(&mut all, true, requests), all[0].target.get())
        };
        assert_eq!(enforced(Some(0.0)), (Action::ToZero, 0));
        assert_eq!(enforced(Some(0.01)), (Action::Unchanged, 2));
        assert_eq!(enforced(None), (Action::Unchanged, 2));
    }
}
