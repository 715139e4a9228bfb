//! The numbers of a step: which quantity each is, and at which values of one the answer changes.

use serde::{Deserialize, Serialize, Serializer};
use smol_str::{SmolStr, ToSmolStr};

use crate::model::Role;

/// A quantity of a formula; `render::quantity` names each, with its unit where the name alone does not say it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Quantity {
    // The rate policy.
    Arrivals,
    RefusedArrivals,
    ArrivalGrowth,
    SteadySeconds,
    Dispersion,
    HorizonSeconds,
    DemandAtHorizon,
    CertainDemand,
    PeakDemand,
    FleetCapacity,
    ChanceReserve,
    SurgeReserve,
    Backlog,
    SupportedByUtilisation,
    SupportedByChanceReserve,
    SupportedBySurgeReserve,
    SupportedByBacklog,
    RemovalInSeconds,
    SecondsFromNow,
    ReplicaRate {
        variant: SmolStr,
        is_measured: bool,
    },
    // The percent rule, and the scores.
    Replicas,
    NonSaturatedReplicas,
    SpareKvCache,
    SpareQueue,
    MeanScore,
    EngineScore,
    // The capacity analyzers, each in its own unit; of one role, or of the whole model.
    Demand(Option<Role>),
    Supply,
    AnticipatedSupply,
    Missing(Option<Role>),
    Spare(Option<Role>),
    /// Boxed, because it is rare and larger than all others.
    ReplicaCapacity(Box<CapacitySource>),
    // Waking a variant.
    ReplicaCost,
    ReplicaTokens,
    // A limit.
    Proposed,
    Budget,
    Used,
    Free,
    UsedByOthers,
    // The safety net.
    RunningReplicas,
    StartingReplicas,
    StartUpSeconds,
}

/// Which variant a capacity is of, and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CapacitySource {
    pub(crate) variant: SmolStr,
    pub(crate) source: SmolStr,
}

/// The value of a quantity.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Value {
    #[serde(rename = "name", serialize_with = "name")]
    pub(crate) quantity: Quantity,
    /// In the quantity's unit.
    pub value: f64,
}

impl Value {
    pub(crate) const fn new(quantity: Quantity, value: f64) -> Self {
        Self { quantity, value }
    }

    /// What it is, with its unit where the name alone does not say it.
    #[must_use]
    pub fn name(&self) -> SmolStr {
        self.quantity.to_smolstr()
    }
}

/// At which value of a quantity the answer would be another one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Threshold {
    /// Which way the number would go.
    pub to: Direction,
    #[serde(rename = "when", serialize_with = "name")]
    pub(crate) quantity: Quantity,
    pub(crate) is: Side,
    /// The threshold.
    pub at: f64,
    /// What it is now.
    pub now: f64,
}

fn name<S: Serializer>(quantity: &Quantity, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(quantity)
}

/// Which way a number goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Direction {
    /// More replicas.
    More,
    /// Fewer replicas.
    Fewer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Side {
    Below,
    Above,
}
