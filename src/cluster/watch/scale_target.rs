//! What is kept of a scale target, whatever its kind, and how the pods of each kind are found. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use kube::core::{ApiResource, GroupVersionKind};
use smol_str::SmolStr;
use wva_core::model::{Role, TargetRef};
use wva_core::snapshot::{Phase, Scale, Template};
use wva_core::units::Replicas;

use super::convert::{accelerator_name, replicas};
use super::devices::{ClaimedGpus, claim_templates, gpus_of_claims};
use super::kind_store::ObjectStore;
use super::labels::LabelSet;
use super::partial_objects::{PartialTarget, PodTemplate, controller};
use super::placement::Placement;
use super::pods::{JoinedPod, WatchedPod};
use super::template::{GPU_RESOURCES, gpus_by_resource, parse_template, replica_gpus, termination};
use crate::cluster::crd::MAX_REPLICAS;
use crate::cluster::objects::ACCELERATOR_KEYS;
use crate::lint::Termination;

/// Label of a pod template: which part of a request its pods serve.
const ROLE_LABEL: &str = "llm-d.ai/role";
/// Label of a workload or a pod template: the queue of Kueue that its pods wait in.
const QUEUE_LABEL: &str = "kueue.x-k8s.io/queue-name";
/// What is known of the replicas of an object without a pod template.
const NO_TEMPLATE: Template = Template { gpus: None, engine: None };

/// The kinds of scale targets, by how their pods are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TargetKind {
    /// Its ReplicaSets own the pods.
    Deployment,
    /// It owns the pods.
    StatefulSet,
    /// A replica is a group of pods: it owns a StatefulSet of their leaders, each of which owns one of its workers.
    LeaderWorkerSet,
    /// Anything else with a scale subresource, whose selector finds the pods.
    Scalable,
}

impl TargetKind {
    pub(crate) fn of(target: &TargetRef) -> Self {
        match (target.group.as_str(), target.kind.as_str()) {
            (TargetRef::APPS, "Deployment") => Self::Deployment,
            (TargetRef::APPS, "StatefulSet") => Self::StatefulSet,
            (TargetRef::LEADER_WORKER_SETS, "LeaderWorkerSet") => Self::LeaderWorkerSet,
            _ => Self::Scalable,
        }
    }
}

/// The API resource of StatefulSets.
pub(crate) fn stateful_sets() -> ApiResource {
    ApiResource::erase::<StatefulSet>(&())
}

/// The API resource of LeaderWorkerSets. Its definition may be absent.
pub(crate) fn leader_worker_sets() -> ApiResource {
    let kind = GroupVersionKind::gvk(TargetRef::LEADER_WORKER_SETS, "v1", "LeaderWorkerSet");
    ApiResource::from_gvk_with_plural(&kind, "leaderworkersets")
}

/// What is kept of an object that may be the scale target of a variant.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScaleTarget {
    pub(crate) uid: Box<str>,
    /// Uid of its controller.
    pub(crate) owner: Option<Box<str>>,
    pub(crate) scale: Scale,
    pub(crate) accelerator: Option<String>,
    pub(crate) role: Role,
    pub(crate) template: Template,
    /// How its pods (the leaders of its groups) end, where it has a pod template.
    pub(crate) termination: Option<Arc<Termination>>,
    /// GPUs of a replica by resource, in the order of `GPU_RESOURCES`, where it has a pod template.
    pub(crate) gpus: Option<[u32; GPU_RESOURCES.len()]>,
    /// The templates of the claims of a replica, with the number of its pods that have one.
    pub(crate) claims: Box<[(SmolStr, u32)]>,
    /// The nodes that its pods may be placed on, where that is known and the same for all of them.
    pub(crate) placement: Option<Placement>,
    /// The queue of Kueue that its pods wait in.
    pub(crate) queue: Option<Box<str>>,
    /// The labels of its pods (of the leaders of its groups), where it has a pod template.
    pub(crate) labels: Option<LabelSet>,
    /// Pods of one replica, where that is a group of them.
    pub(crate) group_size: Option<u32>,
    /// The uids of its pods, where a selector finds them. They are counted where the target does not say how many are ready.
    pub(crate) selected: Option<BTreeSet<Box<str>>>,
}

impl From<&PartialTarget> for ScaleTarget {
    fn from(target: &PartialTarget) -> Self {
        let group = target.spec.leader_worker_template.as_ref();
        let rest = group.map(|group| &group.worker_template).or(target.spec.template.as_ref());
        let first = group.and_then(|group| group.leader_template.as_ref()).or(rest);
        let size = |size: Option<i32>| size.and_then(|size| u32::try_from(size).ok()).unwrap_or(1).max(1);
        let group_size = group.map(|group| size(group.size));
        let queue = queue(target.metadata.labels.as_ref())
            .or_else(|| first.and_then(|template| queue(template.metadata.labels.as_ref())));
        Self {
            uid: target.metadata.uid.as_deref().unwrap_or_default().into(),
            owner: controller(&target.metadata).map(|owner| owner.uid.as_str().into()),
            scale: scale(
                target.spec.replicas.unwrap_or(1),
                target.status.replicas.unwrap_or_default(),
                target.status.ready_replicas.unwrap_or_default(),
            ),
            accelerator: first.and_then(requested_accelerator),
            role: first.map(role).unwrap_or_default(),
            template: first.zip(rest).map_or(NO_TEMPLATE, |(first, rest)| {
                parse_template(&first.spec, &rest.spec, group_size.unwrap_or(1))
            }),
            termination: first.and_then(|first| termination(&first.spec)).map(Arc::new),
            gpus: first
                .zip(rest)
                .map(|(first, rest)| gpus_by_resource(&first.spec, &rest.spec, group_size.unwrap_or(1))),
            claims: first.zip(rest).map(|(first, rest)| claims(first, rest, group_size)).unwrap_or_default(),
            // Kueue adds the node labels and tolerations of a flavor when it admits a pod.
            placement: first.zip(rest).filter(|_| queue.is_none()).and_then(|(first, rest)| {
                let own = Placement::of(&first.spec)?;
                (std::ptr::eq(first, rest) || Placement::of(&rest.spec)? == own).then_some(own)
            }),
            queue,
            labels: first.map(|template| LabelSet::of(template.metadata.labels.as_ref())),
            group_size,
            selected: None,
        }
    }
}

impl ScaleTarget {
    /// What is known of a replica. Where no template says how many GPUs it has, it has as many as the largest of its pods.
    pub(crate) fn replica_template(
        &self,
        namespace: &str,
        pods: &[JoinedPod<'_>],
        templates: &ObjectStore<ClaimedGpus>,
    ) -> Template {
        let is_on_node = |phase| matches!(phase, Phase::Starting | Phase::Ready | Phase::Asleep);
        let of_pod = |pod: &WatchedPod| {
            let gpus = pod.gpus.as_ref().map(|gpus| gpus.count);
            gpus.or_else(|| is_on_node(pod.phase).then_some(0))
        };
        let largest = || pods.iter().filter_map(|joined| of_pod(joined.pod)).max().map(replica_gpus);
        let gpus = match self.gpus.filter(|_| !self.claims.is_empty()) {
            Some(requested) => {
                // Of a claim on all devices of a node it is not known how many these will be: at least one.
                let claimed = self.claims.iter().map(|(name, pods)| {
                    gpus_of_claims(templates, namespace, [name]).unwrap_or(1).saturating_mul(*pods)
                });
                Some(replica_gpus(requested.into_iter().chain(claimed).fold(0, u32::saturating_add)))
            }
            None => self.template.gpus.or_else(largest),
        };
        Template { gpus, ..self.template.clone() }
    }
}

/// The leader of a group has the claims of `first`, and each other pod those of `rest`.
fn claims(first: &PodTemplate, rest: &PodTemplate, group_size: Option<u32>) -> Box<[(SmolStr, u32)]> {
    let of = |template: &PodTemplate, pods: u32| {
        let names = claim_templates(&template.spec.resource_claims).into_iter();
        names.map(move |name| (name, pods)).filter(|(_, pods)| *pods > 0)
    };
    of(first, 1).chain(of(rest, group_size.unwrap_or(1) - 1)).collect()
}

/// The counts of a scale target. It may request billions of replicas, and anybody who may write the status of an object of a kind
/// of their own, count as many. A negative count is none.
pub(crate) fn scale(requested: i32, existing: i32, ready: i32) -> Scale {
    let bounded = |number: i32| replicas(number.min(MAX_REPLICAS)).unwrap_or_default();
    let (spec, existing) = (bounded(requested), bounded(existing));
    let current = if existing == Replicas::ZERO { spec } else { existing };
    Scale { spec, current, ready: bounded(ready) }
}

/// The accelerator that a pod template requests: by node selector, then required, then preferred node affinity.
fn requested_accelerator(template: &PodTemplate) -> Option<String> {
    let selector = template.spec.node_selector.as_ref();
    let selected = selector.and_then(|labels| ACCELERATOR_KEYS.iter().find_map(|key| labels.get(*key)));
    let by_affinity = || {
        let terms = template.spec.affinity.iter().flat_map(|affinity| affinity.terms());
        let mut expressions = terms.flat_map(|term| term.match_expressions.iter().flatten());
        expressions.find_map(|expression| {
            let is_name = expression.operator == "In" && ACCELERATOR_KEYS.contains(&expression.key.as_str());
            expression.values.as_ref().filter(|_| is_name).and_then(|values| values.first())
        })
    };
    selected.or_else(by_affinity).and_then(|name| accelerator_name(name))
}

fn queue(labels: Option<&BTreeMap<String, String>>) -> Option<Box<str>> {
    let name = labels?.get(QUEUE_LABEL).filter(|name| !name.is_empty())?;
    Some(name.as_str().into())
}

fn role(template: &PodTemplate) -> Role {
    match template.metadata.labels.as_ref().and_then(|labels| labels.get(ROLE_LABEL)).map(String::as_str) {
        Some("prefill") => Role::Prefill,
        Some("decode") => Role::Decode,
        _ => Role::Both,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn target(spec: Value) -> ScaleTarget {
        let value = json!({ "metadata": { "name": "d", "uid": "d-1" }, "spec": spec });
        ScaleTarget::from(&serde_json::from_value::<PartialTarget>(value).unwrap())
    }

    fn deployment(template: Value) -> ScaleTarget {
        target(json!({ "template": template }))
    }

    #[test]
    fn the_accelerator_is_that_of_node_selector_or_affinity() {
        let selector =
            json!({ "spec": { "nodeSelector": { "nvidia.com/gpu.product": "NVIDIA-A100-PCIE-80GB" } } });
        assert_eq!(deployment(selector).accelerator.as_deref(), Some("A100"));
        let expression =
            json!({ "key": "cloud.google.com/gke-accelerator", "operator": "In", "values": ["l4"] });
        let terms = json!({ "nodeSelectorTerms": [{ "matchExpressions": [expression] }] });
        let affinity = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": terms } });
        let required = json!({ "spec": { "affinity": affinity } });
        assert_eq!(deployment(required).accelerator.as_deref(), Some("l4"));
        assert_eq!(deployment(json!({})).accelerator, None);
    }

    #[test]
    fn the_role_is_that_of_the_pod_template() {
        let labelled =
            |role: &str| deployment(json!({ "metadata": { "labels": { ROLE_LABEL: role } } })).role;
        assert_eq!(labelled("prefill"), Role::Prefill);
        assert_eq!(labelled("decode"), Role::Decode);
        assert_eq!(labelled("anything"), Role::Both);
    }

    #[test]
    fn current_is_the_existing_count_or_the_spec_while_there_is_none() {
        let scale = |spec: Value, status: Value| {
            let value = json!({ "metadata": {}, "spec": spec, "status": status });
            ScaleTarget::from(&serde_json::from_value::<PartialTarget>(value).unwrap()).scale
        };
        let counts = |scale: Scale| (scale.spec.get(), scale.current.get(), scale.ready.get());
        assert_eq!(counts(scale(json!({}), json!({}))), (1, 1, 0));
        assert_eq!(counts(scale(json!({ "replicas": 0 }), json!({}))), (0, 0, 0));
        assert_eq!(
            counts(scale(json!({ "replicas": 3 }), json!({ "replicas": 2, "readyReplicas": 1 }))),
            (3, 2, 1)
        );
    }

    #[test]
    fn an_accelerator_that_cannot_be_a_label_value_is_ignored() {
        for name in ["H100\nFORGED", &"H".repeat(64), ""] {
            let selector = json!({ "spec": { "nodeSelector": { "nvidia.com/gpu.product": name } } });
            assert_eq!(deployment(selector).accelerator, None, "{name:?}");
        }
    }

    #[test]
    fn a_count_above_the_maximum_of_replicas_is_the_maximum() {
        for (requested, existing) in [(i32::MAX, 0), (i32::MAX, i32::MAX), (100_000, i32::MAX)] {
            let scale = scale(requested, existing, i32::MAX);
            assert_eq!(
                (scale.spec.get(), scale.current.get(), scale.ready.get()),
                (100_000, 100_000, 100_000)
            );
        }
        let negative = scale(-1, i32::MIN, -7);
        assert_eq!((negative.spec.get(), negative.current.get(), negative.ready.get()), (0, 0, 0));
    }

    #[test]
    fn a_replica_of_a_leader_worker_set_has_the_gpus_of_its_leader_and_of_its_workers() {
        let template = |gpus: &str, product: &str| {
            let limits = json!({ "limits": { "nvidia.com/gpu": gpus } });
            let containers = json!([{ "args": ["m", "--max-num-seqs=64"], "resources": limits }]);
            json!({ "spec": { "nodeSelector": { "nvidia.com/gpu.product": product }, "containers": containers } })
        };
        let of = |leader: Option<Value>, size: Value| {
            let group = json!({
                "size": size, "leaderTemplate": leader, "workerTemplate": template("8", "NVIDIA-H100-80GB-HBM3")
            });
            target(json!({ "replicas": 2, "leaderWorkerTemplate": group }))
        };
        let gpus = |target: &ScaleTarget| (target.template.gpus, target.group_size);
        let own_leader = of(Some(template("2", "NVIDIA-A100-PCIE-80GB")), json!(3));
        assert_eq!(
            (gpus(&own_leader), own_leader.accelerator.as_deref()),
            ((Some(18), Some(3)), Some("A100"))
        );
        assert_eq!(own_leader.template.sequences(), Some(64));
        let like_workers = of(None, json!(2));
        assert_eq!(
            (gpus(&like_workers), like_workers.accelerator.as_deref()),
            ((Some(16), Some(2)), Some("H100"))
        );
        assert_eq!(gpus(&of(None, Value::Null)), (Some(8), Some(1)));
        let claiming =
            |name: &str| json!({ "spec": { "resourceClaims": [{ "resourceClaimTemplateName": name }] } });
        let group =
            json!({ "size": 3, "leaderTemplate": claiming("two"), "workerTemplate": claiming("four") });
        let claims = target(json!({ "leaderWorkerTemplate": group })).claims;
        assert_eq!(*claims, [("two".into(), 1), ("four".into(), 2)]);
        assert_eq!(gpus(&of(None, json!(-7))), (Some(8), Some(1)));
        assert_eq!(gpus(&of(None, json!(i32::MAX))), (Some(1024), Some(2_147_483_647)));
    }

    #[test]
    fn an_object_without_a_pod_template_does_not_say_how_many_gpus_a_replica_has() {
        let gpus = |spec: Value| target(spec).template.gpus;
        assert_eq!(gpus(json!({ "workloadRef": { "kind": "Deployment", "name": "d" } })), None);
        assert_eq!(gpus(json!({ "template": null })), None);
        assert_eq!(gpus(json!({ "template": {} })), Some(1));
    }
}
