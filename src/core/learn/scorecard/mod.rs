//! What became of predictions: the demand when a pod ordered now serves, the capacity of a replica, and the time that a start takes.
//! Only figures for people: no decision reads them.

mod forecasts;
mod model;
mod replicas;
mod score;
#[cfg(test)]
mod tests;

pub(crate) use forecasts::DemandForecasts;
pub(crate) use replicas::ReplicaPredictions;
