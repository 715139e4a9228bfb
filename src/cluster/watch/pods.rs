//! What is kept of a pod: its phase, the address of its metrics, its owner, its GPUs. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use wva_core::snapshot::Phase;

use super::inventory::PodGpus;
use super::metrics_address::MetricsAddress;
use super::partial_objects::{PartialPod, PodCondition, controller_uid};
use crate::cluster::objects::{DELETION_COST_ANNOTATION, StoredCost};

/// The kubelet writes a pod's first status, which says that it is not ready, at most this long after it has accepted the
/// pod. A model server takes longer than that to become ready and fail again.
const FIRST_STATUS_WINDOW: SignedDuration = SignedDuration::from_secs(5);

/// A pod that a ReplicaSet manages, or that uses GPUs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WatchedPod {
    /// Uid of its ReplicaSet.
    pub(crate) replica_set: Option<Box<str>>,
    pub(crate) phase: Phase,
    pub(crate) created: Timestamp,
    pub(crate) ready_since: Option<Timestamp>,
    pub(crate) address: Option<MetricsAddress>,
    pub(crate) gpus: Option<PodGpus>,
    /// `None` unless deletion costs are written.
    pub(crate) deletion_cost: Option<Box<StoredCost>>,
}

impl WatchedPod {
    /// `None` for a pod that has ended, or that neither a ReplicaSet manages nor uses GPUs.
    pub(crate) fn from_pod(pod: &PartialPod) -> Option<Self> {
        if matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed")) {
            return None;
        }
        let replica_set = controller_uid(&pod.metadata, "ReplicaSet");
        let gpus = PodGpus::from_pod(pod);
        if replica_set.is_none() && gpus.is_none() {
            return None;
        }
        Some(Self {
            replica_set,
            phase: phase(pod),
            created: pod.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            ready_since: ready_since(pod),
            address: MetricsAddress::of(pod),
            gpus,
            deletion_cost: None,
        })
    }

    /// Keeps what it takes to write the deletion cost too. A cost that is no number counts as none, as it does for a
    /// ReplicaSet.
    pub(crate) fn with_deletion_cost(self, metadata: &ObjectMeta) -> Self {
        let annotation =
            metadata.annotations.as_ref().and_then(|annotations| annotations.get(DELETION_COST_ANNOTATION));
        let cost = annotation.and_then(|text| text.parse().ok());
        let uid = metadata.uid.as_deref().unwrap_or_default().into();
        Self { deletion_cost: Some(Box::new(StoredCost { uid, cost })), ..self }
    }
}

fn condition<'a>(pod: &'a PartialPod, type_: &str) -> Option<&'a PodCondition> {
    pod.status.conditions.iter().find(|condition| condition.type_ == type_)
}

/// Since when a pod is ready; of a pod that was ready and is not, since when it is not. `None` if it never was ready: then
/// its condition has not changed since the kubelet accepted it.
fn ready_since(pod: &PartialPod) -> Option<Timestamp> {
    let ready = condition(pod, "Ready")?;
    let changed = ready.last_transition_time.as_ref()?.0;
    let accepted = pod.status.start_time.as_ref().map(|time| time.0);
    let has_failed = |accepted: Timestamp| changed.duration_since(accepted) > FIRST_STATUS_WINDOW;
    (ready.status == "True" || accepted.is_some_and(has_failed)).then_some(changed)
}

fn phase(pod: &PartialPod) -> Phase {
    let is_unschedulable = |condition: &PodCondition| {
        condition.status == "False" && condition.reason.as_deref() == Some("Unschedulable")
    };
    if pod.metadata.deletion_timestamp.is_some() {
        Phase::Terminating
    } else if condition(pod, "Ready").is_some_and(|ready| ready.status == "True") {
        Phase::Ready
    } else if pod.spec.node_name.is_some() {
        Phase::Starting
    } else if condition(pod, "PodScheduled").is_some_and(is_unschedulable) {
        Phase::Unschedulable
    } else {
        Phase::Pending
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(extra: Value) -> PartialPod {
        let owners = json!([{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "rs-1", "controller": true
        }]);
        let mut pod = json!({
            "metadata": { "name": "p", "ownerReferences": owners, "creationTimestamp": "2026-01-01T00:00:00Z" }
        });
        for (pointer, value) in extra.as_object().unwrap() {
            let (section, field) = pointer.split_once('.').unwrap();
            pod[section][field] = value.clone();
        }
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn a_pod_that_was_ready_differs_from_one_that_never_was() {
        let since = |status: &str, changed: &str, accepted: Option<&str>| {
            let ready = json!([{ "type": "Ready", "status": status, "lastTransitionTime": changed }]);
            let of =
                json!({ "spec.nodeName": "n", "status.conditions": ready, "status.startTime": accepted });
            WatchedPod::from_pod(&pod(of)).unwrap().ready_since.map(|at| at.to_string())
        };
        let accepted = Some("2026-01-01T00:00:10Z");
        let at = |text: &str| Some(text.to_owned());
        assert_eq!(since("True", "2026-01-01T00:01:00Z", None), at("2026-01-01T00:01:00Z"));
        assert_eq!(since("False", "2026-01-01T00:00:12Z", accepted), None, "its first status");
        assert_eq!(
            since("False", "2026-01-01T00:09:00Z", accepted),
            at("2026-01-01T00:09:00Z"),
            "it has failed"
        );
        assert_eq!(since("False", "2026-01-01T00:09:00Z", None), None);
    }

    #[test]
    fn a_pod_goes_through_its_phases() {
        let phase_of = |extra: Value| WatchedPod::from_pod(&pod(extra)).map(|pod| pod.phase);
        let refused = json!([{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }]);
        let ready =
            json!([{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z" }]);
        assert_eq!(phase_of(json!({})), Some(Phase::Pending));
        assert_eq!(phase_of(json!({ "status.conditions": refused })), Some(Phase::Unschedulable));
        assert_eq!(phase_of(json!({ "spec.nodeName": "n" })), Some(Phase::Starting));
        assert_eq!(phase_of(json!({ "spec.nodeName": "n", "status.conditions": ready })), Some(Phase::Ready));
        let deleted =
            json!({ "metadata.deletionTimestamp": "2026-01-01T00:00:00Z", "status.conditions": ready });
        assert_eq!(phase_of(deleted), Some(Phase::Terminating));
        assert_eq!(phase_of(json!({ "status.phase": "Failed" })), None);
    }

    #[test]
    fn a_deletion_cost_that_is_no_number_counts_as_none() {
        let stored = |text: &str| {
            let pod = pod(
                json!({ "metadata.annotations": { DELETION_COST_ANNOTATION: text }, "metadata.uid": "p-1" }),
            );
            let watched = WatchedPod::from_pod(&pod).unwrap().with_deletion_cost(&pod.metadata);
            let stored = watched.deletion_cost.unwrap();
            (stored.uid.to_string(), stored.cost)
        };
        assert_eq!(stored("-1000"), ("p-1".into(), Some(-1000)));
        assert_eq!(stored("cheap"), ("p-1".into(), None));
    }
}
