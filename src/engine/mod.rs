//! One evaluation: collect, assemble, observe, decide, check, publish. Knows no Kubernetes and no HTTP: it owns the
//! traits of what it needs ([`MetricSource`], [`Cluster`], [`Clock`]) and the [`Board`] that every output reads.

mod board;
mod leadership;
mod ports;

pub use board::{Board, Origin, Published};
pub use leadership::{Holder, Leadership};
pub use ports::{
    Clock, Cluster, ClusterView, Collected, Endpoint, Gap, MetricSource, Scope, Series, SourceError,
    SystemClock,
};
