//! The controllers of the fault matrix: each analyzer with the settings it needs.

use std::collections::BTreeSet;
use std::time::Duration;

use wva_core::model::{
    Analyzer, Bounds, ClassTarget, LatencyTargets, Role, ServiceClass, TargetRef, Variant,
};
use wva_core::snapshot::Signal;
use wva_core::units::{Cost, Replicas};
use wva_core::{Policy, VariantId, required_signals};
use wva_sim::{Controller, MODEL, MetricPath, NAMESPACE};

use super::cases::View;

/// wva behind Prometheus: scrapes every 15 s, decisions every 5 s, and the HPA reads the number at once.
const BEHIND_PROMETHEUS: MetricPath = MetricPath::Prometheus {
    scrape: Duration::from_secs(15),
    reconcile: Duration::from_secs(5),
    publish: Duration::ZERO,
};

pub(crate) fn policy(analyzer: Analyzer) -> Policy {
    let mut policy = Policy::default();
    let model = &mut policy.global.default;
    model.analyzer = analyzer;
    let latency = LatencyTargets { ttft_ms: 1000.0, itl_ms: 100.0 };
    if analyzer == Analyzer::QueueingModel {
        model.queueing.targets = Some(latency);
    }
    if analyzer == Analyzer::Inferno {
        let targets = vec![ClassTarget { model: MODEL.into(), latency }];
        policy.service_classes = vec![ServiceClass { name: "Premium".into(), priority: 1, targets }];
    }
    policy
}

/// `analyzer` with the HPA that its page recommends: the rate policy without a downscale window, all others with the default.
pub(crate) fn controller(analyzer: Analyzer, view: View) -> Controller {
    let path = match view {
        View::Direct => MetricPath::Direct,
        View::Prometheus => BEHIND_PROMETHEUS,
    };
    let scale_down_window = (analyzer == Analyzer::Rate).then_some(Duration::ZERO);
    Controller { path, scale_down_window, ..Controller::core(analyzer.as_str(), policy(analyzer)) }
}

/// The signals that `analyzer` reads.
pub(crate) fn signals(analyzer: Analyzer) -> BTreeSet<Signal> {
    let variant = Variant {
        id: VariantId::new(NAMESPACE, "v"),
        model: MODEL.into(),
        target: TargetRef::deployment("v"),
        cost: Cost::new(1.0).unwrap(),
        bounds: Bounds { min: Replicas::ONE, max: None },
        accelerator: None,
        role: Role::Both,
        woken_by: None,
    };
    required_signals(&policy(analyzer), [&variant]).signals
}
