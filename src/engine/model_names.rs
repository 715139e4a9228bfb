//! The models of variants whose objects name none: such a variant serves the model that the series of its pods name. A model that
//! was learned counts once the policy knows it, because the settings of these variants are settings of their models.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use smol_str::SmolStr;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::warn;
use wva_core::model::{GroupId, InvalidVariant, TargetRef, Variant, VariantId};
use wva_core::snapshot::{Phase, Pod, VariantState};
use wva_core::text::is_plain;

use super::board::Published;
use super::ports::{ClusterView, Collected, Labels, MAX_VARIANTS_PER_MODEL, Revision, SourceError};
use super::restored::Restored;

/// The models of variants that name none.
pub type LearnedModels = BTreeMap<VariantId, LearnedModel>;

/// The model of each variant of one evaluation that names none, or why nothing is decided about it.
pub type NamedModels = BTreeMap<VariantId, Result<SmolStr, InvalidVariant>>;

/// How long a new leader waits for a policy with the models that an earlier one learned. It takes 2 s at most.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(10);
/// Most names of models that are kept of one variant, so that a page with thousands of names costs nothing.
const MAX_NAMES: usize = 16;
/// Most of these names in a message.
const MAX_SHOWN_NAMES: usize = 4;

/// A model that was learned, and of which object: one of the same name, or with another target, may serve another model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LearnedModel {
    /// Its name.
    pub name: SmolStr,
    /// False for the variants of a model after the first [`MAX_VARIANTS_PER_MODEL`].
    pub is_decided: bool,
    /// The object's uid, if it is known.
    pub uid: Option<SmolStr>,
    /// The object's scale target; `None` for one that has been invalid since this instance leads.
    pub target: Option<TargetRef>,
}

impl LearnedModel {
    fn new(view: &ClusterView, id: &VariantId, name: SmolStr) -> Self {
        let target = view.variant(id).map(|state| state.variant.target.clone());
        Self { name, is_decided: true, uid: uid(&view.revisions, id).cloned(), target }
    }

    fn is_of(&self, view: &ClusterView, variant: &Variant) -> bool {
        self.uid.as_ref() == uid(&view.revisions, &variant.id)
            && self.target.as_ref().is_none_or(|target| *target == variant.target)
    }
}

/// What was learned, and what of it counts.
#[derive(Debug, Default)]
pub struct ModelNames {
    learned: watch::Sender<Arc<LearnedModels>>,
    in_force: watch::Sender<Arc<LearnedModels>>,
}

impl ModelNames {
    /// What was learned, whenever it changes. Only the leader learns.
    #[must_use]
    pub fn learned(&self) -> watch::Receiver<Arc<LearnedModels>> {
        self.learned.subscribe()
    }

    /// Puts models in force: the engine's policy contains the settings of their variants.
    pub fn put_in_force(&self, models: Arc<LearnedModels>) {
        self.in_force.send_replace(models);
    }

    /// The models in force. A policy that is read after them contains the settings of their variants.
    pub(super) fn in_force(&self) -> Arc<LearnedModels> {
        self.in_force.borrow().clone()
    }

    /// Learns from `answer` which models the variants of `view` serve that name none. Of these, `in_force` count. `last` is the last
    /// result, which has the model of a variant that named its own until now.
    pub(super) fn learn(
        &self,
        view: &ClusterView,
        answer: &Result<Collected, SourceError>,
        last: &Published,
        in_force: &LearnedModels,
    ) -> NamedModels {
        let before = self.learned.borrow().clone();
        let known = |variant: &Variant| match before.get(&variant.id) {
            Some(model) => model.is_of(view, variant).then(|| model.name.clone()),
            None => last_model(last, view, &variant.id),
        };
        let served = served_models(view, answer, known);
        if served.is_empty() && before.is_empty() {
            return NamedModels::new();
        }
        // An object that is corrected later continues with its model.
        let invalid = view.invalid.iter().filter_map(|invalid| before.get_key_value(&invalid.id));
        let mut learned: LearnedModels = invalid.map(|(id, model)| (id.clone(), model.clone())).collect();
        let mut named = NamedModels::new();
        for served in served {
            let variant = served.variant;
            let name = match served.model() {
                Ok(name) => {
                    let counting = name_in_force(view, variant, &name, in_force);
                    learned.insert(variant.id.clone(), LearnedModel::new(view, &variant.id, name));
                    counting
                }
                Err(problem) => Err(model_unknown(variant, problem)),
            };
            named.insert(variant.id.clone(), name);
        }
        refuse_excess(view, &mut learned);
        self.learned.send_if_modified(|before| {
            let is_new = **before != learned;
            if is_new {
                *before = Arc::new(learned);
            }
            is_new
        });
        named
    }

    /// Continues with the models that an earlier leader decided about, and waits until they are in force. Otherwise the numbers of
    /// their variants would be unknown, or decided without their settings, for a moment.
    pub(super) async fn restore(&self, view: &ClusterView, restored: &Restored) {
        let unnamed = unnamed(view).map(|state| &state.variant.id);
        // An invalid object may name none once it is corrected.
        let ids: BTreeSet<&VariantId> =
            unnamed.chain(view.invalid.iter().map(|invalid| &invalid.id)).collect();
        let mut models = LearnedModels::new();
        if !ids.is_empty() {
            let known = remembered(restored).filter(|(id, _)| ids.contains(id));
            models.extend(known.map(|(id, name)| {
                let model = LearnedModel::new(view, &id, name);
                (id, model)
            }));
        }
        for (id, model) in self.learned.borrow().iter().filter(|(id, _)| ids.contains(id)) {
            models.entry(id.clone()).or_insert_with(|| model.clone());
        }
        refuse_excess(view, &mut models);
        let models = Arc::new(models);
        self.learned.send_replace(models.clone());
        let mut in_force = self.in_force.subscribe();
        if timeout(RESTORE_TIMEOUT, in_force.wait_for(|in_force| *in_force == models)).await.is_err() {
            warn!(
                "the settings of variants that name no model are not in force yet: they have no number until then"
            );
        }
    }
}

/// The variants of `view`, with the models in force of those that name none.
pub(super) fn with_models<'v>(view: &'v ClusterView, in_force: &LearnedModels) -> Vec<Cow<'v, Variant>> {
    let named = |variant: &'v Variant| match in_force.get(&variant.id) {
        Some(model) if !variant.names_model() => {
            Cow::Owned(Variant { model: model.name.clone(), ..variant.clone() })
        }
        _ => Cow::Borrowed(variant),
    };
    view.variants.iter().map(|state| named(&state.variant)).collect()
}

/// The model in force of a variant that serves `learned`, or why nothing is decided about it.
fn name_in_force(
    view: &ClusterView,
    variant: &Variant,
    learned: &str,
    in_force: &LearnedModels,
) -> Result<SmolStr, InvalidVariant> {
    match in_force.get(&variant.id).filter(|model| model.is_of(view, variant)) {
        Some(model) if model.is_decided => Ok(model.name.clone()),
        Some(LearnedModel { name, .. }) => {
            let problem = format!(
                "its pods serve {name:?}, and that model has more than {MAX_VARIANTS_PER_MODEL} variants in this namespace: delete \
                 this variant or others of the model"
            );
            Err(InvalidVariant::new(variant.id.clone(), problem))
        }
        None => {
            let problem = format!(
                "the pods of {} serve {learned:?}, which counts once the settings of this object do, in a few seconds",
                variant.target
            );
            Err(model_unknown(variant, problem))
        }
    }
}

fn model_unknown(variant: &Variant, problem: String) -> InvalidVariant {
    InvalidVariant { is_model_unknown: true, ..InvalidVariant::new(variant.id.clone(), problem) }
}

fn uid<'r>(revisions: &'r BTreeMap<VariantId, Revision>, id: &VariantId) -> Option<&'r SmolStr> {
    revisions.get(id).map(|object| &object.uid)
}

/// The model of an object in the last result.
fn last_model(last: &Published, view: &ClusterView, id: &VariantId) -> Option<SmolStr> {
    let is_same = uid(&last.revisions, id) == uid(&view.revisions, id);
    let model = last.decisions.get(id).filter(|_| is_same).map(|decision| decision.model.clone());
    model.filter(|model| !model.is_empty())
}

/// Marks the variants of each model after the first [`MAX_VARIANTS_PER_MODEL`]: first those that name it, then by name.
fn refuse_excess(view: &ClusterView, learned: &mut LearnedModels) {
    if learned.is_empty() {
        return;
    }
    let mut counts: HashMap<GroupId, usize> = HashMap::new();
    for state in view.variants.iter().filter(|state| state.variant.names_model()) {
        *counts.entry(state.variant.group()).or_default() += 1;
    }
    for VariantState { variant, .. } in unnamed(view) {
        let Some(model) = learned.get_mut(&variant.id) else { continue };
        let group = GroupId::new(variant.id.namespace.clone(), model.name.clone());
        let count = counts.entry(group).or_default();
        *count += 1;
        model.is_decided = *count <= MAX_VARIANTS_PER_MODEL;
    }
}

/// The model of each variant that an earlier leader knew: that of its last decision, or of its memory.
fn remembered(restored: &Restored) -> impl Iterator<Item = (VariantId, SmolStr)> {
    let of_memory = restored.memory.groups.iter().flat_map(|(group, memory)| {
        let names = memory.variants.iter().map(|(name, _)| name.clone());
        names.map(|name| (VariantId::new(group.namespace.clone(), name), group.model.clone()))
    });
    let decided = restored.decisions.iter().filter(|(_, decision)| !decision.model.is_empty());
    // The later one counts.
    of_memory.chain(decided.map(|(id, decision)| (id.clone(), decision.model.clone())))
}

fn unnamed(view: &ClusterView) -> impl Iterator<Item = &VariantState> {
    view.variants.iter().filter(|state| !state.variant.names_model())
}

/// What the pods of one variant serve.
struct ServedModels<'a> {
    variant: &'a Variant,
    /// Where its object would name its model.
    field: &'static str,
    known: Option<SmolStr>,
    /// Whether one of its pods, in whichever phase, serves the known model, or the answer has a gap in which one may.
    keeps_known: bool,
    /// What its Ready pods serve.
    names: BTreeSet<&'a str>,
    /// The Ready pods of which nothing says what they serve.
    silent: BTreeSet<&'a str>,
}

impl<'a> ServedModels<'a> {
    fn add(&mut self, pod: &'a Pod, model: &'a str) {
        self.keeps_known |= self.known.as_ref().is_some_and(|known| known == model);
        if pod.phase == Phase::Ready {
            self.silent.remove(pod.name.as_str());
            if self.names.len() < MAX_NAMES {
                self.names.insert(model);
            }
        }
    }

    /// The model of the variant, or why it is not known. The known one stays until every Ready pod serves others.
    fn model(self) -> Result<SmolStr, String> {
        let Self { variant, field, known, keeps_known, names, silent } = self;
        if let Some(known) = known.filter(|_| keeps_known || names.is_empty() || !silent.is_empty()) {
            return Ok(known);
        }
        let target = &variant.target;
        let mut in_order = names.iter().copied();
        match (in_order.next(), in_order.next()) {
            (None, _) => Err(format!(
                "{field} is not set, and no Ready pod of {target} has metrics that name a model (label model_name): have a pod \
                 Ready and scraped once, or set {field}"
            )),
            (Some(model), None) if is_model_name(model) => Ok(model.into()),
            (Some(model), None) => Err(format!(
                "{field} is not set, and the pods of {target} serve {model:?}: the name of a model must have at most {} \
                 characters and no control characters; correct the name that they serve",
                Variant::MAX_MODEL_CHARS
            )),
            (Some(_), Some(_)) => {
                let shown: Vec<_> =
                    names.iter().take(MAX_SHOWN_NAMES).map(|name| format!("{name:?}")).collect();
                let more = if names.len() > MAX_SHOWN_NAMES { " and others" } else { "" };
                Err(format!(
                    "{field} is not set, and the pods of {target} serve several models, {}{more}: set {field} to one of them",
                    shown.join(", ")
                ))
            }
        }
    }
}

fn is_model_name(name: &str) -> bool {
    name.chars().count() <= Variant::MAX_MODEL_CHARS && name.chars().all(is_plain)
}

/// What the pods of each variant serve that names no model. As where series are joined, a series belongs to the pod of its
/// namespace and name. Samples from before the pod was created are of an earlier one of the same name.
fn served_models<'a>(
    view: &'a ClusterView,
    answer: &'a Result<Collected, SourceError>,
    known: impl Fn(&Variant) -> Option<SmolStr>,
) -> Vec<ServedModels<'a>> {
    let (series, gaps) =
        answer.as_ref().map_or((&[][..], &[][..]), |collected| (&collected.series[..], &collected.gaps[..]));
    let mut served = Vec::new();
    let mut namespaces: HashMap<&str, HashMap<&str, (usize, &Pod)>> = HashMap::new();
    for (index, VariantState { variant, pods, .. }) in unnamed(view).enumerate() {
        let ready = pods.iter().filter(|pod| pod.phase == Phase::Ready);
        served.push(ServedModels {
            variant,
            field: view.model_field(&variant.id),
            known: known(variant),
            keeps_known: gaps.iter().any(|gap| gap.concerns(&variant.id.namespace)),
            names: BTreeSet::new(),
            silent: ready.map(|pod| pod.name.as_str()).collect(),
        });
        let pods = pods.iter().map(|pod| (pod.name.as_str(), (index, pod)));
        namespaces.entry(&variant.id.namespace).or_default().extend(pods);
    }
    for series in series.iter().filter(|series| series.is_of_engine()) {
        let Labels { namespace, pod, model, .. } = &*series.labels;
        let pod = namespaces.get(&**namespace).and_then(|pods| pods.get(&**pod));
        let model = model.as_deref().filter(|model| !model.is_empty());
        let (Some(model), Some(&(index, pod))) = (model, pod) else { continue };
        let is_of_pod = series.samples.last().is_some_and(|sample| sample.at >= pod.created);
        if let Some(models) = served.get_mut(index).filter(|_| is_of_pod) {
            models.add(pod, model);
        }
    }
    served
}

#[cfg(test)]
mod tests;
