//! The policy's finding as named values, for the report.

use smol_str::{SmolStr, format_smolstr};

use super::input::RateInput;
use super::plan::{ADDITION_MARGIN, RateFinding};
use crate::report::{Direction, Side, Threshold, Value};

/// The terms of the test, in the order of the formula.
pub fn values(input: &RateInput<'_>, found: &RateFinding) -> Vec<Value> {
    let (demand, fleet) = (&found.demand, &found.fleet);
    let mut values = vec![
        Value::new("arrivals, requests/s", demand.level.rate),
        Value::new("their growth, requests/s each second", demand.level.slope),
        Value::new("unchanged for, s", demand.level.seconds),
        Value::new("dispersion", demand.dispersion),
        Value::new("horizon, s", demand.horizon),
        Value::new("demand at the horizon, requests/s", demand.forecast),
        Value::new(SURE, demand.certain),
        Value::new("capacity, requests/s", fleet.rate),
        Value::new("reserve, roots of demand × replica", found.test.reserve),
        Value::new("reserve for a surge, share of demand", found.test.surge),
        Value::new("backlog, requests", found.test.backlog),
    ];
    let bounds = found.test.allowed(fleet).into_iter().filter(|(_, allows)| allows.is_finite());
    values.extend(bounds.map(|(bound, allows)| Value {
        name: format_smolstr!("{} allows, requests/s", bound.as_str()),
        value: allows.max(0.0),
    }));
    values.push(Value::new("removal at the earliest in, s", found.removable_in));
    let variants = input.variants.iter().zip(&found.replicas);
    values.extend(variants.map(|(variant, replica)| {
        let guessed = if variant.capacity.is_some() { "" } else { " (never seen)" };
        let name = format_smolstr!("capacity of a replica of {}{guessed}, requests/s", variant.name);
        Value { name, value: replica.max_rate() }
    }));
    values
}

/// The demand at which the next replica is added, and that at which one can be removed.
pub fn turns(found: &RateFinding) -> Vec<Threshold> {
    let turn = |to, when, is, at, now| Threshold { to, when: SmolStr::new_static(when), is, at, now };
    let more = turn(
        Direction::More,
        SURE,
        Side::Above,
        found.binding.1.max(0.0) * ADDITION_MARGIN,
        found.demand.certain,
    );
    let fewer =
        found.removable_below.map(|below| turn(Direction::Fewer, PEAK, Side::Below, below, found.peak));
    let later = found.removable_below.filter(|_| found.removable_in > 0.0);
    let later =
        later.map(|_| turn(Direction::Fewer, "seconds from now", Side::Above, found.removable_in, 0.0));
    std::iter::once(more).chain(fewer).chain(later).collect()
}

const SURE: &str = "demand that is sure, requests/s";
const PEAK: &str = "highest demand of 200 s, requests/s";
