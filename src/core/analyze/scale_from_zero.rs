//! Which variants at zero replicas a waiting request wakes. Derived from WVA v0.9, `internal/engines/scalefromzero/engine.go`.
//! `docs/decisions/scale-from-zero.md` explains it on one page.

use std::collections::BTreeSet;

use smol_str::SmolStr;

use crate::model::{Bounds, Role};
use crate::units::{Cost, Replicas};

/// One variant of a model for which requests wait.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WakeCandidate {
    pub name: SmolStr,
    pub role: Role,
    /// `spec.replicas` of its target; 0 is asleep.
    pub replicas: Replicas,
    pub cost: Cost,
    /// The capacity of a replica; `None` if it is not known.
    pub per_replica: Option<f64>,
    pub bounds: Bounds,
}

impl WakeCandidate {
    pub(crate) fn is_asleep(&self) -> bool {
        self.replicas == Replicas::ZERO
    }

    fn may_run(&self) -> bool {
        self.bounds.clamp(Replicas::ONE) >= Replicas::ONE
    }
}

/// The indices of the candidates to wake, ascending: for each role without replicas, the candidate whose replica costs least for its capacity.
pub(crate) fn woken(candidates: &[WakeCandidate]) -> Vec<usize> {
    let roles: BTreeSet<Role> = candidates.iter().map(|candidate| candidate.role).collect();
    let mut woken: Vec<usize> = roles.into_iter().filter_map(|role| cheapest(candidates, role)).collect();
    woken.sort_unstable();
    woken
}

/// `None` if a candidate of `role` runs already.
fn cheapest(candidates: &[WakeCandidate], role: Role) -> Option<usize> {
    let of_role: Vec<usize> = (0..candidates.len()).filter(|index| candidates[*index].role == role).collect();
    if of_role.iter().any(|index| !candidates[*index].is_asleep()) {
        return None;
    }
    let able: Vec<usize> = of_role.into_iter().filter(|index| candidates[*index].may_run()).collect();
    // A cost of capacity and a cost alone cannot be compared. If one capacity is not known, the costs alone are compared.
    let is_known = |index: &usize| candidates[*index].per_replica.is_some_and(|carried| carried > 0.0);
    let all_known = able.iter().all(is_known);
    let price = |index: usize| {
        let carried = candidates[index].per_replica.filter(|_| all_known).unwrap_or(1.0);
        candidates[index].cost.get() / carried
    };
    able.into_iter().min_by(|left, right| {
        let by_price = price(*left).total_cmp(&price(*right));
        by_price.then_with(|| candidates[*left].name.cmp(&candidates[*right].name))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::arithmetic;
    use crate::model::Compat;

    const PAGE: &str = include_str!("../../../docs/decisions/scale-from-zero.md");

    fn variant(name: &str, cost: f64, per_replica: Option<f64>) -> WakeCandidate {
        let (name, cost) = (name.into(), Cost::new(cost).unwrap());
        let bounds = Bounds { min: Replicas::ZERO, max: None };
        WakeCandidate { name, role: Role::Both, replicas: Replicas::ZERO, cost, per_replica, bounds }
    }

    fn names(candidates: &[WakeCandidate], compat: Compat) -> Vec<&str> {
        let woken = arithmetic::woken(candidates, compat).into_iter();
        woken.map(|index| candidates[index].name.as_str()).collect()
    }

    #[test]
    fn the_page_says_what_the_code_chooses() {
        let mut all = [
            variant("large", 40.0, Some(9000.0)),
            variant("small", 10.0, Some(2000.0)),
            variant("tiny", 4.0, Some(500.0)),
        ];
        let known = names(&all, Compat::Corrected).join(", ");
        all[0].per_replica = None;
        let unknown = names(&all, Compat::Corrected).join(", ");
        let upstream = names(&all, Compat::Upstream).join(", ");
        let says = format!("wakes {known}; with one capacity unknown {unknown}; upstream {upstream}");
        assert!(PAGE.contains(&says), "the page does not say {says:?}");
    }

    #[test]
    fn each_sleeping_role_wakes_its_own_cheapest_variant_that_may_run() {
        let mut running = [variant("a", 1.0, None), variant("b", 2.0, None)];
        running[1].replicas = Replicas::ONE;
        assert_eq!(names(&running, Compat::Corrected), [""; 0], "the role runs already");
        assert_eq!(names(&running, Compat::Upstream), ["a"]);
        let roles = [("p", 3.0, Role::Prefill), ("d", 2.0, Role::Decode), ("e", 1.0, Role::Decode)];
        let roles = roles.map(|(name, cost, role)| WakeCandidate { role, ..variant(name, cost, None) });
        assert_eq!(names(&roles, Compat::Corrected), ["p", "e"]);
        let mut stopped = [variant("a", 1.0, None), variant("b", 2.0, None)];
        stopped[0].bounds.max = Some(Replicas::ZERO);
        assert_eq!(names(&stopped, Compat::Corrected), ["b"]);
    }

    #[test]
    fn a_capacity_of_nothing_is_not_known_and_ties_go_by_name() {
        let mut known = vec![variant("b", 6.0, Some(3.0)), variant("a", 9.0, Some(9.0))];
        assert_eq!(names(&known, Compat::Corrected), ["a"]);
        known.push(variant("c", 7.0, Some(0.0)));
        assert_eq!(names(&known, Compat::Corrected), ["b"], "bare prices are compared");
        let equal = [variant("b", 2.0, None), variant("a", 2.0, None)];
        assert_eq!(names(&equal, Compat::Corrected), ["a"]);
    }

    proptest! {
        #![proptest_config(crate::tests::support::cases::quick())]

        #[test]
        fn the_choice_does_not_depend_on_the_order(
            costs in proptest::collection::vec((0.0..9.0_f64, proptest::option::of(0.0..9.0_f64), 0_u32..2), 0..6),
        ) {
            let build = |(index, (cost, carried, replicas)): (usize, &(f64, Option<f64>, u32))| WakeCandidate {
                replicas: Replicas::new(*replicas),
                ..variant(&index.to_string(), *cost, *carried)
            };
            let all: Vec<WakeCandidate> = costs.iter().enumerate().map(build).collect();
            let turned: Vec<WakeCandidate> = all.iter().rev().cloned().collect();
            let chosen = names(&all, Compat::Corrected);
            prop_assert_eq!(&chosen, &names(&turned, Compat::Corrected));
            prop_assert!(chosen.len() <= 1);
            prop_assert_eq!(chosen.is_empty(), all.is_empty() || all.iter().any(|candidate| !candidate.is_asleep()));
        }
    }
}
