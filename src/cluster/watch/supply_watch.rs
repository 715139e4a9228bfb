//! Watches of ResourceQuotas, of the LocalQueues of Kueue, and of dynamic resource allocation. All but the first may be absent, and without
//! the right to list them they are no limit.

use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::core::{ApiResource, GroupVersionKind};

use super::devices::{claimed_gpus, slice_gpus};
use super::optional_watch::{WatchedKind, api_of, optional_changes, optional_events};
use super::store_events::Change;
use super::supply_objects::{closed_queue, watched_quota};
use super::watch_health::watch_config;

/// What to check when the API server refuses a list.
const HINT: &str = "allow the service account to list and watch them (the chart's ClusterRole does); until then they are no limit";

/// The changes of the store by objects that limit what variants may use; in one namespace, or in all.
pub(super) fn supply_changes(
    client: &kube::Client,
    namespace: Option<&str>,
) -> [BoxStream<'static, Change>; 4] {
    let quotas = ApiResource::erase::<ResourceQuota>(&());
    let quotas = api_of(client, namespace, &quotas);
    let watched = |resource| WatchedKind { resource, hint: HINT, may_be_absent: true };
    let quotas = optional_events(watched("ResourceQuotas"), quotas, watch_config(), watched_quota());
    let queues = |version, objects| {
        let kind = GroupVersionKind::gvk("kueue.x-k8s.io", version, "LocalQueue");
        let resource = ApiResource::from_gvk_with_plural(&kind, "localqueues");
        let api = api_of(client, namespace, &resource);
        optional_changes(optional_events(watched("LocalQueues"), api, watch_config(), closed_queue), objects)
    };
    let templates =
        api_of(client, namespace, &resource_of_claims("ResourceClaimTemplate", "resourceclaimtemplates"));
    let templates =
        optional_events(watched("ResourceClaimTemplates"), templates, watch_config(), claimed_gpus);
    [
        optional_changes(templates, |store| &mut store.claim_templates),
        optional_changes(quotas, |store| &mut store.quotas),
        queues("v1beta1", |store| &mut store.earlier_queues),
        queues("v1beta2", |store| &mut store.queues),
    ]
}

/// The changes of the store by the GPUs that drivers publish.
pub(super) fn slice_changes(client: &kube::Client) -> BoxStream<'static, Change> {
    let slices = api_of(client, None, &resource_of_claims("ResourceSlice", "resourceslices"));
    let hint = "grant it with the chart's value limits.inventory; until then GPUs of drivers do not count";
    let watched = WatchedKind { resource: "ResourceSlices", hint, may_be_absent: true };
    let slices = optional_events(watched, slices, watch_config(), slice_gpus);
    optional_changes(slices, |store| &mut store.slices)
}

fn resource_of_claims(kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("resource.k8s.io", "v1", kind), plural)
}
