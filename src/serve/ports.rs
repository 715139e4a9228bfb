//! What the server needs from other rooms: published results to answer from, and somebody to tell about reads that an
//! autoscaler would misread.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::BoxFuture;
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

/// External metrics beside those of variants, which rules make of series of Prometheus.
pub trait RuleMetrics: Send + Sync + 'static {
    /// The names of those that there are now, sorted.
    fn names(&self) -> Arc<[SmolStr]>;

    /// Why some may be missing; `None` if the names are complete.
    fn unlisted(&self) -> Option<String>;

    /// The values of a metric in a namespace; `None` if there is no such metric.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of Kubernetes")]
pub enum LabelOperator {
    Equals,
    NotEquals,
    In,
    NotIn,
    Exists,
    DoesNotExist,
}
