//! Endpoint pickers (EPPs): whether a request for a model at zero would be seen.

use std::collections::{BTreeMap, BTreeSet};

use wva_core::model::VariantId;
use wva_core::snapshot::VariantState;
use wva_core::units::Replicas;
use wva_core::{GroupId, Policy};

use super::inputs::Inputs;
use super::policy::Loaded;
use super::report::Report;
use super::settings::Settings;
use crate::cluster::ClusterState;
use crate::cluster::watch::{ListedKind, ListedPool, PickerProblem};
use crate::lint::Severity;

/// Most models that are named one by one.
const MAX_MODELS: usize = 50;
/// The reason where the pods of an endpoint picker may be those of a kind of workload that is not listed.
const NOT_SEEN: &str = "EndpointPickerNotSeen";
/// What mends it where something else wakes a model.
const WOKEN_BY: &str = "# or, if something else wakes it, on its variants:\nmetadata:\n  annotations: {wva.llmd.ai/woken-by: \"KEDA's HTTP add-on\"}";

/// Checks the endpoint pickers of the models that may go to zero and that nothing else wakes. Files need not have all objects.
pub(super) fn check(inputs: &Inputs, loaded: &Loaded, settings: &Settings, report: &mut Report) {
    let needed = [
        ListedKind::VariantAutoscaling,
        ListedKind::Deployment,
        ListedKind::StatefulSet,
        ListedKind::InferencePool,
        ListedKind::EarlierInferencePool,
        ListedKind::Service,
    ];
    if !needed.into_iter().all(|kind| inputs.has_all(kind)) {
        return;
    }
    let models = models(&loaded.state, &loaded.policy);
    let mut pools_of: BTreeMap<&VariantId, Vec<&ListedPool>> = BTreeMap::new();
    for pool in &loaded.pools {
        for id in &pool.variants {
            pools_of.entry(id).or_default().push(pool);
        }
    }
    let (mut unpooled, mut named) = (0, BTreeSet::new());
    for (group, variants) in &models {
        let pools: Vec<&ListedPool> =
            variants.iter().filter_map(|id| pools_of.get(id)).flatten().copied().collect();
        if pools.is_empty() && unpooled < MAX_MODELS {
            add_unpooled(group, settings, report);
        }
        unpooled += usize::from(pools.is_empty());
        // Another pool of the model may tell.
        if pools.iter().any(|pool| pool.problem.is_none()) {
            continue;
        }
        for pool in pools.into_iter().filter(|pool| named.insert(&pool.key)) {
            add_problem(pool, settings, report);
        }
    }
    if unpooled > MAX_MODELS {
        report.add(
            (Severity::Warning, "NoEndpointPicker"),
            "InferencePools",
            format!("{} further models may go to zero, and are in no pool", unpooled - MAX_MODELS),
            "their requests are not seen while they are at zero",
            "# check namespace by namespace with -n",
        );
    }
}

/// The models that may go to zero and that nothing but an endpoint picker wakes, with their variants. Those without a known target are
/// left out: their labels are not known either.
fn models<'a>(state: &'a ClusterState, policy: &Policy) -> BTreeMap<GroupId, Vec<&'a VariantId>> {
    let mut models: BTreeMap<GroupId, (bool, Vec<&VariantId>)> = BTreeMap::new();
    for VariantState { variant, scale, .. } in &state.view.variants {
        if !variant.names_model() {
            continue;
        }
        let group = variant.group();
        let may_sleep = variant.bounds.min == Replicas::ZERO && variant.woken_by.is_none();
        let (all_may_sleep, ids) = models.entry(group.clone()).or_insert_with(|| {
            let enabled = policy.scale_to_zero(&group).enabled;
            (enabled, Vec::new())
        });
        *all_may_sleep &= may_sleep;
        ids.extend(scale.map(|_| &variant.id));
    }
    let sleeping = models.into_iter().filter(|(_, (may_sleep, ids))| *may_sleep && !ids.is_empty());
    sleeping.map(|(group, (_, ids))| (group, ids)).collect()
}

fn add_unpooled(GroupId { namespace, model }: &GroupId, settings: &Settings, report: &mut Report) {
    let effect = if settings.is_scraping {
        "its endpoint picker (EPP) is not found: the model is never put to sleep, and at zero nothing wakes it"
    } else {
        "unless Prometheus has the queue of an endpoint picker (EPP) for it, the model is never put to sleep, and at zero nothing wakes it; \
         with that queue, a request waits for the next evaluation instead of 0.1 s"
    };
    report.add(
        (Severity::Warning, "NoEndpointPicker"),
        format!("model {model} in namespace {namespace}"),
        "it may go to zero, and no InferencePool selects the pods of its workloads",
        effect,
        format!(
            "apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {{name: POOL, namespace: {namespace}}}\nspec:\n  \
             selector: {{matchLabels: {{LABEL: OF-THE-POD-TEMPLATE}}}}\n  targetPorts: [{{number: 8000}}]\n  endpointPickerRef: \
             {{name: SERVICE-OF-THE-EPP, port: {{number: 9002}}}}\n{WOKEN_BY}"
        ),
    );
}

fn add_problem(pool: &ListedPool, settings: &Settings, report: &mut Report) {
    let Some(problem) = &pool.problem else { return };
    let (reason, set, fix) = match problem {
        PickerProblem::Unnamed => (
            "NoEndpointPicker",
            "it names no Service of an endpoint picker (EPP)".to_owned(),
            "spec:\n  endpointPickerRef: {name: SERVICE-OF-THE-EPP, port: {number: 9002}} # extensionRef in x-k8s.io",
        ),
        PickerProblem::NoService(name) => (
            "EndpointPickerNotFound",
            format!("its endpoint picker (EPP) is Service {name}, which does not exist or has no selector"),
            "# correct the name in spec.endpointPickerRef (extensionRef in x-k8s.io), or deploy the EPP with its Service",
        ),
        PickerProblem::NoWorkload(name) => (
            NOT_SEEN,
            format!(
                "Service {name} of its endpoint picker (EPP) selects the pods of no Deployment or StatefulSet"
            ),
            "# kubectl get pods with the selector of that Service: correct the selector, unless another kind of workload has Ready pods",
        ),
        PickerProblem::NotReady(name) => (
            "EndpointPickerNotReady",
            format!(
                "the workloads whose pods Service {name} of its endpoint picker (EPP) selects have no Ready one"
            ),
            "# see why they are not Ready: kubectl get pods with the selector of that Service",
        ),
    };
    // What the check cannot see is no fault.
    let severity = if reason == NOT_SEEN { Severity::Note } else { Severity::Warning };
    let unless = match (severity, settings.is_scraping) {
        (Severity::Note, _) => "unless another kind of workload has its pods, ",
        (_, true) => "",
        (_, false) => "unless Prometheus has the queue of another one, ",
    };
    report.add(
        (severity, reason),
        format!("InferencePool {}/{}", pool.key.namespace, pool.key.name),
        set,
        format!("{unless}its models may go to zero and are not put to sleep, and of those at zero no request is seen"),
        format!("{fix}\n{WOKEN_BY}"),
    );
}
