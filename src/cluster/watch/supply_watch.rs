//! Watches of ResourceQuotas, and of the LocalQueues of Kueue, which may be absent. Without the right to list them there is no such limit.

use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::core::{ApiResource, GroupVersionKind};

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
) -> [BoxStream<'static, Change>; 3] {
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
    [
        optional_changes(quotas, |store| &mut store.quotas),
        queues("v1beta1", |store| &mut store.earlier_queues),
        queues("v1beta2", |store| &mut store.queues),
    ]
}
