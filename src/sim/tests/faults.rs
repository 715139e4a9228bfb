//! Faults of signals in closed loop: cells of the fault matrix that once failed, and checks of its comparison.

use proptest::prelude::*;
use proptest::sample::select;
use wva_core::model::Analyzer;
use wva_core::model::Role;
use wva_core::snapshot::Signal;
use wva_sim::{FaultKind, FaultShare, FaultSignals};

use crate::cases;
use crate::matrix;
use crate::matrix::cases::{Case, Hardware, Load, MAX_REPLICAS, View};
use crate::matrix::compare::{Comparison, Timeline};
use crate::matrix::{Cell, policies, signals};

#[test]
fn policies_that_read_nothing_fail_the_comparison() {
    let runs = |case: Case| {
        let cell = cell(FaultSignals::All, FaultKind::Gone, FaultShare::OnePod, case);
        (cell, cell.fault_free(), cell.fault_free_with_other_seeds())
    };
    let runs: Vec<(Cell, Timeline, Vec<Timeline>)> = Case::in_turns().into_iter().map(runs).collect();
    let passes = |policy: &dyn Fn(&Timeline) -> Timeline| {
        runs.iter().all(|(cell, own, others)| cell.compared(&policy(own), own, || others).holds())
    };
    assert!(passes(&Timeline::clone), "a run passes the comparison with itself");
    for replicas in 1..=MAX_REPLICAS {
        assert!(!passes(&|_| Timeline::fixed(replicas)), "static:{replicas} passes");
    }
    assert!(!passes(&Timeline::without_removals), "a policy that never removes passes");
}

/// The signal is missing of all pods from the first second to the last.
#[test]
fn a_saturated_fleet_grows_without_a_needed_signal() {
    let mut failures = Vec::new();
    for analyzer in Analyzer::ALL {
        for hardware in [Hardware::Sequences, Hardware::Kv] {
            let case = Case { load: Load::Saturating, hardware, view: View::Prometheus, hides: None };
            let own =
                Cell { analyzer, ..cell(FaultSignals::All, FaultKind::Gone, FaultShare::AllPods, case) };
            let fault_free = own.fault_free();
            for signal in analyzer.needed(Role::Both).iter() {
                let controller = policies::controller(analyzer, case.view);
                let run = matrix::play(Case { hides: Some(signal), ..case }, &controller, &[], 1);
                let faulty = Timeline::new(&run, case.replicas());
                let grown = faulty.spec.iter().copied().max();
                let removed = faulty.removed_below(&fault_free);
                if grown <= Some(case.replicas()) || removed > 1 {
                    let (name, case) = (analyzer.as_str(), case.name());
                    failures.push(format!("{name} without {signal:?}, {case}: {grown:?}, {removed} fewer"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// A cell of the rate analyzer.
fn cell(signals: FaultSignals, kind: FaultKind, share: FaultShare, case: Case) -> Cell {
    Cell { analyzer: Analyzer::Rate, signals, kind, share, case, seed: 1 }
}

/// The comparison of `cell` with its run without the fault.
fn compared(cell: &Cell) -> Comparison {
    cell.compared(&cell.faulty(), &cell.fault_free(), || cell.fault_free_with_other_seeds())
}

const FALLING: Case = Case { load: Load::Falling, hardware: Hardware::Kv, view: View::Direct, hides: None };
const REST: Case = Case { load: Load::Rest, hardware: Hardware::Kv, view: View::Prometheus, hides: None };

#[test]
fn engines_without_a_fault_contradict_nothing() {
    for analyzer in Analyzer::ALL {
        for case in Case::in_turns() {
            let cell =
                Cell { analyzer, ..cell(FaultSignals::All, FaultKind::Gone, FaultShare::OnePod, case) };
            assert_eq!(cell.contradicted_without_fault(), 0, "{}, {}", analyzer.as_str(), case.name());
        }
    }
}

#[test]
fn a_series_lost_between_two_scrapes_does_not_make_replicas_faster() {
    let case = Case { load: Load::Falling, hardware: Hardware::Sequences, view: View::Direct, hides: None };
    // Just before the series was lost, an HPA's read caused another scrape, 50 ms after the usual one.
    let gone =
        cell(FaultSignals::Of(Signal::InterTokenLatencySum), FaultKind::Gone, FaultShare::OnePod, case);
    let compared = compared(&Cell { seed: 882_460, ..gone });
    assert!(compared.holds(), "{}", compared.cell_text());
}

#[test]
fn a_frozen_counter_that_moves_again_adds_no_replicas() {
    for (signals, case) in [
        (FaultSignals::Of(Signal::PromptTokens), FALLING),
        (FaultSignals::Of(Signal::RequestGenerationTokensSum), REST),
        (FaultSignals::Counters, REST),
        (FaultSignals::All, FALLING),
    ] {
        let cell = cell(signals, FaultKind::Frozen, FaultShare::OnePod, case);
        let compared = compared(&cell);
        assert!(compared.holds(), "{}: {}", matrix::name(signals), compared.cell_text());
    }
}

#[test]
fn half_a_histogram_that_returns_does_not_make_replicas_infinitely_fast() {
    let case = Case { load: Load::Rising, hardware: Hardware::Sequences, view: View::Direct, hides: None };
    let gaps = FaultSignals::Of(Signal::InterTokenLatencyCount);
    for kind in [FaultKind::Gone, FaultKind::Frozen] {
        let compared = compared(&cell(gaps, kind, FaultShare::OnePod, case));
        assert!(compared.holds(), "{}: {}", kind.as_str(), compared.cell_text());
    }
}

#[test]
fn a_cache_size_that_halves_does_not_double_the_fleet() {
    let case = Case { load: Load::Steady, hardware: Hardware::Kv, view: View::Direct, hides: None };
    let cache = FaultSignals::Of(Signal::KvCapacity);
    for share in [FaultShare::OnePod, FaultShare::AllPods] {
        let compared = compared(&cell(cache, FaultKind::Halved, share, case));
        assert!(compared.holds(), "{}: {}", share.as_str(), compared.cell_text());
    }
}

#[test]
fn frozen_counters_of_all_pods_do_not_erase_what_is_learned() {
    let case = Case { load: Load::Rising, hardware: Hardware::Sequences, view: View::Direct, hides: None };
    let compared = compared(&cell(FaultSignals::Counters, FaultKind::Frozen, FaultShare::AllPods, case));
    assert!(compared.holds(), "{}", compared.cell_text());
}

#[test]
fn answers_that_some_pods_do_not_count_do_not_lengthen_those_of_others() {
    let case = Case { load: Load::Rising, hardware: Hardware::Sequences, view: View::Direct, hides: None };
    let count = FaultSignals::Of(Signal::RequestGenerationTokensCount);
    let cell = cell(count, FaultKind::Frozen, FaultShare::HalfOfPods, case);
    let fault_free = cell.fault_free();
    let faulty = cell.faulty();
    // 90 s: later the load really grows.
    let early_max = |run: &Timeline| run.published[..90].iter().copied().max();
    assert_eq!(early_max(&faulty), early_max(&fault_free));
}

#[test]
fn an_addition_that_a_saturated_fleet_needs_is_not_withdrawn() {
    let case = Case { load: Load::Saturating, hardware: Hardware::Kv, view: View::Prometheus, hides: None };
    let sizes = FaultSignals::Of(Signal::RequestGenerationTokensSum);
    // The addition for the false signal is withdrawn; the one for the load is not, although young pods show the same fault.
    let compared = compared(&cell(sizes, FaultKind::Doubled, FaultShare::AllPods, case));
    assert!(compared.holds(), "{}", compared.cell_text());
}

#[test]
fn an_addition_for_signals_that_turn_out_to_be_contradicted_is_withdrawn() {
    let case = Case { load: Load::Steady, hardware: Hardware::Kv, view: View::Direct, hides: None };
    let sizes = FaultSignals::Of(Signal::RequestGenerationTokensSum);
    let cell = cell(sizes, FaultKind::Doubled, FaultShare::AllPods, case);
    let fault_free = cell.fault_free();
    let faulty = cell.faulty();
    let numbers = faulty.published.iter().zip(&fault_free.published);
    let additional: Vec<u32> = numbers.map(|(faulty, own)| faulty.saturating_sub(*own)).collect();
    let (early, late) = additional.split_at(100);
    assert!(early.iter().any(|replicas| *replicas > 0), "the signal is used at first");
    assert!(late.iter().all(|replicas| *replicas <= 1), "{additional:?}");
}

#[test]
fn an_addition_for_a_growing_load_stands_despite_a_false_signal_of_one_pod() {
    let case = Case { load: Load::Saturating, hardware: Hardware::Kv, view: View::Prometheus, hides: None };
    for signal in [Signal::TimeToFirstTokenCount, Signal::PromptTokens, Signal::RequestGenerationTokensSum] {
        let cell = cell(FaultSignals::Of(signal), FaultKind::Doubled, FaultShare::OnePod, case);
        let compared = compared(&cell);
        assert!(compared.fewer <= 1.0, "{signal:?}: {}", compared.cell_text());
    }
}

fn a_case() -> impl Strategy<Value = Case> {
    let (hardware, view) = ([Hardware::Sequences, Hardware::Kv], [View::Direct, View::Prometheus]);
    (select(&Load::ALL[..]), select(hardware.to_vec()), select(view.to_vec()))
        .prop_map(|(load, hardware, view)| Case { load, hardware, view, hides: None })
}

proptest! {
    #![proptest_config(cases::looped())]

    #[test]
    fn missing_or_frozen_signals_of_one_pod_do_not_move_the_rate_policy(
        signals in select(signals(Analyzer::Rate)),
        kind in select(vec![FaultKind::Gone, FaultKind::Renamed, FaultKind::Frozen]),
        case in a_case(),
        seed in 1_u64..1_000_000,
    ) {
        let cell = Cell { seed, ..cell(signals, kind, FaultShare::OnePod, case) };
        let compared = compared(&cell);
        let name = matrix::name(signals);
        let kind = kind.as_str();
        // Weaker than the criteria of the table, which hold for its seed: other seeds differ by a replica here and there.
        let harmless = compared.fewer <= 2.0 && compared.hours <= 1.5 && compared.away.abs() <= 3.0;
        prop_assert!(harmless, "{name} {kind}, {}, seed {seed}: {compared:?}", case.name());
    }
}
