//! A pod whose exporter is dead beside pods that differ in load, to every analyzer: for a removal it counts as loaded like the
//! busiest that is measured, and it blocks no fleet for ever.

use crate::support::steady::Steady;
use wva_core::model::Analyzer;

/// Looks that are played: 15 min, in which every cooldown ends.
const LOOKS: usize = 60;

/// The least number that `analyzer` asks for while three pods go on serving so many requests a second each.
fn least(analyzer: Analyzer, rates: [Option<f64>; 3]) -> u32 {
    let mut steady = Steady::new(analyzer, &rates);
    (0..LOOKS).map(|_| steady.number()).min().unwrap()
}

#[test]
fn a_dead_exporter_beside_a_busy_and_a_calm_pod_once_lowered_what_the_busiest_would_not_let_go() {
    for analyzer in Analyzer::ALL {
        let mut differs = false;
        for (busy, calm) in
            [(2.0, 0.2), (4.0, 0.5), (5.0, 0.2), (6.0, 0.5), (6.0, 2.0), (7.0, 1.0), (7.5, 4.0)]
        {
            let (busy, calm) = (Some(busy), Some(calm));
            let as_the_busiest = least(analyzer, [calm, busy, busy]).min(3);
            differs |= least(analyzer, [calm, busy, calm]) < as_the_busiest;
            // Whichever comes first: one pod that is not measured is estimated by the first that is.
            for rates in [[busy, calm, None], [calm, busy, None]] {
                let number = least(analyzer, rates);
                assert!(
                    number >= as_the_busiest,
                    "{analyzer:?} at {rates:?}: {number} below {as_the_busiest}"
                );
            }
        }
        // Where the estimate decides: a busy and two calm pods need fewer than two busy ones and a calm one.
        let decides = matches!(analyzer, Analyzer::Inferno | Analyzer::QueueingModel);
        assert!(differs || !decides, "{analyzer:?}: the loads tell nothing apart");
    }
}

#[test]
fn a_dead_exporter_beside_calm_pods_does_not_block_a_fleet_for_ever() {
    for analyzer in Analyzer::ALL {
        // Enough that more than one request runs: of less the rate policy learns nothing.
        let number = least(analyzer, [Some(1.0), Some(1.0), None]);
        assert!(number < 3, "{analyzer:?}: {number}");
    }
}
