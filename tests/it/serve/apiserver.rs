//! A fake API server that is complete enough for `wva serve`: empty lists, silent watches, objects that stay as they were
//! written or that a test changes, and reviews with the results that a test sets.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use futures::Stream;
use http::{Method, Response, StatusCode, Uri};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio::task::JoinSet;

use super::pki::Authority;
use super::test_server::trust;

/// Prefix of valid tokens.
pub(crate) const GOOD: &str = "good-";

#[derive(Clone)]
struct Objects {
    trust: Arc<Value>,
    written: Arc<Mutex<HashMap<String, Value>>>,
    reviews: Arc<Mutex<Vec<Value>>>,
    /// Further objects, by the path of their list.
    listed: Arc<Vec<(String, Value)>>,
    changes: broadcast::Sender<Change>,
}

/// The path of a list, and an event of its watches.
type Change = (String, Value);

pub(crate) struct ApiServer {
    pub(crate) address: SocketAddr,
    /// The specs of all access reviews.
    pub(crate) reviews: Arc<Mutex<Vec<Value>>>,
    /// Objects by path, as last written.
    pub(crate) written: Arc<Mutex<HashMap<String, Value>>>,
    changes: broadcast::Sender<Change>,
    _serving: JoinSet<()>,
}

impl ApiServer {
    pub(crate) async fn start(front_proxy: &Authority, users: &Authority, objects: &[(&str, Value)]) -> Self {
        let data = trust(&front_proxy.pem(), &users.pem());
        let name = "extension-apiserver-authentication";
        let metadata =
            json!({ "name": name, "namespace": "kube-system", "resourceVersion": "1", "uid": "t" });
        let trust = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data });
        let reviews = Arc::default();
        let listed = objects.iter().map(|(path, object)| ((*path).to_owned(), object.clone())).collect();
        let (written, listed): (Arc<Mutex<_>>, _) = (Arc::default(), Arc::new(listed));
        let changes = broadcast::Sender::new(16);
        let state = Objects {
            trust: Arc::new(trust),
            written: written.clone(),
            reviews,
            listed,
            changes: changes.clone(),
        };
        let reviews = state.reviews.clone();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            axum::serve(listener, Router::new().fallback(answer).with_state(state)).await.unwrap();
        });
        Self { address, reviews, written, changes, _serving: serving }
    }

    /// Sends an ADDED, MODIFIED or DELETED event to the watches of a list.
    pub(crate) fn change(&self, list: &str, kind: &str, object: &Value) {
        self.changes.send((list.to_owned(), json!({ "type": kind, "object": object }))).unwrap();
    }
}

async fn answer(State(objects): State<Objects>, method: Method, uri: Uri, body: Bytes) -> Response<Body> {
    let path = uri.path();
    let query = uri.query().unwrap_or_default();
    let sent: Value = serde_json::from_slice(&body).unwrap_or_default();
    if path.ends_with("/tokenreviews") {
        return who(sent);
    }
    if path.ends_with("/subjectaccessreviews") {
        objects.reviews.lock().push(sent["spec"].clone());
        return may(sent).await;
    }
    if query.contains("watch=true") {
        return Response::new(Body::from_stream(objects.events(path, query)));
    }
    match method {
        Method::GET if query.contains("metadata.name%3Dforbidden") => {
            status(StatusCode::FORBIDDEN, "Forbidden", "configmaps is forbidden")
        }
        Method::GET if is_list(path) => {
            let is_trust = path == "/api/v1/namespaces/kube-system/configmaps";
            let items = if is_trust { json!([*objects.trust]) } else { objects.items(path, query) };
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

/// True when the query's field selector names the object, or names none.
fn is_selected(query: &str, object: &Value) -> bool {
    let named =
        query.split_once("metadata.name%3D").map(|(_, rest)| rest.split('&').next().unwrap_or_default());
    named.is_none_or(|name| object["metadata"]["name"] == name)
}

impl Objects {
    fn items(&self, path: &str, query: &str) -> Value {
        let of_list = self.listed.iter().filter(|(list, object)| list == path && is_selected(query, object));
        of_list.map(|(_, object)| object.clone()).collect()
    }

    /// An endless stream of the changes that a test makes.
    fn events(&self, path: &str, query: &str) -> impl Stream<Item = Result<Bytes, std::io::Error>> + use<> {
        let path = path.to_owned();
        let query = query.to_owned();
        futures::stream::unfold(self.changes.subscribe(), move |mut changes| {
            let path = path.clone();
            let query = query.clone();
            async move {
                loop {
                    let (list, event) = changes.recv().await.unwrap_or_default();
                    if list == path && is_selected(&query, &event["object"]) {
                        return Some((Ok(Bytes::from(format!("{event}\n"))), changes));
                    }
                }
            }
        })
    }

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

/// The token selects the result. An API server repeats it in its answer, and a proxy in front may repeat it in its errors.
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

/// Allows everybody, `slow` only after 3 s.
async fn may(mut review: Value) -> Response<Body> {
    if review["spec"]["user"] == "slow" {
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    review["status"] = json!({ "allowed": true });
    ok(&review)
}
