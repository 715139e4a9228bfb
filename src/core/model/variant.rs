//! A variant and the names it goes by.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::units::{Cost, Replicas};

/// Namespace and name of a `VariantAutoscaling`. Written `namespace/name`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VariantId {
    /// Its namespace.
    pub namespace: SmolStr,
    /// Its name: `variant_name` in every metric.
    pub name: SmolStr,
}

/// The variants of one model in one namespace: the unit of a decision. Written `namespace/modelID`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GroupId {
    /// The namespace.
    pub namespace: SmolStr,
    /// `spec.modelID`; may contain slashes.
    pub model: SmolStr,
}

/// A text that is not `namespace/rest`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not of the form namespace/name")]
pub struct NotAnId(String);

macro_rules! slashed {
    ($name:ident, $rest:ident) => {
        impl $name {
            /// From its two parts.
            pub fn new(namespace: impl Into<SmolStr>, $rest: impl Into<SmolStr>) -> Self {
                Self { namespace: namespace.into(), $rest: $rest.into() }
            }
        }

        impl FromStr for $name {
            type Err = NotAnId;
            fn from_str(text: &str) -> Result<Self, NotAnId> {
                // A namespace never contains a slash, so the first one separates.
                text.split_once('/').map(|(ns, rest)| Self::new(ns, rest)).ok_or_else(|| NotAnId(text.into()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = NotAnId;
            fn try_from(text: String) -> Result<Self, NotAnId> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}/{}", self.namespace, self.$rest)
            }
        }
    };
}

slashed!(VariantId, name);
slashed!(GroupId, model);

/// The object that is scaled, in the variant's namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TargetRef {
    /// The API group of its kind; empty for the core group. Its version does not matter: all versions are the same object.
    #[serde(default = "apps", skip_serializing_if = "is_apps")]
    pub group: SmolStr,
    /// Its kind, e.g. `Deployment`.
    pub kind: SmolStr,
    /// Its name.
    pub name: SmolStr,
}

impl TargetRef {
    /// The API group of Deployments and StatefulSets.
    pub const APPS: &'static str = "apps";
    /// The API group of LeaderWorkerSets.
    pub const LEADER_WORKER_SETS: &'static str = "leaderworkerset.x-k8s.io";

    /// The Deployment `name`.
    #[must_use]
    pub fn deployment(name: impl Into<SmolStr>) -> Self {
        Self { group: apps(), kind: SmolStr::new_static("Deployment"), name: name.into() }
    }

    /// True for a Deployment.
    #[must_use]
    pub fn is_deployment(&self) -> bool {
        is_apps(&self.group) && self.kind == "Deployment"
    }
}

/// The group where none is recorded: that of the only kind there was.
const fn apps() -> SmolStr {
    SmolStr::new_static(TargetRef::APPS)
}

fn is_apps(group: &SmolStr) -> bool {
    group == TargetRef::APPS
}

impl fmt::Display for TargetRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// Which part of a request a replica serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Prompt and generation.
    #[default]
    Both,
    /// Generation only.
    Decode,
    /// Prompt only.
    Prefill,
}

impl Role {
    /// All of them, in their order.
    pub const ALL: [Self; 3] = [Self::Both, Self::Decode, Self::Prefill];
}

/// The minimum and maximum of a variant's replicas. If the minimum is above the maximum, the minimum counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// Never fewer than this; zero allows scaling to zero.
    pub min: Replicas,
    /// Never more than this; `None` is [`Replicas::MAX`].
    pub max: Option<Replicas>,
}

impl Bounds {
    /// `number`, moved into the bounds.
    #[must_use]
    pub fn clamp(self, number: Replicas) -> Replicas {
        number.min(self.max.unwrap_or(Replicas::MAX)).max(self.min)
    }
}

impl Default for Bounds {
    /// The defaults of the custom resource: at least 1, no maximum.
    fn default() -> Self {
        Self { min: Replicas::ONE, max: None }
    }
}

/// One `VariantAutoscaling`: a way of serving a model that is scaled on its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Variant {
    /// Its namespace and name.
    pub id: VariantId,
    /// `spec.modelID`: the `model_name` of its serving metrics. Empty where the object names none, which no variant in a group
    /// of a snapshot does.
    pub model: SmolStr,
    /// What is scaled.
    pub target: TargetRef,
    /// What one replica costs.
    pub cost: Cost,
    /// Its bounds.
    pub bounds: Bounds,
    /// The accelerator's name, if known. A number is published without it too.
    pub accelerator: Option<SmolStr>,
    /// Its role.
    pub role: Role,
    /// What starts it when a request arrives for its sleeping model, if something else does: the text of its object, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub woken_by: Option<SmolStr>,
}

impl Variant {
    /// The default of `spec.variantCost`.
    pub const DEFAULT_COST: f64 = 10.0;
    /// Longest name of a model, in characters: names on the hub have at most 96, paths and adapters are longer.
    pub const MAX_MODEL_CHARS: usize = 256;

    /// A variant of `model` that costs nothing, within the default bounds, with every role; its accelerator is not known.
    #[must_use]
    pub fn new(id: VariantId, model: impl Into<SmolStr>, target: TargetRef) -> Self {
        let (cost, bounds, role) = (Cost::ZERO, Bounds::default(), Role::default());
        Self { id, model: model.into(), target, cost, bounds, accelerator: None, role, woken_by: None }
    }

    /// Whether its object names its model.
    #[must_use]
    pub fn names_model(&self) -> bool {
        !self.model.is_empty()
    }

    /// The group it is decided in.
    #[must_use]
    pub fn group(&self) -> GroupId {
        GroupId::new(self.id.namespace.clone(), self.model.clone())
    }
}

/// A `VariantAutoscaling` that cannot be decided about, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InvalidVariant {
    /// Which one.
    pub id: VariantId,
    /// The field, the value and what is allowed.
    pub problem: String,
    /// True if nothing is wrong with the object: it is only not known which model its pods serve.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_model_unknown: bool,
}

impl InvalidVariant {
    /// An object that has to be corrected.
    #[must_use]
    pub const fn new(id: VariantId, problem: String) -> Self {
        Self { id, problem, is_model_unknown: false }
    }
}
