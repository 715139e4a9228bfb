//! Entries of the ConfigMaps as they are written. What an entry leaves open is filled in from the entry `default` and only then
//! from the defaults of the program, so that an entry which tunes one field keeps what is tuned for all. (WVA v0.9 fills in the
//! program's defaults first: an entry with a priority alone resets every tuned threshold.)

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
use super::analyzers::Choice;
use super::fields::SaturationFields;
use super::last_good::DEFAULT;
use super::limits::Limits;
use super::model_key::ModelKey;
use super::overlay::{
    AnyPriority, Budget, Latency, Overlay, Retention, ScaleToZeroOverlay, Section, SloMultiplier, Switch,
    Text, Weight, overlay, seconds,
};

/// A longer retention period than this many seconds, a day, is legal and rarely meant.
const LONG_RETENTION_SECONDS: u64 = 86_400;

/// An entry of the saturation ConfigMap.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct SaturationEntry {
    /// The model; `None` for the default.
    pub(super) group: Option<GroupId>,
    pub(super) choice: Choice,
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
        let choice = Choice::new(&fields, diagnostics);
        let limits = Limits::new(&fields, diagnostics);
        Self { group, choice, limits, fields }
    }

    /// What is set of scaling to zero.
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

/// The policy of a model: `layers` over the program's defaults, the lowest first. `choice` is what they say of analyzers, together
/// with what is said elsewhere; `zero` what is said of scaling to zero, when anything is.
pub(super) fn model_policy(
    layers: &[&SaturationEntry],
    choice: &Choice,
    zero: Option<ScaleToZero>,
    queueing: QueueingPolicy,
    diagnostics: &mut Diagnostics,
) -> ModelPolicy {
    let mut policy = ModelPolicy { scale_to_zero: zero, queueing, ..ModelPolicy::default() };
    let (mut up, mut down) = (None, None);
    for entry in layers {
        entry.apply_to(&mut policy);
        up = entry.fields.scale_up_threshold.or(up);
        down = entry.fields.scale_down_boundary.or(down);
    }
    let chosen = choice.decide(up.map(|up| up.get()), down.map(|down| down.get()), diagnostics);
    let is_scored = matches!(chosen.analyzer, Analyzer::Threshold | Analyzer::Weighted);
    let scores = if is_scored { chosen.utilisation } else { Utilisation::of(Analyzer::Threshold) };
    policy.scoring.up = scores.up;
    policy.scoring.down = scores.down;
    policy.analyzer = chosen.analyzer;
    policy.secondary = chosen.secondary;
    policy.utilisation = chosen.utilisation;
    policy.score = chosen.score;
    policy.saturation = fitting(policy.saturation, diagnostics);
    policy
}

/// Thresholds of several entries may fit alone and not together: then the defaults count.
fn fitting(policy: SaturationPolicy, diagnostics: &mut Diagnostics) -> SaturationPolicy {
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
            diagnostics.note("targetTTFT and targetITL have no effect here: they are said of one model");
        }
        Self { targets: targets.filter(|_| group.is_some()), group, fields }
    }

    /// What this leaves open is as `below` says; targets are of this entry only.
    pub(super) fn policy(&self, below: &Self) -> QueueingPolicy {
        let mut policy = QueueingPolicy { targets: self.targets, ..QueueingPolicy::default() };
        below.fields.apply_to(&mut policy);
        self.fields.apply_to(&mut policy);
        policy
    }
}

/// An entry of the ConfigMap of scaling to zero.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ScaleToZeroEntry {
    model_id: Option<Text>,
    namespace: Option<Text>,
    enable_scale_to_zero: Option<Switch>,
    retention_period: Option<Retention>,
}

impl ScaleToZeroEntry {
    /// Tells what is wrong with it.
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
        if self.retention_period.is_some_and(|period| period.get().as_secs() > LONG_RETENTION_SECONDS) {
            diagnostics.note("retention_period is more than a day");
        }
        self
    }

    /// The model, in all namespaces; `None` for the default.
    pub(super) fn model(&self) -> Option<&SmolStr> {
        Text::non_empty(&self.model_id)
    }

    /// What this leaves open is as `below` says.
    pub(super) fn over(&self, below: ScaleToZero) -> ScaleToZero {
        ScaleToZero {
            enabled: self.enable_scale_to_zero.map_or(below.enabled, Switch::get),
            retention: self.retention_period.map_or(below.retention, |period| seconds(period.get())),
        }
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
    /// The class. As in WVA its name may be left out, and a priority that is none counts as the lowest.
    pub(super) fn class(self, diagnostics: &mut Diagnostics) -> ServiceClass {
        let name = Text::non_empty(&self.name).cloned().unwrap_or(ServiceClass::UNNAMED.into());
        let lowest = ServiceClass::LOWEST;
        let legal = self.priority.and_then(|given| {
            (1..=lowest).find(|priority| (f64::from(*priority) - given.get()).abs() < 1e-9)
        });
        if legal.is_none() && self.priority.is_some() {
            diagnostics.note("priority is not a whole number from 1 to 100: it counts as 100, the lowest");
        }
        let models = self.data.into_iter().flatten().enumerate();
        let targets = models.filter_map(|(index, Section(model))| model.target(index, diagnostics)).collect();
        ServiceClass { name, priority: legal.unwrap_or(lowest), targets }
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
                "data[{index}] has neither slo-ttft nor slo-tpot: nothing is promised for this model"
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
    #[serde(deserialize_with = "in_quotes_or_not")]
    cost: Option<Budget>,
}

impl AcceleratorEntry {
    /// What the accelerator costs.
    pub(super) fn unit_cost(self, diagnostics: &mut Diagnostics) -> Option<UnitCost> {
        let Some(cost) = self.cost else {
            diagnostics.error("cost is missing: must be a number, 0 to 1e9");
            return None;
        };
        let device = Text::non_empty(&self.device).cloned().unwrap_or_default();
        Some(UnitCost { device, cost: Cost::new(cost.get()).ok()? })
    }
}

/// WVA ships these numbers as texts.
fn in_quotes_or_not<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Budget>, D::Error> {
    let given = Value::deserialize(from)?;
    let number = given.as_str().and_then(|text| text.trim().parse::<f64>().ok());
    Option::deserialize(number.filter(|number| number.is_finite()).map_or(given, Value::from))
        .map_err(D::Error::custom)
}
