//! Fills a cluster with variants as API objects: for each a scale target, Ready pods and a VariantAutoscaling, linked by owner
//! references as controllers do. They are created directly, because controllers and a fake kubelet need most of an hour for 20,000
//! pods. The controllers must not run, or they would create everything again. Existing objects stay, so that 1,000 variants can grow
//! to 10,000. Not part of wva.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind, TypeMeta};
use kube::{Client, Config, Resource, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::Instant;
use wva::cluster::crd::VariantAutoscaling;

/// Variants created concurrently: enough to keep an API server busy, few enough for its flow control.
const MAX_CONCURRENT: usize = 64;
/// Variants between two lines of progress.
const PROGRESS_INTERVAL: usize = 1_000;
/// Objects of one page of a list, as in client-go.
const PAGE_SIZE: u32 = 500;

/// Create the variants v-0 … with Ready pods.
#[derive(Debug, Parser)]
struct Args {
    /// The kubeconfig of the cluster, with the rights to create everything.
    #[arg(long)]
    kubeconfig: PathBuf,
    /// Number of variants.
    #[arg(long)]
    variants: usize,
    /// Pods of each variant.
    #[arg(long, default_value_t = 2)]
    pods: usize,
    /// Their namespace.
    #[arg(long, default_value = "llm")]
    namespace: String,
    /// Of four variants, the second has a StatefulSet, the third a LeaderWorkerSet (whose definition must be installed) with groups
    /// of one pod, and the fourth an annotated HPA instead of a VariantAutoscaling.
    #[arg(long)]
    mixed: bool,
}

/// What a variant consists of.
#[derive(Clone, Copy)]
enum Kind {
    Deployment,
    StatefulSet,
    LeaderWorkerSet,
    AnnotatedHpa,
}

impl Kind {
    /// The kind of the variant `name`.
    fn of(name: &str, mixed: bool) -> Self {
        match index(name) % 4 {
            1 if mixed => Self::StatefulSet,
            2 if mixed => Self::LeaderWorkerSet,
            3 if mixed => Self::AnnotatedHpa,
            _ => Self::Deployment,
        }
    }

    /// API version and kind of the scale target.
    const fn target(self) -> (&'static str, &'static str) {
        match self {
            Self::Deployment | Self::AnnotatedHpa => ("apps/v1", "Deployment"),
            Self::StatefulSet => ("apps/v1", "StatefulSet"),
            Self::LeaderWorkerSet => ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
        }
    }
}

/// The namespace in which objects are created.
#[derive(Clone)]
struct TargetNamespace {
    client: Client,
    namespace: String,
    pods: usize,
    mixed: bool,
}

impl TargetNamespace {
    /// Creates an object, or reads the existing one of that name.
    async fn create(&self, resource: &ApiResource, object: Value) -> anyhow::Result<DynamicObject> {
        let mut object: DynamicObject = serde_json::from_value(object)?;
        let ApiResource { api_version, kind, .. } = resource.clone();
        object.types = Some(TypeMeta { api_version, kind });
        let api = self.api(resource);
        let name = object.name_any();
        match api.create(&PostParams::default(), &object).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(api.get(&name).await?),
            created => created.with_context(|| format!("{} {name}", resource.kind)),
        }
    }

    async fn set_status(&self, resource: &ApiResource, name: &str, status: Value) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({ "status": status }));
        let patched = self.api(resource).patch_status(name, &PatchParams::default(), &patch).await;
        patched.map(drop).with_context(|| format!("status of {} {name}", resource.kind))
    }

    fn api(&self, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, resource)
    }

    /// Creates the namespace and its service account, which a controller creates in a real cluster. Pods are rejected without it.
    async fn prepare(&self) -> anyhow::Result<()> {
        let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": self.namespace } }))?;
        match Api::all(self.client.clone()).create(&PostParams::default(), &namespace).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            created => drop(created?),
        }
        let account = json!({ "metadata": { "name": "default" } });
        self.create(&resource::<ServiceAccount>(), account).await.map(drop)
    }

    /// The variants that are complete: the VariantAutoscaling, or the HPA, is created last.
    async fn existing(&self) -> anyhow::Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        for resource in [resource::<VariantAutoscaling>(), resource::<HorizontalPodAutoscaler>()] {
            let api = self.api(&resource);
            let mut list = ListParams::default().limit(PAGE_SIZE);
            loop {
                let objects = api.list_metadata(&list).await?;
                names.extend(objects.items.iter().map(|object| object.name_any()));
                list.continue_token = objects.metadata.continue_.filter(|token| !token.is_empty());
                if list.continue_token.is_none() {
                    break;
                }
            }
        }
        Ok(names)
    }

    async fn create_variant(&self, name: &str) -> anyhow::Result<()> {
        let kind = Kind::of(name, self.mixed);
        let owner = owner(&self.create_target(name, kind).await?);
        let pods = resource::<Pod>();
        for number in 0..self.pods {
            let pod = format!("{name}-{number}");
            let metadata = json!({ "name": pod, "labels": labels(name), "ownerReferences": [owner] });
            let mut spec = pod_spec();
            spec["nodeName"] = "cpu-0".into();
            let created = self.create(&pods, json!({ "metadata": metadata, "spec": spec })).await?;
            self.set_status(&pods, &pod, ready(&created, name, number)).await?;
        }
        let created = match kind {
            Kind::AnnotatedHpa => {
                self.create(&resource::<HorizontalPodAutoscaler>(), annotated_hpa(name, kind)).await
            }
            _ => self.create(&resource::<VariantAutoscaling>(), variant_autoscaling(name, kind)).await,
        };
        created.map(drop)
    }

    /// Creates the scale target, and returns the object that owns the pods.
    async fn create_target(&self, name: &str, kind: Kind) -> anyhow::Result<DynamicObject> {
        let status = json!({ "replicas": self.pods, "readyReplicas": self.pods });
        let (target, spec) = match kind {
            Kind::Deployment | Kind::AnnotatedHpa => (resource::<Deployment>(), self.spec(name)),
            Kind::StatefulSet => (resource::<StatefulSet>(), self.spec(name)),
            Kind::LeaderWorkerSet => (leader_worker_sets(), self.group_spec(name)),
        };
        let created = self.create(&target, json!({ "metadata": { "name": name }, "spec": spec })).await?;
        self.set_status(&target, name, status).await?;
        let (child, name) = match kind {
            Kind::StatefulSet => return Ok(created),
            Kind::Deployment | Kind::AnnotatedHpa => (resource::<ReplicaSet>(), format!("{name}-rs")),
            Kind::LeaderWorkerSet => (resource::<StatefulSet>(), name.to_owned()),
        };
        let metadata = json!({ "name": name, "labels": labels(&created.name_any()), "ownerReferences": [owner(&created)] });
        self.create(&child, json!({ "metadata": metadata, "spec": self.spec(&created.name_any()) })).await
    }

    fn spec(&self, name: &str) -> Value {
        json!({ "replicas": self.pods, "selector": { "matchLabels": { "app": name } }, "template": template(name) })
    }

    fn group_spec(&self, name: &str) -> Value {
        json!({ "replicas": self.pods, "leaderWorkerTemplate": { "size": 1, "workerTemplate": template(name) } })
    }
}

fn resource<K: Resource<DynamicType = ()>>() -> ApiResource {
    ApiResource::erase::<K>(&())
}

fn leader_worker_sets() -> ApiResource {
    let kind = GroupVersionKind::gvk("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet");
    ApiResource::from_gvk_with_plural(&kind, "leaderworkersets")
}

/// The number in the name of a variant.
fn index(name: &str) -> usize {
    name.trim_start_matches("v-").parse().unwrap_or_default()
}

fn labels(name: &str) -> Value {
    json!({ "app": name, "llm-d.ai/model": name })
}

fn template(name: &str) -> Value {
    json!({ "metadata": { "labels": labels(name) }, "spec": pod_spec() })
}

fn pod_spec() -> Value {
    let container = json!({ "name": "vllm", "image": "vllm/vllm-openai", "ports": [{ "name": "http", "containerPort": 8000 }] });
    json!({ "containers": [container], "automountServiceAccountToken": false })
}

fn variant_autoscaling(name: &str, kind: Kind) -> Value {
    let labels = json!({ wva::cluster::crd::ACCELERATOR_LABEL: "H100" });
    json!({
        "metadata": { "name": name, "labels": labels },
        "spec": {
            "scaleTargetRef": target(name, kind), "modelID": name, "variantCost": "10.0", "minReplicas": 1, "maxReplicas": 10
        }
    })
}

fn annotated_hpa(name: &str, kind: Kind) -> Value {
    let metric =
        json!({ "name": "wva_desired_replicas", "selector": { "matchLabels": { "variant_name": name } } });
    let metric = json!({ "type": "External", "external": { "metric": metric, "target": { "type": "AverageValue", "averageValue": "1" } } });
    let annotations =
        json!({ "llm-d.ai/managed": "true", "llm-d.ai/model-id": name, "llm-d.ai/variant-cost": "10.0" });
    let labels = json!({ wva::cluster::crd::ACCELERATOR_LABEL: "H100" });
    json!({
        "metadata": { "name": name, "labels": labels, "annotations": annotations },
        "spec": { "scaleTargetRef": target(name, kind), "minReplicas": 1, "maxReplicas": 10, "metrics": [metric] }
    })
}

fn target(name: &str, kind: Kind) -> Value {
    let (api_version, kind) = kind.target();
    json!({ "apiVersion": api_version, "kind": kind, "name": name })
}

/// The reference to the object that manages another.
fn owner(object: &DynamicObject) -> Value {
    let types = object.types.clone().unwrap_or_default();
    json!({
        "apiVersion": types.api_version, "kind": types.kind, "name": object.name_any(), "uid": object.uid().unwrap_or_default(),
        "controller": true, "blockOwnerDeletion": true
    })
}

/// The status of a Ready pod, as a kubelet writes it.
fn ready(pod: &DynamicObject, variant: &str, number: usize) -> Value {
    let since = pod.creation_timestamp();
    let condition = |kind: &str| json!({ "type": kind, "status": "True", "lastTransitionTime": since });
    let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition);
    let index = index(variant);
    let ip = format!("10.{number}.{}.{}", index >> 8 & 0xff, index & 0xff);
    let container = json!({
        "name": "vllm", "image": "vllm/vllm-openai", "imageID": "", "ready": true, "started": true, "restartCount": 0,
        "state": { "running": { "startedAt": since } }
    });
    json!({
        "phase": "Running", "conditions": conditions, "podIP": ip, "podIPs": [{ "ip": ip }], "startTime": since,
        "containerStatuses": [container]
    })
}

#[expect(clippy::print_stdout, reason = "progress")]
#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let kubeconfig = Kubeconfig::read_from(&args.kubeconfig)
        .with_context(|| format!("--kubeconfig {}", args.kubeconfig.display()))?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let Args { namespace, pods, mixed, .. } = args;
    let target = TargetNamespace { client: Client::try_from(config)?, namespace, pods, mixed };
    target.prepare().await?;
    let existing = target.existing().await?;
    let missing: Vec<_> =
        (0..args.variants).map(|i| format!("v-{i}")).filter(|name| !existing.contains(name)).collect();
    let started = Instant::now();
    let total = missing.len();
    println!("{} variants exist, {total} to create", existing.len());
    let mut tasks = futures::stream::iter(missing)
        .map(|name| {
            let target = target.clone();
            async move { target.create_variant(&name).await }
        })
        .buffer_unordered(MAX_CONCURRENT);
    let mut created = 0;
    while tasks.try_next().await?.is_some() {
        created += 1;
        if created % PROGRESS_INTERVAL == 0 || created == total {
            println!("{created} of {total} variants after {:.0} s", started.elapsed().as_secs_f64());
        }
    }
    Ok(())
}
