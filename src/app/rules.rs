//! Constructs the metrics that rules of prometheus-adapter make.

use std::sync::Arc;

use anyhow::Context;
use futures::future::BoxFuture;
use kube::api::ListParams;
use kube::discovery::ApiResource;
use prometheus_client::registry::Registry;

use super::sources::prometheus_settings;
use super::tasks::Phase;
use crate::cluster::object_lists::{ObjectLists, ObjectName, ServedKind};
use crate::collect::PrometheusApi;
use crate::config::{self, Config};
use crate::engine::Clock;
use crate::rules::{AdapterRules, ListedObject, ObjectApi, ObjectKind, RuleSettings, Selection};
use crate::serve::RuleMetrics;
use crate::telemetry::RuleMetricFamilies;

/// Starts what follows the configured rules, if there are some.
pub(super) fn start_rules(
    config: &Config,
    client: kube::Client,
    clock: Arc<dyn Clock>,
    registry: &mut Registry,
    watches: &mut Phase,
) -> anyhow::Result<Option<Arc<dyn RuleMetrics>>> {
    let Some(rules) = config.rules.clone() else { return Ok(None) };
    let metrics = RuleMetricFamilies::register(registry);
    let rules = Arc::new(adapter_rules(rules, client, clock, metrics)?);
    let (following, renewing) = (Arc::clone(&rules), Arc::clone(&rules));
    watches.start("rules", |stop| following.run(stop));
    watches.start("answers that many reads of rules share", |stop| renewing.renew(stop));
    Ok(Some(rules))
}

/// The metrics of the configured rules.
fn adapter_rules(
    from: config::Rules,
    client: kube::Client,
    clock: Arc<dyn Clock>,
    metrics: RuleMetricFamilies,
) -> anyhow::Result<AdapterRules> {
    let config::Rules { file, relist_interval, max_age, serves_usage, prometheus } = from;
    let api = PrometheusApi::new(&prometheus_settings(prometheus))
        .context("cannot set up the rules of --adapter-config")?
        .with_metrics(metrics.clone());
    Ok(AdapterRules::new(
        api,
        Arc::new(ClusterObjects::new(client)),
        clock,
        RuleSettings { file, relist_interval, max_age, serves_usage, metrics },
    ))
}

/// The objects of the cluster, for rules.
pub(crate) struct ClusterObjects(ObjectLists);

impl ClusterObjects {
    pub(crate) fn new(client: kube::Client) -> Self {
        Self(ObjectLists::new(client))
    }
}

impl ObjectApi for ClusterObjects {
    fn kinds(&self) -> BoxFuture<'_, Result<Vec<ObjectKind>, String>> {
        Box::pin(async {
            let kinds = self.0.served_kinds().await.map_err(|error| error.to_string())?;
            if kinds.is_empty() {
                return Err(
                    "the API server lists none; aggregated discovery needs Kubernetes 1.27".to_owned()
                );
            }
            let kind = |ServedKind { resource, singular, is_namespaced }: ServedKind| ObjectKind {
                group: resource.group.into(),
                version: resource.version.into(),
                kind: resource.kind.into(),
                plural: resource.plural.into(),
                singular: singular.into(),
                is_namespaced,
            };
            Ok(kinds.into_iter().map(kind).collect())
        })
    }

    fn list<'a>(
        &'a self,
        kind: &'a ObjectKind,
        Selection { namespace, labels, fields, has_labels }: Selection<'a>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<ListedObject>, String>> {
        Box::pin(async move {
            let resource = ApiResource {
                group: kind.group.to_string(),
                version: kind.version.to_string(),
                api_version: kind.api_version().to_string(),
                kind: kind.kind.to_string(),
                plural: kind.plural.to_string(),
            };
            let parameters = ListParams::default().labels(labels).fields(fields);
            let objects = self.0.list(&resource, (namespace, has_labels), parameters, limit).await?;
            let object = |ObjectName { namespace, name, labels }: ObjectName| ListedObject {
                namespace: namespace.into(),
                name: name.into(),
                labels,
            };
            Ok(objects.into_iter().map(object).collect())
        })
    }
}
