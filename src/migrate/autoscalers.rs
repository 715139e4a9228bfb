//! The HPAs that read the numbers of WVA: which variant each would read here, and by which arithmetic.

use k8s_openapi::api::autoscaling::v2::{
    ExternalMetricSource, HPAScalingRules, HorizontalPodAutoscaler, MetricIdentifier, MetricTarget,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector as KubernetesSelector;
use wva_core::Variant;

use super::objects::{Kind, Objects};
use super::report::{ObjectName, Report, count};
use super::variants::{Named, Variants};
use crate::lint::is_of_keda;
use crate::serve::{LabelSelector, Labels, Metric};
use wva_core::text::{first_names, quoted};

/// Most variants or objects that a sentence names.
const MAX_NAMED: usize = 8;

/// What is known for judging an autoscaler.
pub(super) struct Readers<'a> {
    pub(super) objects: &'a Objects,
    pub(super) variants: &'a Variants,
    /// The controller instance that metrics are labelled with.
    pub(super) instance: Option<&'a str>,
}

/// The HPAs that read external metrics.
#[derive(Default)]
pub(super) struct ExternalReaders {
    /// Those that read a number of WVA.
    pub(super) of_wva: Vec<ObjectName>,
    /// Those that read another metric, and its name.
    pub(super) of_others: Vec<(ObjectName, String)>,
}

impl Readers<'_> {
    /// Reports every HPA that reads a number of WVA.
    pub(super) fn report(&self, report: &mut Report) -> ExternalReaders {
        let mut readers = ExternalReaders::default();
        let mut read = 0_usize;
        for (name, hpa) in &self.objects.hpas {
            let problems = report.changes.len();
            let mut reads_ours = false;
            for metric in hpa.spec.iter().flat_map(|spec| spec.metrics.iter().flatten()) {
                let external = metric.external.as_ref();
                let identifier = external
                    .map(|source| &source.metric)
                    .or(metric.object.as_ref().map(|source| &source.metric));
                let Some(identifier) = identifier else { continue };
                // The HPA lower-cases the name before it reads.
                if Metric::find(&identifier.name.to_lowercase()).is_some() {
                    reads_ours = true;
                    let target = external
                        .map(|source| &source.target)
                        .or(metric.object.as_ref().map(|source| &source.target));
                    report_target(name, identifier, target, report);
                    if let Some(source) = external {
                        self.report_selector(name, hpa, source, report);
                    }
                } else if external.is_some() && !is_of_keda(&hpa.metadata) {
                    readers.of_others.push((name.clone(), identifier.name.clone()));
                }
            }
            if reads_ours {
                read += usize::from(report.changes.len() == problems);
                report_windows(name, hpa, report);
                readers.of_wva.push(name.clone());
            }
        }
        if !readers.of_wva.is_empty() || !self.objects.is_unread(Kind::HorizontalPodAutoscaler) {
            report.found(format!("{} with a number of WVA", count(readers.of_wva.len(), "HPA")));
        }
        if read > 0 {
            report.same(format!("{}: the number, selector and target", count(read, "HPA")));
        }
        readers
    }

    /// Reports which variant a selector finds, if it is not exactly the one that the HPA scales.
    fn report_selector(
        &self,
        name: &ObjectName,
        hpa: &HorizontalPodAutoscaler,
        source: &ExternalMetricSource,
        report: &mut Report,
    ) {
        let object = format!("HPA {name}");
        let text = source.metric.selector.as_ref().map(selector_text).unwrap_or_default();
        let selector = match LabelSelector::parse(&text) {
            Ok(selector) => selector,
            Err(error) => {
                return report.act(
                    object,
                    format!("its selector is refused: {error}"),
                    "correct the selector",
                );
            }
        };
        let candidates = || self.variants.by_name(&name.namespace);
        let found = candidates().filter(|named| self.selects(&selector, named)).map(|named| named.variant);
        let mut found: Vec<&Variant> = found.collect();
        found.sort_by_key(|variant| &variant.id);
        found.dedup();
        let target = hpa.spec.as_ref().map(|spec| &spec.scale_target_ref);
        match found[..] {
            [] => report.act(
                object,
                self.mismatch(&selector, &text, candidates()),
                "select by variant_name alone",
            ),
            [variant] => {
                let scaled = target.map(|target| (target.kind.as_str(), target.name.as_str()));
                if scaled != Some((variant.target.kind.as_str(), variant.target.name.as_str())) {
                    let (kind, scaled) = scaled.unwrap_or_default();
                    report.act(
                        object,
                        format!(
                            "it reads variant {}, whose target is {} {}, and scales {kind} {scaled}",
                            variant.id, variant.target.kind, variant.target.name
                        ),
                        "let both name one workload",
                    );
                }
            }
            _ => {
                let names = found.iter().map(|variant| variant.id.name.to_string());
                let names = first_names(names.collect::<Vec<_>>().into_iter(), MAX_NAMED, ", ");
                report.act(
                    object,
                    format!(
                        "its selector finds {} variants ({names}), and an HPA adds up what it reads",
                        found.len()
                    ),
                    "add variant_name to the selector",
                );
            }
        }
    }

    fn labels<'a>(&'a self, Named { name, variant }: &Named<'a>) -> Labels<'a> {
        Labels::new(&variant.id, variant.accelerator.as_deref(), self.instance).with_name(name)
    }

    fn selects(&self, selector: &LabelSelector, named: &Named<'_>) -> bool {
        let labels = self.labels(named);
        selector.matches(|key| labels.get(key))
    }

    /// Why a selector finds no variant.
    fn mismatch<'a>(
        &self,
        selector: &LabelSelector,
        text: &str,
        mut candidates: impl Iterator<Item = Named<'a>>,
    ) -> String {
        let names = |named: &Named<'_>| {
            let mut requirements = selector.requirements();
            requirements.any(|requirement| {
                matches!(requirement.key, "variant_name" | "variant")
                    && requirement.operator.needs_label()
                    && requirement.operator.holds(Some(named.name))
            })
        };
        let Some(named) = candidates.find(names) else {
            return format!(
                "its selector {} finds no variant: it names none that exists and is valid",
                quoted(text)
            );
        };
        let labels = self.labels(&named);
        let failed = selector
            .requirements()
            .filter(|requirement| !requirement.operator.holds(labels.get(requirement.key)));
        let causes = failed.map(|requirement| match labels.get(requirement.key) {
            Some(value) => format!("{} is {} here", requirement.key, quoted(value)),
            None => {
                format!("{} is no label of the number here (Prometheus added it)", quoted(requirement.key))
            }
        });
        format!(
            "its selector does not find variant {}: {}",
            named.variant.id,
            causes.collect::<Vec<_>>().join("; ")
        )
    }
}

/// Reports a target by which the HPA does not follow the number.
fn report_target(
    name: &ObjectName,
    metric: &MetricIdentifier,
    target: Option<&MetricTarget>,
    report: &mut Report,
) {
    let Some(target) = target else { return };
    let object = format!("HPA {name}");
    let next_step = "set the target to {type: AverageValue, averageValue: \"1\"}";
    if target.type_ != "AverageValue" {
        let is_ratio =
            Metric::find(&metric.name.to_lowercase()).is_some_and(|(_, metric)| metric == Metric::Ratio);
        if !is_ratio {
            report.act(
                object,
                format!(
                    "its target is of type {}, which multiplies {} by the running replicas",
                    quoted(&target.type_),
                    metric.name
                ),
                next_step,
            );
        }
        return;
    }
    let value = target.average_value.as_ref().map_or("", |value| value.0.as_str());
    if !matches!(value, "1" | "1000m" | "1.0") {
        report.act(
            object,
            format!("its averageValue is {}, by which the number is divided", quoted(value)),
            next_step,
        );
    }
}

/// Reports windows that delay the number.
fn report_windows(name: &ObjectName, hpa: &HorizontalPodAutoscaler, report: &mut Report) {
    let behavior = hpa.spec.as_ref().and_then(|spec| spec.behavior.as_ref());
    let seconds = |rules: Option<&HPAScalingRules>, default: i32| {
        rules.and_then(|rules| rules.stabilization_window_seconds).unwrap_or(default)
    };
    let up = seconds(behavior.and_then(|behavior| behavior.scale_up.as_ref()), 0);
    let down = seconds(behavior.and_then(|behavior| behavior.scale_down.as_ref()), 300);
    if up > 0 {
        report.change(
            format!("HPA {name}"),
            format!(
                "stabilizationWindowSeconds delays additions by {up} s and removals by {down} s, as before; the default policy \
                 stabilises its own number, and suits 0"
            ),
        );
    }
}

/// A selector as the HPA controller sends it.
fn selector_text(selector: &KubernetesSelector) -> String {
    let labels = selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
    let expressions = selector.match_expressions.iter().flatten().map(|requirement| {
        let (key, values) = (&requirement.key, requirement.values.as_deref().unwrap_or_default().join(","));
        match requirement.operator.as_str() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.clone(),
            "DoesNotExist" => format!("!{key}"),
            operator => format!("{key} {operator} ({values})"),
        }
    });
    labels.chain(expressions).collect::<Vec<_>>().join(",")
}
