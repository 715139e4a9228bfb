//! The settings of VariantAutoscalings: which count, and how their owners are told about them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};
use wva_core::{GroupId, VariantId};

use crate::cluster::objects::{VariantKind, VariantObject};
use crate::cluster::{ClusterState, EventRecorder, EventType, Recorded};
use crate::config::policy_config::{Finding, Findings, ModelVariant, VariantsByModel};
use crate::engine::{LearnedModel, LearnedModels};
use wva_core::text::plain;

/// Most findings that are logged, and that are recorded as events, at a time.
const MAX_AT_A_TIME: usize = 20;
/// Most of these events about variants of one namespace.
const MAX_RECORDED_PER_NAMESPACE: usize = 5;
/// Longest text about one object: that of an event.
const MAX_TEXT_BYTES: usize = 1000;

/// The variants of each model of which at least one has settings. `models` are those of variants that name none. Variants of which the
/// model cannot be read may be of any model of their namespace; the first of them stands for all.
pub(crate) fn with_settings(state: &ClusterState, models: &LearnedModels) -> VariantsByModel {
    let mut variants = VariantsByModel::new();
    if state.objects.values().all(|object| object.settings.is_none()) {
        return variants;
    }
    let ignored: BTreeSet<&VariantId> = state.view.invalid.iter().map(|invalid| &invalid.id).collect();
    let is_decided =
        |id: &VariantId| !ignored.contains(id) && models.get(id).is_none_or(|model| model.is_decided);
    let model_of = |id: &VariantId, object: &VariantObject| {
        object.model.clone().or_else(|| models.get(id).map(|model| model.name.clone()))
    };
    let of_known_model =
        || state.objects.iter().filter_map(|(id, object)| Some((id, model_of(id, object)?, object)));
    for (id, model, object) in of_known_model() {
        if object.settings.is_some() && is_decided(id) {
            variants.entry(GroupId::new(id.namespace.clone(), model)).or_default();
        }
    }
    for (id, model, object) in of_known_model() {
        if let Some(of_model) = variants.get_mut(&GroupId::new(id.namespace.clone(), model)) {
            let (name, settings) = (id.name.clone(), object.settings.clone());
            of_model.push(ModelVariant { name, settings, is_decided: is_decided(id) });
        }
    }
    let mut unreadable: BTreeMap<&str, &VariantId> = BTreeMap::new();
    let is_unreadable =
        |id: &VariantId, object: &VariantObject| object.variant.is_err() && model_of(id, object).is_none();
    for (id, _) in state.objects.iter().filter(|(id, object)| is_unreadable(id, object)) {
        unreadable.entry(&id.namespace).or_insert(id);
    }
    for (group, of_model) in &mut variants {
        if let Some(id) = unreadable.get(&*group.namespace) {
            of_model.push(ModelVariant { name: id.name.clone(), settings: None, is_decided: false });
        }
    }
    variants
}

/// What is reported about the settings of a variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Topic {
    /// Settings that are invalid.
    Invalid,
    /// Settings without effect.
    Unused,
    /// What settings make of their model.
    InEffect,
    /// Which model a variant serves that names none.
    Model,
}

impl Topic {
    const fn event(self) -> (EventType, &'static str) {
        match self {
            Self::Invalid => (EventType::Warning, "InvalidConfiguration"),
            Self::Unused => (EventType::Normal, "FieldsWithoutEffect"),
            Self::InEffect => (EventType::Normal, "SettingsInEffect"),
            Self::Model => (EventType::Normal, "ModelLearned"),
        }
    }
}

/// The findings that were reported. One that is new is logged, and recorded as an event; that of a lasting problem is repeated.
#[derive(Default)]
pub(super) struct FindingReports(BTreeMap<(VariantId, Topic), FindingReport>);

struct FindingReport {
    text: String,
    /// When its event was queued last.
    recorded: Option<Instant>,
}

impl FindingReports {
    /// Logs those of `findings` and of `models`, the models of variants of `state` that name none, that are new.
    pub(super) fn update(&mut self, findings: Findings, models: &LearnedModels, state: &ClusterState) {
        let mut known = std::mem::take(&mut self.0);
        let mut new = 0;
        let of_findings = findings.into_iter().flat_map(|(id, Finding { errors, notes, in_effect })| {
            let texts = [
                (Topic::Invalid, errors.join("; ")),
                (Topic::Unused, notes.join("; ")),
                (Topic::InEffect, in_effect),
            ];
            texts.map(|(topic, text)| ((id.clone(), topic), text))
        });
        // An object that has been invalid since this instance leads may name its model.
        let is_known = |id: &VariantId| state.objects.contains_key(id);
        let learned = models.iter().filter(|(id, model)| model.target.is_some() && is_known(id));
        let of_models = learned.map(|(id, LearnedModel { name, .. })| {
            let field = state.view.model_field(id);
            let text =
                format!("{field} is not set: the model is {name:?}, which the metrics of the pods name");
            ((id.clone(), Topic::Model), text)
        });
        for (key, text) in of_findings.chain(of_models).filter(|(_, text)| !text.is_empty()) {
            // It contains what the author of the object wrote.
            let text = plain(&text, MAX_TEXT_BYTES);
            let known = known.remove(&key).filter(|report| report.text == text);
            if known.is_none() {
                new += 1;
                if new <= MAX_AT_A_TIME {
                    let kind = state.objects.get(&key.0).map(|object| object.kind).unwrap_or_default();
                    log(kind, &key.0, key.1, &text);
                }
            }
            self.0.insert(key, known.unwrap_or(FindingReport { text, recorded: None }));
        }
        if new > MAX_AT_A_TIME {
            warn!("and {} more about settings and models of variants, which are events", new - MAX_AT_A_TIME);
        }
    }

    /// Records events, a few at a time, so that no namespace delays those of the others. That of a problem that lasts is repeated after
    /// `repeat`. False if more can be recorded at once.
    pub(super) fn record(&mut self, repeat: Duration, events: &EventRecorder) -> bool {
        self.record_by(repeat, |id, topic, text| {
            let (type_, reason) = topic.event();
            events.record_settings(id, type_, reason, text)
        })
    }

    fn record_by(
        &mut self,
        repeat: Duration,
        mut record: impl FnMut(&VariantId, Topic, String) -> Recorded,
    ) -> bool {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let mut recorded = 0;
        for ((id, topic), report) in &mut self.0 {
            let count = counts.entry(&id.namespace).or_default();
            let is_due = report.recorded.is_none_or(|at| *topic == Topic::Invalid && at.elapsed() >= repeat);
            if !is_due || *count == MAX_RECORDED_PER_NAMESPACE {
                continue;
            }
            if recorded == MAX_AT_A_TIME {
                return false;
            }
            match record(id, *topic, report.text.clone()) {
                Recorded::Queued => {
                    report.recorded = Some(Instant::now());
                    (*count, recorded) = (*count + 1, recorded + 1);
                }
                // An earlier text was recorded a short time ago: this one follows.
                Recorded::Repeated => {}
                // It is counted, and tried again later.
                Recorded::Lost => return true,
            }
        }
        recorded == 0
    }

    /// Whether events could not be recorded yet.
    pub(super) fn is_waiting(&self) -> bool {
        self.0.values().any(|report| report.recorded.is_none())
    }
}

fn log(kind: VariantKind, id: &VariantId, topic: Topic, text: &str) {
    match topic {
        Topic::Invalid | Topic::InEffect => warn!("{kind} {id}: {text}"),
        Topic::Unused | Topic::Model => info!("{kind} {id}: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;
    use serde_json::json;
    use wva_core::model::{Bounds, InvalidVariant, Role, TargetRef, Variant};
    use wva_core::units::Cost;

    use super::*;
    use crate::config::policy_config::VariantSettings;
    use crate::engine::ClusterView;

    fn id(name: &str) -> VariantId {
        VariantId::new("llm", name)
    }

    fn invalid(name: &str) -> InvalidVariant {
        InvalidVariant::new(id(name), String::new())
    }

    fn object(name: &str, model: Option<&str>) -> VariantObject {
        let settings = model.map(|_| Arc::new(VariantSettings::read(json!({ "sloTtft": 300 }))));
        VariantObject {
            kind: VariantKind::default(),
            is_called: false,
            uid: name.into(),
            created: Timestamp::UNIX_EPOCH,
            generation: 1,
            notices: Vec::new(),
            settings,
            model: model.map(Into::into),
            target: None,
            variant: Err(invalid(name)),
            status: None,
        }
    }

    fn findings(error: &str) -> Findings {
        Findings::from([(id("a"), Finding { errors: vec![error.to_owned()], ..Finding::default() })])
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_error_within_ten_minutes_is_told_after_them_and_a_lasting_one_again() {
        let repeat = Duration::from_secs(1800);
        let mut reports = FindingReports::default();
        let mut outcomes = Vec::new();
        let mut record = |reports: &mut FindingReports, outcome: Recorded| {
            reports.record_by(repeat, |_, _, text| {
                outcomes.push(format!("{text}: {outcome:?}"));
                outcome
            })
        };
        reports.update(findings("first"), &LearnedModels::new(), &ClusterState::default());
        assert!(!record(&mut reports, Recorded::Queued));
        assert!(record(&mut reports, Recorded::Queued), "nothing is left");
        reports.update(findings("second"), &LearnedModels::new(), &ClusterState::default());
        assert!(record(&mut reports, Recorded::Repeated) && reports.is_waiting());
        reports.update(findings("second"), &LearnedModels::new(), &ClusterState::default());
        assert!(!record(&mut reports, Recorded::Queued) && !reports.is_waiting());
        tokio::time::advance(repeat).await;
        assert!(!record(&mut reports, Recorded::Queued));
        assert_eq!(outcomes, ["first: Queued", "second: Repeated", "second: Queued", "second: Queued"]);
    }

    #[test]
    fn a_variant_about_which_nothing_is_decided_has_no_settings_that_count_but_is_known() {
        let objects = [("a", Some("m")), ("b", Some("m")), ("c", None)];
        let objects =
            objects.into_iter().map(|(name, model)| (id(name), Arc::new(object(name, model)))).collect();
        let invalid = vec![invalid("b"), invalid("c")];
        let view = Arc::new(ClusterView { invalid, ..ClusterView::default() });
        let state = ClusterState { view, objects, ..ClusterState::default() };
        let variants = with_settings(&state, &LearnedModels::new());
        assert_eq!(decided(&variants, "m"), [("a", true), ("b", false), ("c", false)]);
    }

    fn decided<'v>(variants: &'v VariantsByModel, model: &str) -> Vec<(&'v str, bool)> {
        let of_model = &variants[&GroupId::new("llm", model)];
        of_model.iter().map(|variant| (&*variant.name, variant.is_decided)).collect()
    }

    /// A valid object that names no model and has settings.
    fn unnamed(name: &str) -> VariantObject {
        let variant = Variant {
            id: id(name),
            model: "".into(),
            target: TargetRef::deployment(name),
            cost: Cost::ZERO,
            bounds: Bounds::default(),
            accelerator: None,
            role: Role::Both,
            woken_by: None,
        };
        VariantObject { model: None, variant: Ok(variant), ..object(name, Some("m")) }
    }

    fn learned(name: &str, is_decided: bool) -> LearnedModels {
        let target = Some(TargetRef::deployment("a"));
        let model = LearnedModel { name: name.into(), is_decided, uid: Some("a".into()), target };
        LearnedModels::from([(id("a"), model)])
    }

    fn state_with_unnamed() -> ClusterState {
        let named = VariantObject { model: Some("m".into()), ..unnamed("b") };
        let objects = BTreeMap::from([(id("a"), Arc::new(unnamed("a"))), (id("b"), Arc::new(named))]);
        ClusterState { objects, ..ClusterState::default() }
    }

    #[test]
    fn a_variant_without_a_model_woke_every_model_of_its_namespace() {
        let variants = with_settings(&state_with_unnamed(), &LearnedModels::new());
        assert_eq!(decided(&variants, "m"), [("b", true)], "nothing says that it is of this model");
    }

    #[test]
    fn a_variant_that_names_no_model_tunes_the_one_that_its_pods_serve() {
        let state = state_with_unnamed();
        let known = with_settings(&state, &learned("other", true));
        assert_eq!((decided(&known, "m"), decided(&known, "other")), (vec![("b", true)], vec![("a", true)]));
        let text = |state: &ClusterState| {
            let mut reports = FindingReports::default();
            reports.update(Findings::new(), &learned("other", true), state);
            reports.0.into_values().map(|report| report.text).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(
            text(&state),
            "spec.modelID is not set: the model is \"other\", which the metrics of the pods name"
        );
        let view = ClusterView { annotated: [id("a")].into(), ..ClusterView::default() };
        let annotated = ClusterState { view: Arc::new(view), ..state };
        assert!(
            text(&annotated)
                .starts_with("the annotation llm-d.ai/model-id is not set: the model is \"other\"")
        );
    }

    #[test]
    fn the_settings_of_the_101st_variant_of_a_learned_model_counted() {
        let variants = with_settings(&state_with_unnamed(), &learned("m", false));
        assert_eq!(decided(&variants, "m"), [("a", false), ("b", true)]);
    }
}
