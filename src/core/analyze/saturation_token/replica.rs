//! The capacity of one engine, and the demand on it.

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use super::input::{EngineInput, TokenPolicy, tokens_in_use};
use super::knowledge::{Knowledge, Learned, Record};
use crate::model::Role;
use crate::units::Tokens;

/// How the bound on resident tokens was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// Seen now: requests wait.
    Observed,
    /// Seen before with the same hardware and length of output.
    History,
    /// Seen before with the same hardware and another length of output (not in upstream).
    OtherLength,
    Arguments,
    Memory,
    Stored,
}

impl Source {
    /// As in upstream's reports.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Observed => "P1-obs",
            Self::History => "P2-hist",
            Self::OtherLength => "P2-near",
            Self::Arguments => "P3-k2",
            Self::Memory => "P4-k1",
            Self::Stored => "P0-store",
        }
    }
}

impl Serialize for Source {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.label())
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct TokenCapacity<'a> {
    pub replica: &'a str,
    pub variant: &'a str,
    /// k1: tokens that may be resident, by the threshold on memory.
    pub k1: Tokens,
    /// k2: tokens that were or would be resident when requests start to queue.
    pub k2: Tokens,
    /// Its capacity: the smaller of the two.
    pub effective: Tokens,
    /// Tokens in use, and those of the waiting requests.
    pub demand: Tokens,
    pub source: Source,
    /// The demand is at least the capacity.
    pub saturated: bool,
}

impl<'a> TokenCapacity<'a> {
    pub(crate) fn new(
        engine: &EngineInput<'a>,
        k1: Tokens,
        k2: Tokens,
        demand: Tokens,
        source: Source,
    ) -> Self {
        let effective = k1.min(k2);
        Self {
            replica: engine.observed.replica,
            variant: engine.observed.variant,
            k1,
            k2,
            effective,
            demand,
            source,
            saturated: demand >= effective,
        }
    }
}

/// The capacity of every engine, in input order; `None` if nothing is known about it. Learns from all engines before it computes any capacity,
/// so that their order does not matter.
pub(super) fn capacities<'a>(
    engines: &[EngineInput<'a>],
    knowledge: &mut Knowledge,
    policy: &TokenPolicy,
    now: Timestamp,
) -> Vec<Option<TokenCapacity<'a>>> {
    let at_limit = engines.iter().filter(|engine| engine.has_capacity() && is_at_limit(engine, policy));
    knowledge.histories.add_moment(at_limit.map(|engine| (engine.setting, engine.observed.in_use)), now);
    let mut capacities: Vec<Option<TokenCapacity<'a>>> = engines
        .iter()
        .map(|engine| {
            // What was learned at saturation must not be lost when the mean output crosses a boundary between lengths.
            let other_length = || knowledge.histories.min_of_other_lengths(engine.setting);
            let waiting = waiting_tokens(engine);
            engine.has_capacity().then(|| measured(engine, knowledge, policy, waiting, other_length))
        })
        .collect();
    let shown = engines.iter().zip(&capacities);
    let shown =
        shown.filter_map(|(engine, capacity)| capacity.as_ref().map(|found| (engine, found.effective)));
    knowledge.learn_medians(shown.collect(), now);
    for (capacity, engine) in capacities.iter_mut().zip(engines) {
        if capacity.is_none() {
            *capacity = recorded(engine, knowledge, policy);
        }
    }
    capacities
}

/// Requests wait while tokens are resident: the engine's capacity is as many tokens.
pub(crate) fn is_at_limit(engine: &EngineInput<'_>, policy: &TokenPolicy) -> bool {
    let is_queueing = f64::from(engine.observed.queue) >= policy.queue_length_threshold.trunc();
    is_queueing && engine.observed.in_use > Tokens::ZERO
}

/// The capacity of an engine that shows the size of its KV cache, with the tokens of its `waiting` requests. `other_length` is what engines
/// like it have shown with another length of output.
pub(crate) fn measured<'a>(
    engine: &EngineInput<'a>,
    knowledge: &Knowledge,
    policy: &TokenPolicy,
    waiting: Tokens,
    other_length: impl FnOnce() -> Option<Tokens>,
) -> TokenCapacity<'a> {
    let observed = &engine.observed;
    let k1 = observed.capacity.share(policy.kv_cache_threshold);
    let (k2, source) = if is_at_limit(engine, policy) {
        (observed.in_use, Source::Observed)
    } else if let Some(mean) = knowledge.histories.mean(engine.setting) {
        (mean, Source::History)
    } else {
        let record = knowledge.records.get(observed.variant);
        let estimate = record.and_then(|record| record.estimate(observed.prompt, observed.output));
        match (other_length(), estimate) {
            (Some(shown), estimate) if estimate.is_none_or(|estimate| shown <= estimate) => {
                (shown, Source::OtherLength)
            }
            (_, Some(estimate)) => (estimate, Source::Arguments),
            _ => (k1, Source::Memory),
        }
    };
    TokenCapacity::new(engine, k1, k2, observed.in_use.plus(waiting), source)
}

/// The capacity of an engine that does not show the size of its KV cache, by the record of its variant; `None` without one.
fn recorded<'a>(
    engine: &EngineInput<'a>,
    knowledge: &Knowledge,
    policy: &TokenPolicy,
) -> Option<TokenCapacity<'a>> {
    let record = knowledge.records.get(engine.observed.variant)?;
    if record.effective == Tokens::ZERO {
        return None;
    }
    let (effective, cache) = from_record(engine, record, policy);
    let demand = tokens_in_use(engine.observed.kv, cache).plus(waiting_tokens(engine));
    (effective > Tokens::ZERO)
        .then(|| TokenCapacity::new(engine, effective, effective, demand, Source::Stored))
}

/// The capacity of the engine, and the size of its KV cache, of which the usage is a share. A live record includes the threshold already; a
/// record from arguments without a cache size has only the estimate of resident tokens.
fn from_record(engine: &EngineInput<'_>, record: &Record, policy: &TokenPolicy) -> (Tokens, Tokens) {
    let estimate = record.estimate(engine.observed.prompt, engine.observed.output);
    let cache = Some(record.capacity).filter(|capacity| *capacity > Tokens::ZERO);
    match record.learned {
        Learned::Live => (record.effective, cache.unwrap_or(record.effective)),
        Learned::Arguments => {
            let cache = cache.or(estimate).unwrap_or(record.effective);
            let k1 = cache.share(policy.kv_cache_threshold);
            (estimate.map_or(k1, |estimate| estimate.min(k1)), cache)
        }
    }
}

/// Tokens of the waiting requests: their prompts and, unless the engine only computes prompts, their outputs.
fn waiting_tokens(engine: &EngineInput<'_>) -> Tokens {
    Tokens::truncated(waiting(engine))
}

/// The same without rounding.
pub(crate) fn waiting(engine: &EngineInput<'_>) -> f64 {
    let output = if engine.role == Role::Prefill { 0.0 } else { engine.observed.output };
    f64::from(engine.observed.queue) * (engine.observed.prompt + output)
}
