//! Faults of signals in closed loop: cells of the fault matrix that once failed, and checks of its comparison.

use proptest::prelude::*;
use proptest::sample::select;
use wva_core::model::{Analyzer, Role};
use wva_core::snapshot::Signal;
use wva_sim::FaultKind::{self, Doubled, Frozen, Gone, Halved, Renamed};
use wva_sim::FaultShare::{self, Half, One};
use wva_sim::FaultSignals::{self, Counters, Of};

use crate::cases;
use crate::matrix::cases::Hardware::{Kv, Sequences};
use crate::matrix::cases::Load::{self, Falling, Rest, Rising, Saturating, Steady};
use crate::matrix::cases::View::{Direct, Prometheus};
use crate::matrix::cases::{Case, MAX_REPLICAS};
use crate::matrix::compare::{Comparison, Timeline};
use crate::matrix::{self, Cell, policies, signals};

#[test]
fn policies_that_read_nothing_fail_the_comparison() {
    let runs = |case: Case| {
        let cell = cell(FaultSignals::All, Gone, One, case);
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
        for hardware in [Sequences, Kv] {
            let case = Case::new(Saturating, hardware, Prometheus);
            let own = Cell { analyzer, ..cell(FaultSignals::All, Gone, FaultShare::All, case) };
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

#[test]
fn engines_without_a_fault_contradict_nothing() {
    for analyzer in Analyzer::ALL {
        for case in Case::in_turns() {
            let cell = Cell { analyzer, ..cell(FaultSignals::All, Gone, One, case) };
            assert_eq!(cell.contradicted_without_fault(), 0, "{}, {}", analyzer.as_str(), case.name());
        }
    }
}

#[test]
fn cells_that_once_failed_hold() {
    let falling = Case::new(Falling, Kv, Direct);
    let rest = Case::new(Rest, Kv, Prometheus);
    let rising = Case::new(Rising, Sequences, Direct);
    let steady = Case::new(Steady, Kv, Direct);
    // The addition for the false signal is withdrawn; the one for the load is not, although young pods show the same fault.
    let saturating = Case::new(Saturating, Kv, Prometheus);
    let growing = Case::new(Rising, Kv, Prometheus);
    for (what, signals, kind, share, case) in [
        ("a counter that moves again adds none", Of(Signal::PromptTokens), Frozen, One, falling),
        ("a counter that moves again adds none", Of(Signal::RequestGenerationTokensSum), Frozen, One, rest),
        ("counters that move again add none", Counters, Frozen, One, rest),
        ("signals that move again add none", FaultSignals::All, Frozen, One, falling),
        ("half a histogram makes no replica fast", Of(Signal::InterTokenLatencyCount), Gone, One, rising),
        ("half a histogram makes no replica fast", Of(Signal::InterTokenLatencyCount), Frozen, One, rising),
        ("half a cache does not double the fleet", Of(Signal::KvCapacity), Halved, One, steady),
        ("half a cache does not double the fleet", Of(Signal::KvCapacity), Halved, FaultShare::All, steady),
        ("frozen counters erase nothing that is learned", Counters, Frozen, FaultShare::All, rising),
        ("a load that no engine counts any more is still seen", Counters, Renamed, FaultShare::All, growing),
        (
            "a needed addition stays",
            Of(Signal::RequestGenerationTokensSum),
            Doubled,
            FaultShare::All,
            saturating,
        ),
    ] {
        let compared = compared(&cell(signals, kind, share, case));
        assert!(compared.holds(), "{what}, {}, {kind:?}: {}", matrix::name(signals), compared.cell_text());
    }
    // Just before the series was lost, an HPA's read caused another scrape, 50 ms after the usual one.
    let case = Case::new(Falling, Sequences, Direct);
    let gone = cell(Of(Signal::InterTokenLatencySum), Gone, One, case);
    let compared = compared(&Cell { seed: 882_460, ..gone });
    assert!(compared.holds(), "a series lost between two scrapes: {}", compared.cell_text());
}

#[test]
fn no_number_falls_on_arrivals_that_are_estimated() {
    for (hardware, path, share, kind) in [
        (Kv, Prometheus, FaultShare::All, Gone),
        (Kv, Direct, FaultShare::All, Renamed),
        (Sequences, Direct, FaultShare::All, Gone),
        (Sequences, Prometheus, FaultShare::All, Renamed),
    ] {
        let faulty = cell(Counters, kind, share, Case::new(Falling, hardware, path)).faulty();
        // From two minutes into the fault, when every engine has lost its counters, to half a minute after it.
        let numbers = &faulty.published[120..630];
        assert!(numbers.is_sorted(), "{hardware:?}, {path:?}, {kind:?}: {numbers:?}");
    }
}

#[test]
fn answers_that_some_pods_do_not_count_do_not_lengthen_those_of_others() {
    let case = Case::new(Rising, Sequences, Direct);
    let cell = cell(Of(Signal::RequestGenerationTokensCount), Frozen, Half, case);
    // 90 s: later the load really grows.
    let early_max = |run: &Timeline| run.published[..90].iter().copied().max();
    assert_eq!(early_max(&cell.faulty()), early_max(&cell.fault_free()));
}

#[test]
fn an_addition_for_signals_that_turn_out_to_be_contradicted_is_withdrawn() {
    let case = Case::new(Steady, Kv, Direct);
    let cell = cell(Of(Signal::RequestGenerationTokensSum), Doubled, FaultShare::All, case);
    let (fault_free, faulty) = (cell.fault_free(), cell.faulty());
    let numbers = faulty.published.iter().zip(&fault_free.published);
    let additional: Vec<u32> = numbers.map(|(faulty, own)| faulty.saturating_sub(*own)).collect();
    let (early, late) = additional.split_at(100);
    assert!(early.iter().any(|replicas| *replicas > 0), "the signal is used at first");
    assert!(late.iter().all(|replicas| *replicas <= 1), "{additional:?}");
}

#[test]
fn an_addition_for_a_growing_load_stands_despite_a_false_signal_of_one_pod() {
    let case = Case::new(Saturating, Kv, Prometheus);
    for signal in [Signal::TimeToFirstTokenCount, Signal::PromptTokens, Signal::RequestGenerationTokensSum] {
        let compared = compared(&cell(Of(signal), Doubled, One, case));
        assert!(compared.fewer <= 1.0, "{signal:?}: {}", compared.cell_text());
    }
}

fn a_case() -> impl Strategy<Value = Case> {
    let (hardware, view) = ([Sequences, Kv], [Direct, Prometheus]);
    (select(&Load::ALL[..]), select(hardware.to_vec()), select(view.to_vec()))
        .prop_map(|(load, hardware, view)| Case::new(load, hardware, view))
}

proptest! {
    #![proptest_config(cases::looped())]

    #[test]
    fn missing_or_frozen_signals_of_one_pod_do_not_move_the_rate_policy(
        signals in select(signals(Analyzer::Rate)),
        kind in select(vec![Gone, Renamed, Frozen]),
        case in a_case(),
        seed in 1_u64..1_000_000,
    ) {
        let cell = Cell { seed, ..cell(signals, kind, One, case) };
        let compared = compared(&cell);
        let name = matrix::name(signals);
        // Weaker than the criteria of the table, which hold for its seed: other seeds differ by a replica here and there.
        let harmless = compared.fewer <= 2.0 && compared.hours <= 1.5 && compared.away.abs() <= 3.0;
        prop_assert!(harmless, "{name} {kind:?}, {}, seed {seed}: {compared:?}", case.name());
    }
}
