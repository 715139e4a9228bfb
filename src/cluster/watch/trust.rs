//! What the API server's front proxy is trusted by: the ConfigMap that the API server publishes about itself, followed
//! live because its bundles change when certificates are rotated. What it means is decided where callers are served.

use std::collections::BTreeMap;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::watch_health::{Trouble, watch_one};

/// The namespace of the ConfigMap.
const NAMESPACE: &str = "kube-system";
/// Its name.
const NAME: &str = "extension-apiserver-authentication";

/// The ConfigMap's data; `None` until it has been read. When it is deleted, the last data stays.
pub type Trust = Option<BTreeMap<String, String>>;

/// Follows the ConfigMap. [`TrustWatch::run`] it in a task.
pub struct TrustWatch {
    client: kube::Client,
    publish: watch::Sender<Trust>,
}

impl TrustWatch {
    /// A watch that has not started, and where to read the data.
    #[must_use]
    pub fn new(client: kube::Client) -> (Self, watch::Receiver<Trust>) {
        let (publish, trust) = watch::channel(None);
        (Self { client, publish }, trust)
    }

    /// Watches until cancelled.
    pub async fn run(self, cancel: CancellationToken) {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
        let hint =
            "bind the service account to Role extension-apiserver-authentication-reader in kube-system";
        let mut trouble = Trouble::new("ConfigMap kube-system/extension-apiserver-authentication", hint);
        let mut states = watch_one(api, NAME).boxed();
        while let Some(Some(state)) = cancel.run_until_cancelled(states.next()).await {
            match state {
                Ok(Some(map)) => {
                    trouble.over();
                    self.take(map);
                }
                Ok(None) => tracing::warn!(
                    "ConfigMap {NAMESPACE}/{NAME} does not exist: callers through the \
                    API server cannot be told from others until it does"
                ),
                Err(error) => trouble.tell(&error),
            }
        }
    }

    fn take(&self, map: ConfigMap) {
        let data = map.data.unwrap_or_default();
        self.publish.send_if_modified(|old| {
            let changed = old.as_ref() != Some(&data);
            *old = Some(data);
            changed
        });
    }
}
