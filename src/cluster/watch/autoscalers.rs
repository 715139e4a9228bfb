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
    Advice, Candidate, Candidates, ExternalMetrics, Finding, ScaledObject, Severity, TRANSFER, Termination,
    VariantFacts, VerticalPodAutoscaler, Workload, is_of_keda, lint,
};

/// How the annotations of KEDA begin.
const KEDA_ANNOTATIONS: &str = "autoscaling.keda.sh/";

/// Longest spec that is kept, bytes: one of an autoscaler with a handful of metrics has about a thousand, and a tenant may write a million.
const MAX_SPEC_BYTES: usize = 16 << 10;
/// The same where no number is mentioned: of the autoscalers of other people, of which there may be thousands.
const MAX_OTHER_SPEC_BYTES: usize = 2 << 10;
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

/// Whether a spec names a number of this program, or means to.
fn mentions_number(spec: &str) -> bool {
    ["desired_replicas", "\"wva_", "scalerAddress"].into_iter().any(|part| spec.contains(part))
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
    /// `None` for the HPA that KEDA makes, and for an object that is being deleted.
    pub(super) fn new(
        kind: VariantKind,
        metadata: &ObjectMeta,
        target: TargetRef,
        spec: &Value,
    ) -> Option<Self> {
        if is_of_keda(metadata) || metadata.deletion_timestamp.is_some() {
            return None;
        }
        let is_kept = |key: &str| key.starts_with(KEDA_ANNOTATIONS) || key == TRANSFER;
        let annotations = metadata.annotations.iter().flatten().filter(|(key, _)| is_kept(key));
        let spec = spec.to_string();
        let bytes =
            annotations.clone().map(|(key, value)| key.len() + value.len()).sum::<usize>() + spec.len();
        let is_short = bytes <= if mentions_number(&spec) { MAX_SPEC_BYTES } else { MAX_OTHER_SPEC_BYTES };
        let annotations = annotations.filter(|_| is_short);
        Some(Self {
            kind,
            name: metadata.name.as_deref().unwrap_or_default().into(),
            target,
            annotations: annotations.map(|(key, value)| (key.clone(), value.clone())).collect(),
            spec: is_short.then(|| spec.into()),
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
    /// All findings, the worst first, which the message tells.
    pub(crate) findings: Vec<Advice>,
}

impl AutoscalerVerdict {
    /// The reason where nothing is wrong.
    pub(crate) const AS_EXPECTED: &str = "AsExpected";

    fn as_expected(message: String, findings: Vec<Advice>) -> Self {
        let message = plain(&message, MAX_MESSAGE_BYTES);
        Self { follows: true, reason: Self::AS_EXPECTED, message, findings }
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
        // What is not known may read the number.
        (!is_incomplete || workload.is_read()).then(|| verdict(&lint(&workload)))
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
    let said: Vec<Advice> = said.into_iter().map(|(_, _, advice)| advice).collect();
    let Some(first) = said.first() else {
        return AutoscalerVerdict::as_expected(FOLLOWED.into(), said);
    };
    let others = said.iter().skip(1);
    let others = others.filter(|advice| advice.severity < Severity::Note || first.severity == Severity::Note);
    let others: BTreeSet<&str> = others.map(|advice| advice.reason).collect();
    let more = if others.is_empty() {
        String::new()
    } else {
        format!("; `wva check` has more: {}", others.into_iter().collect::<Vec<_>>().join(", "))
    };
    let found = format!("{}{more}", first.in_words());
    if first.severity == Severity::Note {
        return AutoscalerVerdict::as_expected(format!("{FOLLOWED}; worth knowing: {found}"), said);
    }
    let (follows, reason) = (first.severity != Severity::Error, first.reason);
    AutoscalerVerdict { follows, reason, message: plain(&found, MAX_MESSAGE_BYTES), findings: said }
}

#[cfg(test)]
mod tests;
