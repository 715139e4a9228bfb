//! The observation table, row by row.

use jiff::{SignedDuration, Timestamp};

use super::freshness::{Freshness, read_engine};
use super::*;
use crate::fixture::variant_state;
use crate::quality::analyzer_signals::Declared;
use crate::snapshot::{Phase, Pod, Sample, Scale, Signal, Signals, SourceHealth, VariantState};
use crate::units::{Replicas, Seconds};

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

fn ago(seconds: i64) -> Timestamp {
    NOW - SignedDuration::from_secs(seconds)
}

/// Both signals, scraped every `gap` seconds, the last time `newest` seconds ago.
fn scraped(newest: i64, gap: i64) -> Signals {
    let mut signals = Signals::default();
    for signal in [Signal::KvUsage, Signal::Waiting] {
        signals.add(signal, (0..61).map(|back| Sample { at: ago(newest + gap * back), value: 0.5 }));
    }
    signals
}

fn ready(engines: impl IntoIterator<Item = Signals>) -> Pod {
    let engines = engines
        .into_iter()
        .enumerate()
        .map(|(port, signals)| (smol_str::ToSmolStr::to_smolstr(&port), signals))
        .collect();
    let (created, ready_since) = (ago(900), Some(ago(800)));
    Pod { name: "p".into(), phase: Phase::Ready, created, ready_since, engines }
}

fn in_phase(phase: Phase) -> Pod {
    Pod { phase, ready_since: None, ..ready([]) }
}

fn coverage_state(pods: Vec<Pod>, source: &SourceHealth) -> CoverageState {
    let serving = pods.iter().filter(|pod| pod.phase == Phase::Ready).count();
    let spec = Replicas::new(u32::try_from(pods.len()).unwrap());
    let scale = Scale { spec, current: spec, ready: Replicas::new(u32::try_from(serving).unwrap()) };
    assess_coverage(source, &[&variant(pods, scale)], Declared::default(), NOW)
}

fn variant(pods: Vec<Pod>, scale: Scale) -> VariantState {
    VariantState { scale: Some(scale), ..variant_state(pods) }
}

#[test]
fn freshness_follows_the_scrape_interval_that_was_observed() {
    let grade = |newest, gap| read_engine(&scraped(newest, gap), ago(800), NOW).freshness;
    assert_eq!([grade(30, 15), grade(31, 15), grade(60, 15), grade(61, 15)], {
        use Freshness::{Aging, Fresh, Stale};
        [Fresh, Aging, Aging, Stale]
    });
    assert_eq!([grade(120, 60), grade(121, 60), grade(240, 60), grade(241, 60)], {
        use Freshness::{Aging, Fresh, Stale};
        [Fresh, Aging, Aging, Stale]
    });
    assert_eq!(grade(30, 1), Freshness::Fresh, "a fast scrape does not make 30 s old");
}

#[test]
fn one_missed_scrape_does_not_change_the_interval() {
    let mut signals = Signals::default();
    let times = [5, 20, 35, 95, 110];
    signals.add(Signal::KvUsage, times.map(|back| Sample { at: ago(back), value: 0.1 }));
    assert_eq!(signals.interval(), Seconds::whole(15));
}

#[test]
fn v1_reads_peaks_of_the_last_minute_and_whole_requests() {
    let mut signals = Signals::default();
    let series =
        |values: [f64; 5]| (0..).zip(values).map(|(back, value)| Sample { at: ago(5 + 15 * back), value });
    signals.add(Signal::KvUsage, series([0.2, 0.3, 0.6, 0.1, 0.9]));
    signals.add(Signal::Waiting, series([1.9, 0.0, 0.0, 0.0, 8.0]));
    let reading = read_engine(&signals, ago(800), NOW);
    assert!((reading.kv - 0.6).abs() < 1e-12);
    assert_eq!(reading.queue, 1);
}

#[test]
fn a_missing_signal_may_raise_and_never_lower() {
    let mut signals = Signals::default();
    signals.add(Signal::KvUsage, [Sample { at: ago(5), value: 0.9 }]);
    assert_eq!(read_engine(&signals, ago(800), NOW).freshness, Freshness::Aging);
    assert!(!coverage_state(vec![ready([signals])], &SourceHealth::Complete).allowed_moves().down);
}

#[test]
fn one_sample_after_a_start_is_no_peak_to_shrink_on() {
    let every = |gap: i64, ages: std::ops::Range<i64>| {
        let mut signals = Signals::default();
        for signal in [Signal::KvUsage, Signal::Waiting] {
            signals.add(signal, ages.clone().map(|back| Sample { at: ago(3 + gap * back), value: 0.1 }));
        }
        signals
    };
    let grade = |signals: &Signals, served| read_engine(signals, ago(served), NOW).freshness;
    for (gap, enough) in [(5, 11), (15, 4), (60, 2)] {
        assert_eq!(grade(&every(gap, 0..enough), 800), Freshness::Fresh, "{enough} of {gap} s reach back");
        assert_eq!(grade(&every(gap, 0..1), 800), Freshness::Aging, "one of {gap} s does not");
    }
    assert_eq!(grade(&every(15, 0..2), 800), Freshness::Aging);
    assert_eq!(grade(&every(5, 0..8), 800), Freshness::Aging);
    // Ready for 20 s: its samples need reach back no further.
    assert_eq!(grade(&every(15, 0..2), 20), Freshness::Fresh);
    assert_eq!(grade(&every(15, 0..1), 20), Freshness::Aging);
    let mut uneven = every(15, 0..4);
    uneven.add(Signal::Running, [Sample { at: ago(3), value: 0.0 }]);
    assert_eq!(grade(&uneven, 800), Freshness::Fresh, "only what V1 needs has to reach back");
}

#[test]
fn a_series_without_its_engines_name_is_no_second_engine() {
    let mut capacity = Signals::default();
    capacity.add(Signal::KvCapacity, [Sample { at: ago(5), value: 1e5 }]);
    assert_eq!(
        coverage_state(vec![ready([scraped(5, 15), capacity.clone()])], &SourceHealth::Complete),
        CoverageState::Fresh
    );
    assert_eq!(coverage_state(vec![ready([capacity])], &SourceHealth::Complete), CoverageState::Missing);
}

#[test]
fn each_row_of_the_table_is_told_apart() {
    let whole = SourceHealth::Complete;
    let warned = SourceHealth::Partial { warnings: vec!["cut".into()] };
    let down = SourceHealth::Down { cause: "refused".into() };
    let fresh = || ready([scraped(5, 15)]);
    assert_eq!(coverage_state(vec![fresh(), fresh()], &whole), CoverageState::Fresh);
    assert_eq!(coverage_state(vec![fresh(), ready([scraped(45, 15)])], &whole), CoverageState::Aging);
    assert_eq!(coverage_state(vec![fresh(), ready([scraped(99, 15)])], &whole), CoverageState::Estimated);
    assert_eq!(coverage_state(vec![fresh(), ready([])], &whole), CoverageState::Estimated);
    assert_eq!(
        coverage_state(vec![fresh(), ready([]), ready([scraped(99, 15)])], &whole),
        CoverageState::Partial
    );
    assert_eq!(
        coverage_state(vec![ready([scraped(5, 15), scraped(99, 15)])], &whole),
        CoverageState::Partial
    );
    assert_eq!(coverage_state(vec![fresh()], &warned), CoverageState::Partial);
    assert_eq!(coverage_state(vec![ready([scraped(99, 15)])], &whole), CoverageState::Stale);
    assert_eq!(coverage_state(vec![ready([])], &whole), CoverageState::Missing);
    assert_eq!(coverage_state(vec![ready([])], &warned), CoverageState::Missing);
    assert_eq!(coverage_state(vec![in_phase(Phase::Starting)], &whole), CoverageState::Starting);
    assert_eq!(coverage_state(vec![in_phase(Phase::Terminating)], &whole), CoverageState::Starting);
    assert_eq!(coverage_state(vec![], &whole), CoverageState::Zero);
    assert_eq!(coverage_state(vec![fresh()], &down), CoverageState::Down);
    assert_eq!(coverage_state(vec![], &down), CoverageState::Down);
}

#[test]
fn a_ready_pod_the_pod_list_does_not_have_makes_the_sight_partial() {
    let two = Replicas::new(2);
    let one_listed = variant(vec![ready([scraped(5, 15)])], Scale { spec: two, current: two, ready: two });
    assert_eq!(
        assess_coverage(&SourceHealth::Complete, &[&one_listed], Declared::default(), NOW),
        CoverageState::Partial
    );
}

#[test]
fn only_a_fresh_and_complete_sight_may_lower_a_number() {
    use CoverageState::{Aging, Down, Fresh, Missing, Partial, Stale, Starting, Zero};
    for state in [Down, Zero, Starting, Missing, Stale, Partial, Aging, Fresh] {
        let AllowedMoves { up, down, zero } = state.allowed_moves();
        assert_eq!((down, zero), (state == Fresh, state == Fresh), "{state:?}");
        assert_eq!(up, matches!(state, Fresh | Aging | Partial), "{state:?}");
    }
}

#[test]
fn a_pod_that_sleeps_is_no_capacity_and_no_pod_that_comes() {
    let awake = (0..4).map(|_| ready([scraped(5, 15)]));
    let pods = awake.chain([in_phase(Phase::Asleep), in_phase(Phase::Asleep)]).collect();
    let (six, four) = (Replicas::new(6), Replicas::new(4));
    let state = variant(pods, Scale { spec: six, current: six, ready: four });
    let coverage = assess_variant(&state, Declared::default(), None, NOW);
    assert_eq!((coverage.ready, coverage.asleep, coverage.starting), (4, 2, 0));
    assert_eq!(coverage.expected_pending(&state, Seconds::whole(300), 0, NOW), Replicas::ZERO);
    let found = assess_coverage(&SourceHealth::Complete, &[&state], Declared::default(), NOW);
    assert_eq!(found, CoverageState::Fresh, "what sleeps hides nothing");
}

#[test]
fn what_will_not_come_is_not_credited() {
    let young = Pod { created: ago(60), ..in_phase(Phase::Starting) };
    let old = Pod { created: ago(301), ..in_phase(Phase::Starting) };
    let nowhere = Pod { created: ago(60), ..in_phase(Phase::Unschedulable) };
    let (five, one) = (Replicas::new(5), Replicas::ONE);
    let state = variant(vec![young, old, nowhere], Scale { spec: five, current: five, ready: one });
    let coverage = assess_variant(&state, Declared::default(), None, NOW);
    // Four are pending: one is listed and young, one is not listed yet.
    let credited = |state, replaced| coverage.expected_pending(state, Seconds::whole(300), replaced, NOW);
    assert_eq!(credited(&state, 0), Replicas::new(2));
    let failing = || Pod { created: ago(900), ready_since: Some(ago(800)), ..in_phase(Phase::Starting) };
    let state = VariantState { pods: vec![failing(), failing()], ..state.clone() };
    assert_eq!([0, 1, 2, 9].map(|replaced| credited(&state, replaced).get()), [4, 3, 2, 2]);
}
