//! What the server needs from other rooms: published results to answer from, somebody to tell about reads that an autoscaler would
//! misread, and who has the metrics that are not of variants.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use futures::future::BoxFuture;
use http::{HeaderValue, StatusCode};
use jiff::Timestamp;
use smol_str::SmolStr;
use wva_core::units::Seconds;
use wva_core::{Memory, VariantId};

use crate::engine::{ClusterView, Published, Reader};

/// Reads the engine's published results.
pub trait PublishedReader: Send + Sync + 'static {
    /// A result that is fresh enough for a read. Waits for at most one evaluation, and at most the read-wait.
    fn current(&self) -> BoxFuture<'_, Arc<Published>>;
    /// The newest published result, without waiting.
    fn newest(&self) -> Arc<Published>;
    /// True while this instance may answer with `published`: it belongs to the current term, or another instance made it.
    fn may_answer(&self, published: &Published) -> bool;
    /// The newest view of the cluster.
    fn view(&self) -> Arc<ClusterView>;
    /// What this instance remembered after its last decision.
    fn memory(&self) -> Arc<Memory>;
    /// The current time, by which ages are judged.
    fn now(&self) -> Timestamp;
    /// Evidence older than this is not answered.
    fn max_stale(&self) -> Seconds;
}

impl PublishedReader for Reader {
    fn current(&self) -> BoxFuture<'_, Arc<Published>> {
        Box::pin(Self::current(self))
    }

    fn newest(&self) -> Arc<Published> {
        Self::newest(self)
    }

    fn may_answer(&self, published: &Published) -> bool {
        Self::may_answer(self, published)
    }

    fn view(&self) -> Arc<ClusterView> {
        Self::view(self)
    }

    fn memory(&self) -> Arc<Memory> {
        Self::memory(self)
    }

    fn now(&self) -> Timestamp {
        Self::now(self)
    }

    fn max_stale(&self) -> Seconds {
        Self::max_stale(self)
    }
}

/// A read that matched several variants. An HPA adds the items of an answer up, to a number that nobody decided.
#[derive(Debug, Clone, Copy)]
pub struct AmbiguousSelector<'a> {
    /// The namespace of the read.
    pub namespace: &'a str,
    /// The metric of the read.
    pub metric: &'a str,
    /// The selector as Kubernetes prints it; empty selects everything.
    pub selector: &'a str,
    /// The variants that matched, two at least.
    pub variants: &'a [&'a VariantId],
}

/// Receives what people should know besides the answer.
pub trait EventSink: Send + Sync + 'static {
    /// Reports an ambiguous read. Called while the read is being answered, so it must return at once.
    fn ambiguous_selector(&self, read: &AmbiguousSelector<'_>);
}

/// Discards every event.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoEvents;

impl EventSink for NoEvents {
    fn ambiguous_selector(&self, _: &AmbiguousSelector<'_>) {}
}

/// ScaledObjects that KEDA's calls make variants.
pub trait ScaledObjectCalls: Send + Sync + 'static {
    /// Why no number is that of a ScaledObject which was noted; `None` for one that was not.
    fn verdict(&self, namespace: &str, name: &str) -> Option<Result<(), String>>;
    /// Notes the call of an authorised caller: the ScaledObject becomes a variant, and stays one for an hour after the last call.
    ///
    /// # Errors
    /// Says why it cannot be noted.
    fn note(&self, namespace: &str, name: &str) -> Result<(), String>;
    /// The same for one that was noted before; nothing for another one.
    fn renew(&self, namespace: &str, name: &str);
}

/// Metrics beside those of variants, which rules make of series of Prometheus.
pub trait RuleMetrics: Send + Sync + 'static {
    /// The names of the external ones that there are now, sorted.
    fn names(&self) -> Arc<[SmolStr]>;

    /// Those of objects that there are now, sorted.
    fn objects(&self) -> Arc<[ResourceMetrics]>;

    /// Why external ones may be missing; `None` if the names are complete.
    fn unlisted(&self) -> Option<String>;

    /// Why those of objects may be missing.
    fn unlisted_objects(&self) -> Option<String>;

    /// The values of a metric of objects; `None` if there is no such metric.
    fn read_objects<'a>(&'a self, read: ObjectRead<'a>) -> Option<BoxFuture<'a, ObjectAnswer>>;

    /// Whether processor time and memory are served at all.
    fn serves_usage(&self) -> bool;

    /// The processor time and memory of pods or nodes; `None` without a rule for it.
    fn read_usage<'a>(&'a self, read: UsageRead<'a>) -> Option<BoxFuture<'a, UsageAnswer>>;

    /// Whether an external metric of this name is one of the rules', also if it cannot be read: nobody else is asked for it.
    fn makes(&self, metric: &str) -> bool;

    /// The values of an external metric in a namespace; `None` if there is no such metric.
    fn read<'a>(
        &'a self,
        metric: &str,
        namespace: &'a str,
        requirements: Vec<LabelRequirement<'a>>,
    ) -> Option<BoxFuture<'a, RuleAnswer>>;
}

/// The values of a metric, at most one for each set of labels, or why there are none.
pub type RuleAnswer = Result<Arc<[RuleValue]>, RuleError>;

/// A value of a metric that a rule makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleValue {
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// When it was measured or computed.
    pub at: Timestamp,
    /// In thousandths.
    pub thousandths: i64,
}

/// Why a metric that a rule makes cannot be read, with the next step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RuleError(pub String);

/// The metrics of the objects of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceMetrics {
    /// The plural of the kind, with a dot and its group if it has one.
    pub resource: SmolStr,
    /// Whether its objects are in namespaces.
    pub is_namespaced: bool,
    /// The names, sorted.
    pub metrics: Vec<SmolStr>,
}

/// A read of a metric of objects.
#[derive(Debug, Clone)]
pub struct ObjectRead<'a> {
    /// The kind, as a path names it.
    pub resource: &'a str,
    /// Empty for objects without one.
    pub namespace: &'a str,
    /// Which objects.
    pub objects: Objects<'a>,
    /// The name of the metric.
    pub metric: &'a str,
    /// What is asked of the labels of series.
    pub requirements: Vec<LabelRequirement<'a>>,
}

/// The objects of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Objects<'a> {
    /// The one of that name.
    Named(&'a str),
    /// All that a label selector selects.
    Selected(String),
}

/// The values of a metric of objects, or why there are none.
pub type ObjectAnswer = Result<Arc<ObjectValues>, ObjectError>;

/// The values of a metric of objects of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectValues {
    /// The kind.
    pub kind: SmolStr,
    /// Its group and version.
    pub api_version: SmolStr,
    /// In the order of the names of the objects. Objects without a value are left out.
    pub values: Vec<ObjectValue>,
}

/// The value of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectValue {
    /// The object.
    pub name: SmolStr,
    /// When it was measured or computed.
    pub at: Timestamp,
    /// In thousandths.
    pub thousandths: i64,
}

/// Why a metric of objects cannot be read, with the next step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// There are no such objects, or none of them has a value.
    #[error("{0}")]
    NotFound(String),
    /// It could not be found out.
    #[error("{0}")]
    Failed(String),
}

/// A read of processor time and memory.
#[derive(Debug, Clone)]
pub struct UsageRead<'a> {
    /// Of what.
    pub of: UsageOf,
    /// Empty for nodes, and for the pods of all.
    pub namespace: &'a str,
    /// Which of them.
    pub objects: Objects<'a>,
}

/// What uses processor time and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "they say what they are")]
pub enum UsageOf {
    Pods,
    Nodes,
}

/// What is used, or why it is not known.
pub type UsageAnswer = Result<Arc<Usages>, ObjectError>;

/// The usage of pods or nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usages {
    /// Over which time processor time was measured.
    pub window: Duration,
    /// By namespace and name. Objects without a sample are left out.
    pub items: Vec<ObjectUsage>,
}

/// The usage of a pod or node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectUsage {
    /// Empty for a node.
    pub namespace: SmolStr,
    /// Its name.
    pub name: SmolStr,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The oldest of the samples.
    pub at: Timestamp,
    /// By name. Of a node it is one without a name.
    pub containers: Vec<ContainerUsage>,
}

/// The usage of a container. What is not known is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerUsage {
    /// Its name.
    pub name: SmolStr,
    /// In thousandths of a core.
    pub cpu: Option<i64>,
    /// In thousandths of a byte.
    pub memory: Option<i64>,
}

/// What a selector asks of a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelRequirement<'a> {
    /// The name of the label.
    pub key: &'a str,
    /// How its value is compared.
    pub operator: LabelOperator,
    /// The values, sorted: of `Equals` and `NotEquals` there is one, of `Exists` and `DoesNotExist` none.
    pub values: Vec<&'a str>,
}

/// How a selector compares the value of a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are those of Kubernetes")]
pub enum LabelOperator {
    Equals,
    NotEquals,
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

/// The metrics server that is asked for external metrics that are neither of variants nor of rules.
pub trait FallbackServer: Send + Sync + 'static {
    /// Its Service, as `namespace/name`.
    fn service(&self) -> &str;

    /// The names of the metrics that it listed last, sorted. It may have more.
    fn names(&self) -> Arc<[SmolStr]>;

    /// Its answer in JSON to a GET of a path with its query. Bounded in time and size.
    fn get<'a>(
        &'a self,
        path_and_query: &'a str,
        audit_id: &'a HeaderValue,
    ) -> BoxFuture<'a, Result<FallbackAnswer, FallbackError>>;
}

/// What the fallback server has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FallbackAnswer {
    /// The status; never a redirect, 401 or 403.
    pub status: StatusCode,
    /// The body: JSON, as its header says.
    pub body: Bytes,
}

/// Why the fallback server gave no answer that can be passed on, with the next step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FallbackError(pub String);
