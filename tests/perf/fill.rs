//! Fills a cluster with variants as API objects: for each a Deployment, its ReplicaSet, pods that are Ready, and a
//! VariantAutoscaling, tied together by owner references as controllers tie them. Made directly, because controllers and a
//! fake kubelet need the better part of an hour for 20,000 pods; they must not run, or they would make it all anew.
//! Repeatable: what is there stays, so 1,000 variants grow to 10,000. Not part of the product.

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

/// Variants under way: enough to keep an API server busy, few enough for its flow control.
const IN_FLIGHT: usize = 64;
/// A line of progress after so many.
const TELL_EVERY: usize = 1_000;
/// How many objects a list fetches at once, as client-go does.
const PAGE: u32 = 500;

/// Make the variants v-0 … with Ready pods.
#[derive(Debug, Parser)]
struct Args {
    /// The cluster, with the rights to make everything.
    #[arg(long)]
    kubeconfig: PathBuf,
    /// How many variants there are to be.
    #[arg(long)]
    variants: usize,
    /// How many pods each has.
    #[arg(long, default_value_t = 2)]
    pods: usize,
    /// Where.
    #[arg(long, default_value = "llm")]
    namespace: String,
}

/// Where objects are made.
#[derive(Clone)]
struct Place {
    client: Client,
    namespace: String,
    pods: usize,
}

impl Place {
    /// Makes `object`, or finds the one of that name.
    async fn made<K>(&self, object: Value) -> anyhow::Result<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Serialize + DeserializeOwned,
        K: std::fmt::Debug,
    {
        let object: K = serde_json::from_value(object)?;
        let (api, name) = (self.api::<K>(), object.name_any());
        match api.create(&PostParams::default(), &object).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(api.get(&name).await?),
            made => made.with_context(|| format!("{} {name}", K::kind(&()))),
        }
    }

    async fn told<K>(&self, name: &str, status: Value) -> anyhow::Result<()>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        let patch = Patch::Merge(json!({ "status": status }));
        let told = self.api::<K>().patch_status(name, &PatchParams::default(), &patch).await;
        told.map(drop).with_context(|| format!("status of {} {name}", K::kind(&())))
    }

    fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// What must be there first. Pods are refused without the service account that a controller makes in every namespace.
    async fn prepare(&self) -> anyhow::Result<()> {
        let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": self.namespace } }))?;
        match Api::all(self.client.clone()).create(&PostParams::default(), &namespace).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            made => drop(made?),
        }
        self.made::<ServiceAccount>(json!({ "metadata": { "name": "default" } })).await.map(drop)
    }

    /// The variants that are whole already: the VariantAutoscaling is made last.
    async fn there(&self) -> anyhow::Result<BTreeSet<String>> {
        let (api, mut names, mut page) = (self.api::<VariantAutoscaling>(), BTreeSet::new(), None);
        loop {
            let list = ListParams { limit: Some(PAGE), continue_token: page, ..ListParams::default() };
            let seen = api.list_metadata(&list).await?;
            names.extend(seen.items.iter().map(|object| object.name_any()));
            page = seen.metadata.continue_.filter(|token| !token.is_empty());
            if page.is_none() {
                return Ok(names);
            }
        }
    }

    async fn variant(&self, name: &str) -> anyhow::Result<()> {
        let deployment: Deployment = self.made(self.deployment(name)).await?;
        self.told::<Deployment>(name, json!({ "replicas": self.pods, "readyReplicas": self.pods })).await?;
        let set: ReplicaSet = self.made(self.replica_set(name, &owner("Deployment", &deployment))).await?;
        let (labels, owner) = (labels(name), owner("ReplicaSet", &set));
        for number in 0..self.pods {
            let pod = format!("{name}-{number}");
            let metadata = json!({ "name": pod, "labels": labels, "ownerReferences": [owner] });
            let mut spec = pod_spec();
            spec["nodeName"] = "cpu-0".into();
            let made: Pod = self.made(json!({ "metadata": metadata, "spec": spec })).await?;
            self.told::<Pod>(&pod, ready(&made, name, number)).await?;
        }
        self.made::<VariantAutoscaling>(variant_autoscaling(name)).await.map(drop)
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

/// The status of a pod that serves, as a kubelet writes it.
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
    let place = Place { client: Client::try_from(config)?, namespace: args.namespace, pods: args.pods };
    place.prepare().await?;
    let there = place.there().await?;
    let missing: Vec<_> =
        (0..args.variants).map(|i| format!("v-{i}")).filter(|name| !there.contains(name)).collect();
    let (began, all) = (Instant::now(), missing.len());
    println!("{} variants are there, {all} to make", there.len());
    let mut making = futures::stream::iter(missing)
        .map(|name| {
            let place = place.clone();
            async move { place.variant(&name).await }
        })
        .buffer_unordered(IN_FLIGHT);
    let mut made = 0;
    while making.try_next().await?.is_some() {
        made += 1;
        if made % TELL_EVERY == 0 || made == all {
            println!("{made} of {all} variants after {:.0} s", began.elapsed().as_secs_f64());
        }
    }
    Ok(())
}
