//! Fuzz targets for input from clients: generated inputs, well-formed and damaged, against properties that hold for all.
//! `WVA_FUZZ_SECONDS=600 cargo test -p wva --lib serve::fuzz -- --nocapture --test-threads 2` takes ten minutes for
//! each target; raw bytes on a real connection are in `tests/it/serve/fuzz.rs`.

use harness::{damaged, fuzz};
use proptest::strategy::Strategy;
use proptest::string::string_regex;

mod encoding;
mod harness;
mod identity;
mod negotiation;
mod selectors;

/// Texts that match `pattern`, which is parsed once.
fn text(pattern: &str) -> impl Strategy<Value = String> + use<> {
    string_regex(pattern).unwrap()
}

/// Any text.
fn any_text() -> impl Strategy<Value = String> {
    text("\\PC{0,32}")
}
