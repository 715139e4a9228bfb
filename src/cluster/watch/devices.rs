//! GPUs that pods get through resource claims: dynamic resource allocation, `resource.k8s.io/v1`. A pod's claims are made from templates, and
//! drivers publish the devices of each node in slices. Pure.

use std::collections::{BTreeMap, HashMap};

use kube::core::error_boundary::InvalidObject;
use serde::Deserialize;
use serde::de::IgnoredAny;
use smol_str::{SmolStr, format_smolstr};

use super::accelerator::short_name;
use super::kind_store::ObjectStore;
use super::partial_objects::{PartialObject, PodClaim};
use super::template::MAX_GPUS;

/// Drivers whose devices are GPUs. The device classes that their charts make have the same names.
const GPU_DRIVERS: [&str; 3] = ["gpu.nvidia.com", "gpu.amd.com", "gpu.intel.com"];
/// Attribute of a device: what it is, where a driver publishes parts of GPUs too.
const TYPE: &str = "type";
/// The types of whole GPUs: of NVIDIA's and Intel's drivers, and of AMD's.
const GPU_TYPES: [&str; 2] = ["gpu", "amdgpu"];
/// Attribute of a device: its product.
const PRODUCT: &str = "productName";
/// Most claims of a pod that are read.
const MAX_CLAIMS: usize = 16;

/// A ResourceClaimTemplate.
pub(super) type PartialClaimTemplate = PartialObject<ClaimTemplateSpec, IgnoredAny>;
/// A ResourceSlice.
pub(super) type PartialSlice = PartialObject<SliceSpec, IgnoredAny>;

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(default)]
pub(super) struct ClaimTemplateSpec {
    spec: ClaimSpec,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(default)]
struct ClaimSpec {
    devices: ClaimedDevices,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(default)]
struct ClaimedDevices {
    requests: Vec<DeviceRequest>,
}

/// One of several alternatives is allocated.
#[derive(Deserialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase", default)]
struct DeviceRequest {
    exactly: Option<DeviceCount>,
    first_available: Vec<DeviceCount>,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase", default)]
struct DeviceCount {
    device_class_name: String,
    allocation_mode: Option<String>,
    /// 1 when absent.
    count: Option<u32>,
    /// Looks at devices that others use.
    admin_access: Option<bool>,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SliceSpec {
    driver: String,
    node_name: Option<String>,
    pool: Pool,
    devices: Vec<Device>,
}

/// A driver that changes its devices publishes slices of the next generation, and those of earlier ones no longer count.
#[derive(Deserialize, Debug, Clone, Default)]
#[serde(default)]
struct Pool {
    name: String,
    generation: i64,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(default)]
struct Device {
    attributes: BTreeMap<String, Attribute>,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(default)]
struct Attribute {
    string: Option<String>,
}

/// The GPUs of each claim that is made from a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClaimedGpus(
    /// `None` for as many as the node has.
    pub(crate) Option<u32>,
);

/// GPUs of a node, in one slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SliceGpus {
    node: SmolStr,
    pool: SmolStr,
    generation: i64,
    count: u32,
    /// Its short name.
    product: Option<SmolStr>,
}

/// GPUs of a node that drivers publish.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeDevices<'a> {
    pub(crate) count: u32,
    pub(crate) product: Option<&'a SmolStr>,
}

/// `None` for a template without GPUs.
pub(super) fn claimed_gpus(template: Result<PartialClaimTemplate, InvalidObject>) -> Option<ClaimedGpus> {
    let requests = template.ok()?.spec.spec.devices.requests;
    let of_request = |request: &DeviceRequest| {
        let alternatives = request.exactly.iter().chain(&request.first_available);
        let gpus = alternatives.filter(|own| {
            GPU_DRIVERS.contains(&own.device_class_name.as_str()) && own.admin_access != Some(true)
        });
        gpus.map(DeviceCount::count).reduce(|left, right| Some(left?.max(right?)))
    };
    let gpus = requests.iter().filter_map(of_request);
    let sum = |left: Option<u32>, right: Option<u32>| Some(left?.saturating_add(right?).min(MAX_GPUS));
    gpus.reduce(sum).map(ClaimedGpus)
}

impl DeviceCount {
    fn count(&self) -> Option<u32> {
        (self.allocation_mode.as_deref() != Some("All")).then(|| self.count.unwrap_or(1).min(MAX_GPUS))
    }
}

/// `None` for a slice of other devices, or of none that belong to a node.
pub(super) fn slice_gpus(slice: Result<PartialSlice, InvalidObject>) -> Option<SliceGpus> {
    let SliceSpec { driver, node_name, pool, devices } = slice.ok()?.spec;
    let attribute = |device: &Device, name: &str| device.attributes.get(name)?.string.clone();
    let is_gpu =
        |device: &&Device| attribute(device, TYPE).is_none_or(|kind| GPU_TYPES.contains(&kind.as_str()));
    let gpus = || devices.iter().filter(is_gpu);
    let node = node_name.filter(|_| GPU_DRIVERS.contains(&driver.as_str()))?;
    Some(SliceGpus {
        node: node.into(),
        pool: format_smolstr!("{driver}/{}", pool.name),
        generation: pool.generation,
        count: u32::try_from(gpus().count()).unwrap_or(MAX_GPUS).min(MAX_GPUS),
        product: gpus().find_map(|device| attribute(device, PRODUCT)).map(|name| short_name(&name).into()),
    })
}

/// The GPUs that drivers publish, by node.
pub(crate) fn node_devices(slices: &ObjectStore<SliceGpus>) -> HashMap<&str, NodeDevices<'_>> {
    let mut newest: HashMap<&str, i64> = HashMap::new();
    for (_, slice) in slices.iter() {
        let generation = newest.entry(&slice.pool).or_insert(slice.generation);
        *generation = slice.generation.max(*generation);
    }
    let mut nodes: HashMap<&str, NodeDevices<'_>> = HashMap::new();
    let is_newest = |slice: &SliceGpus| newest.get(slice.pool.as_str()) == Some(&slice.generation);
    for (_, slice) in slices.iter().filter(|(_, slice)| is_newest(slice)) {
        let node = nodes.entry(&slice.node).or_default();
        node.count = node.count.saturating_add(slice.count).min(MAX_GPUS);
        node.product = node.product.or(slice.product.as_ref());
    }
    nodes
}

/// The templates of a pod's claims, by their names. A claim that several pods share is nobody's own.
pub(crate) fn claim_templates(claims: &[PodClaim]) -> Box<[SmolStr]> {
    let names =
        claims.iter().take(MAX_CLAIMS).filter_map(|claim| claim.resource_claim_template_name.as_deref());
    names.map(SmolStr::from).collect()
}

/// The GPUs of claims made from these templates of a namespace; `None` for all of a node. Templates that do not exist have none.
pub(crate) fn gpus_of_claims<'n>(
    templates: &ObjectStore<ClaimedGpus>,
    namespace: &str,
    names: impl IntoIterator<Item = &'n SmolStr>,
) -> Option<u32> {
    let claimed = names.into_iter().filter_map(|name| templates.get(namespace, name));
    claimed
        .map(|claimed| claimed.0)
        .try_fold(0_u32, |sum, gpus| Some(sum.saturating_add(gpus?).min(MAX_GPUS)))
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::objects::ObjectKey;

    fn claimed(requests: Value) -> Option<Option<u32>> {
        let spec = json!({ "spec": { "devices": { "requests": requests } } });
        let template = json!({ "metadata": { "name": "t", "namespace": "n" }, "spec": spec });
        claimed_gpus(Ok(serde_json::from_value(template).unwrap())).map(|claimed| claimed.0)
    }

    #[test]
    fn a_claim_has_the_gpus_that_its_template_requests() {
        let class = "gpu.nvidia.com";
        let exactly = |request: Value| json!([{ "name": "r", "exactly": request }]);
        assert_eq!(claimed(exactly(json!({ "deviceClassName": class }))), Some(Some(1)));
        let four = json!({ "deviceClassName": class, "allocationMode": "ExactCount", "count": 4 });
        assert_eq!(claimed(exactly(four.clone())), Some(Some(4)));
        assert_eq!(
            claimed(exactly(json!({ "deviceClassName": class, "allocationMode": "All" }))),
            Some(None)
        );
        assert_eq!(claimed(exactly(json!({ "deviceClassName": class, "adminAccess": true }))), None);
        assert_eq!(claimed(exactly(json!({ "deviceClassName": "nic.example.com" }))), None);
        let two = json!({ "deviceClassName": "gpu.amd.com", "count": 2 });
        let several = json!([{ "exactly": { "deviceClassName": class } }, { "firstAvailable": [two, four] }]);
        assert_eq!(claimed(several), Some(Some(5)), "the larger of the alternatives");
        assert_eq!(claimed(json!([])), None);
    }

    fn slice(node: &str, driver: &str, generation: i64, devices: Value) -> Option<SliceGpus> {
        let spec = json!({
            "driver": driver, "nodeName": node, "pool": { "name": node, "generation": generation }, "devices": devices
        });
        slice_gpus(Ok(serde_json::from_value(json!({ "metadata": { "name": "s" }, "spec": spec })).unwrap()))
    }

    #[test]
    fn a_node_has_the_gpus_of_the_newest_slices() {
        let gpu = |kind: &str| json!({ "attributes": { "type": { "string": kind }, "productName": { "string": "NVIDIA H100 80GB HBM3" } } });
        let of_eight = |generation| slice("a", "gpu.nvidia.com", generation, json!(vec![gpu("gpu"); 8]));
        let mut slices = ObjectStore::default();
        let mut apply = |name: &str, slice| slices.apply(Event::Apply((ObjectKey::new("", name), slice)));
        apply("earlier", of_eight(1));
        apply("newer", slice("a", "gpu.nvidia.com", 2, json!([gpu("gpu"), gpu("gpu"), gpu("mig")])));
        apply("more", slice("a", "gpu.nvidia.com", 2, json!([{ "name": "of an unknown type" }])));
        apply("amd", slice("c", "gpu.amd.com", 1, json!([gpu("amdgpu"), gpu("amdgpu-partition")])));
        apply("nic", slice("b", "nic.example.com", 1, json!([{}])));
        let nodes = node_devices(&slices);
        assert_eq!((nodes.len(), nodes["c"].count), (2, 1));
        assert_eq!((nodes["a"].count, nodes["a"].product.unwrap().as_str()), (3, "H100"));
    }

    #[test]
    fn of_several_claims_each_counts_and_one_of_all_devices_is_unknown() {
        let mut templates = ObjectStore::default();
        for (name, gpus) in [("two", Some(2)), ("all", None)] {
            templates.apply(Event::Apply((ObjectKey::new("llm", name), Some(ClaimedGpus(gpus)))));
        }
        let of = |namespace: &str, names: &[&str]| {
            let names: Vec<SmolStr> = names.iter().copied().map(SmolStr::from).collect();
            gpus_of_claims(&templates, namespace, &names)
        };
        assert_eq!(of("llm", &["two", "two", "nic"]), Some(4));
        assert_eq!(of("llm", &["two", "all"]), None);
        assert_eq!(of("other", &["two"]), Some(0));
    }
}
