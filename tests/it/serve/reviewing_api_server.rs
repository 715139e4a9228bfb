//! The API server of `crate::api_server` on a socket, complete enough for `wva serve`: with the cluster's trust, and with reviews
//! whose results a test selects by token and user.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::pki::Authority;
use super::test_server::trust;
use crate::api_server::ApiServer;

/// Prefix of valid tokens.
pub(crate) const GOOD: &str = "good-";
/// A name of which no object may be listed.
pub(crate) const FORBIDDEN: &str = "forbidden";

#[derive(Clone)]
struct Handler {
    objects: ApiServer,
    reviews: Arc<Mutex<Vec<Value>>>,
}

pub(crate) struct ReviewingApiServer {
    pub(crate) address: SocketAddr,
    pub(crate) objects: ApiServer,
    /// The specs of all access reviews.
    pub(crate) reviews: Arc<Mutex<Vec<Value>>>,
    _serving: JoinSet<()>,
}

impl ReviewingApiServer {
    /// With these objects, by the path of their resource.
    pub(crate) async fn start(front_proxy: &Authority, users: &Authority, objects: &[(&str, Value)]) -> Self {
        let api = ApiServer::new();
        let metadata = json!({ "name": "extension-apiserver-authentication", "namespace": "kube-system" });
        let data = trust(&front_proxy.pem(), &users.pem());
        let trust = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data });
        api.put_in("/api/v1/configmaps", trust);
        for (resource, object) in objects {
            api.put_in(resource, object.clone());
        }
        let reviews = Arc::default();
        let handler = Handler { objects: api.clone(), reviews: Arc::clone(&reviews) };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            axum::serve(listener, Router::new().fallback(answer).with_state(handler)).await.unwrap();
        });
        Self { address, objects: api, reviews, _serving: serving }
    }
}

async fn answer(State(handler): State<Handler>, request: Request<Body>) -> Response<Body> {
    let uri = request.uri();
    if uri.path().ends_with("/tokenreviews") {
        return review_token(read(request).await);
    }
    if uri.path().ends_with("/subjectaccessreviews") {
        let review = read(request).await;
        handler.reviews.lock().push(review["spec"].clone());
        return review_access(review).await;
    }
    if uri.query().unwrap_or_default().contains(&format!("metadata.name%3D{FORBIDDEN}")) {
        return forbid("configmaps is forbidden");
    }
    handler.objects.answer(request).await
}

async fn read(request: Request<Body>) -> Value {
    let body = request.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&body).unwrap()
}

fn ok(value: &Value) -> Response<Body> {
    Response::new(Body::from(value.to_string()))
}

fn forbid(message: &str) -> Response<Body> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": "Forbidden", "code": 403
    });
    Response::builder().status(StatusCode::FORBIDDEN).body(Body::from(status.to_string())).unwrap()
}

/// The token selects the result. An API server repeats it in its answer, and a proxy in front may repeat it in its errors.
fn review_token(mut review: Value) -> Response<Body> {
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
        "refused" => forbid(&format!("no review of {token} for you")),
        "proxy" => Response::builder().status(502).body(Body::from(format!("<html>{token}</html>"))).unwrap(),
        _ => {
            review["status"] = json!({ "authenticated": false, "error": "[invalid bearer token]" });
            ok(&review)
        }
    }
}

/// Allows everybody, `slow` only after 3 s.
async fn review_access(mut review: Value) -> Response<Body> {
    if review["spec"]["user"] == "slow" {
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    review["status"] = json!({ "allowed": true });
    ok(&review)
}
