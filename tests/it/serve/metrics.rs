//! The series of variants as `/metrics` has them, and the page that lists all metrics of the program.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::sync::watch;
use wva::app::metrics::{Installation, ProgramMetrics};
use wva::cluster::pki::self_check::CaBundleMetrics;
use wva::cluster::writers::deletion_cost::DeletionCostMetrics;
use wva::cluster::{ClusterWatch, EventRecorder, WatchSettings};
use wva::engine::{ClusterView, Leadership, Published};
use wva::record::RecordingMetrics;
use wva::telemetry::{ApiRequestMetrics, FallbackMetrics, StateMetrics};
use wva_core::decision::{Decision, Reason, Verdict};
use wva_core::model::Role;
use wva_core::usage::{KvTokens, PodAges, Usage};
use wva_core::{GroupId, Memory, VariantId};

use super::golden::must_update;
use super::identity::eventually;
use super::test_server::{TestServer, leading, sample, target};

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Compares `text` with the file at `path`; writes it first if `WVA_UPDATE_GOLDEN` is set.
fn assert_file(path: &str, text: &str) {
    let file = root(path);
    if must_update() {
        std::fs::write(&file, text).unwrap();
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(
        text, expected,
        "{path} differs: run this test with WVA_UPDATE_GOLDEN=1, and review the difference"
    );
}

fn llama() -> VariantId {
    VariantId::new("llm", "llama-a100")
}

/// Five replicas instead of seven, which the limit `team-a` does not grant, for this finding of the analyzer.
fn limited(finding: &serde_json::Value) -> Decision {
    let binding = json!({ "limit": "team-a", "key": "A100", "budget": 8.0, "used": 8.0, "free": 0.0 });
    let explanation = json!({
        "message": "",
        "explanation": {
            "running": 2, "number": 5, "basis": { "kind": "analyzed" }, "analysis": { "finding": finding },
            "adjustments": [{ "stage": "limit", "from": 7, "to": 5, "why": { "kind": "limit", "binding": binding } }]
        }
    });
    let mut decision = target(5, Some(2), "2026-11-21T10:00:05Z");
    if let Verdict::Target(target) = &mut decision.verdict {
        target.reason = Reason::Bounded;
        target.explanation = serde_json::from_value(explanation).unwrap();
    }
    decision
}

fn percent() -> serde_json::Value {
    json!({
        "kind": "saturationPercent", "spareKv": 0.05, "kvTrigger": 0.1, "spareQueue": 4.0, "queueTrigger": 3.0,
        "nonSaturated": 2, "total": 2
    })
}

fn tokens() -> serde_json::Value {
    let totals =
        json!({ "demand": 900.0, "supply": 800.0, "anticipated": 800.0, "required": 258.8, "spare": 0.0 });
    json!({ "kind": "capacity", "analyzers": [{ "analyzer": "saturation", "totals": [totals] }] })
}

/// The usual result with everything that can be measured of `llm/llama-a100`.
fn measured(finding: &serde_json::Value) -> Published {
    let mut published = sample();
    published.decisions.insert(llama(), limited(finding));
    let usage = Usage {
        role: Role::Both,
        pods: PodAges { fresh: 2, stale: 1, unavailable: 0, missing: 1 },
        kv: Some(0.75),
        saturation: Some(0.875),
        tokens: Some(KvTokens { used: 12_000.0, capacity: 16_000.0 }),
    };
    published.usage.insert(llama(), usage);
    published.report.groups.insert(GroupId::new("llm", "llama"), wva_core::report::GroupReport::default());
    published
}

/// What the rate policy remembers of its predictions: 40 forecasts and 3 starts, and nothing of capacity.
fn predictions() -> Memory {
    let forecasts = json!({ "score": [-0.125, 0.5, 4.0, 40], "unmatched": 2, "ahead": 125.0 });
    let knowledge = json!({
        "roles": { "both": { "dispersion": {}, "forecasts": forecasts } },
        "variants": { "llama-a100": { "predictions": { "start": [25.0, 25.0, 100.0, 3] } } }
    });
    let learned = json!({ "rate": { "knowledge": knowledge, "control": {} } });
    let group = json!({ "learned": learned, "variants": {} });
    let memory = json!({ "version": Memory::VERSION, "groups": { "llm/llama": group } });
    serde_json::from_value(memory).unwrap()
}

/// The lines of `/metrics` about variants and the fleet.
async fn variant_lines(server: &TestServer) -> Vec<String> {
    let body = server.metrics().await.body;
    let of_server = ["wva_http_", "wva_tls_", "wva_connections_", "metrics_apiserver_", "# EOF"];
    let is_of_server = |line: &str| {
        of_server.iter().any(|name| line.replace("# HELP ", "").replace("# TYPE ", "").starts_with(name))
    };
    body.lines().filter(|line| !is_of_server(line)).map(str::to_owned).collect()
}

#[tokio::test]
async fn every_series_of_a_variant_has_the_name_the_labels_and_the_unit_of_wva() {
    let server = TestServer::with(|options| options.controller_instance = Some("blue".into())).await;
    let inventory = Some(BTreeMap::from([("A100".into(), 8), ("H100".into(), 16)]));
    *server.reads.view.lock() = Arc::new(ClusterView { inventory, ..ClusterView::default() });
    assert_eq!(server.metrics().await.status, 200, "the server has begun to follow");
    *server.reads.memory.lock() = Arc::new(predictions());
    server.publish(measured(&percent()));
    let counted = "wva_decisions_limited_total{variant_name=\"llama-a100\"";
    eventually(|| async { variant_lines(&server).await.iter().any(|line| line.starts_with(counted)) }).await;
    let text = variant_lines(&server).await.join("\n") + "\n";
    assert_file("tests/it/golden/serve/metrics-of-variants.txt", &text);
}

#[tokio::test]
async fn capacity_is_in_the_unit_of_the_analyzer_that_decides() {
    let server = TestServer::new().await;
    server.publish(measured(&tokens()));
    let labels = r#"variant_name="llama-a100",namespace="llm",model_name="llama",unit="continuous""#;
    let lines = variant_lines(&server).await;
    for line in
        [format!("wva_required_capacity{{{labels}}} 258.8"), format!("wva_spare_capacity{{{labels}}} 0.0")]
    {
        assert!(lines.contains(&line), "{line} is missing in\n{}", lines.join("\n"));
    }
}

#[tokio::test]
async fn the_series_of_a_deleted_variant_and_of_old_evidence_are_gone() {
    let server = TestServer::new().await;
    assert_eq!(server.metrics().await.status, 200, "the server has begun to follow");
    server.publish(measured(&percent()));
    let is_shown = |name: &'static str| {
        let server = &server;
        async move {
            variant_lines(server)
                .await
                .iter()
                .any(|line| line.starts_with(name) && line.contains("llama-a100"))
        }
    };
    eventually(|| is_shown("wva_decisions_limited_total{")).await;
    // The evidence gets too old, and nothing new is published.
    *server.reads.now.lock() += Duration::from_secs(600);
    for gone in
        ["wva_desired_replicas{", "wva_saturation_level{", "wva_kv_cache_tokens_used{", "wva_spare_capacity{"]
    {
        assert!(!is_shown(gone).await, "{gone}");
    }
    let mut next = sample();
    next.decisions.remove(&llama());
    server.publish(next);
    eventually(|| async { !variant_lines(&server).await.iter().any(|line| line.contains("llama-a100")) })
        .await;
}

/// Every metric of the program, registered as it registers them.
fn register_all() -> Registry {
    let installation =
        Installation { controller_instance: None, lease: "lease", interval: Duration::from_secs(5) };
    let requests = ApiRequestMetrics::default();
    let (_, leadership) = watch::channel(Leadership::default());
    let program = ProgramMetrics::register(installation, &requests, leadership);
    let ProgramMetrics { mut registry, evaluation, config, statuses } = program;
    requests.observe("GET", "10.0.0.1:443", Some(200), Duration::from_millis(2));
    evaluation.evaluated(Duration::from_millis(3), Some("timeout"));
    evaluation.collected(Duration::from_millis(3), Some("timeout"));
    evaluation.unattributed(&BTreeMap::from([("llm".into(), 1)]));
    config.set_invalid([("llm", "map", "default")].into_iter());
    config.set_adopted("wva", ["map"].into_iter());
    statuses.added(1);
    StateMetrics::register(&mut registry).set_cut("memory", "learned", 1);
    CaBundleMetrics::register(&mut registry);
    DeletionCostMetrics::register(&mut registry);
    FallbackMetrics::register(&mut registry).observe("200".into(), Duration::from_millis(3), true);
    RecordingMetrics::register(&mut registry);
    let (service, _handle) =
        tower_test::mock::pair::<http::Request<kube::client::Body>, http::Response<axum::body::Body>>();
    let client = Client::new(service, "default");
    let (_, cluster) = ClusterWatch::new(client.clone(), WatchSettings::default());
    let _ = EventRecorder::new(client, cluster, "a".into(), &mut registry);
    registry
}

/// A metric of the page.
#[derive(Default)]
struct Metric {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
}

/// The metrics of a text, by name.
fn parse(text: &str) -> BTreeMap<String, Metric> {
    let mut metrics: BTreeMap<String, Metric> = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|line| line.split_once(' ')) {
            metrics.entry(name.into()).or_default().help = help.trim_end_matches('.').into();
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' '))
        {
            metrics.entry(name.into()).or_default().kind = kind.into();
        } else if let Some((name, labels)) = line.split_once('{').filter(|_| !line.starts_with('#')) {
            // Values have no commas and no equals signs here.
            let labels = labels.split('}').next().unwrap_or_default().split(',');
            let labels = labels
                .filter_map(|label| label.split('=').next())
                .filter(|label| !["", "le"].contains(label));
            let family = metrics.iter_mut().filter(|(own, _)| name.starts_with(own.as_str()));
            if let Some((_, metric)) = family.max_by_key(|(own, _)| own.len()) {
                metric.labels.extend(labels.map(str::to_owned));
            }
        }
    }
    metrics
}

/// A row for each metric.
fn table(metrics: &BTreeMap<String, Metric>) -> String {
    let mut table = String::from("| metric | type | labels | what it shows |\n|---|---|---|---|\n");
    for (name, Metric { kind, help, labels }) in metrics {
        let (suffix, kind) = match kind.as_str() {
            "counter" => ("_total", "counter"),
            "info" => ("_info", "info"),
            kind => ("", kind),
        };
        let labels = labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
        table += &format!("| `{name}{suffix}` | {kind} | {labels} | {help} |\n");
    }
    table
}

/// The strings in the program's source that look like names of metrics.
fn names_in_the_source(folder: &Path, names: &mut BTreeSet<String>) {
    let prefixes = ["wva_", "workqueue_", "rest_client_", "leader_election_", "metrics_apiserver_"];
    for entry in folder.read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            names_in_the_source(&path, names);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let strings =
                text.split('"').filter(|text| prefixes.iter().any(|prefix| text.starts_with(prefix)));
            let is_name =
                |text: &&str| text.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_');
            names.extend(strings.filter(is_name).map(str::to_owned));
        }
    }
}

const BEGIN: &str = "<!-- begin: generated from the program's registry -->\n";
const END: &str = "<!-- end -->\n";

#[tokio::test]
async fn the_page_of_metrics_has_every_metric_of_the_program() {
    let server = TestServer::with(|options| options.registry = register_all()).await;
    let view =
        ClusterView { inventory: Some(BTreeMap::from([("A100".into(), 8)])), ..ClusterView::default() };
    *server.reads.view.lock() = Arc::new(view);
    *server.reads.memory.lock() = Arc::new(predictions());
    server.leadership.send_replace(leading());
    assert_eq!(server.metrics().await.status, 200, "the server has begun to follow");
    let mut published = measured(&percent());
    let mut idle = target(0, Some(2), "2026-11-21T10:00:05Z");
    if let Verdict::Target(target) = &mut idle.verdict {
        target.reason = Reason::ScaleToZero;
    }
    published.decisions.insert(VariantId::new("pair", "one"), idle);
    server.publish(published);
    let is_counted = || async {
        let lines = variant_lines(&server).await;
        ["wva_replica_scaling_total{", "wva_decisions_limited_total{"]
            .iter()
            .all(|name| lines.iter().any(|line| line.starts_with(name)))
    };
    eventually(is_counted).await;
    server.proxied("hpa", super::READ).await;
    let text = server.metrics().await.body;
    let metrics = parse(&text);

    let page = std::fs::read_to_string(root("docs/metrics.md")).unwrap_or_default();
    let (before, rest) = page.split_once(BEGIN).expect("the page has the marks around its table");
    let (_, after) = rest.split_once(END).expect("the page has the marks around its table");
    assert_file("docs/metrics.md", &format!("{before}{BEGIN}\n{}\n{END}{after}", table(&metrics)));

    let mut names = BTreeSet::new();
    names_in_the_source(&root("src"), &mut names);
    let is_listed = |name: &String| page.contains(&format!("`{name}"));
    let is_shown =
        |name: &String| metrics.keys().any(|own| own.starts_with(name.as_str())) || is_listed(name);
    let missing: Vec<_> = names.iter().filter(|name| !is_shown(name)).collect();
    assert!(
        missing.is_empty(),
        "neither in the table nor in the list of those without a series in this test: {missing:?}"
    );
    assert!(names.len() > 40, "the source was searched: {names:?}");
}
