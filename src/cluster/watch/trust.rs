//! The CA and headers that the API server's front proxy is trusted by, from the ConfigMap that the API server publishes about
//! itself. Watched, because its bundles change when certificates are rotated. `serve` interprets it.

use std::collections::BTreeMap;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::watch_health::{WatchHealth, is_forbidden, watch_object};

/// The namespace of the ConfigMap.
const NAMESPACE: &str = "kube-system";
/// Its name.
const NAME: &str = "extension-apiserver-authentication";

/// The ConfigMap's data; `None` until it has been read. When the ConfigMap is deleted, the last data stays.
pub type TrustData = Option<BTreeMap<String, String>>;

/// Watches the ConfigMap. [`TrustWatch::run`] it in a task.
pub struct TrustWatch {
    client: kube::Client,
    publish: watch::Sender<TrustData>,
    refused: watch::Sender<bool>,
}

impl TrustWatch {
    /// A watch that has not started, where to read the data, and whether the right to read it is missing.
    #[must_use]
    pub fn new(client: kube::Client) -> (Self, watch::Receiver<TrustData>, watch::Receiver<bool>) {
        let (publish, trust) = watch::channel(None);
        let (refused, is_refused) = watch::channel(false);
        (Self { client, publish, refused }, trust, is_refused)
    }

    /// Watches until cancelled.
    pub async fn run(self, cancel: CancellationToken) {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
        let hint =
            "bind the service account to Role extension-apiserver-authentication-reader in kube-system";
        let mut health = WatchHealth::new("ConfigMap kube-system/extension-apiserver-authentication", hint);
        let mut states = watch_object(api, NAME).boxed();
        while let Some(Some(state)) = cancel.run_until_cancelled(states.next()).await {
            self.refused.send_replace(state.as_ref().is_err_and(is_forbidden));
            match state {
                Ok(Some(map)) => {
                    health.report_recovery();
                    self.publish(map);
                }
                Ok(None) => tracing::warn!(
                    "ConfigMap {NAMESPACE}/{NAME} does not exist: callers that come through the API server cannot be \
                     authenticated until it does"
                ),
                Err(error) => health.report_failure(&error),
            }
        }
    }

    fn publish(&self, map: ConfigMap) {
        let data = map.data.unwrap_or_default();
        self.publish.send_if_modified(|known| {
            let changed = known.as_ref() != Some(&data);
            *known = Some(data);
            changed
        });
    }
}
