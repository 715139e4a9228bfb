//! Traces: every format is read from a file, gzipped or not, and becomes load. Public traces, which the repository does not
//! contain, are in the folder that `WVA_TRACES` names.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use wva::engine::Evaluation;
use wva::simulate::trace::{TokenMeans, Trace, read};
use wva::simulate::{TraceOverride, plans};
use wva_core::Snapshot;
use wva_core::snapshot::{Sample, Signal};
use wva_sim::{Arrivals, Scenario};

use super::files::scenarios;
use crate::record::material::{Folder, lines, stream};

const AZURE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
    2023-11-16 18:17:03.0000000,4808,10\n2023-11-16 18:17:04.5000000,3180,8\n2023-11-16 18:18:04.0000000,110,27\n";

fn gzipped(text: &str) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(text.as_bytes()).unwrap();
    packed.finish().unwrap()
}

fn scenario(folder: &Folder, text: &str, trace: &Path) -> Result<Scenario, String> {
    let path = folder.file("s.yaml", text.as_bytes());
    let given = TraceOverride { trace: Some(trace.into()), series: None };
    plans(&path, &given).map(|plans| plans[0].scenario(1)).map_err(|error| error.to_string())
}

const VARIANTS: &str = "variants: [{name: a, physics: {preset: h100-8b-tp1}}]\n";

fn arrivals(scenario: &Scenario) -> Vec<(f64, u32, u32)> {
    let Arrivals::Trace(trace) = &scenario.arrivals else { panic!("{scenario:?}") };
    trace.iter().map(|arrival| (arrival.at_s, arrival.prompt, arrival.output)).collect()
}

#[test]
fn a_gzipped_trace_is_the_load_of_a_scenario() {
    let folder = Folder::new();
    let trace = folder.file("a.csv.gz", &gzipped(AZURE));
    let as_it_is = scenario(&folder, &format!("load: {{trace: {{}}}}\n{VARIANTS}"), &trace).unwrap();
    assert_eq!(arrivals(&as_it_is), [(0.0, 4808, 10), (1.5, 3180, 8), (61.0, 110, 27)]);
    assert_eq!(as_it_is.duration.as_secs(), 120);
    let text = format!("duration: 61s\nload: {{trace: {{times: 3, jitter: 2s}}}}\n{VARIANTS}");
    let repeated = scenario(&folder, &text, &trace).unwrap();
    let times: Vec<f64> = arrivals(&repeated).iter().map(|(at_s, ..)| *at_s).collect();
    assert_eq!(times.len(), 6, "{times:?}");
    assert!(times.is_sorted() && times[5] < 3.5, "{times:?}");
}

#[test]
fn a_trace_on_the_command_line_takes_the_place_of_rates() {
    let folder = Folder::new();
    let trace = folder.file("a.csv", AZURE.as_bytes());
    let text = std::fs::read_to_string(scenarios().join("case2.yaml")).unwrap();
    assert_eq!(arrivals(&scenario(&folder, &text, &trace).unwrap()).len(), 3);
}

#[test]
fn rates_become_parts_and_need_tokens() {
    let folder = Folder::new();
    let trace = folder.file("s.csv", b"t_s,m-large\n0,100\n600,0\n1200,300\n");
    let without = scenario(&folder, &format!("load: {{trace: {{}}}}\n{VARIANTS}"), &trace).unwrap_err();
    assert!(without.contains("s.yaml:1:7: load: this trace has only rates: set `tokens"), "{without}");
    let text = format!(
        "load:\n  tokens: {{prompt: 100, output: 10}}\n  trace: {{from: 300s, times: 0.1}}\n{VARIANTS}"
    );
    let scenario = scenario(&folder, &text, &trace).unwrap();
    let Arrivals::Rate { load, .. } = &scenario.arrivals else { panic!("{scenario:?}") };
    let at = |second| load.rate_at(std::time::Duration::from_secs(second));
    assert_eq!((at(0), at(899), at(900), scenario.duration.as_secs()), (10.0, 10.0, 30.0, 1500));
}

/// The same evaluation, in which every engine has counted two requests a second of 700/80 tokens since a fixed moment.
fn counted(evaluation: &Evaluation) -> Evaluation {
    let mut counted = evaluation.clone();
    let now = counted.snapshot.now;
    let requests = 2.0 * now.duration_since("2026-01-01T00:00:00Z".parse().unwrap()).as_secs_f64();
    let variants = counted.snapshot.groups.values_mut().flat_map(|group| &mut group.variants);
    for signals in variants.flat_map(|variant| &mut variant.pods).flat_map(|pod| pod.engines.values_mut()) {
        for (signal, per_request) in [
            (Signal::TimeToFirstTokenCount, 1.0),
            (Signal::PromptTokens, 700.0),
            (Signal::RequestGenerationTokensCount, 1.0),
            (Signal::RequestGenerationTokensSum, 80.0),
        ] {
            signals.add(signal, [Sample { at: now, value: per_request * requests }]);
        }
    }
    counted
}

fn engines(snapshot: &Snapshot) -> f64 {
    let pods = snapshot.groups.values().flat_map(|group| &group.variants).flat_map(|variant| &variant.pods);
    pods.map(|pod| pod.engines.len() as f64).sum()
}

#[test]
fn a_recording_of_ours_is_a_trace() {
    let folder = Folder::new();
    let evaluations: Vec<_> =
        stream("fresh-busy-goes-up", 13).iter().map(|evaluation| Arc::new(counted(evaluation))).collect();
    let recording = folder.file("r.jsonl", &lines(&evaluations));
    let Trace::Rates(intervals) = read(&recording, None).unwrap() else { panic!("no rates") };
    let engines = engines(&evaluations[0].snapshot);
    assert_eq!(intervals.last().unwrap().until.as_secs(), 60);
    for interval in &intervals {
        assert!((interval.rps - 2.0 * engines).abs() < 1e-6, "{intervals:?}");
        assert_eq!(interval.tokens, Some(TokenMeans { prompt: 700.0, output: 80.0 }));
    }
    let error = read(&recording, Some("x/y")).unwrap_err().to_string();
    assert!(error.contains("r.jsonl:1: no model \"x/y\"; there are "), "{error}");
}

#[test]
fn what_is_no_trace_is_told_with_what_is() {
    let folder = Folder::new();
    let other = folder.file("x.csv", b"hello,world\n");
    let error = read(&other, None).unwrap_err().to_string();
    assert!(error.contains("x.csv:1: not a trace: give an Azure LLM CSV"), "{error}");
    let empty = folder.file("e.csv", b"TIMESTAMP,ContextTokens,GeneratedTokens\n");
    assert!(read(&empty, None).unwrap_err().to_string().ends_with("has no requests"));
    let error = read(&folder.path().join("none"), None).unwrap_err().to_string();
    assert!(error.ends_with("give a file that exists and that you may read"), "{error}");
}

/// The path of a public trace.
pub(super) fn public(name: &str) -> PathBuf {
    let folder =
        std::env::var_os("WVA_TRACES").expect("WVA_TRACES must name the folder of the public traces");
    Path::new(&folder).join(name)
}

#[test]
#[ignore = "needs public traces: WVA_TRACES=FOLDER cargo test --test it simulate -- --ignored"]
fn the_public_traces_are_read_whole() {
    let code = public("azure_llm_2023_code.csv.gz");
    let Trace::Requests(requests) = read(&code, None).unwrap() else { panic!("no requests") };
    let last = requests.last().unwrap().at_s;
    assert_eq!(requests.len(), 8819);
    assert!((3300.0..3600.0).contains(&last), "{last}");
    let rates = public("servegen_total_rate_10min.csv.gz");
    let Trace::Rates(intervals) = read(&rates, Some("m-large")).unwrap() else { panic!("no rates") };
    assert_eq!(intervals.len(), 2016);
    let mean = intervals.iter().map(|interval| interval.rps).sum::<f64>() / 2016.0;
    assert!((mean - 195.8).abs() < 0.1, "{mean}");
    let several = read(&rates, None).unwrap_err().to_string();
    assert!(
        several.ends_with("give --series with one of m-large, m-mid, m-small, deepseek-r1, mm-image"),
        "{several}"
    );
}
