//! Pods → what is kept of them: where each is in its life, where it answers, whose it is. Pure.

use std::net::IpAddr;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use wva_core::snapshot::Phase;

use super::inventory::Used;
use super::partial_objects::{LeanPod, PodCondition, controller_uid};
use crate::cluster::objects::{DELETION_COST_ANNOTATION, Mark};

/// Annotation of a pod: the port of its metrics.
const PORT_ANNOTATION: &str = "prometheus.io/port";
/// Names of a container port that has metrics, the better one first.
const PORT_NAMES: [&str; 2] = ["metrics", "http"];
/// The port vLLM listens on when told nothing.
const DEFAULT_PORT: u16 = 8000;

/// A pod that a ReplicaSet manages, or that uses GPUs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SeenPod {
    /// The uid of its ReplicaSet.
    pub(crate) owner: Option<Box<str>>,
    pub(crate) phase: Phase,
    pub(crate) created: Timestamp,
    pub(crate) ready_since: Option<Timestamp>,
    pub(crate) address: Option<(IpAddr, u16)>,
    pub(crate) used: Option<Used>,
    /// For who writes its annotation, if anybody does.
    pub(crate) mark: Option<Box<Mark>>,
}

impl SeenPod {
    /// `None` for any other pod, or one that has ended.
    pub(crate) fn of(pod: &LeanPod) -> Option<Self> {
        if matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed")) {
            return None;
        }
        let (owner, used) = (controller_uid(&pod.metadata, "ReplicaSet"), Used::of(pod));
        if owner.is_none() && used.is_none() {
            return None;
        }
        Some(Self {
            owner,
            phase: phase(pod),
            created: pod.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            ready_since: ready_since(pod),
            address: pod.status.pod_ip.as_deref().and_then(|ip| ip.parse().ok()).map(|ip| (ip, port(pod))),
            used,
            mark: None,
        })
    }

    /// With what it takes to write its annotation. What is no number counts as none, as it does for a ReplicaSet.
    pub(crate) fn marked(self, metadata: &ObjectMeta) -> Self {
        let annotation = metadata.annotations.as_ref().and_then(|all| all.get(DELETION_COST_ANNOTATION));
        let cost = annotation.and_then(|text| text.parse().ok());
        let uid = metadata.uid.as_deref().unwrap_or_default().into();
        Self { mark: Some(Box::new(Mark { uid, cost })), ..self }
    }
}

fn condition<'a>(pod: &'a LeanPod, type_: &str) -> Option<&'a PodCondition> {
    pod.status.conditions.iter().find(|condition| condition.type_ == type_)
}

/// The first status of a pod says that it is not ready, and is written this many seconds after the kubelet has seen the pod at
/// most; a model server takes longer to become ready and to fail again.
const FIRST_STATUS: SignedDuration = SignedDuration::from_secs(5);

/// Since when a pod is ready; of one that was and is not, since when it is not. `None` if it never was: then its condition
/// has not changed since the kubelet first saw it.
fn ready_since(pod: &LeanPod) -> Option<Timestamp> {
    let ready = condition(pod, "Ready")?;
    let changed = ready.last_transition_time.as_ref()?.0;
    let seen = pod.status.start_time.as_ref().map(|time| time.0);
    let failed = |seen: Timestamp| changed.duration_since(seen) > FIRST_STATUS;
    (ready.status == "True" || seen.is_some_and(failed)).then_some(changed)
}

fn phase(pod: &LeanPod) -> Phase {
    let scheduled = condition(pod, "PodScheduled");
    let refused = |condition: &PodCondition| {
        condition.status == "False" && condition.reason.as_deref() == Some("Unschedulable")
    };
    if pod.metadata.deletion_timestamp.is_some() {
        Phase::Terminating
    } else if condition(pod, "Ready").is_some_and(|ready| ready.status == "True") {
        Phase::Ready
    } else if pod.spec.node_name.is_some() {
        Phase::Starting
    } else if scheduled.is_some_and(refused) {
        Phase::Unschedulable
    } else {
        Phase::Pending
    }
}

/// The port of a pod's metrics: annotated, else named, else vLLM's own.
fn port(pod: &LeanPod) -> u16 {
    let annotations = pod.metadata.annotations.as_ref();
    let annotated =
        annotations.and_then(|all| all.get(PORT_ANNOTATION)).and_then(|text| text.trim().parse().ok());
    let named = || {
        PORT_NAMES.iter().find_map(|name| {
            let mut ports = pod.spec.containers.iter().flat_map(|container| &container.ports);
            let port = ports.find(|port| port.name.as_deref() == Some(*name))?;
            u16::try_from(port.container_port).ok()
        })
    };
    annotated.filter(|port| *port != 0).or_else(named).unwrap_or(DEFAULT_PORT)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(extra: Value) -> LeanPod {
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
    fn a_pod_that_was_ready_is_told_from_one_that_never_was() {
        let since = |status: &str, changed: &str, seen: Option<&str>| {
            let ready = json!([{ "type": "Ready", "status": status, "lastTransitionTime": changed }]);
            let of = json!({ "spec.nodeName": "n", "status.conditions": ready, "status.startTime": seen });
            SeenPod::of(&pod(of)).unwrap().ready_since.map(|at| at.to_string())
        };
        let seen = Some("2026-01-01T00:00:10Z");
        let at = |text: &str| Some(text.to_owned());
        assert_eq!(since("True", "2026-01-01T00:01:00Z", None), at("2026-01-01T00:01:00Z"));
        assert_eq!(since("False", "2026-01-01T00:00:12Z", seen), None, "its first status");
        assert_eq!(since("False", "2026-01-01T00:09:00Z", seen), at("2026-01-01T00:09:00Z"), "it has failed");
        assert_eq!(since("False", "2026-01-01T00:09:00Z", None), None);
    }

    #[test]
    fn a_pod_goes_through_its_phases() {
        let phase_of = |extra: Value| SeenPod::of(&pod(extra)).map(|pod| pod.phase);
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
    fn a_pod_is_marked_with_its_uid_and_its_cost_and_what_is_no_number_is_none() {
        let mark = |text: &str| {
            let pod = pod(
                json!({ "metadata.annotations": { DELETION_COST_ANNOTATION: text }, "metadata.uid": "p-1" }),
            );
            let mark = *SeenPod::of(&pod).unwrap().marked(&pod.metadata).mark.unwrap();
            (mark.uid.to_string(), mark.cost)
        };
        assert_eq!(mark("-1000"), ("p-1".into(), Some(-1000)));
        assert_eq!(mark("cheap"), ("p-1".into(), None));
    }

    #[test]
    fn the_port_of_metrics_is_annotated_or_named_or_vllms_own() {
        let port_of = |extra: Value| SeenPod::of(&pod(extra)).unwrap().address.unwrap().1;
        let ip = json!("10.0.0.1");
        let ports = |names: &[(&str, u16)]| {
            let ports: Vec<_> =
                names.iter().map(|(name, port)| json!({ "name": name, "containerPort": port })).collect();
            json!([{ "ports": ports }])
        };
        let named = ports(&[("http", 1), ("metrics", 2)]);
        let annotations = json!({ "prometheus.io/port": "9" });
        let annotated = json!({
            "status.podIP": ip, "spec.containers": named, "metadata.annotations": annotations
        });
        assert_eq!(port_of(annotated), 9);
        assert_eq!(port_of(json!({ "status.podIP": ip, "spec.containers": named })), 2);
        let http = ports(&[("other", 7), ("http", 1)]);
        assert_eq!(port_of(json!({ "status.podIP": ip, "spec.containers": http })), 1);
        let nonsense = json!({ "prometheus.io/port": "0" });
        assert_eq!(port_of(json!({ "status.podIP": ip, "metadata.annotations": nonsense })), 8000);
    }
}
