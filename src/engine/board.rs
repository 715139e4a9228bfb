//! The immutable result of one evaluation, and the channel every output reads it from.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;
use wva_core::decision::{Reason, Verdict};
use wva_core::pod_deletion_order::DeletionOrder;
use wva_core::usage::Usage;
use wva_core::{Decision, Policy, Report, VariantId};

use super::leadership::Term;
use super::ports::{ClusterView, Revision};

/// Where a published result comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Nothing has been published yet.
    Empty,
    /// Computed by this instance.
    Computed,
    /// Read from the state objects that the holder wrote.
    Restored,
}

/// The result of one evaluation: what every output renders.
#[derive(Debug, Clone)]
pub struct Published {
    /// Counts evaluations of this process, from 1.
    pub sequence: u64,
    /// When the snapshot was taken.
    pub at: Timestamp,
    /// How long the evaluation took.
    pub took: Duration,
    /// Where it comes from.
    pub origin: Origin,
    /// The term in which it was computed; `None` when that is not known.
    pub term: Option<Term>,
    /// One decision a variant.
    pub decisions: BTreeMap<VariantId, Decision>,
    /// Why.
    pub report: Report,
    /// Which pods are deleted first where replicas are removed; empty unless that is needed.
    pub deletion_orders: BTreeMap<VariantId, DeletionOrder>,
    /// What the pods of each variant use, for metrics; empty unless it was computed.
    pub usage: BTreeMap<VariantId, Usage>,
    /// The objects that were decided about.
    pub revisions: Arc<BTreeMap<VariantId, Revision>>,
    /// The policy by which it was decided.
    pub policy: Arc<Policy>,
}

impl Published {
    /// Before the first evaluation.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            sequence: 0,
            at: Timestamp::UNIX_EPOCH,
            took: Duration::ZERO,
            origin: Origin::Empty,
            term: None,
            decisions: BTreeMap::new(),
            report: Report::default(),
            deletion_orders: BTreeMap::new(),
            usage: BTreeMap::new(),
            revisions: Arc::default(),
            policy: Arc::default(),
        }
    }

    /// The decisions by the names that series have: those of variants, and those of annotated objects that another object
    /// decides for. No name occurs twice.
    pub fn series<'a>(
        &'a self,
        view: &'a ClusterView,
    ) -> impl Iterator<Item = (&'a VariantId, &'a Decision)> {
        let followers = view.followers.iter().filter(|name| !self.decisions.contains_key(*name));
        let decided = followers.filter_map(|name| Some((name, self.decisions.get(&view.aliased(name)?)?)));
        self.decisions.iter().chain(decided)
    }
}

/// The newest published result, readable without a lock by any number of outputs.
#[derive(Debug, Clone)]
pub struct Board {
    newest: watch::Sender<Arc<Published>>,
    /// The variants that results have woken since somebody asked: a result may be replaced before it is read.
    woken: Arc<Mutex<BTreeSet<VariantId>>>,
}

impl Board {
    /// An empty board.
    #[must_use]
    pub fn new() -> Self {
        Self { newest: watch::Sender::new(Arc::new(Published::empty())), woken: Arc::default() }
    }

    /// Replaces the newest result.
    pub fn publish(&self, published: Published) -> Arc<Published> {
        let is_woken = |decision: &Decision| matches!(&decision.verdict, Verdict::Target(target) if target.reason == Reason::ScaleFromZero);
        let woken = published.decisions.iter().filter(|(_, decision)| is_woken(decision));
        let mut own = self.woken.lock();
        own.retain(|id| published.decisions.contains_key(id));
        own.extend(woken.map(|(id, _)| id.clone()));
        drop(own);
        let published = Arc::new(published);
        self.newest.send_replace(published.clone());
        published
    }

    /// The newest result.
    #[must_use]
    pub fn newest(&self) -> Arc<Published> {
        self.newest.borrow().clone()
    }

    /// The variants that were woken since this was asked last: for the only one who asks.
    pub(crate) fn take_woken(&self) -> BTreeSet<VariantId> {
        std::mem::take(&mut self.woken.lock())
    }

    /// Wakes at every new result.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<Published>> {
        self.newest.subscribe()
    }
}

impl Default for Board {
    fn default() -> Self {
        Self::new()
    }
}
