//! Who wants more, who could do with less. Source: algorithm reference §7.1 and §7.2.

use super::Step;
use super::work::{Work, quantity};
use crate::analyze::finding::{Finding, Totals};
use crate::model::{Compat, Role};

/// A number for each role that has one.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct ByRole([Option<f64>; Role::ALL.len()]);

impl ByRole {
    /// The number of `role`, 0 when it has none.
    pub(super) fn of(&self, role: Role) -> f64 {
        self.0[role as usize].unwrap_or(0.0)
    }

    pub(super) const fn has(&self, role: Role) -> bool {
        self.0[role as usize].is_some()
    }

    pub(super) const fn set(&mut self, role: Role, value: f64) {
        self.0[role as usize] = Some(value);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Role, f64)> {
        Role::ALL.into_iter().zip(self.0).filter_map(|(role, value)| Some((role, value?)))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = f64> {
        self.0.into_iter().flatten()
    }

    /// Every number as `change` makes it.
    pub(super) fn map(self, change: impl Fn(f64) -> f64) -> Self {
        Self(self.0.map(|value| value.map(&change)))
    }
}

impl FromIterator<(Role, f64)> for ByRole {
    fn from_iter<I: IntoIterator<Item = (Role, f64)>>(all: I) -> Self {
        let mut by_role = Self::default();
        all.into_iter().for_each(|(role, value)| by_role.set(role, value));
        by_role
    }
}

/// What every finding says of every role.
#[derive(Debug)]
pub(super) struct Votes {
    pub(super) roles: Vec<Role>,
    /// By finding, in its unit.
    pub(super) need: Vec<ByRole>,
    pub(super) spare: Vec<ByRole>,
}

impl Votes {
    pub(super) fn of(work: &mut Work<'_>, compat: Compat) -> Self {
        let findings = &work.request.findings;
        let (need, spare): (Vec<_>, Vec<_>) = if compat.is_upstream() {
            findings.iter().map(|one| (said(one, |it| it.required), said(one, |it| it.spare))).unzip()
        } else {
            (0..findings.len()).map(|at| placed(work, at)).unzip()
        };
        let roles = if compat.is_upstream() { roles_of(&need) } else { work.roles().collect() };
        // One finding of one role has said it already.
        let told = findings.len() > 1 || roles.len() > 1;
        for role in roles.iter().copied().filter(|_| told) {
            let both = findings.iter().zip(&need).zip(&spare);
            let votes =
                both.map(|((one, need), spare)| (one.analyzer, need.of(role), spare.of(role))).collect();
            work.steps.push(Step::Votes { role, of: votes });
        }
        Self { roles, need, spare }
    }

    /// Somebody needs more: nothing may be removed anywhere.
    pub(super) fn any_need(&self) -> bool {
        self.need.iter().flat_map(ByRole::values).any(|need| need > 0.0)
    }

    /// All agree that `role` has something to spare: all live findings, at least one; before 2026-08 all
    /// findings. By default, one that has no share in the role has no say in it.
    pub(super) fn may_shrink(&self, findings: &[Finding], role: Role, compat: Compat) -> bool {
        let has_say = |at: &usize| compat.is_upstream() || self.spare[*at].has(role);
        let mut judges = counted(findings, compat).filter(has_say).peekable();
        judges.peek().is_some() && judges.all(|at| self.spare_of(at, role) > 0.0)
    }

    pub(super) fn spare_of(&self, finding: usize, role: Role) -> f64 {
        self.spare[finding].of(role)
    }
}

/// The findings that may veto or limit a removal.
pub(super) fn counted(findings: &[Finding], compat: Compat) -> impl Iterator<Item = usize> {
    let live = move |one: &Finding| one.live || compat == Compat::UpstreamJune;
    findings.iter().enumerate().filter(move |(_, one)| live(one)).map(|(at, _)| at)
}

/// A finding's roles; without any, its total as that of [`Role::Both`].
pub(super) fn said(finding: &Finding, value: impl Fn(&Totals) -> f64) -> ByRole {
    if finding.roles.is_empty() {
        return [(Role::Both, quantity(value(&finding.total)))].into_iter().collect();
    }
    finding.roles.iter().map(|(role, totals)| (*role, quantity(value(totals)))).collect()
}

pub(super) fn roles_of(maps: &[ByRole]) -> Vec<Role> {
    Role::ALL.into_iter().filter(|role| maps.iter().any(|map| map.has(*role))).collect()
}

/// What a finding says of the roles there are. One that names none of them has its total shared out: what is missing by
/// its demand in each role, what is spare by its supply beyond demand, and equally where it knows neither. So the shares
/// add up to the total, and nobody's silence about roles can stop a model. Of a role whose
/// capacity it does not know it says nothing.
fn placed(work: &Work<'_>, at: usize) -> (ByRole, ByRole) {
    let finding = &work.request.findings[at];
    let total = finding.total;
    let mut roles = work.roles();
    if let (Some(only), None) = (roles.next(), roles.next())
        && finding.roles.is_empty()
    {
        let all = |value| [(only, quantity(value))].into_iter().collect();
        return (all(total.required), all(total.spare));
    }
    if work.roles().any(|role| finding.roles.contains_key(&role)) {
        let of = |role: Role| finding.roles.get(&role).copied().unwrap_or_default();
        let pick = |value: fn(&Totals) -> f64| {
            work.roles().map(|role| (role, quantity(value(&of(role))))).collect::<ByRole>()
        };
        return (pick(|totals| totals.required), pick(|totals| totals.spare));
    }
    let known = |role: &Role| work.of_role(*role).any(|candidate| work.capacity[at][candidate] > 0.0);
    let mut able: Vec<Role> = work.roles().filter(known).collect();
    if able.is_empty() {
        able = work.roles().collect();
    }
    let sums = |value: &dyn Fn(&crate::analyze::finding::Capacity) -> f64| {
        let of = |role: Role| {
            let named = |name: &str| work.of_role(role).any(|at| work.request.candidates[at].name == name);
            finding.variants.iter().filter(|one| named(&one.name)).map(value).sum::<f64>()
        };
        able.iter().map(|role| quantity(of(*role))).collect::<Vec<_>>()
    };
    let demand = sums(&|one| quantity(one.demand));
    let supply = sums(&|one| quantity(one.total()));
    let beyond: Vec<f64> =
        supply.iter().zip(&demand).map(|(supply, demand)| quantity(supply - demand)).collect();
    (share_out(total.required, &able, &demand), share_out(total.spare, &able, &beyond))
}

fn share_out(total: f64, roles: &[Role], weights: &[f64]) -> ByRole {
    let sum: f64 = weights.iter().sum();
    let equal = 1.0 / crate::units::float(i64::from(crate::units::count(roles.len())));
    let share = |weight: f64| if sum > 0.0 { weight / sum } else { equal };
    roles.iter().zip(weights).map(|(role, weight)| (*role, quantity(total) * share(*weight))).collect()
}
