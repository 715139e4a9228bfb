//! What models share: limits on GPUs, power and money, and whose numbers they hold back.

use std::collections::BTreeMap;

use smol_str::{SmolStr, ToSmolStr};

use super::capacity;
use super::group::Wanting;
use super::member::{Draft, Member};
use super::words;
use crate::decision::Reason;
use crate::limit::{Budget, Granted, Limit, Quota, Want, grant};
use crate::model::{Compat, LimitPolicy, Policy, Power};
use crate::optimize::rescale::Rescale;
use crate::optimize::{Request, by_score, cost_aware};
use crate::report::{GroupReport, LimitGap, Relief, Stage, Step, Value};
use crate::snapshot::{ModelGroup, Snapshot};
use crate::units::{Replicas, Watts};

/// What all models share, with what the cluster has of it.
pub(super) struct Limits {
    all: Vec<Limit>,
    /// One spelling of each accelerator that a limit names, by its name in lower case.
    spellings: BTreeMap<String, SmolStr>,
    /// The policy asks for the inventory as a limit, and lets additions through where it is not known.
    open: bool,
    /// An inventory is in force.
    inventory: bool,
    /// A node whose GPUs no inventory knows, and which leaves it without force.
    unlabelled: Option<SmolStr>,
    compat: Compat,
}

impl Limits {
    /// The limits of `policy`. Without an inventory that limit is not in force, nor with a part of one, unless the policy says
    /// that it denies then. What others use of it is free in upstream's eyes, and what it does not list is not there.
    pub(super) fn new(snapshot: &Snapshot, compat: Compat, policy: &LimitPolicy) -> Self {
        let asked = policy.inventory && policy.quotas.is_empty();
        let listed = |there: &&BTreeMap<SmolStr, u32>| compat.is_upstream() || !there.is_empty();
        let open = asked && !policy.fail_closed;
        let unlabelled = snapshot.unlabelled.clone().filter(|_| open && !compat.is_upstream());
        let there = snapshot.inventory.as_ref().filter(listed).filter(|_| unlabelled.is_none());
        let inventory = asked && there.is_some();
        let (all, spellings) = (Vec::new(), BTreeMap::new());
        let mut limits = Self { all, spellings, open, inventory, unlabelled, compat };
        if asked && (inventory || policy.fail_closed) {
            let budget = limits.spelled(there.into_iter().flatten(), u32::saturating_add);
            let others = snapshot.elsewhere.iter().filter(|_| !compat.is_upstream());
            let elsewhere = limits.spelled(others, u32::saturating_add);
            let elsewhere = elsewhere.into_iter().map(|(name, gpus)| (name, f64::from(gpus))).collect();
            let open = open && !compat.is_upstream();
            let own = Limit::new("inventory", Budget::Inventory(budget));
            limits.all.push(Limit { elsewhere, open, ..own });
        }
        for configured in &policy.quotas {
            let quota = limits.quota(configured);
            limits.all.push(quota);
        }
        if let Some(Power { watts, per_gpu }) = &policy.power {
            let watts_of = |watts: f64| Watts::new(watts).unwrap_or(Watts::ZERO);
            let per_gpu = limits.spelled(per_gpu, f64::max);
            let per_gpu = per_gpu.into_iter().map(|(name, watts)| (name, watts_of(watts))).collect();
            limits.all.push(Limit::new("power", Budget::Power { budget: watts_of(*watts), per_gpu }));
        }
        limits.all.extend(policy.spend.map(|budget| Limit::new("spend", Budget::Spend(budget))));
        limits
    }

    /// Nothing is shared.
    pub(super) const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// `by_type` under one spelling of each name; what several spellings have is put together by `both`.
    fn spelled<'n, T: Copy + 'n>(
        &mut self,
        by_type: impl IntoIterator<Item = (&'n SmolStr, &'n T)>,
        both: impl Fn(T, T) -> T,
    ) -> BTreeMap<SmolStr, T> {
        let mut spelled: BTreeMap<SmolStr, T> = BTreeMap::new();
        for (name, value) in by_type {
            let own = self.spellings.entry(name.to_ascii_lowercase()).or_insert_with(|| name.clone());
            spelled.entry(own.clone()).and_modify(|sum| *sum = both(*sum, *value)).or_insert(*value);
        }
        spelled
    }

    /// An accelerator as the limits spell it: users, nodes and vendors differ in upper and lower case.
    fn spelling(&self, accelerator: Option<&SmolStr>) -> Option<SmolStr> {
        let name = accelerator?;
        Some(self.spellings.get(&name.to_ascii_lowercase()).unwrap_or(name).clone())
    }

    /// A quota that is not valid has been refused where the policy was read; here it denies.
    fn quota(&mut self, configured: &crate::model::Quota) -> Limit {
        use crate::model::Quota::{Cluster, Namespace};
        // The tighter of two spellings; a negative quota is no bound.
        let tighter = |one: i64, other: i64| if one < 0 || (0..one).contains(&other) { other } else { one };
        let named =
            |name: &SmolStr, usual| if name.is_empty() { SmolStr::new_static(usual) } else { name.clone() };
        let (name, quota) = match configured {
            Cluster { name, quotas } => {
                (named(name, "cluster quota"), Quota::cluster(self.spelled(quotas, tighter)))
            }
            Namespace { name, namespace_quotas, exclude } => {
                let listed = namespace_quotas.iter();
                let listed = listed.map(|(name, quotas)| (name.clone(), self.spelled(quotas, tighter)));
                let (listed, excluded) = (listed.collect(), exclude.iter().cloned().collect());
                (named(name, "namespace quota"), Quota::namespaces(listed, excluded))
            }
        };
        let denied = || Quota::cluster(BTreeMap::new());
        let quota = quota.or_else(|_| denied());
        Limit::new(name, quota.map_or_else(|_| Budget::Inventory(BTreeMap::new()), Budget::Quota))
    }

    /// Says of which variants of `group` the inventory is no limit although the policy asks for it.
    pub(super) fn tell_gaps(&self, group: &ModelGroup, report: &mut GroupReport) {
        if !self.open {
            return;
        }
        for state in &group.variants {
            let Some(gap) = self.gap(state.variant.accelerator.as_ref()) else { continue };
            let name = &state.variant.id.name;
            report.steps.push(Step::new(Stage::Limit, Some(name), gap.to_smolstr()));
            report.limit_gaps.insert(name.clone(), gap);
        }
    }

    fn gap(&self, accelerator: Option<&SmolStr>) -> Option<LimitGap> {
        if !self.inventory {
            let unlabelled = self.unlabelled.clone().map(|node| LimitGap::UnlabelledNode { node });
            return unlabelled.or(Some(LimitGap::NoInventory));
        }
        let accelerator = accelerator.filter(|_| !self.compat.is_upstream())?;
        let own = self.spelling(Some(accelerator))?;
        let lists =
            |limit: &Limit| matches!(&limit.budget, Budget::Inventory(there) if there.contains_key(&own));
        let missing = !self.all.iter().any(lists);
        missing.then(|| LimitGap::NotInInventory { accelerator: accelerator.clone() })
    }
}

/// One group alone, when nothing is shared.
pub(super) fn alone(wanting: &mut Wanting<'_>) {
    if let Some(asked) = &wanting.asked {
        let plan = cost_aware::optimize_one(&asked.request, wanting.scene.compat);
        wanting.take(&plan);
    }
    wanting.settle();
}

/// All groups together: optimizers share by need and priority, then nothing is added that a limit does not leave.
pub(super) fn together(all: &mut [Wanting<'_>], limits: &Limits, policy: &Policy) {
    // Who asks for nothing now uses what there is all the same.
    let mut requests: Vec<Request> = all
        .iter()
        .map(|one| one.asked.as_ref().map_or_else(|| capacity::at_rest(one), |asked| asked.request.clone()))
        .collect();
    for candidate in requests.iter_mut().flat_map(|request| &mut request.candidates) {
        candidate.accelerator = limits.spelling(candidate.accelerator.as_ref());
    }
    let namespaces = requests.iter().map(|request| request.id.namespace.clone());
    let own = &policy.limits.rescale_namespaces;
    let on = |namespace: &SmolStr| own.get(namespace).copied().unwrap_or(policy.limits.rescale);
    let rescale = Rescale { cluster: policy.limits.rescale, namespaces: namespaces.filter(on).collect() };
    let plans = by_score::optimize(&requests, &limits.all, &rescale, policy.compat).plans;
    all.iter_mut().zip(&plans).for_each(|(one, plan)| one.take(plan));
    all.iter_mut().for_each(Wanting::settle);
    hold_back(all, limits, policy);
}

/// Only additions are held back, the neediest last.
fn hold_back(all: &mut [Wanting<'_>], limits: &Limits, policy: &Policy) {
    let mut places = Vec::new();
    let mut wants = Vec::new();
    for (group, one) in all.iter().enumerate() {
        for (at, (member, draft)) in one.members.iter().zip(&one.drafts).enumerate() {
            let want = want(one, member, draft);
            let accelerator = limits.spelling(want.accelerator.as_ref());
            wants.push(Want { accelerator, ..want });
            places.push((group, at));
        }
    }
    let granted = grant(&wants, &limits.all, policy.compat);
    for ((group, at), granted) in places.into_iter().zip(granted) {
        let one = &mut all[group];
        if one.drafts[at].number.is_some_and(|wanted| granted.granted < wanted && granted.limited) {
            let relief = one.denied(at, granted.granted).then_some(Relief::AtLimit);
            deny(one, at, &granted, relief);
        }
    }
}

/// Puts less than was wanted into the draft of the member at `at`.
fn deny(one: &mut Wanting<'_>, at: usize, granted: &Granted, saturated: Option<Relief>) {
    let Wanting { members, drafts, steps, .. } = one;
    let (member, draft, bound) = (&members[at], &mut drafts[at], granted.bound.as_ref());
    let binding = bound.map_or_else(|| SmolStr::new_static("free GPUs"), ToSmolStr::to_smolstr);
    let message = words::limited(member, granted.wanted, granted.granted, &binding);
    let values = bound.map(|bound| {
        let others = (bound.elsewhere > 0.0).then(|| Value::new("used by others", bound.elsewhere));
        let all = [
            Value::new("wanted", f64::from(granted.wanted.get())),
            Value::new("budget", bound.budget),
            Value::new("used", bound.used),
            Value::new("free", bound.free),
        ];
        all.into_iter().chain(others).collect()
    });
    let step = Step::new(Stage::Limit, Some(member.name()), message.clone());
    steps.push(Step { binding: Some(binding), values: values.unwrap_or_default(), saturated, ..step });
    let number = Some(granted.granted);
    *draft = Draft { number, reason: Reason::Bounded, message, ..draft.clone() };
}

/// What a member asks of the limits. What has been promised was granted then: only a look at everything may take it
/// back. The one replica that somebody asks for already is not asked again, whether its pod exists yet or not, and it is
/// used even by who wants none of it: only when all is settled is it known whether the model may sleep.
fn want(wanting: &Wanting<'_>, member: &Member<'_>, draft: &Draft) -> Want {
    let (state, running) = (member.state, member.scale.base());
    let wanted = state.variant.bounds.clamp(draft.number.unwrap_or(running));
    let kept = Replicas::new(u32::from(member.active() && member.allows(Replicas::ONE)));
    let current = match draft.look {
        Some(rights) if rights.down => running,
        Some(_) => member.committed().map_or(running, |promised| promised.min(wanted).max(running)),
        None => wanted.max(running),
    };
    let current = current.max(kept);
    Want {
        id: member.id().clone(),
        current,
        wanted,
        bounds: state.variant.bounds,
        priority: wanting.scene.model.priority,
        spare: 0.0,
        cost: state.variant.cost,
        accelerator: state.variant.accelerator.clone(),
        gpus: state.template.gpus,
        watts: None,
    }
}
