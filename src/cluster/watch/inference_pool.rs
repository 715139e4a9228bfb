//! What is kept of an InferencePool and of a Service, and which variants and endpoint pickers a pool has. Pure: what a field means
//! is decided here. Everything of a pool is in its own namespace: a reference has no other, and a Service without a selector (one
//! that names an address elsewhere, say) leads to nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use kube::core::error_boundary::InvalidObject;
use serde::Deserialize;
use serde::de::IgnoredAny;
use smol_str::SmolStr;
use wva_core::model::VariantId;
use wva_core::snapshot::Phase;

use super::kind_store::ObjectStore;
use super::labels::{LabelSet, SelectorIndex};
use super::partial_objects::PartialObject;
use super::pods::{JoinedPod, WatchedPod};
use super::scale_target::ScaleTarget;
use crate::cluster::objects::ObjectKey;
use crate::engine::{Endpoint, Pool};

/// Most pools of a namespace, the first by name: more than it has models.
const MAX_POOLS_OF_NAMESPACE: usize = 1000;
/// Most pools that a variant belongs to, the first by name: it has one.
const MAX_POOLS_OF_VARIANT: usize = 4;
/// Most pods of an endpoint picker, the first by name: it has one or two.
const MAX_SCHEDULERS_OF_POOL: usize = 8;
/// The kind that an endpoint picker may be named by.
const SERVICE: &str = "Service";
/// The type of a Service whose selector has no effect.
const EXTERNAL_NAME: &str = "ExternalName";

/// An InferencePool of either group, of which only this is read.
pub(super) type PartialPool = PartialObject<PoolSpec, IgnoredAny>;
/// A Service.
pub(super) type PartialService = PartialObject<ServiceSpec, IgnoredAny>;

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PoolSpec {
    selector: PoolSelector,
    /// Of the group `inference.networking.x-k8s.io`: `extensionRef`.
    #[serde(alias = "extensionRef")]
    endpoint_picker_ref: Option<PickerReference>,
}

/// The labels of the pods of a pool.
#[derive(Deserialize, Debug, Clone)]
#[serde(untagged)]
enum PoolSelector {
    /// Of the group `inference.networking.k8s.io`.
    #[serde(rename_all = "camelCase")]
    Nested { match_labels: BTreeMap<String, String> },
    /// Of the group `inference.networking.x-k8s.io`.
    Plain(BTreeMap<String, String>),
}

impl Default for PoolSelector {
    fn default() -> Self {
        Self::Plain(BTreeMap::new())
    }
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(default)]
struct PickerReference {
    group: String,
    kind: Option<String>,
    name: String,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(default)]
pub(super) struct ServiceSpec {
    selector: Option<BTreeMap<String, String>>,
    #[serde(rename = "type")]
    type_: String,
}

/// What is kept of an InferencePool.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WatchedPool {
    /// The labels of its pods.
    selector: LabelSet,
    /// The Service of its endpoint picker, if it names one.
    pub(super) picker: Option<Box<str>>,
}

/// `None` for a pool that cannot be read, selects nothing or is being deleted.
pub(super) fn watched_pool(pool: Result<PartialPool, InvalidObject>) -> Option<WatchedPool> {
    let PartialObject { metadata, spec, .. } = pool.ok()?;
    let (PoolSelector::Nested { match_labels: labels } | PoolSelector::Plain(labels)) = spec.selector;
    let selector = LabelSet::of_selector(&labels).filter(|_| metadata.deletion_timestamp.is_none())?;
    let is_service = |picker: &PickerReference| {
        picker.group.is_empty()
            && picker.kind.as_deref().is_none_or(|kind| kind.is_empty() || kind == SERVICE)
    };
    let picker = spec.endpoint_picker_ref.filter(is_service).map(|picker| picker.name.into_boxed_str());
    Some(WatchedPool { selector, picker })
}

/// The labels of the pods of a Service; `None` for one without a selector.
pub(super) fn service_selector(service: Result<PartialService, InvalidObject>) -> Option<LabelSet> {
    let spec = service.ok()?.spec;
    LabelSet::of_selector(&spec.selector?).filter(|_| spec.type_ != EXTERNAL_NAME)
}

/// The pools of all namespaces while variants are joined to them.
#[derive(Default)]
pub(crate) struct PoolJoin<'a> {
    pools: Vec<JoinedPool<'a>>,
    by_namespace: HashMap<&'a str, SelectorIndex<'a, usize>>,
    /// The uids of the scale targets of variants, with their namespaces.
    targets: HashSet<(&'a str, &'a str)>,
}

/// A pool while variants are joined to it.
struct JoinedPool<'a> {
    key: &'a ObjectKey,
    pool: &'a WatchedPool,
    variants: BTreeSet<VariantId>,
    /// Its pods that are those of its variants.
    own_pods: usize,
}

impl<'a> PoolJoin<'a> {
    /// The pools of `stores`: of two of one name, that of the first store counts.
    pub(crate) fn new(stores: [&'a ObjectStore<WatchedPool>; 2]) -> Self {
        let mut by_key: BTreeMap<&ObjectKey, &WatchedPool> = BTreeMap::new();
        for (key, pool) in stores.into_iter().flat_map(ObjectStore::iter) {
            by_key.entry(key).or_insert(pool);
        }
        let mut join = Self::default();
        let mut counts: HashMap<&str, usize> = HashMap::new();
        for (key, pool) in by_key {
            let count = counts.entry(&key.namespace).or_default();
            *count += 1;
            if *count <= MAX_POOLS_OF_NAMESPACE {
                join.by_namespace.entry(&key.namespace).or_default().add(&pool.selector, join.pools.len());
                join.pools.push(JoinedPool { key, pool, variants: BTreeSet::new(), own_pods: 0 });
            }
        }
        join
    }

    /// Adds a variant, with the pods of its scale target, to each pool that selects the pods of its template. One without a template belongs
    /// to none: at zero it would have no pods either, and nothing would wake it.
    pub(crate) fn add(&mut self, id: &'a VariantId, target: Option<&'a ScaleTarget>, pods: &[JoinedPod<'_>]) {
        let Some(selectors) = self.by_namespace.get(id.namespace.as_str()) else { return };
        self.targets.extend(target.map(|target| (id.namespace.as_str(), &*target.uid)));
        let template = target.and_then(|target| target.labels.as_ref());
        let pools = template.into_iter().flat_map(|labels| selectors.selecting(labels));
        for pool in pools.take(MAX_POOLS_OF_VARIANT) {
            if let Some(pool) = self.pools.get_mut(*pool) {
                pool.variants.insert(id.clone());
            }
        }
        for pool in pods.iter().flat_map(|joined| selectors.selecting(&joined.pod.labels)) {
            if let Some(pool) = self.pools.get_mut(*pool) {
                pool.own_pods += 1;
            }
        }
    }

    /// The pools that have variants, with these.
    pub(super) fn with_variants(
        self,
    ) -> impl Iterator<Item = (&'a ObjectKey, &'a WatchedPool, BTreeSet<VariantId>)> {
        let pools =
            self.pools.into_iter().map(|JoinedPool { key, pool, variants, .. }| (key, pool, variants));
        pools.filter(|(_, _, variants)| !variants.is_empty())
    }

    /// The pools that have variants, by namespace and name, each with the Ready pods of its endpoint picker.
    pub(crate) fn finish(
        self,
        services: &ObjectStore<LabelSet>,
        pods: &ObjectStore<WatchedPod>,
        deployments: &ObjectStore<ScaleTarget>,
    ) -> Vec<Pool> {
        let with_others = self.with_others(pods, deployments);
        let mut pools: Vec<Pool> = Vec::new();
        let mut pickers: BTreeMap<&str, SelectorIndex<'_, usize>> = BTreeMap::new();
        for (index, JoinedPool { key, pool, variants, .. }) in self.pools.into_iter().enumerate() {
            if variants.is_empty() {
                continue;
            }
            let ObjectKey { namespace, name } = key;
            let picker = pool.picker.as_deref();
            if let Some(selector) = picker.and_then(|name| services.get(namespace, name)) {
                pickers.entry(namespace).or_default().add(selector, pools.len());
            }
            pools.push(Pool {
                namespace: SmolStr::from(&**namespace),
                name: SmolStr::from(&**name),
                variants,
                has_others: with_others.pools.contains(&index)
                    || picker.is_some_and(|name| with_others.pickers.contains(&(&**namespace, name))),
                schedulers: Vec::new(),
            });
        }
        for (namespace, selectors) in pickers {
            for (key, pod) in pods.of_namespace(namespace).filter(|(_, pod)| pod.phase == Phase::Ready) {
                let Some(endpoint) = scheduler(key, pod) else { continue };
                for pool in selectors.selecting(&pod.labels) {
                    if let Some(pool) = pools.get_mut(*pool)
                        && pool.schedulers.len() < MAX_SCHEDULERS_OF_POOL
                    {
                        pool.schedulers.push(endpoint.clone());
                    }
                }
            }
        }
        pools
    }

    /// The pools that select pods, or Deployments that may have some, of no variant; and the pickers of pools without any variant.
    fn with_others(
        &self,
        pods: &ObjectStore<WatchedPod>,
        deployments: &ObjectStore<ScaleTarget>,
    ) -> WithOthers<'a> {
        let mut found = WithOthers::default();
        let mut counts = vec![0; self.pools.len()];
        for (namespace, selectors) in &self.by_namespace {
            for pool in pods.of_namespace(namespace).flat_map(|(_, pod)| selectors.selecting(&pod.labels)) {
                counts[*pool] += 1;
            }
            let deployments = deployments.of_namespace(namespace).map(|(_, deployment)| deployment);
            let foreign = deployments.filter(|target| !self.targets.contains(&(*namespace, &*target.uid)));
            let labels = foreign.filter_map(|target| target.labels.as_ref());
            found.pools.extend(labels.flat_map(|labels| selectors.selecting(labels)));
        }
        for (index, (joined, count)) in self.pools.iter().zip(counts).enumerate() {
            if count > joined.own_pods {
                found.pools.insert(index);
            }
            if let Some(picker) = joined.pool.picker.as_deref().filter(|_| joined.variants.is_empty()) {
                found.pickers.insert((&joined.key.namespace, picker));
            }
        }
        found
    }
}

/// Where there may be other models than those of variants.
#[derive(Default)]
struct WithOthers<'a> {
    /// Indices of pools.
    pools: HashSet<usize>,
    /// Namespaces and names of Services.
    pickers: HashSet<(&'a str, &'a str)>,
}

/// Where the metrics of a pod of an endpoint picker are.
fn scheduler(key: &ObjectKey, pod: &WatchedPod) -> Option<Endpoint> {
    let address = pod.address.as_ref()?;
    Some(Endpoint {
        namespace: key.namespace.to_string(),
        pod: key.name.to_string(),
        ip: address.ip,
        port: Some(address.scheduler_port?),
        path: address.path.as_deref().map(str::to_owned),
    })
}
