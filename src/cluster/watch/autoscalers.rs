//! The autoscalers that read a number of this program, and whether they follow it. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;
use smol_str::SmolStr;
use wva_core::VariantId;
use wva_core::hpa::Tolerance;
use wva_core::model::{Analyzer, TargetRef, Variant};
use wva_core::snapshot::VariantState;
use wva_core::text::plain;

use crate::cluster::objects::{ObjectKey, VariantKind};
use crate::engine::ClusterView;
use crate::lint::{
    Advice, Candidate, Candidates, Finding, ScaledObject, Severity, VariantFacts, Workload, is_of_keda, lint,
};

/// How the annotations of KEDA begin.
const KEDA_ANNOTATIONS: &str = "autoscaling.keda.sh/";

/// Longest spec that is kept, bytes: one of an autoscaler with a handful of metrics has about a thousand, and a tenant may write a million.
const MAX_SPEC_BYTES: usize = 16 << 10;
/// Most autoscalers of a workload that are judged together. A second one is an error already.
const MAX_READERS: usize = 16;
/// Longest message: that of a finding with a few names of 253 characters.
const MAX_MESSAGE_BYTES: usize = 2048;

/// An autoscaler that reads a number, without what changes while it only looks at its metrics. Its spec is kept as text, because every
/// instance watches all of a fleet, and only the leader judges them.
#[derive(Debug, PartialEq)]
pub(crate) struct Reader {
    kind: VariantKind,
    name: SmolStr,
    target: TargetRef,
    /// Those of KEDA.
    annotations: BTreeMap<String, String>,
    spec: Box<str>,
}

/// A reader whose spec is parsed.
enum ParsedReader {
    Hpa(HorizontalPodAutoscaler),
    ScaledObject(ScaledObject),
}

impl Reader {
    /// `None` for the HPA that KEDA makes, and for one that is too long.
    pub(super) fn new(
        kind: VariantKind,
        metadata: &ObjectMeta,
        target: TargetRef,
        spec: &Value,
    ) -> Option<Self> {
        if is_of_keda(metadata) {
            return None;
        }
        let annotations =
            metadata.annotations.iter().flatten().filter(|(key, _)| key.starts_with(KEDA_ANNOTATIONS));
        let spec = spec.to_string();
        let bytes =
            annotations.clone().map(|(key, value)| key.len() + value.len()).sum::<usize>() + spec.len();
        (bytes <= MAX_SPEC_BYTES).then(|| Self {
            kind,
            name: metadata.name.as_deref().unwrap_or_default().into(),
            target,
            annotations: annotations.map(|(key, value)| (key.clone(), value.clone())).collect(),
            spec: spec.into(),
        })
    }

    /// `None` for a spec that cannot be read, which the API server refuses.
    fn parse(&self, namespace: &str) -> Option<ParsedReader> {
        let metadata = ObjectMeta {
            namespace: Some(namespace.into()),
            name: Some(self.name.to_string()),
            annotations: Some(self.annotations.clone()),
            ..ObjectMeta::default()
        };
        Some(match self.kind {
            VariantKind::ScaledObject => ParsedReader::ScaledObject(ScaledObject {
                metadata,
                spec: serde_json::from_str(&self.spec).ok()?,
            }),
            _ => ParsedReader::Hpa(HorizontalPodAutoscaler {
                metadata,
                spec: serde_json::from_str(&self.spec).ok()?,
                ..HorizontalPodAutoscaler::default()
            }),
        })
    }
}

/// Whether the autoscalers of a variant follow its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AutoscalerVerdict {
    pub(crate) is_right: bool,
    /// In CamelCase.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// The autoscalers that read a number.
#[derive(Debug, Clone, Default)]
pub(crate) struct Autoscalers {
    /// With their namespaces.
    readers: Vec<(SmolStr, Arc<Reader>)>,
    controller_instance: Option<SmolStr>,
    /// Made when a verdict is first wanted.
    judge: OnceLock<Judge>,
}

/// What verdicts need of all autoscalers and variants.
#[derive(Debug, Clone)]
struct Judge {
    by_target: BTreeMap<(SmolStr, TargetRef), Vec<Arc<Reader>>>,
    candidates: Candidates,
}

impl Autoscalers {
    /// Those of all namespaces but the excluded ones.
    pub(super) fn new<'r>(
        readers: impl Iterator<Item = (&'r ObjectKey, &'r Arc<Reader>)>,
        excluded: &BTreeSet<SmolStr>,
        controller_instance: Option<SmolStr>,
    ) -> Self {
        let included = readers.filter(|(key, _)| !excluded.contains(&*key.namespace));
        let readers = included.map(|(key, reader)| ((&*key.namespace).into(), reader.clone()));
        Self { readers: readers.collect(), controller_instance, judge: OnceLock::new() }
    }

    /// The verdict on those that scale the target of a variant; `None` if none of them reads a number. `view` is always that of the
    /// same state.
    pub(super) fn verdict(&self, id: &VariantId, view: &ClusterView) -> Option<AutoscalerVerdict> {
        if self.readers.is_empty() {
            return None;
        }
        let variant = &view.variant(id)?.variant;
        let judge = self.judge.get_or_init(|| self.judge(view));
        let readers = judge.by_target.get(&(id.namespace.clone(), variant.target.clone()))?;
        let served = view.value_targets.as_ref();
        let serves_value_targets = served.is_some_and(|served| served.multipliers.contains_key(id));
        let parsed: Vec<ParsedReader> =
            readers.iter().take(MAX_READERS).filter_map(|reader| reader.parse(&id.namespace)).collect();
        (!parsed.is_empty()).then(|| verdict(variant, serves_value_targets, &parsed, &judge.candidates))
    }

    fn judge(&self, view: &ClusterView) -> Judge {
        let mut by_target: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (namespace, reader) in &self.readers {
            by_target.entry((namespace.clone(), reader.target.clone())).or_default().push(reader.clone());
        }
        Judge { by_target, candidates: candidates(view, self.controller_instance.as_deref()).collect() }
    }
}

/// Every name of every variant, with the labels of its number.
pub(crate) fn candidates(
    view: &ClusterView,
    controller_instance: Option<&str>,
) -> impl Iterator<Item = Candidate> {
    let candidate = move |state: &VariantState, name: &SmolStr| {
        Candidate::new(&state.variant, name, controller_instance, state.scale.is_some())
    };
    let own = view.variants.iter().map(move |state| candidate(state, &state.variant.id.name));
    let aliases = view.aliases.iter().filter_map(move |(alias, name)| {
        let id = VariantId::new(alias.namespace.clone(), name.clone());
        Some(candidate(view.variant(&id)?, &alias.name))
    });
    own.chain(aliases)
}

fn verdict(
    variant: &Variant,
    serves_value_targets: bool,
    readers: &[ParsedReader],
    candidates: &Candidates,
) -> AutoscalerVerdict {
    let facts = VariantFacts {
        id: variant.id.clone(),
        kind: VariantKind::VariantAutoscaling.as_str(),
        bounds: variant.bounds,
        // What follows from the policy is no error; `wva check` knows the policy.
        analyzer: Analyzer::Rate,
        may_be_zero: false,
        serves_value_targets,
        tolerance: Tolerance::default().up,
    };
    let (mut hpas, mut scaled_objects) = (Vec::new(), Vec::new());
    for reader in readers {
        match reader {
            ParsedReader::Hpa(hpa) => hpas.push(hpa),
            ParsedReader::ScaledObject(scaled) => scaled_objects.push(scaled),
        }
    }
    let workload = Workload {
        namespace: &variant.id.namespace,
        target: &variant.target,
        variant: Some(&facts),
        hpas,
        scaled_objects,
        vertical: Vec::new(),
        // Autoscalers that read no number are not kept.
        is_incomplete: true,
        knows_variants: true,
        template: None,
        candidates,
    };
    let findings = lint(&workload);
    let advice = findings.iter().map(Finding::advice);
    let mut errors: Vec<Advice> = advice.filter(|advice| advice.severity == Severity::Error).collect();
    errors.sort();
    let Some(first @ Advice { reason, object, set, effect, .. }) = errors.first() else {
        let message = "the autoscalers that read the number follow it".into();
        return AutoscalerVerdict { is_right: true, reason: "AsExpected", message };
    };
    let more = match errors.len() {
        1 => String::new(),
        count => format!("; `wva check` has {} more", count - 1),
    };
    let message = format!("{object}: {set}; {effect}; what mends it: {}{more}", first.remedy());
    AutoscalerVerdict { is_right: false, reason, message: plain(&message, MAX_MESSAGE_BYTES) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wva_core::model::{Bounds, Role};
    use wva_core::units::{Cost, Replicas};

    use super::*;

    fn view() -> ClusterView {
        let variant = Variant {
            id: VariantId::new("llm", "chat"),
            model: "m".into(),
            target: TargetRef::deployment("chat"),
            cost: Cost::new(10.0).unwrap(),
            bounds: Bounds { min: Replicas::ONE, max: Some(Replicas::new(8)) },
            accelerator: None,
            role: Role::default(),
            woken_by: None,
        };
        let state = VariantState {
            variant,
            scale: None,
            target_problem: None,
            pods: Vec::new(),
            last_status: None,
            template: Default::default(),
            unschedulable: None,
        };
        ClusterView { variants: vec![state], ..ClusterView::default() }
    }

    fn reader(name: &str, change: impl FnOnce(&mut Value)) -> (SmolStr, Arc<Reader>) {
        let mut spec = json!({
            "scaleTargetRef": { "kind": "Deployment", "name": "chat" }, "maxReplicas": 8,
            "metrics": [{ "type": "External", "external": {
                "metric": { "name": "wva_desired_replicas", "selector": { "matchLabels": { "variant_name": "chat" } } },
                "target": { "type": "AverageValue", "averageValue": "1" }
            } }]
        });
        change(&mut spec);
        let metadata =
            ObjectMeta { namespace: Some("llm".into()), name: Some(name.into()), ..ObjectMeta::default() };
        let kind = VariantKind::HorizontalPodAutoscaler;
        let reader = Reader::new(kind, &metadata, TargetRef::deployment("chat"), &spec).unwrap();
        ("llm".into(), Arc::new(reader))
    }

    fn verdict(readers: Vec<(SmolStr, Arc<Reader>)>) -> Option<AutoscalerVerdict> {
        Autoscalers { readers, ..Autoscalers::default() }.verdict(&VariantId::new("llm", "chat"), &view())
    }

    #[test]
    fn a_variant_has_a_verdict_where_something_reads_its_number() {
        assert_eq!(verdict(Vec::new()), None);
        // The default window is a matter of cost, and of the policy.
        let right = verdict(vec![reader("chat", |_| ())]).unwrap();
        assert_eq!((right.is_right, right.reason), (true, "AsExpected"));
        let value = json!({ "type": "Value", "value": "1" });
        let wrong =
            verdict(vec![reader("chat", |spec| spec["metrics"][0]["external"]["target"] = value)]).unwrap();
        assert_eq!((wrong.is_right, wrong.reason), (false, "TargetTypeMultiplies"));
        assert!(
            wrong.message.starts_with("HorizontalPodAutoscaler llm/chat: the target"),
            "{}",
            wrong.message
        );
        let mended = r#"what mends it: {"spec":{"metrics":[{"external":{"target":{"averageValue":"1","type":"AverageValue"}}}]}}"#;
        assert!(wrong.message.ends_with(mended), "{}", wrong.message);
        let two =
            verdict(vec![reader("a", |_| ()), reader("b", |spec| spec["maxReplicas"] = json!(4))]).unwrap();
        assert_eq!(two.reason, "MaximumBelowVariants");
        assert!(two.message.ends_with("; `wva check` has 2 more"), "{}", two.message);
    }

    #[test]
    fn autoscalers_that_a_tenant_writes_by_the_thousand_are_not_all_judged() {
        let readers = (0..2000).map(|index| reader(&format!("hpa-{index:04}"), |_| ()));
        let many = verdict(readers.collect()).unwrap();
        assert_eq!(many.reason, "SeveralAutoscalers");
        let named = "hpa-0001, HorizontalPodAutoscaler llm/hpa-0002, HorizontalPodAutoscaler llm/hpa-0003, \
                     HorizontalPodAutoscaler llm/hpa-0004 and 11 more";
        assert!(many.message.contains(named), "{}", many.message);
        let mended = "what mends it: keep one autoscaler of Deployment chat, and delete the others";
        assert!(many.message.contains(mended), "{}", many.message);
    }

    #[test]
    fn an_hpa_of_keda_and_one_that_cannot_be_read_are_left_out() {
        let owner =
            json!({ "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "name": "chat", "uid": "u" });
        let metadata: ObjectMeta =
            serde_json::from_value(json!({ "name": "x", "ownerReferences": [owner] })).unwrap();
        let of = |metadata, spec| {
            Reader::new(VariantKind::HorizontalPodAutoscaler, metadata, TargetRef::deployment("chat"), spec)
        };
        let spec = json!({ "maxReplicas": 1, "scaleTargetRef": { "kind": "Deployment", "name": "chat" } });
        assert_eq!(of(&metadata, &spec), None);
        let own = ObjectMeta::default();
        assert!(of(&own, &spec).is_some());
        let endless = json!({ "metrics": "x".repeat(MAX_SPEC_BYTES) });
        assert_eq!(of(&own, &endless), None);
        let unreadable = Arc::new(of(&own, &json!({ "maxReplicas": "many" })).unwrap());
        assert_eq!(verdict(vec![("llm".into(), unreadable)]), None);
    }
}
