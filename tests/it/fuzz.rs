//! What is read back from objects and files that anybody may have damaged: state objects, snapshots, recordings, and the
//! texts of ConfigMaps. `WVA_FUZZ_SECONDS=600 cargo test -p wva --test it fuzz::` takes ten minutes for each target.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::body::Body as Answer;
use http::{Request, Response};
use kube::client::Body;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tower::service_fn;
use wva::cluster::StateStore;
use wva::config::policy_config::{ConfigMapKind, ConfigMapNames, ConfigMapTexts, PolicyLoader};
use wva::engine::{SystemClock, adopt};
use wva::record::{Lines, Replay, decide_recorded};
use wva_core::decision::Verdict;
use wva_core::units::Replicas;
use wva_core::{Memory, Policy, Snapshot};

use crate::record::material::{lines, scenarios, stream};

#[path = "../../src/serve/fuzz/harness.rs"]
pub(crate) mod harness;

use harness::{damaged, fuzz};

/// The most replicas that a variant may have, whoever says so.
const MAX_REPLICAS: u32 = 100_000;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// State objects of both kinds with this header and these entries.
fn object(kind: &str, header: &str, entries: &str) -> Value {
    let labels = json!({ "wva.llmd.ai/state": kind, "wva.llmd.ai/installation": "wva" });
    json!({
        "metadata": { "name": format!("wva-state-{kind}-0"), "labels": labels },
        "data": { "header": header, "entries": entries }
    })
}

/// A store whose API server has these objects, of whichever kind is asked for.
fn store(of_kind: impl Fn(&str) -> Value + Send + Sync + 'static) -> StateStore {
    let of_kind = Arc::new(of_kind);
    let answer = move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let kind = if query.contains("memory") { "memory" } else { "decisions" };
        let list = json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": [of_kind(kind)] });
        async move { Ok::<_, Infallible>(Response::new(Answer::from(list.to_string()))) }
    };
    let client = kube::Client::new(service_fn(answer), "default");
    StateStore::new(client, "wva", "wva", Arc::new(SystemClock))
}

/// The scenario's decisions and memory as a holder writes them, one entry a line.
fn state_lines(name: &str) -> (String, String) {
    let last = stream(name, 3).pop().unwrap();
    let line = |id: String, value: Value| format!("{}\n", json!({ "id": id, "value": value }));
    let decisions = last.published.decisions.iter();
    let decisions = decisions.map(|(id, decision)| line(id.to_string(), json!(decision))).collect();
    let groups = last.after.groups.iter().map(|(id, group)| line(id.to_string(), json!(group.compacted())));
    (decisions, groups.collect())
}

#[test]
fn no_damaged_state_object_ends_the_program_or_gives_an_absurd_number() {
    let mut corpus = Vec::new();
    for name in &some_scenarios(6) {
        let (decisions, memory) = state_lines(name);
        corpus.extend([decisions, memory]);
    }
    corpus.push(
        r#"{"id":"llm/m","value":{"variants":{"v":{"target":2147483647,"targetSince":"9999-01-01T00:00:00Z"}}}}"#.into(),
    );
    let header = r#"{"version":1,"holder":"a","lease":"l-1","epoch":3,"written":"2026-01-01T00:00:00Z"}"#;
    let headers = vec![header.to_owned(), header.replace('3', "-9223372036854775808")];
    let runtime = runtime();
    fuzz("state objects", (damaged(&corpus), damaged(&headers), any::<bool>()), |(entries, odd, whole)| {
        let entries = String::from_utf8_lossy(&entries).into_owned();
        let odd = if whole { header.to_owned() } else { String::from_utf8_lossy(&odd).into_owned() };
        // A client has a task of its own.
        let found = runtime.block_on(async { store(move |kind| object(kind, &odd, &entries)).load().await });
        prop_assert!(found.is_ok(), "{:?}", found.err());
        let memory = adopt(found.unwrap());
        let targets = memory.groups.values().flat_map(|group| group.variants.values());
        for target in targets.filter_map(|variant| variant.target) {
            prop_assert!(target <= Replicas::new(MAX_REPLICAS), "{target}");
        }
        prop_assert!(
            memory.dropped.iter().all(|line| line.len() < 2000 && !line.chars().any(char::is_control))
        );
        Ok(())
    });
}

/// Names of scenarios, evenly over all of them.
fn some_scenarios(count: usize) -> Vec<String> {
    let mut all: Vec<_> = crate::record::material::golden();
    all.sort();
    let step = (all.len() / count).max(1);
    let stem = |path: &PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
    all.iter().step_by(step).map(stem).collect()
}

#[test]
fn no_damaged_snapshot_ends_the_program() {
    let text =
        |name: &String| std::fs::read_to_string(scenarios().join(name).with_extension("json")).unwrap();
    let compact = |name: &String| serde_json::from_str::<Value>(&text(name)).unwrap();
    let corpus: Vec<_> = some_scenarios(24).iter().map(compact).collect();
    let parts =
        |part: &'static str| -> Vec<String> { corpus.iter().map(|all| all[part].to_string()).collect() };
    let inputs = (damaged(&parts("snapshot")), damaged(&parts("memory")), damaged(&parts("policy")));
    fuzz("snapshots", inputs, |(snapshot, memory, policy)| {
        let Ok(snapshot) = serde_json::from_slice::<Snapshot>(&snapshot) else { return Ok(()) };
        let memory = serde_json::from_slice::<Memory>(&memory).unwrap_or_default();
        let policy =
            serde_json::from_slice::<Policy>(&policy).ok().and_then(|policy| policy.validated().ok());
        let outcome = decide_recorded(&snapshot, &memory, &policy.unwrap_or_default());
        let caught: Vec<_> =
            outcome.report.failed.iter().filter(|model| model.failed.at == snapshot.now).collect();
        prop_assert!(caught.is_empty(), "a panic that was caught is one all the same: {caught:?}");
        let variants = snapshot.groups.values().flat_map(|group| &group.variants);
        for state in variants {
            prop_assert!(
                outcome.decisions.contains_key(&state.variant.id),
                "{} is not decided about",
                state.variant.id
            );
        }
        for (id, decision) in &outcome.decisions {
            let Verdict::Unknown(unknown) = &decision.verdict else { continue };
            prop_assert!(!unknown.explanation.to_string().is_empty(), "{id}");
        }
        Ok(())
    });
}

#[test]
fn no_damaged_recording_ends_the_program_and_what_is_read_of_it_is_what_was_written() {
    let whole: Vec<_> = some_scenarios(6).iter().map(|name| lines(&stream(name, 2))).collect();
    fuzz("recordings", damaged(&whole), |bytes| {
        let mut replay = Replay::new(None);
        for found in Lines::new(&bytes[..], Path::new("r.jsonl")) {
            let Ok(entry) = found.unwrap().entry else { continue };
            let now = replay.step(&entry);
            prop_assert!(
                now.as_ref().is_ok_and(|now| now.is_identical),
                "sequence {}: {now:?}",
                entry.sequence
            );
        }
        Ok(())
    });
}

#[test]
fn no_text_in_a_configmap_ends_the_program_or_makes_a_policy_that_the_core_refuses() {
    let sample = include_str!("../../manifests/samples/configmaps.yaml");
    let texts: Vec<String> = vec![
        sample.to_owned(),
        "model_id: org/m\nnamespace: llm\npriority: 9\nstability: {upStep: {replicas: 2}, dwell: 5m}".into(),
        "enableLimiter: true\nlimiters:\n- {type: quota, scope: namespace, namespaceQuotas: {default: {H100: 2}}}".into(),
        "power: {watts: 9000, perGpu: {H100: 700}}\nspend: 12\nenableRescale: yes".into(),
        "analyzerName: saturation\nanalyzers: [{name: throughput, score: 2}]\nrate: {targetTTFT: 500}".into(),
        "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b, *b]\npriority: 1e308".into(),
    ];
    let names: ConfigMapNames =
        ConfigMapKind::ALL.into_iter().zip(["a", "b", "c", "d", "e"].map(str::to_owned)).collect();
    let namespaces = BTreeSet::from(["llm".to_owned()]);
    fuzz("policies", (damaged(&texts), damaged(&texts), 0..5_usize), |(first, second, kind)| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let entries =
            [("default", text(&first)), ("x", text(&second))].map(|(key, text)| (key.to_owned(), text));
        let entries = Arc::new(BTreeMap::from(entries));
        let mut maps = ConfigMapTexts::new();
        for namespace in ["home", "llm"] {
            maps.insert((namespace.to_owned(), ConfigMapKind::ALL[kind]), Ok(entries.clone()));
        }
        let (policy, problems) =
            PolicyLoader::new(Policy::default(), names.clone(), "home".into()).load(&maps, &namespaces);
        prop_assert!(policy.validated().is_ok());
        for problem in problems.iter().map(ToString::to_string) {
            prop_assert!(problem.len() < 4000 && !problem.chars().any(char::is_control), "{problem}");
        }
        Ok(())
    });
}
