//! Which ConfigMaps say what decisions are tuned by: their names, by flag or environment.

use std::collections::BTreeMap;

use super::policy_config::{Kind, Names};
use super::resolve::ConfigError;

/// What upstream calls them; the last two are those of its older releases.
const SATURATION: &str = "wva-saturation-scaling-config";
const SCALE_TO_ZERO: &str = "wva-model-scale-to-zero-config";
const QUEUEING_MODEL: &str = "wva-queueing-model-config";
const SERVICE_CLASSES: &str = "service-classes-config";
const ACCELERATOR_COSTS: &str = "accelerator-unit-costs";

/// ConfigMaps in the namespace of this program; of the first three, one in a namespace of variants takes its place there.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "ConfigMaps")]
pub struct ConfigMapArgs {
    /// Thresholds, analyzers and limits. Read again when it changes; an entry that is wrong keeps its last good text.
    #[arg(long, env = "SATURATION_CONFIG_MAP_NAME", default_value = SATURATION, value_name = "NAME")]
    pub saturation_config_map: String,
    /// Scaling to zero by model.
    #[arg(long, env = "SCALE_TO_ZERO_CONFIG_MAP_NAME", default_value = SCALE_TO_ZERO, value_name = "NAME")]
    pub scale_to_zero_config_map: String,
    /// The queueing model. Where it has an entry `default`, the queueing model decides.
    #[arg(long, env = "QUEUEING_MODEL_CONFIG_MAP_NAME", default_value = QUEUEING_MODEL, value_name = "NAME")]
    pub queueing_model_config_map: String,
    /// Classes of service, for the analyzer inferno.
    #[arg(long, env = "SERVICE_CLASSES_CONFIG_MAP_NAME", default_value = SERVICE_CLASSES, value_name = "NAME")]
    pub service_classes_config_map: String,
    /// What accelerators cost, for the analyzer inferno.
    #[arg(long, env = "ACCELERATOR_COSTS_CONFIG_MAP_NAME", default_value = ACCELERATOR_COSTS, value_name = "NAME")]
    pub accelerator_costs_config_map: String,
    /// Nodes whose GPUs count, as a label selector, where a limit is the GPUs that the cluster has.
    #[arg(long, env = "WVA_NODE_SELECTOR", value_name = "SELECTOR")]
    pub node_selector: Option<String>,
}

impl ConfigMapArgs {
    /// The names, each for one ConfigMap.
    pub(super) fn names(&self) -> Result<Names, ConfigError> {
        let all = [
            (Kind::Saturation, "--saturation-config-map", &self.saturation_config_map, SATURATION),
            (Kind::ScaleToZero, "--scale-to-zero-config-map", &self.scale_to_zero_config_map, SCALE_TO_ZERO),
            (
                Kind::QueueingModel,
                "--queueing-model-config-map",
                &self.queueing_model_config_map,
                QUEUEING_MODEL,
            ),
            (
                Kind::ServiceClasses,
                "--service-classes-config-map",
                &self.service_classes_config_map,
                SERVICE_CLASSES,
            ),
            (
                Kind::AcceleratorCosts,
                "--accelerator-costs-config-map",
                &self.accelerator_costs_config_map,
                ACCELERATOR_COSTS,
            ),
        ];
        let mut flags: BTreeMap<&str, &'static str> = BTreeMap::new();
        let mut names = Names::new();
        for (kind, flag, given, default) in all {
            // Manifests leave variables empty.
            let name = if given.is_empty() { default } else { given };
            if let Some(other) = flags.insert(name, flag) {
                return Err(ConfigError::SameConfigMap { flag, other, name: name.to_owned() });
            }
            names.insert(kind, name.to_owned());
        }
        Ok(names)
    }
}
