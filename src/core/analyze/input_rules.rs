//! The rules by which the inputs of capacity analyzers are made from pods and signals.

use jiff::Timestamp;

use super::queueing::VariantLoad;
use crate::moment::may_lower;
use crate::sequence_limit::estimated_max;
use crate::snapshot::VariantState;
use crate::units::Replicas;

/// Requests/s, if known.
type Rate = Option<f64>;

/// Each rule is a function, so that the code that makes the inputs does not ask whose rules apply. `arithmetic::input_rules` chooses them.
#[derive(Debug)]
pub(crate) struct InputRules {
    /// As how many engines a pod counts, given its serving processes.
    pub(crate) engines_per_pod: fn(u32) -> u32,
    /// Replicas that count as starting, given all that are pending and those of them that are expected to become Ready.
    pub(crate) starting: fn(pending: Replicas, expected: Replicas) -> Replicas,
    /// Whether so many measured engines are enough to estimate unmeasured pods from.
    pub(crate) can_estimate_from: fn(engines: usize) -> bool,
    /// The most requests that an engine runs at once, given the most that were seen running; `None` if it is not known.
    pub(crate) max_sequences: fn(&VariantState, peak: u32) -> Option<i64>,
    /// Arrivals, requests/s: those that the scheduler dispatched, or else the requests that got their first token, which lag behind
    /// arrivals while requests wait.
    pub(crate) arrivals: fn(dispatched: Rate, started: &dyn Fn() -> Rate) -> Rate,
    /// Whether the scheduler's counter is trusted, given whether most engines contradict it.
    pub(crate) trusts_dispatched: fn(is_contradicted: &dyn Fn() -> bool) -> bool,
    /// Whether the arrivals and request sizes are known.
    pub(crate) is_load_known: fn(&VariantLoad) -> bool,
    /// Whether parameters that were learned at this time may lower a number now.
    pub(crate) may_lower: fn(learned_at: Option<Timestamp>, now: Timestamp) -> bool,
    /// Whether a variant may grow, given whether further pods would not become Ready either.
    pub(crate) may_grow: fn(is_futile: &dyn Fn() -> bool) -> bool,
    /// Whether a fallback replaces an analyzer that gets all its signals and finds nothing for long.
    pub(crate) replaces_silent_analyzer: bool,
}

pub(crate) static CORRECTED: InputRules = InputRules {
    engines_per_pod: |processes| processes.max(1),
    starting: |_, expected| expected,
    can_estimate_from: |engines| engines > 0,
    max_sequences: |state, peak| estimated_max(state, peak).map(i64::from),
    arrivals: |dispatched, started| dispatched.or_else(started),
    trusts_dispatched: |is_contradicted| !is_contradicted(),
    is_load_known,
    may_lower,
    may_grow: |is_futile| !is_futile(),
    replaces_silent_analyzer: true,
};

fn is_load_known(load: &VariantLoad) -> bool {
    let arrivals = load.observations.iter().map(|engine| engine.arrival);
    let is_measured = !load.observations.is_empty() && arrivals.clone().all(|rate| rate.is_some());
    let is_busy = arrivals.flatten().any(|rate| rate > 0.0);
    let has_sizes = load.observations.iter().any(|engine| engine.output >= 1.0);
    is_measured && (has_sizes || !is_busy)
}
