//! The policy's finding as values of named quantities, for the report.

use super::fleet::Constraint;
use super::input::RateInput;
use super::plan::{ADDITION_MARGIN, RateFinding};
use crate::report::{Direction, Quantity, Side, Threshold, Value};

/// The terms of the test, in the order of the formula.
pub(crate) fn values(input: &RateInput<'_>, found: &RateFinding) -> Vec<Value> {
    let (demand, fleet) = (&found.demand, &found.fleet);
    let mut values = vec![
        Value::new(Quantity::Arrivals, demand.level.rate),
        Value::new(Quantity::ArrivalGrowth, demand.level.slope),
        Value::new(Quantity::SteadySeconds, demand.level.seconds),
        Value::new(Quantity::Dispersion, demand.dispersion),
        Value::new(Quantity::HorizonSeconds, demand.horizon),
        Value::new(Quantity::DemandAtHorizon, demand.forecast),
        Value::new(Quantity::CertainDemand, demand.certain),
        Value::new(Quantity::FleetCapacity, fleet.rate),
        Value::new(Quantity::ChanceReserve, found.test.reserve),
        Value::new(Quantity::SurgeReserve, found.test.surge),
        Value::new(Quantity::Backlog, found.test.backlog),
    ];
    if demand.refused() > 0.0 {
        values.insert(1, Value::new(Quantity::RefusedArrivals, demand.refused()));
    }
    let bounds = found.test.allowed(fleet).into_iter().filter(|(_, allows)| allows.is_finite());
    values.extend(bounds.map(|(bound, allows)| Value::new(supported_by(bound), allows.max(0.0))));
    values.push(Value::new(Quantity::RemovalInSeconds, found.removable_in));
    let variants = input.variants.iter().zip(&found.replicas);
    values.extend(variants.map(|(variant, replica)| {
        let quantity =
            Quantity::ReplicaRate { variant: variant.name.clone(), is_measured: variant.capacity.is_some() };
        Value::new(quantity, replica.max_rate())
    }));
    values.shrink_to_fit(); // kept until the next evaluation
    values
}

const fn supported_by(constraint: Constraint) -> Quantity {
    match constraint {
        Constraint::Utilisation => Quantity::SupportedByUtilisation,
        Constraint::Reserve => Quantity::SupportedByChanceReserve,
        Constraint::Surge => Quantity::SupportedBySurgeReserve,
        Constraint::Backlog => Quantity::SupportedByBacklog,
    }
}

/// The demand at which the next replica is added, and that at which one can be removed.
pub(crate) fn thresholds(found: &RateFinding) -> Vec<Threshold> {
    let threshold = |to, quantity, is, at, now| Threshold { to, quantity, is, at, now };
    let more = threshold(
        Direction::More,
        Quantity::CertainDemand,
        Side::Above,
        found.binding.1.max(0.0) * ADDITION_MARGIN,
        found.demand.certain,
    );
    let fewer = found
        .removable_below
        .map(|below| threshold(Direction::Fewer, Quantity::PeakDemand, Side::Below, below, found.peak));
    let later = found.removable_below.filter(|_| found.removable_in > 0.0);
    let later = later
        .map(|_| threshold(Direction::Fewer, Quantity::SecondsFromNow, Side::Above, found.removable_in, 0.0));
    let mut thresholds: Vec<Threshold> = std::iter::once(more).chain(fewer).chain(later).collect();
    thresholds.shrink_to_fit();
    thresholds
}
