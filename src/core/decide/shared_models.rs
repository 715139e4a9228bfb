//! Models that share limits are decided together. A panic in one model affects only that model: its replicas count as used, and the
//! others share the rest.

use smol_str::SmolStr;

use super::limit::{apply_grants, unchanged, wants};
use super::model::ModelDecision;
use super::optimize::{apply_plan, request, request_at_rest};
use super::shared_limits::Limits;
use super::stabilise::stabilise;
use crate::arithmetic;
use crate::isolate::{guarded, guarded_together};
use crate::limit::{Grant, GrantRequest};
use crate::model::Policy;
use crate::optimize::rescale::Rescale;
use crate::optimize::{Plan, Request};
use crate::progress::Progress;

/// Panicking models that are found in one decision; finding each takes some runs of the shared part. With more, all are held.
const MAX_PANICKING: usize = 8;

/// The models that share limits, and for each the cause of its panic, if it had one.
pub(super) struct SharedModels<'s, 'a> {
    pub(super) models: &'s mut [ModelDecision<'a>],
    pub(super) limits: &'s Limits,
    pub(super) policy: &'s Policy,
    pub(super) progress: &'s dyn Progress,
    causes: Vec<Option<SmolStr>>,
}

impl<'s, 'a> SharedModels<'s, 'a> {
    pub(super) fn new(
        models: &'s mut [ModelDecision<'a>],
        limits: &'s Limits,
        policy: &'s Policy,
        progress: &'s dyn Progress,
    ) -> Self {
        let causes = vec![None; models.len()];
        Self { models, limits, policy, progress, causes }
    }

    /// Optimizes, stabilises and limits all models together: optimizers share by need and priority, then nothing is added that a
    /// limit does not leave. `held` is what models use that are not decided about now. Returns for each model why it panicked, if
    /// it did.
    pub(super) fn decide(mut self, held: Vec<Request>) -> Vec<Option<SmolStr>> {
        if let Some(plans) = self.optimize(&held) {
            self.each(|index, model| {
                if let Some(plan) = plans.get(index) {
                    apply_plan(model, plan);
                }
                stabilise(model);
            });
            self.limit(held);
        }
        self.causes
    }

    /// Does `work` on each model that has not panicked, with its place.
    fn each(&mut self, mut work: impl FnMut(usize, &mut ModelDecision<'a>)) {
        for (index, (model, cause)) in self.models.iter_mut().zip(&mut self.causes).enumerate() {
            if cause.is_none() {
                self.progress.begins(Some(model.context.id));
                *cause = guarded(model.context.id, || work(index, model)).err();
            }
        }
    }

    fn request_at_rest(&self, index: usize) -> Request {
        let ModelDecision { context, before, .. } = &self.models[index];
        request_at_rest(context.id, context.group, *before, self.policy)
    }

    /// A plan for each model, and for each of `held` after them; `None` when that panicked for all.
    fn optimize(&mut self, held: &[Request]) -> Option<Vec<Plan>> {
        let mut own_requests = vec![None; self.models.len()];
        self.each(|index, model| own_requests[index] = Some(request(model)));
        let own_requests = own_requests.into_iter().enumerate();
        let mut requests: Vec<Request> =
            own_requests.map(|(index, own)| own.unwrap_or_else(|| self.request_at_rest(index))).collect();
        requests.extend(held.iter().cloned());
        for candidate in requests.iter_mut().flat_map(|request| &mut request.candidates) {
            candidate.accelerator = self.limits.spelling(candidate.accelerator.as_ref());
        }
        let (own, compat) = (&self.policy.limits, self.policy.compat);
        let is_on =
            |namespace: &SmolStr| own.rescale_namespaces.get(namespace).copied().unwrap_or(own.rescale);
        let namespaces = requests.iter().map(|request| request.id.namespace.clone());
        let rescale = Rescale { cluster: own.rescale, namespaces: namespaces.filter(is_on).collect() };
        let limits = self.limits;
        self.all_that_work(
            requests,
            |requests| arithmetic::optimize_together(requests, limits.all(), &rescale, compat).plans,
            |request| request.findings.clear(),
        )
    }

    /// Holds back additions that a limit does not leave, the neediest last.
    fn limit(&mut self, held: Vec<Request>) {
        let mut own_wants = vec![None; self.models.len()];
        self.each(|index, model| own_wants[index] = Some(wants(model)));
        let own_wants = own_wants.into_iter().enumerate();
        let mut all: Vec<Vec<GrantRequest>> = own_wants
            .map(|(index, own)| own.unwrap_or_else(|| unchanged(self.request_at_rest(index))))
            .collect();
        all.extend(held.into_iter().map(unchanged));
        for want in all.iter_mut().flatten() {
            want.accelerator = self.limits.spelling(want.accelerator.as_ref());
        }
        let counts: Vec<usize> = all.iter().map(Vec::len).collect();
        let (limits, compat) = (self.limits, self.policy.compat);
        let granted = self.all_that_work(
            all,
            |wants| arithmetic::grant(&wants.concat(), limits.all(), compat),
            |wants| wants.iter_mut().for_each(|want| want.proposed = want.current),
        );
        let mut granted = granted.into_iter().flatten();
        let by_model: Vec<Vec<Grant>> =
            counts.into_iter().map(|count| granted.by_ref().take(count).collect()).collect();
        self.each(|index, model| apply_grants(model, &by_model[index]));
    }

    /// What `work` makes of `items`, of which the first ones are the models' in their order. Those that break it are found by
    /// halving, and `rest` makes of each one something that asks for nothing; `None` when none breaks it alone.
    fn all_that_work<T: Clone, R>(
        &mut self,
        mut items: Vec<T>,
        work: impl Fn(&[T]) -> R,
        rest: impl Fn(&mut T),
    ) -> Option<R> {
        for _ in 0..=MAX_PANICKING {
            let all: Vec<usize> = (0..items.len()).collect();
            let cause = match self.guarded(&all, || work(&items)) {
                Ok(result) => return Some(result),
                Err(cause) => cause,
            };
            let breaks = |places: &[usize]| {
                let some: Vec<T> = places.iter().map(|at| items[*at].clone()).collect();
                self.guarded(places, || work(&some)).is_err()
            };
            let able: Vec<usize> = (0..self.models.len()).filter(|at| self.causes[*at].is_none()).collect();
            let breaking = alone(&able, breaks);
            let Some(at) = breaking else {
                self.causes.iter_mut().for_each(|own| *own = own.take().or_else(|| Some(cause.clone())));
                return None;
            };
            self.causes[at] = Some(cause);
            rest(&mut items[at]);
        }
        let many = SmolStr::new_static("too many models panicked in what they share");
        self.causes.iter_mut().for_each(|own| *own = own.take().or_else(|| Some(many.clone())));
        None
    }

    /// `work` on the models at these places; of them, those that have broken ask for nothing in it.
    fn guarded<T>(&self, places: &[usize], work: impl FnOnce() -> T) -> Result<T, SmolStr> {
        self.progress.begins(None);
        let able = places.iter().filter(|at| self.causes.get(**at).is_some_and(Option::is_none));
        guarded_together(able.map(|at| self.models[*at].context.id), work)
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
