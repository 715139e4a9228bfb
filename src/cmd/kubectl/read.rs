//! Reads explanations through the API server, and says what to do where that fails.

use std::time::Duration;

use http::HeaderValue;
use http::header::ACCEPT;
use kube::Client;
use kube::api::{GetParams, ListParams};
use kube::core::Request;
use serde_json::Value;

use crate::cluster::pki::apiservice::EXPLANATIONS_NAME;
use crate::cluster::requests::RequestError;
use crate::cmd::api;

/// The group and version.
const API: &str = "/apis/decisions.wva.llmd.ai/v1alpha1";
/// The resource with its group, as RBAC and kubectl name it.
const RESOURCE: &str = "explanations.decisions.wva.llmd.ai";
const TABLE: HeaderValue = HeaderValue::from_static("application/json;as=Table;v=v1;g=meta.k8s.io");
/// The server waits for an evaluation before it answers, and the API server for the server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The explanations of one namespace; of all of them where its name is empty.
pub(super) struct Explanations {
    pub(super) client: Client,
    pub(super) namespace: String,
}

impl Explanations {
    fn path(&self) -> String {
        match self.namespace.as_str() {
            "" => format!("{API}/explanations"),
            namespace => format!("{API}/namespaces/{namespace}/explanations"),
        }
    }

    /// The list.
    pub(super) async fn list(&self) -> Result<Value, String> {
        let request = Request::new(self.path()).list(&ListParams::default());
        self.answer(request, "list", "").await
    }

    /// The list as a table of `meta.k8s.io`.
    pub(super) async fn table(&self) -> Result<Value, String> {
        let request = Request::new(self.path()).list(&ListParams::default());
        let request = request.map(|mut request| {
            request.headers_mut().insert(ACCEPT, TABLE);
            request
        });
        self.answer(request, "list", "").await
    }

    /// The explanation of one variant.
    pub(super) async fn get(&self, name: &str) -> Result<Value, String> {
        let request = Request::new(self.path()).get(name, &GetParams::default());
        self.answer(request, "get", name).await
    }

    async fn answer(
        &self,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
        verb: &str,
        name: &str,
    ) -> Result<Value, String> {
        let answer = api::request(&self.client, request, REQUEST_TIMEOUT).await;
        answer.map_err(|error| {
            let place = match self.namespace.as_str() {
                "" => "all namespaces".to_owned(),
                namespace => format!("namespace {namespace}"),
            };
            let object = if name.is_empty() { RESOURCE.to_owned() } else { format!("{RESOURCE} {name}") };
            format!("{object} in {place}: {error}; {}", self.next_step(&error, verb))
        })
    }

    /// What to do about an error.
    fn next_step(&self, error: &RequestError, verb: &str) -> String {
        match error.code() {
            Some(404) if !is_of_the_server(error) => format!(
                "this cluster does not serve {RESOURCE}: install the chart with apiService.enabled or apiService.custom.enabled, and \
                 apiService.explanations.enabled (`kubectl get apiservice {EXPLANATIONS_NAME}`), or use `wva explain --server`"
            ),
            Some(404) => {
                "`kubectl wva status` lists the variants of a namespace, with -A those of all".to_owned()
            }
            Some(401) => "check the credentials of the kubeconfig".to_owned(),
            Some(403) => {
                let binding = match self.namespace.as_str() {
                    "" => "create clusterrolebinding NAME --clusterrole=view --user=USER".to_owned(),
                    namespace => {
                        format!("-n {namespace} create rolebinding NAME --clusterrole=view --user=USER")
                    }
                };
                format!(
                    "the verb {verb} on {RESOURCE} is needed, which the chart's ClusterRole …-explanations-reader grants as part of \
                     ClusterRole view: kubectl {binding}"
                )
            }
            Some(503) => format!(
                "`kubectl get apiservice {EXPLANATIONS_NAME} -o yaml` says whether the API server reaches wva, and `kubectl wva check` why not"
            ),
            Some(429) => "repeat it in a moment".to_owned(),
            _ => "check that the API server answers, and --kubeconfig and --context".to_owned(),
        }
    }
}

/// Whether wva itself has sent the error: it names its resource. The API server sends its own where it knows no such group.
fn is_of_the_server(error: &RequestError) -> bool {
    let RequestError::Api(error) = error else { return false };
    let kube::Error::Api(status) = &**error else { return false };
    status.details.as_ref().is_some_and(|details| details.kind == "explanations")
}

/// The rows of a table, with a header and the namespace first. Columns that only `-o wide` shows are left out.
pub(super) fn rows(table: &Value) -> Vec<Vec<String>> {
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let columns = list(table, "columnDefinitions");
    let is_shown: Vec<bool> = columns.iter().map(|column| column["priority"] == 0).collect();
    let shown = |cells: Vec<Value>| -> Vec<String> {
        let cells = cells.iter().zip(&is_shown).filter(|(_, is_shown)| **is_shown);
        cells.map(|(cell, _)| text(cell)).collect()
    };
    let header = columns.iter().map(|column| text(&column["name"]).to_uppercase().into()).collect();
    let mut rows = vec![["NAMESPACE".to_owned()].into_iter().chain(shown(header)).collect::<Vec<_>>()];
    for row in list(table, "rows") {
        let namespace = text(&row["object"]["metadata"]["namespace"]);
        rows.push([namespace].into_iter().chain(shown(list(&row, "cells"))).collect());
    }
    rows
}
