//! The values of the chart that stand for the settings of one of WVA's controllers. Credentials are not among them.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::controller::{Controller, OWN_TOKEN, prometheus};
use super::policies::Policies;
use super::report::without_userinfo;
use crate::config::policy_config::ConfigMapKind;
use crate::config::{Config, LEASE_NAME, LeaseTimes};
use wva_core::text::plain;

/// Longest line of the values.
const MAX_VALUE_BYTES: usize = 4096;

/// The values that differ from the chart's. What the commands switch on later is not among them, so that the file can be applied again.
pub(super) fn values(controller: &Controller<'_>, config: &Config, policies: Option<&Policies>) -> Value {
    let mut values = Map::new();
    let mut set = |name: &str, value: Value| drop(values.insert(name.into(), value));
    if let Some(source) = source(controller, config) {
        set("prometheus", source);
    }
    for (name, setting) in
        [("watchNamespace", &config.watch_namespace), ("controllerInstance", &config.controller_instance)]
    {
        if let Some(setting) = setting {
            set(name, text(setting));
        }
    }
    if config.policy.global.default.scale_to_zero.is_some_and(|zero| zero.enabled) {
        set("scaleToZero", true.into());
    }
    if config.lease != LEASE_NAME {
        set("leaseName", text(&config.lease));
    }
    let LeaseTimes { duration, renew_deadline, retry_period } = config.lease_times;
    if config.lease_times != LeaseTimes::default() {
        let times =
            [("duration", duration), ("renew-deadline", renew_deadline), ("retry-period", retry_period)];
        set(
            "extraArgs",
            times.map(|(name, time)| format!("--lease-{name}={}ms", time.as_millis())).to_vec().into(),
        );
    }
    if let Some(level) = &controller.log_level {
        set("log", json!({ "level": level }));
    }
    let mut limits = Map::new();
    if policies.is_some_and(|policies| policies.policy.limits.inventory) {
        limits.insert("inventory".into(), true.into());
    }
    if let Some(selector) = &config.node_selector {
        limits.insert("nodeSelector".into(), text(selector));
    }
    if !limits.is_empty() {
        set("limits", limits.into());
    }
    let own: BTreeSet<&str> =
        policies.iter().flat_map(|policies| &policies.own).map(|map| map.name.as_str()).collect();
    let names = config.config_maps.iter().filter(|(_, name)| own.contains(name.as_str()));
    let names: Map<String, Value> =
        names.map(|(kind, name)| (value_of(*kind).to_owned(), text(name))).collect();
    if !names.is_empty() {
        set("configMaps", names.into());
    }
    values.into()
}

/// How Prometheus is reached.
fn source(controller: &Controller<'_>, config: &Config) -> Option<Value> {
    let prometheus = prometheus(config)?;
    let mut source = Map::from_iter([("url".to_owned(), text(prometheus.url.as_str()))]);
    if prometheus.insecure_skip_verify {
        source.insert("insecureSkipVerify".into(), true.into());
    }
    if let Some(name) = &prometheus.server_name {
        source.insert("serverName".into(), text(name));
    }
    if let Some((map, key)) = &controller.ca {
        source.insert("ca".into(), json!({ "configMap": text(map), "key": text(key) }));
    }
    if prometheus.token_file.as_deref() == Some(Path::new(OWN_TOKEN)) {
        source.insert("token".into(), json!({ "serviceAccount": true }));
    }
    Some(source.into())
}

/// Whether Prometheus is OpenShift's, and reads the rights of the token of a pod's own ServiceAccount.
pub(super) fn is_of_openshift(config: &Config) -> bool {
    let Some(prometheus) = prometheus(config) else { return false };
    let host = prometheus.url.as_str().split_once("://").map_or("", |(_, rest)| rest);
    let host = host.split(['/', ':', '?', '#']).next().unwrap_or_default();
    let host = host.trim_end_matches(".cluster.local");
    prometheus.token_file.as_deref() == Some(Path::new(OWN_TOKEN))
        && host.ends_with(".openshift-monitoring.svc")
}

/// A value on one line, so that no line of it can end the document that it is in, and without a password.
fn text(value: &str) -> Value {
    plain(&without_userinfo(value), MAX_VALUE_BYTES).into()
}

/// The value of the chart that names the ConfigMap of a kind.
const fn value_of(kind: ConfigMapKind) -> &'static str {
    match kind {
        ConfigMapKind::Saturation => "saturation",
        ConfigMapKind::ScaleToZero => "scaleToZero",
        ConfigMapKind::QueueingModel => "queueingModel",
        ConfigMapKind::ServiceClasses => "serviceClasses",
        ConfigMapKind::AcceleratorCosts => "acceleratorCosts",
    }
}
