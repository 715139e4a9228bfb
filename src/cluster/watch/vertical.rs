//! What is kept of a VerticalPodAutoscaler: that it restarts the pods of a workload. Pure.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::error_boundary::InvalidObject;
use serde::de::IgnoredAny;
use wva_core::model::TargetRef;

use super::convert::target_ref;
use super::partial_objects::PartialObject;
use crate::cluster::crd::ScaleTargetRef;
use crate::lint::{VerticalPodAutoscaler, VerticalSpec, updates_pods};

/// A VerticalPodAutoscaler as it is read.
pub(super) type PartialVertical = PartialObject<VerticalSpec, IgnoredAny>;

/// A VerticalPodAutoscaler that restarts pods.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WatchedVertical {
    pub(super) target: TargetRef,
    /// With its name and spec only.
    pub(super) object: Arc<VerticalPodAutoscaler>,
}

/// What is kept of one; `None` for one that restarts nothing.
pub(super) fn watched_vertical(object: Result<PartialVertical, InvalidObject>) -> Option<WatchedVertical> {
    let PartialVertical { metadata, spec, .. } = object.ok()?;
    let reference = spec.target_ref.clone()?;
    let target = target_ref(&ScaleTargetRef {
        api_version: reference.api_version,
        kind: reference.kind.unwrap_or_default(),
        name: reference.name,
    });
    let metadata = ObjectMeta { namespace: metadata.namespace, name: metadata.name, ..ObjectMeta::default() };
    let object = VerticalPodAutoscaler { metadata, spec };
    updates_pods(&object).then_some(())?;
    Some(WatchedVertical { target: target.ok()?, object: Arc::new(object) })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_restarts_no_pods_is_not_kept() {
        let kept = |spec: Value| {
            let object = json!({ "metadata": { "namespace": "llm", "name": "v", "labels": { "a": "b" } }, "spec": spec });
            watched_vertical(Ok(serde_json::from_value(object).unwrap()))
        };
        let target = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": "chat" });
        let by_default = kept(json!({ "targetRef": target })).unwrap();
        assert_eq!(by_default.target, TargetRef::deployment("chat"));
        assert_eq!(by_default.object.metadata.labels, None);
        assert_eq!(kept(json!({ "targetRef": target, "updatePolicy": { "updateMode": "Off" } })), None);
        assert_eq!(kept(json!({})), None);
    }
}
