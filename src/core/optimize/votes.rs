//! Which roles need capacity and which have some to spare, according to each finding.

use super::OptimizerStep;
use super::plan_builder::{PlanBuilder, quantity};
use crate::analyze::finding::{Finding, Totals, VariantCapacity};
use crate::model::Role;
use crate::report::Vote;
use crate::units::{count, to_f64};

/// A number for each role that has one, at the position of the role in [`Role::ALL`].
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct ByRole([Option<f64>; Role::ALL.len()]);

impl ByRole {
    /// `as usize` of a fieldless enum is its position among the variants, and [`Role::ALL`] has their order.
    const fn position(role: Role) -> usize {
        role as usize
    }

    pub(crate) fn get(&self, role: Role) -> f64 {
        self.0[Self::position(role)].unwrap_or(0.0)
    }

    pub(crate) const fn has(&self, role: Role) -> bool {
        self.0[Self::position(role)].is_some()
    }

    pub(crate) const fn set(&mut self, role: Role, value: f64) {
        self.0[Self::position(role)] = Some(value);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Role, f64)> {
        Role::ALL.into_iter().zip(self.0).filter_map(|(role, value)| Some((role, value?)))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = f64> {
        self.0.into_iter().flatten()
    }

    pub(crate) fn map(self, change: impl Fn(f64) -> f64) -> Self {
        Self(self.0.map(|value| value.map(&change)))
    }
}

impl FromIterator<(Role, f64)> for ByRole {
    fn from_iter<I: IntoIterator<Item = (Role, f64)>>(pairs: I) -> Self {
        let mut by_role = Self::default();
        pairs.into_iter().for_each(|(role, value)| by_role.set(role, value));
        by_role
    }
}

#[derive(Debug)]
pub(crate) struct Votes {
    pub(crate) roles: Vec<Role>,
    /// By finding, in its unit.
    pub(crate) need: Vec<ByRole>,
    /// By finding, in its unit.
    pub(crate) spare: Vec<ByRole>,
}

impl Votes {
    pub(super) fn attribute(builder: &mut PlanBuilder<'_>) -> Self {
        let findings = 0..builder.request.findings.len();
        let (need, spare) = findings
            .map(|finding| attribute(builder, finding))
            .map(|Attribution { need, spare }| (need, spare))
            .unzip();
        let votes = Self { roles: builder.roles().collect(), need, spare };
        votes.report(builder);
        votes
    }

    /// Notes the votes in the steps of `builder`. A single finding about a single role needs no note: it says the same.
    pub(crate) fn report(&self, builder: &mut PlanBuilder<'_>) {
        let findings = &builder.request.findings;
        if findings.len() <= 1 && self.roles.len() <= 1 {
            return;
        }
        for role in &self.roles {
            let votes = findings.iter().zip(&self.need).zip(&self.spare);
            let votes = votes.map(|((finding, need), spare)| Vote {
                analyzer: finding.analyzer,
                missing: need.get(*role),
                spare: spare.get(*role),
            });
            builder.steps.push(OptimizerStep::Votes { role: *role, votes: votes.collect() });
        }
    }

    /// Some role needs capacity. Then nothing is removed from any role.
    pub(crate) fn has_need(&self) -> bool {
        self.need.iter().flat_map(ByRole::values).any(|need| need > 0.0)
    }
}

/// What one finding says about each role.
struct Attribution {
    need: ByRole,
    spare: ByRole,
}

/// Attributes the finding at `index` to the roles that exist.
///
/// The totals of a finding that names none of them are divided: the need by its demand in each role, the spare capacity by its supply beyond
/// demand, and both equally if it knows neither. The parts add up to the total, so that a finding without roles cannot block a model with
/// roles. Roles whose capacity it does not know get nothing.
fn attribute(builder: &PlanBuilder<'_>, index: usize) -> Attribution {
    let finding = &builder.request.findings[index];
    let total = finding.total;
    let mut roles = builder.roles();
    if let (Some(only), None) = (roles.next(), roles.next())
        && finding.roles.is_empty()
    {
        let whole = |value| [(only, quantity(value))].into_iter().collect();
        return Attribution { need: whole(total.required), spare: whole(total.spare) };
    }
    if builder.roles().any(|role| finding.roles.contains_key(&role)) {
        let by_role = |value: fn(&Totals) -> f64| -> ByRole {
            let of = |role| finding.roles.get(&role).map_or(0.0, |totals| quantity(value(totals)));
            builder.roles().map(|role| (role, of(role))).collect()
        };
        let (need, spare) = (by_role(|totals| totals.required), by_role(|totals| totals.spare));
        return Attribution { need, spare };
    }
    let is_known =
        |role: &Role| builder.candidates_of(*role).any(|candidate| builder.capacity[index][candidate] > 0.0);
    let mut known: Vec<Role> = builder.roles().filter(is_known).collect();
    if known.is_empty() {
        known = builder.roles().collect();
    }
    let demand = sum_by_role(builder, finding, &known, |variant| variant.demand);
    let supply = sum_by_role(builder, finding, &known, VariantCapacity::total);
    let surplus: Vec<f64> =
        supply.iter().zip(&demand).map(|(supply, demand)| quantity(supply - demand)).collect();
    Attribution {
        need: divide(total.required, &known, &demand),
        spare: divide(total.spare, &known, &surplus),
    }
}

fn sum_by_role(
    builder: &PlanBuilder<'_>,
    finding: &Finding,
    roles: &[Role],
    value: impl Fn(&VariantCapacity) -> f64,
) -> Vec<f64> {
    let candidates = &builder.request.candidates;
    let sum = |role: &Role| {
        let is_of_role =
            |name: &str| builder.candidates_of(*role).any(|candidate| candidates[candidate].name == name);
        let variants = finding.variants.iter().filter(|variant| is_of_role(&variant.name));
        quantity(variants.map(|variant| quantity(value(variant))).sum())
    };
    roles.iter().map(sum).collect()
}

/// Divides `total` among `roles` by `weights`, or equally if all of these are 0.
fn divide(total: f64, roles: &[Role], weights: &[f64]) -> ByRole {
    let sum: f64 = weights.iter().sum();
    let equal = 1.0 / to_f64(i64::from(count(roles.len())));
    let share = |weight: f64| if sum > 0.0 { weight / sum } else { equal };
    roles.iter().zip(weights).map(|(role, weight)| (*role, quantity(total) * share(*weight))).collect()
}
