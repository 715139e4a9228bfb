//! The finding of a capacity analyzer about one model, and the rule that derives missing and spare capacity from it.

use std::collections::{BTreeMap, BTreeSet};

use smol_str::SmolStr;

use crate::model::{Analyzer, Role};
use crate::units::{Cost, Replicas};

/// An analyzer keeps its vote about removals for this many cycles after its last informative result. As upstream (WVA v0.9).
pub(crate) const LIVE_CYCLES: f64 = 3.0;

/// What one analyzer found of one model. Supply, demand and capacity share the analyzer's own unit (tokens, tokens/s, requests/s):
/// only ratios of two analyzers can be compared.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Finding {
    pub analyzer: Analyzer,
    /// Its weight among the analyzers of the model, at least 0.
    pub score: f64,
    /// Its last informative result is at most three cycles old. Only then may it veto or limit a removal.
    pub live: bool,
    pub total: Totals,
    /// By role; empty if no variant has a role other than [`Role::Both`].
    pub roles: BTreeMap<Role, Totals>,
    /// By variant, in input order.
    pub variants: Vec<VariantCapacity>,
}

impl Finding {
    /// No variant's capacity is known.
    pub(crate) fn is_silent(&self) -> bool {
        self.variants.iter().all(|variant| variant.per_replica <= 0.0)
    }

    /// The same with at most the spare capacity of `cautious`, the finding in which unmeasured pods are as loaded as the busiest measured one.
    pub(crate) fn with_spare_of(mut self, cautious: &Self) -> Self {
        self.total.spare = self.total.spare.min(cautious.total.spare);
        for (role, totals) in &mut self.roles {
            totals.spare = cautious.roles.get(role).map_or(0.0, |cautious| totals.spare.min(cautious.spare));
        }
        self
    }

    /// The same without spare capacity in the roles of variants whose capacity is known but `is_outdated`. Without demand any capacity is
    /// enough, so the spare capacity stays.
    pub(crate) fn without_spare_of(mut self, is_outdated: impl Fn(&SmolStr) -> bool) -> Self {
        let outdated: Vec<Role> = self
            .variants
            .iter()
            .filter(|variant| variant.per_replica > 0.0 && is_outdated(&variant.name))
            .map(|variant| variant.role)
            .collect();
        let has_demand = |totals: &Totals| totals.demand > 0.0;
        if !outdated.is_empty() && has_demand(&self.total) {
            self.total.spare = 0.0;
        }
        for (role, totals) in &mut self.roles {
            if outdated.contains(role) && has_demand(totals) {
                totals.spare = 0.0;
            }
        }
        self
    }

    /// The demand at which the result for `role` would change. `None` is the whole model, and so is any role if variants have no roles. The
    /// capacity of a replica is that of the smallest one that serves.
    pub(crate) fn turning_points(&self, role: Option<Role>, up: f64, down: f64) -> TurningPoints {
        let (totals, role) = match role.and_then(|role| self.roles.get(&role).zip(Some(role))) {
            Some((totals, role)) => (totals, Some(role)),
            None => (&self.total, None),
        };
        let serving = self.variants.iter().filter(|variant| variant.replicas > Replicas::ZERO);
        let of_role = serving.filter(|variant| variant.is_of(role));
        let capacities = of_role.map(|variant| variant.per_replica).filter(|capacity| *capacity > 0.0);
        totals.turning_points(capacities.min_by(f64::total_cmp).unwrap_or_default(), up, down)
    }
}

/// Sums over a model or over one of its roles.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Totals {
    /// What the serving replicas can carry.
    pub supply: f64,
    /// The same with the replicas that are still starting.
    pub anticipated: f64,
    pub demand: f64,
    /// What is missing, at least 0.
    pub required: f64,
    /// What could go, at least 0.
    pub spare: f64,
}

impl Totals {
    /// The totals of all `variants` and, if one of them has a role of its own, of each role: `of(None)` and `of(Some(role))`.
    pub(crate) fn by_role(
        variants: &[VariantCapacity],
        of: impl Fn(Option<Role>) -> Self,
    ) -> (Self, BTreeMap<Role, Self>) {
        let roles: BTreeSet<Role> = variants.iter().map(|variant| variant.role).collect();
        let has_roles = roles.iter().any(|role| *role != Role::Both);
        let roles = roles.into_iter().filter(|_| has_roles);
        (of(None), roles.map(|role| (role, of(Some(role)))).collect())
    }

    /// Adds a variant's replicas, not its demand.
    pub(crate) fn add_capacity(&mut self, variant: &VariantCapacity) {
        let existing = variant.replicas.get().saturating_add(variant.pending.get());
        self.supply += variant.total();
        self.anticipated += f64::from(existing) * variant.per_replica;
    }

    /// Computes what is missing above a utilisation of `up`, and what is spare below one of `down`. A threshold of 0 or less leaves its side as
    /// it was. Starting replicas reduce what is missing, so that it is not ordered twice, but do not count as spare, because they serve nothing
    /// yet. Source: WVA v0.9, `internal/engines/saturation/engine_v2.go`.
    pub(crate) fn apply_thresholds(self, up: f64, down: f64) -> Self {
        let required = if up > 0.0 { (self.demand / up - self.anticipated).max(0.0) } else { self.required };
        let spare = if down > 0.0 { (self.supply - self.demand / down).max(0.0) } else { self.spare };
        Self { required, spare, ..self }
    }

    /// The same with `share` of the demand.
    pub(crate) fn with_share(self, share: f64, up: f64, down: f64) -> Self {
        Self { demand: self.demand * share, ..self }.apply_thresholds(up, down)
    }

    /// The demand at which the result of [`Totals::apply_thresholds`] would change, all else equal; `per_replica` is what one replica
    /// carries.
    pub(crate) fn turning_points(&self, per_replica: f64, up: f64, down: f64) -> TurningPoints {
        let is_removable = per_replica > 0.0 && self.supply >= per_replica;
        TurningPoints {
            required_above: (up > 0.0).then_some(self.anticipated * up),
            spare_below: (down > 0.0 && is_removable).then_some((self.supply - per_replica) * down),
        }
    }
}

/// The demands at which an analyzer would find something else.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TurningPoints {
    /// Above this demand something is missing; `None` if nothing ever is.
    pub required_above: Option<f64>,
    /// Up to this demand at least one replica is spare; `None` if no demand is low enough.
    pub spare_below: Option<f64>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct VariantCapacity {
    pub name: SmolStr,
    pub role: Role,
    pub accelerator: Option<SmolStr>,
    pub cost: Cost,
    /// Replicas (or engines, where these are counted) that serve.
    pub replicas: Replicas,
    /// Those that are still starting.
    pub pending: Replicas,
    /// What one replica carries; 0 is unknown.
    pub per_replica: f64,
    pub demand: f64,
    /// How `per_replica` was found, a short label.
    pub reason: SmolStr,
}

impl VariantCapacity {
    /// It is of `role`; `None` is any.
    pub(crate) fn is_of(&self, role: Option<Role>) -> bool {
        role.is_none_or(|role| self.role == role)
    }

    /// What all its serving replicas can carry.
    pub(crate) fn total(&self) -> f64 {
        f64::from(self.replicas.get()) * self.per_replica
    }

    /// Demand by capacity; 0 without capacity.
    #[cfg(test)]
    pub(crate) fn utilisation(&self) -> f64 {
        let total = self.total();
        if total > 0.0 { self.demand / total } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp, reason = "exact by construction")]

    use super::*;

    const FOUND: Totals =
        Totals { supply: 400.0, anticipated: 500.0, demand: 340.0, required: 7.0, spare: 9.0 };

    #[test]
    fn missing_is_beyond_the_upper_utilisation_and_spare_below_the_lower_one() {
        let apply_thresholds = |demand: f64| {
            let Totals { required, spare, .. } = Totals { demand, ..FOUND }.apply_thresholds(0.8, 0.5);
            (required, spare)
        };
        assert_eq!([600.0, 400.0, 300.0].map(apply_thresholds), [(250.0, 0.0), (0.0, 0.0), (0.0, 0.0)]);
        assert_eq!([200.0, 100.0, 0.0].map(apply_thresholds), [(0.0, 0.0), (0.0, 200.0), (0.0, 400.0)]);
        let without_threshold = [(0.0, 0.0), (-1.0, -1.0), (0.85, 0.0), (0.0, 0.85)];
        assert_eq!(
            without_threshold.map(|(up, down)| FOUND.apply_thresholds(up, down)),
            [FOUND, FOUND, Totals { required: 0.0, ..FOUND }, Totals { spare: 0.0, ..FOUND }],
            "a threshold of nothing leaves its side as it was"
        );
    }

    #[test]
    fn the_turning_points_are_where_something_gets_missing_and_a_replica_gets_spare() {
        let points = |worth, up, down| {
            let TurningPoints { required_above, spare_below } = FOUND.turning_points(worth, up, down);
            (required_above, spare_below)
        };
        assert_eq!(points(100.0, 0.8, 0.5), (Some(400.0), Some(150.0)));
        assert_eq!(points(400.0, 0.8, 0.5), (Some(400.0), Some(0.0)), "the last is spare without demand");
        assert_eq!(points(401.0, 0.8, 0.5), (Some(400.0), None), "there is no whole replica");
        assert_eq!(points(0.0, 0.8, 0.5), (Some(400.0), None), "what a replica carries is not known");
        assert_eq!(points(100.0, 0.0, 0.0), (None, None));
    }

    #[test]
    fn a_variants_utilisation_is_its_demand_by_what_all_its_replicas_carry() {
        let shown = |replicas, per_replica| {
            let capacity = VariantCapacity {
                name: "v".into(),
                role: Role::Both,
                accelerator: None,
                cost: Cost::ZERO,
                replicas: Replicas::new(replicas),
                pending: Replicas::new(5),
                per_replica,
                demand: 30.0,
                reason: SmolStr::default(),
            };
            [capacity.total(), capacity.utilisation()]
        };
        assert_eq!([shown(4, 10.0), shown(0, 10.0), shown(4, 0.0)], [[40.0, 0.75], [0.0, 0.0], [0.0, 0.0]]);
    }
}
