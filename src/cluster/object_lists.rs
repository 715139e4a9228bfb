//! The kinds of objects that the API server serves, and lists of objects by their metadata alone.

use std::collections::BTreeMap;

use futures::AsyncReadExt as _;
use kube::api::{ListParams, Request};
use kube::core::DynamicObject;
use kube::core::discovery::v2::{APIGroupDiscovery, APIVersionDiscovery};
use kube::discovery::ApiResource;
use kube::{Client, Resource as _};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::Semaphore;

use super::requests::{RequestError, bounded};

/// Objects of a page: the metadata of one has 1 KiB or two.
const PAGE: u32 = 250;
/// Objects of a page when those of a larger one are too long. An object has at most 1.5 MiB or so.
const SMALL_PAGE: u32 = 8;
/// Longest page. Annotations, which are not needed, can make it any length.
const MAX_PAGE_BYTES: u64 = 16 * 1024 * 1024;
/// Pages that are read at a time.
const CONCURRENT_PAGES: usize = 3;
/// Most bytes of names and labels of a list.
const MAX_LIST_BYTES: usize = 32 * 1024 * 1024;

/// How the API server marks a version of a group that it could not read again.
const STALE: &str = "Stale";

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

fn kinds_of_group(group: &APIGroupDiscovery, last: &[ServedKind]) -> Vec<ServedKind> {
    let name = group.metadata.as_ref().and_then(|metadata| metadata.name.as_deref()).unwrap_or_default();
    group.versions.iter().flat_map(|version| kinds_of_version(name, version, last)).collect()
}

/// Those of a version of a group. While the server behind it is away, the API server lists the version as stale, with no kind or with those
/// of some time ago: then those that `last` has of it stay.
fn kinds_of_version(group: &str, version: &APIVersionDiscovery, last: &[ServedKind]) -> Vec<ServedKind> {
    let name = version.version.as_deref().unwrap_or_default();
    let is_known = |own: &&ServedKind| own.resource.group == group && own.resource.version == name;
    let known: Vec<_> = last.iter().filter(is_known).cloned().collect();
    if version.freshness.as_deref() == Some(STALE) && !known.is_empty() {
        return known;
    }
    let listed = version.resources.iter().filter_map(|resource| {
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
    });
    listed.collect()
}

/// What is kept of an object.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ObjectName {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Page {
    metadata: PageMeta,
    /// The API server writes null for no object.
    items: Option<Vec<Item>>,
}

#[derive(Deserialize)]
struct PageMeta {
    #[serde(default, rename = "continue")]
    next: String,
}

#[derive(Deserialize)]
struct Item {
    metadata: ObjectName,
}

/// Lists objects, a few pages at a time.
pub(crate) struct ObjectLists {
    client: Client,
    permits: Semaphore,
    /// The kinds that were served last.
    kinds: Mutex<Vec<ServedKind>>,
}

impl ObjectLists {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, permits: Semaphore::new(CONCURRENT_PAGES), kinds: Mutex::default() }
    }

    /// All kinds that can be listed, in the order of discovery: the core first, and of each group the preferred version.
    ///
    /// # Errors
    /// Says why they cannot be read.
    pub(crate) async fn served_kinds(&self) -> Result<Vec<ServedKind>, RequestError> {
        let core = bounded(self.client.list_core_api_versions_aggregated()).await?;
        let groups = bounded(self.client.list_api_groups_aggregated()).await?;
        let mut last = self.kinds.lock();
        let groups = core.items.iter().chain(&groups.items);
        let kinds: Vec<_> = groups.flat_map(|group| kinds_of_group(group, &last)).collect();
        last.clone_from(&kinds);
        Ok(kinds)
    }

    /// The names of the objects that `parameters` select, in one namespace or, where that is empty, in all; and their labels if `has_labels`.
    ///
    /// # Errors
    /// Says why they cannot be listed; also when there are more than `limit`.
    pub(crate) async fn list(
        &self,
        resource: &ApiResource,
        (namespace, has_labels): (&str, bool),
        parameters: ListParams,
        limit: usize,
    ) -> Result<Vec<ObjectName>, String> {
        let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
        let request = Request::new(DynamicObject::url_path(resource, namespace));
        let (mut objects, mut bytes) = (Vec::new(), 0);
        let mut parameters = parameters.limit(PAGE);
        loop {
            let _permit = self.permits.acquire().await;
            let Some(page) = self.page(&request, &parameters).await? else {
                if parameters.limit == Some(SMALL_PAGE) {
                    return Err(format!("{SMALL_PAGE} of them have more than {MAX_PAGE_BYTES} bytes"));
                }
                parameters.limit = Some(SMALL_PAGE);
                continue;
            };
            for Item { metadata: mut object } in page.items.unwrap_or_default() {
                if !has_labels {
                    object.labels = BTreeMap::new();
                }
                let labels: usize = object.labels.iter().map(|(key, value)| key.len() + value.len()).sum();
                bytes += object.namespace.len() + object.name.len() + labels;
                objects.push(object);
            }
            if objects.len() > limit || bytes > MAX_LIST_BYTES {
                return Err(format!(
                    "there are more than {limit}, or their names and labels have more than {MAX_LIST_BYTES} bytes: narrow the selector"
                ));
            }
            if page.metadata.next.is_empty() {
                return Ok(objects);
            }
            parameters = parameters.continue_token(&page.metadata.next);
        }
    }

    /// A page; `None` if it is too long.
    async fn page(&self, request: &Request, parameters: &ListParams) -> Result<Option<Page>, String> {
        let request = request.list_metadata(parameters).map_err(|error| error.to_string())?;
        let body = bounded(async {
            let stream = self.client.request_stream(request).await?;
            let mut body = Vec::new();
            let read = stream.take(MAX_PAGE_BYTES + 1).read_to_end(&mut body).await;
            read.map_err(kube::Error::ReadEvents)?;
            Ok(body)
        });
        let body = body.await.map_err(|error| error.with_hint(HINT))?;
        if body.len() as u64 > MAX_PAGE_BYTES {
            return Ok(None);
        }
        let page = serde_json::from_slice(&body);
        page.map(Some).map_err(|error| format!("the answer of the API server cannot be read: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use http::{Request as HttpRequest, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    #[tokio::test]
    async fn a_list_kept_all_annotations_of_all_pages_and_had_no_limit_of_bytes() {
        let (service, mut handle) = tower_test::mock::pair::<HttpRequest<Body>, Response<Body>>();
        let lists = ObjectLists::new(Client::new(service, "default"));
        let pods = ApiResource {
            group: String::new(),
            version: "v1".to_owned(),
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            plural: "pods".to_owned(),
        };
        let object = |name: &str, annotation: usize| {
            let annotations = json!({ "a": "x".repeat(annotation) });
            json!({ "metadata": { "name": name, "namespace": "llm", "labels": { "app": "web" }, "annotations": annotations } })
        };
        let pages = [
            // Longer than a page may be, so that it is asked for again in small ones.
            json!({ "metadata": { "continue": "1" }, "items": [object("long", 17 * 1024 * 1024)] }),
            json!({ "metadata": { "continue": "2" }, "items": [object("a", 1024)] }),
            json!({ "metadata": { "continue": "3" }, "items": [object("b", 1)] }),
            json!({ "metadata": {}, "items": null }),
        ];
        let answering = async {
            let mut urls = Vec::new();
            for page in &pages {
                let (request, answer) = handle.next_request().await.unwrap();
                urls.push(request.uri().to_string());
                let body = Body::from(Value::to_string(page).into_bytes());
                answer.send_response(Response::new(body));
            }
            urls
        };
        let list = lists.list(&pods, ("llm", false), ListParams::default(), 10);
        let (list, urls) = tokio::join!(list, answering);
        let names: Vec<_> =
            list.unwrap().into_iter().map(|object| (object.name, object.labels.len())).collect();
        assert_eq!(names, [("a".to_owned(), 0), ("b".to_owned(), 0)]);
        let pods = "/api/v1/namespaces/llm/pods?&limit=";
        assert_eq!(urls, ["250", "8", "8&continue=2", "8&continue=3"].map(|query| format!("{pods}{query}")));
    }

    #[test]
    fn a_dead_aggregated_server_took_its_kinds_away() {
        let group = |freshness: &str, resources: Value| -> APIGroupDiscovery {
            let version = json!({ "version": "v1", "freshness": freshness, "resources": resources });
            serde_json::from_value(json!({ "metadata": { "name": "example.com" }, "versions": [version] }))
                .unwrap()
        };
        let kind = json!({ "group": "example.com", "version": "v1", "kind": "Topic" });
        let topics = json!([{ "resource": "topics", "responseKind": kind, "scope": "Namespaced", "singularResource": "topic", "verbs": ["list"] }]);
        let last = kinds_of_group(&group("Current", topics.clone()), &[]);
        assert_eq!(last.len(), 1);
        assert_eq!(kinds_of_group(&group(STALE, json!([])), &last), last);
        assert_eq!(kinds_of_group(&group(STALE, topics), &[]), last, "better than none");
        assert_eq!(kinds_of_group(&group("Current", json!([])), &last), [], "it serves none any more");
    }
}
