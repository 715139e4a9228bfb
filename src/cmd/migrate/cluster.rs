//! Reads a cluster: gets and lists only. What cannot be read is named, and everything else is read.

use std::time::Duration;

use kube::Client;
use kube::api::ListParams;
use kube::core::Request;

use crate::cluster::requests::RequestError;
use crate::cmd::api::{self, ConnectionArgs};
use crate::cmd::output::CommandError;
use crate::migrate::{FORGOTTEN, Kind, Needed, Objects, metrics_apis, needed};

/// Longest wait for one page, which is read whole.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// What to do without a cluster.
const NO_CLUSTER_HINT: &str = "give --kubeconfig or --context, or manifests with -f";
/// What selects WVA's controllers: by the labels of its chart, and of its older manifests.
const CONTROLLER_LABELS: [&str; 2] =
    ["app.kubernetes.io/name=workload-variant-autoscaler", "control-plane=controller-manager"];

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
pub(super) fn read(connection: &ConnectionArgs, namespace: Option<&str>) -> Result<Objects, CommandError> {
    api::install_tls_provider();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    runtime.block_on(async {
        let client = api::client(connection, NO_CLUSTER_HINT).await?;
        let mut reader = Reader { client, objects: Objects::of_cluster(namespace) };
        // Without an API server there is one error, not one for each kind.
        if let Err(error) = reader.read(namespace).await {
            let text = format!("the cluster: {error}; check the kubeconfig, or give manifests with -f");
            reader.objects.add_unread(None, text);
        }
        Ok(reader.objects)
    })
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
        let objects = &mut self.objects;
        let add = |item| objects.add(kind, plural, item);
        match api::list(&self.client, &path, options, PAGE_TIMEOUT, add).await {
            Ok(()) => Ok(()),
            Err(error) => {
                self.unread(error, kind, &format!("{plural} of {scope}"), &format!("list {plural}"))
            }
        }
    }

    /// Reads an object of the cluster, if it exists.
    async fn get(&mut self, kind: Kind, path: &str, name: &str) -> Result<(), RequestError> {
        let request = Request::new(path).get(name, &kube::api::GetParams::default());
        match api::request(&self.client, request, PAGE_TIMEOUT).await {
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
