//! What is kept of a pod: its phase, the address of its metrics, what it belongs to, its GPUs. And groups of pods that are one
//! replica. Pure.

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use wva_core::snapshot::Phase;
use wva_core::text::plain;

use super::inventory::PodGpus;
use super::labels::LabelSet;
use super::metrics_address::MetricsAddress;
use super::partial_objects::{PartialPod, PodCondition, controller};
use crate::cluster::objects::{DELETION_COST_ANNOTATION, ObjectKey, StoredCost};

/// The kubelet writes a pod's first status, which says that it is not ready, at most this long after it has accepted the
/// pod. A model server takes longer than that to become ready and fail again.
const FIRST_STATUS_WINDOW: SignedDuration = SignedDuration::from_secs(5);

/// The reason of the condition `PodScheduled` of a pod for which no node has room. One behind a gate (`SchedulingGated`) waits: queues and
/// webhooks open theirs within a second, as a rule.
const UNSCHEDULABLE: &str = "Unschedulable";
/// Longest message of the scheduler that is kept, bytes: it names each kind of node.
const MAX_MESSAGE_BYTES: usize = 256;

/// Controllers of pods that are no replicas of anything.
const UNSCALED: [&str; 3] = ["DaemonSet", "Job", "Node"];

/// A pod of a controller that may be scaled, or one that uses GPUs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WatchedPod {
    pub(crate) uid: Box<str>,
    /// Uid of its controller: a ReplicaSet, a StatefulSet or something else that may be scaled.
    pub(crate) owner: Option<Box<str>>,
    pub(crate) phase: Phase,
    /// Whether it is Ready, also while it is being deleted.
    pub(crate) is_ready: bool,
    pub(crate) created: Timestamp,
    pub(crate) ready_since: Option<Timestamp>,
    pub(crate) address: Option<MetricsAddress>,
    pub(crate) labels: LabelSet,
    pub(crate) gpus: Option<PodGpus>,
    /// Why the scheduler places it on no node, in its own words.
    pub(crate) unschedulable: Option<Box<str>>,
    /// `None` unless deletion costs are written.
    pub(crate) deletion_cost: Option<Box<StoredCost>>,
}

/// A pod of a scale target.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JoinedPod<'a> {
    pub(crate) key: &'a ObjectKey,
    pub(crate) pod: &'a WatchedPod,
    /// Uid of the leader of its group, whose metrics are those of the group: its own if it is the leader. `None` where a replica
    /// is a single pod.
    pub(crate) leader: Option<&'a str>,
}

impl JoinedPod<'_> {
    fn is_leader(&self) -> bool {
        self.leader == Some(&*self.pod.uid)
    }
}

/// The groups among `pods` as replicas, each under the key of its leader. A group is as far as the pod that is furthest from
/// ready, and one of fewer than `size` pods is starting; one whose leader does not exist yet is none.
pub(crate) fn groups<'a>(pods: &[JoinedPod<'a>], size: u32) -> Vec<(&'a ObjectKey, Cow<'a, WatchedPod>)> {
    let mut members: BTreeMap<&str, Vec<JoinedPod<'a>>> = BTreeMap::new();
    for pod in pods {
        if let Some(leader) = pod.leader {
            members.entry(leader).or_default().push(*pod);
        }
    }
    let mut groups: Vec<_> = members.into_values().filter_map(|members| group(&members, size)).collect();
    groups.sort_by_key(|(key, _)| *key);
    groups
}

fn group<'a>(members: &[JoinedPod<'a>], size: u32) -> Option<(&'a ObjectKey, Cow<'a, WatchedPod>)> {
    let JoinedPod { key, pod: leader, .. } = members.iter().copied().find(|member| member.is_leader())?;
    let is_complete = u32::try_from(members.len()).is_ok_and(|count| count >= size);
    let missing = (!is_complete).then_some(Phase::Starting);
    let phases = members.iter().map(|member| match member.pod.phase {
        // It is replaced, or the leader goes too.
        Phase::Terminating if !member.is_leader() => Phase::Starting,
        phase => phase,
    });
    let phase = phases.chain(missing).max_by_key(|phase| distance_from_ready(*phase));
    let was_ready = is_complete && members.iter().all(|member| member.pod.ready_since.is_some());
    let last_ready = members.iter().filter_map(|member| member.pod.ready_since).max();
    let phase = phase.unwrap_or(leader.phase);
    let ready_since = last_ready.filter(|_| was_ready);
    Some((key, Cow::Owned(WatchedPod { phase, ready_since, ..WatchedPod::clone(leader) })))
}

/// The order in which a pod becomes ready, the last phase first. A pod that terminates does not come back.
const fn distance_from_ready(phase: Phase) -> u8 {
    match phase {
        Phase::Ready | Phase::Asleep => 0,
        Phase::Starting => 1,
        Phase::Pending => 2,
        Phase::Unschedulable => 3,
        Phase::Terminating => 4,
    }
}

impl WatchedPod {
    /// `None` for a pod that has ended, or that neither a scalable controller manages nor uses GPUs.
    pub(crate) fn from_pod(pod: &PartialPod) -> Option<Self> {
        if matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed")) {
            return None;
        }
        let owner = controller(&pod.metadata).filter(|owner| !UNSCALED.contains(&owner.kind.as_str()));
        let gpus = PodGpus::from_pod(pod);
        if owner.is_none() && gpus.is_none() {
            return None;
        }
        Some(Self {
            uid: pod.metadata.uid.as_deref().unwrap_or_default().into(),
            owner: owner.map(|owner| owner.uid.as_str().into()),
            phase: phase(pod),
            is_ready: condition(pod, "Ready").is_some_and(|ready| ready.status == "True"),
            created: pod.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            ready_since: ready_since(pod),
            address: MetricsAddress::of(pod),
            labels: LabelSet::of(pod.metadata.labels.as_ref()),
            gpus,
            unschedulable: unschedulable(pod),
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

/// The condition that says that the scheduler finds no node for a pod.
fn not_scheduled(pod: &PartialPod) -> Option<&PodCondition> {
    condition(pod, "PodScheduled")
        .filter(|scheduled| scheduled.status == "False" && scheduled.reason.as_deref() == Some(UNSCHEDULABLE))
}

fn unschedulable(pod: &PartialPod) -> Option<Box<str>> {
    if phase(pod) != Phase::Unschedulable {
        return None;
    }
    let message = not_scheduled(pod)?.message.as_deref()?;
    // What follows, about claims and preemption, says again for each node that nothing helps.
    let end =
        ["no new claims to deallocate", "preemption:"].iter().filter_map(|next| message.find(next)).min();
    let message = message.get(..end.unwrap_or(message.len()))?.trim_end_matches(['.', ',', ' ']);
    let message = plain(message, MAX_MESSAGE_BYTES);
    (!message.is_empty()).then(|| message.as_str().into())
}

fn phase(pod: &PartialPod) -> Phase {
    if pod.metadata.deletion_timestamp.is_some() {
        Phase::Terminating
    } else if condition(pod, "Ready").is_some_and(|ready| ready.status == "True") {
        Phase::Ready
    } else if pod.spec.node_name.is_some() {
        Phase::Starting
    } else if not_scheduled(pod).is_some() {
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
        let gated = json!([{ "type": "PodScheduled", "status": "False", "reason": "SchedulingGated" }]);
        assert_eq!(phase_of(json!({ "status.conditions": gated })), Some(Phase::Pending));
        let failed = json!([{ "type": "PodScheduled", "status": "False", "reason": "SchedulerError" }]);
        assert_eq!(phase_of(json!({ "status.conditions": failed })), Some(Phase::Pending));
        assert_eq!(phase_of(json!({ "spec.nodeName": "n" })), Some(Phase::Starting));
        assert_eq!(phase_of(json!({ "spec.nodeName": "n", "status.conditions": ready })), Some(Phase::Ready));
        let deleted =
            json!({ "metadata.deletionTimestamp": "2026-01-01T00:00:00Z", "status.conditions": ready });
        assert_eq!(phase_of(deleted), Some(Phase::Terminating));
        assert_eq!(phase_of(json!({ "status.phase": "Failed" })), None);
    }

    #[test]
    fn the_scheduler_says_in_its_own_words_why_a_pod_has_no_node() {
        let message = |node: Option<&str>, message: &str| {
            let refused = json!([{
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message
            }]);
            let pod = pod(json!({ "status.conditions": refused, "spec.nodeName": node }));
            WatchedPod::from_pod(&pod).unwrap().unschedulable.map(String::from)
        };
        let said = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. preemption: 0/2 nodes are available: 2 No preemption \
                    victims found for incoming pod.";
        let kept = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu";
        assert_eq!(message(None, said).as_deref(), Some(kept));
        let since_1_34 = said.replace(" preemption:", " no new claims to deallocate, preemption:");
        assert_eq!(message(None, &since_1_34).as_deref(), Some(kept));
        assert_eq!(message(Some("n"), said), None, "it has one");
        assert_eq!(message(None, ""), None);
        assert!(message(None, &"x".repeat(100_000)).unwrap().len() <= MAX_MESSAGE_BYTES + 4);
    }

    #[test]
    fn pods_that_are_no_replicas_are_kept_only_for_their_gpus() {
        let of = |kind: &str, gpus: u32| {
            let owners =
                json!([{ "apiVersion": "v1", "kind": kind, "name": "o", "uid": "o-1", "controller": true }]);
            let limits = json!({ "limits": { "nvidia.com/gpu": gpus } });
            let containers = json!([{ "resources": limits }]);
            let watched = WatchedPod::from_pod(&pod(json!({
                "metadata.ownerReferences": owners, "spec.nodeName": "n", "spec.containers": containers
            })));
            watched.map(|pod| pod.owner.as_deref().map(str::to_owned))
        };
        for kind in ["ReplicaSet", "StatefulSet", "CloneSet"] {
            assert_eq!(of(kind, 0), Some(Some("o-1".into())), "{kind}");
        }
        for kind in UNSCALED {
            assert_eq!((of(kind, 0), of(kind, 1)), (None, Some(None)), "{kind}");
        }
    }

    /// A pod of the LeaderWorkerSet `chat`.
    fn member(
        group: &str,
        worker: &str,
        phase: Phase,
        ready_since: Option<i64>,
    ) -> (ObjectKey, WatchedPod, String) {
        let leader = format!("chat-{group}");
        let name = if worker == "0" { leader.clone() } else { format!("{leader}-{worker}") };
        let watched = WatchedPod::from_pod(&pod(json!({ "metadata.uid": name }))).unwrap();
        let ready_since = ready_since.map(|second| Timestamp::from_second(second).unwrap());
        (ObjectKey::new("llm", &name), WatchedPod { phase, ready_since, ..watched }, leader)
    }

    #[test]
    fn a_group_is_one_replica_named_after_its_leader_and_ready_when_all_of_its_pods_are() {
        use Phase::{Pending, Ready, Starting, Terminating, Unschedulable};
        let pods = [
            member("0", "0", Ready, Some(10)),
            member("0", "1", Ready, Some(20)),
            member("1", "0", Ready, Some(10)),
            member("1", "1", Starting, None),
            member("2", "0", Starting, None),
            member("2", "1", Unschedulable, None),
            member("3", "0", Ready, Some(10)),
            member("4", "1", Ready, Some(10)),
            member("5", "0", Terminating, Some(10)),
            member("5", "1", Pending, None),
            member("6", "0", Ready, Some(10)),
            member("6", "1", Terminating, Some(20)),
        ];
        let joined = pods.iter().map(|(key, pod, leader)| JoinedPod { key, pod, leader: Some(leader) });
        let found = groups(&joined.collect::<Vec<_>>(), 2);
        let found: Vec<_> = found
            .iter()
            .map(|(key, pod)| (&*key.name, pod.phase, pod.ready_since.map(Timestamp::as_second)))
            .collect();
        assert_eq!(
            found,
            [
                ("chat-0", Ready, Some(20)),
                ("chat-1", Starting, None),
                ("chat-2", Unschedulable, None),
                ("chat-3", Starting, None),
                ("chat-5", Terminating, None),
                ("chat-6", Starting, Some(20)),
            ],
            "group 3 has too few pods, and group 4 no leader"
        );
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
