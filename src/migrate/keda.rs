//! The ScaledObjects of KEDA that read the numbers of WVA from Prometheus, and workloads with two autoscalers.

use std::collections::BTreeMap;

use serde_json::Value;
use wva_core::Variant;
use wva_core::text::{first_names, quoted};

use super::objects::{FORGOTTEN, Kind, Objects};
use super::report::{ObjectName, Report, count};
use crate::lint::{Trigger, is_of_keda, labels_after, metric_in, query};

/// Labels that Prometheus takes from the scrape target, and that therefore change with it.
const TARGET_LABELS: [&str; 7] = ["namespace", "pod", "job", "service", "endpoint", "instance", "container"];
/// Most objects that a sentence names.
const MAX_NAMED: usize = 8;

/// The annotation that keeps the replicas of a ScaledObject as they are.
pub(super) const PAUSED: &str = "autoscaling.keda.sh/paused";
/// The annotation that sets them to a number, and keeps them.
const PAUSED_AT: &str = "autoscaling.keda.sh/paused-replicas";
/// The annotation of the ScaledObjects that the commands paused, so that they end no pause of somebody else.
pub(super) const PAUSED_HERE: &str = FORGOTTEN;

/// The ScaledObjects that read a number of WVA from Prometheus.
#[derive(Default)]
pub(super) struct ScaledReaders {
    pub(super) count: usize,
    /// By namespace, those that somebody has not paused for another reason.
    pub(super) to_pause: BTreeMap<String, Vec<String>>,
}

/// Reports the ScaledObjects that read a number of WVA; these are the result.
pub(super) fn report(objects: &Objects, variants: &[Variant], report: &mut Report) -> ScaledReaders {
    let mut readers = ScaledReaders::default();
    for (name, object) in &objects.scaled_objects {
        let triggers = object.spec.triggers.iter();
        let of_prometheus = triggers.filter(|trigger| trigger.type_ == "prometheus");
        let queries = of_prometheus.filter_map(|trigger| Some((trigger, query(trigger)?)));
        let queries: Vec<(&Trigger, &str, &str)> =
            queries.filter_map(|(trigger, query)| Some((trigger, query, metric_in(query)?))).collect();
        if !queries.is_empty() {
            readers.count += 1;
            readers.add(name, object.metadata.annotations.as_ref(), report);
        }
        for (trigger, query, metric) in queries {
            report_trigger(name, trigger, query, metric, report);
        }
    }
    if readers.count > 0 || !objects.is_unread(Kind::ScaledObject) {
        report.found(format!("{} with a number of WVA", count(readers.count, "ScaledObject")));
    }
    if readers.count > 0 {
        report.same(format!(
            "{}: the series in Prometheus, once it scrapes this program, except as listed below",
            count(readers.count, "ScaledObject")
        ));
    }
    report_two_autoscalers(objects, variants, report);
    readers
}

impl ScaledReaders {
    fn add(
        &mut self,
        name: &ObjectName,
        annotations: Option<&BTreeMap<String, String>>,
        report: &mut Report,
    ) {
        let has = |key: &str| annotations.is_some_and(|annotations| annotations.contains_key(key));
        if (has(PAUSED) || has(PAUSED_AT)) && !has(PAUSED_HERE) {
            return report
                .change(format!("ScaledObject {name}"), "it is paused, and the commands leave it so");
        }
        self.to_pause.entry(name.namespace.clone()).or_default().push(name.name.clone());
    }
}

fn report_trigger(name: &ObjectName, trigger: &Trigger, query: &str, metric: &str, report: &mut Report) {
    let object = format!("ScaledObject {name}");
    let changed: Vec<&str> =
        labels_after(query, metric).into_iter().filter(|label| TARGET_LABELS.contains(label)).collect();
    if !changed.is_empty() {
        report.act(
            &object,
            format!(
                "its query selects by {}, which is that of the scrape target and changes",
                changed.join(", ")
            ),
            format!("select by variant_name and exported_namespace only; the query is {query}"),
        );
    }
    if let Some(type_) = trigger.metric_type.as_deref().filter(|type_| *type_ != "AverageValue") {
        report.act(
            &object,
            format!(
                "its trigger has metricType {}, which multiplies the number by the running replicas",
                quoted(type_)
            ),
            "set metricType: AverageValue beside the type of the trigger",
        );
    }
    let nulls = trigger.metadata.get("ignoreNullValues");
    let is_error = nulls.is_some_and(|value| *value == Value::Bool(false) || value.as_str() == Some("false"));
    if !is_error || query.replace([' ', '(', ')'], "").contains("orvector") {
        report.act(
            &object,
            "if Prometheus has no series, its trigger reads 0 (ignoreNullValues is true by default, and so is `or vector(0)`): KEDA then \
             removes replicas down to minReplicaCount, 0 by default, and fallback does not apply",
            "set ignoreNullValues: \"false\" beside the query, without `or vector(…)` in it",
        );
    }
    let threshold = trigger.metadata.get("threshold").and_then(Value::as_str).unwrap_or_default();
    if threshold.trim().parse::<f64>().is_ok_and(|threshold| (threshold - 1.0).abs() > f64::EPSILON) {
        report.act(
            &object,
            format!("its threshold is {}, by which the number is divided", quoted(threshold)),
            "set threshold: \"1\"",
        );
    }
}

/// Reports workloads of variants that two autoscalers scale.
fn report_two_autoscalers(objects: &Objects, variants: &[Variant], report: &mut Report) {
    let mut scaled: BTreeMap<(&str, &str, &str), Vec<String>> = BTreeMap::new();
    for (name, hpa) in objects.hpas.iter().filter(|(_, hpa)| !is_of_keda(&hpa.metadata)) {
        if let Some(target) = hpa.spec.as_ref().map(|spec| &spec.scale_target_ref) {
            let target = (name.namespace.as_str(), target.kind.as_str(), target.name.as_str());
            scaled.entry(target).or_default().push(format!("HPA {name}"));
        }
    }
    for (name, object) in &objects.scaled_objects {
        let target = &object.spec.scale_target_ref;
        let kind = target.kind.as_deref().unwrap_or("Deployment");
        let target = (name.namespace.as_str(), kind, target.name.as_str());
        scaled.entry(target).or_default().push(format!("ScaledObject {name}"));
    }
    for variant in variants {
        let (namespace, kind, target) =
            (&*variant.id.namespace, &*variant.target.kind, &*variant.target.name);
        // Removed, so that two variants of one workload report it once.
        let autoscalers = scaled.remove(&(namespace, kind, target)).unwrap_or_default();
        if autoscalers.len() < 2 {
            continue;
        }
        report.act(
            format!("{kind} {namespace}/{target}"),
            format!(
                "{} scale it, each against the others",
                first_names(autoscalers.into_iter(), MAX_NAMED, ", ")
            ),
            "keep one of them",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_labels_of_a_query_are_found_whatever_its_values_contain() {
        let metric = "wva_desired_replicas";
        for (query, labels) in [
            (
                r#"wva_desired_replicas{variant_name="a",exported_namespace="b"}"#,
                &["variant_name", "exported_namespace"][..],
            ),
            (
                r#"max(wva_desired_replicas{ variant_name =~ "a,pod=\"x\"" , namespace!='c' })"#,
                &["variant_name", "namespace"],
            ),
            ("wva_desired_replicas", &[]),
            ("wva_desired_replicas{}", &[]),
            (r#"wva_desired_replicas{a="#, &[]),
            (r#"wva_desired_replicas{a="b"#, &["a"]),
            (r#"up{pod="x"} * wva_desired_replicas{job="é"}"#, &["job"]),
        ] {
            assert_eq!(labels_after(query, metric), labels, "{query}");
        }
    }
}
