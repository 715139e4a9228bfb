//! Reads WVA's main ConfigMap, once, when the program starts.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::cluster::requests::{RequestError, bounded};
use crate::config::Settings;

/// Attempts to read it, each at most 5 s. With the pauses they take less than half of the time for a start.
const MAX_ATTEMPTS: usize = 4;
/// The pause after an attempt that failed.
const PAUSE: Duration = Duration::from_secs(1);

/// The API server does not answer.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot read the main ConfigMap {namespace}/{name}: {cause}; check that the API server can be reached"
)]
pub struct MainConfigMapError {
    namespace: String,
    name: String,
    cause: RequestError,
}

/// The settings of the ConfigMap `name`. `None`, and a warning that says why, if there is none, if this program may not list it, or
/// if it is no mapping of settings.
///
/// # Errors
/// When the API server does not answer: without these settings, the metrics might be read from elsewhere.
pub async fn read_main_config_map(
    client: &kube::Client,
    namespace: &str,
    name: &str,
) -> Result<Option<Settings>, MainConfigMapError> {
    let found = match find(client, namespace, name).await {
        Ok(found) => found,
        Err(error) if is_refusal(&error) => {
            warn!(%error, namespace, name, "cannot read the main ConfigMap, so its settings do not count: allow the service account \
                to list the ConfigMaps of its own namespace");
            return Ok(None);
        }
        Err(cause) => {
            return Err(MainConfigMapError { namespace: namespace.into(), name: name.into(), cause });
        }
    };
    let Some(map) = found else {
        warn!(
            namespace,
            name, "there is no such ConfigMap: create it, or remove --main-config-map (CONFIG_MAP_NAME)"
        );
        return Ok(None);
    };
    match Settings::of_config_map(namespace, name, &map.data.unwrap_or_default()) {
        Ok(settings) => {
            info!(
                namespace,
                name, "settings are read from the main ConfigMap; changes take effect at the next start"
            );
            Ok(Some(settings))
        }
        Err(error) => {
            warn!(%error, "none of the settings of the main ConfigMap counts");
            Ok(None)
        }
    }
}

/// The ConfigMap, if it exists. A list with a field selector: `get` would need a rule for each name.
async fn find(client: &kube::Client, namespace: &str, name: &str) -> Result<Option<ConfigMap>, RequestError> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let by_name = ListParams::default().fields(&format!("metadata.name={name}"));
    let mut attempt = 1;
    loop {
        match bounded(api.list(&by_name)).await {
            Ok(list) => return Ok(list.items.into_iter().next()),
            Err(error) if attempt == MAX_ATTEMPTS || is_refusal(&error) => return Err(error),
            Err(error) => warn!(%error, namespace, name, "cannot read the main ConfigMap; retrying"),
        }
        attempt += 1;
        sleep(PAUSE).await;
    }
}

/// Whether the API server answered, and will answer the same again. 429 asks to try again.
fn is_refusal(error: &RequestError) -> bool {
    error.code().is_some_and(|code| (400..500).contains(&code) && code != 429)
}
