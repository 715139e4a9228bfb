//! Who wants more, who could do with less. Source: algorithm reference §7.1 and §7.2.

use std::collections::BTreeMap;

use super::Step;
use super::work::{Work, quantity};
use crate::analyze::finding::{Finding, Totals};
use crate::model::{Compat, Role};

pub(super) type ByRole = BTreeMap<Role, f64>;

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
        let roles = if compat.is_upstream() { roles_of(&need) } else { work.roles() };
        let of = |map: &ByRole, role| map.get(role).copied().unwrap_or(0.0);
        for role in &roles {
            let both = findings.iter().zip(&need).zip(&spare);
            let votes =
                both.map(|((one, need), spare)| (one.analyzer, of(need, role), of(spare, role))).collect();
            work.steps.push(Step::Votes { role: *role, of: votes });
        }
        Self { roles, need, spare }
    }

    /// Somebody needs more: nothing may be removed anywhere.
    pub(super) fn any_need(&self) -> bool {
        self.need.iter().flat_map(BTreeMap::values).any(|need| *need > 0.0)
    }

    /// All agree that `role` has something to spare: all live findings, at least one; before 2026-08 all
    /// findings. By default, one that has no share in the role has no say in it.
    pub(super) fn may_shrink(&self, findings: &[Finding], role: Role, compat: Compat) -> bool {
        let has_say = |at: &usize| compat.is_upstream() || self.spare[*at].contains_key(&role);
        let mut judges = counted(findings, compat).filter(has_say).peekable();
        judges.peek().is_some() && judges.all(|at| self.spare_of(at, role) > 0.0)
    }

    pub(super) fn spare_of(&self, finding: usize, role: Role) -> f64 {
        self.spare[finding].get(&role).copied().unwrap_or(0.0)
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
        return BTreeMap::from([(Role::Both, quantity(value(&finding.total)))]);
    }
    finding.roles.iter().map(|(role, totals)| (*role, quantity(value(totals)))).collect()
}

pub(super) fn roles_of(maps: &[ByRole]) -> Vec<Role> {
    let all: std::collections::BTreeSet<Role> = maps.iter().flat_map(|map| map.keys().copied()).collect();
    all.into_iter().collect()
}

/// What a finding says of the roles there are. One that names none of them has its total shared out: what is missing by
/// its demand in each role, what is spare by its supply beyond demand, and equally where it knows neither. So the shares
/// add up to the total, and nobody's silence about roles can stop a model. Of a role whose
/// capacity it does not know it says nothing.
fn placed(work: &Work<'_>, at: usize) -> (ByRole, ByRole) {
    let finding = &work.request.findings[at];
    let roles = work.roles();
    if roles.iter().any(|role| finding.roles.contains_key(role)) {
        let of = |role: &Role| finding.roles.get(role).copied().unwrap_or_default();
        let pick = |value: fn(&Totals) -> f64| {
            roles.iter().map(|role| (*role, quantity(value(&of(role))))).collect::<ByRole>()
        };
        return (pick(|totals| totals.required), pick(|totals| totals.spare));
    }
    let known = |role: &Role| work.of_role(*role).any(|candidate| work.capacity[at][candidate] > 0.0);
    let mut able: Vec<Role> = roles.iter().copied().filter(known).collect();
    if able.is_empty() {
        able = roles;
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
    (share_out(finding.total.required, &able, &demand), share_out(finding.total.spare, &able, &beyond))
}

fn share_out(total: f64, roles: &[Role], weights: &[f64]) -> ByRole {
    let sum: f64 = weights.iter().sum();
    let equal = 1.0 / crate::units::float(i64::from(crate::units::count(roles.len())));
    let share = |weight: f64| if sum > 0.0 { weight / sum } else { equal };
    roles.iter().zip(weights).map(|(role, weight)| (*role, quantity(total) * share(*weight))).collect()
}
