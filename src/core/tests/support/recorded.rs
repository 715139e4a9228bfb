//! Recordings of real engines, scrape by scrape.

use wva_core::report::Stage;

use super::prelude::*;

/// A scrape: seconds, and what it showed.
pub(crate) type Scrape = (f64, Vec<(Signal, f64)>);

/// All recordings, by name.
pub(crate) const RECORDINGS: [(&str, &str); 5] = [
    ("cpu", include_str!("../recorded/cpu.txt")),
    ("timed", include_str!("../recorded/timed.txt")),
    ("cache-bound", include_str!("../recorded/cache-bound.txt")),
    ("refused-and-aborted", include_str!("../recorded/refused-and-aborted.txt")),
    ("aborted-and-shared-prefix", include_str!("../recorded/aborted-and-shared-prefix.txt")),
];

/// The scrapes of the recording `name`.
pub(crate) fn recording(name: &str) -> Vec<Scrape> {
    scrapes(RECORDINGS.into_iter().find(|(own, _)| *own == name).unwrap().1)
}

/// The scrapes of a recording. A cell `-` was not recorded.
pub(crate) fn scrapes(text: &str) -> Vec<Scrape> {
    let (head, table) = text.split_once("KvCapacity ").unwrap();
    assert!(head.lines().all(|line| line.starts_with('#')));
    let (capacity, table) = table.split_once(".\n").unwrap();
    let mut lines = table.lines().map(str::split_whitespace);
    let named = |name: &str| serde_json::from_value(name.into()).unwrap();
    let names: Vec<Signal> = lines.next().unwrap().skip(1).map(named).collect();
    let number = |cell: &str| cell.parse::<f64>().unwrap();
    let capacity = (Signal::KvCapacity, number(capacity));
    lines
        .map(|mut cells| {
            let second = number(cells.next().unwrap());
            let shown = names.iter().copied().zip(cells.map(number));
            (second, shown.chain([capacity]).collect())
        })
        .collect()
}

/// The time of a second of a recording.
pub(crate) fn moment(second: f64) -> Timestamp {
    at(second as i64) + SignedDuration::from_millis((second.fract() * 1000.0) as i64)
}

/// What an evaluation says about one replica with the engine of a recording.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Evaluation {
    /// The capacity claimed for a replica, requests/s.
    pub(crate) capacity: Option<f64>,
    /// Arrivals, requests/s.
    pub(crate) arrivals: Option<f64>,
}

/// Evaluates at every scrape, as the program would that reads them directly, without memory at first. The engine runs `sequences` at most,
/// and has served for two minutes.
pub(crate) fn evaluations(scrapes: &[Scrape], sequences: i64) -> Vec<Evaluation> {
    let engine = EngineParameters {
        max_sequences: sequences,
        has_max_sequences: true,
        ..EngineParameters::defaults(Engine::Vllm)
    };
    let ready = moment(scrapes.first().unwrap().0) - SignedDuration::from_secs(120);
    let (mut signals, mut memory, policy) =
        (Signals::default(), Memory::default(), policy_of(Analyzer::Rate));
    let mut evaluate_at = |(second, shown): &Scrape| {
        let now = moment(*second);
        signals.slide(now, Seconds::whole(120).before(now), 200, shown.iter().copied());
        let pod = Pod {
            created: ready - SignedDuration::from_secs(60),
            ready_since: Some(ready),
            ..ready_pod("engine", signals.clone())
        };
        let mut state = variant_state("engine", vec![pod]);
        state.template.engine = Some(engine.clone());
        let mut outcome =
            evaluate(&snapshot_of(now, model_group(vec![state])), std::mem::take(&mut memory), &policy);
        memory = std::mem::take(&mut outcome.memory);
        let steps = &outcome.report.groups[&group_id()].steps;
        let values =
            || steps.iter().filter(|step| step.stage() == Stage::Analyze).flat_map(|step| step.values());
        let value =
            |name: &str| values().find(|value| value.name().starts_with(name)).map(|value| value.value);
        Evaluation { capacity: value("capacity of a replica"), arrivals: value("arrivals,") }
    };
    scrapes.iter().map(&mut evaluate_at).collect()
}
