//! Reads processor time and memory of pods and nodes. What has no sample has no number: an autoscaler counts a pod without one as missing.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures::FutureExt as _;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use moka::future::Cache;
use moka::policy::EvictionPolicy;
use smol_str::SmolStr;
use tokio::sync::Semaphore;

use super::ask::{Queries, answered_in_time, listed_in_time, of_query, thousandths};
use super::kinds::KindTable;
use super::limits::{ANSWER_AGE, MAX_KEPT_BYTES};
use super::object_names::{check_name, check_namespace, is_object_name};
use super::ports::{ListedObject, ObjectApi, Selection};
use super::usage_rule::{UsageQuery, UsageRule};
use crate::collect::QuerySample;
use crate::serve::{
    ContainerUsage, ObjectError, ObjectUsage, Objects, RuleError, UsageAnswer, UsageOf, UsageRead, Usages,
};

/// Most objects of an answer.
const MAX_LISTED: usize = 20_000;
/// Roughly the bytes of an object, of a label or of a container, beside its texts.
const OF_PART: usize = 100;
/// Queries at a time: of the permits that they share with reads of other metrics, most stay for these.
const CONCURRENT_QUERIES: usize = 8;
/// Of a read, the queries that wait or run at a time, for processor time and for memory each.
const QUERIES_OF_READ: usize = 2;
/// Only these are measured.
const RUNNING: &str = "status.phase=Running";

/// What an answer depends on: pods or nodes, the namespace, whether one is named, and its name or the selector.
type AnswerKey = (UsageOf, String, bool, String);

/// The samples of some objects.
type Samples = HashMap<(SmolStr, String), Vec<QuerySample>>;

/// What was answered just now.
pub(super) struct UsageReader {
    api: Arc<dyn ObjectApi>,
    answers: Cache<AnswerKey, UsageAnswer>,
    permits: Semaphore,
}

impl UsageReader {
    pub(super) fn new(api: Arc<dyn ObjectApi>) -> Self {
        let answers = Cache::builder().time_to_live(ANSWER_AGE).max_capacity(MAX_KEPT_BYTES);
        let answers = answers.weigher(weight).eviction_policy(EvictionPolicy::lru()).build();
        Self { api, answers, permits: Semaphore::new(CONCURRENT_QUERIES) }
    }

    /// The usage of the objects of a read, which all readers of the moment share.
    pub(super) async fn answer(
        &self,
        prometheus: &Queries,
        (rule, kinds): (Arc<UsageRule>, Arc<KindTable>),
        read: UsageRead<'_>,
    ) -> UsageAnswer {
        let (is_named, text) = match &read.objects {
            Objects::Named(name) => {
                check_name(name).map_err(ObjectError::NotFound)?;
                (true, (*name).to_owned())
            }
            Objects::Selected(selector) => (false, selector.clone()),
        };
        check_namespace(read.namespace).map_err(ObjectError::NotFound)?;
        let key = (read.of, read.namespace.to_owned(), is_named, text);
        let ask = self.ask(prometheus, (&rule, &kinds), &read);
        answered_in_time(self.answers.get_with(key, ask)).await
    }

    async fn ask(
        &self,
        prometheus: &Queries,
        (rule, kinds): (&UsageRule, &KindTable),
        read: &UsageRead<'_>,
    ) -> UsageAnswer {
        let objects = self.list(kinds, read).await.map_err(ObjectError::Failed)?;
        let mut names: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for object in &objects {
            names.entry(&object.namespace).or_default().push(&object.name);
        }
        let samples = async |query: &UsageQuery| {
            let of_namespaces = names.iter().map(|(namespace, names)| {
                self.samples(prometheus, query, (read.of, kinds), (namespace, names)).boxed()
            });
            let of_namespaces: Vec<_> = of_namespaces.collect();
            // One with many namespaces must not wait in front of all others with each of them.
            let of_namespaces = stream::iter(of_namespaces).buffer_unordered(QUERIES_OF_READ);
            of_namespaces.try_concat().await
        };
        let known = futures::try_join!(samples(&rule.cpu), samples(&rule.memory));
        let (mut cpu, mut memory) = known.map_err(ObjectError::Failed)?;
        let usage_of = |object: ListedObject| {
            let key = (object.namespace.clone(), object.name.to_string());
            let (cpu, memory) = (cpu.remove(&key)?, memory.remove(&key)?);
            usage(read.of, rule, object, (cpu, memory))
        };
        let items: Vec<_> = objects.into_iter().filter_map(usage_of).collect();
        if items.is_empty() && matches!(read.objects, Objects::Named(_)) {
            let cause = "Prometheus has no sample of its processor time and memory, or it is not running";
            return Err(ObjectError::NotFound(cause.to_owned()));
        }
        Ok(Arc::new(Usages { window: rule.window, items }))
    }

    async fn list(&self, kinds: &KindTable, read: &UsageRead<'_>) -> Result<Vec<ListedObject>, String> {
        let (resource, phase) = match read.of {
            UsageOf::Pods => ("pods", RUNNING),
            UsageOf::Nodes => ("nodes", ""),
        };
        let kind = kinds.find("", resource).ok_or("the kinds of the API server are not read yet")?;
        let (labels, name) = match &read.objects {
            Objects::Named(name) => ("", format!("metadata.name={name}")),
            Objects::Selected(selector) => (selector.as_str(), String::new()),
        };
        let comma = if phase.is_empty() || name.is_empty() { "" } else { "," };
        let fields = format!("{phase}{comma}{name}");
        let selection = Selection { namespace: read.namespace, labels, fields: &fields, has_labels: true };
        let listed = listed_in_time(self.api.list(kind, selection, MAX_LISTED)).await;
        let mut listed = listed.map_err(|cause| format!("{resource} cannot be listed: {cause}"))?;
        listed.retain(|object| is_object_name(&object.name));
        Ok(listed)
    }

    /// The samples of the objects of a namespace.
    async fn samples(
        &self,
        prometheus: &Queries,
        query: &UsageQuery,
        (of, kinds): (UsageOf, &KindTable),
        (namespace, names): (&str, &[&str]),
    ) -> Result<Samples, String> {
        let _permit = self.permits.acquire().await;
        let (promql, label) = query.query(of, kinds, (namespace, names))?;
        let answer = prometheus.ask(&promql).await;
        let samples = answer.map_err(|RuleError(cause)| of_query(&promql, &cause))?;
        let mut by_name: Samples = HashMap::new();
        for mut sample in samples {
            if let Some(name) = sample.labels.remove(&label) {
                by_name.entry((namespace.into(), name)).or_default().push(sample);
            }
        }
        Ok(by_name)
    }
}

/// The bytes of an answer, roughly.
fn weight((_, namespace, _, objects): &AnswerKey, answer: &UsageAnswer) -> u32 {
    let of_object = |object: &ObjectUsage| {
        let labels = object.labels.iter().map(|(key, value)| key.len() + value.len() + OF_PART);
        let containers = object.containers.iter().map(|own| own.name.len() + OF_PART);
        object.name.len() + object.namespace.len() + OF_PART + labels.chain(containers).sum::<usize>()
    };
    let answer = match answer {
        Ok(usages) => usages.items.iter().map(of_object).sum(),
        Err(ObjectError::NotFound(text) | ObjectError::Failed(text)) => text.len(),
    };
    u32::try_from(namespace.len() + objects.len() + answer + OF_PART).unwrap_or(u32::MAX)
}

/// The usage of an object; `None` if it has no number at all.
fn usage(
    of: UsageOf,
    rule: &UsageRule,
    object: ListedObject,
    (cpu, memory): (Vec<QuerySample>, Vec<QuerySample>),
) -> Option<ObjectUsage> {
    let mut containers: BTreeMap<String, ContainerUsage> = BTreeMap::new();
    let mut at = None;
    for (query, samples, is_cpu) in [(&rule.cpu, cpu, true), (&rule.memory, memory, false)] {
        // Of a node, the first counts.
        let count = if of == UsageOf::Nodes { 1 } else { samples.len() };
        for mut sample in samples.into_iter().take(count) {
            let name = match of {
                UsageOf::Pods => sample.labels.remove(&query.container_label).unwrap_or_default(),
                UsageOf::Nodes => String::new(),
            };
            let Some(number) = thousandths(sample.value).filter(|number| *number >= 0) else { continue };
            at = Some(at.map_or(sample.at, |at| sample.at.min(at)));
            let usage = containers.entry(name).or_default();
            *(if is_cpu { &mut usage.cpu } else { &mut usage.memory }) = Some(number);
        }
    }
    let named = |(name, usage): (String, ContainerUsage)| ContainerUsage { name: name.into(), ..usage };
    let containers = containers.into_iter().map(named).collect();
    let ListedObject { namespace, name, labels } = object;
    Some(ObjectUsage { namespace, name, labels, at: at?, containers })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::future::BoxFuture;
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::super::config::RulesFile;
    use super::super::kinds::ObjectKind;
    use super::super::kinds::tests::table;
    use super::*;
    use crate::collect::{PrometheusApi, PrometheusSettings};
    use crate::engine::SystemClock;

    /// A pod in each of a hundred namespaces.
    struct ManyNamespaces;

    impl ObjectApi for ManyNamespaces {
        fn kinds(&self) -> BoxFuture<'_, Result<Vec<ObjectKind>, String>> {
            async { Ok(Vec::new()) }.boxed()
        }

        fn list<'a>(
            &'a self,
            _: &'a ObjectKind,
            _: Selection<'a>,
            _: usize,
        ) -> BoxFuture<'a, Result<Vec<ListedObject>, String>> {
            let pod = |index| ListedObject {
                namespace: format!("ns-{index}").into(),
                name: "web".into(),
                labels: BTreeMap::new(),
            };
            async move { Ok((0..100).map(pod).collect()) }.boxed()
        }
    }

    #[test]
    fn answers_were_kept_whatever_their_length() {
        let object = ObjectUsage {
            namespace: "llm".into(),
            name: "web".into(),
            labels: BTreeMap::from([("a".to_owned(), "x".repeat(1_000))]),
            at: jiff::Timestamp::UNIX_EPOCH,
            containers: Vec::new(),
        };
        let answer = Ok(Arc::new(Usages { window: Duration::ZERO, items: vec![object; 20_000] }));
        let key = |selector: &str| (UsageOf::Pods, String::new(), false, selector.to_owned());
        assert!(u64::from(weight(&key(""), &answer)) > MAX_KEPT_BYTES);
        let error: UsageAnswer = Err(ObjectError::Failed(String::new()));
        assert!(weight(&key(&"s".repeat(10_000)), &error) > 10_000, "a selector counts too");
    }

    #[tokio::test]
    async fn the_usage_of_all_namespaces_made_reads_of_other_metrics_wait() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let server = MockServer::start().await;
        let data = serde_json::json!({ "resultType": "vector", "result": [] });
        let answer = serde_json::json!({ "status": "success", "data": data });
        let answer = ResponseTemplate::new(200).set_body_json(answer).set_delay(Duration::from_millis(200));
        Mock::given(wiremock::matchers::any()).respond_with(answer).mount(&server).await;
        let api = PrometheusApi::new(&PrometheusSettings::new(server.uri())).unwrap();
        let prometheus = Queries::new(api, Arc::new(SystemClock));
        let text = "
resourceRules:
  cpu: &own {containerQuery: usage, nodeQuery: usage, resources: {template: <<.Resource>>}, containerLabel: container}
  memory: *own
";
        let rules = RulesFile::parse(text).unwrap().resource_rules.unwrap();
        let rule = (Arc::new(UsageRule::new(&rules).unwrap()), Arc::new(table()));
        let usage = UsageReader::new(Arc::new(ManyNamespaces));
        let read =
            || UsageRead { of: UsageOf::Pods, namespace: "", objects: Objects::Selected(String::new()) };
        let reading = usage.answer(&prometheus, rule, read());
        let external_read = async {
            // Behind the queries of the usage.
            tokio::time::sleep(Duration::from_millis(50)).await;
            prometheus.ask("other").await
        };
        tokio::select! {
            _ = reading => panic!("200 queries take longer"),
            answer = external_read => assert_eq!(answer.map_err(|error| error.to_string()), Ok(Vec::new())),
        }
        let sent = server.received_requests().await.unwrap();
        let of_usage = sent.iter().filter(|request| request.body.starts_with(b"query=usage")).count();
        assert!(of_usage <= 4 * QUERIES_OF_READ, "{of_usage} queries were sent before");
    }
}
