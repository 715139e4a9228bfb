//! Everything that a decision may read. A snapshot is complete: the same one always gives the same outcome.

mod confirmed;
mod engine_parameters;
mod signal;
mod signals;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::model::{GroupId, InvalidVariant, Variant, VariantId};
use crate::name_map::NameMap;
use crate::units::Replicas;

pub(crate) use self::confirmed::{highest_confirmed, newest_confirmed};
pub use self::engine_parameters::{Container, Engine, EngineParameters};
pub use self::signal::{Signal, SignalSet};
pub use self::signals::{Rows, Sample, Series, Signals, median_gap};

/// Variants, their replicas and the signals of these, at one time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Time of the decision.
    pub now: Timestamp,
    /// The variants by model group.
    pub groups: BTreeMap<GroupId, ModelGroup>,
    /// Objects that cannot be used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub invalid: Vec<InvalidVariant>,
    /// Of these, the variants whose replicas are known, sorted by their ids: nothing is decided about them, and what runs counts in limits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undecided: Vec<VariantState>,
    /// GPUs of the nodes, by accelerator; `None` if the nodes are not watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inventory: Option<BTreeMap<SmolStr, u32>>,
    /// The nodes were readable and have not been for too long: `inventory` is what they had.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_inventory_stale: bool,
    /// Of these, the GPUs used by workloads that are not decided about here.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub elsewhere: BTreeMap<SmolStr, u32>,
    /// A schedulable node with GPUs whose accelerator has no label: the inventory is incomplete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlabelled: Option<SmolStr>,
    /// Limits that objects of the cluster set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<VariantLimit>,
}

impl Snapshot {
    /// A snapshot of `groups`, in which nothing is invalid, no inventory is known and no object of the cluster sets a limit.
    #[must_use]
    pub fn new(now: Timestamp, groups: BTreeMap<GroupId, ModelGroup>) -> Self {
        Self {
            now,
            groups,
            invalid: Vec::new(),
            undecided: Vec::new(),
            inventory: None,
            is_inventory_stale: false,
            elsewhere: BTreeMap::new(),
            unlabelled: None,
            limits: Vec::new(),
        }
    }
}

/// A limit on the GPUs of some variants together that an object of the cluster sets: a ResourceQuota, say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VariantLimit {
    /// The kind of limit, for people.
    pub limit: SmolStr,
    /// Which of its kind, for people. Unique in its kind.
    pub key: SmolStr,
    /// All GPUs of it.
    pub gpus: u32,
    /// Of these, the GPUs used by workloads other than `variants`.
    #[serde(default)]
    pub elsewhere: u32,
    /// The variants that it limits.
    pub variants: BTreeSet<VariantId>,
}

impl VariantLimit {
    /// The GPUs that a ResourceQuota leaves a namespace.
    pub const RESOURCE_QUOTA: &str = "ResourceQuota";
    /// The GPUs of the nodes that pods of the variants may be placed on: taints, selectors and affinity keep them off others.
    pub const SUITABLE_NODES: &str = "suitable nodes";
    /// A queue of Kueue that admits no workload.
    pub const CLOSED_QUEUE: &str = "closed LocalQueue";
}

/// The variants of one model in one namespace, and what is measured of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelGroup {
    /// How the metric source answered for this group.
    pub source: SourceHealth,
    /// Its variants, by name; otherwise each decision has to sort a copy.
    pub variants: Vec<VariantState>,
    /// Signals of the scheduler in front of the model (the EPP): requests not yet dispatched to a replica.
    #[serde(default, skip_serializing_if = "Signals::is_empty")]
    pub scheduler: Signals,
}

impl ModelGroup {
    /// Something else starts one of its variants when a request arrives, as an object says.
    #[must_use]
    pub fn is_woken_otherwise(&self) -> bool {
        self.variants.iter().any(|state| state.variant.woken_by.is_some())
    }

    /// Puts variants and pods in the order of their names.
    pub fn sort(&mut self) {
        self.variants.sort_by(|left, right| left.variant.id.cmp(&right.variant.id));
        for state in &mut self.variants {
            state.pods.sort_by(|left, right| left.name.cmp(&right.name));
        }
    }
}

/// How the metric source answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum SourceHealth {
    /// A complete answer.
    Complete,
    /// An answer with warnings, or a truncated one: missing cannot be told from zero.
    Partial {
        /// The warnings.
        warnings: Vec<String>,
    },
    /// No answer.
    Down {
        /// Which source failed, and how.
        cause: String,
    },
}

/// A variant, its scale target and its replicas.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VariantState {
    /// The variant.
    pub variant: Variant,
    /// Counts of the scale target; `None` if it does not exist, or if that is not known.
    pub scale: Option<Scale>,
    /// Why it is not known whether the scale target exists; `None` if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_problem: Option<SmolStr>,
    /// One entry for each existing pod.
    #[serde(rename = "replicas")]
    pub pods: Vec<Pod>,
    /// The last number in the object's status, held if nothing better is remembered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_status: Option<Replicas>,
    /// What the scheduler says about a pod of it that it places on no node, in its own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unschedulable: Option<SmolStr>,
    /// Its pod template.
    #[serde(default, skip_serializing_if = "Template::is_default")]
    pub template: Template,
}

impl VariantState {
    /// The state of a variant without a scale target, of which nothing is known but its pods.
    #[must_use]
    pub fn new(variant: Variant, pods: Vec<Pod>) -> Self {
        Self {
            variant,
            scale: None,
            target_problem: None,
            pods,
            last_status: None,
            unschedulable: None,
            template: Template::default(),
        }
    }
}

/// What the pod template of a scale target says about one replica.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Template {
    /// GPUs, at least 1; `None` if their number is not known. A snapshot without this field means 1.
    pub gpus: Option<u32>,
    /// Parameters of the model server, if its arguments could be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineParameters>,
}

impl Template {
    /// The most requests that an engine runs at once, if its arguments say so.
    #[must_use]
    pub fn sequences(&self) -> Option<u32> {
        self.engine.as_ref()?.sequences()
    }
}

impl Default for Template {
    fn default() -> Self {
        Self { gpus: Some(1), engine: None }
    }
}

impl Template {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The counts of a scale target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scale {
    /// `spec.replicas` (1 when absent).
    pub spec: Replicas,
    /// `status.replicas`, or `spec.replicas` while that is 0.
    pub current: Replicas,
    /// `status.readyReplicas`, without sleeping pods.
    pub ready: Replicas,
}

impl Scale {
    /// Replicas that a step starts from. A rolling update runs surge pods beside the desired ones; if they counted, every rollout would
    /// add a replica.
    #[must_use]
    pub fn base(self) -> Replicas {
        self.current.min(self.spec)
    }

    /// Replicas of the base that are not ready.
    #[must_use]
    pub fn pending(self) -> Replicas {
        self.base().saturating_sub(self.ready)
    }
}

/// One serving pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pod {
    /// Its name.
    #[serde(rename = "pod")]
    pub name: SmolStr,
    /// Its phase.
    pub phase: Phase,
    /// When the pod was created.
    pub created: Timestamp,
    /// When it became ready, if it is. For a pod that is no longer ready, a time at which it still was: it may come back, which a pod that
    /// was never ready may not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_since: Option<Timestamp>,
    /// Signals by engine (several with data parallelism).
    #[serde(default, skip_serializing_if = "NameMap::is_empty")]
    pub engines: NameMap<Signals>,
}

impl Pod {
    /// When it became ready, or was created if it has not been ready yet.
    pub(crate) fn ready_or_created(&self) -> Timestamp {
        self.ready_since.unwrap_or(self.created)
    }
}

/// Phase of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// Waiting for a node.
    Pending,
    /// No node has room for it.
    Unschedulable,
    /// On a node, not ready yet.
    Starting,
    /// Serving.
    Ready,
    /// Being deleted: it gets no new requests.
    Terminating,
    /// Ready, but all its engines sleep: it serves nothing until one is woken. `Scale::ready` does not count it.
    Asleep,
}

impl Phase {
    /// It does not serve yet and may become ready by itself.
    pub(crate) const fn is_starting(self) -> bool {
        matches!(self, Self::Pending | Self::Starting)
    }

    /// It was ordered and does not serve yet: it starts, or no node has room for it.
    pub(crate) const fn is_awaited(self) -> bool {
        self.is_starting() || matches!(self, Self::Unschedulable)
    }
}
