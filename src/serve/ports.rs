//! What the server needs from other rooms: published results to answer from, and somebody to tell about reads that an
//! autoscaler would misread.

use std::sync::Arc;

use futures::future::BoxFuture;
use jiff::Timestamp;
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
