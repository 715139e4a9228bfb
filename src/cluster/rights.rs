//! The rights that the program uses. A test holds this table against the roles of the chart.

use super::leadership::{installation_name, object_names};
use super::pki::apiservice::{EXPLANATIONS_NAME, NAME, NAMES};
use super::pki::certificates::DEFAULT_SECRET_NAME;

/// Where a right is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RightScope {
    /// In the whole cluster, or for objects without a namespace.
    Cluster,
    /// In each namespace that is watched.
    Watched,
    /// In the namespace of the program.
    Release,
    /// In `kube-system`, by a role that every cluster has.
    KubeSystem,
}

/// The right to use some verbs on a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Right {
    /// Where.
    pub scope: RightScope,
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The resource, with its subresource after a slash.
    pub resource: &'static str,
    /// The names that it is limited to; empty for all.
    pub names: Vec<String>,
    /// The verbs.
    pub verbs: &'static [&'static str],
    /// What does not work without it.
    pub without: &'static str,
    /// Who does not need it.
    pub unless: Option<&'static str>,
}

/// What decides which rights are in use, and the names that they are limited to.
#[derive(Debug, Clone, Copy)]
pub struct RightNames<'a> {
    /// Whether annotations make variants.
    pub annotated_autoscalers: bool,
    /// Whether woken workloads are scaled.
    pub wakes_directly: bool,
    /// Whether the deletion costs of pods are written.
    pub writes_deletion_costs: bool,
    /// Whether KEDA's external scaler is served.
    pub serves_external_scaler: bool,
    /// Whether external metrics are read elsewhere with the program's own token.
    pub passes_on: bool,
    /// Whether the APIService of another program is taken over.
    pub takes_over: bool,
    /// Whether one namespace is watched.
    pub is_of_namespace: bool,
    /// The name of the Lease.
    pub lease: &'a str,
    /// The controller instance, which names the state objects.
    pub controller_instance: Option<&'a str>,
    /// The ConfigMaps that namespaces may have.
    pub config_maps: &'a [String],
}

const READ: &[&str] = &["list", "watch"];
const PATCH: &[&str] = &["patch"];
const CREATE: &[&str] = &["create"];
const API_SERVICES: (&str, &str) = ("apiregistration.k8s.io", "apiservices");

/// The rights in use.
#[must_use]
pub fn rights(names: RightNames<'_>) -> Vec<Right> {
    let mut rights = of_cluster();
    rights.extend(of_watched(names.config_maps));
    rights.retain(|right| match right.resource {
        "namespaces" => !names.is_of_namespace,
        "horizontalpodautoscalers" | "scaledobjects" | "verticalpodautoscalers" => {
            names.annotated_autoscalers
        }
        _ => true,
    });
    rights.extend(of_options(names));
    rights.extend(of_release(names));
    rights
}

/// Those of writers that have to be asked for.
fn of_options(names: RightNames<'_>) -> Vec<Right> {
    const SCALE: &[&str] = &["get", "patch"];
    let (apps, sets) = ("apps", "leaderworkerset.x-k8s.io");
    let scale = |resource| {
        let without = "woken workloads are not scaled directly: their autoscalers do it later";
        right(RightScope::Watched, resource, SCALE, without)
    };
    let mut rights = Vec::new();
    if names.wakes_directly {
        let resources =
            [(apps, "deployments/scale"), (apps, "statefulsets/scale"), (sets, "leaderworkersets/scale")];
        rights.extend(resources.map(scale));
    }
    if names.serves_external_scaler {
        let without = "ScaledObjects with modelID in their triggers are no variants";
        rights.push(right(RightScope::Watched, ("keda.sh", "scaledobjects"), &["get"], without));
    }
    if names.passes_on {
        let without = "the fallback server lets no metric be read, unless it authorises by something else";
        rights.push(right(RightScope::Cluster, ("external.metrics.k8s.io", "*"), &["get", "list"], without));
    }
    if names.takes_over {
        let without = "the APIService is neither taken over nor given back";
        let take_over = right(RightScope::Cluster, API_SERVICES, PATCH, without);
        rights.push(Right { names: vec![NAME.to_owned()], ..take_over });
    }
    if names.writes_deletion_costs {
        let without = "pods get no deletion cost: a ReplicaSet deletes the youngest pods first, busy or not";
        rights.push(right(RightScope::Watched, ("", "pods"), PATCH, without));
    }
    rights
}

const fn right(
    scope: RightScope,
    (group, resource): (&'static str, &'static str),
    verbs: &'static [&'static str],
    without: &'static str,
) -> Right {
    Right { scope, group, resource, names: Vec::new(), verbs, without, unless: None }
}

fn of_cluster() -> Vec<Right> {
    const API_STATUS: (&str, &str) = ("apiregistration.k8s.io", "apiservices/status");
    const TOKENS: (&str, &str) = ("authentication.k8s.io", "tokenreviews");
    const REVIEWS: (&str, &str) = ("authorization.k8s.io", "subjectaccessreviews");
    use RightScope::{Cluster, KubeSystem};
    let unverified = "the API server cannot verify the program's certificate, and no HPA reads a number";
    let own = vec![NAME.to_owned()];
    let explanations = vec![EXPLANATIONS_NAME.to_owned()];
    let no_explanations =
        "the API server cannot verify the program's certificate, and kubectl wva shows nothing";
    vec![
        Right {
            names: NAMES.map(str::to_owned).to_vec(),
            ..right(Cluster, API_SERVICES, READ, "it is not known which program HPAs read")
        },
        Right {
            names: own.clone(),
            unless: Some("its certificate is given by tls.secretName, or apiService.enabled is false"),
            ..right(Cluster, API_SERVICES, PATCH, unverified)
        },
        Right {
            names: own,
            unless: Some("apiService.enabled is false"),
            ..right(
                Cluster,
                API_STATUS,
                PATCH,
                "nobody is told on the APIService whether the certificate is valid",
            )
        },
        Right {
            names: explanations.clone(),
            unless: Some(
                "its certificate is given by tls.secretName, or apiService.explanations.enabled is false",
            ),
            ..right(Cluster, API_SERVICES, PATCH, no_explanations)
        },
        Right {
            names: explanations,
            unless: Some("apiService.explanations.enabled is false"),
            ..right(
                Cluster,
                API_STATUS,
                PATCH,
                "nobody is told on that APIService whether the certificate is valid",
            )
        },
        right(Cluster, ("", "namespaces"), READ, "excluded namespaces are not ignored"),
        right(Cluster, TOKENS, CREATE, "callers with a token are refused"),
        right(Cluster, REVIEWS, CREATE, "all reads of numbers are refused"),
        Right {
            names: vec!["extension-apiserver-authentication".into()],
            ..right(
                KubeSystem,
                ("", "configmaps"),
                &["get", "list", "watch"],
                "requests of the API server are refused",
            )
        },
    ]
}

fn of_watched(config_maps: &[String]) -> Vec<Right> {
    const VARIANTS: (&str, &str) = ("llmd.ai", "variantautoscalings");
    const STATUS: (&str, &str) = ("llmd.ai", "variantautoscalings/status");
    const POOLS: (&str, &str) = ("inference.networking.k8s.io", "inferencepools");
    const EARLIER_POOLS: (&str, &str) = ("inference.networking.x-k8s.io", "inferencepools");
    const SETS: (&str, &str) = ("leaderworkerset.x-k8s.io", "leaderworkersets");
    const CLAIMS: (&str, &str) = ("resource.k8s.io", "resourceclaimtemplates");
    const QUEUES: (&str, &str) = ("kueue.x-k8s.io", "localqueues");
    use RightScope::Watched;
    let watched = |resource, verbs, without| right(Watched, resource, verbs, without);
    vec![
        watched(VARIANTS, READ, "there are no variants, and no number"),
        watched(STATUS, PATCH, "the status of variants is not written"),
        watched(("autoscaling", "horizontalpodautoscalers"), READ, "annotated HPAs are no variants"),
        watched(
            ("keda.sh", "scaledobjects"),
            READ,
            "annotated ScaledObjects are no variants, and pauses are not shown",
        ),
        watched(
            ("autoscaling.k8s.io", "verticalpodautoscalers"),
            READ,
            "variants are not told which VerticalPodAutoscalers restart their pods",
        ),
        watched(("apps", "deployments"), READ, "nothing is decided"),
        watched(("apps", "replicasets"), READ, "pods belong to no Deployment, and nothing is decided"),
        watched(("apps", "statefulsets"), READ, "StatefulSets get no number"),
        watched(SETS, READ, "LeaderWorkerSets get no number"),
        watched(("", "pods"), READ, "nothing is decided"),
        watched(POOLS, READ, "nothing wakes the models of InferencePools of v1"),
        watched(EARLIER_POOLS, READ, "nothing wakes the models of InferencePools of v1alpha2"),
        watched(("", "services"), READ, "endpoint pickers are not found, and nothing wakes their models"),
        watched(
            ("", "resourcequotas"),
            READ,
            "ResourceQuotas are no limit: pods that they refuse are asked for",
        ),
        watched(
            QUEUES,
            READ,
            "closed LocalQueues of Kueue are no limit: pods that they do not admit are asked for",
        ),
        watched(CLAIMS, READ, "GPUs that pods get through resource claims do not count in limits"),
        Right {
            names: config_maps.to_vec(),
            ..watched(("", "configmaps"), READ, "ConfigMaps of namespaces do not count")
        },
        watched(("events.k8s.io", "events"), &["create", "patch"], "there are no events"),
    ]
}

fn of_release(names: RightNames<'_>) -> Vec<Right> {
    const LEASES: (&str, &str) = ("coordination.k8s.io", "leases");
    use RightScope::Release;
    const OWN: &[&str] = &["get", "list", "watch", "update"];
    let (no_leader, no_certificate) = ("no instance decides", "the program cannot serve");
    let no_state = "numbers do not survive a restart";
    let state = object_names(&installation_name(names.controller_instance));
    vec![
        right(Release, LEASES, CREATE, no_leader),
        Right { names: vec![names.lease.to_owned()], ..right(Release, LEASES, OWN, no_leader) },
        right(Release, ("", "secrets"), CREATE, no_certificate),
        Right {
            names: vec![DEFAULT_SECRET_NAME.into()],
            ..right(Release, ("", "secrets"), OWN, no_certificate)
        },
        right(Release, ("", "configmaps"), &["create", "list", "watch"], no_state),
        Right { names: state, ..right(Release, ("", "configmaps"), &["get", "update", "delete"], no_state) },
    ]
}
