//! The autoscalers that scale the workloads of variants, and whether they follow the number. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;
use smol_str::SmolStr;
use wva_core::model::TargetRef;
use wva_core::snapshot::VariantState;
use wva_core::text::plain;
use wva_core::{Policy, VariantId};

use super::vertical::WatchedVertical;
use crate::cluster::objects::VariantKind;
use crate::engine::ClusterView;
use crate::lint::{
    Advice, Candidate, Candidates, ExternalMetrics, Finding, ScaledObject, Severity, Termination,
    VariantFacts, VerticalPodAutoscaler, Workload, is_of_keda, lint,
};

/// How the annotations of KEDA begin.
const KEDA_ANNOTATIONS: &str = "autoscaling.keda.sh/";

/// Longest spec that is kept, bytes: one of an autoscaler with a handful of metrics has about a thousand, and a tenant may write a million.
const MAX_SPEC_BYTES: usize = 16 << 10;
/// Most autoscalers of a workload that are judged together. A second one is an error already.
const MAX_JUDGED: usize = 16;
/// What is said where nothing is wrong.
const FOLLOWED: &str = "the autoscalers that read the number follow it";
/// Longest message: that of a finding with a few names of 253 characters.
const MAX_MESSAGE_BYTES: usize = 2048;

/// An autoscaler, without what changes while it only looks at its metrics. Its spec is kept as text, because every instance watches all
/// of a fleet, and only the leader judges them.
#[derive(Debug, PartialEq)]
pub(crate) struct Scaler {
    kind: VariantKind,
    name: SmolStr,
    target: TargetRef,
    /// Those of KEDA.
    annotations: BTreeMap<String, String>,
    /// `None` if it is too long.
    spec: Option<Box<str>>,
}

/// An autoscaler whose spec is parsed.
enum ParsedScaler {
    Hpa(HorizontalPodAutoscaler),
    ScaledObject(ScaledObject),
}

impl ParsedScaler {
    fn hpa(&self) -> Option<&HorizontalPodAutoscaler> {
        if let Self::Hpa(hpa) = self { Some(hpa) } else { None }
    }

    fn scaled_object(&self) -> Option<&ScaledObject> {
        if let Self::ScaledObject(scaled) = self { Some(scaled) } else { None }
    }
}

impl Scaler {
    /// `None` for the HPA that KEDA makes.
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
        let is_kept = bytes <= MAX_SPEC_BYTES;
        let annotations = annotations.filter(|_| is_kept);
        Some(Self {
            kind,
            name: metadata.name.as_deref().unwrap_or_default().into(),
            target,
            annotations: annotations.map(|(key, value)| (key.clone(), value.clone())).collect(),
            spec: is_kept.then(|| spec.into()),
        })
    }

    /// What it scales.
    pub(super) fn target(&self) -> &TargetRef {
        &self.target
    }

    /// `None` for a spec that was too long, or that cannot be read, which the API server refuses.
    fn parse(&self, namespace: &str) -> Option<ParsedScaler> {
        let metadata = ObjectMeta {
            namespace: Some(namespace.into()),
            name: Some(self.name.to_string()),
            annotations: Some(self.annotations.clone()),
            ..ObjectMeta::default()
        };
        let spec = self.spec.as_deref()?;
        Some(match self.kind {
            VariantKind::ScaledObject => {
                ParsedScaler::ScaledObject(ScaledObject { metadata, spec: serde_json::from_str(spec).ok()? })
            }
            _ => ParsedScaler::Hpa(HorizontalPodAutoscaler {
                metadata,
                spec: serde_json::from_str(spec).ok()?,
                ..HorizontalPodAutoscaler::default()
            }),
        })
    }
}

/// Whether the autoscalers of a variant follow its number, and at what cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AutoscalerVerdict {
    /// True also where following it costs money or time that it need not.
    pub(crate) follows: bool,
    /// In CamelCase.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl AutoscalerVerdict {
    /// The reason where nothing is wrong.
    pub(crate) const AS_EXPECTED: &str = "AsExpected";

    fn as_expected(message: String) -> Self {
        Self { follows: true, reason: Self::AS_EXPECTED, message: plain(&message, MAX_MESSAGE_BYTES) }
    }
}

/// What a verdict depends on besides the objects of a namespace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VerdictContext<'a> {
    /// The policy by which the number was decided.
    pub(crate) policy: &'a Policy,
    /// Who serves external metrics instead of this program, if that is known.
    pub(crate) external: Option<&'a ExternalMetrics>,
}

/// The autoscalers of variants, and what else is done to the same pods.
#[derive(Debug, Clone, Default)]
pub(super) struct KnownScalers {
    /// With their namespaces.
    pub(super) scalers: Vec<(SmolStr, Arc<Scaler>)>,
    /// Whether there are no others.
    pub(super) are_all: bool,
    /// With their namespaces.
    pub(super) verticals: Vec<(SmolStr, WatchedVertical)>,
    /// How the pods of variants end.
    pub(super) terminations: BTreeMap<VariantId, Arc<Termination>>,
    pub(super) controller_instance: Option<SmolStr>,
}

/// The same, with verdicts on them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Autoscalers {
    known: KnownScalers,
    /// Made when a verdict is first wanted.
    judge: OnceLock<Judge>,
}

/// What verdicts need of all autoscalers and variants.
#[derive(Debug, Clone)]
struct Judge {
    by_target: BTreeMap<(SmolStr, TargetRef), Scalers>,
    candidates: Candidates,
}

/// What scales a target.
#[derive(Debug, Clone, Default)]
struct Scalers {
    horizontal: Vec<Arc<Scaler>>,
    vertical: Vec<Arc<VerticalPodAutoscaler>>,
}

impl From<KnownScalers> for Autoscalers {
    fn from(known: KnownScalers) -> Self {
        Self { known, judge: OnceLock::new() }
    }
}

impl Autoscalers {
    /// The verdict on those that scale the target of a variant, which an object of `kind` makes; `None` if none is known and there may be
    /// some. `view` is always that of the same state.
    pub(super) fn verdict(
        &self,
        (id, kind): (&VariantId, VariantKind),
        view: &ClusterView,
        context: VerdictContext<'_>,
    ) -> Option<AutoscalerVerdict> {
        let KnownScalers { scalers, are_all, .. } = &self.known;
        if scalers.is_empty() && !are_all {
            return None;
        }
        let variant = &view.variant(id)?.variant;
        let judge = self.judge.get_or_init(|| self.judge(view));
        let none = Scalers::default();
        let scalers = judge.by_target.get(&(id.namespace.clone(), variant.target.clone())).unwrap_or(&none);
        let served = view.value_targets.as_ref();
        let serves_value_targets = served.is_some_and(|served| served.multipliers.contains_key(id));
        let judged = scalers.horizontal.iter().take(MAX_JUDGED);
        let parsed: Vec<ParsedScaler> = judged.filter_map(|scaler| scaler.parse(&id.namespace)).collect();
        let is_incomplete = !are_all || parsed.len() < scalers.horizontal.len();
        if parsed.is_empty() && is_incomplete {
            return None;
        }
        let facts = VariantFacts::new(variant, kind.as_str(), context.policy, serves_value_targets);
        let workload = Workload {
            namespace: &id.namespace,
            target: &variant.target,
            variant: Some(&facts),
            hpas: parsed.iter().filter_map(ParsedScaler::hpa).collect(),
            scaled_objects: parsed.iter().filter_map(ParsedScaler::scaled_object).collect(),
            vertical: scalers.vertical.iter().take(MAX_JUDGED).map(AsRef::as_ref).collect(),
            is_incomplete,
            knows_variants: true,
            termination: self.known.terminations.get(id).map(AsRef::as_ref),
            external: context.external,
            candidates: &judge.candidates,
        };
        Some(verdict(&lint(&workload)))
    }

    fn judge(&self, view: &ClusterView) -> Judge {
        let mut by_target: BTreeMap<_, Scalers> = BTreeMap::new();
        for (namespace, scaler) in &self.known.scalers {
            let scalers = by_target.entry((namespace.clone(), scaler.target.clone())).or_default();
            scalers.horizontal.push(scaler.clone());
        }
        for (namespace, vertical) in &self.known.verticals {
            let scalers = by_target.entry((namespace.clone(), vertical.target.clone())).or_default();
            scalers.vertical.push(vertical.object.clone());
        }
        Judge { by_target, candidates: candidates(view, self.known.controller_instance.as_deref()).collect() }
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

/// The worst of the findings, and the reasons of the others. A note is only mentioned, where nothing is wrong.
fn verdict(findings: &[Finding]) -> AutoscalerVerdict {
    let ranked = |finding: &Finding| {
        let advice = finding.advice();
        (advice.severity, finding.issue.place(), advice)
    };
    let mut said: Vec<(Severity, u8, Advice)> = findings.iter().map(ranked).collect();
    said.sort();
    let Some((_, _, first)) = said.first() else {
        return AutoscalerVerdict::as_expected(FOLLOWED.into());
    };
    let others = said.iter().skip(1).map(|(_, _, advice)| advice);
    let others = others.filter(|advice| advice.severity < Severity::Note || first.severity == Severity::Note);
    let others: BTreeSet<&str> = others.map(|advice| advice.reason).collect();
    let more = if others.is_empty() {
        String::new()
    } else {
        format!("; `wva check` has more: {}", others.into_iter().collect::<Vec<_>>().join(", "))
    };
    let Advice { severity, reason, object, set, effect, .. } = first;
    let found = format!("{object}: {set}; {effect}; what mends it: {}{more}", first.remedy());
    if *severity == Severity::Note {
        return AutoscalerVerdict::as_expected(format!("{FOLLOWED}; worth knowing: {found}"));
    }
    let follows = *severity != Severity::Error;
    AutoscalerVerdict { follows, reason, message: plain(&found, MAX_MESSAGE_BYTES) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wva_core::model::{Analyzer, Bounds, Role, Variant};
    use wva_core::units::{Cost, Replicas};

    use super::*;
    use crate::lint::NO_AUTOSCALER;

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

    fn scaler(name: &str, change: impl FnOnce(&mut Value)) -> (SmolStr, Arc<Scaler>) {
        let mut spec = json!({
            "scaleTargetRef": { "kind": "Deployment", "name": "chat" }, "maxReplicas": 8,
            "behavior": { "scaleDown": { "stabilizationWindowSeconds": 0 } },
            "metrics": [{ "type": "External", "external": {
                "metric": { "name": "wva_desired_replicas", "selector": { "matchLabels": { "variant_name": "chat" } } },
                "target": { "type": "AverageValue", "averageValue": "1" }
            } }]
        });
        change(&mut spec);
        let metadata =
            ObjectMeta { namespace: Some("llm".into()), name: Some(name.into()), ..ObjectMeta::default() };
        let kind = VariantKind::HorizontalPodAutoscaler;
        let scaler = Scaler::new(kind, &metadata, TargetRef::deployment("chat"), &spec).unwrap();
        ("llm".into(), Arc::new(scaler))
    }

    fn verdict(scalers: Vec<(SmolStr, Arc<Scaler>)>) -> Option<AutoscalerVerdict> {
        verdict_of(KnownScalers { scalers, ..KnownScalers::default() }, Analyzer::Rate, None)
    }

    fn verdict_of(
        known: KnownScalers,
        analyzer: Analyzer,
        external: Option<&ExternalMetrics>,
    ) -> Option<AutoscalerVerdict> {
        let mut policy = Policy::default();
        policy.global.default.analyzer = analyzer;
        let (id, context) = (VariantId::new("llm", "chat"), VerdictContext { policy: &policy, external });
        Autoscalers::from(known).verdict((&id, VariantKind::VariantAutoscaling), &view(), context)
    }

    /// A change that makes an HPA follow the use of CPU alone.
    fn by_cpu(spec: &mut Value) {
        let target = json!({ "type": "Utilization", "averageUtilization": 80 });
        spec["metrics"] = json!([{ "type": "Resource", "resource": { "name": "cpu", "target": target } }]);
    }

    #[test]
    fn an_hpa_by_cpu_beside_the_one_that_follows_the_number_was_seen_by_a_check_alone() {
        let two = verdict(vec![scaler("chat", |_| ()), scaler("cpu", by_cpu)]).unwrap();
        assert_eq!((two.follows, two.reason), (false, "SeveralAutoscalers"));
        assert!(two.message.contains("is also scaled by HorizontalPodAutoscaler llm/cpu"), "{}", two.message);
        assert!(!two.message.contains("NumberNotRead"), "the other one reads it: {}", two.message);
        let alone = verdict(vec![scaler("cpu", by_cpu)]).unwrap();
        assert_eq!((alone.follows, alone.reason), (false, "NumberNotRead"));
    }

    #[test]
    fn that_nothing_scales_a_variant_is_said_once_all_autoscalers_are_known() {
        let of = |known: KnownScalers| verdict_of(known, Analyzer::Rate, None);
        let none = of(KnownScalers { are_all: true, ..KnownScalers::default() }).unwrap();
        assert_eq!((none.follows, none.reason), (true, NO_AUTOSCALER));
        assert_eq!(of(KnownScalers::default()), None);
        let endless = |spec: &mut Value| spec["padding"] = json!("x".repeat(MAX_SPEC_BYTES));
        let unread =
            KnownScalers { scalers: vec![scaler("chat", endless)], are_all: true, ..KnownScalers::default() };
        assert_eq!(of(unread), None, "one of them cannot be judged");
    }

    #[test]
    fn a_variant_has_a_verdict_where_something_reads_its_number() {
        let right = verdict(vec![scaler("chat", |_| ())]).unwrap();
        assert_eq!((right.follows, right.reason, right.message.as_str()), (true, "AsExpected", FOLLOWED));
        // A note: the number stops at the variant's maximum.
        let higher = verdict(vec![scaler("chat", |spec| spec["maxReplicas"] = json!(9))]).unwrap();
        assert_eq!((higher.follows, higher.reason), (true, "AsExpected"));
        let said = "; worth knowing: HorizontalPodAutoscaler llm/chat: maxReplicas is 9";
        assert!(higher.message.contains(said), "{}", higher.message);
        let value = json!({ "type": "Value", "value": "1" });
        let wrong =
            verdict(vec![scaler("chat", |spec| spec["metrics"][0]["external"]["target"] = value)]).unwrap();
        assert_eq!((wrong.follows, wrong.reason), (false, "TargetTypeMultiplies"));
        assert!(
            wrong.message.starts_with("HorizontalPodAutoscaler llm/chat: the target"),
            "{}",
            wrong.message
        );
        let mended = r#"what mends it: {"spec":{"metrics":[{"external":{"target":{"averageValue":"1","type":"AverageValue"}}}]}}"#;
        assert!(wrong.message.ends_with(mended), "{}", wrong.message);
        let two =
            verdict(vec![scaler("a", |_| ()), scaler("b", |spec| spec["maxReplicas"] = json!(4))]).unwrap();
        assert_eq!(two.reason, "SeveralAutoscalers");
        assert!(
            two.message.ends_with("; `wva check` has more: MaximumBelowVariants, SeveralAutoscalers"),
            "{}",
            two.message
        );
    }

    #[test]
    fn what_costs_money_is_said_of_an_autoscaler_that_follows_the_number() {
        let delayed = || {
            let scalers = vec![scaler("chat", |spec| spec["behavior"] = Value::Null)];
            KnownScalers { scalers, ..KnownScalers::default() }
        };
        let found = |known, analyzer| {
            let verdict = verdict_of(known, analyzer, None).unwrap();
            (verdict.follows, verdict.reason)
        };
        assert_eq!(found(delayed(), Analyzer::Rate), (true, "RemovalsDelayed"), "by the default policy");
        assert_eq!(
            found(delayed(), Analyzer::Saturation),
            (true, "AsExpected"),
            "which does not steady itself"
        );
        let object = json!({ "metadata": { "namespace": "llm", "name": "vpa" }, "spec": {} });
        let vertical = WatchedVertical {
            target: TargetRef::deployment("chat"),
            object: Arc::new(serde_json::from_value(object).unwrap()),
        };
        let steady = || KnownScalers { scalers: vec![scaler("chat", |_| ())], ..KnownScalers::default() };
        let sized = KnownScalers { verticals: vec![("llm".into(), vertical.clone())], ..steady() };
        assert_eq!(found(sized, Analyzer::Rate), (true, "VerticalAutoscalerRestarts"));
        let elsewhere = KnownScalers { verticals: vec![("other".into(), vertical)], ..steady() };
        assert_eq!(found(elsewhere, Analyzer::Rate), (true, "AsExpected"));
        let termination = |spec: Value| {
            let termination = Termination::of(&serde_json::from_value(spec).unwrap()).unwrap();
            let terminations = [(VariantId::new("llm", "chat"), Arc::new(termination))].into();
            KnownScalers { terminations, ..steady() }
        };
        let cut_off = termination(json!({ "containers": [{ "name": "vllm" }] }));
        let verdict = verdict_of(cut_off, Analyzer::Rate, None).unwrap();
        assert_eq!((verdict.follows, verdict.reason), (true, "GracePeriodTooShort"));
        assert!(verdict.message.starts_with("Deployment llm/chat: "), "{}", verdict.message);
        assert!(verdict.message.ends_with("; `wva check` has more: NoPreStop"), "{}", verdict.message);
    }

    #[test]
    fn keda_that_takes_external_metrics_over_is_told_to_the_variants_of_hpas() {
        let known = KnownScalers { scalers: vec![scaler("chat", |_| ())], ..KnownScalers::default() };
        let keda = ExternalMetrics::Another("Service keda/keda-operator-metrics-apiserver".into());
        let verdict = verdict_of(known, Analyzer::Rate, Some(&keda)).unwrap();
        // It may have the number from `/metrics`, as an adapter does.
        assert_eq!((verdict.follows, verdict.reason), (true, "ApiServiceOfAnother"));
        assert!(verdict.message.contains("points at Service keda/keda-operator-metrics-apiserver"));
    }

    #[test]
    fn autoscalers_that_a_tenant_writes_by_the_thousand_are_not_all_judged() {
        let scalers = (0..2000).map(|index| scaler(&format!("hpa-{index:04}"), |_| ()));
        let many = verdict(scalers.collect()).unwrap();
        assert_eq!(many.reason, "SeveralAutoscalers");
        let named = "hpa-0001, HorizontalPodAutoscaler llm/hpa-0002, HorizontalPodAutoscaler llm/hpa-0003, \
                     HorizontalPodAutoscaler llm/hpa-0004 and 11 more";
        assert!(many.message.contains(named), "{}", many.message);
        let mended = "what mends it: keep one autoscaler of Deployment chat, and delete the others";
        assert!(many.message.contains(mended), "{}", many.message);
    }

    #[test]
    fn an_hpa_of_keda_and_those_that_cannot_be_read_are_left_out() {
        let owner =
            json!({ "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "name": "chat", "uid": "u" });
        let metadata: ObjectMeta =
            serde_json::from_value(json!({ "name": "x", "ownerReferences": [owner] })).unwrap();
        let of = |metadata, spec| {
            Scaler::new(VariantKind::HorizontalPodAutoscaler, metadata, TargetRef::deployment("chat"), spec)
        };
        let spec = json!({ "maxReplicas": 1, "scaleTargetRef": { "kind": "Deployment", "name": "chat" } });
        assert_eq!(of(&metadata, &spec), None);
        let own = ObjectMeta::default();
        assert!(of(&own, &spec).is_some());
        let unreadable = Arc::new(of(&own, &json!({ "maxReplicas": "many" })).unwrap());
        assert_eq!(verdict(vec![("llm".into(), unreadable)]), None);
    }
}
