//! What was watched → what an evaluation sees. Pure: tables of watched objects, and the joins over them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use smol_str::SmolStr;
use wva_core::by_name::ByName;
use wva_core::model::{InvalidVariant, Variant, VariantId};
use wva_core::snapshot::{Phase, Replica, VariantState};

use super::claims::{claims, valid};
use super::convert::{Target, stored_target};
use super::crd::VariantAutoscalingStatus;
use super::inventory::{Gpus, Used, in_use, inventory, unlabelled};
use super::pods::SeenPod;
use crate::engine::{ClusterView, Endpoint};

/// Namespace and name.
pub(crate) type Key = (Box<str>, Box<str>);

/// One step of a watch, with what is kept of the object; `None` for an object of no interest.
#[derive(Debug)]
pub(crate) enum Step<V> {
    /// A new list begins.
    Init,
    /// An object of that list.
    Listed(Key, Option<V>),
    /// The list is complete: everything not in it is gone.
    Done,
    /// An object is new or has changed.
    Put(Key, Option<V>),
    /// An object is gone.
    Gone(Key),
}

/// The watched objects of one kind.
#[derive(Debug)]
pub(crate) struct Table<V> {
    live: BTreeMap<Key, V>,
    staged: BTreeMap<Key, V>,
    listed: bool,
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self { live: BTreeMap::new(), staged: BTreeMap::new(), listed: false }
    }
}

impl<V: PartialEq> Table<V> {
    /// Takes a step; true when something visible changed.
    pub(crate) fn apply(&mut self, step: Step<V>) -> bool {
        match step {
            Step::Init => {
                self.staged.clear();
                false
            }
            Step::Listed(key, value) => {
                if let Some(value) = value {
                    self.staged.insert(key, value);
                }
                false
            }
            Step::Done => {
                let new = std::mem::take(&mut self.staged);
                let changed = !self.listed || new != self.live;
                self.live = new;
                self.listed = true;
                changed
            }
            Step::Put(key, Some(value)) => {
                let changed = self.live.get(&key) != Some(&value);
                self.live.insert(key, value);
                changed
            }
            Step::Put(key, None) | Step::Gone(key) => self.live.remove(&key).is_some(),
        }
    }

    /// True when the watch has listed once.
    pub(crate) fn has_listed(&self) -> bool {
        self.listed
    }

    /// Every object.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &V)> {
        self.live.iter()
    }

    /// What is known of one object.
    fn get(&self, namespace: &str, name: &str) -> Option<&V> {
        self.live.get(&(namespace.into(), name.into()))
    }
}

/// A ReplicaSet that a Deployment manages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OwnedSet {
    pub(crate) uid: Box<str>,
    pub(crate) owner: Box<str>,
}

/// What is kept of a `VariantAutoscaling`.
#[derive(Debug, Clone, PartialEq)]
pub struct VariantObject {
    /// Its uid: a status is never written to a namesake that was made later.
    pub uid: String,
    /// Its generation.
    pub generation: i64,
    /// The variant, or why it cannot be decided about.
    pub variant: Result<Variant, InvalidVariant>,
    /// Its status as stored; `None` when the object cannot be read.
    pub status: Option<VariantAutoscalingStatus>,
}

/// Pods by the uid of their target.
type Owned<'a> = HashMap<&'a str, Vec<(&'a Key, &'a SeenPod)>>;

/// Everything that is watched.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) variants: Table<Arc<VariantObject>>,
    pub(crate) deployments: Table<Target>,
    pub(crate) replica_sets: Table<OwnedSet>,
    pub(crate) pods: Table<SeenPod>,
    /// Only where a limit is what the nodes have.
    pub(crate) nodes: Table<Gpus>,
    /// Nothing is decided before these are listed: a limit that is not known yet is none.
    pub(crate) awaits_nodes: bool,
    /// The namespaces that are to be left alone.
    pub(crate) excluded: Table<()>,
    /// Nobody waits for these any more: what could not be read excludes nothing.
    pub(crate) none_excluded: bool,
}

/// What the cluster looks like at one moment.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    /// For the engine.
    pub view: Arc<ClusterView>,
    /// The objects behind it, for the status writer.
    pub objects: BTreeMap<VariantId, Arc<VariantObject>>,
    /// The pods of variants, where somebody writes to them.
    pub pods: BTreeMap<VariantId, Vec<super::deletion_cost::MarkedPod>>,
}

impl Tables {
    /// Joins targets and pods to variants.
    pub(crate) fn observed(&self) -> Observed {
        let excluded: BTreeSet<SmolStr> =
            self.excluded.iter().map(|((_, name), ())| (&**name).into()).collect();
        let objects: BTreeMap<_, _> = self
            .variants
            .iter()
            .filter(|((namespace, _), _)| !excluded.contains(&**namespace))
            .map(|((namespace, name), object)| (VariantId::new(&**namespace, &**name), object.clone()))
            .collect();
        let (variants, invalid) = valid(&objects);
        let (pods, strangers) = self.pods_by_target(&variants);
        let mut marked = BTreeMap::new();
        let mut view = ClusterView {
            synced: self.synced(),
            claims: claims(&objects),
            invalid,
            excluded,
            ..ClusterView::default()
        };
        if self.nodes.listed {
            view.inventory = Some(inventory(self.nodes.live.values()));
            let nodes = || self.nodes.iter().map(|((_, name), gpus)| (&**name, gpus));
            view.elsewhere = in_use(nodes(), &strangers);
            view.unlabelled = unlabelled(nodes());
        }
        for (variant, object) in variants {
            let target = self.deployments.get(&variant.id.namespace, &variant.target.name);
            let owned = target.and_then(|target| pods.get(&*target.uid)).map_or(&[][..], Vec::as_slice);
            view.endpoints.extend(owned.iter().filter_map(|(key, pod)| endpoint(key, pod)));
            marked.extend(super::deletion_cost::marked_pods(&variant.id, owned));
            view.variants.push(state(variant, object, target, owned));
        }
        Observed { view: Arc::new(view), objects, pods: marked }
    }

    /// True when every watch has listed once.
    fn synced(&self) -> bool {
        let all =
            self.variants.listed && self.deployments.listed && self.replica_sets.listed && self.pods.listed;
        let nodes = !self.awaits_nodes || self.nodes.listed;
        all && nodes && (self.excluded.listed || self.none_excluded)
    }

    /// The pods of the variants' targets by the target's uid, through the ReplicaSets between them; and the GPUs of all
    /// other pods.
    fn pods_by_target<'a>(&'a self, variants: &[(&Variant, &VariantObject)]) -> (Owned<'a>, Vec<&'a Used>) {
        let targets = variants
            .iter()
            .filter_map(|(variant, _)| self.deployments.get(&variant.id.namespace, &variant.target.name));
        let mut pods: HashMap<&str, Vec<_>> = targets.map(|target| (&*target.uid, Vec::new())).collect();
        let sets: HashMap<&str, &str> = self
            .replica_sets
            .live
            .values()
            .filter(|set| pods.contains_key(&*set.owner))
            .map(|set| (&*set.uid, &*set.owner))
            .collect();
        let mut strangers = Vec::new();
        for (key, pod) in &self.pods.live {
            let target = pod.owner.as_deref().and_then(|owner| sets.get(owner));
            match target.and_then(|target| pods.get_mut(target)) {
                Some(owned) => owned.push((key, pod)),
                None => strangers.extend(&pod.used),
            }
        }
        (pods, strangers)
    }
}

fn state(
    variant: &Variant,
    object: &VariantObject,
    target: Option<&Target>,
    pods: &[(&Key, &SeenPod)],
) -> VariantState {
    let mut variant = variant.clone();
    if let Some(target) = target {
        variant.role = target.role;
        variant.accelerator = target.accelerator.as_deref().map(SmolStr::from).or(variant.accelerator);
    }
    let alloc = object.status.as_ref().and_then(|status| status.desired_optimized_alloc.as_ref());
    VariantState {
        variant,
        scale: target.map(|target| target.scale),
        replicas: pods.iter().map(|(key, pod)| replica(key, pod)).collect(),
        last_status: alloc.and_then(|alloc| stored_target(alloc.num_replicas)),
        template: target.map(|target| target.template.clone()).unwrap_or_default(),
    }
}

fn replica(key: &Key, pod: &SeenPod) -> Replica {
    Replica {
        pod: (&*key.1).into(),
        phase: pod.phase,
        created: pod.created,
        ready_since: pod.ready_since,
        engines: ByName::default(),
    }
}

/// Where a pod's metrics are. Only of ready pods: the others refuse connections or answer before they serve.
fn endpoint((namespace, name): &Key, pod: &SeenPod) -> Option<Endpoint> {
    let (ip, port) = pod.address.filter(|_| pod.phase == Phase::Ready)?;
    Some(Endpoint { namespace: namespace.to_string(), pod: name.to_string(), ip, port })
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use wva_core::model::{Bounds, Role, TargetRef};
    use wva_core::snapshot::{Scale, Template};
    use wva_core::units::{Cost, Replicas};

    use super::*;

    fn key(name: &str) -> Key {
        ("llm".into(), name.into())
    }

    fn claim(name: &str, target: &str) -> Arc<VariantObject> {
        let variant = Variant {
            id: VariantId::new("llm", name),
            model: "m".into(),
            target: TargetRef { kind: "Deployment".into(), name: target.into() },
            cost: Cost::ZERO,
            bounds: Bounds::default(),
            accelerator: Some("labelled".into()),
            role: Role::Both,
        };
        let status = None;
        Arc::new(VariantObject { uid: name.into(), generation: 1, variant: Ok(variant), status })
    }

    fn target(uid: &str) -> Target {
        let two = Replicas::new(2);
        let scale = Scale { spec: two, current: two, ready: Replicas::ONE };
        let (accelerator, template) = (Some("H100".into()), Template { gpus: 2, ..Template::default() });
        Target { uid: uid.into(), scale, accelerator, role: Role::Decode, template }
    }

    fn pod(owner: &str, phase: Phase) -> SeenPod {
        let address = Some(("10.0.0.1".parse().unwrap(), 8000));
        let (owner, created) = (Some(owner.into()), Timestamp::UNIX_EPOCH);
        SeenPod { owner, phase, created, ready_since: None, address, used: None, mark: None }
    }

    fn set(uid: &str, owner: &str) -> OwnedSet {
        OwnedSet { uid: uid.into(), owner: owner.into() }
    }

    /// One variant `chat` on Deployment `chat`, with a ready pod, a starting one, and strangers.
    fn cluster() -> Tables {
        let mut tables = Tables::default();
        tables.variants.apply(Step::Put(key("chat"), Some(claim("chat", "chat"))));
        tables.deployments.apply(Step::Put(key("chat"), Some(target("d-1"))));
        tables.replica_sets.apply(Step::Put(key("chat-1"), Some(set("rs-1", "d-1"))));
        tables.replica_sets.apply(Step::Put(key("web-1"), Some(set("rs-9", "d-9"))));
        tables.pods.apply(Step::Put(key("chat-1-a"), Some(pod("rs-1", Phase::Ready))));
        tables.pods.apply(Step::Put(key("chat-1-b"), Some(pod("rs-1", Phase::Starting))));
        tables.pods.apply(Step::Put(key("web-1-a"), Some(pod("rs-9", Phase::Ready))));
        tables.pods.apply(Step::Put(key("ghost"), Some(pod("rs-0", Phase::Ready))));
        tables
    }

    #[test]
    fn pods_join_their_variant_through_the_chain_of_owners() {
        let view = cluster().observed().view;
        let names: Vec<_> = view.variants[0].replicas.iter().map(|replica| replica.pod.as_str()).collect();
        assert_eq!(names, ["chat-1-a", "chat-1-b"]);
        let scraped: Vec<_> = view.endpoints.iter().map(|endpoint| endpoint.pod.as_str()).collect();
        assert_eq!(scraped, ["chat-1-a"], "only ready pods of variants are read");
    }

    #[test]
    fn the_target_knows_accelerator_role_and_gpus() {
        let view = cluster().observed().view;
        let variant = &view.variants[0].variant;
        assert_eq!((variant.accelerator.as_deref(), variant.role), (Some("H100"), Role::Decode));
        assert_eq!(view.variants[0].template.gpus, 2);
    }

    #[test]
    fn the_inventory_is_known_once_the_nodes_have_been_listed() {
        let mut tables = cluster();
        assert_eq!(tables.observed().view.inventory, None);
        for name in ["a", "b"] {
            tables.nodes.apply(Step::Listed(key(name), Some(Gpus { name: Some("H100".into()), count: 8 })));
        }
        tables.nodes.apply(Step::Done);
        assert_eq!(tables.observed().view.inventory, Some(BTreeMap::from([("H100".into(), 16)])));
        assert_eq!(tables.observed().view.unlabelled, None);
        for name in ["d", "c"] {
            tables.nodes.apply(Step::Put(key(name), Some(Gpus { name: None, count: 8 })));
        }
        let view = tables.observed().view;
        assert_eq!(view.inventory, Some(BTreeMap::from([("H100".into(), 16)])));
        assert_eq!(view.unlabelled.as_deref(), Some("c"), "the first by its name");
        assert!(!tables.synced(), "nobody waits for nodes");
    }

    #[test]
    fn pods_that_are_no_variants_use_gpus_elsewhere() {
        let mut tables = cluster();
        let on_gpus = |owner, count| {
            let used = Some(Used { node: "a".into(), count });
            Some(SeenPod { used, ..pod(owner, Phase::Ready) })
        };
        tables.pods.apply(Step::Put(key("chat-1-a"), on_gpus("rs-1", 2)));
        tables.pods.apply(Step::Put(key("web-1-a"), on_gpus("rs-9", 3)));
        let job = on_gpus("", 1).map(|job| SeenPod { owner: None, ..job });
        tables.pods.apply(Step::Put(key("job"), job));
        assert_eq!(tables.observed().view.elsewhere, BTreeMap::new(), "nobody asks for the nodes");
        let node = ("".into(), "a".into());
        tables.nodes.apply(Step::Listed(node, Some(Gpus { name: Some("H100".into()), count: 8 })));
        tables.nodes.apply(Step::Done);
        assert_eq!(tables.observed().view.elsewhere, BTreeMap::from([("H100".into(), 4)]));
        tables.variants.apply(Step::Gone(key("chat")));
        assert_eq!(tables.observed().view.elsewhere, BTreeMap::from([("H100".into(), 6)]));
    }

    #[test]
    fn a_namespace_that_is_excluded_has_no_variants_and_claims_nothing() {
        let mut tables = cluster();
        tables.excluded.apply(Step::Put(("".into(), "llm".into()), Some(())));
        let observed = tables.observed();
        assert!(observed.objects.is_empty(), "no status is written");
        assert!(observed.view.variants.is_empty() && observed.view.claims.is_empty());
        assert!(observed.view.excluded.contains("llm"));
        tables.excluded.apply(Step::Put(("".into(), "llm".into()), None));
        assert_eq!(tables.observed().view.variants.len(), 1);
    }

    #[test]
    fn a_variant_without_its_target_stays_and_has_no_scale() {
        let mut tables = cluster();
        tables.deployments.apply(Step::Gone(key("chat")));
        let view = tables.observed().view;
        assert_eq!((view.variants[0].scale, view.variants[0].replicas.len()), (None, 0));
    }

    #[test]
    fn pods_of_a_deployment_that_was_made_anew_do_not_count() {
        let mut tables = cluster();
        tables.deployments.apply(Step::Put(key("chat"), Some(target("d-2"))));
        assert!(tables.observed().view.variants[0].replicas.is_empty());
    }

    #[test]
    fn two_variants_with_one_target_are_both_invalid_and_both_named() {
        let mut tables = cluster();
        tables.variants.apply(Step::Put(key("copy"), Some(claim("copy", "chat"))));
        let view = tables.observed().view;
        assert!(view.variants.is_empty());
        assert_eq!(view.invalid.len(), 2);
        for invalid in &view.invalid {
            assert!(invalid.problem.contains("llm/chat and llm/copy"), "{}", invalid.problem);
        }
    }

    #[test]
    fn a_deployment_is_found_with_every_variant_that_claims_it() {
        let mut tables = cluster();
        for (name, target) in [("aa", "zz"), ("copy", "chat"), ("zz", "aa")] {
            tables.variants.apply(Step::Put(key(name), Some(claim(name, target))));
        }
        let view = tables.observed().view;
        let claimants = |deployment| -> Vec<_> {
            let claims = view.claims_on("llm", deployment).iter();
            claims.map(|claim| claim.variant.name.as_str()).collect()
        };
        assert_eq!(claimants("chat"), ["chat", "copy"]);
        assert_eq!((claimants("aa"), claimants("zz"), claimants("none")), (vec!["zz"], vec!["aa"], vec![]));
        let found =
            view.variant(&VariantId::new("llm", "zz")).map(|state| state.variant.target.name.as_str());
        assert_eq!(found, Some("aa"));
        assert!(view.variant(&VariantId::new("llm", "copy")).is_none(), "it is disputed");
    }

    #[test]
    fn nothing_is_synced_until_every_watch_has_listed() {
        let mut tables = cluster();
        tables.variants.apply(Step::Done);
        tables.deployments.apply(Step::Done);
        tables.replica_sets.apply(Step::Done);
        assert!(!tables.observed().view.synced);
        tables.pods.apply(Step::Done);
        assert!(!tables.observed().view.synced, "whose namespace is excluded is not known");
        tables.none_excluded = true;
        assert!(tables.observed().view.synced);
    }

    #[test]
    fn a_new_list_replaces_the_old_one_and_an_interrupted_one_does_not() {
        let mut table = Table::default();
        table.apply(Step::Put(key("old"), Some(1)));
        table.apply(Step::Init);
        table.apply(Step::Listed(key("lost"), Some(2)));
        assert_eq!(table.get("llm", "old"), Some(&1), "still listing");
        table.apply(Step::Init);
        table.apply(Step::Listed(key("new"), Some(3)));
        assert!(table.apply(Step::Done));
        assert_eq!(table.live.keys().collect::<Vec<_>>(), [&key("new")]);
    }

    #[test]
    fn an_update_that_changes_nothing_is_no_change() {
        let mut table = Table::default();
        assert!(table.apply(Step::Put(key("a"), Some(1))));
        assert!(!table.apply(Step::Put(key("a"), Some(1))));
        assert!(table.apply(Step::Put(key("a"), None)));
        assert!(!table.apply(Step::Gone(key("a"))));
    }
}
