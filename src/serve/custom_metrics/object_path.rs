//! The path of a metric of an object: which version, which kind of object.

use serde::Deserialize;

/// The name that stands for every object.
pub(crate) const ALL: &str = "*";

/// What is between the group and the query: `{version}/namespaces/{namespace}/{resource}/{name}/{metric}`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct ObjectPath {
    pub(crate) version: String,
    pub(crate) namespace: String,
    /// The plural name of the kind, with `.` and its group.
    pub(crate) resource: String,
    /// The object's name; [`ALL`] for all that the selector matches.
    pub(crate) name: String,
    pub(crate) metric: String,
}

/// A version of the API. They differ in how an item is written, in nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    V1Beta1,
    V1Beta2,
}

impl Version {
    /// The version of that name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        [Self::V1Beta1, Self::V1Beta2].into_iter().find(|version| version.as_str() == name)
    }

    /// Its name.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::V1Beta1 => "v1beta1",
            Self::V1Beta2 => "v1beta2",
        }
    }

    /// The `apiVersion` of its lists.
    pub(crate) const fn api_version(self) -> &'static str {
        match self {
            Self::V1Beta1 => "custom.metrics.k8s.io/v1beta1",
            Self::V1Beta2 => "custom.metrics.k8s.io/v1beta2",
        }
    }
}

/// A kind of object that has these metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resource {
    /// `variantautoscalings.llmd.ai`
    VariantAutoscaling,
    /// `deployments.apps`: the scale target of a variant.
    Deployment,
}

impl Resource {
    /// What is served, for people.
    pub(crate) const SERVED: &'static str = "variantautoscalings.llmd.ai and deployments.apps";

    /// The kind by its resource with its group. Without a group it means the one that it is served in, as some clients
    /// write it.
    pub(crate) fn named(resource: &str) -> Option<Self> {
        match resource {
            "variantautoscalings.llmd.ai" | "variantautoscalings" => Some(Self::VariantAutoscaling),
            "deployments.apps" | "deployments" => Some(Self::Deployment),
            _ => None,
        }
    }

    pub(crate) const fn kind(self) -> &'static str {
        match self {
            Self::VariantAutoscaling => "VariantAutoscaling",
            Self::Deployment => "Deployment",
        }
    }

    pub(crate) const fn api_version(self) -> &'static str {
        match self {
            Self::VariantAutoscaling => "llmd.ai/v1alpha1",
            Self::Deployment => "apps/v1",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_is_known_with_its_group_or_with_none_and_with_no_other() {
        for (name, want) in [
            ("variantautoscalings.llmd.ai", Some(Resource::VariantAutoscaling)),
            ("variantautoscalings", Some(Resource::VariantAutoscaling)),
            ("deployments.apps", Some(Resource::Deployment)),
            ("deployments", Some(Resource::Deployment)),
            ("deployments.extensions", None),
            ("deployment.apps", None),
            ("Deployments.apps", None),
            ("pods", None),
            ("", None),
        ] {
            assert_eq!(Resource::named(name), want, "{name:?}");
        }
    }
}
