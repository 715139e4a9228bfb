//! The program as WVA's manifests start theirs: with their arguments, variables and configuration file.

use std::path::PathBuf;
use std::process::Command;

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
    for hidden in ["--leader-election", "--health-probe", "--metrics-", "--webhook", "--zap-", "-v,"] {
        assert!(!help.contains(hidden), "{hidden}: {help}");
    }
}

#[tokio::test]
async fn the_arguments_of_wvas_chart_start_the_program() {
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
    let process = Process::start_with_objects("wva-chart", &arguments, &[]).await;
    let log = process.log();
    assert!(log.contains("GLOBAL_OPT_INTERVAL"), "{log}");
    let lease =
        process.api.objects.get("/apis/coordination.k8s.io/v1/namespaces/wva/leases/72dd1cf1.llm-d.ai");
    assert_eq!(lease.unwrap()["spec"]["leaseDurationSeconds"], 60);
    std::fs::remove_file(config).unwrap();
}
