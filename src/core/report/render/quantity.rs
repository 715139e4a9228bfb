//! The names of quantities, with their units.

use std::fmt::{self, Display, Formatter};

use super::role_name;
use crate::report::Quantity;

impl Display for Quantity {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Arrivals => "arrivals, req/s",
            Self::RefusedArrivals => "refused arrivals, req/s",
            Self::ArrivalGrowth => "growth of arrivals, req/s per second",
            Self::SteadySeconds => "unchanged for, s",
            Self::Dispersion => "dispersion",
            Self::HorizonSeconds => "horizon, s",
            Self::DemandAtHorizon => "demand at the horizon, req/s",
            Self::CertainDemand => "certain demand, req/s",
            Self::PeakDemand => "highest demand of 200 s, req/s",
            Self::FleetCapacity => "capacity, req/s",
            Self::ChanceReserve => "chance reserve, √(demand × replica)",
            Self::SurgeReserve => "surge reserve, share of demand",
            Self::Backlog => "backlog, requests",
            Self::SupportedByUtilisation => "supported by utilisation, req/s",
            Self::SupportedByChanceReserve => "supported by the chance reserve, req/s",
            Self::SupportedBySurgeReserve => "supported by the surge reserve, req/s",
            Self::SupportedByBacklog => "supported by the backlog, req/s",
            Self::RemovalInSeconds => "earliest removal in, s",
            Self::SecondsFromNow => "time from now, s",
            Self::ReplicaRate { variant, is_measured } => {
                let estimated = if *is_measured { "" } else { " (estimated)" };
                return write!(f, "capacity of a replica of {variant}{estimated}, req/s");
            }
            Self::Replicas => "replicas",
            Self::NonSaturatedReplicas => "replicas below saturation",
            Self::SpareKvCache => "mean spare KV cache",
            Self::SpareQueue => "mean spare queue, requests",
            Self::MeanScore => "mean score",
            Self::EngineScore => "score of an engine",
            Self::Demand(None) => "demand",
            Self::Demand(Some(role)) => return write!(f, "demand of role {}", role_name(*role)),
            Self::Supply => "supply",
            Self::AnticipatedSupply => "supply including starting replicas",
            Self::Missing(None) => "missing",
            Self::Missing(Some(role)) => return write!(f, "missing in role {}", role_name(*role)),
            Self::Spare(None) => "spare",
            Self::Spare(Some(role)) => return write!(f, "spare in role {}", role_name(*role)),
            Self::ReplicaCapacity(capacity) => {
                return write!(f, "capacity of a replica of {} ({})", capacity.variant, capacity.source);
            }
            Self::ReplicaCost => "cost of a replica",
            Self::ReplicaTokens => "capacity of a replica, tokens",
            Self::Proposed => "proposed replicas",
            Self::Budget => "budget",
            Self::Used => "used",
            Self::Free => "free",
            Self::UsedByOthers => "used by others",
            Self::RunningReplicas => "running replicas",
            Self::StartingReplicas => "starting replicas",
            Self::StartUpSeconds => "start-up time, s",
        })
    }
}
