//! Which sleeping variants a waiting request wakes. Source: algorithm reference §8; in one page:
//! `docs/decisions/scale-from-zero.md`. Not how a sample finds its model: the product's input edges do that by the same rule,
//! and [`pending`] is the rule by itself, for comparison with upstream.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use crate::model::{Bounds, Compat, Role};
use crate::units::{Cost, Replicas};
use smol_str::SmolStr;

/// One sample of the scheduler's queue size.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Held {
    /// Its label `model_name`; empty when it has none.
    pub model: String,
    /// Its label `target_model_name`, the model after a rewrite of the name; empty when it has none.
    pub target_model: String,
    /// Requests.
    pub value: f64,
}

/// Whether a request for `model` waits. A sample counts for its target model; one without a target for its model, which
/// upstream overlooks.
#[must_use]
pub fn pending(model: &str, samples: &[Held], compat: Compat) -> bool {
    let meant = |one: &Held| {
        one.target_model == model
            || (!compat.is_upstream() && one.target_model.is_empty() && one.model == model)
    };
    samples.iter().any(|one| meant(one) && one.value > 0.0)
}

/// One variant of the model that somebody wants.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// Its name.
    pub name: SmolStr,
    /// Its role.
    pub role: Role,
    /// `spec.replicas` of its target: 0 is asleep.
    pub replicas: Replicas,
    /// What a replica costs.
    pub cost: Cost,
    /// What a replica can carry; `None` when that is not known.
    pub per_replica: Option<f64>,
    /// Its bounds.
    pub bounds: Bounds,
}

impl Candidate {
    fn asleep(&self) -> bool {
        self.replicas == Replicas::ZERO
    }

    fn may_run(&self) -> bool {
        self.bounds.clamp(Replicas::ONE) >= Replicas::ONE
    }
}

/// The positions of the candidates to wake, ascending: of each role of which nothing runs, the one whose replica costs
/// least for what it carries. Upstream wakes every sleeper. `decide` asks about one role at a time.
#[must_use]
pub fn woken(candidates: &[Candidate], compat: Compat) -> Vec<usize> {
    if compat.is_upstream() {
        return positions(candidates, Candidate::asleep);
    }
    let roles: BTreeSet<Role> = candidates.iter().map(|one| one.role).collect();
    let mut chosen: Vec<usize> = roles.into_iter().filter_map(|role| cheapest(candidates, role)).collect();
    chosen.sort_unstable();
    chosen
}

fn positions(candidates: &[Candidate], wanted: impl Fn(&Candidate) -> bool) -> Vec<usize> {
    candidates.iter().enumerate().filter(|(_, one)| wanted(one)).map(|(position, _)| position).collect()
}

fn cheapest(candidates: &[Candidate], role: Role) -> Option<usize> {
    let members = positions(candidates, |one| one.role == role);
    if members.iter().any(|position| !candidates[*position].asleep()) {
        return None;
    }
    let able: Vec<(usize, &Candidate)> =
        members.into_iter().map(|at| (at, &candidates[at])).filter(|(_, one)| one.may_run()).collect();
    // A price for what is carried and a bare price cannot be compared: one unknown makes all of them bare.
    let known = able.iter().all(|(_, one)| one.per_replica.is_some_and(|carried| carried > 0.0));
    let price = |one: &Candidate| {
        let carried = one.per_replica.filter(|_| known).unwrap_or(1.0);
        one.cost.get() / carried
    };
    let order = |a: &Candidate, b: &Candidate| -> Ordering {
        price(a).total_cmp(&price(b)).then_with(|| a.name.cmp(&b.name))
    };
    able.into_iter().min_by(|(_, a), (_, b)| order(a, b)).map(|(position, _)| position)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGE: &str = include_str!("../../../docs/decisions/scale-from-zero.md");

    fn variant(name: &str, cost: f64, per_replica: Option<f64>) -> Candidate {
        let (cost, bounds) = (Cost::new(cost).unwrap(), Bounds { min: Replicas::ZERO, max: None });
        Candidate { name: name.into(), role: Role::Both, replicas: Replicas::ZERO, cost, per_replica, bounds }
    }

    fn names(candidates: &[Candidate], compat: Compat) -> Vec<&str> {
        woken(candidates, compat).into_iter().map(|position| candidates[position].name.as_str()).collect()
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
    fn of_a_role_that_runs_already_nothing_is_woken() {
        let mut all = [variant("a", 1.0, None), variant("b", 2.0, None)];
        all[1].replicas = Replicas::ONE;
        assert_eq!(names(&all, Compat::Corrected), [""; 0]);
        assert_eq!(names(&all, Compat::Upstream), ["a"]);
    }

    #[test]
    fn each_role_wakes_its_own_cheapest() {
        let mut all = [variant("p", 3.0, None), variant("d", 2.0, None), variant("e", 1.0, None)];
        all[0].role = Role::Prefill;
        all[1].role = Role::Decode;
        all[2].role = Role::Decode;
        assert_eq!(names(&all, Compat::Corrected), ["p", "e"]);
    }

    #[test]
    fn a_variant_that_may_not_run_is_passed_over() {
        let mut all = [variant("a", 1.0, None), variant("b", 2.0, None)];
        all[0].bounds.max = Some(Replicas::ZERO);
        assert_eq!(names(&all, Compat::Corrected), ["b"]);
    }

    #[test]
    fn a_capacity_of_nothing_is_not_known_and_ties_go_by_name() {
        let known = [variant("b", 6.0, Some(3.0)), variant("a", 9.0, Some(9.0))];
        assert_eq!(names(&known, Compat::Corrected), ["a"]);
        let unknown =
            [variant("b", 6.0, Some(3.0)), variant("a", 9.0, Some(9.0)), variant("c", 7.0, Some(0.0))];
        assert_eq!(names(&unknown, Compat::Corrected), ["b"], "bare prices are compared");
        let equal = [variant("b", 2.0, None), variant("a", 2.0, None)];
        assert_eq!(names(&equal, Compat::Corrected), ["a"]);
    }

    #[test]
    fn a_sample_without_a_target_counts_for_its_model() {
        let held = [Held { model: "m".into(), target_model: String::new(), value: 5.0 }];
        assert!(pending("m", &held, Compat::Corrected));
        assert!(!pending("m", &held, Compat::Upstream));
        let nothing = [Held { value: 0.0, ..held[0].clone() }];
        assert!(!pending("m", &nothing, Compat::Corrected), "nothing waits");
        assert!(!pending("n", &held, Compat::Corrected));
        let elsewhere = [Held { model: "m".into(), target_model: "n".into(), value: 5.0 }];
        assert!(!pending("m", &elsewhere, Compat::Corrected));
    }

    proptest! {
        #![proptest_config(crate::cases::quick())]

        #[test]
        fn the_choice_does_not_depend_on_the_order(
            costs in proptest::collection::vec((0.0..9.0_f64, proptest::option::of(0.0..9.0_f64), 0_u32..2), 0..6),
        ) {
            let build = |(index, (cost, carried, replicas)): (usize, &(f64, Option<f64>, u32))| Candidate {
                replicas: Replicas::new(*replicas),
                ..variant(&index.to_string(), *cost, *carried)
            };
            let all: Vec<Candidate> = costs.iter().enumerate().map(build).collect();
            let turned: Vec<Candidate> = all.iter().rev().cloned().collect();
            let chosen = names(&all, Compat::Corrected);
            prop_assert_eq!(&chosen, &names(&turned, Compat::Corrected));
            prop_assert!(chosen.len() <= 1);
            prop_assert_eq!(chosen.is_empty(), all.is_empty() || all.iter().any(|one| !one.asleep()));
        }
    }
}
