//! Pods that refuse requests, of which some show it.

use super::support::prelude::*;
use super::support::recorded::{Scrape, moment, recording};
use wva_core::report::Stage;

/// Arrivals, requests/s, and what the decision says, after the first recorded minute and a half of a fleet whose pods show what the recorded
/// engine does: each with the counter of refused requests as `change` makes it, or without it.
fn decided(changes: &[fn(f64) -> Option<f64>]) -> (f64, String) {
    let scrapes: Vec<Scrape> = recording("refused-and-aborted")
        .into_iter()
        .filter(|(second, _)| (10.0..86.0).contains(second))
        .collect();
    let ready = moment(10.0) - SignedDuration::from_secs(120);
    let (mut memory, policy) = (Memory::default(), policy_of(Analyzer::Rate));
    let mut signals = vec![Signals::default(); changes.len()];
    let mut last = (0.0, String::new());
    for (second, shown) in &scrapes {
        let now = moment(*second);
        for (signals, change) in signals.iter_mut().zip(changes) {
            let change = |(signal, value): (Signal, f64)| {
                let value = if signal == Signal::RefusedRequests { change(value)? } else { value };
                Some((signal, value))
            };
            let row = shown.iter().copied().filter_map(change);
            signals.slide(now, Seconds::whole(120).before(now), 200, row);
        }
        let pod = |(index, signals): (usize, &Signals)| Pod {
            created: ready - SignedDuration::from_secs(60),
            ready_since: Some(ready),
            ..ready_pod(format!("llama-{index}"), signals.clone())
        };
        let state = variant_state("llama", signals.iter().enumerate().map(pod).collect());
        let mut outcome =
            evaluate(&snapshot_of(now, model_group(vec![state])), std::mem::take(&mut memory), &policy);
        memory = std::mem::take(&mut outcome.memory);
        let steps = outcome.report.groups[&group_id()].steps.iter();
        let mut values = steps.filter(|step| step.stage() == Stage::Analyze).flat_map(|step| step.values());
        if let Some(arrivals) = values.find(|value| value.name() == "arrivals, req/s") {
            last = (arrivals.value, target_of(&outcome, "llama").explanation.to_string());
        }
    }
    last
}

#[test]
fn a_pod_that_does_not_show_what_it_refuses_takes_nothing_from_what_is_known_of_others() {
    let (counted, text) = decided(&[Some, Some]);
    assert!(text.contains(" refused"), "{text}");
    let (hidden, text) = decided(&[|_| None, |_| None]);
    assert!(!text.contains("refused"), "{text}");
    let (mixed, text) = decided(&[Some, |_| None]);
    assert!(text.contains(" refused"), "{text}");
    assert!(
        (mixed - f64::midpoint(counted, hidden)).abs() < 0.02 * counted,
        "{mixed} of {hidden} to {counted}"
    );
    let (frozen, _) = decided(&[|_| Some(5.0), |_| Some(5.0)]);
    assert!((frozen - hidden).abs() < 1e-9, "a counter that stands still says that nothing is refused");
}

#[test]
fn a_counter_that_claims_anything_at_most_doubles_the_arrivals() {
    let (hidden, _) = decided(&[|_| None, |_| None]);
    for claim in [|refused: f64| Some(refused * 1e6), |refused: f64| Some((refused * 1e300).min(f64::MAX))] {
        let (lying, text) = decided(&[claim, claim]);
        assert!(lying <= 2.1 * hidden && lying >= 1.5 * hidden, "{lying} of {hidden}: {text}");
    }
}
