//! Pods → the scale targets that they belong to: by the chain of their owners or, where the scale of a target has a selector, by
//! that. Pure. Everything is found by namespace and uid: anybody may write any uid into the owners of a pod, and labels.

use std::collections::{HashMap, HashSet};

use super::kind_store::ObjectStore;
use super::pods::{JoinedPod, WatchedPod};
use super::scale_target::ScaleTarget;
use crate::cluster::objects::ObjectKey;

/// A ReplicaSet that a Deployment manages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReplicaSetOwner {
    /// Uid of the ReplicaSet.
    pub(crate) uid: Box<str>,
    /// Uid of its Deployment.
    pub(crate) deployment: Box<str>,
}

/// Namespace and uid of an object.
pub(crate) type ObjectUid<'a> = (&'a str, &'a str);

/// The objects that pods lead to.
#[derive(Default)]
pub(crate) struct PodJoin<'a> {
    targets: HashSet<ObjectUid<'a>>,
    /// Those of them whose replicas are groups.
    group_targets: HashSet<ObjectUid<'a>>,
    /// The Deployments of ReplicaSets.
    deployments: HashMap<ObjectUid<'a>, &'a str>,
    /// The owners of StatefulSets: a LeaderWorkerSet owns that of the leaders, and each leader that of its workers.
    owners: HashMap<ObjectUid<'a>, &'a str>,
    /// The targets of leaders.
    leaders: HashMap<ObjectUid<'a>, &'a str>,
    /// The targets whose selector finds a pod.
    selected: HashMap<ObjectUid<'a>, &'a str>,
}

impl<'a> PodJoin<'a> {
    /// Adds the target of a variant. Of two whose selectors find one pod, the first has it: it is a replica of one of them.
    pub(crate) fn add_target(&mut self, namespace: &'a str, target: &'a ScaleTarget) {
        self.targets.insert((namespace, &target.uid));
        if target.group_size.is_some() {
            self.group_targets.insert((namespace, &target.uid));
        }
        for pod in target.selected.iter().flatten() {
            self.selected.entry((namespace, pod)).or_insert(&target.uid);
        }
    }

    /// Adds the ReplicaSets of the targets.
    pub(crate) fn add_replica_sets(&mut self, sets: &'a ObjectStore<ReplicaSetOwner>) {
        for (ObjectKey { namespace, .. }, set) in sets.iter() {
            if self.targets.contains(&(&**namespace, &*set.deployment)) {
                self.deployments.insert((namespace, &set.uid), &set.deployment);
            }
        }
    }

    /// Adds the StatefulSets and the leaders of groups, which are among `pods`.
    pub(crate) fn add_groups(
        &mut self,
        sets: &'a ObjectStore<ScaleTarget>,
        pods: &'a ObjectStore<WatchedPod>,
    ) {
        if self.group_targets.is_empty() {
            return;
        }
        let owned =
            sets.iter().filter_map(|(key, set)| Some(((&*key.namespace, &*set.uid), set.owner.as_deref()?)));
        self.owners = owned.collect();
        let leaders = pods.iter().filter_map(|(key, pod)| {
            let namespace = &*key.namespace;
            let owner = *self.owners.get(&(namespace, pod.owner.as_deref()?))?;
            self.group_targets.contains(&(namespace, owner)).then_some(((namespace, &*pod.uid), owner))
        });
        self.leaders = leaders.collect();
    }

    /// The target of a pod, and the pod as part of it.
    pub(crate) fn join(
        &self,
        key: &'a ObjectKey,
        pod: &'a WatchedPod,
    ) -> Option<(ObjectUid<'a>, JoinedPod<'a>)> {
        let namespace = &*key.namespace;
        let (target, leader) = self.of_owner(namespace, pod).or_else(|| {
            let target = *self.selected.get(&(namespace, &*pod.uid))?;
            Some((target, None))
        })?;
        Some(((namespace, target), JoinedPod { key, pod, leader }))
    }

    /// The target of a pod by its owners and, if it is part of a group, the uid of the leader.
    fn of_owner(&self, namespace: &'a str, pod: &'a WatchedPod) -> Option<(&'a str, Option<&'a str>)> {
        let owner = pod.owner.as_deref()?;
        if let Some(&(_, target)) = self.targets.get(&(namespace, owner)) {
            return Some((target, None));
        }
        if let Some(&deployment) = self.deployments.get(&(namespace, owner)) {
            return Some((deployment, None));
        }
        if let Some(&target) = self.leaders.get(&(namespace, &*pod.uid)) {
            return Some((target, Some(&*pod.uid)));
        }
        let leader = *self.owners.get(&(namespace, owner))?;
        let target = *self.leaders.get(&(namespace, leader))?;
        Some((target, Some(leader)))
    }
}
