//! What this server serves: `/`, `/apis…`, `/version`, `/openapi…`. Answered from memory and dependent on nothing, so that it
//! works before, during and after every outage: while discovery fails, no namespace of the cluster can be deleted.

mod groups;
mod openapi;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY};
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use serde_json::{Value, json};

use self::groups::{CUSTOM, EXTERNAL};
use super::encoding::Status;
use super::encoding::negotiation::{self, Discovery, Encoding};
use super::encoding::object::{Object, encode};
use super::encoding::response::not_acceptable;

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

/// The paths that `/` lists, sorted.
const PATHS: [&str; 16] = [
    "/apis",
    "/apis/custom.metrics.k8s.io",
    "/apis/custom.metrics.k8s.io/v1beta1",
    "/apis/custom.metrics.k8s.io/v1beta2",
    "/apis/external.metrics.k8s.io",
    "/apis/external.metrics.k8s.io/v1beta1",
    "/healthz",
    "/livez",
    "/metrics",
    "/openapi/v2",
    "/openapi/v3",
    "/openapi/v3/apis/custom.metrics.k8s.io/v1beta1",
    "/openapi/v3/apis/custom.metrics.k8s.io/v1beta2",
    "/openapi/v3/apis/external.metrics.k8s.io/v1beta1",
    "/readyz",
    "/version",
];

/// The routes of discovery; they need no state.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let groups = Arc::new(Groups::new());
    let list_groups = any(move |headers: HeaderMap| async move { groups.answer(&headers) });
    let router = Router::new().route("/apis", list_groups.clone()).route("/apis/", list_groups);
    resources().into_iter().fold(router, |router, (path, resource)| {
        let resource = Arc::new(resource);
        router.route(path, any(move |headers: HeaderMap| async move { resource.answer(&headers) }))
    })
}

/// Everything that is served but the list of groups.
fn resources() -> Vec<(&'static str, Resource)> {
    let group = |api| Resource::Object(EncodedObject::new(&groups::group(api)));
    let resources = |api, version| Resource::Object(EncodedObject::new(&groups::resources(api, version)));
    let external_v1beta1 = Document::json(JSON, &openapi::v3(EXTERNAL, "v1beta1"));
    let custom_v1beta1 = Document::json(JSON, &openapi::v3(CUSTOM, "v1beta1"));
    let custom_v1beta2 = Document::json(JSON, &openapi::v3(CUSTOM, "v1beta2"));
    let openapi_index = openapi::v3_index(&[
        (EXTERNAL, "v1beta1", external_v1beta1.digest()),
        (CUSTOM, "v1beta1", custom_v1beta1.digest()),
        (CUSTOM, "v1beta2", custom_v1beta2.digest()),
    ]);
    vec![
        ("/", Resource::AnyAccept(Document::json(JSON, &json!({ "paths": PATHS })))),
        ("/version", Resource::AnyAccept(Document::json(JSON, &version()))),
        ("/apis/external.metrics.k8s.io", group(EXTERNAL)),
        // The aggregator polls this path to find out whether the APIService is available.
        ("/apis/external.metrics.k8s.io/v1beta1", resources(EXTERNAL, "v1beta1")),
        ("/apis/custom.metrics.k8s.io", group(CUSTOM)),
        ("/apis/custom.metrics.k8s.io/v1beta1", resources(CUSTOM, "v1beta1")),
        ("/apis/custom.metrics.k8s.io/v1beta2", resources(CUSTOM, "v1beta2")),
        ("/openapi/v2", Resource::Json(Document::json(JSON, &openapi::v2()))),
        // The aggregator would remember a single 404 of this path for good.
        ("/openapi/v3", Resource::Json(Document::json(JSON, &openapi_index))),
        ("/openapi/v3/apis/external.metrics.k8s.io/v1beta1", Resource::Json(external_v1beta1)),
        ("/openapi/v3/apis/custom.metrics.k8s.io/v1beta1", Resource::Json(custom_v1beta1)),
        ("/openapi/v3/apis/custom.metrics.k8s.io/v1beta2", Resource::Json(custom_v1beta2)),
    ]
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
    fn new() -> Self {
        Self {
            legacy: EncodedObject::new(&groups::list()),
            v2: Document::json(JSON_V2, &groups::aggregated("apidiscovery.k8s.io/v2")),
            v2beta1: Document::json(JSON_V2BETA1, &groups::aggregated("apidiscovery.k8s.io/v2beta1")),
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

/// The answer to an unknown path: a `Status` below `/apis/`, the list of paths elsewhere.
pub(crate) async fn unknown_path(uri: Uri) -> Response {
    if uri.path().starts_with("/apis/") {
        return Status::no_such_resource().into_response();
    }
    let body = json!({ "paths": PATHS }).to_string();
    (StatusCode::NOT_FOUND, [(CONTENT_TYPE, HeaderValue::from_static(JSON))], body).into_response()
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

    fn digest(&self) -> &str {
        &self.digest
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
#[derive(Debug, Clone)]
enum Resource {
    /// JSON, whatever the client accepts.
    AnyAccept(Document),
    /// JSON, only for clients that accept it.
    Json(Document),
    /// An object in the encoding that the client prefers.
    Object(EncodedObject),
}

impl Resource {
    fn answer(&self, headers: &HeaderMap) -> Response {
        match self {
            Self::AnyAccept(document) => document.answer(headers),
            Self::Json(document) if negotiation::accepts_json(headers) => document.answer(headers),
            Self::Json(_) => not_acceptable(&[Encoding::Json.media_type()]).into_response(),
            Self::Object(object) => match negotiation::encoding(headers) {
                Some(encoding) => object.answer_in(encoding, headers),
                None => not_acceptable(&Encoding::ALL.map(Encoding::media_type)).into_response(),
            },
        }
    }
}

#[cfg(test)]
mod tests;
