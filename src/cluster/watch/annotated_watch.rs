//! Watches of what scales variants: HPAs and ScaledObjects, which annotations may make variants themselves, and VerticalPodAutoscalers.

use futures::stream::BoxStream;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::api::Api;
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::watcher;

use super::annotated::{Autoscaler, WatchedAutoscaler, watched_autoscaler};
use super::object_store::ClusterStore;
use super::optional_objects::OptionalObjects;
use super::optional_watch::{WatchedKind, api_of, optional_changes, optional_events};
use super::partial_objects::ParseGuard;
use super::store_events::Change;
use super::vertical::watched_vertical;
use super::watch_health::watch_config;
use crate::cluster::objects::VariantKind;

/// What to check when the API server refuses a list.
const HINT: &str = "allow the service account to list and watch them (the chart's ClusterRole does), or switch them off \
                    (--annotated-autoscalers=false, the chart's value annotatedAutoscalers)";

/// The same for VerticalPodAutoscalers, which nothing depends on.
const VERTICAL_HINT: &str = "allow the service account to list and watch them (the chart's ClusterRole does); until then variants are not \
                             told which of them restart pods";

/// The changes of the store by autoscalers; in one namespace, or in all. `with_reads`: also by how HPAs read numbers.
pub(super) fn annotated_changes(
    client: &kube::Client,
    namespace: Option<&str>,
    config: &watcher::Config,
    with_reads: bool,
) -> [BoxStream<'static, Change>; 3] {
    let api = |resource: &ApiResource| api_of(client, namespace, resource);
    let hpas = ApiResource::erase::<HorizontalPodAutoscaler>(&());
    let scaled_objects = GroupVersionKind::gvk("keda.sh", "v1alpha1", "ScaledObject");
    let scaled_objects = ApiResource::from_gvk_with_plural(&scaled_objects, "scaledobjects");
    let verticals = GroupVersionKind::gvk("autoscaling.k8s.io", "v1", "VerticalPodAutoscaler");
    let verticals = ApiResource::from_gvk_with_plural(&verticals, "verticalpodautoscalers");
    let watched =
        WatchedKind { resource: "VerticalPodAutoscalers", hint: VERTICAL_HINT, may_be_absent: true };
    let verticals =
        optional_events(watched, api_of(client, namespace, &verticals), watch_config(), watched_vertical);
    [
        optional_changes(verticals, |store| &mut store.verticals),
        changes((VariantKind::HorizontalPodAutoscaler, with_reads), api(&hpas), config, |store| {
            &mut store.hpas
        }),
        changes((VariantKind::ScaledObject, false), api(&scaled_objects), config, |store| {
            &mut store.scaled_objects
        }),
    ]
}

fn changes(
    (kind, with_reads): (VariantKind, bool),
    api: Api<ParseGuard<Autoscaler>>,
    config: &watcher::Config,
    objects: fn(&mut ClusterStore) -> &mut OptionalObjects<WatchedAutoscaler>,
) -> BoxStream<'static, Change> {
    // Every cluster has HPAs.
    let (resource, may_be_absent) = match kind {
        VariantKind::ScaledObject => ("ScaledObjects", true),
        _ => ("HorizontalPodAutoscalers", false),
    };
    let watched = WatchedKind { resource, hint: HINT, may_be_absent };
    let convert = move |object| watched_autoscaler(kind, with_reads, object);
    optional_changes(optional_events(watched, api, config.clone(), convert), objects)
}
