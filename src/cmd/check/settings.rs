//! What is checked, and by which settings of the program.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use wva_core::Policy;

use crate::cluster::{ScalerService, ServiceRef};
use crate::collect::PrometheusSettings;
use crate::config::Fallback;
use crate::config::policy_config::ConfigMapNames;

/// The namespace of the chart's instructions.
pub(super) const RELEASE_NAMESPACE: &str = "wva-system";
/// The name of the chart's Service and ServiceAccount.
pub(super) const RELEASE_NAME: &str = "wva";

/// Where a pod finds the token of its service account.
pub(super) const POD_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// A ServiceAccount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServiceAccount {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl fmt::Display for ServiceAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Reads `NAMESPACE/NAME`.
pub(super) fn service_account(text: &str) -> Result<ServiceAccount, String> {
    let (namespace, name) =
        text.split_once('/').ok_or("it is written NAMESPACE/NAME, such as wva-system/wva")?;
    Ok(ServiceAccount { namespace: namespace.into(), name: name.into() })
}

/// The rules of prometheus-adapter.
#[derive(Debug)]
pub(super) struct RuleSettings {
    pub(super) file: Option<PathBuf>,
    /// A series without a sample for so long makes no metric.
    pub(super) max_age: Duration,
    /// Whether the rules of processor time and memory are used.
    pub(super) serves_usage: bool,
}

/// What is checked.
#[derive(Debug)]
pub(super) struct Settings {
    /// The only namespace of variants, if it is one.
    pub(super) namespace: Option<String>,
    /// The program's Service. Its name is that of the ServiceAccount too.
    pub(super) service: ServiceRef,
    /// Whether the namespace of the program was given.
    pub(super) has_release: bool,
    pub(super) service_account: Option<ServiceAccount>,
    pub(super) controller_instance: Option<String>,
    /// The name of the Lease.
    pub(super) lease: String,
    /// Whether annotations make variants.
    pub(super) annotated_autoscalers: bool,
    /// Whether the number is served divided to HPAs that multiply it.
    pub(super) serve_value_targets: bool,
    /// A ConfigMap with settings of the program, which are not read here.
    pub(super) main_config_map: Option<String>,
    pub(super) config_maps: ConfigMapNames,
    /// Which nodes count.
    pub(super) node_selector: Option<String>,
    /// The policy where no ConfigMap sets anything.
    pub(super) policy: Policy,
    /// Whether this runs in a pod, by its service account.
    pub(super) is_in_pod: bool,
    /// How Prometheus is reached, if it is to be.
    pub(super) prometheus: Option<PrometheusSettings>,
    /// Whether the program reads the metrics of pods itself.
    pub(super) is_scraping: bool,
    /// Whether it writes the scale of woken workloads.
    pub(super) wakes_directly: bool,
    /// Whether it writes the deletion costs of pods.
    pub(super) writes_deletion_costs: bool,
    /// Whether it serves KEDA's external scaler.
    pub(super) serves_external_scaler: bool,
    /// The server that external metrics are passed on to.
    pub(super) fallback: Option<Fallback>,
    pub(super) rules: RuleSettings,
}

impl Settings {
    /// The Service by which KEDA reaches the external scaler.
    pub(super) fn scaler(&self) -> ScalerService {
        let ServiceRef { namespace, name } = &self.service;
        ScalerService { namespace: namespace.as_str().into(), name: name.as_str().into() }
    }

    /// Takes the Service that serves external metrics for the program's, unless another namespace was given.
    pub(super) fn adopt_release(&mut self, service: Option<ServiceRef>) {
        if let Some(service) =
            service.filter(|service| !self.has_release || service.namespace == self.service.namespace)
        {
            self.service = service;
        }
    }
}
