//! A small API server in memory, for conversations that go back and forth: it stores what is written, checks versions, merges
//! what is applied, and answers watches.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Debug;
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
use wva::cluster::pki::apiservice;

/// The path of the APIServices.
pub(crate) const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

/// One write that was accepted.
#[derive(Debug, Clone)]
pub(crate) struct Write {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) body: Value,
}

type ListObserver = Box<dyn Fn(&str) + Send>;

#[derive(Default)]
struct Content {
    objects: BTreeMap<String, Value>,
    /// Version, path of the object, and event of a watch.
    events: Vec<(u64, String, Value)>,
    writes: Vec<Write>,
    /// Where the writing program crashes.
    crash: Option<Crash>,
    version: u64,
    forbidden: Vec<String>,
    /// Called with the query of each list.
    on_list: Option<ListObserver>,
}

/// A crash between two writes: the program gets the answer to the last one, or does not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Crash {
    /// Writes that are accepted; nothing is answered after them.
    pub(crate) after: usize,
    /// Whether that last one is answered.
    pub(crate) answered: bool,
}

impl Content {
    fn store(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("uid-{}", self.version));
        }
        let known = self.objects.insert(path.into(), object.clone());
        let kind = if known.is_some() { "MODIFIED" } else { "ADDED" };
        self.events.push((self.version, path.into(), json!({ "type": kind, "object": object })));
        object
    }

    fn remove(&mut self, path: &str) -> Option<Value> {
        let mut deleted = self.objects.remove(path)?;
        self.version += 1;
        deleted["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.events.push((self.version, path.into(), json!({ "type": "DELETED", "object": deleted })));
        Some(deleted)
    }
}

/// The server; its clones are the same one.
#[derive(Clone)]
pub(crate) struct ApiServer {
    content: Arc<Mutex<Content>>,
    version: watch::Sender<u64>,
}

impl ApiServer {
    pub(crate) fn new() -> Self {
        Self { content: Arc::default(), version: watch::Sender::new(0) }
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

    /// Rejects every write below `path` from now on.
    pub(crate) fn forbid(&self, path: &str) {
        self.content.lock().forbidden.push(path.into());
    }

    /// Calls `observe` with the query of each list from now on.
    pub(crate) fn on_list(&self, observe: impl Fn(&str) + Send + 'static) {
        self.content.lock().on_list = Some(Box::new(observe));
    }

    /// Rejects nothing any more.
    pub(crate) fn permit(&self) {
        self.content.lock().forbidden.clear();
    }

    pub(crate) fn client(&self) -> kube::Client {
        let server = self.clone();
        let answer = move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        };
        kube::Client::new(service_fn(answer), "default")
    }

    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.content.lock().objects.get(path).cloned()
    }

    /// Stores an object, as a person or another program does.
    pub(crate) fn put(&self, path: &str, object: Value) {
        let mut content = self.content.lock();
        content.store(path, object);
        self.version.send_replace(content.version);
    }

    pub(crate) fn change(&self, path: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.get(path).unwrap();
        change(&mut object);
        self.put(path, object);
    }

    pub(crate) fn delete(&self, path: &str) {
        let mut content = self.content.lock();
        content.remove(path);
        self.version.send_replace(content.version);
    }

    /// Deletes an object while watches are broken: they learn that their version has expired, and have to list anew.
    pub(crate) fn delete_unwatched(&self, path: &str) {
        let mut content = self.content.lock();
        content.remove(path);
        if let Some((_, _, event)) = content.events.last_mut() {
            // Watches find the event by its labels.
            let labels = event["object"]["metadata"]["labels"].take();
            let (_, mut expired) = status(410, "Expired");
            expired["metadata"] = json!({ "labels": labels });
            *event = json!({ "type": "ERROR", "object": expired });
        }
        self.version.send_replace(content.version);
    }

    /// Where the writing program crashes from now on; `None`: it does not. Writes are counted anew.
    pub(crate) fn crash(&self, crash: Option<Crash>) {
        let mut content = self.content.lock();
        content.writes.clear();
        content.crash = crash;
    }

    /// True when the program has crashed.
    pub(crate) fn has_crashed(&self) -> bool {
        let content = self.content.lock();
        content.crash.is_some_and(|crash| content.writes.len() >= crash.after)
    }

    /// The writes whose path begins with `below`.
    pub(crate) fn writes(&self, below: &str) -> Vec<Write> {
        self.content.lock().writes.iter().filter(|write| write.path.starts_with(below)).cloned().collect()
    }

    /// Waits until there is a watch: what was listed before may be older than what happens from now on.
    pub(crate) async fn until_watched(&self) {
        while self.version.receiver_count() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits for a result of `read`.
    pub(crate) async fn until<T>(&self, within: Duration, read: impl Fn(&Self) -> Option<T>) -> T {
        let mut versions = self.version.subscribe();
        let waiting = async {
            loop {
                versions.borrow_and_update();
                if let Some(result) = read(self) {
                    return result;
                }
                versions.changed().await.unwrap();
            }
        };
        let Ok(result) = timeout(within, waiting).await else {
            panic!("not within {within:?}; written: {:#?}", self.writes(""))
        };
        result
    }

    /// Stores an object of the resource with this path in all namespaces.
    pub(crate) fn put_in(&self, resource: &str, object: Value) {
        self.put(&object_path(resource, &object), object);
    }

    /// The answer to any request.
    pub(crate) async fn answer<B>(&self, request: Request<B>) -> Response<Answer>
    where
        B: hyper::body::Body,
        B::Error: Debug,
    {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let path = head.uri.path().to_owned();
        let query = head.uri.query().unwrap_or_default().to_owned();
        if self.has_crashed() {
            return std::future::pending().await;
        }
        let (code, answer) = if head.method != Method::GET {
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let answer = self.write(Write { method: head.method, path, query, body });
            if self.has_crashed() && !self.content.lock().crash.is_some_and(|crash| crash.answered) {
                return std::future::pending().await;
            }
            answer
        } else if query.contains("watch=") {
            let event = self.watched(&path, &query).await;
            // The type comes first, as from a real API server: the program reads the object from the text itself.
            let line = format!("{{\"type\":{},\"object\":{}}}\n", event["type"], event["object"]);
            return Response::new(Answer::from(line));
        } else if let Some(object) = self.get(&path) {
            (200, object)
        } else if is_collection(&path) {
            let content = self.content.lock();
            content.on_list.iter().for_each(|observe| observe(&query));
            let selected = content.objects.iter().filter(|(own, object)| selects(&path, &query, own, object));
            let items: Vec<_> = selected.map(|(_, object)| object).collect();
            let metadata = json!({ "resourceVersion": content.version.to_string() });
            (200, json!({ "apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items }))
        } else {
            let (code, mut answer) = status(404, "NotFound");
            answer["details"] = json!({ "name": path.rsplit('/').next() });
            (code, answer)
        };
        let answer = Answer::from(format!("{answer}\n"));
        Response::builder().status(code).body(answer).unwrap()
    }

    /// The next event after the requested version. Each answer has one event, and the client asks again.
    async fn watched(&self, path: &str, query: &str) -> Value {
        let after: u64 = parameter(query, "resourceVersion").unwrap().parse().unwrap();
        let mut versions = self.version.subscribe();
        loop {
            versions.borrow_and_update();
            let event = {
                let content = self.content.lock();
                let mut events = content.events.iter();
                let next = |(version, own, event): &&(u64, String, Value)| {
                    *version > after && selects(path, query, own, &event["object"])
                };
                events.find(next).map(|(_, _, event)| event.clone())
            };
            match event {
                Some(event) => return event,
                None => versions.changed().await.unwrap(),
            }
        }
    }

    fn write(&self, write: Write) -> (u16, Value) {
        let mut content = self.content.lock();
        if content.forbidden.iter().any(|path| write.path.starts_with(path.as_str())) {
            return status(403, "Forbidden");
        }
        let name = write.body["metadata"]["name"].as_str().unwrap_or_default();
        let object = write.path.strip_suffix("/status").unwrap_or(&write.path);
        let path = if write.method == Method::POST { format!("{object}/{name}") } else { object.to_owned() };
        let known = content.objects.get(&path).cloned();
        if let (Some(known), Some(uid)) = (&known, write.body["metadata"]["uid"].as_str())
            && known["metadata"]["uid"] != uid
        {
            return status(409, "Conflict");
        }
        let stored = match (&write.method, known) {
            (&Method::DELETE, None) => return status(404, "NotFound"),
            (&Method::DELETE, Some(known)) => {
                let expected = &write.body["preconditions"]["resourceVersion"];
                if !expected.is_null() && *expected != known["metadata"]["resourceVersion"] {
                    return status(409, "Conflict");
                }
                content.remove(&path);
                content.writes.push(write);
                self.version.send_replace(content.version);
                return (200, known);
            }
            (&Method::POST, Some(_)) => return status(409, "AlreadyExists"),
            (&Method::POST, None) => write.body.clone(),
            (&Method::PUT, Some(known))
                if known["metadata"]["resourceVersion"] != write.body["metadata"]["resourceVersion"] =>
            {
                return status(409, "Conflict");
            }
            (&Method::PUT, Some(_)) => write.body.clone(),
            (_, Some(known)) => {
                let version = &write.body["metadata"]["resourceVersion"];
                if !version.is_null() && *version != known["metadata"]["resourceVersion"] {
                    return status(409, "Conflict");
                }
                merged(known, &write.body)
            }
            (_, None) => return status(404, "NotFound"),
        };
        let stored = content.store(&path, stored);
        content.writes.push(write);
        self.version.send_replace(content.version);
        (200, stored)
    }
}

/// A `Status` with its code.
pub(crate) fn status(code: u16, reason: &str) -> (u16, Value) {
    let status = json!({
        "kind": "Status", "status": "Failure", "reason": reason, "code": code, "message": reason
    });
    (code, status)
}

/// The path of an object of the resource with this path in all namespaces.
pub(crate) fn object_path(resource: &str, object: &Value) -> String {
    let metadata = &object["metadata"];
    let (group, kind) = resource.rsplit_once('/').unwrap();
    let name = metadata["name"].as_str().unwrap();
    match metadata["namespace"].as_str() {
        Some(namespace) => format!("{group}/namespaces/{namespace}/{kind}/{name}"),
        None => format!("{resource}/{name}"),
    }
}

/// Merges what is applied: annotations, fields of the spec, and conditions by their type.
fn merged(mut known: Value, applied: &Value) -> Value {
    for (name, value) in applied["metadata"]["annotations"].as_object().into_iter().flatten() {
        known["metadata"]["annotations"][name] = value.clone();
    }
    if let Some(annotations) = known["metadata"]["annotations"].as_object_mut() {
        annotations.retain(|_, value| !value.is_null());
    }
    for (field, value) in applied["spec"].as_object().into_iter().flatten() {
        known["spec"][field] = value.clone();
    }
    for part in ["/spec", "/spec/service"] {
        if let Some(fields) = known.pointer_mut(part).and_then(Value::as_object_mut) {
            fields.retain(|_, value| !value.is_null());
        }
    }
    for field in ["desiredOptimizedAlloc", "actuation"] {
        if let Some(value) = applied["status"].get(field) {
            known["status"][field] = value.clone();
        }
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

fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
}

/// True for the path of a collection.
fn is_collection(path: &str) -> bool {
    const COLLECTIONS: [&str; 14] = [
        "apiservices",
        "configmaps",
        "deployments",
        "horizontalpodautoscalers",
        "inferencepools",
        "leases",
        "namespaces",
        "nodes",
        "pods",
        "replicasets",
        "scaledobjects",
        "secrets",
        "services",
        "variantautoscalings",
    ];
    COLLECTIONS.contains(&path.rsplit('/').next().unwrap())
}

/// True when a list or watch of `path` contains the object at `own`.
fn selects(path: &str, query: &str, own: &str, object: &Value) -> bool {
    let (folder, name) = own.rsplit_once('/').unwrap();
    let everywhere = || {
        let (group, kind) = path.rsplit_once('/').unwrap();
        folder.starts_with(&format!("{group}/namespaces/")) && folder.ends_with(&format!("/{kind}"))
    };
    if folder != path && !everywhere() {
        return false;
    }
    let by_name = parameter(query, "fieldSelector").and_then(|field| field.strip_prefix("metadata.name%3D"));
    let labels = parameter(query, "labelSelector")
        .unwrap_or_default()
        .replace("%3D", "=")
        .replace("%2F", "/")
        .replace("%21", "!");
    let mut labels = labels.split("%2C").filter(|label| !label.is_empty());
    by_name.is_none_or(|selected| selected == name)
        && labels.all(|label| {
            if let Some(absent) = label.strip_prefix('!') {
                return object["metadata"]["labels"][absent].is_null();
            }
            let (key, value) = label.split_once('=').unwrap();
            object["metadata"]["labels"][key] == value
        })
}
