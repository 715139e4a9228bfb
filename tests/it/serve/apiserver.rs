//! Enough of an API server for a whole `wva serve` to start: empty lists, silent watches, objects that stay as they were
//! written, and reviews as a test wants them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use http::{Method, Response, StatusCode, Uri};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::bed::trust;
use super::pki::Authority;

/// A token that begins so is somebody's.
pub(crate) const GOOD: &str = "good-";

#[derive(Clone)]
struct Objects {
    trust: Arc<Value>,
    written: Arc<Mutex<HashMap<String, Value>>>,
    reviews: Arc<Mutex<Vec<Value>>>,
}

pub(crate) struct ApiServer {
    pub(crate) address: SocketAddr,
    /// The specs of all access reviews.
    pub(crate) reviews: Arc<Mutex<Vec<Value>>>,
    _serving: JoinSet<()>,
}

impl ApiServer {
    pub(crate) async fn start(front_proxy: &Authority, users: &Authority) -> Self {
        let data = trust(&front_proxy.pem(), &users.pem());
        let name = "extension-apiserver-authentication";
        let metadata =
            json!({ "name": name, "namespace": "kube-system", "resourceVersion": "1", "uid": "t" });
        let trust = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data });
        let reviews = Arc::default();
        let state = Objects { trust: Arc::new(trust), written: Arc::default(), reviews };
        let (reviews, listener) = (state.reviews.clone(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let address = listener.local_addr().unwrap();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            axum::serve(listener, Router::new().fallback(answer).with_state(state)).await.unwrap();
        });
        Self { address, reviews, _serving: serving }
    }
}

async fn answer(State(objects): State<Objects>, method: Method, uri: Uri, body: Bytes) -> Response<Body> {
    let (path, query) = (uri.path(), uri.query().unwrap_or_default());
    let sent: Value = serde_json::from_slice(&body).unwrap_or_default();
    if path.ends_with("/tokenreviews") {
        return who(sent);
    }
    if path.ends_with("/subjectaccessreviews") {
        objects.reviews.lock().push(sent["spec"].clone());
        return may(sent).await;
    }
    if query.contains("watch=true") {
        return Response::new(Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>()));
    }
    match method {
        Method::GET if is_list(path) => {
            let is_trust = path == "/api/v1/namespaces/kube-system/configmaps";
            let items = if is_trust { json!([*objects.trust]) } else { json!([]) };
            let metadata = json!({ "resourceVersion": "1" });
            ok(&json!({ "apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items }))
        }
        Method::GET => match objects.written.lock().get(path) {
            Some(object) => ok(object),
            None => status(StatusCode::NOT_FOUND, "NotFound", "there is none"),
        },
        Method::POST => {
            let path = format!("{path}/{}", sent["metadata"]["name"].as_str().unwrap_or_default());
            ok(&objects.write(path, sent))
        }
        _ => ok(&objects.write(path.to_owned(), sent)),
    }
}

impl Objects {
    fn write(&self, path: String, mut object: Value) -> Value {
        object["metadata"]["resourceVersion"] = json!("2");
        object["metadata"]["uid"] = json!("u");
        self.written.lock().insert(path, object.clone());
        object
    }
}

/// A path without the name of an object.
fn is_list(path: &str) -> bool {
    let parts = path.trim_start_matches('/').split('/').count();
    let namespaced = path.contains("/namespaces/");
    let root = if path.starts_with("/api/") { 2 } else { 3 };
    parts == root + if namespaced { 3 } else { 1 }
}

fn ok(value: &Value) -> Response<Body> {
    Response::new(Body::from(value.to_string()))
}

fn status(code: StatusCode, reason: &str, message: &str) -> Response<Body> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code.as_u16()
    });
    Response::builder().status(code).body(Body::from(status.to_string())).unwrap()
}

/// As the token says. An API server repeats it in its answer, and a proxy before it may in its errors.
fn who(mut review: Value) -> Response<Body> {
    let token = review["spec"]["token"].as_str().unwrap_or_default().to_owned();
    match token.split('-').next().unwrap_or_default() {
        "good" => {
            review["status"] = json!({
                "authenticated": true,
                "audiences": ["https://kubernetes.default.svc"],
                "user": {
                    "username": "system:serviceaccount:monitoring:prometheus", "uid": "p-1",
                    "groups": ["system:serviceaccounts"],
                    "extra": { "authentication.kubernetes.io/pod-name": ["prometheus-0"] }
                }
            });
            ok(&review)
        }
        "nameless" => {
            review["status"] = json!({ "authenticated": true, "user": {} });
            ok(&review)
        }
        "unreadable" => Response::new(Body::from(format!("{{\"status\": {{\"user\": \"{token}\"}}}}"))),
        "refused" => status(StatusCode::FORBIDDEN, "Forbidden", &format!("no review of {token} for you")),
        "proxy" => Response::builder().status(502).body(Body::from(format!("<html>{token}</html>"))).unwrap(),
        _ => {
            review["status"] = json!({ "authenticated": false, "error": "[invalid bearer token]" });
            ok(&review)
        }
    }
}

/// Everybody, and `slow` only after a while.
async fn may(mut review: Value) -> Response<Body> {
    if review["spec"]["user"] == "slow" {
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    review["status"] = json!({ "allowed": true });
    ok(&review)
}
