//! Any texts of ConfigMaps give a policy that the core accepts.

use proptest::prelude::*;
use wva_core::Policy;
use wva_core::model::{ModelPolicy, Scope, Utilisation};

use super::{RELEASE, load};
use crate::config::policy_config::ConfigMapKind;

/// Text that gets past the YAML parser more often than chance does.
fn entry() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec![
        "kvCacheThreshold",
        "kvSpareTrigger",
        "queueLengthThreshold",
        "queueSpareTrigger",
        "scaleUpThreshold",
        "scaleDownBoundary",
        "priority",
        "analyzerName",
        "analyzers",
        "limiters",
        "enableLimiter",
        "scaleToZero",
        "stability",
        "power",
        "spend",
        "compat",
        "model_id",
        "namespace",
        "targetTTFT",
        "targetITL",
        "sloMultiplier",
        "tuningEnabled",
        "enable_scale_to_zero",
        "retention_period",
        "data",
        "cost",
        "name",
    ]);
    let value = prop_oneof![
        any::<f64>().prop_map(|number| number.to_string()),
        (0.0..1.2).prop_map(|number: f64| number.to_string()),
        any::<i64>().prop_map(|number| number.to_string()),
        prop::sample::select(vec![
            "true",
            "",
            "~",
            ".inf",
            "saturation",
            "upstream",
            "throughput",
            "5m",
            "-1h",
            "9999999999999999h",
            "m",
            "llm",
            "[{name: throughput, score: 1e300}]",
            "[{type: quota, scope: cluster, quotas: {a: 1e18}}]",
            "{enabled: true}",
            "{upStep: {percent: 1e9}}",
            "&a [*a]",
            "[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]",
            "{watts: 1, perGpu: {a: 1}}",
        ])
        .prop_map(str::to_owned),
    ];
    let line = (name, value).prop_map(|(name, value)| format!("{name}: {value}\n"));
    prop_oneof![prop::collection::vec(line, 0..6).prop_map(|lines| lines.concat()), any::<String>()]
}

fn is_valid(model: &ModelPolicy) -> bool {
    let fits = |value: Utilisation| Utilisation::new(value.up, value.down).is_ok();
    let stability = model.stability;
    model.saturation.validated().is_ok()
        && fits(model.utilisation)
        && model
            .secondary
            .iter()
            .all(|value| value.score > 0.0 && value.score.is_finite() && value.utilisation.is_none_or(fits))
        && model.priority > 0.0
        && model.priority.is_finite()
        && model.score > 0.0
        && model.queueing.slo_multiplier > 1.0
        && (0.0..=1.0).contains(&stability.tolerance)
}

fn all(policy: &Policy) -> impl Iterator<Item = &ModelPolicy> {
    let scopes = policy.namespaces.values().chain([&policy.global]);
    scopes.flat_map(|scope: &Scope| scope.models.values().chain([&scope.default]))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn any_texts_give_a_policy_that_the_core_accepts(
        texts in prop::collection::vec((0..5_usize, prop::bool::ANY, "[a-c]|default|m.llm", entry()), 0..5)
    ) {
        let entries: Vec<_> = texts.iter().map(|(_, _, key, text)| [(key.as_str(), text.as_str())]).collect();
        let config_maps: Vec<_> = texts
            .iter()
            .zip(&entries)
            .map(|((kind, release, ..), entry)| (if *release { RELEASE } else { "llm" }, ConfigMapKind::ALL[*kind], entry.as_slice()))
            .collect();
        let (policy, problems) = load(&config_maps);
        for model in all(&policy) {
            prop_assert!(is_valid(model), "{model:?}");
        }
        for problem in problems.iter() {
            prop_assert!(problem.to_string().len() < 2000 && !problem.to_string().contains('\n'));
        }
        let json = serde_json::to_string(&policy).unwrap();
        prop_assert_eq!(serde_json::from_str::<Policy>(&json).unwrap(), policy);
    }
}
