//! The program as WVA's manifests start theirs: with their arguments, variables and configuration file.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use super::process::Process;

/// Runs the program without a cluster, which ends it once the configuration is valid. Returns its exit code and its log.
fn run(words: &[&str], variables: &[(&str, &str)]) -> (i32, String) {
    let program = Command::new(env!("CARGO_BIN_EXE_wva"))
        .args(words)
        .env_clear()
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    (program.status.code().unwrap(), String::from_utf8(program.stderr).unwrap())
}

/// A configuration file with this text.
fn file(name: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("wva-legacy-{name}-{}.yaml", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

const NO_CLUSTER: &str = "not in a cluster";

#[test]
fn settings_without_effect_are_named_once_with_the_reason() {
    let arguments = ["--leader-elect", "--health-probe-bind-address=:8081", "--max-concurrent-reconciles=10"];
    let variables = [
        ("LEADER_ELECT", ""),
        ("WVA_LIMITED_MODE", "true"),
        ("PROMETHEUS_ALLOW_HTTP", "true"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317"),
        ("OTEL_SERVICE_NAME", "wva"),
    ];
    let (code, log) = run(&arguments, &variables);
    assert!(code == 1 && log.contains(NO_CLUSTER), "{code}: {log}");
    for (name, why) in [
        ("--leader-elect", "one instance always decides, and all of them answer"),
        ("--health-probe-bind-address", "health is on the secure port"),
        ("--max-concurrent-reconciles", "one evaluation covers all variants"),
        ("WVA_LIMITED_MODE", "see enableLimiter in the saturation ConfigMap"),
        ("PROMETHEUS_ALLOW_HTTP", "an http URL needs no permission"),
        ("OTEL_*", "no traces are exported"),
    ] {
        let named = log.lines().filter(|line| line.contains(&format!("name={name:?}")));
        let named: Vec<_> = named.collect();
        assert!(named.len() == 1 && named[0].contains(why), "{name}: {log}");
    }
    assert_eq!(log.matches("this setting has no effect").count(), 6, "an empty variable is unset: {log}");
}

#[test]
fn a_variable_takes_precedence_over_the_file_unless_it_is_empty() {
    let path = file("precedence", "WVA_SCALE_TO_ZERO: maybe\n");
    let words = ["--config-file", path.to_str().unwrap()];
    let (code, log) = run(&words, &[("WVA_SCALE_TO_ZERO", "true")]);
    assert!(code == 1 && log.contains(NO_CLUSTER), "{code}: {log}");
    let (code, log) = run(&words, &[("WVA_SCALE_TO_ZERO", "")]);
    let expected = format!(
        "wva: --config-file {}: WVA_SCALE_TO_ZERO \"maybe\": must be true or false\n",
        path.display()
    );
    assert_eq!((code, log), (64, expected));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn help_names_wvas_flags_in_one_line_only() {
    let help = Command::new(env!("CARGO_BIN_EXE_wva")).args(["serve", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let hint = help.split("\n\n").find(|text| text.contains("--leader-elect")).unwrap();
    assert!(hint.contains("--config-file") && hint.contains("docs/configuration.md"), "{hint}");
    for hidden in [
        "--leader-election",
        "--health-probe",
        "--metrics-bind",
        "--metrics-cert",
        "--webhook",
        "--zap-",
        "-v,",
    ] {
        assert!(!help.contains(hidden), "{hidden}: {help}");
    }
}

#[tokio::test]
async fn the_arguments_of_wvas_chart_start_the_program_with_the_configmap_of_that_chart() {
    let config = file("chart", "GLOBAL_OPT_INTERVAL: \"60s\"\nWVA_SCALE_TO_ZERO: \"true\"\n");
    let arguments = [
        "--leader-elect=true",
        "--health-probe-bind-address=:8081",
        "--config-file",
        config.to_str().unwrap(),
        "--metrics-bind-address=:8443",
        "-metrics-secure=true",
        "-leader-election-lease-duration=60s",
        "-leader-election-renew-deadline=50s",
        "-leader-election-retry-period=10s",
    ];
    let metadata = json!({
        "namespace": "wva", "name": "prod-workload-variant-autoscaler-wva-saturation-scaling-config", "uid": "c"
    });
    let data = json!({ "default": "kvCacheThreshold: 0.6\n" });
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data });
    let process = Process::start_with_objects("wva-chart", &arguments, &[("/api/v1/configmaps", map)]).await;
    let log = process.log();
    assert!(log.contains("global.default.saturation.kvCacheThreshold: 0.8 → 0.6"), "{log}");
    assert!(log.contains("GLOBAL_OPT_INTERVAL"), "{log}");
    assert_eq!(lease_duration(&process), 60);
    std::fs::remove_file(config).unwrap();
}

/// A cluster with a main ConfigMap.
async fn with_main_config_map(name: &str, arguments: &[&str], map: &str, data: Value) -> Process {
    let metadata = json!({ "namespace": "wva", "name": map, "uid": "m" });
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data });
    Process::start_with_objects(name, arguments, &[("/api/v1/configmaps", map)]).await
}

/// The duration of the Lease, seconds.
fn lease_duration(process: &Process) -> Value {
    let lease = "/apis/coordination.k8s.io/v1/namespaces/wva/leases/72dd1cf1.llm-d.ai";
    process.api.objects.get(lease).unwrap()["spec"]["leaseDurationSeconds"].clone()
}

#[tokio::test]
async fn wvas_main_configmap_sets_what_neither_a_flag_nor_a_variable_sets() {
    let data = json!({
        "LEADER_ELECTION_LEASE_DURATION": "30s", "LEADER_ELECTION_RETRY_PERIOD": "1s", "GLOBAL_OPT_INTERVAL": "60s",
        "LOG_LEVEL": "error", "WVA_SCALE_TO_ZERO": "maybe"
    });
    let flags = ["--main-config-map=prod-variantautoscaling-config", "--lease-retry-period=3s"];
    let process = with_main_config_map("wva-main", &flags, "prod-variantautoscaling-config", data).await;
    assert_eq!(lease_duration(&process), 30);
    let log = process.log();
    assert!(log.contains("settings are read from the main ConfigMap"), "{log}");
    let origin = "ConfigMap wva/prod-variantautoscaling-config";
    for name in ["GLOBAL_OPT_INTERVAL", "LOG_LEVEL"] {
        let named = format!("this setting has no effect name={name:?} origin={origin:?}");
        assert_eq!(log.matches(&named).count(), 1, "{name}: {log}");
    }
    let bad = format!("{origin}: WVA_SCALE_TO_ZERO \"maybe\": must be true or false");
    assert_eq!(log.matches(&bad).count(), 1, "a bad value of a ConfigMap does not stop the start: {log}");
}

#[tokio::test]
async fn a_main_configmap_that_nobody_named_cannot_redirect_the_token() {
    let data =
        json!({ "LEADER_ELECTION_LEASE_DURATION": "30s", "PROMETHEUS_BASE_URL": "https://attacker.llm" });
    let process = with_main_config_map("wva-main-planted", &[], "wva-variantautoscaling-config", data).await;
    assert_eq!(lease_duration(&process), 15);
    assert!(!process.log().contains("attacker"), "{}", process.log());
}

#[tokio::test]
async fn a_main_configmap_that_does_not_exist_is_named_and_the_program_starts() {
    let flags = ["--main-config-map=missing"];
    let process = Process::start_with_objects("wva-main-missing", &flags, &[]).await;
    let named = "there is no such ConfigMap: create it, or remove --main-config-map (CONFIG_MAP_NAME)";
    assert!(process.log().contains(named), "{}", process.log());
}
