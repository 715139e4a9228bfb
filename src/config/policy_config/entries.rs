//! Entries of the ConfigMaps. Fields that an entry does not set are taken from the entry `default`, and only then from the defaults
//! of the program, so that an entry that tunes one field keeps what is tuned for all models. (In WVA v0.9 the program's defaults
//! come first: an entry with only a priority resets all tuned thresholds.)

use std::time::Duration;

use serde::{Deserialize, Deserializer, de::Error};
use serde_json::Value;
use smol_str::SmolStr;
use wva_core::GroupId;
use wva_core::model::{
    Analyzer, ClassTarget, LatencyTargets, ModelPolicy, QueueingPolicy, SaturationPolicy, ScaleToZero,
    ServiceClass, UnitCost, Utilisation,
};
use wva_core::units::Cost;

use super::super::document::Diagnostics;
use super::analyzers::AnalyzerChoice;
use super::fields::SaturationFields;
use super::last_good::DEFAULT;
use super::limits::Limits;
use super::model_key::ModelKey;
use super::overlay::{
    AnyPriority, Budget, Latency, Overlay, PositiveFraction, Retention, ScaleToZeroOverlay, Section,
    SloMultiplier, Switch, Text, Weight, overlay,
};

/// Retention periods above one day are valid, but usually a mistake.
const MAX_USUAL_RETENTION: Duration = Duration::from_secs(86_400);

/// An entry of the saturation ConfigMap.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct SaturationEntry {
    /// The model; `None` for the default.
    pub(super) group: Option<GroupId>,
    pub(super) choice: AnalyzerChoice,
    pub(super) limits: Limits,
    pub(super) fields: SaturationFields,
}

impl SaturationEntry {
    pub(super) fn new(fields: SaturationFields, key: ModelKey<'_>, diagnostics: &mut Diagnostics) -> Self {
        let group = key.group(&fields.model_id, &fields.namespace, diagnostics);
        if let (Some(full), Some(spare)) = (fields.kv_cache_threshold, fields.kv_spare_trigger)
            && full < spare
        {
            let (full, spare) = (full.get(), spare.get());
            diagnostics.error(format!("kvCacheThreshold {full} must be at least kvSpareTrigger {spare}"));
        }
        let choice = AnalyzerChoice::new(&fields, diagnostics);
        let limits = Limits::new(&fields, diagnostics);
        Self { group, choice, limits, fields }
    }

    /// The settings of scaling to zero.
    pub(super) fn scale_to_zero(&self) -> ScaleToZeroOverlay {
        self.fields.scale_to_zero.as_ref().map(|section| section.0.clone()).unwrap_or_default()
    }

    fn apply_to(&self, policy: &mut ModelPolicy) {
        self.fields.apply_to(&mut policy.saturation);
        self.fields.rate.apply_to(&mut policy.rate);
        self.fields.scoring.apply_to(&mut policy.scoring);
        self.fields.stability.apply_to(&mut policy.stability);
        policy.priority = self.fields.priority.map_or(policy.priority, Weight::get);
    }
}

/// The policy of a model: `layers` over the program's defaults, the lowest first. `choice` combines the analyzers of all layers;
/// `scale_to_zero` is `None` if no entry sets it.
pub(super) fn model_policy(
    layers: &[&SaturationEntry],
    choice: &AnalyzerChoice,
    scale_to_zero: Option<ScaleToZero>,
    queueing: QueueingPolicy,
    diagnostics: &mut Diagnostics,
) -> ModelPolicy {
    let mut policy = ModelPolicy { scale_to_zero, queueing, ..ModelPolicy::default() };
    let (mut up, mut down) = (None, None);
    for entry in layers {
        entry.apply_to(&mut policy);
        up = entry.fields.scale_up_threshold.or(up);
        down = entry.fields.scale_down_boundary.or(down);
    }
    let chosen = choice.resolve(up.map(PositiveFraction::get), down.map(PositiveFraction::get), diagnostics);
    let uses_scores = matches!(chosen.analyzer, Analyzer::Threshold | Analyzer::Weighted);
    let scoring = if uses_scores { chosen.utilisation } else { Utilisation::of(Analyzer::Threshold) };
    policy.scoring.up = scoring.up;
    policy.scoring.down = scoring.down;
    policy.analyzer = chosen.analyzer;
    policy.secondary = chosen.secondary;
    policy.utilisation = chosen.utilisation;
    policy.score = chosen.score;
    policy.saturation = consistent_saturation(policy.saturation, diagnostics);
    policy
}

/// Replaces thresholds that contradict each other, as those of several entries may, by the defaults.
fn consistent_saturation(policy: SaturationPolicy, diagnostics: &mut Diagnostics) -> SaturationPolicy {
    policy.validated().unwrap_or_else(|error| {
        let SaturationPolicy { kv_cache_threshold, kv_spare_trigger, .. } = SaturationPolicy::default();
        diagnostics.note(format!(
            "{error}, {}: {kv_cache_threshold} and {kv_spare_trigger} count instead",
            policy.kv_spare_trigger
        ));
        SaturationPolicy { kv_cache_threshold, kv_spare_trigger, ..policy }
    })
}

overlay! {
    /// The fields of an entry of the queueing model's ConfigMap.
    QueueingFields over QueueingPolicy {
        slo_multiplier: SloMultiplier,
        #[serde(rename = "tuningEnabled")]
        tuning: Switch,
    } with {
        #[serde(rename = "model_id")]
        model_id: Text,
        namespace: Text,
        #[serde(rename = "targetTTFT")]
        target_ttft: Latency,
        #[serde(rename = "targetITL")]
        target_itl: Latency,
    }
}

/// An entry of the queueing model's ConfigMap.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct QueueingEntry {
    /// The model; `None` for the default.
    pub(super) group: Option<GroupId>,
    targets: Option<LatencyTargets>,
    fields: QueueingFields,
}

impl QueueingEntry {
    pub(super) fn new(fields: QueueingFields, key: ModelKey<'_>, diagnostics: &mut Diagnostics) -> Self {
        let group = key.group(&fields.model_id, &fields.namespace, diagnostics);
        let targets = match (fields.target_ttft, fields.target_itl) {
            (Some(ttft), Some(itl)) => Some(LatencyTargets { ttft_ms: ttft.get(), itl_ms: itl.get() }),
            (None, None) => None,
            _ => {
                diagnostics.error("targetTTFT and targetITL belong together: must have both or neither");
                None
            }
        };
        if group.is_none() && targets.is_some() {
            diagnostics
                .note("targetTTFT and targetITL have no effect here: they must be in the entry of a model");
        }
        Self { targets: targets.filter(|_| group.is_some()), group, fields }
    }

    /// The policy of this entry over `below`, of which the targets do not count.
    pub(super) fn policy(&self, below: &Self) -> QueueingPolicy {
        let mut policy = QueueingPolicy { targets: self.targets, ..QueueingPolicy::default() };
        below.fields.apply_to(&mut policy);
        self.fields.apply_to(&mut policy);
        policy
    }
}

overlay! {
    /// An entry of the ConfigMap of scaling to zero.
    ScaleToZeroEntry over ScaleToZero {
        #[serde(rename = "enable_scale_to_zero")]
        enabled: Switch,
        #[serde(rename = "retention_period")]
        retention: Retention,
    } with {
        #[serde(rename = "model_id")]
        model_id: Text,
        namespace: Text,
    }
}

impl ScaleToZeroEntry {
    /// Reports what is wrong with it.
    pub(super) fn checked(self, key: &str, diagnostics: &mut Diagnostics) -> Self {
        match (key == DEFAULT, self.model()) {
            (true, Some(_)) => {
                diagnostics.note("model_id has no effect here: the entry default is about every model");
            }
            (false, None) => {
                diagnostics.error("model_id is missing: must be the modelID of the model's variants");
            }
            _ => {}
        }
        if Text::non_empty(&self.namespace).is_some() {
            diagnostics.note("namespace has no effect: an entry is about its model in all namespaces");
        }
        if self.retention.is_some_and(|period| period.get() > MAX_USUAL_RETENTION) {
            diagnostics.note("retention_period is more than a day");
        }
        self
    }

    /// The model, in all namespaces; `None` for the default.
    pub(super) fn model(&self) -> Option<&SmolStr> {
        Text::non_empty(&self.model_id)
    }
}

/// An entry of the ConfigMap of service classes: one class.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ClassEntry {
    name: Option<Text>,
    priority: Option<AnyPriority>,
    data: Option<Vec<Section<ClassModel>>>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
struct ClassModel {
    model: Option<Text>,
    slo_ttft: Option<Latency>,
    slo_tpot: Option<Latency>,
}

impl ClassEntry {
    /// The class. As in WVA, the name is optional, and an invalid priority counts as the lowest.
    pub(super) fn class(self, diagnostics: &mut Diagnostics) -> ServiceClass {
        let name = Text::non_empty(&self.name).cloned().unwrap_or(ServiceClass::UNNAMED.into());
        let lowest = ServiceClass::LOWEST;
        // Compared as floats with a tolerance, since YAML authors may write 2.0.
        let valid = self.priority.and_then(|written| {
            (1..=lowest).find(|priority| (f64::from(*priority) - written.get()).abs() < 1e-9)
        });
        if valid.is_none() && self.priority.is_some() {
            diagnostics.note("priority is not a whole number from 1 to 100: it counts as 100, the lowest");
        }
        let models = self.data.into_iter().flatten().enumerate();
        let targets = models.filter_map(|(index, Section(model))| model.target(index, diagnostics)).collect();
        ServiceClass { name, priority: valid.unwrap_or(lowest), targets }
    }
}

impl ClassModel {
    fn target(self, index: usize, diagnostics: &mut Diagnostics) -> Option<ClassTarget> {
        let model = Text::non_empty(&self.model);
        if model.is_none() {
            diagnostics.error(format!("data[{index}].model is missing"));
        }
        match (self.slo_ttft, self.slo_tpot) {
            (Some(ttft), Some(itl)) => {
                let latency = LatencyTargets { ttft_ms: ttft.get(), itl_ms: itl.get() };
                return Some(ClassTarget { model: model?.clone(), latency });
            }
            (None, None) => diagnostics.note(format!(
                "data[{index}] has neither slo-ttft nor slo-tpot: this model has no objectives"
            )),
            _ => diagnostics.error(format!(
                "data[{index}].slo-ttft and slo-tpot belong together: must have both or neither"
            )),
        }
        None
    }
}

/// An entry of the ConfigMap of accelerator costs: one accelerator, named by the key.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AcceleratorEntry {
    device: Option<Text>,
    #[serde(deserialize_with = "number_or_string")]
    cost: Option<Budget>,
}

impl AcceleratorEntry {
    /// The cost of the accelerator.
    pub(super) fn unit_cost(self, diagnostics: &mut Diagnostics) -> Option<UnitCost> {
        let Some(cost) = self.cost else {
            diagnostics.error("cost is missing: must be a number, 0 to 1e9");
            return None;
        };
        let device = Text::non_empty(&self.device).cloned().unwrap_or_default();
        Some(UnitCost { device, cost: Cost::new(cost.get()).ok()? })
    }
}

/// In WVA's manifests these numbers are strings.
fn number_or_string<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Budget>, D::Error> {
    let written = Value::deserialize(from)?;
    let number = written.as_str().and_then(|text| text.trim().parse::<f64>().ok());
    Option::deserialize(number.filter(|number| number.is_finite()).map_or(written, Value::from))
        .map_err(D::Error::custom)
}
