//! A thousand ScaledObjects, which only KEDA's calls make variants, at once against the real program.

use std::time::Duration;

use futures::stream::{self, StreamExt};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::external_scaler::{Keda, Metrics, Refusal, asked, called};
use super::process::{Process, free_address};

const OBJECTS: usize = 1000;
/// A namespace may have 250 of them.
const NAMESPACES: usize = 5;
/// Calls at a time: KEDA polls each ScaledObject by itself.
const CONCURRENCY: usize = 32;
/// How often KEDA asks for each ScaledObject here.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
const POLLS: u32 = 6;
/// Clock ticks of a second, in `/proc`.
const TICKS: f64 = 100.0;

fn namespace(index: usize) -> String {
    format!("team-{}", index % NAMESPACES)
}

fn name(index: usize) -> String {
    format!("model-{index}")
}

/// A Deployment without replicas, and a ScaledObject that wants two at least.
fn objects(index: usize) -> [(&'static str, Value); 2] {
    let metadata =
        json!({ "namespace": namespace(index), "name": name(index), "uid": format!("uid-{index}") });
    let pods = json!({ "metadata": { "labels": { "app": name(index) } }, "spec": { "containers": [] } });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
        "spec": { "replicas": 0, "selector": { "matchLabels": { "app": name(index) } }, "template": pods },
    });
    let trigger = json!({ "type": "external-push", "metadata": { "modelID": name(index) } });
    let scaled = json!({
        "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": metadata,
        "spec": { "scaleTargetRef": { "name": name(index) }, "minReplicaCount": 2, "triggers": [trigger] },
    });
    [("/apis/apps/v1/deployments", deployment), ("/apis/keda.sh/v1alpha1/scaledobjects", scaled)]
}

/// The latency of a call for each ScaledObject, sorted, and its errors.
async fn poll(keda: &Keda) -> (Vec<Duration>, Vec<Refusal>) {
    let call = |index| {
        let mut keda = keda.clone();
        async move {
            let began = Instant::now();
            let answer =
                keda.call::<Metrics>("GetMetrics", &asked(called(&namespace(index), &name(index)))).await;
            answer.map(|metrics| {
                assert_eq!(metrics.metrics[0].whole, 2);
                began.elapsed()
            })
        }
    };
    let answers: Vec<_> = stream::iter((0..OBJECTS).map(call)).buffer_unordered(CONCURRENCY).collect().await;
    let (mut latencies, mut refusals) = (Vec::new(), Vec::new());
    for answer in answers {
        match answer {
            Ok(latency) => latencies.push(latency),
            Err(refusal) => refusals.push(refusal),
        }
    }
    latencies.sort();
    (latencies, refusals)
}

/// Seconds of CPU, and resident MiB, of a process.
fn usage(process: u32) -> (f64, f64) {
    let read = |file| std::fs::read_to_string(format!("/proc/{process}/{file}")).unwrap();
    let stat = read("stat");
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    let status = read("status");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    (ticks / TICKS, resident.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures for a minute: cargo test -p wva --test it -- --ignored --nocapture a_thousand_scaled_objects"]
async fn a_thousand_scaled_objects_are_answered_at_once() {
    let objects: Vec<_> = (0..OBJECTS).flat_map(objects).collect();
    let port = free_address().await.port();
    let arguments = ["--external-scaler-port", &port.to_string(), "--log-level", "info"];
    let process = Process::start_with_objects("a-thousand", &arguments, &objects).await;
    let (_, idle) = usage(process.id());
    let address = ([127, 0, 0, 1], port).into();
    let keda = Keda::connect_to(address, &process.serving_ca(), Some(&process.keda)).await;
    let began = Instant::now();
    let (_, refusals) = poll(&keda).await;
    assert_eq!(refusals.len(), OBJECTS, "the first calls are no number");
    let mut streams = Vec::new();
    for index in 0..OBJECTS {
        let stream = keda.clone().send("StreamIsActive", &called(&namespace(index), &name(index))).await;
        streams.push(stream.into_body());
    }
    loop {
        let (_, refusals) = poll(&keda).await;
        let Some((code, message)) = refusals.first() else { break };
        println!(
            "{:.1} s: {} without a number, such as {message}",
            began.elapsed().as_secs_f64(),
            refusals.len()
        );
        assert!(
            began.elapsed() < Duration::from_secs(180),
            "{} errors, such as {code} {message}",
            refusals.len()
        );
        sleep(Duration::from_millis(500)).await;
    }
    let known = began.elapsed();
    let (before, started) = (usage(process.id()).0, Instant::now());
    let mut latencies = Vec::new();
    for _ in 0..POLLS {
        let next = Instant::now() + POLL_INTERVAL;
        let (answered, refusals) = poll(&keda).await;
        assert!(refusals.is_empty(), "{refusals:?}");
        latencies.extend(answered);
        tokio::time::sleep_until(next).await;
    }
    let (cpu, resident) = usage(process.id());
    let cores = (cpu - before) / started.elapsed().as_secs_f64();
    latencies.sort();
    let at = |part: f64| latencies[((latencies.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
    let (median, late, last) = (at(0.5), at(0.99), at(1.0));
    println!(
        "{OBJECTS} ScaledObjects with a stream each: all have their number {:.1} s after the first call; a call each {} s: {median:.1} ms, 99 % \
         within {late:.1} ms, at most {last:.1} ms; {:.2} of a core; {resident:.0} MiB ({idle:.0} MiB before the first call)",
        known.as_secs_f64(),
        POLL_INTERVAL.as_secs(),
        cores
    );
    assert!(late < 2000.0 && cores < 1.5 && resident < 512.0);
    assert_eq!(streams.len(), OBJECTS);
}
