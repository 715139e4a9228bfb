//! Watches of InferencePools in both of their groups, and of the Services that they name.

use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::Service;
use kube::core::{ApiResource, GroupVersionKind};

use super::inference_pool::{service_selector, watched_pool};
use super::optional_watch::{WatchedKind, api_of, optional_changes, optional_events};
use super::store_events::Change;
use super::watch_health::watch_config;

/// What to check when the API server refuses a list.
const HINT: &str = "allow the service account to list and watch them (the chart's ClusterRole does); until then the metrics of \
                    endpoint pickers are read from Prometheus only";

/// The changes of the store by InferencePools; in one namespace, or in all.
pub(super) fn pool_changes(
    client: &kube::Client,
    namespace: Option<&str>,
) -> [BoxStream<'static, Change>; 2] {
    let changes = |group, version, objects| {
        let kind = GroupVersionKind::gvk(group, version, "InferencePool");
        let resource = ApiResource::from_gvk_with_plural(&kind, "inferencepools");
        let watched = WatchedKind { resource: "InferencePools", hint: HINT, may_be_absent: true };
        let api = api_of(client, namespace, &resource);
        optional_changes(optional_events(watched, api, watch_config(), watched_pool), objects)
    };
    [
        changes("inference.networking.k8s.io", "v1", |store| &mut store.pools),
        changes("inference.networking.x-k8s.io", "v1alpha2", |store| &mut store.x_pools),
    ]
}

/// The changes of the store by Services.
pub(super) fn service_changes(client: &kube::Client, namespace: Option<&str>) -> BoxStream<'static, Change> {
    let resource = ApiResource::erase::<Service>(&());
    let watched = WatchedKind { resource: "Services", hint: HINT, may_be_absent: false };
    let api = api_of(client, namespace, &resource);
    optional_changes(optional_events(watched, api, watch_config(), service_selector), |store| {
        &mut store.services
    })
}
