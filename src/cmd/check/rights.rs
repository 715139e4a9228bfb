//! Whether the program has each right that it uses, by access reviews.

use std::sync::Arc;

use futures::stream::{self, StreamExt as _};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview,
    SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use k8s_openapi::api::core::v1::ServiceAccount as ServiceAccountObject;
use kube::api::{Api, PostParams};
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::gather::REQUEST_TIMEOUT;
use super::report::Report;
use super::settings::{ServiceAccount, Settings};
use crate::cluster::requests::{RequestError, bounded_by};
use crate::cluster::rights::{Right, RightNames, RightScope, rights};
use crate::config::Fallback;
use crate::lint::Severity;
use crate::rules::ObjectKind;

/// Reviews that are requested at a time: 50 take a few round trips.
const CONCURRENCY: usize = 12;

/// Whose rights are reviewed.
enum Subject {
    /// Those of the pod that this runs in, which is the program's.
    Pod,
    /// Those of a service account.
    ServiceAccount(ServiceAccount),
}

/// The verdict on a right: the verbs that are missing, or why that is not known.
type Verdict = Result<Vec<&'static str>, RequestError>;

/// Reviews every right.
pub(super) async fn check(client: &Client, settings: &Settings) -> Report {
    let mut report = Report::default();
    let Some(subject) = subject(client, settings, &mut report).await else { return report };
    let names: Vec<String> = settings
        .config_maps
        .iter()
        .filter(|(kind, _)| kind.may_be_local())
        .map(|(_, name)| name.clone())
        .collect();
    let rights = rights(RightNames {
        annotated_autoscalers: settings.annotated_autoscalers,
        wakes_directly: settings.wakes_directly,
        writes_deletion_costs: settings.writes_deletion_costs,
        serves_external_scaler: settings.serves_external_scaler,
        passes_on: settings.fallback.as_ref().is_some_and(Fallback::has_own_token),
        takes_over: settings.fallback.as_ref().is_some_and(|fallback| fallback.take_over.is_some()),
        is_of_namespace: settings.namespace.is_some(),
        lease: &settings.lease,
        controller_instance: settings.controller_instance.as_deref(),
        config_maps: &names,
    });
    let reviews = rights.iter().map(|right| review(client, settings, &subject, right));
    let verdicts: Vec<Verdict> = stream::iter(reviews).buffered(CONCURRENCY).collect().await;
    let mut failures = verdicts.iter().filter_map(|verdict| verdict.as_ref().err());
    if let Some(error) = failures.next() {
        report.add_unchecked(
            false,
            subject.name(),
            format!("could not review {} of {} rights: {error}", failures.count() + 1, rights.len()),
            "# run this as somebody who may create subjectaccessreviews, or in a pod of wva",
        );
    }
    let reviewed =
        || rights.iter().zip(&verdicts).filter_map(|(right, verdict)| Some((right, verdict.as_ref().ok()?)));
    let is_of_cluster = |right: &Right| matches!(right.scope, RightScope::Cluster | RightScope::KubeSystem);
    let has_none = |(right, missing): (&Right, &Vec<&str>)| missing.len() == right.verbs.len();
    let is_confined =
        settings.namespace.is_some() && reviewed().filter(|(right, _)| is_of_cluster(right)).all(has_none);
    if is_confined {
        report_confined(&subject, &mut report);
    }
    for (right, missing) in reviewed().filter(|(right, _)| !(is_confined && is_of_cluster(right))) {
        if !missing.is_empty() {
            report_missing(&subject, settings, right, missing, &mut report);
        }
    }
    report
}

/// Reports that there are only rights of namespaces, which the chart's clusterRights=false gives.
fn report_confined(subject: &Subject, report: &mut Report) {
    report.add(
        (Severity::Note, "NoClusterRights"),
        subject.name(),
        "it has rights in namespaces only, as by clusterRights=false of the chart",
        "no HPA reads its numbers by an APIService of its own: only an installation that forwards reads to it may read them",
        "# nothing to mend, if that is meant (docs/several-installations.md); else clusterRights: true",
    );
}

/// The given service account, or that of this pod, or the chart's if it exists: the rights of a person say nothing about the program.
async fn subject(client: &Client, settings: &Settings, report: &mut Report) -> Option<Subject> {
    if let Some(account) = &settings.service_account {
        return Some(Subject::ServiceAccount(account.clone()));
    }
    if settings.is_in_pod {
        return Some(Subject::Pod);
    }
    let account =
        ServiceAccount { namespace: settings.service.namespace.clone(), name: settings.service.name.clone() };
    let api: Api<ServiceAccountObject> = Api::namespaced(client.clone(), &account.namespace);
    match bounded_by(REQUEST_TIMEOUT, api.get_opt(&account.name)).await {
        Ok(Some(_)) => Some(Subject::ServiceAccount(account)),
        result => {
            let cause = match result {
                Err(error) => format!("could not get ServiceAccount {account}: {error}"),
                Ok(_) => format!("ServiceAccount {account} does not exist"),
            };
            report.add_unchecked(
                false,
                "the program's ServiceAccount",
                format!("{cause}: whose rights to review is not known"),
                "# wva check --service-account NAMESPACE/NAME",
            );
            None
        }
    }
}

/// The verbs of a right that the subject does not have.
async fn review(client: &Client, settings: &Settings, subject: &Subject, right: &Right) -> Verdict {
    let namespace = match right.scope {
        RightScope::Cluster => None,
        RightScope::Watched => settings.namespace.clone(),
        RightScope::Release => Some(settings.service.namespace.clone()),
        RightScope::KubeSystem => Some("kube-system".into()),
    };
    let (resource, subresource) = match right.resource.split_once('/') {
        Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
        None => (right.resource, None),
    };
    let mut missing = Vec::new();
    for verb in right.verbs {
        let attributes = ResourceAttributes {
            group: Some(right.group.into()),
            resource: Some(resource.into()),
            subresource: subresource.clone(),
            // All names are in one rule.
            name: right.names.first().cloned(),
            namespace: namespace.clone(),
            verb: Some((*verb).into()),
            ..ResourceAttributes::default()
        };
        if !may(client, subject, attributes).await? {
            missing.push(*verb);
        }
    }
    Ok(missing)
}

/// Whether the subject has a right.
async fn may(
    client: &Client,
    subject: &Subject,
    attributes: ResourceAttributes,
) -> Result<bool, RequestError> {
    let status = match subject {
        Subject::Pod => {
            let spec = SelfSubjectAccessReviewSpec {
                resource_attributes: Some(attributes),
                ..SelfSubjectAccessReviewSpec::default()
            };
            let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
            create(client, &review).await?.status
        }
        Subject::ServiceAccount(account) => {
            let review = SubjectAccessReview {
                spec: of_account(account, attributes),
                ..SubjectAccessReview::default()
            };
            create(client, &review).await?.status
        }
    };
    Ok(is_allowed(status))
}

/// Reviews the right to list the objects of these kinds, which reads of metrics of rules by selector need.
pub(super) async fn check_lists(client: &Client, settings: &Settings, kinds: &[Arc<ObjectKind>]) -> Report {
    let mut report = Report::default();
    if kinds.is_empty() {
        return report;
    }
    // What is not known of the ServiceAccount was said with the other rights.
    let Some(subject) = subject(client, settings, &mut Report::default()).await else { return report };
    let reviews = kinds.iter().map(async |kind| {
        let attributes = ResourceAttributes {
            group: Some(kind.group.to_string()),
            resource: Some(kind.plural.to_string()),
            namespace: settings.namespace.clone().filter(|_| kind.is_namespaced),
            verb: Some("list".into()),
            ..ResourceAttributes::default()
        };
        (kind, may(client, &subject, attributes).await)
    });
    let verdicts: Vec<_> = stream::iter(reviews).buffered(CONCURRENCY).collect().await;
    for (kind, verdict) in verdicts {
        // Why a review fails was said with the other rights too.
        if !verdict.is_ok_and(|may| !may) {
            continue;
        }
        let (group, plural) = (&kind.group, &kind.plural);
        report.add(
            (Severity::Warning, "RightMissing"),
            subject.name(),
            format!("it may not list {}, of which rules make metrics", kind.resource()),
            "a read of such a metric by a label selector, as HPAs on pods send it, is an error; one by name is answered",
            format!(
                "# in the chart: adapterRules.extraRules; or in a ClusterRole of {}\nrules:\n  - apiGroups: [{group:?}]\n    resources: [{plural}]\n    verbs: [list]",
                subject.name()
            ),
        );
    }
    report
}

fn of_account(account: &ServiceAccount, attributes: ResourceAttributes) -> SubjectAccessReviewSpec {
    let ServiceAccount { namespace, name } = account;
    let groups = [
        "system:serviceaccounts".to_owned(),
        format!("system:serviceaccounts:{namespace}"),
        "system:authenticated".to_owned(),
    ];
    SubjectAccessReviewSpec {
        user: Some(format!("system:serviceaccount:{namespace}:{name}")),
        groups: Some(groups.to_vec()),
        resource_attributes: Some(attributes),
        ..SubjectAccessReviewSpec::default()
    }
}

async fn create<K>(client: &Client, review: &K) -> Result<K, RequestError>
where
    K: Resource<DynamicType = ()> + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
{
    let api: Api<K> = Api::all(client.clone());
    bounded_by(REQUEST_TIMEOUT, api.create(&PostParams::default(), review)).await
}

fn is_allowed(status: Option<SubjectAccessReviewStatus>) -> bool {
    status.is_some_and(|status| status.allowed && status.denied != Some(true))
}

fn report_missing(
    subject: &Subject,
    settings: &Settings,
    right: &Right,
    missing: &[&str],
    report: &mut Report,
) {
    let Right { scope, group, resource, names, without, unless, .. } = right;
    let (place, kind) = match scope {
        RightScope::Cluster => ("the cluster".to_owned(), "ClusterRole"),
        RightScope::Watched => settings.namespace.as_ref().map_or_else(
            || ("all namespaces".to_owned(), "ClusterRole"),
            |namespace| (format!("namespace {namespace}"), "Role"),
        ),
        RightScope::Release => (format!("namespace {}", settings.service.namespace), "Role"),
        RightScope::KubeSystem => ("namespace kube-system".to_owned(), "Role"),
    };
    let dotted = if group.is_empty() { (*resource).to_owned() } else { format!("{resource}.{group}") };
    let named = names.first().map(|name| format!(" {name}")).unwrap_or_default();
    let more = if names.len() > 1 { format!(" and {} more", names.len() - 1) } else { String::new() };
    let names = if names.is_empty() { String::new() } else { format!("\n    resourceNames: {names:?}") };
    let severity = if unless.is_some() { Severity::Note } else { Severity::Error };
    let effect = unless.map_or_else(|| (*without).to_owned(), |unless| format!("{without}, unless {unless}"));
    let hint = match (scope, &settings.namespace) {
        (RightScope::Watched, None) => "; of an installation with watchNamespace, check that with -n",
        _ => "",
    };
    report.add(
        (severity, "RightMissing"),
        subject.name(),
        format!("it may not {} {dotted}{named}{more} in {place}", missing.join(", ")),
        effect,
        format!(
            "# in a {kind} of {}; the chart and manifests/wva.yaml have them all{hint}\nrules:\n  - apiGroups: [{group:?}]\n    resources: [{resource}]{names}\n    verbs: [{}]",
            subject.name(),
            right.verbs.join(", ")
        ),
    );
}

impl Subject {
    fn name(&self) -> String {
        match self {
            Self::Pod => "this pod's ServiceAccount".into(),
            Self::ServiceAccount(account) => format!("ServiceAccount {account}"),
        }
    }
}
