//! Reads processor time and memory of pods and nodes. What has no sample has no number: an autoscaler counts a pod without one as missing.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures::future::try_join_all;
use moka::future::Cache;
use moka::policy::EvictionPolicy;
use smol_str::SmolStr;
use tokio::time::timeout;

use super::ask::{ANSWER_AGE, Queries, READ_TIMEOUT, no_answer_in_time, of_query, thousandths};
use super::kinds::KindTable;
use super::ports::{ListedObject, ObjectApi, Selection};
use super::usage_rule::{UsageQuery, UsageRule};
use crate::collect::QuerySample;
use crate::serve::{
    ContainerUsage, ObjectError, ObjectUsage, Objects, RuleError, UsageAnswer, UsageOf, UsageRead, Usages,
};

/// Most objects of an answer.
const MAX_LISTED: usize = 20_000;
/// Answers that are kept for a moment.
const MAX_ANSWERS: u64 = 64;
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
}

impl UsageReader {
    pub(super) fn new(api: Arc<dyn ObjectApi>) -> Self {
        let answers = Cache::builder().time_to_live(ANSWER_AGE).max_capacity(MAX_ANSWERS);
        Self { api, answers: answers.eviction_policy(EvictionPolicy::lru()).build() }
    }

    /// The usage of the objects of a read, which all readers of the moment share.
    pub(super) async fn answer(
        &self,
        prometheus: &Queries,
        (rule, kinds): (Arc<UsageRule>, Arc<KindTable>),
        read: UsageRead<'_>,
    ) -> UsageAnswer {
        let (is_named, text) = match &read.objects {
            Objects::Named(name) => (true, (*name).to_owned()),
            Objects::Selected(selector) => (false, selector.clone()),
        };
        let key = (read.of, read.namespace.to_owned(), is_named, text);
        let ask = self.ask(prometheus, (&rule, &kinds), &read);
        let answer = timeout(READ_TIMEOUT, self.answers.get_with(key, ask)).await;
        answer.unwrap_or_else(|_| Err(ObjectError::Failed(no_answer_in_time())))
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
            let of_namespaces = names
                .iter()
                .map(|(namespace, names)| samples(prometheus, query, (read.of, kinds), (namespace, names)));
            try_join_all(of_namespaces).await.map(|all| all.into_iter().flatten().collect::<Samples>())
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
        let selection = Selection { namespace: read.namespace, labels, fields: &fields };
        let listed = self.api.list(kind, selection, MAX_LISTED).await;
        listed.map_err(|cause| format!("{resource} cannot be listed: {cause}"))
    }
}

/// The samples of the objects of a namespace.
async fn samples(
    prometheus: &Queries,
    query: &UsageQuery,
    (of, kinds): (UsageOf, &KindTable),
    (namespace, names): (&str, &[&str]),
) -> Result<Samples, String> {
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
