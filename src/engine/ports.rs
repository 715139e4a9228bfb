//! The ports of the engine: traits and plain values, which the edges implement and fill.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use smol_str::SmolStr;
use wva_core::RequiredSignals;
use wva_core::VariantId;
use wva_core::model::{InvalidVariant, TargetRef};
use wva_core::snapshot::{Signal, VariantLimit, VariantState};

use super::join_failure::JoinFailure;
use super::samples::Samples;

/// The time: of the wall clock, or of a virtual clock that runs faster (the demo).
pub trait Clock: Send + Sync {
    /// The current time.
    fn now(&self) -> Timestamp;
    /// Resolves when `duration` of this clock has passed.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// The wall clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one wall-clock read of the decision path")]
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// A source of metrics.
pub trait MetricSource: Send + Sync {
    /// Reads the signals of everything in `scope`. A missing series is not an error; see [`Collected::gaps`].
    fn collect<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Collected, SourceError>>;
}

/// Reads what waits for sleeping models.
pub trait QueueSource: Send + Sync {
    /// The requests that `scheduler` holds, of those of its models that it shows.
    ///
    /// # Errors
    /// Says why the scheduler could not be read.
    fn read<'a>(&'a self, scheduler: &'a Scheduler) -> BoxFuture<'a, QueueAnswer>;
}

/// Waiting requests by model.
pub type QueueAnswer = Result<BTreeMap<SmolStr, f64>, SourceError>;

/// A pod of a scheduler, and the models that it may speak about: those of its pools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scheduler {
    /// Where its metrics are.
    pub endpoint: Endpoint,
    /// Those of them that are read.
    pub models: BTreeSet<SmolStr>,
    /// Whether its pools have this model only. Then all that it says is about that, under whatever name requests ask for it: an adapter,
    /// or an alias.
    pub has_one_model: bool,
}

impl Scheduler {
    /// The model that all of its series are about, if there is only one.
    #[must_use]
    pub fn only_model(&self) -> Option<&SmolStr> {
        self.models.first().filter(|_| self.has_one_model)
    }
}

/// What a source must read.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// The namespaces that have variants.
    pub namespaces: BTreeSet<String>,
    /// The serving pods, for sources that read them directly.
    pub endpoints: Vec<Endpoint>,
    /// The schedulers of InferencePools, for such sources.
    pub schedulers: Vec<Scheduler>,
    /// The signals that decisions need, for sources that query each one; `None`: all.
    pub needs: Option<RequiredSignals>,
}

/// Most variants of one model in one namespace: several times what accelerators, roles and prices make of one. Further ones
/// are invalid, so that one tenant's objects do not delay the decisions of others.
pub const MAX_VARIANTS_PER_MODEL: usize = 100;

/// Where a serving pod's metrics are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's address.
    pub ip: IpAddr,
    /// The port of its metrics; `None` if it is unknown, so that only Prometheus can read them.
    pub port: Option<u16>,
    /// The path of its metrics; `None` for the one that the source is configured with.
    pub path: Option<String>,
}

/// An InferencePool that has variants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Its namespace, which is that of its variants and of its scheduler.
    pub namespace: SmolStr,
    /// Its name.
    pub name: SmolStr,
    /// Its variants: those whose pods it selects.
    pub variants: BTreeSet<VariantId>,
    /// Whether its scheduler may have other models than theirs: it has pods, Deployments or pools that belong to no known variant.
    pub has_others: bool,
    /// The Ready pods of its scheduler, the endpoint picker (EPP).
    pub schedulers: Vec<Endpoint>,
}

/// The result of a collection.
#[derive(Debug, Clone, Default)]
pub struct Collected {
    /// The series, in no particular order.
    pub series: Vec<Series>,
    /// Parts of the answer that are known to be incomplete.
    pub gaps: Vec<Gap>,
    /// The number of samples dropped because they were NaN, infinite, negative, or above 1 as a ratio.
    pub bad_samples: u64,
    /// The number of series dropped because they exceed the limits of their pod.
    pub dropped_series: u64,
    /// Pods whose series could not be merged. Each is also a gap of its namespace.
    pub failures: Vec<JoinFailure>,
}

/// Most series of one pod: 15 of each of 64 engines. A pod has one engine, or eight.
pub const MAX_SERIES_OF_A_POD: usize = 1_000;
/// Most engines of one pod: its data-parallel ranks, of which the largest nodes have 8 to 16.
pub const MAX_ENGINES_OF_A_POD: usize = 64;

/// The samples of one signal of one engine or scheduler.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Shared, because all signals of an engine have the same.
    pub labels: Arc<Labels>,
    /// What was measured.
    pub signal: Signal,
    /// Oldest first, with their true times; all finite.
    pub samples: Samples,
}

/// What a series is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labels {
    /// Namespace of the pod.
    pub namespace: Arc<str>,
    /// Name of the pod.
    pub pod: Arc<str>,
    /// The serving process in the pod: its `engine` label, else its port, else empty.
    pub engine: Arc<str>,
    /// The port it was scraped at.
    pub port: Option<u16>,
    /// The model, when the series names one. Scheduler series always do.
    pub model: Option<Arc<str>>,
    /// For a scheduler's counter of requests: where they were sent. `None` for the total, which contains these samples too.
    pub destination: Option<Destination>,
}

impl Series {
    /// Whether it is a signal of a model server, and not of a scheduler.
    pub(super) fn is_of_engine(&self) -> bool {
        self.labels.destination.is_none() && !self.is_of_scheduler()
    }

    /// Whether it is a signal of a scheduler.
    pub(super) const fn is_of_scheduler(&self) -> bool {
        use Signal::{SchedulerAttempts, SchedulerQueueBytes, SchedulerQueueSize};
        matches!(self.signal, SchedulerQueueSize | SchedulerQueueBytes | SchedulerAttempts)
    }
}

#[cfg(test)]
impl Series {
    /// The series with changed labels.
    pub(crate) fn relabelled(mut self, change: impl FnOnce(&mut Labels)) -> Self {
        change(Arc::make_mut(&mut self.labels));
        self
    }
}

/// Where a scheduler sends requests, in the namespace of its series.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination {
    /// Name of the pod.
    pub pod: Arc<str>,
    /// The port of the serving process in it, if the scheduler reports it.
    pub port: Option<u16>,
}

/// A part of an answer that is known to be incomplete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// The namespace it concerns; `None` is all of them.
    pub namespace: Option<String>,
    /// The warning, for people.
    pub reason: String,
}

impl Gap {
    /// Whether it concerns `namespace`.
    pub(super) fn concerns(&self, namespace: &str) -> bool {
        self.namespace.as_deref().is_none_or(|own| own == namespace)
    }
}

/// A source that did not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SourceError {
    /// A label for metrics: `timeout`, `connect`, `status`, `decode`, `config`.
    pub kind: &'static str,
    /// Which source, what happened and the next step, for people; never a token.
    pub message: String,
}

/// The state of the cluster.
pub trait Cluster: Send + Sync {
    /// The newest view; cheap.
    fn view(&self) -> Arc<ClusterView>;
}

/// A variant that names an object as its scale target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The scale target; it is in the variant's namespace.
    pub target: TargetRef,
    /// The variant.
    pub variant: VariantId,
}

/// Variants with their targets and pods (without signals), and where the pods' metrics are.
#[derive(Debug, Clone, Default)]
pub struct ClusterView {
    /// True once every watch has listed: nothing is decided before.
    pub synced: bool,
    /// The variants this installation is responsible for, sorted by their ids. Some name no model: their pods do.
    pub variants: Vec<VariantState>,
    /// Which variants claim which scale target, sorted by [`Claim::key`]. Of several claims on one target, the first decides.
    pub claims: Vec<Claim>,
    /// The pods of these variants.
    pub endpoints: Vec<Endpoint>,
    /// The InferencePools of these variants, by namespace and name.
    pub pools: Vec<Pool>,
    /// Invalid variants.
    pub invalid: Vec<InvalidVariant>,
    /// GPUs of the nodes by the accelerator's name; `None` when nodes are not watched, or not listed yet.
    pub inventory: Option<BTreeMap<SmolStr, u32>>,
    /// The nodes were listed and have not been readable for longer than `--max-stale`.
    pub is_inventory_stale: bool,
    /// The number of these GPUs that pods of no variant use.
    pub elsewhere: BTreeMap<SmolStr, u32>,
    /// The oldest node with GPUs whose accelerator no label names.
    pub unlabelled: Option<UnlabelledNode>,
    /// Limits that objects of the cluster set for some variants.
    pub limits: Arc<[VariantLimit]>,
    /// Namespaces whose variants are ignored, by their annotation.
    pub excluded: BTreeSet<SmolStr>,
    /// The objects that the variants were read from.
    pub revisions: Arc<BTreeMap<VariantId, Revision>>,
    /// Further names by which reads find a variant, with its own name. No object has one of these names as its own.
    pub aliases: BTreeMap<VariantId, SmolStr>,
    /// Those of these names that are names of objects, and not of scale targets: they have series too.
    pub followers: BTreeSet<VariantId>,
    /// The variants that are no VariantAutoscalings, but annotated objects.
    pub annotated: BTreeSet<VariantId>,
    /// The variants whose number is served divided; `None` unless that is switched on.
    pub value_targets: Option<ValueTargets>,
}

/// The variants that HPAs read with targets of the type `Value` only, which multiply the number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueTargets {
    /// Whether all HPAs are known.
    pub are_known: bool,
    /// Their Ready pods, by which an HPA multiplies.
    pub multipliers: BTreeMap<VariantId, u32>,
}

/// Which object a variant was read from, and in which state: what was decided about it says nothing about a later one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision {
    /// The object's uid.
    pub uid: SmolStr,
    /// Its `metadata.generation`.
    pub generation: i64,
}

/// A node with GPUs whose accelerator no label names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnlabelledNode {
    /// Its name.
    pub name: SmolStr,
    /// When it joined the cluster.
    pub joined: Timestamp,
}

impl ClusterView {
    /// The claims on one scale target. The first one decides.
    #[must_use]
    pub fn claims_on(&self, namespace: &str, target: &TargetRef) -> &[Claim] {
        let key = (namespace, target);
        let from = self.claims.partition_point(|claim| claim.key() < key);
        let claims = self.claims.get(from..).unwrap_or_default();
        let count = claims.partition_point(|claim| claim.key() == key);
        claims.get(..count).unwrap_or_default()
    }

    /// The variant that a further name stands for; `None` where it is no such name.
    #[must_use]
    pub fn aliased(&self, name: &VariantId) -> Option<VariantId> {
        self.aliases.get(name).map(|own| VariantId::new(name.namespace.clone(), own.clone()))
    }

    /// Where the object of a variant names its model, for people.
    #[must_use]
    pub fn model_field(&self, id: &VariantId) -> &'static str {
        if self.annotated.contains(id) { "the annotation llm-d.ai/model-id" } else { "spec.modelID" }
    }

    /// The state of a valid variant.
    #[must_use]
    pub fn variant(&self, id: &VariantId) -> Option<&VariantState> {
        let at = self.variants.binary_search_by(|state| state.variant.id.cmp(id)).ok()?;
        self.variants.get(at)
    }
}

impl Claim {
    /// Namespace and reference of the scale target.
    #[must_use]
    pub fn key(&self) -> (&str, &TargetRef) {
        (&self.variant.namespace, &self.target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(namespace: &str, deployment: &str, name: &str) -> Claim {
        Claim { target: TargetRef::deployment(deployment), variant: VariantId::new(namespace, name) }
    }

    #[test]
    fn claims_are_those_of_one_object_in_one_namespace() {
        let claims =
            vec![claim("a", "x", "v"), claim("b", "x", "v"), claim("b", "x", "w"), claim("b", "y", "u")];
        let view = ClusterView { claims: claims.clone(), ..ClusterView::default() };
        let claims_on = |namespace, name| view.claims_on(namespace, &TargetRef::deployment(name));
        assert_eq!(claims_on("a", "x"), &claims[..1]);
        assert_eq!(claims_on("b", "x"), &claims[1..3]);
        assert_eq!(claims_on("b", "y"), &claims[3..]);
        for (namespace, name) in [("a", "y"), ("b", ""), ("b", "z"), ("", "x"), ("c", "x")] {
            assert!(claims_on(namespace, name).is_empty(), "{namespace}/{name}");
        }
        let of_same_name = TargetRef { kind: "StatefulSet".into(), ..TargetRef::deployment("x") };
        assert!(view.claims_on("b", &of_same_name).is_empty());
    }
}
