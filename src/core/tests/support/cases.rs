//! With how many cases properties are tried: the one place that says so.
//!
//! `WVA_PROPERTY_CASES` replaces the count of single decisions, and `WVA_LOOP_CASES` those of what is simulated over time, of
//! which a case takes a thousand times as long: a run over many mutants of the code wants few cases, a night many.

use proptest::test_runner::Config;

/// Cases of a property of which one takes less than a millisecond, as optimised as tests are.
const QUICK: u32 = 10_000;
/// Cases of a property of which one simulates a minute.
const SLOW: u32 = 500;
/// Cases of a property of which one simulates half an hour, twice or more.
const LOOPED: u32 = 20;

/// For a property of which a case takes less than a millisecond.
pub(crate) fn quick() -> Config {
    cases("WVA_PROPERTY_CASES", QUICK)
}

/// For a property of which a case simulates a minute.
pub(crate) fn slow() -> Config {
    cases("WVA_LOOP_CASES", SLOW)
}

/// For a property of which a case is simulated in the closed loop.
pub(crate) fn looped() -> Config {
    cases("WVA_LOOP_CASES", LOOPED)
}

#[expect(clippy::disallowed_methods, reason = "how often a test tries is no input of a decision")]
fn cases(variable: &str, usual: u32) -> Config {
    let replaced = std::env::var(variable).ok().and_then(|count| count.parse().ok());
    Config { cases: replaced.unwrap_or(usual), failure_persistence: None, ..Config::default() }
}
