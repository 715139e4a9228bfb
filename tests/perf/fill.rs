//! Fills a cluster with variants as API objects: for each a Deployment, a ReplicaSet, Ready pods and a VariantAutoscaling, linked by
//! owner references as controllers do. They are created directly, because controllers and a fake kubelet need most of an hour for
//! 20,000 pods. The controllers must not run, or they would create everything again. Existing objects stay, so that 1,000 variants
//! can grow to 10,000. Not part of wva.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::NamespaceResourceScope;
use kube::{Client, Config, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
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
}

/// The namespace in which objects are created.
#[derive(Clone)]
struct TargetNamespace {
    client: Client,
    namespace: String,
    pods: usize,
}

impl TargetNamespace {
    /// Creates `object`, or reads the existing one of that name.
    async fn create<K>(&self, object: Value) -> anyhow::Result<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Serialize + DeserializeOwned,
        K: std::fmt::Debug,
    {
        let object: K = serde_json::from_value(object)?;
        let api = self.api::<K>();
        let name = object.name_any();
        match api.create(&PostParams::default(), &object).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(api.get(&name).await?),
            created => created.with_context(|| format!("{} {name}", K::kind(&()))),
        }
    }

    async fn set_status<K>(&self, name: &str, status: Value) -> anyhow::Result<()>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        let patch = Patch::Merge(json!({ "status": status }));
        let patched = self.api::<K>().patch_status(name, &PatchParams::default(), &patch).await;
        patched.map(drop).with_context(|| format!("status of {} {name}", K::kind(&())))
    }

    fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Creates the namespace and its service account, which a controller creates in a real cluster. Pods are rejected without it.
    async fn prepare(&self) -> anyhow::Result<()> {
        let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": self.namespace } }))?;
        match Api::all(self.client.clone()).create(&PostParams::default(), &namespace).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            created => drop(created?),
        }
        self.create::<ServiceAccount>(json!({ "metadata": { "name": "default" } })).await.map(drop)
    }

    /// The variants that are complete: the VariantAutoscaling is created last.
    async fn existing(&self) -> anyhow::Result<BTreeSet<String>> {
        let api = self.api::<VariantAutoscaling>();
        let mut names = BTreeSet::new();
        let mut page = None;
        loop {
            let list = ListParams { limit: Some(PAGE_SIZE), continue_token: page, ..ListParams::default() };
            let objects = api.list_metadata(&list).await?;
            names.extend(objects.items.iter().map(|object| object.name_any()));
            page = objects.metadata.continue_.filter(|token| !token.is_empty());
            if page.is_none() {
                return Ok(names);
            }
        }
    }

    async fn create_variant(&self, name: &str) -> anyhow::Result<()> {
        let deployment: Deployment = self.create(self.deployment(name)).await?;
        self.set_status::<Deployment>(name, json!({ "replicas": self.pods, "readyReplicas": self.pods }))
            .await?;
        let set: ReplicaSet = self.create(self.replica_set(name, &owner("Deployment", &deployment))).await?;
        let labels = labels(name);
        let owner = owner("ReplicaSet", &set);
        for number in 0..self.pods {
            let pod = format!("{name}-{number}");
            let metadata = json!({ "name": pod, "labels": labels, "ownerReferences": [owner] });
            let mut spec = pod_spec();
            spec["nodeName"] = "cpu-0".into();
            let created: Pod = self.create(json!({ "metadata": metadata, "spec": spec })).await?;
            self.set_status::<Pod>(&pod, ready(&created, name, number)).await?;
        }
        self.create::<VariantAutoscaling>(variant_autoscaling(name)).await.map(drop)
    }

    fn deployment(&self, name: &str) -> Value {
        json!({
            "metadata": { "name": name },
            "spec": { "replicas": self.pods, "selector": { "matchLabels": { "app": name } }, "template": template(name) }
        })
    }

    fn replica_set(&self, name: &str, owner: &Value) -> Value {
        json!({
            "metadata": { "name": format!("{name}-rs"), "labels": labels(name), "ownerReferences": [owner] },
            "spec": { "replicas": self.pods, "selector": { "matchLabels": { "app": name } }, "template": template(name) }
        })
    }
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

fn variant_autoscaling(name: &str) -> Value {
    let target = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": name });
    let labels = json!({ wva::cluster::crd::ACCELERATOR_LABEL: "H100" });
    json!({
        "apiVersion": "llmd.ai/v1alpha1", "kind": "VariantAutoscaling",
        "metadata": { "name": name, "labels": labels },
        "spec": { "scaleTargetRef": target, "modelID": name, "variantCost": "10.0", "minReplicas": 1, "maxReplicas": 10 }
    })
}

/// The reference to the object that manages another.
fn owner<K: Resource<DynamicType = ()>>(kind: &str, object: &K) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": kind, "name": object.name_any(), "uid": object.uid().unwrap_or_default(),
        "controller": true, "blockOwnerDeletion": true
    })
}

/// The status of a Ready pod, as a kubelet writes it.
fn ready(pod: &Pod, variant: &str, number: usize) -> Value {
    let since = pod.creation_timestamp();
    let condition = |kind: &str| json!({ "type": kind, "status": "True", "lastTransitionTime": since });
    let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition);
    let index: usize = variant.trim_start_matches("v-").parse().unwrap_or_default();
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
    let target =
        TargetNamespace { client: Client::try_from(config)?, namespace: args.namespace, pods: args.pods };
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
