//! Reads a cluster: gets and lists only. What cannot be read is named, and everything else is read.

use std::path::Path;
use std::time::Duration;

use kube::Client;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Request;
use serde::Deserialize;
use serde_json::Value;

use crate::app::kubeconfig_problem;
use crate::cluster::requests::{RequestError, bounded_by};
use crate::cmd::output::CommandError;
use crate::migrate::{FORGOTTEN, Kind, Needed, Objects, metrics_apis, needed};

/// Objects of one page of a list.
const PAGE_SIZE: u32 = 500;
/// Longest wait for one page, which is read whole.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// What selects WVA's controllers: by the labels of its chart, and of its older manifests.
const CONTROLLER_LABELS: [&str; 2] =
    ["app.kubernetes.io/name=workload-variant-autoscaler", "control-plane=controller-manager"];

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

/// A list to read.
#[derive(Clone, Copy)]
struct List<'a> {
    kind: Kind,
    /// The path of the API: `/api/v1` or `/apis/GROUP/VERSION`.
    api: &'static str,
    plural: &'static str,
    namespace: Option<&'a str>,
}

struct Reader {
    client: Client,
    objects: Objects,
}

/// The objects of a cluster, or of one namespace of it.
///
/// # Errors
/// When there is no usable kubeconfig.
pub(super) fn read(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
    namespace: Option<&str>,
) -> Result<Objects, CommandError> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Fails only if another thread installed one meanwhile.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    runtime.block_on(async {
        let client = client(kubeconfig, context).await?;
        let mut reader = Reader { client, objects: Objects::of_cluster(namespace) };
        // Without an API server there is one error, not one for each kind.
        if let Err(error) = reader.read(namespace).await {
            let text = format!("the cluster: {error}; check the kubeconfig, or give manifests with -f");
            reader.objects.add_unread(None, text);
        }
        Ok(reader.objects)
    })
}

async fn client(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Client, String> {
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
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

/// Why a cluster cannot be reached.
fn unusable(origin: &str, cause: &dyn std::error::Error) -> String {
    let cause = kubeconfig_problem(cause);
    format!("{origin}: {cause}; give --kubeconfig or --context, or manifests with -f")
}

impl Reader {
    /// Reads everything. An error means that the API server cannot be reached.
    async fn read(&mut self, namespace: Option<&str>) -> Result<(), RequestError> {
        let list = |kind, api, plural| List { kind, api, plural, namespace };
        for labels in CONTROLLER_LABELS {
            let options = ListParams::default().labels(labels);
            self.list(list(Kind::Deployment, "/apis/apps/v1", "deployments"), options).await?;
        }
        for (kind, api, plural) in [
            (Kind::VariantAutoscaling, "/apis/llmd.ai/v1alpha1", "variantautoscalings"),
            (Kind::HorizontalPodAutoscaler, "/apis/autoscaling/v2", "horizontalpodautoscalers"),
            (Kind::ScaledObject, "/apis/keda.sh/v1alpha1", "scaledobjects"),
        ] {
            self.list(list(kind, api, plural), ListParams::default()).await?;
        }
        for name in metrics_apis() {
            self.get(Kind::ApiService, "/apis/apiregistration.k8s.io/v1/apiservices", name).await?;
        }
        let name = "variantautoscalings.llmd.ai";
        self.get(
            Kind::CustomResourceDefinition,
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            name,
        )
        .await?;
        for needed in needed(&mut self.objects) {
            self.read_needed(&needed, namespace).await?;
        }
        Ok(())
    }

    async fn read_needed(&mut self, needed: &Needed, namespace: Option<&str>) -> Result<(), RequestError> {
        let of = |kind, plural, namespace| List { kind, api: "/api/v1", plural, namespace };
        match needed {
            Needed::ConfigMapsOf(namespace) => {
                self.list(of(Kind::ConfigMap, "configmaps", Some(namespace)), ListParams::default()).await
            }
            Needed::ConfigMapsCalled(name) => {
                let options = ListParams::default().fields(&format!("metadata.name={name}"));
                self.list(of(Kind::ConfigMap, "configmaps", namespace), options).await
            }
            Needed::Release(namespace, name) => {
                // Also those that Helm was made to forget, so that no Secret at all means that Helm stores it elsewhere.
                let options =
                    ListParams::default().labels(&format!("owner in (helm,{FORGOTTEN}),name={name}"));
                let unread = self.objects.unread();
                self.list(of(Kind::Secret, "secrets", Some(namespace)), options).await?;
                if self.objects.unread() == unread {
                    self.objects.note_listed_release(namespace, name);
                }
                Ok(())
            }
        }
    }

    /// Reads a list page by page. A kind that is not installed has no objects.
    async fn list(&mut self, list: List<'_>, options: ListParams) -> Result<(), RequestError> {
        let List { kind, api, plural, namespace } = list;
        let path = namespace.map_or_else(
            || format!("{api}/{plural}"),
            |namespace| format!("{api}/namespaces/{namespace}/{plural}"),
        );
        let scope = namespace
            .map_or_else(|| "all namespaces".to_owned(), |namespace| format!("namespace {namespace}"));
        let mut options = options.limit(PAGE_SIZE);
        loop {
            let page: Result<Page, RequestError> =
                self.request(Request::new(path.as_str()).list(&options)).await;
            match page {
                Ok(page) => {
                    for item in page.items {
                        self.objects.add(kind, plural, item);
                    }
                    match page.metadata.next.filter(|next| !next.is_empty()) {
                        Some(next) => options = options.continue_token(&next),
                        None => return Ok(()),
                    }
                }
                Err(error) => {
                    return self.unread(
                        error,
                        kind,
                        &format!("{plural} of {scope}"),
                        &format!("list {plural}"),
                    );
                }
            }
        }
    }

    /// Reads an object of the cluster, if it exists.
    async fn get(&mut self, kind: Kind, path: &str, name: &str) -> Result<(), RequestError> {
        match self.request(Request::new(path).get(name, &kube::api::GetParams::default())).await {
            Ok(object) => {
                self.objects.add(kind, name, object);
                Ok(())
            }
            Err(error) => {
                let right = format!("get {}", path.rsplit('/').next().unwrap_or_default());
                self.unread(error, kind, name, &right)
            }
        }
    }

    async fn request<T: serde::de::DeserializeOwned>(
        &self,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<T, RequestError> {
        let request = request.map_err(kube::Error::BuildRequest);
        bounded_by(PAGE_TIMEOUT, async { self.client.request(request?).await }).await
    }

    /// Notes what the API server refused. Its silence is an error.
    fn unread(
        &mut self,
        error: RequestError,
        kind: Kind,
        what: &str,
        right: &str,
    ) -> Result<(), RequestError> {
        let next_step = match error.code() {
            None => return Err(error),
            Some(404) => return Ok(()),
            Some(401 | 403) => format!("grant the right to {right}"),
            Some(_) => "try again".into(),
        };
        let text = format!("{what}: {error}; {next_step}, or give them with -f");
        self.objects.add_unread(Some(kind), text);
        Ok(())
    }
}
