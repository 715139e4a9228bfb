//! The names of the analyzers.

use serde::{Deserialize, Serialize};

/// Which analyzer, by the name that ConfigMaps and reports use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Analyzer {
    /// Requests a second against what replicas carry, with a reserve for what comes while a pod starts.
    Rate,
    /// V1: percent of the KV cache and queue length.
    SaturationPercent,
    /// V2: tokens resident against tokens that fit.
    Saturation,
    /// Generated tokens a second against what the fitted latency allows.
    Throughput,
    /// Requests a second against what meets the objectives of latency.
    QueueingModel,
    /// Seed 004: the larger of KV-cache usage and relative queue.
    Threshold,
    /// Seed 000: KV-cache usage, queue and degradation, weighted.
    Weighted,
    /// The legacy solver: allocations of accelerators by service class.
    Inferno,
}

impl Analyzer {
    /// Every one, in the order of tables.
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

    /// It weighs what is asked of a whole model against what can be carried: one variant of a role may lose its last
    /// replica to another one's.
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
        for (one, of_capacity) in all {
            assert_eq!(serde_json::to_value(one).unwrap(), one.as_str());
            assert_eq!(one.is_of_capacity(), of_capacity, "{}", one.as_str());
        }
    }
}
