//! The kinds of objects that the API server serves, and lists of objects by their metadata alone.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ListParams, PartialObjectMeta};
use kube::core::discovery::v2::{APIGroupDiscovery, APIVersionDiscovery};
use kube::core::{DynamicObject, ObjectList};
use kube::discovery::ApiResource;
use kube::{Api, Client};

use super::requests::{RequestError, bounded};

/// Objects of a page: the metadata of one has 1 KiB or two.
const PAGE: u32 = 500;

/// What to check when a list is refused.
const HINT: &str =
    "grant the right to list them to this program's service account (in the chart, adapterRules.extraRules)";

/// A kind of objects that can be listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServedKind {
    pub(crate) resource: ApiResource,
    pub(crate) singular: String,
    pub(crate) is_namespaced: bool,
}

/// All kinds that can be listed, in the order of discovery: the core first, and of each group the preferred version.
///
/// # Errors
/// Says why they cannot be read.
pub(crate) async fn served_kinds(client: &Client) -> Result<Vec<ServedKind>, RequestError> {
    let core = bounded(client.list_core_api_versions_aggregated()).await?;
    let groups = bounded(client.list_api_groups_aggregated()).await?;
    Ok(core.items.iter().chain(&groups.items).flat_map(kinds_of_group).collect())
}

fn kinds_of_group(group: &APIGroupDiscovery) -> impl Iterator<Item = ServedKind> {
    let name = group.metadata.as_ref().and_then(|metadata| metadata.name.as_deref()).unwrap_or_default();
    group.versions.iter().flat_map(move |version| kinds_of_version(name, version))
}

fn kinds_of_version(group: &str, version: &APIVersionDiscovery) -> impl Iterator<Item = ServedKind> {
    let name = version.version.as_deref().unwrap_or_default();
    version.resources.iter().filter_map(move |resource| {
        let kind = resource.response_kind.as_ref()?.kind.clone()?;
        let plural = resource.resource.clone()?;
        if !resource.verbs.iter().any(|verb| verb == "list") {
            return None;
        }
        let singular = resource.singular_resource.clone().filter(|singular| !singular.is_empty());
        let api_version = if group.is_empty() { name.to_owned() } else { format!("{group}/{name}") };
        Some(ServedKind {
            singular: singular.unwrap_or_else(|| kind.to_lowercase()),
            is_namespaced: resource.scope.as_deref() == Some("Namespaced"),
            resource: ApiResource {
                group: group.to_owned(),
                version: name.to_owned(),
                api_version,
                kind,
                plural,
            },
        })
    })
}

/// The metadata of the objects that `parameters` select, in one namespace or, where that is empty, in all.
///
/// # Errors
/// Says why they cannot be listed; also when there are more than `limit`.
pub(crate) async fn list_metadata(
    client: &Client,
    resource: &ApiResource,
    namespace: &str,
    parameters: ListParams,
    limit: usize,
) -> Result<Vec<ObjectMeta>, String> {
    let api: Api<DynamicObject> = if namespace.is_empty() {
        Api::all_with(client.clone(), resource)
    } else {
        Api::namespaced_with(client.clone(), namespace, resource)
    };
    let mut objects = Vec::new();
    let mut parameters = parameters.limit(PAGE);
    loop {
        let page: ObjectList<PartialObjectMeta<_>> =
            bounded(api.list_metadata(&parameters)).await.map_err(|error| error.with_hint(HINT))?;
        objects.extend(page.items.into_iter().map(|object| object.metadata));
        if objects.len() > limit {
            return Err(format!("there are more than {limit}: narrow the selector"));
        }
        match page.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => parameters = parameters.continue_token(&next),
            None => return Ok(objects),
        }
    }
}
