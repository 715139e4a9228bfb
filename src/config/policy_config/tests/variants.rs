//! Settings of VariantAutoscalings over those of ConfigMaps.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use wva_core::model::{Analyzer, LatencyTargets, ModelPolicy, VariantId};
use wva_core::{GroupId, Policy};

use super::super::{
    Finding, Findings, ModelVariant, PolicyLoader, VariantSettings, Variants, VariantsByModel,
};
use super::{RELEASE, TestConfigMaps, loader, maps};
use crate::config::policy_config::ConfigMapKind::{Saturation, ScaleToZero, ServiceClasses};

/// The policy and what owners are told, where model `m` in `llm` has variants with these settings (null: none), named a, b, c.
fn load_with(config_maps: TestConfigMaps<'_>, settings: &[Value]) -> (Policy, Findings) {
    load_variants(&mut loader(), config_maps, variants(settings))
}

fn variants(settings: &[Value]) -> Variants {
    let read = |name: &str, fields: &Value| {
        let settings = || VariantSettings::read(fields.clone()).of_object(name.to_owned(), None);
        (!fields.is_null()).then(|| Arc::new(settings()))
    };
    let names = ["a", "b", "c"].into_iter().zip(settings);
    let variant = |(name, fields): (&str, &Value)| ModelVariant {
        name: name.into(),
        settings: read(name, fields),
        is_decided: true,
    };
    names.map(variant).collect()
}

fn load_variants(
    loader: &mut PolicyLoader,
    config_maps: TestConfigMaps<'_>,
    variants: Variants,
) -> (Policy, Findings) {
    loader.set_variants(VariantsByModel::from([(GroupId::new("llm", "m"), variants)]));
    let (policy, mut problems) =
        loader.load(&maps(config_maps), &BTreeSet::from(["llm", "chat"].map(str::to_owned)));
    (policy, problems.take_variants())
}

fn of<'a>(policy: &'a Policy, namespace: &str) -> &'a ModelPolicy {
    policy.of(&GroupId::new(namespace, "m"))
}

fn zero(policy: &Policy, namespace: &str) -> (bool, f64) {
    let zero = policy.scale_to_zero(&GroupId::new(namespace, "m"));
    (zero.enabled, zero.retention.get())
}

/// What the owner of variant `name` is told: errors and notes.
fn told(findings: &Findings, name: &str) -> (String, String) {
    let finding = findings.get(&VariantId::new("llm", name)).cloned();
    let Finding { errors, notes, .. } = finding.unwrap_or_default();
    (errors.join("; "), notes.join("; "))
}

#[test]
fn an_object_tunes_its_model_in_its_namespace_and_no_other() {
    let settings = json!({
        "saturationThreshold": 0.7, "scaleToZero": { "enabled": true, "idleTimeout": "300s" }, "sloTtft": 500, "sloTpot": 40.5
    });
    for config_maps in [
        &[(RELEASE, Saturation, &[("default", "kvCacheThreshold: 0.9\npriority: 3")][..])][..],
        &[("llm", Saturation, &[("default", "kvCacheThreshold: 0.9\npriority: 3")][..])][..],
    ] {
        let (policy, findings) = load_with(config_maps, std::slice::from_ref(&settings));
        let model = of(&policy, "llm");
        assert_eq!((model.saturation.kv_cache_threshold, model.priority), (0.7, 3.0));
        assert_eq!(zero(&policy, "llm"), (true, 300.0));
        assert_eq!((model.rate.ttft_ms, model.rate.itl_ms), (Some(500.0), Some(40.5)));
        let targets = LatencyTargets { ttft_ms: 500.0, itl_ms: 40.5 };
        assert_eq!(model.queueing.targets, Some(targets));
        assert_eq!(model.service_class.as_ref().unwrap().targets[0].latency, targets);
        assert_eq!(*of(&policy, "chat"), policy.global.default, "the same model elsewhere");
        assert!(!zero(&policy, "chat").0);
        let (errors, notes) = told(&findings, "a");
        assert_eq!(errors, "");
        assert!(notes.contains("saturation-percent decides, which has no latency objectives"), "{notes}");
        assert!(policy.validated().is_ok());
    }
}

#[test]
fn a_threshold_chooses_v1_unless_an_analyzer_is_named_and_weighted_adds_above_it() {
    let with = |default: &str, threshold: f64| {
        let entries = [("default", default)];
        let (policy, findings) =
            load_with(&[(RELEASE, Saturation, &entries)], &[json!({ "saturationThreshold": threshold })]);
        let model = of(&policy, "llm").clone();
        (model, told(&findings, "a"))
    };
    assert_eq!(with("priority: 1", 0.7).0.analyzer, Analyzer::SaturationPercent);
    let (model, (_, notes)) = with("analyzerName: rate", 0.7);
    assert_eq!(
        (model.analyzer, notes.as_str()),
        (Analyzer::Rate, "spec.saturationThreshold has no effect: rate decides")
    );
    let (model, told_of) = with("analyzerName: weighted", 0.6);
    assert_eq!((model.scoring.up, model.saturation.kv_cache_threshold, told_of.0.as_str()), (0.6, 0.8, ""));
    let (model, (errors, _)) = with("analyzerName: weighted", 0.3);
    assert_eq!(model.scoring.up, 0.8);
    assert_eq!(
        errors,
        "spec.saturationThreshold 0.3 must be above scaleDownBoundary 0.3 of the model: it is left out"
    );
    let (model, (errors, _)) = with("kvSpareTrigger: 0.2", 0.15);
    assert_eq!((model.saturation.kv_cache_threshold, model.saturation.kv_spare_trigger), (0.8, 0.2));
    assert_eq!(
        errors,
        "spec.saturationThreshold 0.15 must be at least kvSpareTrigger 0.2 of the model: it is left out"
    );
}

#[test]
fn a_model_sleeps_only_if_all_variants_allow_it_and_after_the_longest_time() {
    let allows = |timeout: &str| json!({ "scaleToZero": { "enabled": true, "idleTimeout": timeout } });
    let (policy, findings) = load_with(&[], &[allows("5m"), allows("20m")]);
    assert_eq!((zero(&policy, "llm"), told(&findings, "a")), ((true, 1200.0), Default::default()));
    let (policy, findings) = load_with(&[], &[allows("5m"), Value::Null]);
    assert_eq!(zero(&policy, "llm"), (false, 600.0), "b counts as the default");
    let note = "spec.scaleToZero does not scale the model to zero: variant b of the same model does not allow it; an unset \
                spec.minReplicas is 0 all the same";
    assert_eq!(told(&findings, "a"), (String::new(), note.into()));
    let by_model = [("m", "model_id: m\nenable_scale_to_zero: true\nretention_period: 2m")];
    let config_maps = [(RELEASE, ScaleToZero, &by_model[..])];
    assert_eq!(zero(&load_with(&config_maps, &[allows("5m"), Value::Null]).0, "llm"), (true, 300.0));
    let refuses = json!({ "scaleToZero": { "enabled": false } });
    assert_eq!(zero(&load_with(&config_maps, &[refuses, Value::Null]).0, "llm"), (false, 120.0));
    let unrelated = json!({ "sloTtft": 100 });
    assert_eq!(zero(&load_with(&config_maps, &[unrelated]).0, "llm"), (true, 120.0), "the ConfigMap's stays");
}

const CLASSES: &[(&str, &str)] = &[
    ("premium.yaml", "name: Premium\npriority: 1\ndata: [{model: m, slo-tpot: 24, slo-ttft: 500}]"),
    (
        "freemium.yaml",
        "name: Freemium\npriority: 10\ndata: [{model: m, slo-tpot: 200, slo-ttft: 2000}, {model: n, slo-tpot: 1, slo-ttft: 1}]",
    ),
    ("other.yaml", "name: Other\ndata: [{model: n, slo-tpot: 1, slo-ttft: 1}]"),
];

#[test]
fn an_object_names_its_service_class_and_its_own_objectives_come_first() {
    let class = |key: &str| json!({ "sloClassRef": { "name": "service-classes-config", "key": key } });
    let named = |settings: &[Value]| {
        let (policy, findings) = load_with(&[(RELEASE, ServiceClasses, CLASSES)], settings);
        let class = of(&policy, "llm").service_class.clone();
        let class = class.map(|class| (class.name.to_string(), class.priority, class.targets[0].latency));
        (class, told(&findings, "a").0, of(&policy, "llm").rate)
    };
    let targets = |ttft_ms, itl_ms| LatencyTargets { ttft_ms, itl_ms };
    let (class_in_force, errors, rate) = named(&[class("freemium.yaml")]);
    assert_eq!(class_in_force, Some(("Freemium".into(), 10, targets(2000.0, 200.0))));
    assert_eq!((errors.as_str(), rate.ttft_ms, rate.itl_ms), ("", Some(2000.0), Some(200.0)));
    let (class_in_force, ..) = named(&[class("freemium.yaml"), class("premium.yaml")]);
    assert_eq!(class_in_force, Some(("Premium".into(), 1, targets(500.0, 24.0))));
    let own = json!({ "sloClassRef": { "key": "freemium.yaml" }, "sloTtft": 300 });
    assert_eq!(named(&[own]).0, Some(("Freemium".into(), 10, targets(300.0, 200.0))));
    let (class_in_force, _, rate) = named(&[json!({ "sloTtft": 300 })]);
    assert_eq!(
        class_in_force,
        Some(("Premium".into(), 1, targets(300.0, 24.0))),
        "the rest is of the model's class"
    );
    assert_eq!((rate.ttft_ms, rate.itl_ms), (Some(300.0), None));
    let (class_in_force, errors, _) = named(&[class("opt-125m")]);
    let unknown = "spec.sloClassRef.key \"opt-125m\" is no valid entry of the ConfigMap of service classes";
    assert_eq!((class_in_force, errors.as_str()), (None, unknown));
    assert!(named(&[class("other.yaml")]).1.contains("\"other.yaml\" has no objectives for this model"));
}

#[test]
fn bad_values_of_an_object_are_left_out_alone_and_its_owner_is_told() {
    let settings = json!({
        "saturationThreshold": 6, "scaleToZero": { "enabled": "maybe", "idleTimeout": "soon", "after": 1 }, "sloTtft": "fast",
        "sloTpot": 40, "sloClassRef": { "key": "k".repeat(300) }
    });
    let (policy, findings) = load_with(&[], &[settings]);
    assert_eq!((of(&policy, "llm").rate.itl_ms, of(&policy, "llm").rate.ttft_ms), (Some(40.0), None));
    assert_eq!((of(&policy, "llm").analyzer, zero(&policy, "llm")), (Analyzer::Rate, (false, 600.0)));
    let (errors, _) = told(&findings, "a");
    for says in [
        "spec.saturationThreshold 6 is out of range: must be above 0 and at most 1",
        "spec.scaleToZero.enabled ",
        "spec.scaleToZero.idleTimeout \"soon\" is not a duration: must be 1s to 720h",
        "spec.scaleToZero.after is not a field",
        "spec.sloTtft \"fast\" is not a number",
        "spec.sloClassRef.key must be an entry",
    ] {
        assert!(errors.contains(says), "{says}: {errors}");
    }
    let (_, findings) = load_with(&[], &[json!({ "scaleToZero": { "x".repeat(100_000): 1 } })]);
    assert!(told(&findings, "a").0.len() < 1000, "bounded, whatever its author wrote");
    for odd in [json!("premium"), json!([1]), json!({}), json!(null)] {
        let (policy, _) =
            load_with(&[], &[json!({ "sloClassRef": odd, "scaleToZero": odd, "sloTpot": odd })]);
        let unset = ModelPolicy { scale_to_zero: None, ..policy.global.default.clone() };
        assert_eq!(*of(&policy, "llm"), unset, "{odd}");
    }
}

#[test]
fn objectives_that_no_analyzer_reads_are_named() {
    let note = |default: &str, settings: Value| {
        let entries = [("default", default)];
        told(&load_with(&[(RELEASE, Saturation, &entries)], &[settings]).1, "a").1
    };
    let both = json!({ "sloTtft": 300, "sloTpot": 30 });
    assert_eq!(note("priority: 1", both.clone()), "");
    assert_eq!(note("analyzerName: inferno", both.clone()), "");
    let half = note("analyzerName: queueing-model", json!({ "sloTtft": 300 }));
    assert_eq!(
        half,
        "latency objectives have no effect: queueing-model needs both sloTtft and sloTpot: set the other one too"
    );
    let none = note("analyzerName: throughput", both);
    assert_eq!(
        none,
        "latency objectives have no effect: throughput decides, which has no latency objectives"
    );
}

#[test]
fn a_bad_edit_keeps_the_last_valid_value_of_the_same_object_and_field() {
    let mut loader = loader();
    let good = json!({ "saturationThreshold": 0.7, "sloTtft": 300, "scaleToZero": { "enabled": true, "idleTimeout": "5m" } });
    load_variants(&mut loader, &[], variants(&[good]));
    let bad = json!({ "saturationThreshold": 7, "sloTtft": 400, "scaleToZero": { "enabled": true, "idleTimeout": "soon" } });
    for _ in 0..2 {
        let (policy, findings) = load_variants(&mut loader, &[], variants(std::slice::from_ref(&bad)));
        let model = of(&policy, "llm");
        assert_eq!((model.saturation.kv_cache_threshold, model.rate.ttft_ms), (0.7, Some(400.0)));
        assert_eq!(zero(&policy, "llm"), (true, 300.0));
        let (errors, _) = told(&findings, "a");
        assert!(errors.ends_with("; what was last valid stays in force"), "{errors}");
    }
    let unset =
        load_variants(&mut loader, &[], variants(&[json!({ "saturationThreshold": null, "sloTtft": 1 })]));
    assert_eq!(of(&unset.0, "llm").saturation.kv_cache_threshold, 0.8, "removed, so forgotten");
    load_variants(&mut loader, &[], variants(&[json!({ "saturationThreshold": 0.7 })]));
    let mut of_another = variants(&[json!({ "saturationThreshold": 7 })]);
    let settings = VariantSettings::read(json!({ "saturationThreshold": 7 })).of_object("new".into(), None);
    of_another[0].settings = Some(Arc::new(settings));
    let (policy, findings) = load_variants(&mut loader, &[], of_another);
    assert_eq!(of(&policy, "llm").saturation.kv_cache_threshold, 0.8, "a later object of the same name");
    assert!(!told(&findings, "a").0.contains("stays in force"));
}

#[test]
fn a_variant_that_becomes_invalid_does_not_put_its_model_to_sleep_and_tunes_nothing() {
    let allows = json!({ "scaleToZero": { "enabled": true } });
    let strict = json!({ "scaleToZero": { "enabled": true }, "sloTtft": 1, "saturationThreshold": 0.5 });
    let mut both = variants(&[allows, strict]);
    both[1].is_decided = false;
    let (policy, findings) = load_variants(&mut loader(), &[], both);
    assert!(!zero(&policy, "llm").0);
    let model = of(&policy, "llm");
    assert_eq!((model.rate.ttft_ms, model.saturation.kv_cache_threshold), (None, 0.8));
    let (_, notes) = told(&findings, "a");
    assert!(
        notes.contains("nothing is decided about variant b, so that it is not known to allow it"),
        "{notes}"
    );
}

#[test]
fn a_minimum_that_prevents_scaling_to_zero_is_named() {
    let mut with_minimum = variants(&[json!({ "scaleToZero": { "enabled": true } })]);
    let settings = VariantSettings::read(json!({ "scaleToZero": { "enabled": true } }));
    with_minimum[0].settings = Some(Arc::new(settings.of_object("a".into(), Some(2))));
    let (_, findings) = load_variants(&mut loader(), &[], with_minimum);
    let note =
        "spec.scaleToZero does not scale the model to zero: spec.minReplicas is 2: set it to 0 or remove it";
    assert_eq!(told(&findings, "a").1, note);
}

#[test]
fn a_lax_objective_of_one_variant_does_not_loosen_the_class_of_another() {
    let lax = json!({ "sloTtft": 2000 });
    let class = json!({ "sloClassRef": { "key": "premium.yaml" } });
    for settings in [[lax.clone(), class.clone()], [class, lax]] {
        let (policy, _) = load_with(&[(RELEASE, ServiceClasses, CLASSES)], &settings);
        let rate = of(&policy, "llm").rate;
        assert_eq!((rate.ttft_ms, rate.itl_ms), (Some(500.0), Some(24.0)));
    }
}

#[test]
fn an_upgrade_tells_what_stored_settings_make_of_the_model() {
    let settings = json!({ "saturationThreshold": 0.7, "scaleToZero": { "enabled": true }, "sloTtft": 500 });
    let (_, findings) = load_with(&[], &[settings]);
    let in_effect = &findings[&VariantId::new("llm", "a")].in_effect;
    assert_eq!(
        in_effect,
        "spec.saturationThreshold, spec.scaleToZero.enabled, spec.sloTtft had no effect in earlier versions, and count now: analyzer \
         saturation-percent, kvCacheThreshold 0.7, scaleUpThreshold 0.8; minimum 0; scaled to zero when idle for 600 s, if a scheduler's queue is measured; objectives: \
         time to first token 500 ms, between tokens none"
    );
}

#[test]
fn a_threshold_counts_where_the_entries_below_contradict_each_other() {
    let entries = [
        ("default", "kvSpareTrigger: 0.5\nkvCacheThreshold: 0.9"),
        ("m", "model_id: m\nnamespace: llm\nkvCacheThreshold: 0.4"),
    ];
    let (policy, findings) =
        load_with(&[(RELEASE, Saturation, &entries)], &[json!({ "saturationThreshold": 0.6 })]);
    assert_eq!(
        (of(&policy, "llm").saturation.kv_cache_threshold, told(&findings, "a").0),
        (0.6, String::new())
    );
    assert!(policy.validated().is_ok());
}
