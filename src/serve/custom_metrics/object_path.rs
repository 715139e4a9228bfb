//! The path of a metric of an object: its API version and the kind of object.

use serde::Deserialize;
use wva_core::model::TargetRef;

use crate::serve::encoding::Status;
use crate::serve::paths::{DEPLOYMENTS, LEADER_WORKER_SETS, STATEFUL_SETS, VARIANTS};

/// The name that stands for all objects.
const ALL_OBJECTS: &str = "*";

/// The path parameters of a read: `{version}/namespaces/{namespace}/{resource}/{name}/{metric}`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct ObjectPath {
    pub(crate) version: String,
    pub(crate) namespace: String,
    /// The plural name of the kind, with a dot and its group.
    pub(crate) resource: String,
    /// The object's name; `*` for all objects that the selector matches.
    pub(crate) name: String,
    pub(crate) metric: String,
}

impl ObjectPath {
    /// True for a read of all objects that the selector matches.
    pub(super) fn is_all(&self) -> bool {
        self.name == ALL_OBJECTS
    }

    /// The API version; 404 for an unknown one.
    pub(super) fn version(&self) -> Result<Version, Status> {
        Version::find(&self.version).ok_or_else(Status::no_such_resource)
    }
}

/// The start of every 404 for a metric, which all servers of this group have in common.
pub(super) fn not_found_message(metric: &str, resource: &str, name: &str) -> String {
    format!("the server could not find the metric {metric} for {resource} {name}")
}

/// A version of the API. The versions differ only in the format of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    V1Beta1,
    V1Beta2,
}

impl Version {
    pub(crate) fn find(name: &str) -> Option<Self> {
        [Self::V1Beta1, Self::V1Beta2].into_iter().find(|version| version.as_str() == name)
    }

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::V1Beta1 => "v1beta1",
            Self::V1Beta2 => "v1beta2",
        }
    }

    /// The `apiVersion` of a list.
    pub(crate) const fn api_version(self) -> &'static str {
        match self {
            Self::V1Beta1 => "custom.metrics.k8s.io/v1beta1",
            Self::V1Beta2 => "custom.metrics.k8s.io/v1beta2",
        }
    }
}

/// A kind of object that has metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resource {
    VariantAutoscaling,
    /// The scale target of a variant, as the next ones.
    Deployment,
    StatefulSet,
    LeaderWorkerSet,
}

impl Resource {
    /// The kind of a resource, with its group or, as some clients write it, without one.
    pub(crate) fn find(resource: &str) -> Option<Self> {
        let is_named = |known: &str| {
            known == resource || known.split_once('.').is_some_and(|(name, _)| name == resource)
        };
        let kinds = [
            (VARIANTS, Self::VariantAutoscaling),
            (DEPLOYMENTS, Self::Deployment),
            (STATEFUL_SETS, Self::StatefulSet),
            (LEADER_WORKER_SETS, Self::LeaderWorkerSet),
        ];
        kinds.into_iter().find(|(known, _)| is_named(known)).map(|(_, kind)| kind)
    }

    /// Group and kind, if it is the scale target of a variant.
    pub(crate) const fn target_kind(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::VariantAutoscaling => None,
            Self::Deployment | Self::StatefulSet => Some((TargetRef::APPS, self.kind())),
            Self::LeaderWorkerSet => Some((TargetRef::LEADER_WORKER_SETS, self.kind())),
        }
    }

    /// The object `name`, if it is the scale target of a variant.
    pub(super) fn target(self, name: &str) -> Option<TargetRef> {
        let (group, kind) = self.target_kind()?;
        Some(TargetRef { group: group.into(), kind: kind.into(), name: name.into() })
    }

    pub(crate) const fn kind(self) -> &'static str {
        match self {
            Self::VariantAutoscaling => "VariantAutoscaling",
            Self::Deployment => "Deployment",
            Self::StatefulSet => "StatefulSet",
            Self::LeaderWorkerSet => "LeaderWorkerSet",
        }
    }

    pub(crate) const fn api_version(self) -> &'static str {
        match self {
            Self::VariantAutoscaling => "llmd.ai/v1alpha1",
            Self::Deployment | Self::StatefulSet => "apps/v1",
            Self::LeaderWorkerSet => "leaderworkerset.x-k8s.io/v1",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_is_known_with_its_group_or_without_one() {
        for (name, expected) in [
            ("variantautoscalings.llmd.ai", Some(Resource::VariantAutoscaling)),
            ("variantautoscalings", Some(Resource::VariantAutoscaling)),
            ("deployments.apps", Some(Resource::Deployment)),
            ("deployments", Some(Resource::Deployment)),
            ("statefulsets.apps", Some(Resource::StatefulSet)),
            ("leaderworkersets.leaderworkerset.x-k8s.io", Some(Resource::LeaderWorkerSet)),
            ("leaderworkersets", Some(Resource::LeaderWorkerSet)),
            ("statefulsets.apps.kruise.io", None),
            ("deployments.extensions", None),
            ("deployment.apps", None),
            ("Deployments.apps", None),
            ("pods", None),
            ("", None),
        ] {
            assert_eq!(Resource::find(name), expected, "{name:?}");
        }
    }
}
