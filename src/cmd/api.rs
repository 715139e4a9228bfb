//! How commands reach an API server, by a kubeconfig or from a pod, and read its lists page by page.

use std::path::PathBuf;
use std::time::Duration;

use kube::Client;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Request;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::app::kubeconfig_problem;
use crate::cluster::requests::{RequestError, bounded_by};

/// Objects of one page of a list.
const PAGE_SIZE: u32 = 500;

/// How to reach a cluster, of commands that read `files` instead.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct ConnectionArgs {
    /// Kubeconfig file. Default: $KUBECONFIG, else ~/.kube/config, else the service account of the pod.
    #[arg(long, value_name = "FILE", conflicts_with = "files")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. Default: its current one.
    #[arg(long, value_name = "NAME", conflicts_with = "files")]
    context: Option<String>,
}

impl ConnectionArgs {
    /// The cluster that these name.
    pub(super) const fn new(kubeconfig: Option<PathBuf>, context: Option<String>) -> Self {
        Self { kubeconfig, context }
    }

    /// Whether neither is given.
    pub(super) fn is_default(&self) -> bool {
        self.kubeconfig.is_none() && self.context.is_none()
    }
}

/// A page of a list.
#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMetadata,
    #[serde(default)]
    items: Vec<Value>,
}

#[derive(Deserialize, Default)]
struct PageMetadata {
    #[serde(rename = "continue", default)]
    next: Option<String>,
}

/// Installs the TLS provider, unless there is one.
pub(super) fn install_tls_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Fails only if another thread installed one meanwhile.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    }
}

/// A client of the cluster that a kubeconfig or a pod's service account names.
///
/// # Errors
/// When there is no usable kubeconfig. The text ends with `hint`.
pub(super) async fn client(
    ConnectionArgs { kubeconfig, context }: &ConnectionArgs,
    hint: &str,
) -> Result<Client, String> {
    let unusable = |origin: &str, cause: &dyn std::error::Error| {
        format!("{origin}: {}; {hint}", kubeconfig_problem(cause))
    };
    let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
    let config = match (kubeconfig, context) {
        (Some(path), _) => {
            let origin = format!("--kubeconfig {}", path.display());
            let file = Kubeconfig::read_from(path).map_err(|error| unusable(&origin, &error))?;
            let config = kube::Config::from_custom_kubeconfig(file, &options).await;
            config.map_err(|error| unusable(&origin, &error))
        }
        (None, Some(_)) => {
            kube::Config::from_kubeconfig(&options).await.map_err(|error| unusable("kubeconfig", &error))
        }
        (None, None) => kube::Config::infer().await.map_err(|error| unusable("no cluster", &error)),
    };
    let mut config = config?;
    // The client's own attempts after a 429 or 503 wait for minutes and say nothing.
    config.default_retry = false;
    Client::try_from(config).map_err(|error| unusable("cannot set up the Kubernetes client", &error))
}

/// Reads a list page by page, each within `timeout`, and passes every object to `visit`.
///
/// # Errors
/// When a page is not answered, or refused; `visit` has had the objects of those before it.
pub(super) async fn list(
    client: &Client,
    path: &str,
    options: ListParams,
    timeout: Duration,
    mut visit: impl FnMut(Value),
) -> Result<(), RequestError> {
    let mut options = options.limit(PAGE_SIZE);
    loop {
        let page: Page = request(client, Request::new(path).list(&options), timeout).await?;
        page.items.into_iter().for_each(&mut visit);
        match page.metadata.next.filter(|next| !next.is_empty()) {
            Some(next) => options = options.continue_token(&next),
            None => return Ok(()),
        }
    }
}

/// Sends a request and reads its answer within `timeout`.
///
/// # Errors
/// When it is not answered, or refused.
pub(super) async fn request<T: DeserializeOwned>(
    client: &Client,
    request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    timeout: Duration,
) -> Result<T, RequestError> {
    let request = request.map_err(kube::Error::BuildRequest);
    bounded_by(timeout, async { client.request(request?).await }).await
}
