//! The names of the analyzers.

use serde::{Deserialize, Serialize};

/// Which analyzer, by the name that ConfigMaps and reports use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Analyzer {
    /// Demand in requests/s against the capacity of replicas, with a reserve for growth while a pod starts.
    Rate,
    /// V1: percent of the KV cache and queue length.
    SaturationPercent,
    /// V2: tokens in the KV caches against tokens that fit.
    Saturation,
    /// Generated tokens/s against what the fitted latency allows.
    Throughput,
    /// Demand in requests/s against what meets the latency objectives.
    QueueingModel,
    /// The larger of KV-cache usage and relative queue length.
    Threshold,
    /// A weighted sum of KV-cache usage, queue length and degradation.
    Weighted,
    /// The legacy solver: allocation of accelerators by service class.
    Inferno,
}

impl Analyzer {
    /// All of them, in the order of tables.
    pub const ALL: [Self; 8] = [
        Self::Rate,
        Self::SaturationPercent,
        Self::Saturation,
        Self::Throughput,
        Self::QueueingModel,
        Self::Threshold,
        Self::Weighted,
        Self::Inferno,
    ];

    /// It compares demand and capacity of a whole model: one variant of a role may lose its last replica to another variant.
    #[must_use]
    pub const fn is_of_capacity(self) -> bool {
        matches!(self, Self::Rate | Self::Saturation | Self::Throughput | Self::QueueingModel)
    }

    /// The name that ConfigMaps and reports use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::SaturationPercent => "saturation-percent",
            Self::Saturation => "saturation",
            Self::Throughput => "throughput",
            Self::QueueingModel => "queueing-model",
            Self::Threshold => "threshold",
            Self::Weighted => "weighted",
            Self::Inferno => "inferno",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_analyzer_is_called_what_its_configuration_calls_it() {
        let all = [
            (Analyzer::SaturationPercent, false),
            (Analyzer::Saturation, true),
            (Analyzer::Throughput, true),
            (Analyzer::QueueingModel, true),
            (Analyzer::Threshold, false),
            (Analyzer::Weighted, false),
            (Analyzer::Inferno, false),
        ];
        for (analyzer, of_capacity) in all {
            assert_eq!(serde_json::to_value(analyzer).unwrap(), analyzer.as_str());
            assert_eq!(analyzer.is_of_capacity(), of_capacity, "{}", analyzer.as_str());
        }
    }
}
