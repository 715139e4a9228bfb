//! Whom a series of Prometheus is about, from its labels. Labels come from three hands (the engine, the scrape
//! configuration and the Prometheus server), so the same fact may have several names.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::answer::{Element, Labels};
use super::collectors::Collectors;
use crate::collect::bounds::{Holder, MAX_LABEL_BYTES, MAX_LABELS};
use crate::collect::merge::{Part, RawSeries, hash, is_dividing};
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

/// What the series in an answer are joined with.
#[derive(Debug)]
pub(super) struct Known {
    /// The namespaces in scope and the pods known in each.
    pods: HashMap<Arc<str>, HashSet<Arc<str>>>,
    /// Who may speak for other pods.
    collectors: Arc<Collectors>,
}

/// The labels whose values are kept.
const OWNED: [&str; 5] = ["engine", "dp_rank", "model_name", "target_model_name", "pod_name"];

/// A series that isn't used.
#[derive(Debug)]
pub(super) enum Unused {
    /// It is nobody's in scope, or of no use.
    Nobodys,
    /// It has too many labels, or one that would be kept is too long.
    TooLong { namespace: Arc<str>, pod: Arc<str> },
}

/// Whom a series is about.
struct Owner {
    namespace: Arc<str>,
    pod: Arc<str>,
    /// A collector says it of another pod.
    is_relayed: bool,
}

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

    /// Forgets the texts of a series that is not kept, where no other one has them.
    pub(super) fn forget(&mut self, series: RawSeries) {
        for text in [series.engine, series.model].into_iter().flatten() {
            if Arc::strong_count(&text) <= 2 {
                self.0.remove(&text);
            }
        }
    }
}

impl Known {
    pub(super) fn new(scope: &Scope, collectors: Arc<Collectors>) -> Self {
        let mut known: HashMap<Arc<str>, HashSet<Arc<str>>> =
            scope.namespaces.iter().map(|namespace| (namespace.as_str().into(), HashSet::new())).collect();
        for endpoint in &scope.endpoints {
            if let Some(pods) = known.get_mut(endpoint.namespace.as_str()) {
                pods.insert(endpoint.pod.as_str().into());
            }
        }
        Self { pods: known, collectors }
    }

    /// The series as one of ours and the times of its impossible samples.
    pub(super) fn identify(
        &self,
        element: Element<'_>,
        shared: &mut Shared,
    ) -> Result<(RawSeries, Vec<Timestamp>), Unused> {
        let Element { labels, points: mut samples } = element;
        let name = labels.get("__name__").and_then(signals::find).ok_or(Unused::Nobodys)?;
        if name.kind.only().is_some_and(|(label, value)| labels.get(label) != Some(value)) {
            return Err(Unused::Nobodys);
        }
        let owner = if name.kind.is_scheduler() {
            self.scheduler(&labels, shared)
        } else {
            self.engine(&labels, shared)
        };
        let Owner { namespace, pod, is_relayed } = owner.ok_or(Unused::Nobodys)?;
        let long = |label: &&str| labels.get(label).is_some_and(|value| value.len() > MAX_LABEL_BYTES);
        // What is known of a cache configuration is its size: of its labels none is kept.
        let many = labels.0.len() > MAX_LABELS && name.kind != Kind::CacheConfig;
        if many || OWNED.iter().any(long) {
            return Err(Unused::TooLong { namespace, pod });
        }
        let fixed = match name.kind {
            Kind::CacheConfig => {
                Some(signals::cache_tokens(|label| labels.get(label)).ok_or(Unused::Nobodys)?)
            }
            _ => None,
        };
        let (engine, is_rank) =
            if name.kind.is_scheduler() { (None, false) } else { engine(&labels, shared) };
        let to = self.receiver(name, &labels, &namespace);
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
            engine,
            is_rank,
            port: labels.get("instance").and_then(port),
            model: model(name, &labels).map(|model| shared.keep(model)),
            part: part(name, &labels),
            to,
            is_relayed,
            origin: origin(name, &labels),
            samples,
        };
        Ok((series, bad))
    }

    /// The engine that a series is about. `namespace` and `pod` are those of the scrape target, and nobody can write them who
    /// is scraped. A target that is a collector may say of whom it speaks: then the pair that names a pod we know wins, else
    /// the one in a namespace of which we know no pod.
    fn engine(&self, labels: &Labels<'_>, shared: &mut Shared) -> Option<Owner> {
        let pod = labels.get("pod").or_else(|| labels.get("pod_name"));
        let own = labels.get("namespace").zip(pod).map(|pair| (pair, false));
        let exported_pod = labels.get("exported_pod").or(pod);
        let said = labels.get("exported_namespace").zip(exported_pod).map(|pair| (pair, true));
        let said = said.filter(|_| self.collectors.list(labels));
        let ours = |((namespace, pod), is_relayed)| {
            let (namespace, pods) = self.pods.get_key_value(namespace)?;
            Some(Owner { namespace: namespace.clone(), pod: pods.get(pod)?.clone(), is_relayed })
        };
        // Where pods are known, a series of any other one is of no use.
        let mut stranger = |((namespace, pod), is_relayed)| {
            let (namespace, _) = self.pods.get_key_value(namespace).filter(|(_, pods)| pods.is_empty())?;
            Some(Owner { namespace: Arc::clone(namespace), pod: shared.keep(pod), is_relayed })
        };
        let mut pairs = own.into_iter().chain(said);
        pairs.clone().find_map(ours).or_else(|| pairs.find_map(&mut stranger))
    }

    /// The namespace of the model and the scheduler's pod. A scheduler speaks for its own namespace; for another one, which
    /// it names itself and Prometheus has renamed to `exported_namespace`, only as a collector. A collector that passes on what
    /// a scheduler says names its pod, too: it is the same scheduler as the one that is scraped itself.
    fn scheduler(&self, labels: &Labels<'_>, shared: &mut Shared) -> Option<Owner> {
        let own = labels.get("namespace");
        let said = labels.get("exported_namespace");
        let is_listed = self.collectors.list(labels);
        let namespace = match said.filter(|said| own != Some(*said)) {
            None => self.namespace(own?)?,
            Some(said) if is_listed => self.namespace(said).or_else(|| self.namespace(own?))?,
            Some(_) => return None,
        };
        let relayed = labels.get("exported_pod").filter(|_| is_listed && said.is_some());
        let pod = shared.keep(relayed.or_else(|| labels.get("pod")).unwrap_or_default());
        Some(Owner { namespace, pod, is_relayed: relayed.is_some() })
    }

    /// Where the scheduler sent what it counts: its own labels, since `pod` and `instance` are those of the scheduler. What it
    /// sent to a pod that nobody knows is in its total alone.
    fn receiver(&self, name: &Name, labels: &Labels<'_>, namespace: &str) -> Option<Receiver> {
        let pod = labels.get("pod_name").filter(|_| name.kind == Kind::SchedulerSuccesses)?;
        let pod = Arc::clone(self.pods.get(namespace)?.get(pod)?);
        let port = labels.get("port").and_then(|port| port.parse().ok());
        Some(Receiver { pod, port })
    }

    /// With whom a series shares its room.
    pub(super) fn holder(&self, series: &RawSeries) -> Holder {
        if series.name.kind.is_scheduler() {
            return Holder::Schedulers;
        }
        let is_known = self.pods.get(&series.namespace).is_some_and(|pods| pods.contains(&series.pod));
        if is_known { Holder::Pod } else { Holder::Strangers }
    }

    /// A namespace in scope.
    fn namespace(&self, name: &str) -> Option<Arc<str>> {
        self.pods.get_key_value(name).map(|(namespace, _)| namespace.clone())
    }
}

/// The engine, and whether it is known by its data-parallel rank alone.
fn engine(labels: &Labels<'_>, shared: &mut Shared) -> (Option<Arc<str>>, bool) {
    match (labels.get("engine"), labels.get("dp_rank")) {
        (Some(engine), Some(rank)) => (Some(shared.keep(&format!("{engine}/{rank}"))), false),
        (Some(engine), None) => (Some(shared.keep(engine)), false),
        (None, rank) => (rank.map(|rank| shared.keep(rank)), rank.is_some()),
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

fn part(name: &Name, labels: &Labels<'_>) -> Part {
    let labels = labels.0.iter().map(|(label, value)| (label.as_ref(), value.as_ref()));
    match name.kind {
        Kind::CacheConfig => Part::default(),
        kind if kind.is_scheduler() => Part::by(labels.filter(|(label, _)| SCHEDULER_PARTS.contains(label))),
        _ => Part::of_query(labels),
    }
}

/// A hash of the labels that tell copies apart, whatever their order. Those of the cache configuration are its own and
/// many.
fn origin(name: &Name, labels: &Labels<'_>) -> u64 {
    let tells = |label: &str| match name.kind {
        Kind::CacheConfig => matches!(label, "job" | "instance" | "prometheus" | "prometheus_replica"),
        _ => label != "__name__" && !SCHEDULER_PARTS.contains(&label) && !is_dividing(label),
    };
    // As parts are hashed: a label that turns out to divide is taken out again.
    let pairs = labels.0.iter().map(|(label, value)| (label.as_ref(), value.as_ref()));
    pairs.filter(|(label, _)| tells(label)).map(|pair| hash(&pair)).fold(0, u64::wrapping_add)
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
        identify_with(&["monitoring"], labels)
    }

    fn identify_with(collectors: &[&str], labels: &[(&str, &str)]) -> Option<RawSeries> {
        let labels = Labels(labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect());
        let points = vec![Sample { at: Timestamp::UNIX_EPOCH, value: 1.0 }];
        let collectors: Vec<String> = collectors.iter().map(|&name| name.to_owned()).collect();
        let known = Known::new(&scope(), Arc::new(Collectors::new(&collectors)));
        let series = known.identify(Element { labels, points }, &mut Shared::default());
        series.ok().map(|(series, _)| series)
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
    fn a_pod_scraped_through_a_listed_collector_keeps_its_own_name() {
        let labels = [
            WAITING,
            ("namespace", "monitoring"),
            ("pod", "collector-0"),
            ("exported_namespace", "llm"),
            ("exported_pod", "vllm-0"),
        ];
        let series = identify(&labels).unwrap();
        assert!(&*series.pod == "vllm-0" && series.is_relayed);
        assert!(identify_with(&[], &labels).is_none(), "by default nobody is a collector");
    }

    #[test]
    fn a_page_that_names_another_tenants_pod_speaks_for_nobody() {
        let forged = [
            WAITING,
            ("namespace", "evil"),
            ("pod", "evil-0"),
            ("exported_namespace", "llm"),
            ("exported_pod", "vllm-0"),
            ("exported_job", "monitoring"),
        ];
        assert!(identify(&forged).is_none());
        let within = [
            WAITING,
            ("namespace", "llm"),
            ("pod", "vllm-9"),
            ("exported_namespace", "llm"),
            ("exported_pod", "vllm-0"),
        ];
        assert!(identify(&within).is_none(), "a neighbour in the same namespace neither");
    }

    #[test]
    fn a_scheduler_of_another_tenant_adds_no_phantom_queue() {
        let queue = ("__name__", "llm_d_epp_flow_control_queue_size");
        let forged = [queue, ("namespace", "evil"), ("exported_namespace", "llm"), ("model_name", "m")];
        assert!(identify(&forged).is_none());
        let own = [queue, ("namespace", "llm"), ("exported_namespace", "llm"), ("model_name", "m")];
        assert_eq!(&*identify(&own).unwrap().namespace, "llm");
    }

    #[test]
    fn a_series_of_another_namespace_or_without_a_pod_is_nobodys() {
        assert!(identify(&[WAITING, ("namespace", "other"), ("pod", "vllm-0")]).is_none());
        assert!(identify(&[WAITING, ("namespace", "llm")]).is_none());
    }

    #[test]
    fn a_listed_scheduler_names_the_models_namespace_and_only_successes_count() {
        let attempts = ("__name__", "inference_extension_scheduler_attempts_total");
        let labels = |status| {
            vec![
                attempts,
                ("namespace", "monitoring"),
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
        assert_eq!(receiver(attempts, &[("pod_name", "vllm-9")]), None, "a pod that nobody knows");
        assert_eq!(receiver(attempts, &[]), None);
        assert_eq!(receiver("llm_d_epp_flow_control_queue_size", &[("pod_name", "vllm-0")]), None);
    }

    #[test]
    fn a_label_of_many_bytes_drops_its_series_and_names_its_pod() {
        let long = "x".repeat(MAX_LABEL_BYTES + 1);
        for label in ["engine", "model_name"] {
            let labels = [WAITING, ("namespace", "llm"), ("pod", "vllm-0"), (label, long.as_str())];
            let labels = Labels(labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect());
            let known = Known::new(&scope(), Arc::default());
            let unused = known.identify(Element { labels, points: Vec::new() }, &mut Shared::default());
            assert!(matches!(unused, Err(Unused::TooLong { pod, .. }) if &*pod == "vllm-0"), "{label}");
        }
    }

    #[test]
    fn a_series_of_thousands_of_labels_is_dropped_and_names_its_pod() {
        let unused = |name: &'static str, count: usize| {
            let own = [("__name__", name), ("namespace", "llm"), ("pod", "vllm-0")];
            let own = own.map(|(label, value)| (label.into(), value.into()));
            let more = (own.len()..count).map(|n| (format!("l{n}").into(), "x".into()));
            let labels = Labels(own.into_iter().chain(more).collect());
            let known = Known::new(&scope(), Arc::default());
            known.identify(Element { labels, points: Vec::new() }, &mut Shared::default())
        };
        let waiting = |count| unused("vllm:num_requests_waiting", count);
        assert!(waiting(MAX_LABELS).is_ok());
        for count in [MAX_LABELS + 1, 5_000] {
            assert!(
                matches!(waiting(count), Err(Unused::TooLong { pod, .. }) if &*pod == "vllm-0"),
                "{count}"
            );
        }
        let config = unused("vllm:cache_config_info", 100);
        assert!(matches!(config, Err(Unused::Nobodys)), "it has no size, and its labels are not kept");
    }

    #[test]
    fn what_is_kept_of_labels_counts_towards_the_bound_of_a_pod_even_as_hashes() {
        let labels: Vec<(String, String)> = (0..40).map(|n| (format!("l{n}"), "x".to_owned())).collect();
        let labels = labels.iter().map(|(label, value)| (label.as_str(), value.as_str()));
        let own = [WAITING, ("namespace", "llm"), ("pod", "vllm-0"), ("engine", "0")];
        let series = identify(&own.into_iter().chain(labels).collect::<Vec<_>>()).unwrap();
        assert_eq!(series.text_bytes(), 1 + 40 * 16);
    }

    #[test]
    fn texts_of_series_that_are_not_kept_are_forgotten() {
        let mut shared = Shared::default();
        let mut series = |engine: &'static str| {
            let labels = [WAITING, ("namespace", "llm"), ("pod", "vllm-0"), ("engine", engine)];
            let labels = Labels(labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect());
            let known = Known::new(&scope(), Arc::default());
            let found = known.identify(Element { labels, points: Vec::new() }, &mut shared);
            found.ok().unwrap().0
        };
        let (kept, copy, dropped) = (series("0"), series("0"), series("1"));
        shared.forget(copy);
        shared.forget(dropped);
        assert_eq!(shared.0.len(), 1, "that of a series that is kept stays");
        drop(kept);
    }

    #[test]
    fn a_scheduler_that_a_collector_passes_on_is_the_one_that_is_scraped_itself() {
        let queue = ("__name__", "llm_d_epp_flow_control_queue_size");
        let direct = identify(&[queue, ("namespace", "llm"), ("pod", "epp-0"), ("model_name", "m")]);
        let relayed = [
            queue,
            ("namespace", "monitoring"),
            ("pod", "prometheus-0"),
            ("exported_namespace", "llm"),
            ("exported_pod", "epp-0"),
            ("model_name", "m"),
        ];
        let (direct, through) = (direct.unwrap(), identify(&relayed).unwrap());
        assert_eq!((&*direct.pod, direct.is_relayed), ("epp-0", false));
        assert_eq!((&*through.pod, through.is_relayed), ("epp-0", true));
        let itself = identify(&[&relayed[..4], &relayed[5..]].concat()).unwrap();
        assert_eq!((&*itself.pod, itself.is_relayed), ("prometheus-0", false), "it speaks for itself");
    }

    #[test]
    fn deferred_requests_and_states_other_than_awake_are_not_read() {
        let own = |name, label, value| {
            identify(&[("__name__", name), ("namespace", "llm"), ("pod", "vllm-0"), (label, value)])
        };
        let by_reason = "vllm:num_requests_waiting_by_reason";
        assert!(
            own(by_reason, "reason", "capacity").is_some() && own(by_reason, "reason", "deferred").is_none()
        );
        let sleep = "vllm:engine_sleep_state";
        assert!(own(sleep, "sleep_state", "awake").is_some());
        assert!(own(sleep, "sleep_state", "discard_all").is_none());
    }
}
