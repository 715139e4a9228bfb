//! What is checked, and by which settings of the program.

use std::fmt;
use std::path::Path;

use wva_core::Policy;

use super::Args;
use crate::app::prometheus_settings;
use crate::cluster::ServiceRef;
use crate::collect::PrometheusSettings;
use crate::config::policy_config::ConfigMapNames;
use crate::config::{LEASE_NAME, Source, config_map_names, default_policy, source};

/// The namespace of the chart's instructions.
const RELEASE_NAMESPACE: &str = "wva-system";
/// The name of the chart's Service and ServiceAccount.
const RELEASE_NAME: &str = "wva";

/// Where a pod finds the token of its service account.
const POD_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

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

/// What is checked.
#[derive(Debug)]
pub(super) struct Settings {
    /// The only namespace of variants, if it is one.
    pub(super) namespace: Option<String>,
    /// The program's Service. Its name is that of the ServiceAccount too.
    pub(super) service: ServiceRef,
    /// Whether the namespace of the program was given.
    has_release: bool,
    pub(super) service_account: Option<ServiceAccount>,
    pub(super) controller_instance: Option<String>,
    /// The name of the Lease.
    pub(super) lease: &'static str,
    pub(super) config_maps: ConfigMapNames,
    /// The policy where no ConfigMap sets anything.
    pub(super) policy: Policy,
    /// Whether this runs in a pod, by its service account.
    pub(super) is_in_pod: bool,
    /// How Prometheus is reached, if it is to be.
    pub(super) prometheus: Option<PrometheusSettings>,
}

impl TryFrom<Args> for Settings {
    type Error = String;

    fn try_from(args: Args) -> Result<Self, String> {
        let namespace = args.namespace.filter(|name| !name.is_empty());
        let release = args.release_namespace.filter(|name| !name.is_empty());
        let source = source(args.source, None).map_err(|error| error.to_string())?;
        let prometheus = match source {
            Source::Prometheus(prometheus) => Some(prometheus_settings(*prometheus)),
            Source::Scrape(_) => None,
        };
        let is_in_pod = args.kubeconfig.is_none() && args.context.is_none() && Path::new(POD_TOKEN).exists();
        Ok(Self {
            namespace,
            is_in_pod,
            has_release: release.is_some(),
            service: ServiceRef {
                namespace: release.unwrap_or_else(|| RELEASE_NAMESPACE.into()),
                name: RELEASE_NAME.into(),
            },
            service_account: args.service_account,
            controller_instance: args.controller_instance.filter(|name| !name.is_empty()),
            lease: LEASE_NAME,
            config_maps: config_map_names(&args.config_maps).map_err(|error| error.to_string())?,
            policy: default_policy(Policy::default().max_stale, args.scale_to_zero),
            prometheus,
        })
    }
}

impl Settings {
    /// Takes the Service that serves external metrics for the program's, unless another namespace was given.
    pub(super) fn adopt_release(&mut self, service: Option<ServiceRef>) {
        if let Some(service) =
            service.filter(|service| !self.has_release || service.namespace == self.service.namespace)
        {
            self.service = service;
        }
    }
}
