//! The number of cases with which properties are tested.
//!
//! `WVA_PROPERTY_CASES` replaces it for properties of single decisions, and `WVA_LOOP_CASES` for those of simulations over time,
//! whose cases take a thousand times as long: a run over many mutants of the code needs few cases, a nightly run many.

use proptest::test_runner::Config;

/// For a property whose cases take less than a millisecond each in a test build.
const QUICK: u32 = 10_000;
/// For a property whose cases simulate a minute each.
const SLOW: u32 = 500;
/// For a property whose cases simulate half an hour each, twice or more.
const LOOPED: u32 = 20;

/// For a property whose cases take less than a millisecond each.
pub(crate) fn quick() -> Config {
    cases("WVA_PROPERTY_CASES", QUICK)
}

/// For a property whose cases simulate a minute each.
pub(crate) fn slow() -> Config {
    cases("WVA_LOOP_CASES", SLOW)
}

/// For a property whose cases are simulated in the closed loop.
pub(crate) fn looped() -> Config {
    cases("WVA_LOOP_CASES", LOOPED)
}

#[expect(clippy::disallowed_methods, reason = "how often a test tries is no input of a decision")]
fn cases(variable: &str, usual: u32) -> Config {
    let replaced = std::env::var(variable).ok().and_then(|count| count.parse().ok());
    Config { cases: replaced.unwrap_or(usual), failure_persistence: None, ..Config::default() }
}
