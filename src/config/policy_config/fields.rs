//! The fields of an entry of the saturation ConfigMap, and those nested in it.

use std::collections::BTreeMap;

use serde::de::{Error, IgnoredAny};
use serde::{Deserialize, Deserializer};
use smol_str::SmolStr;
use wva_core::model::{Analyzer, Compat, SaturationPolicy};

use super::super::ranged::quote;
use super::overlay::{
    self, Budget, Fraction, GpuQuota, Overlay, PositiveFraction, QueueLength, RateOverlay,
    ScaleToZeroOverlay, ScoringOverlay, Section, StabilityOverlay, Switch, Text, Weight, overlay,
};

overlay! {
    /// The fields of an entry of the saturation ConfigMap.
    SaturationFields over SaturationPolicy {
        kv_cache_threshold: Fraction,
        queue_length_threshold: QueueLength,
        kv_spare_trigger: Fraction,
        queue_spare_trigger: QueueLength,
    } with {
        #[serde(rename = "model_id")]
        model_id: Text,
        namespace: Text,
        analyzer_name: AnalyzerName,
        analyzers: Vec<Section<ListedAnalyzer>>,
        scale_up_threshold: PositiveFraction,
        scale_down_boundary: PositiveFraction,
        priority: Weight,
        scale_to_zero: Section<ScaleToZeroOverlay>,
        rate: Section<RateOverlay>,
        scoring: Section<ScoringOverlay>,
        stability: Section<StabilityOverlay>,
        enable_limiter: Switch,
        limiters: Vec<Section<Limiter>>,
        fail_closed: Switch,
        enable_rescale: Switch,
        power: Section<PowerBudget>,
        spend: Budget,
        #[serde(deserialize_with = "overlay::name")]
        compat: Compat,
    }
}

/// The analyzer with a name of this program, which reports show, or of WVA.
pub(super) fn analyzer(name: &str) -> Option<Analyzer> {
    match name {
        "saturation-percentage-based" => Some(Analyzer::SaturationPercent),
        "saturation-token-based" => Some(Analyzer::Saturation),
        _ => Analyzer::ALL.into_iter().find(|analyzer| analyzer.as_str() == name),
    }
}

/// The field `analyzerName`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnalyzerName {
    /// Empty, which means V1 in WVA.
    Empty,
    Known(Analyzer),
}

impl<'de> Deserialize<'de> for AnalyzerName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Text::deserialize(from)?.get();
        if text.is_empty() {
            return Ok(Self::Empty);
        }
        analyzer(&text).map(Self::Known).ok_or_else(|| {
            let names = Analyzer::ALL.map(Analyzer::as_str).join(", ");
            D::Error::custom(format!("{} is not an analyzer: must be one of {names}", quote(&text)))
        })
    }
}

/// An item of the list `analyzers`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct ListedAnalyzer {
    pub(super) name: Option<Text>,
    /// If this is set, the name is arbitrary.
    #[serde(rename = "type")]
    pub(super) kind: Option<Text>,
    pub(super) enabled: Option<Switch>,
    pub(super) score: Option<Weight>,
    pub(super) scale_up_threshold: Option<PositiveFraction>,
    pub(super) scale_down_boundary: Option<PositiveFraction>,
    pub(super) parameters: Option<BTreeMap<String, IgnoredAny>>,
}

/// An item of the list `limiters`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct Limiter {
    #[serde(rename = "type", deserialize_with = "overlay::name")]
    pub(super) kind: Option<LimiterKind>,
    pub(super) name: Option<Text>,
    #[serde(deserialize_with = "overlay::name")]
    pub(super) scope: Option<QuotaScope>,
    pub(super) quotas: Option<Gpus>,
    pub(super) namespace_quotas: Option<BTreeMap<SmolStr, Option<Gpus>>>,
    pub(super) exclude: Option<Vec<Text>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum LimiterKind {
    GpuInventory,
    Inventory,
    Quota,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum QuotaScope {
    Cluster,
    Namespace,
}

/// The section `power`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct PowerBudget {
    pub(super) watts: Option<Budget>,
    pub(super) per_gpu: Option<BTreeMap<SmolStr, Budget>>,
}

/// Quotas by GPU type.
pub(super) type Gpus = BTreeMap<SmolStr, GpuQuota>;
