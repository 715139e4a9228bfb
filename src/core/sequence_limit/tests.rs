//! What is known and estimated of an engine by its arguments and its device, and what is remembered of what ran.

use jiff::SignedDuration;

use super::*;
use crate::fixture::variant_state;
use crate::snapshot::{Pod, Sample, Signals};

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

fn at(second: i64) -> Timestamp {
    NOW + SignedDuration::from_secs(second)
}

fn engine(of: Engine, argument: Option<i64>) -> EngineParameters {
    let usual = EngineParameters::defaults(of);
    let max_sequences = argument.unwrap_or(usual.max_sequences);
    EngineParameters { max_sequences, has_max_sequences: argument.is_some(), ..usual }
}

/// A variant on `accelerator` whose one engine shows `running`.
fn variant(accelerator: &str, engine: Option<EngineParameters>, running: &[f64]) -> VariantState {
    let mut signals = Signals::default();
    let samples =
        running.iter().zip(0..).map(|(value, scrape)| Sample { at: at(scrape - 60), value: *value });
    signals.add(Signal::Running, samples);
    let engines = [("0".into(), signals)].into();
    let pod = Pod { name: "p".into(), phase: Phase::Ready, created: NOW, ready_since: Some(NOW), engines };
    let mut state = variant_state(vec![pod]);
    state.variant.accelerator = Some(accelerator.into());
    state.template.engine = engine;
    state
}

#[test]
fn a_large_device_runs_1024_sequences_and_an_a100_or_a_slice_256() {
    for large in ["NVIDIA-H100-80GB-HBM3", "h200", "AMD_Instinct_MI300X_OAM", "NVIDIA-GB200"] {
        assert_eq!(default_for_device(Some(large)), 1024, "{large}");
    }
    let small = ["NVIDIA-A100-SXM4-80GB", "NVIDIA-L40S", "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", ""];
    for small in small.into_iter().map(Some).chain([None]) {
        assert_eq!(default_for_device(small), 256, "{small:?}");
    }
}

#[test]
fn an_engine_without_the_argument_was_once_taken_for_one_of_256_sequences() {
    let both = |accelerator: &str, engine: Option<EngineParameters>, peak| {
        let state = variant(accelerator, engine, &[]);
        (state.template.sequences(), estimated_max(&state, peak))
    };
    assert_eq!(both("H100", Some(engine(Engine::Vllm, None)), 0), (None, Some(1024)));
    assert_eq!(both("A100", Some(engine(Engine::Vllm, None)), 0), (None, Some(256)));
    assert_eq!(both("A100", Some(engine(Engine::Vllm, None)), 300), (None, Some(300)), "300 have run");
    assert_eq!(both("H100", Some(engine(Engine::Sglang, None)), 300), (None, None), "by its memory");
    assert_eq!(both("H100", None, 300), (None, None), "of another kind, for all that is known");
    for of in [Engine::Vllm, Engine::Sglang] {
        assert_eq!(both("H100", Some(engine(of, Some(256))), 300), (Some(256), Some(256)));
        assert_eq!(both("H100", Some(engine(of, Some(0))), 300), (None, None), "that is no count");
    }
}

#[test]
fn what_was_recorded_before_arguments_were_told_apart_keeps_them() {
    let old = |max_sequences: i64| {
        let mut text = serde_json::to_value(engine(Engine::Vllm, None)).unwrap();
        text["max_sequences"] = max_sequences.into();
        serde_json::from_value::<EngineParameters>(text).unwrap().sequences()
    };
    assert_eq!((old(64), old(256)), (Some(64), None));
}

#[test]
fn what_has_run_once_is_remembered_until_the_pods_are_made_otherwise() {
    let mut peak = PeakRunning::default();
    let [busy, calm] = [[40.0], [3.0]].map(|running| variant("H100", None, &running));
    peak.observe(&busy, false, at(0));
    peak.observe(&calm, false, at(15));
    assert_eq!((peak.of(&calm), peak.remembered(&calm)), (40, 40));
    peak.observe(&calm, false, at(100_000));
    peak.observe(&calm, true, at(100_015));
    assert_eq!(peak.of(&calm), 40, "and does not flicker");
    let of_others = [
        variant("A100", None, &[3.0]),
        variant("H100", Some(engine(Engine::Vllm, None)), &[3.0]),
        variant("H100", Some(engine(Engine::Vllm, Some(8))), &[3.0]),
    ];
    for other in &of_others {
        assert_eq!(peak.of(other), 3, "{:?}", other.template);
        let mut peak = peak;
        peak.observe(other, false, at(100_030));
        assert_eq!((peak.of(other), peak.of(&calm)), (3, 3), "{:?}", other.template);
    }
}

#[test]
fn what_is_contradicted_within_two_minutes_is_not_remembered() {
    let mut peak = PeakRunning::default();
    let [lie, calm] = [[4000.0], [3.0]].map(|running| variant("H100", None, &running));
    peak.observe(&calm, false, at(0));
    peak.observe(&calm, false, at(120));
    peak.observe(&lie, false, at(135));
    peak.observe(&lie, true, at(150));
    assert_eq!(peak.remembered(&calm), 3);
}

#[test]
fn a_contradicted_value_in_an_older_scrape_was_once_trusted_after_its_delay() {
    let mut peak = PeakRunning::default();
    peak.observe(&variant("H100", None, &[4000.0, 3.0]), false, at(0));
    assert_eq!(peak.remembered(&variant("H100", None, &[])), 3);
}

#[test]
fn what_one_of_several_pods_showed_was_once_taken_for_what_each_of_them_can_run() {
    let pods = |running: &[&[f64]]| {
        let mut state = variant("H100", Some(engine(Engine::Vllm, Some(64))), &[]);
        let pod = |running: &&[f64]| variant("H100", None, running).pods.remove(0);
        state.pods = running.iter().map(pod).collect();
        state
    };
    let peak = |running: &[&[f64]]| PeakRunning::default().of(&pods(running));
    assert_eq!(peak(&[&[50.0, 50.0], &[4000.0, 4000.0], &[60.0, 60.0]]), 60);
    assert_eq!(peak(&[&[90.0], &[80.0], &[60.0]]), 80, "the argument is not in force");
    assert_eq!(peak(&[&[50.0, 4000.0]]), 50, "alone, and in one scrape");
    assert_eq!(peak(&[&[50.0, 90.0, 90.0]]), 90);
}

#[test]
fn one_pod_that_showed_too_much_once_made_room_for_the_removal_of_others() {
    // Four pods of 64 sequences with 50 requests each; three have room for 172 in nine tenths of theirs.
    let refuses = |bend: fn(&mut Pod)| {
        let mut state = variant("H100", Some(engine(Engine::Vllm, Some(64))), &[50.0, 50.0]);
        for pod in &mut state.pods {
            let signals = pod.engines.get_mut("0").unwrap();
            signals.add(Signal::Waiting, [0, 1].map(|scrape| Sample { at: at(scrape - 60), value: 0.0 }));
        }
        let pod = state.pods[0].clone();
        state.pods = (0..4).map(|index| Pod { name: format!("p-{index}").into(), ..pod.clone() }).collect();
        bend(&mut state.pods[0]);
        let peak = PeakRunning::default().of(&state);
        crate::quality::RemainingCapacity::new([(&state, peak)], at(-59)).find_shortfall(&[3]).is_some()
    };
    assert!(refuses(|_| {}));
    let twice = |pod: &mut Pod| {
        let mut signals = Signals::default();
        for (signal, value) in [(Signal::Running, 100.0), (Signal::Waiting, 0.0)] {
            signals.add(signal, [0, 1].map(|scrape| Sample { at: at(scrape - 60), value }));
        }
        *pod.engines.get_mut("0").unwrap() = signals;
    };
    assert!(refuses(twice), "it was taken for what each of them runs");
    let engines = |pod: &mut Pod| {
        let first = pod.engines.get("0").unwrap().clone();
        (1..9).for_each(|index| {
            pod.engines.insert(format!("{index}").into(), first.clone());
        });
    };
    assert!(refuses(engines), "each of them was taken for one of nine engines");
}

#[test]
fn what_has_not_run_for_a_week_is_forgotten_also_of_an_earlier_version() {
    let [busy, calm] = [[40.0], [3.0]].map(|running| variant("H100", None, &running));
    let mut peak = PeakRunning::default();
    peak.observe(&busy, false, at(0));
    peak.observe(&calm, false, at(120));
    let mut text = serde_json::to_value(peak).unwrap();
    assert!(text.as_object_mut().unwrap().remove("settled_at").is_some());
    let mut older: PeakRunning = serde_json::from_value(text).unwrap();
    for peak in [&mut peak, &mut older] {
        peak.observe(&calm, false, at(130));
        peak.observe(&calm, false, at(604_900));
        assert_eq!(peak.remembered(&calm), 40);
        peak.observe(&calm, false, at(604_950));
        peak.observe(&calm, false, at(604_965));
        assert_eq!(peak.remembered(&calm), 3);
    }
}

#[test]
fn what_no_engine_runs_is_not_believed() {
    let values = [f64::NAN, f64::INFINITY, -5.0, 1e12, 1e12];
    let mut peak = PeakRunning::default();
    peak.observe(&variant("H100", None, &values), false, at(0));
    assert_eq!(peak.remembered(&variant("H100", None, &[])), MAX_SEEN);
    peak = PeakRunning::default();
    peak.observe(&variant("H100", None, &values[..3]), false, at(0));
    assert_eq!(peak.remembered(&variant("H100", None, &[])), 0);
}

#[test]
fn a_second_call_at_the_same_moment_remembers_the_same_and_survives_storage() {
    let busy = variant("H100", None, &[40.0]);
    let mut once = PeakRunning::default();
    once.observe(&busy, false, at(0));
    let mut twice = once;
    twice.observe(&busy, false, at(0));
    assert_eq!(once, twice);
    let text = serde_json::to_string(&once).unwrap();
    assert_eq!(serde_json::from_str::<PeakRunning>(&text).unwrap(), once);
    once.not_after(at(-60));
    assert_eq!(once.latest(), Some(at(-60)), "the clock was set back");
}
