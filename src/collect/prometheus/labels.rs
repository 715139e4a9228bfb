//! Whom a series of Prometheus is about, from its labels. Labels come from three hands (the engine, the scrape
//! configuration and the Prometheus server), so the same fact may have several names.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use jiff::Timestamp;

use super::answer::{Element, Labels};
use crate::collect::merge::RawSeries;
use crate::collect::signals::{self, Kind, Name};
use crate::engine::{Receiver, Scope};

/// Labels by which the scheduler divides one total; everything else about a series tells where a copy came from.
const SCHEDULER_PARTS: [&str; 8] = [
    "pod_name",
    "port",
    "priority",
    "fairness_id",
    "inference_pool",
    "flow_id",
    "target_model_name",
    "model_name",
];

/// What the series in an answer are joined with: the namespaces in scope and the pods known in each.
#[derive(Debug)]
pub(super) struct Known(HashMap<Arc<str>, HashSet<Arc<str>>>);

/// Texts of one answer that many series share and that are not known before, each kept once.
#[derive(Debug, Default)]
pub(super) struct Shared(HashSet<Arc<str>>);

impl Shared {
    fn keep(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.get(text) {
            return Arc::clone(known);
        }
        let new: Arc<str> = text.into();
        self.0.insert(Arc::clone(&new));
        new
    }
}

impl Known {
    pub(super) fn new(scope: &Scope) -> Self {
        let mut known: HashMap<Arc<str>, HashSet<Arc<str>>> =
            scope.namespaces.iter().map(|namespace| (namespace.as_str().into(), HashSet::new())).collect();
        for endpoint in &scope.endpoints {
            if let Some(pods) = known.get_mut(endpoint.namespace.as_str()) {
                pods.insert(endpoint.pod.as_str().into());
            }
        }
        Self(known)
    }

    /// The series as one of ours and the times of its impossible samples; `None` when it's nobody's in scope.
    pub(super) fn identify(
        &self,
        element: Element<'_>,
        shared: &mut Shared,
    ) -> Option<(RawSeries, Vec<Timestamp>)> {
        let Element { labels, points: mut samples } = element;
        let name = signals::find(labels.get("__name__")?)?;
        let (namespace, pod) = if name.kind.is_scheduler() {
            if name.kind == Kind::SchedulerSuccesses && labels.get("status") != Some("success") {
                return None;
            }
            self.scheduler(&labels, shared)?
        } else {
            self.engine(&labels, shared)?
        };
        let fixed = match name.kind {
            Kind::CacheConfig => {
                Some(signals::cache_tokens(labels.get("num_gpu_blocks")?, labels.get("block_size")?)?)
            }
            _ => None,
        };
        let mut bad = Vec::new();
        samples.retain_mut(|sample| match signals::possible(name.kind, sample.value) {
            Some(value) => {
                sample.value = fixed.unwrap_or(value);
                true
            }
            None => {
                bad.push(sample.at);
                false
            }
        });
        let series = RawSeries {
            name,
            namespace,
            pod,
            engine: labels.get("engine").map(|engine| shared.keep(engine)),
            port: labels.get("instance").and_then(port),
            model: model(name, &labels).map(|model| shared.keep(model)),
            part: part(name, &labels),
            to: receiver(name, &labels, shared),
            origin: origin(name, &labels),
            samples,
        };
        Some((series, bad))
    }

    /// Namespace and pod of an engine. `namespace` and `pod` come from the scrape configuration and are the pod's own,
    /// unless somebody in between was scraped (a collector, a federation): then the pod's own are the `exported_` ones.
    /// So the pair that names a pod we know wins, else the one in a namespace we know.
    fn engine(&self, labels: &Labels<'_>, shared: &mut Shared) -> Option<(Arc<str>, Arc<str>)> {
        let pod = labels.get("pod").or_else(|| labels.get("pod_name"));
        let exported_pod = labels.get("exported_pod").or(pod);
        let pairs = [(labels.get("namespace"), pod), (labels.get("exported_namespace"), exported_pod)]
            .map(|(n, p)| n.zip(p));
        let ours = |(namespace, pod)| {
            let (namespace, pods) = self.0.get_key_value(namespace)?;
            Some((namespace.clone(), pods.get(pod)?.clone()))
        };
        let mut stranger = |(namespace, pod)| Some((self.namespace(namespace)?, shared.keep(pod)));
        let mut pairs = pairs.into_iter().flatten();
        pairs.clone().find_map(ours).or_else(|| pairs.find_map(&mut stranger))
    }

    /// Namespace of the model and name of the scheduler's pod. Where the scheduler names a namespace itself it is the
    /// one of the serving pods, and Prometheus has renamed it to `exported_namespace`.
    fn scheduler(&self, labels: &Labels<'_>, shared: &mut Shared) -> Option<(Arc<str>, Arc<str>)> {
        let namespaces = [labels.get("exported_namespace"), labels.get("namespace")];
        let namespace = namespaces.into_iter().flatten().find_map(|name| self.namespace(name))?;
        Some((namespace, shared.keep(labels.get("pod").unwrap_or_default())))
    }

    /// A namespace in scope.
    fn namespace(&self, name: &str) -> Option<Arc<str>> {
        self.0.get_key_value(name).map(|(namespace, _)| namespace.clone())
    }
}

/// The port in `address:port`.
fn port(instance: &str) -> Option<u16> {
    instance.rsplit_once(':').and_then(|(_, port)| port.parse().ok())
}

fn model<'a>(name: &Name, labels: &'a Labels<'_>) -> Option<&'a str> {
    let model = labels.get("model_name");
    if name.kind.is_scheduler() { labels.get("target_model_name").or(model) } else { model }
}

/// Where the scheduler sent what it counts: its own labels, since `pod` and `instance` are those of the scheduler.
fn receiver(name: &Name, labels: &Labels<'_>, shared: &mut Shared) -> Option<Receiver> {
    let pod =
        labels.get("pod_name").filter(|pod| name.kind == Kind::SchedulerSuccesses && !pod.is_empty())?;
    let port = labels.get("port").and_then(|port| port.parse().ok());
    Some(Receiver { pod: shared.keep(pod), port })
}

fn part(name: &Name, labels: &Labels<'_>) -> Box<str> {
    if !name.kind.is_scheduler() {
        return Box::default();
    }
    let mut pairs: Vec<_> =
        labels.0.iter().filter(|(label, _)| SCHEDULER_PARTS.contains(&label.as_ref())).collect();
    pairs.sort();
    pairs.iter().map(|(label, value)| format!("{label}\u{1}{value}\u{1}")).collect::<String>().into()
}

/// A hash of the labels that tell copies apart, whatever their order. Those of the cache configuration are its own and
/// many.
fn origin(name: &Name, labels: &Labels<'_>) -> u64 {
    let tells = |label: &str| match name.kind {
        Kind::CacheConfig => matches!(label, "job" | "instance" | "prometheus" | "prometheus_replica"),
        _ => label != "__name__" && !SCHEDULER_PARTS.contains(&label),
    };
    let hash = |pair: &(_, _)| {
        let mut hasher = DefaultHasher::new();
        pair.hash(&mut hasher);
        hasher.finish()
    };
    labels.0.iter().filter(|(label, _)| tells(label)).map(hash).fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use wva_core::snapshot::Sample;

    use super::*;
    use crate::engine::Endpoint;

    fn scope() -> Scope {
        let ip = Ipv4Addr::LOCALHOST.into();
        let endpoint = Endpoint { namespace: "llm".into(), pod: "vllm-0".into(), ip, port: 8000 };
        Scope { namespaces: ["llm".to_owned()].into(), endpoints: vec![endpoint], needs: None }
    }

    fn identify(labels: &[(&str, &str)]) -> Option<RawSeries> {
        let labels = Labels(labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect());
        let points = vec![Sample { at: Timestamp::UNIX_EPOCH, value: 1.0 }];
        let series = Known::new(&scope()).identify(Element { labels, points }, &mut Shared::default());
        series.map(|(series, _)| series)
    }

    const WAITING: (&str, &str) = ("__name__", "vllm:num_requests_waiting");

    #[test]
    fn a_pod_is_known_by_the_usual_labels() {
        let series =
            identify(&[WAITING, ("namespace", "llm"), ("pod", "vllm-0"), ("instance", "10.0.0.1:8000")]);
        let series = series.unwrap();
        assert_eq!((&*series.namespace, &*series.pod, series.port), ("llm", "vllm-0", Some(8000)));
        assert!(identify(&[WAITING, ("namespace", "llm"), ("pod_name", "vllm-0")]).is_some());
    }

    #[test]
    fn a_pod_scraped_through_somebody_else_keeps_its_own_name() {
        let labels = [
            WAITING,
            ("namespace", "monitoring"),
            ("pod", "collector-0"),
            ("exported_namespace", "llm"),
            ("exported_pod", "vllm-0"),
        ];
        assert_eq!(&*identify(&labels).unwrap().pod, "vllm-0");
    }

    #[test]
    fn a_series_of_another_namespace_or_without_a_pod_is_nobodys() {
        assert!(identify(&[WAITING, ("namespace", "other"), ("pod", "vllm-0")]).is_none());
        assert!(identify(&[WAITING, ("namespace", "llm")]).is_none());
    }

    #[test]
    fn the_schedulers_own_namespace_is_the_models_and_only_successes_count() {
        let attempts = ("__name__", "inference_extension_scheduler_attempts_total");
        let labels = |status| {
            vec![
                attempts,
                ("namespace", "gateway"),
                ("exported_namespace", "llm"),
                ("pod", "epp-0"),
                ("model_name", "base"),
                ("target_model_name", "tuned"),
                ("status", status),
            ]
        };
        let series = identify(&labels("success")).unwrap();
        assert_eq!((&*series.namespace, series.model.as_deref()), ("llm", Some("tuned")));
        assert!(identify(&labels("failure")).is_none());
    }

    #[test]
    fn what_the_scheduler_gave_out_is_known_by_the_pod_and_port_that_it_names() {
        let receiver = |name, own: &[(&'static str, &'static str)]| {
            let labels = [("__name__", name), ("namespace", "llm"), ("pod", "epp-0"), ("status", "success")];
            identify(&[&labels[..], &[("instance", "10.0.0.9:9090")], own].concat()).unwrap().to
        };
        let attempts = "llm_d_epp_scheduler_attempts_total";
        let to = |pod: &str, port| Some(Receiver { pod: pod.into(), port });
        assert_eq!(receiver(attempts, &[("pod_name", "vllm-0"), ("port", "8000")]), to("vllm-0", Some(8000)));
        assert_eq!(receiver(attempts, &[("pod_name", "vllm-0"), ("port", "")]), to("vllm-0", None));
        assert_eq!(receiver(attempts, &[("pod_name", "")]), None, "a scheduler that names nobody");
        assert_eq!(receiver(attempts, &[]), None);
        assert_eq!(receiver("llm_d_epp_flow_control_queue_size", &[("pod_name", "vllm-0")]), None);
    }
}
