//! The throughput analyzer. Source: WVA v0.9, `internal/engines/analyzers/throughput/analyzer.go`, `itl_model.go` and
//! `observation_window.go`.
//!
//! Defects: unknown values count as zero; the reference follows the requests, so that a slow change of any size goes unnoticed; with an intercept
//! above all measured latencies there is no line.

use jiff::Timestamp;

use crate::analyze::throughput::calibration::{Calibration, Tier, line_through};
use crate::analyze::throughput::{
    DEFAULT_INTERCEPT, LatencyLine, Resolved, ThroughputAnalysis, ThroughputInput, ThroughputMemory,
    ThroughputObservation, resolve,
};

/// Analyzes one model, and learns from what its engines show.
#[must_use]
pub(crate) fn analyze(input: &ThroughputInput, memory: &mut ThroughputMemory) -> ThroughputAnalysis {
    memory.forget(input.now);
    // The reference follows the requests.
    let observe = |calibration: &mut Calibration, now, healthy: &[&ThroughputObservation]| {
        calibration.take_in(now, healthy, false);
    };
    let resolve = |variant| resolve(input.now, variant, memory, observe, line);
    let resolved: Vec<Resolved> = input.variants.iter().filter_map(resolve).collect();
    if !resolved.is_empty() {
        memory.informative = Some(input.now);
    }
    ThroughputAnalysis::new(input, resolved, memory, |totals| totals)
}

fn line(
    calibration: &mut Calibration,
    now: Timestamp,
    healthy: &[&ThroughputObservation],
) -> Option<(LatencyLine, Tier)> {
    if let Some(line) = calibration.fit_window(now) {
        return Some((line, Tier::Fitted));
    }
    match calibration.intercept() {
        Some(intercept) => line_through(intercept, healthy).map(|line| (line, Tier::Pinned)),
        None => line_through(DEFAULT_INTERCEPT, healthy).map(|line| (line, Tier::Default)),
    }
}
