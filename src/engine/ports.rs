//! What an evaluation needs from the outside, as traits and plain values. The edges implement them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use smol_str::SmolStr;
use wva_core::RequiredSignals;
use wva_core::VariantId;
use wva_core::model::InvalidVariant;
use wva_core::snapshot::{Sample, Signal, VariantState};

use super::breaks::Broken;

/// Where time comes from: the wall, or a virtual clock that runs faster (the demo).
pub trait Clock: Send + Sync {
    /// The current moment.
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

/// Where metrics come from.
pub trait MetricSource: Send + Sync {
    /// Reads the signals of everything in `scope`. A missing series is not an error; see [`Collected::gaps`].
    fn collect<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Collected, SourceError>>;
}

/// What to read.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// The namespaces that have variants.
    pub namespaces: BTreeSet<String>,
    /// The pods that serve, for sources that read them directly.
    pub endpoints: Vec<Endpoint>,
    /// What decisions look at, for sources that have to ask for each signal; all that is known when `None`.
    pub needs: Option<RequiredSignals>,
}

/// Where a serving pod's metrics are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's address.
    pub ip: IpAddr,
    /// The port of its metrics.
    pub port: u16,
}

/// What a source answered.
#[derive(Debug, Clone, Default)]
pub struct Collected {
    /// The series, in no particular order.
    pub series: Vec<Series>,
    /// Parts of the answer that are known to be incomplete.
    pub gaps: Vec<Gap>,
    /// Samples that were NaN, infinite or negative where impossible; dropped.
    pub bad_samples: u64,
    /// Series left out because their pod shows more than one may.
    pub dropped_series: u64,
    /// Pods whose series could not be put together; each makes a gap of its namespace.
    pub broken: Vec<Broken>,
}

/// Series of one pod that are kept: 15 of each of 64 engines. A pod has one engine, or eight.
pub const MAX_SERIES_OF_A_POD: usize = 1_000;
/// Engines of one pod that are looked at: its data-parallel ranks, 8 to 16 on the largest nodes.
pub const MAX_ENGINES_OF_A_POD: usize = 64;

/// The samples of one signal of one engine or scheduler. Names are shared: there are many series of each.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
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
    /// What was measured.
    pub signal: Signal,
    /// Of what a scheduler gives out, who gets it: then the samples are that part alone, which the scheduler's total has
    /// in it too.
    pub to: Option<Receiver>,
    /// Oldest first, with their true times; all finite.
    pub samples: Vec<Sample>,
}

/// Where a scheduler sends requests, in the namespace of its series.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Receiver {
    /// Name of the pod.
    pub pod: Arc<str>,
    /// The port of the serving process in it, when the scheduler says it.
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

/// A source that did not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SourceError {
    /// A label for metrics: `timeout`, `connect`, `status`, `decode`, `config`.
    pub kind: &'static str,
    /// Which source, what happened and the next step, for people; never a token.
    pub message: String,
}

/// What the cluster looks like now.
pub trait Cluster: Send + Sync {
    /// The newest view; cheap.
    fn view(&self) -> Arc<ClusterView>;
}

/// A variant that names a Deployment as its scale target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The name of the Deployment; it is in the variant's namespace.
    pub deployment: SmolStr,
    /// The variant.
    pub variant: VariantId,
}

/// Variants with their targets and pods (without signals), and where the pods' metrics are.
#[derive(Debug, Clone, Default)]
pub struct ClusterView {
    /// False until every watch has listed once: nothing can be decided before.
    pub synced: bool,
    /// The variants this installation is responsible for, sorted by their ids.
    pub variants: Vec<VariantState>,
    /// Which variants claim which Deployment, sorted by [`Claim::target`]. Two claims on one Deployment make both
    /// variants invalid.
    pub claims: Vec<Claim>,
    /// The pods of these variants.
    pub endpoints: Vec<Endpoint>,
    /// Objects that cannot be decided about.
    pub invalid: Vec<InvalidVariant>,
    /// GPUs that the nodes have, by the accelerator's name; `None` when nobody looks, or has seen them.
    pub inventory: Option<BTreeMap<SmolStr, u32>>,
    /// Of these, the ones that pods use which are no variant's here.
    pub elsewhere: BTreeMap<SmolStr, u32>,
    /// The oldest node that has GPUs and does not name their accelerator.
    pub unlabelled: Option<UnlabelledNode>,
    /// Namespaces whose variants are left alone, because they say so.
    pub excluded: BTreeSet<SmolStr>,
}

/// A node that has GPUs and does not name their accelerator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnlabelledNode {
    /// Its name.
    pub name: SmolStr,
    /// When it joined the cluster.
    pub joined: Timestamp,
}

impl ClusterView {
    /// The claims on one Deployment: none, one, or a dispute.
    #[must_use]
    pub fn claims_on(&self, namespace: &str, deployment: &str) -> &[Claim] {
        let wanted = (namespace, deployment);
        let from = self.claims.partition_point(|claim| claim.target() < wanted);
        let claims = self.claims.get(from..).unwrap_or_default();
        let count = claims.partition_point(|claim| claim.target() == wanted);
        claims.get(..count).unwrap_or_default()
    }

    /// The state of one variant that can be decided about.
    #[must_use]
    pub fn variant(&self, id: &VariantId) -> Option<&VariantState> {
        let at = self.variants.binary_search_by(|state| state.variant.id.cmp(id)).ok()?;
        self.variants.get(at)
    }
}

impl Claim {
    /// Namespace and name of the Deployment.
    #[must_use]
    pub fn target(&self) -> (&str, &str) {
        (&self.variant.namespace, &self.deployment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(namespace: &str, deployment: &str, name: &str) -> Claim {
        Claim { deployment: deployment.into(), variant: VariantId::new(namespace, name) }
    }

    #[test]
    fn claims_are_those_of_one_deployment_in_one_namespace() {
        let claims =
            vec![claim("a", "x", "v"), claim("b", "x", "v"), claim("b", "x", "w"), claim("b", "y", "u")];
        let view = ClusterView { claims: claims.clone(), ..ClusterView::default() };
        assert_eq!(view.claims_on("a", "x"), &claims[..1]);
        assert_eq!(view.claims_on("b", "x"), &claims[1..3]);
        assert_eq!(view.claims_on("b", "y"), &claims[3..]);
        for (namespace, deployment) in [("a", "y"), ("b", ""), ("b", "z"), ("", "x"), ("c", "x")] {
            assert!(view.claims_on(namespace, deployment).is_empty(), "{namespace}/{deployment}");
        }
    }
}
