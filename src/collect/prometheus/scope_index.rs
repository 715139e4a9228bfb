//! Identifies which pod and engine a series of Prometheus is about. Labels are set by the engine, the scrape configuration and the
//! Prometheus server, so that the same fact may be in several labels.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::response::{Labels, QueriedSeries};
use super::trusted_collectors::TrustedCollectors;
use crate::collect::limits::LimitScope;
use crate::collect::merge::{Part, RawLabels, hash, is_part_label};
use crate::collect::series_labels::{self, SeriesLabels as _};
use crate::collect::signals::{self, MetricKind, MetricName};
use crate::engine::{Destination, Endpoint, Samples, Scope};

/// The labels by which a scheduler splits its metrics. All others tell copies apart.
const SCHEDULER_PART_LABELS: [&str; 8] = [
    "pod_name",
    "port",
    "priority",
    "fairness_id",
    "inference_pool",
    "flow_id",
    "target_model_name",
    "model_name",
];

/// The namespaces and pods in scope, by which series are identified.
#[derive(Debug)]
pub(super) struct ScopeIndex {
    /// The known pods of each namespace in scope.
    pods: HashMap<Arc<str>, HashSet<Arc<str>>>,
    /// The only model of a known scheduler, by namespace and pod of the latter.
    only_models: HashMap<(Arc<str>, Arc<str>), Arc<str>>,
    collectors: Arc<TrustedCollectors>,
}

/// Why a series is not used.
#[derive(Debug)]
pub(super) enum Rejected {
    /// It is not about the scope, or not read.
    OutOfScope,
    /// It has too many labels, or a label to be kept is too long.
    OverLimit { namespace: Arc<str>, pod: Arc<str> },
}

/// A series with the pod and engine that it is about.
pub(super) struct IdentifiedSeries {
    pub(super) name: &'static MetricName,
    pub(super) labels: RawLabels,
    /// The valid ones.
    pub(super) samples: Samples,
    /// The times of the invalid ones.
    pub(super) invalid: Vec<Timestamp>,
}

/// The pod that a series is about.
struct SeriesPod {
    namespace: Arc<str>,
    pod: Arc<str>,
    /// Whether a collector reports it about another pod.
    is_relayed: bool,
}

/// Stores each label value of an answer once, because many series have the same ones.
#[derive(Debug, Default)]
pub(super) struct LabelInterner(HashSet<Arc<str>>);

impl LabelInterner {
    fn intern(&mut self, text: &str) -> Arc<str> {
        if let Some(stored) = self.0.get(text) {
            return Arc::clone(stored);
        }
        let stored: Arc<str> = text.into();
        self.0.insert(Arc::clone(&stored));
        stored
    }

    /// Drops the labels of a series, and the values that no other series has.
    pub(super) fn forget(&mut self, labels: RawLabels) {
        for text in [labels.engine, labels.model].into_iter().flatten() {
            // One reference is `text`, another the one stored here.
            if Arc::strong_count(&text) <= 2 {
                self.0.remove(&text);
            }
        }
    }
}

impl ScopeIndex {
    pub(super) fn new(scope: &Scope, collectors: Arc<TrustedCollectors>) -> Self {
        let mut pods: HashMap<Arc<str>, HashSet<Arc<str>>> =
            scope.namespaces.iter().map(|namespace| (namespace.as_str().into(), HashSet::new())).collect();
        for endpoint in &scope.endpoints {
            if let Some(pods) = pods.get_mut(endpoint.namespace.as_str()) {
                pods.insert(endpoint.pod.as_str().into());
            }
        }
        let only_models = scope.schedulers.iter().filter_map(|scheduler| {
            let Endpoint { namespace, pod, .. } = &scheduler.endpoint;
            Some(((namespace.as_str().into(), pod.as_str().into()), scheduler.only_model()?.as_str().into()))
        });
        Self { pods, only_models: only_models.collect(), collectors }
    }

    /// The series with the pod and engine that it is about.
    pub(super) fn identify(
        &self,
        series: QueriedSeries<'_>,
        interner: &mut LabelInterner,
    ) -> Result<IdentifiedSeries, Rejected> {
        let QueriedSeries { labels, mut samples } = series;
        let name = labels.get("__name__").and_then(signals::find).ok_or(Rejected::OutOfScope)?;
        let kind = name.kind;
        if !series_labels::is_read(kind, &labels) {
            return Err(Rejected::OutOfScope);
        }
        let pod = if kind.is_scheduler() {
            self.scheduler_pod(&labels, interner)
        } else {
            self.engine_pod(&labels, interner)
        };
        let SeriesPod { namespace, pod, is_relayed } = pod.ok_or(Rejected::OutOfScope)?;
        if series_labels::exceeds_limits(kind, &labels) || series_labels::is_too_long(&labels, "pod_name") {
            return Err(Rejected::OverLimit { namespace, pod });
        }
        let value_of_labels = match kind {
            MetricKind::CacheConfig => {
                Some(signals::cache_tokens(|label| labels.get(label)).ok_or(Rejected::OutOfScope)?)
            }
            _ => None,
        };
        let mut invalid = Vec::new();
        samples.retain_mut(|sample| match signals::valid_value(kind, sample.value) {
            Some(value) => {
                sample.value = value_of_labels.unwrap_or(value);
                true
            }
            None => {
                invalid.push(sample.at);
                false
            }
        });
        let engine = series_labels::engine(&labels).filter(|_| !kind.is_scheduler());
        let only_model = || self.only_models.get(&(namespace.clone(), pod.clone())).cloned();
        let only_model = kind.is_scheduler().then(only_model).flatten();
        let labels = RawLabels {
            destination: self.destination(kind, &labels, &namespace),
            namespace,
            pod,
            is_rank: engine.as_ref().is_some_and(|engine| engine.is_rank),
            engine: engine.map(|engine| interner.intern(&engine.name)),
            port: labels.get("instance").and_then(port),
            model: only_model
                .or_else(|| series_labels::model(kind, &labels).map(|model| interner.intern(model))),
            part: part(kind, &labels),
            is_relayed,
            source_hash: source_hash(kind, &labels),
        };
        Ok(IdentifiedSeries { name, labels, samples: samples.into_iter().collect(), invalid })
    }

    /// The pod of an engine. `namespace` and `pod` are those of the scrape target, which cannot write them itself. A trusted
    /// collector may name other pods: then the pair that names a known pod is used, or else one in a namespace without known pods.
    fn engine_pod(&self, labels: &Labels<'_>, interner: &mut LabelInterner) -> Option<SeriesPod> {
        let pod = labels.get("pod").or_else(|| labels.get("pod_name"));
        let direct = labels.get("namespace").zip(pod).map(|pair| (pair, false));
        let exported_pod = labels.get("exported_pod").or(pod);
        let relayed = labels.get("exported_namespace").zip(exported_pod).map(|pair| (pair, true));
        let relayed = relayed.filter(|_| self.collectors.has_target(labels));
        let known = |((namespace, pod), is_relayed)| {
            let (namespace, pods) = self.pods.get_key_value(namespace)?;
            Some(SeriesPod { namespace: namespace.clone(), pod: pods.get(pod)?.clone(), is_relayed })
        };
        // In a namespace with known pods, series of other pods are useless.
        let mut unknown = |((namespace, pod), is_relayed)| {
            let (namespace, _) = self.pods.get_key_value(namespace).filter(|(_, pods)| pods.is_empty())?;
            Some(SeriesPod { namespace: Arc::clone(namespace), pod: interner.intern(pod), is_relayed })
        };
        let mut pairs = direct.into_iter().chain(relayed);
        pairs.clone().find_map(known).or_else(|| pairs.find_map(&mut unknown))
    }

    /// The model's namespace and the scheduler's pod. A scheduler reports about its own namespace. If it names another one, which
    /// Prometheus renames to `exported_namespace`, it must be a trusted collector. A trusted collector that relays a scheduler's
    /// metrics also names its pod, so that the scheduler is recognised if it is scraped directly, too.
    fn scheduler_pod(&self, labels: &Labels<'_>, interner: &mut LabelInterner) -> Option<SeriesPod> {
        let own = labels.get("namespace");
        let exported = labels.get("exported_namespace");
        let is_trusted = self.collectors.has_target(labels);
        let namespace = match exported.filter(|exported| own != Some(*exported)) {
            None => self.namespace(own?)?,
            Some(exported) if is_trusted => self.namespace(exported).or_else(|| self.namespace(own?))?,
            Some(_) => return None,
        };
        let relayed = labels.get("exported_pod").filter(|_| is_trusted && exported.is_some());
        let pod = interner.intern(relayed.or_else(|| labels.get("pod")).unwrap_or_default());
        Some(SeriesPod { namespace, pod, is_relayed: relayed.is_some() })
    }

    /// Where a scheduler sent the requests that it counts, from `pod_name` and `port`; `pod` and `instance` are the scheduler's own.
    /// Requests to unknown pods are only in its total.
    fn destination(&self, kind: MetricKind, labels: &Labels<'_>, namespace: &str) -> Option<Destination> {
        let pod = labels.get("pod_name").filter(|_| kind == MetricKind::SchedulerSuccesses)?;
        let pod = Arc::clone(self.pods.get(namespace)?.get(pod)?);
        let port = labels.get("port").and_then(|port| port.parse().ok());
        Some(Destination { pod, port })
    }

    /// The series with which this one shares a limit.
    pub(super) fn limit_scope(&self, kind: MetricKind, labels: &RawLabels) -> LimitScope {
        if kind.is_scheduler() {
            return LimitScope::Schedulers;
        }
        let is_known = self.pods.get(&labels.namespace).is_some_and(|pods| pods.contains(&labels.pod));
        if is_known { LimitScope::Pod } else { LimitScope::UnknownPods }
    }

    /// A namespace, if it is in scope.
    fn namespace(&self, name: &str) -> Option<Arc<str>> {
        self.pods.get_key_value(name).map(|(namespace, _)| namespace.clone())
    }
}

/// The port in `address:port`.
fn port(instance: &str) -> Option<u16> {
    instance.rsplit_once(':').and_then(|(_, port)| port.parse().ok())
}

fn part(kind: MetricKind, labels: &Labels<'_>) -> Part {
    match kind {
        MetricKind::CacheConfig => Part::default(),
        kind if kind.is_scheduler() => {
            Part::from_labels(labels.iter().filter(|(label, _)| SCHEDULER_PART_LABELS.contains(label)))
        }
        kind => match kind.part_label() {
            Some(label) => Part::from_query(labels.iter()).split_by(label, labels.get(label)),
            None => Part::from_query(labels.iter()),
        },
    }
}

/// A hash of the labels that tell copies apart, independent of their order. A cache configuration has many labels of its own, so
/// that only those of the scrape are used.
fn source_hash(kind: MetricKind, labels: &Labels<'_>) -> u64 {
    let is_of_source = |label: &str| match kind {
        MetricKind::CacheConfig => matches!(label, "job" | "instance" | "prometheus" | "prometheus_replica"),
        kind => {
            let is_part = is_part_label(label) || kind.part_label() == Some(label);
            label != "__name__" && !SCHEDULER_PART_LABELS.contains(&label) && !is_part
        }
    };
    // The same sum as in `Part`, so that labels which turn out to split the metric can be subtracted.
    let pairs = labels.iter().filter(|(label, _)| is_of_source(label));
    pairs.map(|pair| hash(&pair)).fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use wva_core::snapshot::Sample;

    use super::*;
    use crate::collect::limits::{MAX_LABEL_BYTES, MAX_LABELS};
    use crate::engine::Scheduler;

    fn scope() -> Scope {
        let ip = Ipv4Addr::LOCALHOST.into();
        let endpoint = Endpoint { namespace: "llm".into(), pod: "vllm-0".into(), ip, port: None, path: None };
        Scope { namespaces: ["llm".to_owned()].into(), endpoints: vec![endpoint], ..Scope::default() }
    }

    fn identify(labels: &[(&str, &str)]) -> Option<RawLabels> {
        identify_with(&["monitoring"], labels)
    }

    fn identify_with(collectors: &[&str], labels: &[(&str, &str)]) -> Option<RawLabels> {
        let collectors: Vec<String> = collectors.iter().map(|&name| name.to_owned()).collect();
        identify_by(&ScopeIndex::new(&scope(), Arc::new(TrustedCollectors::new(&collectors))), labels)
    }

    fn identify_by(index: &ScopeIndex, labels: &[(&str, &str)]) -> Option<RawLabels> {
        let labels = Labels(labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect());
        let samples = vec![Sample { at: Timestamp::UNIX_EPOCH, value: 1.0 }];
        let series = index.identify(QueriedSeries { labels, samples }, &mut LabelInterner::default());
        series.ok().map(|series| series.labels)
    }

    const WAITING: (&str, &str) = ("__name__", "vllm:num_requests_waiting");

    #[test]
    fn a_pod_is_identified_by_the_usual_labels() {
        let series =
            identify(&[WAITING, ("namespace", "llm"), ("pod", "vllm-0"), ("instance", "10.0.0.1:8000")]);
        let series = series.unwrap();
        assert_eq!((&*series.namespace, &*series.pod, series.port), ("llm", "vllm-0", Some(8000)));
        assert!(identify(&[WAITING, ("namespace", "llm"), ("pod_name", "vllm-0")]).is_some());
    }

    #[test]
    fn a_pod_scraped_through_a_trusted_collector_keeps_its_name() {
        let labels = [
            WAITING,
            ("namespace", "monitoring"),
            ("pod", "collector-0"),
            ("exported_namespace", "llm"),
            ("exported_pod", "vllm-0"),
        ];
        let series = identify(&labels).unwrap();
        assert!(&*series.pod == "vllm-0" && series.is_relayed);
        assert!(identify_with(&[], &labels).is_none(), "by default no collector is trusted");
    }

    #[test]
    fn a_page_that_names_another_tenants_pod_is_ignored() {
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
        assert!(identify(&within).is_none(), "not even in the same namespace");
    }

    #[test]
    fn all_that_the_scheduler_of_a_pool_of_one_model_says_is_about_that() {
        let ip = Ipv4Addr::LOCALHOST.into();
        let endpoint = Endpoint { namespace: "llm".into(), pod: "epp".into(), ip, port: None, path: None };
        let scheduler = Scheduler { endpoint, models: ["base".into()].into(), has_one_model: true };
        let index = ScopeIndex::new(&Scope { schedulers: vec![scheduler], ..scope() }, Arc::default());
        let model = |name, pod, asked| {
            let labels = [("__name__", name), ("namespace", "llm"), ("pod", pod), ("model_name", asked)];
            identify_by(&index, &labels).unwrap().model.map(|model| model.to_string())
        };
        let queue = "inference_extension_flow_control_queue_size";
        assert_eq!(model(queue, "epp", "adapter").as_deref(), Some("base"));
        assert_eq!(model(queue, "epp-9", "adapter").as_deref(), Some("adapter"), "of no known pool");
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
    fn a_series_of_another_namespace_or_without_a_pod_is_out_of_scope() {
        assert!(identify(&[WAITING, ("namespace", "other"), ("pod", "vllm-0")]).is_none());
        assert!(identify(&[WAITING, ("namespace", "llm")]).is_none());
    }

    #[test]
    fn a_trusted_scheduler_names_the_models_namespace_and_only_successes_are_read() {
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
    fn a_schedulers_requests_have_the_pod_and_port_that_it_names_as_destination() {
        let destination = |name, own: &[(&'static str, &'static str)]| {
            let labels = [("__name__", name), ("namespace", "llm"), ("pod", "epp-0"), ("status", "success")];
            identify(&[&labels[..], &[("instance", "10.0.0.9:9090")], own].concat()).unwrap().destination
        };
        let attempts = "llm_d_epp_scheduler_attempts_total";
        let to = |pod: &str, port| Some(Destination { pod: pod.into(), port });
        assert_eq!(
            destination(attempts, &[("pod_name", "vllm-0"), ("port", "8000")]),
            to("vllm-0", Some(8000))
        );
        assert_eq!(destination(attempts, &[("pod_name", "vllm-0"), ("port", "")]), to("vllm-0", None));
        assert_eq!(destination(attempts, &[("pod_name", "")]), None, "no pod is named");
        assert_eq!(destination(attempts, &[("pod_name", "vllm-9")]), None, "an unknown pod");
        assert_eq!(destination(attempts, &[]), None);
        assert_eq!(destination("llm_d_epp_flow_control_queue_size", &[("pod_name", "vllm-0")]), None);
    }

    #[test]
    fn a_series_with_a_long_label_is_dropped_and_its_pod_named() {
        let long = "x".repeat(MAX_LABEL_BYTES + 1);
        for label in ["engine", "model_name"] {
            let labels = [WAITING, ("namespace", "llm"), ("pod", "vllm-0"), (label, long.as_str())];
            let labels = Labels(labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect());
            let index = ScopeIndex::new(&scope(), Arc::default());
            let rejected =
                index.identify(QueriedSeries { labels, samples: Vec::new() }, &mut LabelInterner::default());
            assert!(matches!(rejected, Err(Rejected::OverLimit { pod, .. }) if &*pod == "vllm-0"), "{label}");
        }
    }

    #[test]
    fn a_series_with_thousands_of_labels_is_dropped_and_its_pod_named() {
        let rejected = |name: &'static str, count: usize| {
            let own = [("__name__", name), ("namespace", "llm"), ("pod", "vllm-0")];
            let own = own.map(|(label, value)| (label.into(), value.into()));
            let more = (own.len()..count).map(|n| (format!("l{n}").into(), "x".into()));
            let labels = Labels(own.into_iter().chain(more).collect());
            let index = ScopeIndex::new(&scope(), Arc::default());
            index.identify(QueriedSeries { labels, samples: Vec::new() }, &mut LabelInterner::default())
        };
        let waiting = |count| rejected("vllm:num_requests_waiting", count);
        assert!(waiting(MAX_LABELS).is_ok());
        for count in [MAX_LABELS + 1, 5_000] {
            assert!(
                matches!(waiting(count), Err(Rejected::OverLimit { pod, .. }) if &*pod == "vllm-0"),
                "{count}"
            );
        }
        let config = rejected("vllm:cache_config_info", 100);
        assert!(matches!(config, Err(Rejected::OutOfScope)), "without a size, but not beyond a limit");
    }

    #[test]
    fn hashes_of_labels_count_towards_the_limit_of_a_pod() {
        let labels: Vec<(String, String)> = (0..40).map(|n| (format!("l{n}"), "x".to_owned())).collect();
        let labels = labels.iter().map(|(label, value)| (label.as_str(), value.as_str()));
        let own = [WAITING, ("namespace", "llm"), ("pod", "vllm-0"), ("engine", "0")];
        let series = identify(&own.into_iter().chain(labels).collect::<Vec<_>>()).unwrap();
        assert_eq!(series.label_bytes(), 1 + 40 * 16);
    }

    #[test]
    fn label_values_of_dropped_series_are_forgotten() {
        let mut interner = LabelInterner::default();
        let mut series = |engine: &'static str| {
            let labels = [WAITING, ("namespace", "llm"), ("pod", "vllm-0"), ("engine", engine)];
            let labels = Labels(labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect());
            let index = ScopeIndex::new(&scope(), Arc::default());
            let found = index.identify(QueriedSeries { labels, samples: Vec::new() }, &mut interner);
            found.ok().unwrap().labels
        };
        let (kept, copy, dropped) = (series("0"), series("0"), series("1"));
        interner.forget(copy);
        interner.forget(dropped);
        assert_eq!(interner.0.len(), 1, "the one of the series that is kept");
        drop(kept);
    }

    #[test]
    fn a_relayed_scheduler_has_the_pod_of_the_scheduler_that_is_scraped_directly() {
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
        assert_eq!((&*itself.pod, itself.is_relayed), ("prometheus-0", false), "its own metrics");
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
