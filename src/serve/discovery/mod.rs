//! What this server serves: `/`, `/apis…`, `/version`, `/openapi…`. Answered from memory and dependent on nothing, so that it
//! works before, during and after every outage: while discovery fails, no namespace of the cluster can be deleted. The metrics of rules
//! and of the fallback server are those that were found last.

mod dialect;
mod explanations;
mod groups;
mod openapi;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::Router;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY};
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use self::groups::{APIS, AddedMetrics, Api, EXTERNAL, METRICS_APIS, USAGE};
use super::encoding::Status;
use super::encoding::negotiation::{self, Discovery, Encoding};
use super::encoding::object::{Object, encode};
use super::encoding::response::not_acceptable;
use super::paths::{EXPLANATIONS_GROUP, EXTERNAL_GROUP, EXTERNAL_VERSION, METRICS, PASSED_ON, USAGE_GROUP};
use super::ports::{FallbackServer, RuleMetrics};

const JSON: &str = Encoding::Json.media_type();
const JSON_V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const JSON_V2BETA1: &str = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

/// The representations of `/apis`.
const GROUPS_AVAILABLE: [&str; 5] = [
    Encoding::Json.media_type(),
    Encoding::Yaml.media_type(),
    Encoding::Protobuf.media_type(),
    JSON_V2,
    JSON_V2BETA1,
];

/// The paths that are not answered here, as `/` lists them.
const OTHER_PATHS: [&str; 5] = ["/apis", "/healthz", "/livez", METRICS, "/readyz"];

/// The routes of discovery, and the answer to every unknown path.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>(
    rules: Option<Arc<dyn RuleMetrics>>,
    fallback: Option<Arc<dyn FallbackServer>>,
) -> Router<S> {
    let metrics = Arc::new(ListedMetrics::new(rules, fallback));
    let groups = Arc::clone(&metrics);
    let list_groups = any(move |headers: HeaderMap| async move { groups.newest().groups.answer(&headers) });
    let router = Router::new().route("/apis", list_groups.clone()).route("/apis/", list_groups);
    let documents = documents(metrics);
    let paths = paths(&documents);
    let root = ("/".to_owned(), StaticAnswer::AnyAccept(Document::json(JSON, &paths)));
    let body = Bytes::from(paths.to_string());
    let router = router.fallback(move |uri: Uri| async move { unknown_path(&uri, body) });
    documents.into_iter().chain([root]).fold(router, |router, (path, answer)| {
        let answer = Arc::new(answer);
        router.route(&path, any(move |headers: HeaderMap| async move { answer.answer(&headers) }))
    })
}

/// The list of paths, sorted.
fn paths(documents: &[(String, StaticAnswer)]) -> Value {
    let paths: BTreeSet<&str> = documents.iter().map(|(path, _)| path.as_str()).chain(OTHER_PATHS).collect();
    json!({ "paths": paths })
}

/// Everything that is served by path, except the list of groups and that of paths.
fn documents(metrics: Arc<ListedMetrics>) -> Vec<(String, StaticAnswer)> {
    let mut documents = vec![
        ("/version".to_owned(), StaticAnswer::AnyAccept(Document::json(JSON, &version()))),
        ("/openapi/v2".to_owned(), StaticAnswer::Json(Document::json(JSON, &openapi::v2()))),
    ];
    let mut index = Map::new();
    for api in metrics.apis.iter().copied() {
        let path = format!("/apis/{}", api.group);
        documents.push((path.clone(), StaticAnswer::Object(EncodedObject::new(&groups::group(api)))));
        for version in api.versions {
            // The aggregator polls this path to find out whether the APIService is available.
            let path = format!("{path}/{version}");
            let resources = match api.group {
                EXPLANATIONS_GROUP | USAGE_GROUP => {
                    let resources = groups::resources(api, version, &AddedMetrics::default());
                    StaticAnswer::Object(EncodedObject::new(&resources))
                }
                _ => StaticAnswer::Metrics((api.group, version), Arc::clone(&metrics)),
            };
            if api.group == USAGE_GROUP {
                documents.push((path, resources));
                continue;
            }
            let openapi = Document::json(JSON, &openapi::v3(api, version));
            let url = format!("/openapi/v3{path}?hash={}", openapi.digest);
            index.insert(path.trim_start_matches('/').to_owned(), json!({ "serverRelativeURL": url }));
            documents.push((format!("/openapi/v3{path}"), StaticAnswer::Json(openapi)));
            documents.push((path, resources));
        }
    }
    // The aggregator would remember a single 404 of this path for good.
    let index = Document::json(JSON, &json!({ "paths": index }));
    documents.push(("/openapi/v3".to_owned(), StaticAnswer::Json(index)));
    documents
}

fn version() -> Value {
    json!({
        "major": env!("CARGO_PKG_VERSION_MAJOR"), "minor": env!("CARGO_PKG_VERSION_MINOR"),
        "gitVersion": concat!("v", env!("CARGO_PKG_VERSION")), "gitCommit": "", "gitTreeState": "", "buildDate": "",
        "goVersion": "", "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH)
    })
}

/// `/apis`: all groups, in every form.
#[derive(Debug)]
struct Groups {
    legacy: EncodedObject,
    v2: Document,
    v2beta1: Document,
}

impl Groups {
    fn new(apis: &[Api], added: &AddedMetrics) -> Self {
        let aggregated = |version| groups::aggregated(version, apis, added);
        Self {
            legacy: EncodedObject::new(&groups::list(apis)),
            v2: Document::json(JSON_V2, &aggregated("apidiscovery.k8s.io/v2")),
            v2beta1: Document::json(JSON_V2BETA1, &aggregated("apidiscovery.k8s.io/v2beta1")),
        }
    }

    fn answer(&self, headers: &HeaderMap) -> Response {
        match negotiation::discovery(headers) {
            Discovery::V2 => self.v2.answer(headers),
            Discovery::V2Beta1 => self.v2beta1.answer(headers),
            Discovery::Legacy(encoding) => self.legacy.answer_in(encoding, headers),
            Discovery::NotAcceptable => not_acceptable(&GROUPS_AVAILABLE).into_response(),
        }
    }
}

/// The documents that name metrics, to which rules and the fallback server add some.
struct ListedMetrics {
    rules: Option<Arc<dyn RuleMetrics>>,
    fallback: Option<Arc<dyn FallbackServer>>,
    /// All groups that are served.
    apis: Vec<Api>,
    newest: ArcSwap<MetricDocuments>,
    /// Held while new ones are made.
    making: Mutex<()>,
}

/// The documents with some metrics beside those of variants.
#[derive(Debug)]
struct MetricDocuments {
    added: AddedMetrics,
    groups: Groups,
    /// The lists of resources, by group and version.
    resources: BTreeMap<(&'static str, &'static str), EncodedObject>,
    /// The list of external metrics without those of the fallback server, if it has some.
    without_fallback: Option<EncodedObject>,
}

impl MetricDocuments {
    fn new(apis: &[Api], added: AddedMetrics) -> Self {
        let list =
            |api, version, added: &AddedMetrics| EncodedObject::new(&groups::resources(api, version, added));
        let versions =
            METRICS_APIS.into_iter().flat_map(|api| api.versions.iter().map(move |own| (api, *own)));
        let resources = versions.map(|(api, version)| ((api.group, version), list(api, version, &added)));
        let without_fallback = (!added.fallback.is_empty()).then(|| {
            let added = AddedMetrics { fallback: Arc::default(), ..added.clone() };
            list(EXTERNAL, EXTERNAL_VERSION, &added)
        });
        Self { groups: Groups::new(apis, &added), resources: resources.collect(), without_fallback, added }
    }

    /// The list of resources of a group and version.
    fn resources(
        &self,
        version: &(&'static str, &'static str),
        headers: &HeaderMap,
    ) -> Option<&EncodedObject> {
        // For a server that passes on to this one: names that both have from each other would stay for good.
        let is_passed_on = version.0 == EXTERNAL_GROUP && headers.contains_key(PASSED_ON);
        let own = self.without_fallback.as_ref().filter(|_| is_passed_on);
        own.or_else(|| self.resources.get(version))
    }
}

impl ListedMetrics {
    fn new(rules: Option<Arc<dyn RuleMetrics>>, fallback: Option<Arc<dyn FallbackServer>>) -> Self {
        let has_usage = rules.as_ref().is_some_and(|rules| rules.serves_usage());
        let apis: Vec<_> = APIS.into_iter().chain(has_usage.then_some(USAGE)).collect();
        let newest = ArcSwap::from_pointee(MetricDocuments::new(&apis, AddedMetrics::default()));
        Self { rules, fallback, apis, newest, making: Mutex::default() }
    }

    /// The documents for the metrics that there are now. They are made anew when these change, by one reader; the others get those of
    /// before meanwhile.
    fn newest(&self) -> Arc<MetricDocuments> {
        let newest = self.newest.load_full();
        let (rules, fallback) = (self.rules.as_ref(), self.fallback.as_ref());
        let added = AddedMetrics {
            external: rules.map(|rules| rules.names()).unwrap_or_default(),
            fallback: fallback.map(|server| server.names()).unwrap_or_default(),
            objects: rules.map(|rules| rules.objects()).unwrap_or_default(),
        };
        if added == newest.added {
            return newest;
        }
        let Some(_making) = self.making.try_lock() else { return newest };
        let changed = Arc::new(MetricDocuments::new(&self.apis, added));
        self.newest.store(Arc::clone(&changed));
        changed
    }
}

/// The answer to an unknown path: a `Status` below `/apis/`, the list of paths elsewhere.
fn unknown_path(uri: &Uri, paths: Bytes) -> Response {
    if uri.path().starts_with("/apis/") {
        return Status::no_such_resource().into_response();
    }
    (StatusCode::NOT_FOUND, [(CONTENT_TYPE, HeaderValue::from_static(JSON))], paths).into_response()
}

/// A static answer in one encoding.
#[derive(Debug, Clone)]
struct Document {
    body: Bytes,
    media_type: &'static str,
    /// Digest of media type and body: two representations of one path never share it.
    digest: String,
}

impl Document {
    /// A document that exists only in JSON.
    fn json(media_type: &'static str, content: &Value) -> Self {
        Self::new(media_type, content.to_string().into_bytes())
    }

    fn new(media_type: &'static str, body: Vec<u8>) -> Self {
        let mut hasher = DefaultHasher::new();
        (media_type, &body).hash(&mut hasher);
        Self { body: body.into(), media_type, digest: format!("{:016X}", hasher.finish()) }
    }

    /// The document, or 304 for a client that has it.
    fn answer(&self, headers: &HeaderMap) -> Response {
        let etag = format!("\"{}\"", self.digest);
        let known = headers.get_all(IF_NONE_MATCH).into_iter().filter_map(|value| value.to_str().ok());
        let mut known =
            known.flat_map(|value| value.split(',')).map(|tag| tag.trim().trim_start_matches("W/"));
        let mut answer = if known.any(|tag| tag == etag || tag == "*") {
            StatusCode::NOT_MODIFIED.into_response()
        } else {
            let media_type = HeaderValue::from_static(self.media_type);
            ([(CONTENT_TYPE, media_type)], self.body.clone()).into_response()
        };
        let headers = answer.headers_mut();
        if let Ok(etag) = HeaderValue::from_str(&etag) {
            headers.insert(ETAG, etag);
        }
        headers.insert(VARY, HeaderValue::from_static("Accept"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
        answer
    }
}

/// A static object in every encoding, in the order of [`Encoding::ALL`].
#[derive(Debug, Clone)]
struct EncodedObject([Document; 3]);

impl EncodedObject {
    /// The objects contain only strings, which always encode; a test encodes all of them.
    fn new(object: &impl Object) -> Self {
        Self(Encoding::ALL.map(|encoding| {
            Document::new(encoding.media_type(), encode(encoding, object).unwrap_or_default())
        }))
    }

    #[cfg(test)]
    fn bodies(&self) -> [&[u8]; 3] {
        self.0.each_ref().map(|document| &document.body[..])
    }

    /// The document in the encoding that the client prefers, or 304.
    fn answer(&self, headers: &HeaderMap) -> Response {
        match negotiation::encoding(headers) {
            Some(encoding) => self.answer_in(encoding, headers),
            None => not_acceptable(&Encoding::ALL.map(Encoding::media_type)).into_response(),
        }
    }

    /// The document in `encoding`, or 304.
    fn answer_in(&self, encoding: Encoding, headers: &HeaderMap) -> Response {
        let [json, yaml, protobuf] = &self.0;
        match encoding {
            Encoding::Json => json.answer(headers),
            Encoding::Yaml => yaml.answer(headers),
            Encoding::Protobuf => protobuf.answer(headers),
        }
    }
}

/// What is served at one path.
#[derive(Clone)]
enum StaticAnswer {
    /// JSON, whatever the client accepts.
    AnyAccept(Document),
    /// JSON, only for clients that accept it.
    Json(Document),
    /// An object in the encoding that the client prefers.
    Object(EncodedObject),
    /// The metrics of a group and version, in the same way.
    Metrics((&'static str, &'static str), Arc<ListedMetrics>),
}

impl StaticAnswer {
    fn answer(&self, headers: &HeaderMap) -> Response {
        match self {
            Self::AnyAccept(document) => document.answer(headers),
            Self::Json(document) if negotiation::accepts_json(headers) => document.answer(headers),
            Self::Json(_) => not_acceptable(&[Encoding::Json.media_type()]).into_response(),
            Self::Object(object) => object.answer(headers),
            Self::Metrics(version, metrics) => match metrics.newest().resources(version, headers) {
                Some(resources) => resources.answer(headers),
                None => Status::no_such_resource().into_response(),
            },
        }
    }
}

#[cfg(test)]
mod tests;
