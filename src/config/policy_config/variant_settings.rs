//! The settings in the spec of a VariantAutoscaling, and which of them are valid.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use smol_str::SmolStr;
use wva_core::GroupId;
use wva_core::model::ScaleToZero;

use super::super::document::{self, Diagnostics};
use super::super::ranged::shorten;
use super::overlay::{Latency, Overlay, PositiveFraction, Retention, Section, Switch, Text, overlay};

/// Characters of the text about one object.
const MAX_TEXT_CHARS: usize = 600;
/// Longest key of a ConfigMap.
const MAX_KEY_BYTES: usize = 253;

/// The settings, by their paths in a spec.
const THRESHOLD: &str = "/saturationThreshold";
const ENABLED: &str = "/scaleToZero/enabled";
const IDLE_TIMEOUT: &str = "/scaleToZero/idleTimeout";
const TTFT: &str = "/sloTtft";
const TPOT: &str = "/sloTpot";
const CLASS: &str = "/sloClassRef";

/// The settings in the spec of a VariantAutoscaling.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct VariantSettings {
    /// The object's uid: a later object of the same name has nothing from this one.
    uid: String,
    /// The minimum that counts, and whether the spec sets it.
    pub(super) minimum: u32,
    pub(super) sets_minimum: bool,
    pub(super) fields: Fields,
    /// The paths of fields that are set to an invalid value.
    invalid: Vec<&'static str>,
    /// Why fields are not valid; empty if all are.
    pub(super) error: String,
}

/// A variant of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelVariant {
    /// Its name.
    pub name: SmolStr,
    /// Its settings, if it has any.
    pub settings: Option<Arc<VariantSettings>>,
    /// False where nothing is decided about it, for example because its spec is invalid: then its settings do not count, and it is not
    /// known to allow its model to be scaled to zero.
    pub is_decided: bool,
}

/// The variants of one model.
pub type Variants = Vec<ModelVariant>;

/// The variants of each model of which at least one has settings.
pub type VariantsByModel = BTreeMap<GroupId, Variants>;

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct Fields {
    pub(super) saturation_threshold: Option<PositiveFraction>,
    pub(super) scale_to_zero: Option<Section<ZeroFields>>,
    pub(super) slo_ttft: Option<Latency>,
    pub(super) slo_tpot: Option<Latency>,
    pub(super) slo_class_ref: Option<Section<ClassReference>>,
}

overlay! {
    /// Whether and when this variant allows its model to be scaled to zero.
    ZeroFields over ScaleToZero {
        enabled: Switch,
        #[serde(rename = "idleTimeout")]
        retention: Retention,
    }
}

/// In objects of WVA v0.0: an entry of a ConfigMap. Only that of service classes is read, so its name does not count.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ClassReference {
    #[serde(rename = "name")]
    _name: Option<IgnoredAny>,
    key: Option<Text>,
}

impl VariantSettings {
    /// The settings in `fields`, a mapping of fields of a spec. A field that is not valid is left out, and its owner is told.
    #[must_use]
    pub fn read(fields: Value) -> Self {
        let mut diagnostics = Diagnostics::default();
        let given = [THRESHOLD, ENABLED, IDLE_TIMEOUT, TTFT, TPOT, CLASS];
        let given =
            given.into_iter().filter(|path| fields.pointer(path).is_some_and(|value| !value.is_null()));
        let mut invalid: Vec<&'static str> = given.collect();
        let mut fields: Fields = document::read(fields, &mut diagnostics).unwrap_or_default();
        let has_key = |reference: &Section<ClassReference>| {
            Text::non_empty(&reference.0.key).is_some_and(|key| key.len() <= MAX_KEY_BYTES)
        };
        if fields.slo_class_ref.take_if(|reference| !has_key(reference)).is_some() {
            diagnostics.error("sloClassRef.key must be an entry of the ConfigMap of service classes");
        }
        invalid.retain(|path| !fields.has(path));
        let errors = diagnostics.errors.iter().chain(&diagnostics.notes);
        let errors: Vec<String> = errors.map(|error| format!("spec.{error}")).collect();
        let error = shorten(&errors.join("; "), MAX_TEXT_CHARS);
        Self { minimum: 1, fields, invalid, error, ..Self::default() }
    }

    /// These settings, of the object `uid` with this `minReplicas`.
    #[must_use]
    pub fn of_object(self, uid: String, min_replicas: Option<u32>) -> Self {
        let unset = u32::from(!self.allows_zero());
        Self { uid, minimum: min_replicas.unwrap_or(unset), sets_minimum: min_replicas.is_some(), ..self }
    }

    /// Replaces each invalid field by what was last valid in the same object: `before`.
    fn keep_valid_of(&mut self, before: &Self) {
        let Self { fields, invalid, .. } = self;
        let mut kept = false;
        for path in invalid.iter() {
            kept |= fields.take_from(&before.fields, path);
        }
        if kept {
            self.error.push_str("; what was last valid stays in force");
        }
    }

    /// Why fields are not valid; empty if all are.
    #[must_use]
    pub fn problem(&self) -> &str {
        &self.error
    }

    /// The paths of the fields that are set, and valid.
    #[must_use]
    pub fn fields(&self) -> Vec<String> {
        self.fields.names()
    }

    /// Whether this variant allows its model to be scaled to zero.
    #[must_use]
    pub fn allows_zero(&self) -> bool {
        let zero = self.fields.scale_to_zero.as_ref();
        zero.and_then(|zero| zero.0.enabled).is_some_and(Switch::get)
    }

    pub(super) fn class_key(&self) -> Option<&SmolStr> {
        let reference = self.fields.slo_class_ref.as_ref()?;
        Text::non_empty(&reference.0.key)
    }
}

impl Fields {
    /// The section about scaling to zero.
    pub(super) fn zero(&self) -> Option<&ZeroFields> {
        self.scale_to_zero.as_ref().map(|Section(zero)| zero)
    }

    /// Whether the field at `path` is set to a valid value.
    fn has(&self, path: &str) -> bool {
        match path {
            THRESHOLD => self.saturation_threshold.is_some(),
            ENABLED => self.zero().is_some_and(|zero| zero.enabled.is_some()),
            IDLE_TIMEOUT => self.zero().is_some_and(|zero| zero.retention.is_some()),
            TTFT => self.slo_ttft.is_some(),
            TPOT => self.slo_tpot.is_some(),
            _ => self.slo_class_ref.is_some(),
        }
    }

    /// Sets the field at `path` as in `before`. False if it is not set there.
    fn take_from(&mut self, before: &Self, path: &str) -> bool {
        let zero = before.zero().cloned().unwrap_or_default();
        match path {
            THRESHOLD => self.saturation_threshold = before.saturation_threshold,
            ENABLED => self.scale_to_zero.get_or_insert_default().0.enabled = zero.enabled,
            IDLE_TIMEOUT => self.scale_to_zero.get_or_insert_default().0.retention = zero.retention,
            TTFT => self.slo_ttft = before.slo_ttft,
            TPOT => self.slo_tpot = before.slo_tpot,
            _ => self.slo_class_ref.clone_from(&before.slo_class_ref),
        }
        before.has(path)
    }

    /// The names of those that are set.
    pub(super) fn names(&self) -> Vec<String> {
        let paths = [THRESHOLD, ENABLED, IDLE_TIMEOUT, TTFT, TPOT, CLASS].into_iter();
        paths.filter(|path| self.has(path)).map(|path| format!("spec{}", path.replace('/', "."))).collect()
    }
}

/// `variants`, in which each invalid field has its last valid value in the same object, as `before` had it.
pub(super) fn keep_valid(variants: &mut VariantsByModel, before: &VariantsByModel) {
    let known = before.values().flatten().filter_map(|variant| variant.settings.as_deref());
    let known: HashMap<&str, &VariantSettings> =
        known.map(|settings| (settings.uid.as_str(), settings)).collect();
    for settings in variants.values_mut().flatten().filter_map(|variant| variant.settings.as_mut()) {
        if !settings.invalid.is_empty()
            && let Some(before) = known.get(settings.uid.as_str())
        {
            Arc::make_mut(settings).keep_valid_of(before);
        }
    }
}
