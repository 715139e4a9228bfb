//! Models that share limits are decided together. A panic in one model affects only that model: its replicas count as used, and the
//! others share the rest.

use smol_str::SmolStr;

use super::limit::{apply_grants, grant_requests, grant_requests_at_rest};
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

/// Panicking models that are found in one decision. Each takes several runs of the shared part to find; with more, all models are held.
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

    /// Optimizes, stabilises and limits all models together: optimizers share by need and priority, then additions are held back that a limit
    /// does not allow. `held` are the requests of models and variants that are not decided about now. Returns the cause of each model's panic, if it had
    /// one.
    pub(super) fn decide(mut self, held: Vec<Request>) -> Vec<Option<SmolStr>> {
        if let Some(plans) = self.optimize(&held) {
            self.for_each_working(|index, model| {
                if let Some(plan) = plans.get(index) {
                    apply_plan(model, plan);
                }
                stabilise(model);
            });
            self.limit(held);
        }
        self.causes
    }

    /// Does `work` on each model that has not panicked, with its index.
    fn for_each_working(&mut self, mut work: impl FnMut(usize, &mut ModelDecision<'a>)) {
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

    /// A plan for each model, and for each of `held` after them; `None` if the optimizer panicked without a single culprit.
    fn optimize(&mut self, held: &[Request]) -> Option<Vec<Plan>> {
        let mut own_requests = vec![None; self.models.len()];
        self.for_each_working(|index, model| own_requests[index] = Some(request(model)));
        let own_requests = own_requests.into_iter().enumerate();
        let mut requests: Vec<Request> =
            own_requests.map(|(index, own)| own.unwrap_or_else(|| self.request_at_rest(index))).collect();
        requests.extend(held.iter().cloned());
        for candidate in requests.iter_mut().flat_map(|request| &mut request.candidates) {
            candidate.accelerator = self.limits.spelling(candidate.accelerator.as_ref());
        }
        let (policy, compat) = (&self.policy.limits, self.policy.compat);
        let is_on =
            |namespace: &SmolStr| policy.rescale_namespaces.get(namespace).copied().unwrap_or(policy.rescale);
        let namespaces = requests.iter().map(|request| request.id.namespace.clone());
        let rescale = Rescale { cluster: policy.rescale, namespaces: namespaces.filter(is_on).collect() };
        let limits = self.limits;
        self.run_without_panicking(
            requests,
            |requests| arithmetic::optimize_together(requests, limits.all(), &rescale, compat).plans,
            |request| request.findings.clear(),
        )
    }

    /// Holds back additions that a limit does not allow; those of the neediest models last.
    fn limit(&mut self, held: Vec<Request>) {
        let mut own_requests = vec![None; self.models.len()];
        self.for_each_working(|index, model| own_requests[index] = Some(grant_requests(model)));
        let own_requests = own_requests.into_iter().enumerate();
        let mut all: Vec<Vec<GrantRequest>> = own_requests
            .map(|(index, own)| own.unwrap_or_else(|| grant_requests_at_rest(self.request_at_rest(index))))
            .collect();
        all.extend(held.into_iter().map(grant_requests_at_rest));
        for request in all.iter_mut().flatten() {
            request.accelerator = self.limits.spelling(request.accelerator.as_ref());
        }
        let counts: Vec<usize> = all.iter().map(Vec::len).collect();
        let (limits, compat) = (self.limits, self.policy.compat);
        let granted = self.run_without_panicking(
            all,
            |requests| arithmetic::grant(&requests.concat(), limits.all(), compat),
            |requests| requests.iter_mut().for_each(|request| request.proposed = request.current),
        );
        let mut granted = granted.into_iter().flatten();
        let by_model: Vec<Vec<Grant>> =
            counts.into_iter().map(|count| granted.by_ref().take(count).collect()).collect();
        self.for_each_working(|index, model| apply_grants(model, &by_model[index]));
    }

    /// Runs `work` on `items`, the first of which belong to the models in their order. If it panics, the model that makes it panic is found
    /// by halving, and `clear_request` turns its item into one that asks for nothing, until `work` succeeds. `None` if no single model makes
    /// it panic, or too many do.
    fn run_without_panicking<T: Clone, R>(
        &mut self,
        mut items: Vec<T>,
        work: impl Fn(&[T]) -> R,
        clear_request: impl Fn(&mut T),
    ) -> Option<R> {
        for _ in 0..=MAX_PANICKING {
            let all: Vec<usize> = (0..items.len()).collect();
            let cause = match self.guarded(&all, || work(&items)) {
                Ok(result) => return Some(result),
                Err(cause) => cause,
            };
            let panics = |indices: &[usize]| {
                let some: Vec<T> = indices.iter().map(|index| items[*index].clone()).collect();
                self.guarded(indices, || work(&some)).is_err()
            };
            let working: Vec<usize> =
                (0..self.models.len()).filter(|index| self.causes[*index].is_none()).collect();
            let Some(index) = find_panicking(&working, panics) else {
                self.fail_all(&cause);
                return None;
            };
            self.causes[index] = Some(cause);
            clear_request(&mut items[index]);
        }
        self.fail_all(&SmolStr::new_static("too many models panicked in what they share"));
        None
    }

    fn fail_all(&mut self, cause: &SmolStr) {
        self.causes.iter_mut().for_each(|own| *own = own.take().or_else(|| Some(cause.clone())));
    }

    /// Runs `work` on the items at `indices`. Models that have panicked ask for nothing in it, so that it is not attributed to them.
    fn guarded<T>(&self, indices: &[usize], work: impl FnOnce() -> T) -> Result<T, SmolStr> {
        self.progress.begins(None);
        let working = indices.iter().filter(|index| self.causes.get(**index).is_some_and(Option::is_none));
        guarded_together(working.map(|index| self.models[*index].context.id), work)
    }
}

/// The one of `indices` that `panics` by itself; `None` if neither half does without the other.
fn find_panicking(mut indices: &[usize], panics: impl Fn(&[usize]) -> bool) -> Option<usize> {
    while indices.len() > 1 {
        let (first, second) = indices.split_at(indices.len() / 2);
        indices = [first, second].into_iter().find(|half| panics(half))?;
    }
    indices.first().copied()
}
