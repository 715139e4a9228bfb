//! Metrics as applications have them, for rules of prometheus-adapter: each pod has all of them.

use std::fmt::Write as _;
use std::ops::Range;

/// A page of `families` gauges `app_0` … of these pods. Every value changes each second, so that no answer stays right for long.
pub(crate) fn page(families: usize, objects: Range<usize>, namespace: &str, seconds: u64) -> String {
    // A line is about 60 bytes.
    let mut text = String::with_capacity(families * objects.len() * 64);
    for family in 0..families {
        let _ = writeln!(text, "# TYPE app_{family} gauge");
        for object in objects.clone() {
            let value = (seconds + object as u64 * 7 + family as u64 * 13) % 1000;
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "app_{family}{{namespace=\"{namespace}\",pod=\"p-{object}\"}} {value}");
        }
    }
    text
}
