//! Reads a cluster: few lists, at once, page by page, each page within a time. What cannot be read is named, and everything else is read.

use std::time::Duration;

use futures::future::join_all;
use kube::Client;
use kube::api::ListParams;
use serde::Deserialize;
use serde_json::Value;

use super::inputs::{Inputs, Kind};
use super::report::Report;
use super::settings::Settings;
use crate::cluster::objects::STATE_LABEL;
use crate::cluster::watch::ListedKind;
use crate::cmd::api;
use crate::cmd::output::CommandError;
use crate::lint::Severity;

/// Longest wait for one answer. All lists are requested at once.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The oldest minor version that the chart accepts.
const MIN_MINOR: u32 = 27;

/// A list to read.
struct List {
    kind: Kind,
    /// The path of the API: `/api/v1` or `/apis/GROUP/VERSION`.
    api: &'static str,
    plural: &'static str,
    /// The namespace; `None` for all.
    namespace: Option<String>,
    /// The name of the only object, if it is one.
    name: Option<String>,
    /// A selector of labels.
    labels: Option<String>,
}

/// The version of an API server.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    minor: String,
    git_version: String,
}

/// Checks that the API server answers, and whether its version is supported.
///
/// # Errors
/// When it does not answer: nothing can be checked.
pub(super) async fn check_version(client: &Client, report: &mut Report) -> Result<(), CommandError> {
    let request = http::Request::get("/version").body(Vec::new());
    let request = request.map_err(kube::core::request::Error::BuildRequest);
    match api::request::<Version>(client, request, REQUEST_TIMEOUT).await {
        Ok(Version { minor, git_version }) => {
            let digits: String = minor.chars().take_while(char::is_ascii_digit).collect();
            if digits.parse::<u32>().is_ok_and(|minor| minor < MIN_MINOR) {
                report.add(
                    (Severity::Error, "KubernetesTooOld"),
                    "API server",
                    format!("its version is {git_version}"),
                    format!("versions before 1.{MIN_MINOR} are not supported, and the chart refuses them"),
                    "# upgrade the cluster",
                );
            }
        }
        Err(error) if error.code().is_some() => {
            report.add_unchecked(
                false,
                "API server",
                format!("could not read its version: {error}"),
                "# allow it to be read",
            );
        }
        Err(error) => return Err(format!("the API server: {error}; check the kubeconfig").into()),
    }
    Ok(())
}

/// Reads all objects.
pub(super) async fn read(client: &Client, settings: &Settings) -> Inputs {
    let lists = lists(settings);
    let answers = join_all(lists.iter().map(|list| read_list(client, list))).await;
    let mut inputs = Inputs::of_cluster();
    for (list, (objects, failure)) in lists.iter().zip(answers) {
        inputs.note_listed(list.kind);
        for object in objects {
            inputs.add(list.kind, object, settings);
        }
        if let Some(cause) = failure {
            inputs.add_unread(list.kind, list.plural, cause);
        }
    }
    inputs
}

fn lists(settings: &Settings) -> Vec<List> {
    const DEVICES: &str = "/apis/resource.k8s.io/v1";
    const POOLS: &str = "/apis/inference.networking.k8s.io/v1";
    const EARLIER_POOLS: &str = "/apis/inference.networking.x-k8s.io/v1alpha2";
    use ListedKind::{
        Deployment, EarlierInferencePool, HorizontalPodAutoscaler, InferencePool, LeaderWorkerSet, Namespace,
        Node, ResourceClaimTemplate, ResourceSlice, ScaledObject, Service, StatefulSet, VariantAutoscaling,
    };
    let list = |kind, api, plural| List {
        kind,
        api,
        plural,
        namespace: settings.namespace.clone(),
        name: None,
        labels: None,
    };
    let of_cluster = |kind, plural| List { namespace: None, ..list(kind, "/api/v1", plural) };
    let mut lists = vec![
        list(Kind::State(VariantAutoscaling), "/apis/llmd.ai/v1alpha1", "variantautoscalings"),
        list(Kind::State(HorizontalPodAutoscaler), "/apis/autoscaling/v2", "horizontalpodautoscalers"),
        list(Kind::State(ScaledObject), "/apis/keda.sh/v1alpha1", "scaledobjects"),
        list(Kind::Vertical, "/apis/autoscaling.k8s.io/v1", "verticalpodautoscalers"),
        list(Kind::State(Deployment), "/apis/apps/v1", "deployments"),
        list(Kind::State(StatefulSet), "/apis/apps/v1", "statefulsets"),
        list(Kind::State(LeaderWorkerSet), "/apis/leaderworkerset.x-k8s.io/v1", "leaderworkersets"),
        of_cluster(Kind::State(Namespace), "namespaces"),
        List { labels: settings.node_selector.clone(), ..of_cluster(Kind::State(Node), "nodes") },
        List { namespace: None, ..list(Kind::State(ResourceSlice), DEVICES, "resourceslices") },
        list(Kind::State(ResourceClaimTemplate), DEVICES, "resourceclaimtemplates"),
        list(Kind::State(InferencePool), POOLS, "inferencepools"),
        list(Kind::State(EarlierInferencePool), EARLIER_POOLS, "inferencepools"),
        list(Kind::State(Service), "/api/v1", "services"),
    ];
    let release = &settings.service.namespace;
    // The state of the program is large, and no configuration.
    let labels = Some(format!("!{STATE_LABEL}"));
    lists.push(List {
        namespace: Some(release.clone()),
        labels,
        ..of_cluster(Kind::ConfigMap, "configmaps")
    });
    let elsewhere = settings.namespace.as_ref().is_none_or(|namespace| namespace != release);
    let local = settings.config_maps.iter().filter(|(kind, _)| kind.may_be_local() && elsewhere);
    lists.extend(local.map(|(_, name)| List {
        name: Some(name.clone()),
        ..list(Kind::ConfigMap, "/api/v1", "configmaps")
    }));
    lists
}

/// The objects of a list, and why some may be missing. A kind that is not installed has no objects.
async fn read_list(client: &Client, list: &List) -> (Vec<Value>, Option<String>) {
    let List { api, plural, namespace, name, labels, .. } = list;
    let path = match namespace {
        Some(namespace) => format!("{api}/namespaces/{namespace}/{plural}"),
        None => format!("{api}/{plural}"),
    };
    let mut options = ListParams::default();
    if let Some(name) = name {
        options = options.fields(&format!("metadata.name={name}"));
    }
    if let Some(labels) = labels {
        options = options.labels(labels);
    }
    let mut objects = Vec::new();
    let read = api::list(client, &path, options, REQUEST_TIMEOUT, |object| objects.push(object)).await;
    match read {
        Ok(()) => (objects, None),
        Err(error) if error.is_not_found() => (Vec::new(), None),
        Err(error) => (objects, Some(error.to_string())),
    }
}
