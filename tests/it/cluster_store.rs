//! A small API server in memory, for conversations that go back and forth: it keeps what is written, guards versions,
//! merges what is applied, and tells watches.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body as Answer;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::timeout;
use tower::service_fn;
use wva::cluster::apiservice;

pub(crate) const SECRET: &str = "/api/v1/namespaces/wva/secrets/wva-tls";
pub(crate) const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

/// One write that was accepted.
#[derive(Debug, Clone)]
pub(crate) struct Write {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) body: Value,
}

#[derive(Default)]
struct Kept {
    objects: BTreeMap<String, Value>,
    writes: Vec<Write>,
    version: u64,
    forbidden: Vec<String>,
}

#[derive(Clone)]
pub(crate) struct Store {
    kept: Arc<Mutex<Kept>>,
    version: watch::Sender<u64>,
}

impl Store {
    pub(crate) fn new() -> Self {
        Self { kept: Arc::default(), version: watch::Sender::new(0) }
    }

    /// With an APIService `name` of Service wva/`service`.
    pub(crate) fn with_service(self, name: &str, service: &str) -> Self {
        let (version, group) = name.split_once('.').unwrap();
        self.put(
            &format!("{SERVICES}/{name}"),
            json!({
                "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
                "metadata": { "name": name, "uid": format!("uid-{version}") },
                "spec": {
                    "group": group, "version": version, "versionPriority": 100, "groupPriorityMinimum": 100,
                    "service": { "namespace": "wva", "name": service }
                }
            }),
        );
        self
    }

    /// With the one APIService that every installation has.
    pub(crate) fn installed() -> Self {
        Self::new().with_service(apiservice::NAME, "wva")
    }

    /// Every write below `path` is refused from now on.
    pub(crate) fn forbid(&self, path: &str) {
        self.kept.lock().forbidden.push(path.into());
    }

    /// Nothing is refused any more.
    pub(crate) fn permit(&self) {
        self.kept.lock().forbidden.clear();
    }

    pub(crate) fn client(&self) -> kube::Client {
        let store = self.clone();
        let answer = move |request: Request<Body>| {
            let store = store.clone();
            async move { Ok::<_, Infallible>(store.answer(request).await) }
        };
        kube::Client::new(service_fn(answer), "default")
    }

    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.kept.lock().objects.get(path).cloned()
    }

    /// What a person or another program does.
    pub(crate) fn put(&self, path: &str, mut object: Value) {
        let mut kept = self.kept.lock();
        kept.version += 1;
        object["metadata"]["resourceVersion"] = json!(kept.version.to_string());
        kept.objects.insert(path.into(), object);
        self.version.send_replace(kept.version);
    }

    pub(crate) fn change(&self, path: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.get(path).unwrap();
        change(&mut object);
        self.put(path, object);
    }

    pub(crate) fn delete(&self, path: &str) {
        let mut kept = self.kept.lock();
        kept.version += 1;
        kept.objects.remove(path);
        self.version.send_replace(kept.version);
    }

    /// The writes whose path begins so.
    pub(crate) fn writes(&self, below: &str) -> Vec<Write> {
        self.kept.lock().writes.iter().filter(|write| write.path.starts_with(below)).cloned().collect()
    }

    /// Waits until the store is as wanted.
    pub(crate) async fn until<T>(&self, within: Duration, wanted: impl Fn(&Self) -> Option<T>) -> T {
        let mut versions = self.version.subscribe();
        let waiting = async {
            loop {
                versions.borrow_and_update();
                if let Some(seen) = wanted(self) {
                    return seen;
                }
                versions.changed().await.unwrap();
            }
        };
        let Ok(seen) = timeout(within, waiting).await else {
            panic!("not within {within:?}; written: {:#?}", self.writes(""))
        };
        seen
    }

    async fn answer(&self, request: Request<Body>) -> Response<Answer> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let (path, query) = (head.uri.path().to_owned(), head.uri.query().unwrap_or_default().to_owned());
        let (code, answer) = if head.method != Method::GET {
            let body = serde_json::from_slice(&body).unwrap_or_default();
            self.write(Write { method: head.method, path, query, body })
        } else if query.contains("watch=") {
            (200, self.watched(&path, &query).await)
        } else if let Some(name) = selected(&query) {
            let kept = self.kept.lock();
            let items: Vec<_> = kept.objects.get(&format!("{path}/{name}")).into_iter().collect();
            let metadata = json!({ "resourceVersion": kept.version.to_string() });
            (200, json!({ "apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items }))
        } else {
            self.get(&path).map_or_else(|| status(404, "NotFound"), |object| (200, object))
        };
        let answer = Answer::from(format!("{answer}\n"));
        Response::builder().status(code).body(answer).unwrap()
    }

    /// The next event after the version that is named. Each answer has one; the client asks again.
    async fn watched(&self, path: &str, query: &str) -> Value {
        let name = selected(query).unwrap();
        let after: u64 = parameter(query, "resourceVersion").unwrap().parse().unwrap();
        let mut versions = self.version.subscribe();
        let began = self.get(&format!("{path}/{name}"));
        loop {
            let now = *versions.borrow_and_update();
            let object = self.get(&format!("{path}/{name}"));
            let version = |object: &Value| {
                object["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap()
            };
            match (object, &began) {
                (Some(object), _) if version(&object) > after => {
                    return json!({ "type": "MODIFIED", "object": object });
                }
                (None, Some(gone)) => {
                    let mut gone = gone.clone();
                    gone["metadata"]["resourceVersion"] = json!(now.to_string());
                    return json!({ "type": "DELETED", "object": gone });
                }
                _ => versions.changed().await.unwrap(),
            }
        }
    }

    fn write(&self, write: Write) -> (u16, Value) {
        let mut kept = self.kept.lock();
        if kept.forbidden.iter().any(|path| write.path.starts_with(path.as_str())) {
            return status(403, "Forbidden");
        }
        kept.version += 1;
        let version = kept.version;
        let name = write.body["metadata"]["name"].as_str().unwrap_or_default();
        let object = write.path.strip_suffix("/status").unwrap_or(&write.path);
        let path = if write.method == Method::POST { format!("{object}/{name}") } else { object.to_owned() };
        let known = kept.objects.get(&path).cloned();
        let mut stored = match (&write.method, known) {
            (&Method::POST, Some(_)) => return status(409, "AlreadyExists"),
            (&Method::POST, None) => write.body.clone(),
            (&Method::PUT, Some(known))
                if known["metadata"]["resourceVersion"] != write.body["metadata"]["resourceVersion"] =>
            {
                return status(409, "Conflict");
            }
            (&Method::PUT, Some(_)) => write.body.clone(),
            (_, Some(known)) => merged(known, &write.body),
            (_, None) => return status(404, "NotFound"),
        };
        stored["metadata"]["resourceVersion"] = json!(version.to_string());
        kept.objects.insert(path, stored.clone());
        kept.writes.push(write);
        self.version.send_replace(version);
        (200, stored)
    }
}

/// What is applied, over what is there: fields of the spec, and conditions by their type.
fn merged(mut known: Value, applied: &Value) -> Value {
    for (field, value) in applied["spec"].as_object().into_iter().flatten() {
        known["spec"][field] = value.clone();
    }
    for condition in applied["status"]["conditions"].as_array().into_iter().flatten() {
        if !known["status"]["conditions"].is_array() {
            known["status"]["conditions"] = json!([]);
        }
        let conditions = known["status"]["conditions"].as_array_mut().unwrap();
        conditions.retain(|old| old["type"] != condition["type"]);
        conditions.push(condition.clone());
    }
    known
}

fn status(code: u16, reason: &str) -> (u16, Value) {
    (
        code,
        json!({ "kind": "Status", "status": "Failure", "reason": reason, "code": code, "message": reason }),
    )
}

fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
}

/// The one name that a list or a watch is about.
fn selected(query: &str) -> Option<String> {
    parameter(query, "fieldSelector")?.strip_prefix("metadata.name%3D").map(str::to_owned)
}
