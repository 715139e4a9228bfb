//! Models that share what is limited are decided together. One that breaks costs itself: what it uses is used, and the others
//! share the rest.

use smol_str::{SmolStr, ToSmolStr};

use super::analyze::capacity;
use super::context::{Proposal, VariantContext};
use super::limits::Limits;
use super::messages;
use super::model_group::PendingModel;
use crate::arithmetic;
use crate::decision::Reason;
use crate::isolate::{guarded, guarded_together};
use crate::limit::{Grant, GrantRequest};
use crate::memory::GroupMemory;
use crate::model::{GroupId, Policy, VariantId};
use crate::optimize::rescale::Rescale;
use crate::optimize::{Plan, Request};
use crate::progress::Progress;
use crate::report::{Relief, Stage, Step, Value};
use crate::snapshot::ModelGroup;
use crate::units::Replicas;

/// Models that break the sharing for all and are found, in one decision; each costs some runs of it. With more, all are held.
const MAX_BREAKING: usize = 8;

/// One group by itself, when nothing is shared.
pub(super) fn by_itself(pending: &mut PendingModel<'_>) {
    if let Some(asked) = &pending.asked {
        let plan = arithmetic::optimize_alone(&asked.request, pending.context.compat);
        pending.take(&plan);
    }
    pending.settle();
}

/// What a model uses that broke and whose numbers are held, or that is to be left out: what runs, and what it was promised.
pub(super) fn at_rest(
    id: &GroupId,
    group: &ModelGroup,
    before: Option<&GroupMemory>,
    policy: &Policy,
) -> Request {
    let candidates = group.variants.iter().filter_map(|state| {
        let running = state.scale?.base();
        let promised = before.and_then(|before| before.variants.get(&state.variant.id.name)?.target);
        let promised = promised.or(state.last_status).unwrap_or_default();
        Some(capacity::candidate(state, state.variant.bounds.clamp(promised).max(running)))
    });
    let (candidates, findings) = (candidates.collect(), Vec::new());
    Request { id: id.clone(), priority: policy.of(id).priority, candidates, findings }
}

/// The models that share, and of each why it broke, if it did.
struct Sharing<'s, 'a> {
    all: &'s mut [PendingModel<'a>],
    causes: Vec<Option<SmolStr>>,
    limits: &'s Limits,
    policy: &'s Policy,
    progress: &'s dyn Progress,
}

/// All models together: optimizers share by need and priority, then nothing is added that a limit does not leave. `held` is
/// what models use that are not decided about now. The result says of each of `all` why it broke, if it did.
pub(super) fn together(
    all: &mut [PendingModel<'_>],
    held: Vec<Request>,
    (limits, policy): (&Limits, &Policy),
    progress: &dyn Progress,
) -> Vec<Option<SmolStr>> {
    let causes = vec![None; all.len()];
    let mut sharing = Sharing { all, causes, limits, policy, progress };
    if let Some(plans) = sharing.optimize(&held) {
        sharing.each(|at, one| {
            if let Some(plan) = plans.get(at) {
                one.take(plan);
            }
            one.settle();
        });
        sharing.hold_back(held);
    }
    sharing.causes
}

impl<'a> Sharing<'_, 'a> {
    /// Does `work` on each model that has not broken, with its place.
    fn each(&mut self, mut work: impl FnMut(usize, &mut PendingModel<'a>)) {
        for (at, (one, cause)) in self.all.iter_mut().zip(&mut self.causes).enumerate() {
            if cause.is_none() {
                self.progress.begins(Some(one.context.id));
                *cause = guarded(one.context.id, || work(at, one)).err();
            }
        }
    }

    fn at_rest(&self, at: usize) -> Request {
        let PendingModel { context, before, .. } = &self.all[at];
        at_rest(context.id, context.group, *before, self.policy)
    }

    /// A plan for each model, and for each of `held` after them; `None` when that broke for all.
    fn optimize(&mut self, held: &[Request]) -> Option<Vec<Plan>> {
        let mut own_requests = vec![None; self.all.len()];
        // Who asks for nothing now uses what there is all the same.
        self.each(|at, one| {
            let own = || capacity::at_rest(one);
            own_requests[at] = Some(one.asked.as_ref().map_or_else(own, |asked| asked.request.clone()));
        });
        let own_requests = own_requests.into_iter().enumerate();
        let mut requests: Vec<Request> =
            own_requests.map(|(at, own)| own.unwrap_or_else(|| self.at_rest(at))).collect();
        requests.extend(held.iter().cloned());
        for candidate in requests.iter_mut().flat_map(|request| &mut request.candidates) {
            candidate.accelerator = self.limits.spelling(candidate.accelerator.as_ref());
        }
        let Policy { limits: own, compat, .. } = self.policy;
        let on = |namespace: &SmolStr| own.rescale_namespaces.get(namespace).copied().unwrap_or(own.rescale);
        let namespaces = requests.iter().map(|request| request.id.namespace.clone());
        let rescale = Rescale { cluster: own.rescale, namespaces: namespaces.filter(on).collect() };
        let limits = self.limits;
        self.all_that_work(
            requests,
            |requests| arithmetic::optimize_together(requests, limits.all(), &rescale, *compat).plans,
            |request| request.findings.clear(),
        )
    }

    /// What `work` makes of `items`, of which the first ones are the models' in their order. Those that break it are found by
    /// halving, and `rest` makes of each one something that asks for nothing; `None` when none breaks it alone.
    fn all_that_work<T: Clone, R>(
        &mut self,
        mut items: Vec<T>,
        work: impl Fn(&[T]) -> R,
        rest: impl Fn(&mut T),
    ) -> Option<R> {
        for _ in 0..=MAX_BREAKING {
            let all: Vec<usize> = (0..items.len()).collect();
            let cause = match self.guarded(&all, || work(&items)) {
                Ok(result) => return Some(result),
                Err(cause) => cause,
            };
            let breaks = |places: &[usize]| {
                let some: Vec<T> = places.iter().map(|at| items[*at].clone()).collect();
                self.guarded(places, || work(&some)).is_err()
            };
            let able: Vec<usize> = (0..self.all.len()).filter(|at| self.causes[*at].is_none()).collect();
            let breaking = alone(&able, breaks);
            let Some(at) = breaking else {
                self.causes.iter_mut().for_each(|own| *own = own.take().or_else(|| Some(cause.clone())));
                return None;
            };
            self.causes[at] = Some(cause);
            rest(&mut items[at]);
        }
        let many = SmolStr::new_static("too many models broke what they share");
        self.causes.iter_mut().for_each(|own| *own = own.take().or_else(|| Some(many.clone())));
        None
    }

    /// `work` on the models at these places; of them, those that have broken ask for nothing in it.
    fn guarded<T>(&self, places: &[usize], work: impl FnOnce() -> T) -> Result<T, SmolStr> {
        self.progress.begins(None);
        let able = places.iter().filter(|at| self.causes.get(**at).is_some_and(Option::is_none));
        guarded_together(able.map(|at| self.all[*at].context.id), work)
    }

    /// Only additions are held back, the neediest last.
    fn hold_back(&mut self, held: Vec<Request>) {
        let mut wants = vec![None; self.all.len()];
        self.each(|at, one| {
            let own = one
                .variants
                .iter()
                .zip(&one.proposals)
                .map(|(variant, proposal)| want(one, variant, proposal));
            wants[at] = Some(own.collect::<Vec<_>>());
        });
        let wants = wants.into_iter().enumerate();
        let mut wants: Vec<Vec<GrantRequest>> =
            wants.map(|(at, own)| own.unwrap_or_else(|| unchanged(self.at_rest(at)))).collect();
        wants.extend(held.into_iter().map(unchanged));
        for want in wants.iter_mut().flatten() {
            want.accelerator = self.limits.spelling(want.accelerator.as_ref());
        }
        let counts: Vec<usize> = wants.iter().map(Vec::len).collect();
        let (limits, compat) = (self.limits, self.policy.compat);
        let granted = self.all_that_work(
            wants,
            |wants| arithmetic::grant(&wants.concat(), limits.all(), compat),
            |wants| wants.iter_mut().for_each(|want| want.proposed = want.current),
        );
        let mut granted = granted.into_iter().flatten();
        let by_model: Vec<Vec<Grant>> =
            counts.into_iter().map(|count| granted.by_ref().take(count).collect()).collect();
        self.each(|at, one| {
            for (at, granted) in by_model[at].iter().enumerate() {
                if one.proposals[at]
                    .number
                    .is_some_and(|wanted| granted.granted < wanted && granted.is_limited)
                {
                    let relief = one.denied(at, granted.granted).then_some(Relief::AtLimit);
                    deny(one, at, granted, relief);
                }
            }
        });
    }
}

/// The one of `places` that `breaks` by itself; `None` when each half works without the other.
fn alone(mut places: &[usize], breaks: impl Fn(&[usize]) -> bool) -> Option<usize> {
    while places.len() > 1 {
        let (first, second) = places.split_at(places.len() / 2);
        places = [first, second].into_iter().find(|half| breaks(half))?;
    }
    places.first().copied()
}

/// What a model that is not decided about uses, as it is.
fn unchanged(request: Request) -> Vec<GrantRequest> {
    let Request { id, priority, candidates, .. } = request;
    let want = |own: crate::optimize::Candidate| GrantRequest {
        id: VariantId::new(id.namespace.clone(), own.name),
        current: own.current,
        proposed: own.current,
        bounds: own.bounds,
        priority,
        spare: 0.0,
        cost: own.cost,
        accelerator: own.accelerator,
        gpus: own.gpus,
        watts: own.watts,
    };
    candidates.into_iter().map(want).collect()
}

/// Puts less than was wanted into the proposal of the variant at `at`.
fn deny(one: &mut PendingModel<'_>, at: usize, granted: &Grant, saturated: Option<Relief>) {
    let PendingModel { variants, proposals, steps, .. } = one;
    let (variant, proposal, bound) = (&variants[at], &mut proposals[at], granted.binding.as_ref());
    let binding = bound.map_or_else(|| SmolStr::new_static("free GPUs"), ToSmolStr::to_smolstr);
    let message = messages::limited(variant, granted.proposed, granted.granted, &binding);
    let values = bound.map(|bound| {
        let others = (bound.elsewhere > 0.0).then(|| Value::new("used by others", bound.elsewhere));
        let all = [
            Value::new("wanted", f64::from(granted.proposed.get())),
            Value::new("budget", bound.budget),
            Value::new("used", bound.used),
            Value::new("free", bound.free),
        ];
        all.into_iter().chain(others).collect()
    });
    let step = Step::new(Stage::Limit, Some(variant.name()), message.clone());
    steps.push(Step { binding: Some(binding), values: values.unwrap_or_default(), saturated, ..step });
    let number = Some(granted.granted);
    *proposal = Proposal { number, reason: Reason::Bounded, message, ..proposal.clone() };
}

/// What a variant asks of the limits. What has been promised was granted then: only a look at everything may take it
/// back. The one replica that somebody asks for already is not asked again, whether its pod exists yet or not, and it is
/// used even by who wants none of it: only when all is settled is it known whether the model may sleep.
fn want(pending: &PendingModel<'_>, variant: &VariantContext<'_>, proposal: &Proposal) -> GrantRequest {
    let (state, running) = (variant.state, variant.scale.base());
    let wanted = state.variant.bounds.clamp(proposal.number.unwrap_or(running));
    let kept = Replicas::new(u32::from(variant.active() && variant.allows(Replicas::ONE)));
    let current = match proposal.look {
        Some(allowed_moves) if allowed_moves.down => running,
        Some(_) => variant.committed().map_or(running, |promised| promised.min(wanted).max(running)),
        None => wanted.max(running),
    };
    let current = current.max(kept);
    GrantRequest {
        id: variant.id().clone(),
        current,
        proposed: wanted,
        bounds: state.variant.bounds,
        priority: pending.context.policy.priority,
        spare: 0.0,
        cost: state.variant.cost,
        accelerator: state.variant.accelerator.clone(),
        gpus: state.template.gpus,
        watts: None,
    }
}
