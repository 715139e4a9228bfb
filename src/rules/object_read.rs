//! Reads metrics of objects that rules make. Readers of a moment share the list of objects, the query and its answer.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use moka::future::Cache;
use moka::policy::EvictionPolicy;
use smol_str::SmolStr;
use tokio::time::{Instant, timeout};

use super::ask::{Queries, SHARED_TIMEOUT, answered_in_time, listed_in_time, of_query, thousandths};
use super::commute::Requirement;
use super::kinds::ObjectKind;
use super::limits::{ANSWER_AGE, MAX_KEPT_BYTES};
use super::object_names::{check_name, check_namespace, is_object_name};
use super::object_registry::{ObjectMetric, ObjectRegistry};
use super::object_rule::ObjectLabels;
use super::ports::{ListedObject, ObjectApi, Selection};
use super::query::is_plain;
use super::sharing::{Shared, Sharing};
use crate::collect::QuerySample;
use crate::serve::{
    LabelOperator, LabelSelector, ObjectAnswer, ObjectError, ObjectRead, ObjectValue, ObjectValues, Objects,
    RuleError,
};

/// Most objects of a read. Their names are part of its query.
const MAX_OBJECTS: usize = 5_000;
/// Roughly the bytes of a value or of an object, beside its name.
const OF_VALUE: usize = 64;

/// A list of objects, or why there is none.
pub(super) type ObjectList = Result<Arc<[ListedObject]>, String>;

/// All objects of a kind in a namespace, with their labels.
struct AllObjects(Arc<[ListedObject]>);

impl Shared for AllObjects {
    type Question = (Arc<ObjectKind>, SmolStr);

    fn bytes(&self) -> usize {
        let labels = |object: &ListedObject| -> usize {
            object.labels.iter().map(|(key, value)| key.len() + value.len() + OF_VALUE).sum()
        };
        self.0.iter().map(|object| object.name.len() + 2 * OF_VALUE + labels(object)).sum()
    }
}

impl AllObjects {
    /// Those that the selector selects, without their labels.
    fn select(&self, selector: &LabelSelector) -> Arc<[ListedObject]> {
        let is_selected =
            |object: &&ListedObject| selector.matches(|key| object.labels.get(key).map(String::as_str));
        let name = |ListedObject { namespace, name, .. }: &ListedObject| ListedObject {
            namespace: namespace.clone(),
            name: name.clone(),
            labels: BTreeMap::new(),
        };
        self.0.iter().filter(is_selected).map(name).collect()
    }
}

/// The objects of the API server, and what was answered just now.
pub(super) struct ObjectReader {
    api: Arc<dyn ObjectApi>,
    lists: Cache<String, ObjectList>,
    shared_lists: Sharing<AllObjects>,
    answers: Cache<AnswerKey, ObjectAnswer>,
    /// Set by a read of a kind that is not known.
    is_kind_wanted: AtomicBool,
}

/// What an answer depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct AnswerKey {
    resource: String,
    namespace: String,
    /// The name, or the selector.
    objects: (bool, String),
    metric: String,
    requirements: Vec<(String, LabelOperator, Vec<String>)>,
}

impl AnswerKey {
    fn new(metric: &ObjectMetric, name: &str, read: &ObjectRead<'_>) -> Self {
        let requirement = |own: &crate::serve::LabelRequirement<'_>| {
            let values = own.values.iter().map(|value| (*value).to_owned()).collect();
            (own.key.to_owned(), own.operator, values)
        };
        Self {
            resource: metric.kind.resource().into(),
            namespace: read.namespace.to_owned(),
            objects: match &read.objects {
                Objects::Named(name) => (true, (*name).to_owned()),
                Objects::Selected(selector) => (false, selector.clone()),
            },
            metric: name.to_owned(),
            requirements: read.requirements.iter().map(requirement).collect(),
        }
    }

    /// Its bytes, roughly.
    fn bytes(&self) -> usize {
        let of_requirement = |(key, _, values): &(String, LabelOperator, Vec<String>)| {
            key.len() + OF_VALUE + values.iter().map(|value| value.len() + OF_VALUE).sum::<usize>()
        };
        let requirements: usize = self.requirements.iter().map(of_requirement).sum();
        self.resource.len() + self.namespace.len() + self.objects.1.len() + self.metric.len() + requirements
    }
}

impl ObjectReader {
    pub(super) fn new(api: Arc<dyn ObjectApi>) -> Self {
        let bytes = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let answers = Cache::builder().time_to_live(ANSWER_AGE).max_capacity(MAX_KEPT_BYTES);
        let answers = answers.eviction_policy(EvictionPolicy::lru());
        let answers = answers.weigher(move |key: &AnswerKey, answer: &ObjectAnswer| {
            let answer = match answer {
                Ok(values) => values.values.iter().map(|value| value.name.len() + OF_VALUE).sum(),
                Err(ObjectError::NotFound(text) | ObjectError::Failed(text)) => text.len(),
            };
            bytes(key.bytes() + answer + 4 * OF_VALUE)
        });
        let lists = Cache::builder().time_to_live(ANSWER_AGE).max_capacity(MAX_KEPT_BYTES);
        let lists = lists.eviction_policy(EvictionPolicy::lru());
        let lists = lists.weigher(move |key: &String, list: &ObjectList| {
            let objects = list.iter().flat_map(|list| list.iter());
            let objects: usize = objects.map(|object| object.name.len() + 2 * OF_VALUE).sum();
            bytes(key.len() + objects + OF_VALUE)
        });
        Self {
            api,
            lists: lists.build(),
            shared_lists: Sharing::new(),
            answers: answers.build(),
            is_kind_wanted: AtomicBool::new(false),
        }
    }

    pub(super) fn api(&self) -> Arc<dyn ObjectApi> {
        Arc::clone(&self.api)
    }

    /// Whether a read has named a kind that is not known, since this was asked last.
    pub(super) fn take_wanted(&self) -> bool {
        self.is_kind_wanted.swap(false, Ordering::Relaxed)
    }

    /// The objects that a selector selects, which all readers of the moment share.
    async fn list(&self, kind: &Arc<ObjectKind>, namespace: &str, selector: &str) -> ObjectList {
        let of_namespace = format!("{} {} {namespace}", kind.resource(), kind.api_version());
        let key = format!("{of_namespace} {selector}");
        let list = async {
            let question = || Some((Arc::clone(kind), namespace.into()));
            let all = self.shared_lists.find((&of_namespace, selector), question, |all| self.list_all(all));
            // What the API server does not understand has its error.
            if let (Some(all), Ok(selector)) = (all.await, LabelSelector::parse(selector)) {
                return Ok(all.answer.select(&selector));
            }
            let started = Instant::now();
            let selection = Selection { namespace, labels: selector, fields: "", has_labels: false };
            let list = self.list_of(kind, selection).await?;
            self.shared_lists.note_own(started.elapsed());
            Ok(list)
        };
        match self.lists.get(&key).await {
            Some(list) => list,
            // In a box: few reads list.
            None => Box::pin(self.lists.get_with(key, list)).await,
        }
    }

    /// Lists again what many reads select from, until cancelled.
    pub(super) async fn renew_lists(&self) {
        self.shared_lists.renew(|all| self.list_all(all)).await;
    }

    async fn list_all(&self, (kind, namespace): (Arc<ObjectKind>, SmolStr)) -> Result<AllObjects, String> {
        let selection = Selection { namespace: &namespace, labels: "", fields: "", has_labels: true };
        // After one without an answer, a read has time for its own.
        let list = timeout(SHARED_TIMEOUT, self.list_of(&kind, selection)).await;
        list.map_err(|_| "the API server did not list all objects in time".to_owned())?.map(AllObjects)
    }

    async fn list_of(&self, kind: &ObjectKind, selection: Selection<'_>) -> ObjectList {
        let mut objects = listed_in_time(self.api.list(kind, selection, MAX_OBJECTS)).await?;
        objects.retain(|object| is_object_name(&object.name));
        Ok(objects.into())
    }

    /// The metric that a read names, with its own name.
    pub(super) fn find(
        &self,
        registry: &ObjectRegistry,
        read: &ObjectRead<'_>,
    ) -> Option<(String, ObjectMetric)> {
        let Some(kind) = registry.kinds.find_resource(read.resource) else {
            self.is_kind_wanted.store(true, Ordering::Relaxed);
            return None;
        };
        let (name, metric) = registry.find(kind, read.metric)?;
        (kind.is_namespaced != read.namespace.is_empty()).then(|| (name.to_string(), metric.clone()))
    }

    pub(super) async fn answer(
        &self,
        prometheus: &Queries,
        (name, metric): (String, ObjectMetric),
        read: ObjectRead<'_>,
    ) -> ObjectAnswer {
        let named = match read.objects {
            Objects::Named(name) => check_name(name),
            Objects::Selected(_) => Ok(()),
        };
        named.and_then(|()| check_namespace(read.namespace)).map_err(ObjectError::NotFound)?;
        let answer = async {
            let list;
            let names: Vec<&str> = match &read.objects {
                Objects::Named(object) => vec![object],
                Objects::Selected(selector) => {
                    list = self.list(&metric.kind, read.namespace, selector).await.map_err(|cause| {
                        let resource = metric.kind.resource();
                        ObjectError::Failed(format!("its {resource} cannot be listed: {cause}"))
                    })?;
                    list.iter().map(|object| object.name.as_str()).collect()
                }
            };
            if names.is_empty() {
                return Err(ObjectError::NotFound("the selector selects no object".to_owned()));
            }
            let about = (name.as_str(), &metric);
            if let Some(answer) = shared_answer(prometheus, about, &read, &names).await {
                return answer;
            }
            let answer = async {
                let query = query(&metric, &read, &names)?;
                let samples = prometheus.ask(&query).await;
                answer_of(prometheus, about, &read, (&query, &names), samples)
            };
            Box::pin(self.answers.get_with(AnswerKey::new(&metric, &name, &read), answer)).await
        };
        answered_in_time(answer).await
    }
}

/// The query of a read about these objects.
fn query(metric: &ObjectMetric, read: &ObjectRead<'_>, names: &[&str]) -> Result<String, ObjectError> {
    let ObjectMetric { series, rule, labels, .. } = metric;
    let query = rule.query(series, labels, (read.namespace, names), &read.requirements);
    query.map_err(|cause| ObjectError::NotFound(format!("its rule makes no query: {cause}")))
}

/// The answer about the objects `names`, if other reads share its query. What is exact for each of them alone is so for all of them.
async fn shared_answer(
    prometheus: &Queries,
    (name, metric): (&str, &ObjectMetric),
    read: &ObjectRead<'_>,
    names: &[&str],
) -> Option<ObjectAnswer> {
    let (first, further) = names.split_first()?;
    let ObjectLabels { object: Ok(label), namespace } = metric.labels.as_ref() else { return None };
    // The requirement of a namespace always stays.
    let is_variable = namespace.as_ref() != Ok(label) && is_plain(&read.requirements);
    if !is_variable {
        return None;
    }
    let of_first = query(metric, read, &[first]).ok()?;
    let requirement = Requirement { label, value: first };
    // A template may use the names otherwise than as one requirement.
    if let Some(second) = further.first() {
        let both = format!("{label}=~{:?}", format!("{first}|{second}"));
        if query(metric, read, &[first, second]).ok()? != of_first.replace(&requirement.to_string(), &both) {
            return None;
        }
    }
    let samples = prometheus.find_shared(&of_first, &[requirement], further).await?;
    Some(answer_of(prometheus, (name, metric), read, (&of_first, names), Ok(samples)))
}

/// What the samples of a query answer about the objects `names`.
fn answer_of(
    prometheus: &Queries,
    (name, metric): (&str, &ObjectMetric),
    read: &ObjectRead<'_>,
    (query, names): (&str, &[&str]),
    samples: Result<Vec<QuerySample>, RuleError>,
) -> ObjectAnswer {
    let ObjectMetric { kind, labels, .. } = metric;
    let values = samples.map_err(|RuleError(cause)| cause).and_then(|samples| {
        let label = labels.object.as_ref().map_err(Clone::clone)?;
        let (values, unusable) = values(samples, label, names);
        match unusable {
            Some(cause) if values.is_empty() => Err(cause),
            unusable => Ok((values, unusable)),
        }
    });
    let values = values.map_err(|cause| of_query(query, &cause));
    let unusable = values.as_ref().map_or_else(Some, |(_, unusable)| unusable.as_ref());
    if let Some(cause) = unusable {
        prometheus.log((name, &kind.resource(), read.namespace), cause);
    }
    let (values, _) = values.map_err(ObjectError::Failed)?;
    if values.is_empty() && matches!(read.objects, Objects::Named(_)) {
        return Err(ObjectError::NotFound(of_query(query, "it has no value of this object now")));
    }
    Ok(Arc::new(ObjectValues { kind: kind.kind.clone(), api_version: kind.api_version(), values }))
}

/// The values of `names`, in their order: of each, that of the last sample whose label has this name. An object whose value is no quantity
/// is left out, as one without a sample, so that it costs the others nothing; beside the values is why, for one such object.
fn values(samples: Vec<QuerySample>, label: &str, names: &[&str]) -> (Vec<ObjectValue>, Option<String>) {
    let mut by_name: HashMap<String, QuerySample> = HashMap::with_capacity(samples.len());
    for mut sample in samples {
        if let Some(name) = sample.labels.remove(label) {
            by_name.insert(name, sample);
        }
    }
    let mut unusable = None;
    let value = |name: &&str| {
        let QuerySample { at, value, .. } = by_name.get(*name)?;
        let thousandths = thousandths(*value);
        if thousandths.is_none() {
            unusable = Some(format!("the value of {name} is {value}, which is no quantity"));
        }
        Some(ObjectValue { name: (*name).into(), at: *at, thousandths: thousandths? })
    };
    (names.iter().filter_map(value).collect(), unusable)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::Timestamp;

    use super::*;

    #[test]
    fn one_idle_pod_was_an_error_for_all_pods() {
        let sample = |name: &str, value| QuerySample {
            labels: BTreeMap::from([("pod".to_owned(), name.to_owned())]),
            at: Timestamp::UNIX_EPOCH,
            value,
        };
        let (known, unusable) =
            values(vec![sample("idle", f64::NAN), sample("busy", 2.0)], "pod", &["busy", "idle"]);
        assert_eq!(
            known.iter().map(|own| (own.name.as_str(), own.thousandths)).collect::<Vec<_>>(),
            [("busy", 2_000)]
        );
        assert_eq!(unusable.as_deref(), Some("the value of idle is NaN, which is no quantity"));
    }
}
