//! What this server serves, told from memory: `/`, `/apis…`, `/version`, `/openapi…`. Depends on nothing, so that it
//! answers before, during and after every outage: while it fails, no namespace of the cluster can be deleted.

mod document;
mod groups;
mod openapi;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Uri};
use serde_json::{Value, json};

use self::document::{Document, Object};
pub(crate) use self::groups::CUSTOM_GROUP;
use self::groups::{CUSTOM, EXTERNAL};
use super::accept::{self, Encoding};
use super::represent;
use super::state::AppState;
use super::status::{JSON, Status};

const MEDIA: &str = Encoding::Json.media();
const MEDIA_V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const MEDIA_V2BETA1: &str = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

/// The paths of `/`, for people; sorted.
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

/// Every static answer.
#[derive(Debug)]
pub(crate) struct Documents {
    root: Document,
    version: Document,
    groups: Object,
    groups_v2: Document,
    groups_v2beta1: Document,
    external: Object,
    external_v1beta1: Object,
    custom: Object,
    custom_v1beta1: Object,
    custom_v1beta2: Object,
    openapi_v2: Document,
    openapi_v3: Document,
    openapi_external_v1beta1: Document,
    openapi_custom_v1beta1: Document,
    openapi_custom_v1beta2: Document,
}

impl Documents {
    pub(crate) fn new() -> Self {
        let [external_v1, custom_v1, custom_v2] =
            [(EXTERNAL, "v1beta1"), (CUSTOM, "v1beta1"), (CUSTOM, "v1beta2")]
                .map(|(api, version)| Document::json(MEDIA, &openapi::v3(api, version)));
        let index = openapi::v3_index(&[
            (EXTERNAL, "v1beta1", external_v1.digest()),
            (CUSTOM, "v1beta1", custom_v1.digest()),
            (CUSTOM, "v1beta2", custom_v2.digest()),
        ]);
        Self {
            root: Document::json(MEDIA, &json!({ "paths": PATHS })),
            version: Document::json(MEDIA, &version()),
            groups: Object::new(&groups::list()),
            groups_v2: Document::json(MEDIA_V2, &groups::aggregated("apidiscovery.k8s.io/v2")),
            groups_v2beta1: Document::json(MEDIA_V2BETA1, &groups::aggregated("apidiscovery.k8s.io/v2beta1")),
            external: Object::new(&groups::one(EXTERNAL)),
            external_v1beta1: Object::new(&groups::resources(EXTERNAL, "v1beta1")),
            custom: Object::new(&groups::one(CUSTOM)),
            custom_v1beta1: Object::new(&groups::resources(CUSTOM, "v1beta1")),
            custom_v1beta2: Object::new(&groups::resources(CUSTOM, "v1beta2")),
            openapi_v2: Document::json(MEDIA, &openapi::v2()),
            openapi_v3: Document::json(MEDIA, &index),
            openapi_external_v1beta1: external_v1,
            openapi_custom_v1beta1: custom_v1,
            openapi_custom_v1beta2: custom_v2,
        }
    }
}

fn version() -> Value {
    json!({
        "major": env!("CARGO_PKG_VERSION_MAJOR"), "minor": env!("CARGO_PKG_VERSION_MINOR"),
        "gitVersion": concat!("v", env!("CARGO_PKG_VERSION")), "gitCommit": "", "gitTreeState": "", "buildDate": "",
        "goVersion": "", "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH)
    })
}

/// What `/apis` can be had in.
const AVAILABLE: [&str; 5] =
    [Encoding::Json.media(), Encoding::Yaml.media(), Encoding::Protobuf.media(), MEDIA_V2, MEDIA_V2BETA1];

/// `/apis` in the representation that the client asks for.
pub(crate) async fn groups(State(state): State<AppState>, headers: HeaderMap) -> Response {
    let documents = state.documents();
    match accept::discovery(&headers) {
        accept::Discovery::V2 => documents.groups_v2.answer(&headers),
        accept::Discovery::V2Beta1 => documents.groups_v2beta1.answer(&headers),
        accept::Discovery::Legacy(encoding) => documents.groups.answer_in(encoding, &headers),
        accept::Discovery::NotAcceptable => represent::not_acceptable(&AVAILABLE).into_response(),
    }
}

macro_rules! documents {
    ($($(#[$doc:meta])* $handler:ident => $field:ident.$answer:ident),* $(,)?) => {$(
        $(#[$doc])*
        pub(crate) async fn $handler(State(state): State<AppState>, headers: HeaderMap) -> Response {
            state.documents().$field.$answer(&headers)
        }
    )*};
}

documents! {
    /// `/`
    root => root.answer,
    /// `/version`
    version_info => version.answer,
    /// `/apis/external.metrics.k8s.io`
    external => external.answer,
    /// `/apis/external.metrics.k8s.io/v1beta1`: the aggregator's availability probe.
    external_v1beta1 => external_v1beta1.answer,
    /// `/apis/custom.metrics.k8s.io`
    custom => custom.answer,
    /// `/apis/custom.metrics.k8s.io/v1beta1`
    custom_v1beta1 => custom_v1beta1.answer,
    /// `/apis/custom.metrics.k8s.io/v1beta2`
    custom_v1beta2 => custom_v1beta2.answer,
    /// `/openapi/v2`
    openapi_v2 => openapi_v2.answer_json,
    /// `/openapi/v3`: a single 404 here would be remembered for good by the aggregator.
    openapi_v3 => openapi_v3.answer_json,
    /// `/openapi/v3/apis/external.metrics.k8s.io/v1beta1`
    openapi_external_v1beta1 => openapi_external_v1beta1.answer_json,
    /// `/openapi/v3/apis/custom.metrics.k8s.io/v1beta1`
    openapi_custom_v1beta1 => openapi_custom_v1beta1.answer_json,
    /// `/openapi/v3/apis/custom.metrics.k8s.io/v1beta2`
    openapi_custom_v1beta2 => openapi_custom_v1beta2.answer_json,
}

/// Everything else: a `Status` below the groups, the list of paths elsewhere.
pub(crate) async fn nothing_here(uri: Uri) -> Response {
    if uri.path().starts_with("/apis/") {
        return Status::no_such_resource().into_response();
    }
    let body = json!({ "paths": PATHS }).to_string();
    (http::StatusCode::NOT_FOUND, [(http::header::CONTENT_TYPE, JSON)], body).into_response()
}

#[cfg(test)]
mod tests;
