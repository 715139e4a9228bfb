//! Entries of several keys, ConfigMaps and namespaces, combined.

use wva_core::model::{Analyzer, Compat, LatencyTargets, ModelPolicy, ScaleToZero};
use wva_core::units::Seconds;
use wva_core::{GroupId, Policy};

use super::{RELEASE, load, messages};
use crate::config::policy_config::ConfigMapKind::{self, QueueingModel, Saturation};

fn of<'a>(policy: &'a Policy, namespace: &str, model: &str) -> &'a ModelPolicy {
    policy.of(&GroupId::new(namespace, model))
}

fn zero(policy: &Policy, namespace: &str, model: &str) -> (bool, f64) {
    let ScaleToZero { enabled, retention } = policy.scale_to_zero(&GroupId::new(namespace, model));
    (enabled, retention.get())
}

const TUNED: &str = "kvCacheThreshold: 0.6\nqueueLengthThreshold: 8\npriority: 4\nstability: {dwell: 1m}\n";

#[test]
fn an_entry_that_sets_one_field_keeps_the_other_fields_of_the_default() {
    let (policy, problems) = load(&[(
        RELEASE,
        Saturation,
        &[
            ("default", TUNED),
            ("a", "model_id: m\nnamespace: llm\nscaleUpThreshold: 0.95\nstability: {tolerance: 0.3}\n"),
        ],
    )]);
    let model = of(&policy, "llm", "m");
    assert_eq!((model.saturation.kv_cache_threshold, model.saturation.queue_length_threshold), (0.6, 8.0));
    assert_eq!((model.priority, model.utilisation.up, model.utilisation.down), (4.0, 0.95, 0.70));
    assert_eq!((model.stability.dwell, model.stability.tolerance), (Seconds::whole(60), 0.3));
    assert_eq!(of(&policy, "chat", "m").utilisation.up, 0.85, "another namespace");
    assert_eq!(messages(&problems), [""; 0]);
}

#[test]
fn a_new_leading_analyzer_drops_the_secondary_analyzers_of_the_outer_scope() {
    let secondary = |entry: &str| {
        let entry = format!("model_id: m\nnamespace: llm\n{entry}");
        let entries = [("default", "analyzers: [{name: throughput, score: 2}]"), ("a", entry.as_str())];
        let (policy, problems) = load(&[(RELEASE, Saturation, &entries)]);
        assert_eq!(messages(&problems), [""; 0]);
        let model = of(&policy, "llm", "m");
        (model.analyzer, model.secondary.len())
    };
    assert_eq!(secondary("priority: 2"), (Analyzer::Saturation, 1));
    assert_eq!(secondary("analyzerName: saturation"), (Analyzer::Saturation, 1));
    assert_eq!(secondary("analyzerName: saturation-percent"), (Analyzer::SaturationPercent, 0));
    assert_eq!(
        secondary("analyzerName: throughput\nanalyzers: [{name: saturation}]"),
        (Analyzer::Throughput, 1)
    );
}

/// The keys that an API server accepts in a ConfigMap.
fn is_key(key: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    !key.is_empty() && key.len() <= 253 && key.bytes().all(plain)
}

#[test]
fn keys_of_model_entries_are_valid_in_a_configmap() {
    let entries = [
        ("default", TUNED),
        ("org_m.llm", "model_id: org/m\nnamespace: llm\npriority: 9"),
        ("b", "model_id: n\nnamespace: llm\npriority: 8"),
        ("org-m.chat", "priority: 7"),
    ];
    assert!(entries.iter().all(|(key, _)| is_key(key)) && !is_key("org/m#llm"));
    let (policy, problems) = load(&[(RELEASE, Saturation, &entries)]);
    assert_eq!((of(&policy, "llm", "org/m").priority, of(&policy, "llm", "n").priority), (9.0, 8.0));
    let messages = messages(&problems).join("\n");
    assert!(
        messages.contains("entry org-m.chat: model_id is missing"),
        "the key does not name the model: {messages}"
    );
}

#[test]
fn the_first_entry_of_a_model_is_used_and_one_without_a_model_left_out() {
    let (policy, problems) = load(&[(
        RELEASE,
        Saturation,
        &[
            ("a", "model_id: m\nnamespace: llm\npriority: 2"),
            ("b", "model_id: m\nnamespace: llm\npriority: 3"),
            ("c", "priority: 5"),
            ("d", "model_id: m\npriority: 5"),
        ],
    )]);
    assert_eq!(of(&policy, "llm", "m").priority, 2.0);
    let messages = messages(&problems).join("\n");
    for expected in [
        "entry b: it is about llm/m, as entry a is: must be one entry a model; it is left out",
        "entry c: model_id is missing",
        "entry d: namespace is missing",
    ] {
        assert!(messages.contains(expected), "{messages}");
    }
}

#[test]
fn thresholds_that_contradict_each_other_are_replaced_by_the_defaults_with_a_note() {
    let (policy, problems) = load(&[(
        RELEASE,
        Saturation,
        &[
            ("default", "scaleDownBoundary: 0.6\nkvSpareTrigger: 0.5\nanalyzers: [{name: throughput}]"),
            ("a", "model_id: m\nnamespace: llm\nscaleUpThreshold: 0.5\nkvCacheThreshold: 0.4"),
        ],
    )]);
    let model = of(&policy, "llm", "m");
    assert_eq!((model.utilisation.up, model.utilisation.down), (0.85, 0.70));
    assert_eq!((model.saturation.kv_cache_threshold, model.saturation.kv_spare_trigger), (0.80, 0.10));
    let messages = messages(&problems).join("\n");
    assert!(
        messages
            .contains("entry a: scaleUpThreshold 0.5 is not above scaleDownBoundary 0.6: 0.85 and 0.7 count"),
        "{messages}"
    );
    assert!(
        messages.contains("kvCacheThreshold 0.4 is out of range: must be at least kvSpareTrigger, 0.5"),
        "{messages}"
    );
    assert!(problems.iter().all(|problem| !problem.is_rejected));
}

#[test]
fn a_local_configmap_replaces_the_global_one() {
    let global = [
        ("default", "kvCacheThreshold: 0.6\nanalyzerName: saturation"),
        ("a", "model_id: m\nnamespace: llm\npriority: 9"),
    ];
    let (policy, problems) = load(&[
        (RELEASE, Saturation, &global),
        ("llm", Saturation, &[("default", "queueLengthThreshold: 2"), ("x", "model_id: n\npriority: 3")]),
        ("elsewhere", Saturation, &[("default", "nonsense")]),
    ]);
    let local = of(&policy, "llm", "m");
    assert_eq!((local.saturation.kv_cache_threshold, local.saturation.queue_length_threshold), (0.8, 2.0));
    assert_eq!((local.priority, of(&policy, "llm", "n").priority), (1.0, 3.0), "no merge");
    assert_eq!(local.analyzer, Analyzer::Saturation, "the analyzer is chosen by the global default");
    assert_eq!(of(&policy, "chat", "m").saturation.kv_cache_threshold, 0.6);
    assert_eq!(messages(&problems), [""; 0], "a namespace without variants is ignored");
}

#[test]
fn a_local_configmap_without_valid_entries_leaves_the_global_one_in_force() {
    let (policy, _) = load(&[
        (RELEASE, Saturation, &[("default", TUNED)]),
        ("llm", Saturation, &[]),
        ("chat", Saturation, &[("default", "kvCacheThreshold: 7")]),
    ]);
    assert!(policy.namespaces.is_empty(), "there is no valid entry");
    assert_eq!(of(&policy, "llm", "m").priority, 4.0);
}

#[test]
fn a_local_entry_cannot_be_about_another_namespace() {
    let (_, problems) =
        load(&[("llm", Saturation, &[("default", ""), ("a", "model_id: m\nnamespace: chat\npriority: 2")])]);
    let messages = messages(&problems).join("\n");
    assert!(
        messages.contains("ConfigMap llm/saturation, entry a: namespace \"chat\" is not that of the ConfigMap: must be \"llm\""),
        "{messages}"
    );
}

#[test]
fn limits_are_set_by_the_global_default_and_rescaling_also_by_a_local_default() {
    let (policy, problems) = load(&[
        (
            RELEASE,
            Saturation,
            &[("default", "enableLimiter: true"), ("a", "{model_id: m, namespace: llm, spend: 3}")],
        ),
        ("llm", Saturation, &[("default", "enableRescale: true")]),
        ("chat", Saturation, &[("default", "enableLimiter: true")]),
    ]);
    assert!(policy.limits.inventory && !policy.limits.rescale && policy.limits.spend.is_none());
    assert_eq!(policy.limits.rescale_namespaces.get("llm"), Some(&true));
    let messages = messages(&problems);
    assert!(
        messages.iter().all(|message| message.contains("limits have no effect here")) && messages.len() == 2,
        "{messages:?}"
    );
}

#[test]
fn compat_is_set_by_the_global_default_only() {
    let (policy, problems) = load(&[
        (
            RELEASE,
            Saturation,
            &[("default", "compat: upstream"), ("a", "{model_id: m, namespace: llm, compat: corrected}")],
        ),
        ("llm", Saturation, &[("default", "compat: corrected")]),
    ]);
    assert_eq!(policy.compat, Compat::Upstream);
    let messages = messages(&problems);
    assert!(
        messages.iter().all(|message| message.contains("compat has no effect here")) && messages.len() == 2,
        "{messages:?}"
    );
    let (policy, _) = load(&[(RELEASE, Saturation, &[("default", "priority: 2")])]);
    assert_eq!(policy.compat, Compat::Corrected, "by default");
}

#[test]
fn scale_to_zero_is_set_by_entry_then_model_then_default_then_flag() {
    let zero_map = [
        ("default", "enable_scale_to_zero: true\nretention_period: 5m"),
        ("a", "model_id: slow\nretention_period: 1h"),
        ("b", "model_id: never\nenable_scale_to_zero: false\nnamespace: chat"),
        ("c", "model_id: never\nenable_scale_to_zero: true"),
    ];
    let (policy, problems) = load(&[(RELEASE, ConfigMapKind::ScaleToZero, &zero_map)]);
    assert_eq!(zero(&policy, "llm", "any"), (true, 300.0));
    assert_eq!(
        (zero(&policy, "llm", "slow"), zero(&policy, "llm", "never")),
        ((true, 3600.0), (false, 300.0))
    );
    assert_eq!(problems.iter().filter(|problem| problem.is_rejected).count(), 1, "two entries of one model");
    let entry = "{model_id: slow, namespace: llm, scaleToZero: {enabled: false}}";
    let (policy, _) =
        load(&[(RELEASE, ConfigMapKind::ScaleToZero, &zero_map), (RELEASE, Saturation, &[("x", entry)])]);
    assert_eq!(zero(&policy, "llm", "slow"), (false, 3600.0));
    assert_eq!(zero(&policy, "chat", "slow"), (true, 3600.0));
    let default = "scaleToZero: {enabled: false}";
    let (policy, _) = load(&[
        (RELEASE, ConfigMapKind::ScaleToZero, &zero_map),
        (RELEASE, Saturation, &[("default", default)]),
    ]);
    assert_eq!(
        (zero(&policy, "llm", "slow"), zero(&policy, "llm", "any")),
        ((false, 3600.0), (false, 300.0))
    );
}

#[test]
fn the_default_entry_of_the_queueing_model_selects_it_for_every_model() {
    let saturation =
        [("default", "analyzers: [{name: throughput}]"), ("s", "{model_id: m, namespace: llm, priority: 2}")];
    let queueing = [
        ("default", "sloMultiplier: 4\ntuningEnabled: false\ntargetTTFT: 1\ntargetITL: 1"),
        ("q", "{model_id: m, namespace: llm, targetTTFT: 500, targetITL: 30, tuningEnabled: true}"),
    ];
    let (policy, problems) = load(&[(RELEASE, Saturation, &saturation), (RELEASE, QueueingModel, &queueing)]);
    let (any, model) = (of(&policy, "chat", "any"), of(&policy, "llm", "m"));
    assert_eq!(
        (any.analyzer, any.secondary.len(), model.analyzer),
        (Analyzer::QueueingModel, 0, Analyzer::QueueingModel)
    );
    assert_eq!((any.queueing.slo_multiplier, any.queueing.tuning, any.queueing.targets), (4.0, false, None));
    assert_eq!((model.priority, model.queueing.slo_multiplier, model.queueing.tuning), (2.0, 4.0, true));
    assert_eq!(model.queueing.targets, Some(LatencyTargets { ttft_ms: 500.0, itl_ms: 30.0 }));
    assert!(messages(&problems)[0].contains("targetTTFT and targetITL have no effect here"), "{problems:?}");
    let (policy, _) = load(&[(RELEASE, Saturation, &saturation), (RELEASE, QueueingModel, &queueing[1..])]);
    assert_eq!(
        of(&policy, "llm", "m").analyzer,
        Analyzer::Saturation,
        "without its default entry it is not selected"
    );
    assert!(of(&policy, "llm", "m").queueing.targets.is_some());
}

#[test]
fn an_invalid_entry_of_the_queueing_model_is_rejected() {
    for (text, expected) in [
        ("sloMultiplier: 1", "sloMultiplier 1 is out of range: must be above 1 and at most 1000"),
        ("targetTTFT: 5", "targetTTFT and targetITL belong together: must have both or neither"),
        (
            "targetTTFT: -5\ntargetITL: 3",
            "targetTTFT -5 is out of range: must be above 0 and at most 3600000 (milliseconds)",
        ),
        ("tuningEnabled: 3", "tuningEnabled is 3: must be true or false"),
    ] {
        let (policy, problems) = load(&[(RELEASE, QueueingModel, &[("default", text)])]);
        assert!(messages(&problems)[0].contains(expected), "{text}: {problems:?}");
        assert_eq!(of(&policy, "llm", "m").analyzer, Analyzer::Rate, "not selected");
    }
}
