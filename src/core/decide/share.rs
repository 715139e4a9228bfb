//! What models share: limits on GPUs, power and money, and whose numbers they hold back.

use std::collections::{BTreeMap, BTreeSet};

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
use crate::report::{Relief, Stage, Step, Value};
use crate::snapshot::Snapshot;
use crate::units::{Replicas, Watts};

/// The limits of `policy`, with what the cluster has. Without an inventory that limit denies: nobody knows what is free.
/// What others use of it is free in upstream's eyes.
pub(super) fn limits(snapshot: &Snapshot, compat: Compat, policy: &LimitPolicy) -> Vec<Limit> {
    let mut limits = Vec::new();
    if policy.inventory && policy.quotas.is_empty() {
        let there = snapshot.inventory.clone().unwrap_or_default();
        let others = snapshot.elsewhere.iter().filter(|_| !compat.is_upstream());
        let elsewhere = others.map(|(name, gpus)| (name.clone(), f64::from(*gpus))).collect();
        limits.push(Limit { elsewhere, ..Limit::new("inventory", Budget::Inventory(there)) });
    }
    limits.extend(policy.quotas.iter().map(quota));
    if let Some(Power { watts, per_gpu }) = &policy.power {
        let watts_of = |watts: f64| Watts::new(watts).unwrap_or(Watts::ZERO);
        let per_gpu = per_gpu.iter().map(|(name, watts)| (name.clone(), watts_of(*watts))).collect();
        limits.push(Limit::new("power", Budget::Power { budget: watts_of(*watts), per_gpu }));
    }
    limits.extend(policy.spend.map(|budget| Limit::new("spend", Budget::Spend(budget))));
    limits
}

/// A quota that is not valid has been refused where the policy was read; here it denies.
fn quota(configured: &crate::model::Quota) -> Limit {
    use crate::model::Quota::{Cluster, Namespace};
    let named =
        |name: &SmolStr, usual| if name.is_empty() { SmolStr::new_static(usual) } else { name.clone() };
    let (name, quota) = match configured {
        Cluster { name, quotas } => (named(name, "cluster quota"), Quota::cluster(quotas.clone())),
        Namespace { name, namespace_quotas, exclude } => {
            let excluded: BTreeSet<SmolStr> = exclude.iter().cloned().collect();
            (named(name, "namespace quota"), Quota::namespaces(namespace_quotas.clone(), excluded))
        }
    };
    let denied = || Quota::cluster(BTreeMap::new());
    let quota = quota.or_else(|_| denied());
    Limit::new(name, quota.map_or_else(|_| Budget::Inventory(BTreeMap::new()), Budget::Quota))
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
pub(super) fn together(all: &mut [Wanting<'_>], limits: &[Limit], policy: &Policy) {
    // Who asks for nothing now uses what there is all the same.
    let requests: Vec<Request> = all
        .iter()
        .map(|one| one.asked.as_ref().map_or_else(|| capacity::at_rest(one), |asked| asked.request.clone()))
        .collect();
    let namespaces = requests.iter().map(|request| request.id.namespace.clone());
    let own = &policy.limits.rescale_namespaces;
    let on = |namespace: &SmolStr| own.get(namespace).copied().unwrap_or(policy.limits.rescale);
    let rescale = Rescale { cluster: policy.limits.rescale, namespaces: namespaces.filter(on).collect() };
    let plans = by_score::optimize(&requests, limits, &rescale, policy.compat).plans;
    all.iter_mut().zip(&plans).for_each(|(one, plan)| one.take(plan));
    all.iter_mut().for_each(Wanting::settle);
    hold_back(all, limits, policy);
}

/// Only additions are held back, the neediest last.
fn hold_back(all: &mut [Wanting<'_>], limits: &[Limit], policy: &Policy) {
    let mut places = Vec::new();
    let mut wants = Vec::new();
    for (group, one) in all.iter().enumerate() {
        for (at, (member, draft)) in one.members.iter().zip(&one.drafts).enumerate() {
            wants.push(want(one, member, draft));
            places.push((group, at));
        }
    }
    let granted = grant(&wants, limits, policy.compat);
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
