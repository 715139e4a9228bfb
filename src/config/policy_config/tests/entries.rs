//! One entry: every field, and every kind of mistake.

use serde_json::{Value, json};
use wva_core::Policy;
use wva_core::model::Analyzer;

use super::{RELEASE, load, load_default, messages};
use crate::config::policy_config::ConfigMapKind;

/// The value of a policy at `path`.
fn at(policy: &Policy, path: &str) -> Value {
    let whole = serde_json::to_value(policy).unwrap();
    whole.pointer(path).cloned().unwrap_or_default()
}

#[test]
fn the_default_configmap_of_wva_without_an_analyzer_selects_v1() {
    let shipped =
        "kvCacheThreshold: 0.80\nqueueLengthThreshold: 5\nkvSpareTrigger: 0.1\nqueueSpareTrigger: 3\n";
    let (policy, problems) = load_default(shipped);
    let mut expected = Policy::default();
    expected.global.default.analyzer = Analyzer::SaturationPercent;
    expected.global.default.scale_to_zero = Some(wva_core::model::ScaleToZero::default());
    assert_eq!((policy, problems), (expected, vec![]));
}

#[test]
fn without_a_choice_the_rate_policy_decides() {
    let analyzer = |text: &str| load_default(text).0.global.default.analyzer;
    assert_eq!(load(&[]).0.global.default.analyzer, Analyzer::Rate);
    assert_eq!(
        ["{}", "priority: 2", "enableLimiter: true", "rate: {drain: 30s}"].map(analyzer),
        [Analyzer::Rate; 4]
    );
    let of_percent =
        ["kvCacheThreshold: 0.8", "queueLengthThreshold: 5", "kvSpareTrigger: 0.1", "queueSpareTrigger: 3"];
    assert_eq!(of_percent.map(analyzer), [Analyzer::SaturationPercent; 4]);
    assert_eq!(analyzer("analyzerName: ''"), Analyzer::SaturationPercent, "as in WVA");
    assert_eq!(analyzer("analyzerName: rate\nkvCacheThreshold: 0.8"), Analyzer::Rate);
    let llama = ("llama", "model_id: llama\nnamespace: llm\nkvSpareTrigger: 0.2");
    let (policy, _) = load(&[(RELEASE, ConfigMapKind::Saturation, &[("default", "priority: 2"), llama])]);
    let of = |model| policy.of(&wva_core::GroupId::new("llm", model)).analyzer;
    assert_eq!((of("llama"), of("another")), (Analyzer::SaturationPercent, Analyzer::Rate));
}

#[test]
fn the_newer_default_configmap_of_wva_selects_v2() {
    let shipped = "kvCacheThreshold: 0.80\nqueueLengthThreshold: 5\nkvSpareTrigger: 0.1\nqueueSpareTrigger: 3\n\
                   analyzerName: saturation\nscaleUpThreshold: 0.85\nscaleDownBoundary: 0.70\npriority: 1.0\n\
                   enableLimiter: false\nanalyzers:\n- name: saturation\n  score: 1.0\n- {name: throughput, enabled: false}\n";
    let (policy, problems) = load_default(shipped);
    let model = at(&policy, "/global/default");
    assert_eq!(problems, [""; 0]);
    assert_eq!((&model["analyzer"], &model["beside"]), (&json!("saturation"), &Value::Null));
    assert_eq!(
        (policy.limits.inventory, &model["utilisation"]),
        (false, &json!({ "up": 0.85, "down": 0.70 }))
    );
}

/// Entries of one field, where in the policy it goes, and what it becomes there.
type Row = (&'static str, &'static str, Value);

fn of_one_model() -> Vec<Row> {
    vec![
        ("kvCacheThreshold: 0.75", "/global/default/saturation/kvCacheThreshold", json!(0.75)),
        ("queueLengthThreshold: 9", "/global/default/saturation/queueLengthThreshold", json!(9.0)),
        ("kvSpareTrigger: 0", "/global/default/saturation/kvSpareTrigger", json!(0.0)),
        ("queueSpareTrigger: 1.5", "/global/default/saturation/queueSpareTrigger", json!(1.5)),
        (
            "analyzerName: saturation\nscaleUpThreshold: 0.9",
            "/global/default/utilisation",
            json!({ "up": 0.9, "down": 0.7 }),
        ),
        (
            "analyzerName: saturation\nscaleDownBoundary: 0.5",
            "/global/default/utilisation",
            json!({ "up": 0.85, "down": 0.5 }),
        ),
        ("priority: 7", "/global/default/priority", json!(7.0)),
        ("analyzerName: ''", "/global/default/analyzer", json!("saturation-percent")),
        ("analyzerName: queueing-model", "/global/default/analyzer", json!("queueing-model")),
        ("analyzerName: rate", "/global/default/analyzer", json!("rate")),
        ("analyzerName: inferno", "/global/default/analyzer", json!("inferno")),
        ("analyzerName: saturation-token-based", "/global/default/analyzer", json!("saturation")),
        ("analyzerName: weighted", "/global/default/utilisation", json!({ "up": 0.8, "down": 0.3 })),
        ("analyzers: [{name: throughput}]", "/global/default/analyzer", json!("saturation")),
        ("analyzers: [{name: saturation, score: 3}]", "/global/default/score", json!(3.0)),
        (
            "analyzers: [{type: throughput, name: mine, score: 2, scaleUpThreshold: 0.8}]",
            "/global/default/beside",
            json!([{ "analyzer": "throughput", "score": 2.0, "utilisation": { "up": 0.8, "down": 0.7 } }]),
        ),
        (
            "scaleToZero: {enabled: true}",
            "/global/default/scaleToZero",
            json!({ "enabled": true, "retention": 600.0 }),
        ),
        ("scaleToZero: {retentionPeriod: 1h30m}", "/global/default/scaleToZero/retention", json!(5400.0)),
    ]
}

fn of_numbers_that_move_and_limits() -> Vec<Row> {
    vec![
        ("rate: {surgeHeadroom: 1}", "/global/default/rate/surgeHeadroom", json!(1.0)),
        ("rate: {utilisation: 0.7, targetTTFT: 500}", "/global/default/rate/utilisation", json!(0.7)),
        ("rate: {targetTTFT: 500}", "/global/default/rate/ttftMs", json!(500.0)),
        ("rate: {targetITL: 30}", "/global/default/rate/itlMs", json!(30.0)),
        ("rate: {dwell: 10m, drain: 30s}", "/global/default/rate/dwell", json!(600.0)),
        ("rate: {drain: 30s}", "/global/default/rate/drain", json!(30.0)),
        ("rate: {startUp: 4m}", "/global/default/rate/startUp", json!(240.0)),
        ("stability: {upWindow: 90s}", "/global/default/stability/upWindow", json!(90.0)),
        ("stability: {downWindow: 5m}", "/global/default/stability/downWindow", json!(300.0)),
        (
            "stability: {upStep: {replicas: 4}}",
            "/global/default/stability/upStep",
            json!({ "replicas": 4, "percent": 0.0 }),
        ),
        (
            "stability: {downStep: {percent: 50}}",
            "/global/default/stability/downStep",
            json!({ "replicas": 1, "percent": 50.0 }),
        ),
        ("stability: {dwell: 2m, tolerance: 0.2}", "/global/default/stability/dwell", json!(120.0)),
        ("stability: {tolerance: 0}", "/global/default/stability/tolerance", json!(0.0)),
        ("enableLimiter: yes", "/limits/inventory", json!(true)),
        ("{enableLimiter: yes, failClosed: yes}", "/limits/failClosed", json!(true)),
        ("enableRescale: true", "/limits/rescale", json!(true)),
        ("spend: 120.5", "/limits/spend", json!(120.5)),
        ("compat: upstream-june", "/compat", json!("upstream-june")),
        (
            "power: {watts: 9000, perGpu: {H100: 700}}",
            "/limits/power",
            json!({ "watts": 9000.0, "perGpu": { "H100": 700.0 } }),
        ),
        (
            "{enableLimiter: true, limiters: [{type: quota, name: q, scope: cluster, quotas: {H100: 8, A100: -1}}]}",
            "/limits",
            json!({ "inventory": false, "rescale": false,
                    "quotas": [{ "scope": "cluster", "name": "q", "quotas": { "H100": 8, "A100": -1 } }] }),
        ),
        (
            "enableLimiter: true\nlimiters:\n- {type: quota, scope: namespace, exclude: [infra], namespaceQuotas: {default: {H100: 2}}}",
            "/limits/quotas/0",
            json!({ "scope": "namespace", "namespaceQuotas": { "default": { "H100": 2 } }, "exclude": ["infra"] }),
        ),
    ]
}

#[test]
fn every_field_reaches_the_policy() {
    let table = [of_one_model(), of_numbers_that_move_and_limits()].concat();
    for (text, path, expected) in table {
        let (policy, problems) = load_default(text);
        assert_eq!((at(&policy, path), problems), (expected, vec![]), "{text}");
    }
}

/// Invalid entries, and the message about each.
const INVALID: &[(&str, &str)] = &[
    ("kvCacheThreshold: 1.2", "kvCacheThreshold 1.2 is out of range: must be 0 to 1"),
    ("kvCacheThreshold: .nan", "kvCacheThreshold \".nan\" is not a number: must be a number, 0 to 1"),
    ("kvCacheThreshold: high", "kvCacheThreshold \"high\" is not a number: must be a number, 0 to 1"),
    ("kvCacheThreshold: '0.8'", "kvCacheThreshold \"0.8\" is not a number: must be a number"),
    ("kvCacheThreshold: {a: 1}", "kvCacheThreshold is a mapping of 1: must be a number, 0 to 1"),
    (
        "kvCacheThreshold: 0.05\nkvSpareTrigger: 0.1",
        "kvCacheThreshold 0.05 must be at least kvSpareTrigger 0.1",
    ),
    ("queueLengthThreshold: -1", "queueLengthThreshold -1 is out of range: must be 0 to 1e15"),
    ("kvSpareTrigger: -0.1", "kvSpareTrigger -0.1 is out of range: must be 0 to 1"),
    ("queueSpareTrigger: -3", "queueSpareTrigger -3 is out of range"),
    ("scaleUpThreshold: 1.01", "scaleUpThreshold 1.01 is out of range: must be above 0 and at most 1"),
    ("scaleDownBoundary: -0.2", "scaleDownBoundary -0.2 is out of range: must be above 0 and at most 1"),
    (
        "scaleUpThreshold: 0.6\nscaleDownBoundary: 0.6",
        "scaleUpThreshold 0.6 must be above scaleDownBoundary 0.6",
    ),
    ("priority: -1", "priority -1 is out of range: must be above 0"),
    ("compat: v1", "compat is \"v1\": must be one of corrected, upstream, upstream-june"),
    (
        "analyzerName: saturatoin",
        "analyzerName \"saturatoin\" is not an analyzer: must be one of rate, saturation-percent, saturation",
    ),
    ("analyzers: saturation", "analyzers is \"saturation\": must be a list"),
    ("analyzers: [throughput]", "analyzers[0] is \"throughput\": must be a mapping of fields"),
    (
        "analyzers: [{score: 1}]",
        "analyzers[0].name is missing: must be saturation, throughput or queueing-model",
    ),
    (
        "analyzers: [{name: weighted}]",
        "analyzers[0].name \"weighted\" is not an analyzer of capacity: must be saturation, throughput",
    ),
    ("analyzers: [{name: throughput}, {name: throughput}]", "analyzers names throughput twice"),
    ("analyzers: [{name: throughput, score: -1}]", "analyzers[0].score -1 is out of range"),
    ("analyzers: [{name: throughput, enabled: 1}]", "analyzers[0].enabled is 1: must be true or false"),
    (
        "kvCacheTreshold: 0.8",
        "kvCacheTreshold is not a field: must be one of kvCacheThreshold, queueLengthThreshold",
    ),
    ("stability: {window: 5m}", "stability.window is not a field: must be one of upWindow, downWindow"),
    (
        "stability: {downWindow: 5}",
        "stability.downWindow 5 has no unit: must be 0s to 24h, such as 90s, 10m or 1h30m",
    ),
    (
        "stability: {upStep: {replicas: 0}}",
        "stability.upStep.replicas 0 is out of range: must be a whole number, 1 to 10000",
    ),
    ("stability: {upStep: {replicas: 1.5}}", "stability.upStep.replicas 1.5 is out of range"),
    ("rate: {utilisation: 1.5}", "rate.utilisation 1.5 is out of range: must be above 0 and at most 1"),
    ("rate: {surgeHeadroom: -1}", "rate.surgeHeadroom -1 is out of range: must be 0 to 10"),
    ("rate: {drain: 0s}", "rate.drain \"0s\" is out of range"),
    ("stability: {tolerance: 2}", "stability.tolerance 2 is out of range: must be 0 to 1"),
    ("scaleToZero: true", "scaleToZero is true: must be a mapping of fields"),
    ("scaleToZero: {retentionPeriod: -5m}", "scaleToZero.retentionPeriod \"-5m\" is out of range"),
    ("enableLimiter: maybe", "enableLimiter is \"maybe\": must be true or false"),
    (
        "limiters: [{type: physical}]",
        "limiters[0].type is \"physical\": must be one of gpu-inventory, inventory, quota",
    ),
    ("limiters: [{type: quota}]", "limiters[0].scope is missing: must be cluster or namespace"),
    (
        "limiters: [{type: quota, scope: cluster, quotas: {H100: 1048577}}]",
        "limiters[0].quotas.H100 1048577 is out of range: must be a whole number, -1 to 1048576 (-1 is unlimited)",
    ),
    (
        "limiters: [{type: quota, scope: namespace, namespaceQuotas: {llm: {H100: -2}}}]",
        "limiters[0].namespaceQuotas.llm.H100 -2 is out of range",
    ),
    ("power: {watts: 1}", "power.watts and perGpu belong together"),
    ("spend: -1", "spend -1 is out of range: must be 0 to 1e9"),
    ("just text", "the entry is \"just text\": must be a mapping of fields"),
    ("[1, 2]", "the entry is a list of 2: must be a mapping of fields"),
    ("a: [", "the entry is no YAML document"),
    ("priority: 1\npriority: 2", "the entry is no YAML document: "),
    ("{a: &a [*a]}", "the entry is no YAML document"),
];

#[test]
fn an_invalid_field_is_rejected_with_its_name_its_value_and_the_range() {
    for (text, expected) in INVALID {
        let (policy, problems) = load_default(text);
        let prefix = "ConfigMap wva-system/saturation, entry default: ";
        assert!(
            matches!(&problems[..], [message] if message.contains(expected) && message.starts_with(prefix)),
            "{text}: {problems:?}"
        );
        assert!(problems[0].ends_with("; the program's defaults are in force"), "{problems:?}");
        assert_eq!(policy, load_default("").0, "{text}");
    }
}

#[test]
fn all_that_is_wrong_with_an_entry_is_told_at_once() {
    let (_, problems) = load_default("kvCacheThreshold: 2\npriority: true\nshards: 3\n");
    assert!(
        problems[0].contains("kvCacheThreshold 2") && problems[0].contains("priority is true"),
        "{problems:?}"
    );
    assert!(problems[0].contains("shards is not a field"), "{problems:?}");
}

#[test]
fn what_has_no_effect_is_told_and_the_entry_counts() {
    let table = [
        ("priority: 0", "priority 0 counts as left out"),
        ("limiters: [{type: gpu-inventory}]", "limiters has no effect without enableLimiter: true"),
        ("failClosed: true", "failClosed has no effect without enableLimiter: true"),
        ("analyzers: [{name: throughput, parameters: {a: 1}}]", "analyzers[0].parameters have no effect"),
        (
            "analyzerName: weighted\nanalyzers: [{name: throughput}]",
            "analyzers has no effect: weighted decides alone",
        ),
        ("analyzers: [{name: saturation, enabled: false}]", "saturation leads, so it cannot be switched off"),
        ("model_id: m", "model_id and namespace have no effect here"),
        ("scaleUpThreshold: 0.9", "thresholds have no effect: rate decides"),
        ("analyzerName: rate\nkvSpareTrigger: 0.2", "thresholds have no effect: rate decides"),
        (
            "{enableLimiter: true, limiters: [{type: gpu-inventory}, {type: quota, scope: cluster}]}",
            "limiters has quotas, which take the place of the inventory",
        ),
    ];
    for (text, expected) in table {
        let (_, problems) = load(&[(RELEASE, ConfigMapKind::Saturation, &[("default", text)])]);
        let [problem] = &problems.iter().collect::<Vec<_>>()[..] else { panic!("{text}: {problems:?}") };
        assert!(!problem.is_rejected && problem.text.contains(expected), "{text}: {problem}");
    }
}

#[test]
fn nothing_at_all_is_an_entry_that_leaves_everything_open() {
    for text in ["", "  \n", "# tuned later\n", "{}", "null", "---\n", "kvCacheThreshold:\n"] {
        assert_eq!(load_default(text).1, [""; 0], "{text:?}");
    }
}

#[test]
fn classes_of_service_and_costs_of_accelerators_are_read_as_wva_ships_them() {
    let premium = "name: Premium\npriority: 1\ndata:\n  - model: default/default\n    slo-tpot: 24\n    slo-ttft: 500\n\
                   \x20 - model: llama0-70b\n    slo-tpot: 80\n    slo-ttft: 500\n";
    let (policy, problems) = load(&[
        (
            RELEASE,
            ConfigMapKind::ServiceClasses,
            &[("premium.yaml", premium), ("free.yaml", "priority: 0\ndata: []\n")],
        ),
        (
            RELEASE,
            ConfigMapKind::AcceleratorCosts,
            &[("A100", r#"{"device": "NVIDIA-A100-PCIE-80GB", "cost": "40.00"}"#)],
        ),
    ]);
    let target = |model, ttft, itl| json!({ "model": model, "latency": { "ttftMs": ttft, "itlMs": itl } });
    assert_eq!(
        at(&policy, "/serviceClasses"),
        json!([
            { "name": "Free", "priority": 100 },
            { "name": "Premium", "priority": 1,
              "targets": [target("default/default", 500.0, 24.0), target("llama0-70b", 500.0, 80.0)] },
        ])
    );
    assert_eq!(
        at(&policy, "/accelerators"),
        json!({ "A100": { "device": "NVIDIA-A100-PCIE-80GB", "cost": 40.0 } })
    );
    let problems = messages(&problems);
    assert!(
        matches!(&problems[..], [message] if message.contains("priority is not a whole number from 1 to 100")),
        "{problems:?}"
    );
}

#[test]
fn an_invalid_class_or_cost_is_left_out() {
    let (policy, problems) = load(&[
        (
            RELEASE,
            ConfigMapKind::ServiceClasses,
            &[("gold", "data: [{slo-ttft: 1, slo-tpot: 1}]"), ("ok", "name: Ok")],
        ),
        (
            RELEASE,
            ConfigMapKind::AcceleratorCosts,
            &[("H100", "{}"), ("L4", "cost: cheap"), ("T4", "cost: 1")],
        ),
    ]);
    assert_eq!((policy.service_classes.len(), policy.accelerators.len()), (1, 1));
    let problems = messages(&problems).join("\n");
    for expected in [
        "entry gold: data[0].model is missing; it is left out",
        "entry H100: cost is missing: must be a number, 0 to 1e9; it is left out",
        "entry L4: cost \"cheap\" is not a number",
    ] {
        assert!(problems.contains(expected), "{problems}");
    }
}
