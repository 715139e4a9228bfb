//! What one scrape of one pod shows, and no other: it may call for some more, and for no more than twice what there is.

use wva_core::model::Analyzer;
use wva_core::snapshot::Signal;

use crate::support::steady::Steady;

/// The numbers at this scrape and at the next ones.
fn numbers(analyzer: Analyzer, spike: (Signal, f64)) -> (u32, Vec<u32>) {
    let mut steady = Steady::new(analyzer, &[Some(2.0); 4]);
    let usual = (0..12).map(|_| steady.number()).last().unwrap();
    steady.spike = Some(spike);
    let first = steady.number();
    steady.spike = None;
    (usual, [first].into_iter().chain((0..5).map(|_| steady.number())).collect())
}

#[test]
fn one_scrape_of_a_queue_once_ordered_hundreds_of_replicas() {
    for analyzer in Analyzer::ALL {
        for spike in [(Signal::Waiting, 1e9), (Signal::Waiting, 300.0), (Signal::Running, 4096.0)] {
            let (usual, numbers) = numbers(analyzer, spike);
            assert!(
                usual <= 4 && numbers.iter().all(|number| *number <= 8),
                "{analyzer:?} {spike:?}: {numbers:?}"
            );
        }
    }
}
