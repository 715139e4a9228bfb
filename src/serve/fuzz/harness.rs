//! Checks a property against new inputs until its time is up. `WVA_FUZZ_SECONDS` is the time of each target (1 s when
//! it is not set, so that all tests together stay fast). A failure prints the smallest input that still fails and the
//! seed; `WVA_FUZZ_SEED` with that number runs the same inputs again.
#![allow(
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "helpers of tests fail as tests do"
)]

use std::fmt::Debug;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use tokio::time::Instant;

/// Inputs of one seed: enough to be worth a generator, few enough that a slow target (a TLS handshake each, some
/// milliseconds) ends in time.
const BATCH: u32 = 64;

#[expect(clippy::disallowed_methods, reason = "a switch of the tests, not of the program")]
fn switch(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Checks `property` against inputs of `strategy` until the time is up.
pub(crate) fn fuzz<S: Strategy>(
    target: &str,
    strategy: S,
    property: impl Fn(S::Value) -> Result<(), TestCaseError>,
) where
    S::Value: Debug,
{
    let replayed = switch("WVA_FUZZ_SEED");
    let first = replayed.unwrap_or_else(|| fastrand::u64(..));
    let limit = Duration::from_secs(switch("WVA_FUZZ_SECONDS").unwrap_or(1));
    let started = Instant::now();
    let mut inputs = 0_u64;
    for seed in (0..).map(|batch| first.wrapping_add(batch)) {
        let bytes: Vec<u8> = seed.to_le_bytes().repeat(4);
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let config = Config { cases: BATCH, failure_persistence: None, ..Config::default() };
        match TestRunner::new_with_rng(config, rng).run(&strategy, &property) {
            Ok(()) => inputs += u64::from(BATCH),
            Err(TestError::Fail(why, input)) => {
                panic!("{target}: {why}\nsmallest input: {input:?}\nagain: WVA_FUZZ_SEED={seed}")
            }
            Err(TestError::Abort(why)) => panic!("{target}: {why}"),
        }
        if replayed.is_some() || started.elapsed() >= limit {
            break;
        }
    }
    let each_second = u128::from(inputs) * 1000 / started.elapsed().as_millis().max(1);
    println!("fuzz {target}: {inputs} inputs, {each_second}/s");
}

/// An element of `corpus` with up to eight mutations: bytes changed, added, removed, repeated or moved.
pub(crate) fn damaged<T: AsRef<[u8]>>(corpus: &[T]) -> impl Strategy<Value = Vec<u8>> + use<T> {
    let corpus: Vec<Vec<u8>> = corpus.iter().map(|entry| entry.as_ref().to_vec()).collect();
    let interesting =
        prop_oneof![any::<u8>(), select(&b"\0\t\r\n !\"#%&'()*+,-./:;<=>?@[]_{}~09Aaz\x7f\x80\xff"[..])];
    let damage = (any::<Index>(), any::<Index>(), 0..5_u8, interesting);
    (select(corpus), vec(damage, 0..8)).prop_map(|(mut bytes, places)| {
        for (place, end, kind, byte) in places {
            let start = place.index(bytes.len() + 1);
            let end = end.index(bytes.len() + 1);
            let (start, end) = (start.min(end), start.max(end));
            match kind {
                0 => bytes.insert(start, byte),
                1 if start < bytes.len() => bytes[start] = byte,
                2 => drop(bytes.drain(start..end.min(start + 4))),
                3 => bytes.extend_from_within(start..end),
                _ => bytes.truncate(end),
            }
        }
        bytes
    })
}
