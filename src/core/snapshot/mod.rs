//! Everything one decision may look at. A snapshot is complete: the same one always gives the same outcome.

mod confirmed;
mod engine_parameters;
mod signal;
mod signals;

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::model::{GroupId, InvalidVariant, Variant};
use crate::name_map::NameMap;
use crate::units::Replicas;

pub use self::confirmed::{highest_confirmed, newest_confirmed};
pub use self::engine_parameters::{Container, Engine, EngineParameters};
pub use self::signal::{Signal, SignalSet};
pub use self::signals::{Rows, Sample, Series, Signals, median_gap};

/// Variants, their replicas and the signals of these, at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The moment of the decision.
    pub now: Timestamp,
    /// The variants by model group.
    pub groups: BTreeMap<GroupId, ModelGroup>,
    /// Objects that cannot be decided about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub invalid: Vec<InvalidVariant>,
    /// GPUs that the nodes have, by the accelerator's name; `None` when nobody has looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inventory: Option<BTreeMap<SmolStr, u32>>,
    /// Of these, the ones that workloads use which are not decided about here.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub elsewhere: BTreeMap<SmolStr, u32>,
    /// A node that takes pods and has GPUs, and does not name their accelerator: what is in the inventory is not all there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlabelled: Option<SmolStr>,
}

/// The variants of one model in one namespace, and what was seen of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelGroup {
    /// How the metric source answered for this group.
    pub source: SourceHealth,
    /// Its variants, by name; in any other order each decision has to sort a copy.
    pub variants: Vec<VariantState>,
    /// What the scheduler in front of the model (the EPP) says of requests not yet given to a replica.
    #[serde(default, skip_serializing_if = "Signals::is_empty")]
    pub scheduler: Signals,
}

impl ModelGroup {
    /// Puts variants and pods in the order of their names.
    pub fn sort(&mut self) {
        self.variants.sort_by(|one, other| one.variant.id.cmp(&other.variant.id));
        for one in &mut self.variants {
            one.replicas.sort_by(|one, other| one.pod.cmp(&other.pod));
        }
    }
}

/// How the metric source answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum SourceHealth {
    /// A whole answer.
    Complete,
    /// An answer with warnings, or a cut one: what is missing cannot be told from what is zero.
    Partial {
        /// The warnings.
        warnings: Vec<String>,
    },
    /// No answer.
    Down {
        /// Which source, and what went wrong, for people.
        cause: String,
    },
}

/// A variant, its scale target and its replicas.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VariantState {
    /// The variant.
    pub variant: Variant,
    /// The scale target's counts; `None` when it does not exist.
    pub scale: Option<Scale>,
    /// One entry a pod that exists now.
    pub replicas: Vec<Replica>,
    /// The last number in the object's status, to hold on to when no better memory exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_status: Option<Replicas>,
    /// What its pod template says.
    #[serde(default, skip_serializing_if = "Template::is_default")]
    pub template: Template,
}

/// What the pod template of a scale target says of one replica.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Template {
    /// GPUs, at least 1.
    pub gpus: u32,
    /// The model server's settings, when its arguments could be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineParameters>,
}

impl Template {
    /// Requests that an engine runs at once at most, when its arguments say it.
    #[must_use]
    pub fn sequences(&self) -> Option<u32> {
        self.engine.as_ref()?.sequences()
    }
}

impl Default for Template {
    fn default() -> Self {
        Self { gpus: 1, engine: None }
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
    /// `status.readyReplicas`, without those that sleep.
    pub ready: Replicas,
}

impl Scale {
    /// Replicas that a step starts from. A rolling update runs surge pods beside the wanted ones: counted as a base,
    /// every rollout would add one.
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
pub struct Replica {
    /// The pod's name.
    pub pod: SmolStr,
    /// Where it is in its life.
    pub phase: Phase,
    /// When the pod was created.
    pub created: Timestamp,
    /// When it became ready, if it is. Of a pod that is not and once was, a moment at which it was still known as such: it
    /// may come back, and one that never was ready may not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_since: Option<Timestamp>,
    /// Signals by engine: one serving process each (several with data parallelism).
    #[serde(default, skip_serializing_if = "NameMap::is_empty")]
    pub engines: NameMap<Signals>,
}

impl Replica {
    /// When it became ready, or was created if it has not been ready yet.
    #[must_use]
    pub fn ready_or_created(&self) -> Timestamp {
        self.ready_since.unwrap_or(self.created)
    }
}

/// Where a pod is in its life.
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
    /// Being deleted: gets no new requests.
    Terminating,
    /// Ready, and all its engines sleep: it serves nobody until one is woken. No scale counts it as ready here.
    Asleep,
}
