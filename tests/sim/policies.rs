//! The policies of the evidence: ours on several paths to the HPA, and its peers.

use std::sync::Arc;
use std::time::Duration;

use wva::simulate::controller_for;
use wva_sim::{Controller, MetricPath};

/// The autoscalers that every scenario is run under beside the policy.
pub(crate) const BASELINES: [&str; 2] = ["wva-v2", "keda-epp"];
/// All others: each at its published default, and tuned.
pub(crate) const PEERS: [&str; 14] = [
    "wva-v1",
    "keda-epp:24",
    "keda-epp:32",
    "hpa-running:16",
    "hpa-running:32",
    "kpa:70",
    "kpa:24",
    "aibrix-apa:0.5",
    "aibrix-apa:0.7",
    "kthena:10",
    "kthena:2",
    "load-planner:180",
    "load-planner:60",
    "utilisation:0.6",
];
/// How often the Prometheus scrapes that the policy reads by default.
const SCRAPE: Duration = Duration::from_secs(15);

/// The policy behind a Prometheus with the HPA that README recommends, or another.
pub(crate) fn ours(word: &str) -> Result<Controller, String> {
    let controller = controller_for(word).map_err(|error| error.to_string())?;
    Ok(Controller { path: MetricPath::behind_prometheus(SCRAPE), ..controller })
}

/// A peer by its name. The one with our estimates reads what we read.
fn peer(word: &str) -> Result<Controller, String> {
    if word.starts_with("utilisation") {
        ours(word)
    } else {
        controller_for(word).map_err(|error| error.to_string())
    }
}

/// The policy and the baselines.
pub(crate) fn with_baselines(word: &str) -> Result<Vec<Arc<Controller>>, String> {
    let baselines = BASELINES.into_iter().map(peer);
    std::iter::once(ours(word)).chain(baselines).map(|controller| controller.map(Arc::new)).collect()
}

/// The policy, the baselines and all other peers.
pub(crate) fn with_peers(word: &str) -> Result<Vec<Arc<Controller>>, String> {
    let mut all = with_baselines(word)?;
    for word in PEERS {
        all.push(Arc::new(peer(word)?));
    }
    Ok(all)
}

/// The policy on every path: Prometheus at 5, 15 and 30 s and a scrape of its own, with README's HPA and with one without
/// `behavior`, whose downscale window is 300 s.
pub(crate) fn on_every_path(word: &str) -> Result<Vec<Arc<Controller>>, String> {
    let own = ours(word)?;
    let prometheus = [5, 15, 30].map(|seconds| {
        (format!("Prometheus {seconds} s"), MetricPath::behind_prometheus(Duration::from_secs(seconds)))
    });
    let mut all = Vec::new();
    for (name, path) in prometheus.into_iter().chain([("scrapes pods".to_owned(), MetricPath::Direct)]) {
        for (hpa, scale_down_window) in [("README's HPA", own.scale_down_window), ("no behavior", None)] {
            let name = format!("{word}, {name}, {hpa}").into();
            all.push(Arc::new(Controller { name, path, scale_down_window, ..own.clone() }));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::Value;

    use super::*;

    #[test]
    fn the_evidence_is_for_the_hpa_of_the_readme() {
        let readme = include_str!("../../README.md");
        let yaml = readme.split("```yaml").nth(1).unwrap().split("```").next().unwrap();
        let hpa =
            yaml.split("\n---").find(|document| document.contains("kind: HorizontalPodAutoscaler")).unwrap();
        let hpa: Value = serde_saphyr::from_str(hpa).unwrap();
        let window = hpa["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"].as_u64();
        assert_eq!(window.map(Duration::from_secs), ours("rate").unwrap().scale_down_window);
        assert_eq!(hpa["spec"]["behavior"]["scaleUp"], Value::Null, "the default adds at once");
    }
}
