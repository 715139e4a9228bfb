//! The program's own metrics, and the registry that `/metrics` renders.

use std::fmt;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::engine::Leadership;
use crate::telemetry::{
    ApiRequestMetrics, ConfigMetrics, EvaluationMetrics, QueueMetrics, WorkQueueMetrics, build_info,
};

/// What the metrics say of the installation.
#[derive(Debug, Clone, Copy)]
pub struct Installation<'a> {
    /// Its name, if there are several; a label of the metrics that have it in WVA.
    pub controller_instance: Option<&'a str>,
    /// The name of its Lease.
    pub lease: &'a str,
    /// The interval of its evaluations.
    pub interval: Duration,
}

/// What is registered before any part starts.
pub struct ProgramMetrics {
    /// Every metric of the program is registered here.
    pub registry: Registry,
    /// Of evaluations, and the errors of all components.
    pub evaluation: EvaluationMetrics,
    /// Of the configuration.
    pub config: ConfigMetrics,
    /// Of the statuses that wait to be written. Its name is that of WVA's controller.
    pub statuses: QueueMetrics,
}

impl ProgramMetrics {
    /// A new registry, with what is counted of `requests` to the API server, and of the `leadership`.
    #[must_use]
    pub fn register(
        installation: Installation<'_>,
        requests: &ApiRequestMetrics,
        leadership: watch::Receiver<Leadership>,
    ) -> Self {
        let Installation { controller_instance, lease, interval } = installation;
        let mut registry = Registry::default();
        build_info(&mut registry);
        requests.register(&mut registry);
        registry.register_collector(Box::new(LeaderMetric { lease: lease.to_owned(), leadership }));
        let statuses = WorkQueueMetrics::register(&mut registry).queue("variantautoscaling");
        let own = match controller_instance {
            Some(instance) => {
                registry.sub_registry_with_label(("controller_instance".into(), instance.to_owned().into()))
            }
            None => &mut registry,
        };
        let evaluation = EvaluationMetrics::register(own);
        let help = "Optimization interval in seconds";
        own.register(
            "wva_config_optimization_interval_seconds",
            help,
            ConstGauge::new(interval.as_secs_f64()),
        );
        let config = ConfigMetrics::register(own).with_errors(evaluation.errors().clone());
        Self { registry, evaluation, config, statuses }
    }
}

/// Whether this instance decides, under the name that controllers use.
#[derive(Debug)]
struct LeaderMetric {
    lease: String,
    leadership: watch::Receiver<Leadership>,
}

impl Collector for LeaderMetric {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let (name, help) =
            ("leader_election_master_status", "1 if this instance holds the Lease, 0 if it does not");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        let is_leader = ConstGauge::new(i64::from(self.leadership.borrow().is_mine()));
        is_leader.encode(family.encode_family(&[("name", self.lease.as_str())])?)
    }
}
