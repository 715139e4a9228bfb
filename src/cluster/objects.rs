//! Leaf types of watched objects that `watch` fills and `writers` read, and the labels and annotations both know.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use smol_str::SmolStr;
use tokio::sync::watch;
use wva_core::model::{InvalidVariant, TargetRef, Variant, VariantId};

use super::crd::VariantAutoscalingStatus;
use crate::config::policy_config::VariantSettings;

/// What identifies an object of one kind. The namespace of a cluster object is empty.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectKey {
    pub(crate) namespace: Box<str>,
    pub(crate) name: Box<str>,
}

impl ObjectKey {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    pub(crate) fn of(metadata: &ObjectMeta) -> Self {
        let text = |text: &Option<String>| text.as_deref().unwrap_or_default().into();
        Self { namespace: text(&metadata.namespace), name: text(&metadata.name) }
    }
}

/// Which ScaledObjects KEDA has called for; `None` before that is known.
#[derive(Debug, Clone)]
pub struct CalledObjects(pub(crate) watch::Receiver<Option<Arc<BTreeSet<ObjectKey>>>>);

/// Node labels that name an accelerator, in the order they are looked for.
pub(crate) const ACCELERATOR_KEYS: [&str; 5] = [
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "amd.com/gpu.product",
    "intel.com/gpu.product",
    "cloud.google.com/gke-accelerator",
];

/// Label of a ConfigMap that stores state of this program: which kind of state it is.
pub(crate) const STATE_LABEL: &str = "wva.llmd.ai/state";

/// Annotation of a pod that a ReplicaSet reads when it shrinks: the lowest cost goes first. A pod without it has cost 0.
pub(crate) const DELETION_COST_ANNOTATION: &str = "controller.kubernetes.io/pod-deletion-cost";

/// The kinds of objects that make a variant. Of two objects of one age, that of the first kind takes precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum VariantKind {
    /// Always.
    #[default]
    VariantAutoscaling,
    /// With annotations.
    HorizontalPodAutoscaler,
    /// Of KEDA, with annotations.
    ScaledObject,
}

impl VariantKind {
    /// True where annotations make it a variant. It has no status of ours.
    pub(crate) const fn is_annotated(self) -> bool {
        !matches!(self, Self::VariantAutoscaling)
    }

    /// As a reference to an object has it.
    pub(crate) const fn api_version(self) -> &'static str {
        match self {
            Self::VariantAutoscaling => "llmd.ai/v1alpha1",
            Self::HorizontalPodAutoscaler => "autoscaling/v2",
            Self::ScaledObject => "keda.sh/v1alpha1",
        }
    }

    /// Its name.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::VariantAutoscaling => "VariantAutoscaling",
            Self::HorizontalPodAutoscaler => "HorizontalPodAutoscaler",
            Self::ScaledObject => "ScaledObject",
        }
    }
}

impl fmt::Display for VariantKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What is kept of an object that makes a variant.
#[derive(Debug, Clone, PartialEq)]
pub struct VariantObject {
    /// Its kind.
    pub kind: VariantKind,
    /// A ScaledObject that is a variant because KEDA calls for it, and not by annotations.
    pub is_called: bool,
    /// Its uid: a status is never written to a later object of the same name.
    pub uid: String,
    /// When it was created: of several variants with one scale target, the oldest decides.
    pub created: Timestamp,
    /// Its generation.
    pub generation: i64,
    /// What its owner should know once.
    pub(crate) notices: Vec<Notice>,
    /// What its spec sets for its model, if anything.
    pub settings: Option<Arc<VariantSettings>>,
    /// The model that it names, also if its spec is invalid otherwise; `None` if that cannot be read, or it names none.
    pub model: Option<SmolStr>,
    /// Its scale target, also if it is invalid otherwise; `None` if it cannot be read.
    pub target: Option<TargetRef>,
    /// The variant, or why its spec is invalid.
    pub variant: Result<Variant, InvalidVariant>,
    /// Its status as stored; `None` when the object cannot be parsed.
    pub status: Option<VariantAutoscalingStatus>,
}

/// An object whose annotations make no variant, because another one has its name or its scale target.
#[derive(Debug, Clone, PartialEq)]
pub struct Bystander {
    /// Its namespace and name.
    pub id: VariantId,
    /// The object.
    pub object: Arc<VariantObject>,
    /// Which one, and what follows from that.
    pub(crate) notice: Notice,
}

/// An event about an object that is seen for the first time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Notice {
    /// Its reason, in CamelCase.
    pub(crate) reason: &'static str,
    /// Its text.
    pub(crate) note: String,
}

/// A pod of a variant, with its deletion cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodWithCost {
    /// Its name.
    pub name: SmolStr,
    /// Its deletion cost as stored.
    pub stored: StoredCost,
}

/// What is kept of a pod so that its deletion cost can be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredCost {
    /// Its uid: nothing is written to a later pod of the same name, and nothing is created.
    pub uid: Arc<str>,
    /// The deletion cost it has, if any.
    pub cost: Option<i32>,
}
