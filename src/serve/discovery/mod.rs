//! What this server serves, told from memory: `/`, `/apis…`, `/version`, `/openapi…`. Depends on nothing, so that it
//! answers before, during and after every outage: while it fails, no namespace of the cluster can be deleted.

mod document;
mod openapi;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Uri};
use serde_json::{Value, json};

use self::document::Document;
use super::accept;
use super::external_metrics::metric::{GROUP, Metric, VERSION};
use super::represent;
use super::state::AppState;
use super::status::{JSON, Status};

/// The API group that gives the same numbers to HPAs of type Object.
pub(crate) const CUSTOM_GROUP: &str = "custom.metrics.k8s.io";

const MEDIA: &str = "application/json";
const MEDIA_V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const MEDIA_V2BETA1: &str = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

/// The paths of `/`, for people; sorted.
const PATHS: [&str; 11] = [
    "/apis",
    "/apis/external.metrics.k8s.io",
    "/apis/external.metrics.k8s.io/v1beta1",
    "/healthz",
    "/livez",
    "/metrics",
    "/openapi/v2",
    "/openapi/v3",
    "/openapi/v3/apis/external.metrics.k8s.io/v1beta1",
    "/readyz",
    "/version",
];

/// Every static answer.
#[derive(Debug)]
pub(crate) struct Documents {
    root: Document,
    version: Document,
    groups: Document,
    groups_v2: Document,
    groups_v2beta1: Document,
    group: Document,
    resources: Document,
    openapi_v2: Document,
    openapi_v3: Document,
    openapi_v3_group: Document,
}

impl Documents {
    pub(crate) fn new() -> Self {
        let openapi_v3_group = Document::new(MEDIA, &openapi::v3());
        Self {
            root: Document::new(MEDIA, &json!({ "paths": PATHS })),
            version: Document::new(MEDIA, &version()),
            groups: Document::new(
                MEDIA,
                &json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group()]}),
            ),
            groups_v2: Document::new(MEDIA_V2, &aggregated("apidiscovery.k8s.io/v2")),
            groups_v2beta1: Document::new(MEDIA_V2BETA1, &aggregated("apidiscovery.k8s.io/v2beta1")),
            group: Document::new(MEDIA, &kinded("APIGroup", group())),
            resources: Document::new(MEDIA, &resources()),
            openapi_v2: Document::new(MEDIA, &openapi::v2()),
            openapi_v3: Document::new(MEDIA, &openapi::v3_index(openapi_v3_group.digest())),
            openapi_v3_group,
        }
    }
}

fn group() -> Value {
    let version = json!({"groupVersion": format!("{GROUP}/{VERSION}"), "version": VERSION});
    json!({"name": GROUP, "versions": [version], "preferredVersion": version})
}

fn kinded(kind: &str, mut value: Value) -> Value {
    value["kind"] = kind.into();
    value["apiVersion"] = "v1".into();
    value
}

/// Only `get` is advertised: with more, the garbage collector watches and the namespace controller deletes.
fn resources() -> Value {
    let resource = |name| json!({"name": name, "singularName": "", "namespaced": true, "kind": "ExternalMetricValueList", "verbs": ["get"]});
    let resources: Vec<_> = Metric::NAMES.iter().map(|(name, _)| resource(*name)).collect();
    let list = json!({"groupVersion": format!("{GROUP}/{VERSION}"), "resources": resources});
    kinded("APIResourceList", list)
}

fn aggregated(api_version: &str) -> Value {
    let kind = json!({"group": GROUP, "version": VERSION, "kind": "ExternalMetricValueList"});
    let resource = |name| {
        json!({
            "resource": name, "responseKind": kind, "scope": "Namespaced", "singularResource": "", "verbs": ["get"]
        })
    };
    let resources: Vec<_> = Metric::NAMES.iter().map(|(name, _)| resource(*name)).collect();
    let version = json!({"version": VERSION, "freshness": "Current", "resources": resources});
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": api_version, "metadata": {},
        "items": [{"metadata": {"name": GROUP}, "versions": [version]}]
    })
}

fn version() -> Value {
    json!({
        "major": env!("CARGO_PKG_VERSION_MAJOR"), "minor": env!("CARGO_PKG_VERSION_MINOR"),
        "gitVersion": concat!("v", env!("CARGO_PKG_VERSION")), "gitCommit": "", "gitTreeState": "", "buildDate": "",
        "goVersion": "", "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH)
    })
}

/// `/apis` in the representation that the client asks for.
pub(crate) async fn groups(State(state): State<AppState>, headers: HeaderMap) -> Response {
    let documents = state.documents();
    match accept::discovery(&headers) {
        accept::Discovery::V2 => documents.groups_v2.answer(&headers),
        accept::Discovery::V2Beta1 => documents.groups_v2beta1.answer(&headers),
        accept::Discovery::Legacy(_) => documents.groups.answer(&headers),
        accept::Discovery::NotAcceptable => represent::not_acceptable(&["application/json"]).into_response(),
    }
}

macro_rules! documents {
    ($($(#[$doc:meta])* $handler:ident => $field:ident),* $(,)?) => {$(
        $(#[$doc])*
        pub(crate) async fn $handler(State(state): State<AppState>, headers: HeaderMap) -> Response {
            state.documents().$field.answer(&headers)
        }
    )*};
}

documents! {
    /// `/`
    root => root,
    /// `/version`
    version_info => version,
    /// `/apis/external.metrics.k8s.io`
    one_group => group,
    /// `/apis/external.metrics.k8s.io/v1beta1`: the aggregator's availability probe.
    group_version => resources,
    /// `/openapi/v2`
    openapi_v2 => openapi_v2,
    /// `/openapi/v3`: a single 404 here would be remembered for good by the aggregator.
    openapi_v3 => openapi_v3,
    /// `/openapi/v3/apis/external.metrics.k8s.io/v1beta1`
    openapi_v3_group => openapi_v3_group,
}

/// Everything else: a `Status` below the group, the list of paths elsewhere.
pub(crate) async fn nothing_here(uri: Uri) -> Response {
    if uri.path().starts_with("/apis/") {
        return Status::no_such_resource().into_response();
    }
    let body = json!({ "paths": PATHS }).to_string();
    (http::StatusCode::NOT_FOUND, [(http::header::CONTENT_TYPE, JSON)], body).into_response()
}
