//! The chart and the program agree: every flag and variable that a template sets exists, every name that it grants is used.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use wva::cluster::apiservice::NAMES;
use wva::cluster::state::object_names;

fn read(path: &str) -> String {
    fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

fn help() -> String {
    let shown = Command::new(env!("CARGO_BIN_EXE_wva")).args(["serve", "--help"]).output().unwrap();
    String::from_utf8(shown.stdout).unwrap()
}

#[test]
fn every_flag_and_variable_of_the_chart_exists() {
    let (template, help) = (read("charts/wva/templates/deployment.yaml"), help());
    let hidden = ["POD_IP", "MIMALLOC_PURGE_DELAY"]; // for the chart and the allocator only, so not in the help
    let lines = || template.lines().map(str::trim);
    let word = |text: &str| text.split(['=', ',', ' ']).next().unwrap_or_default().to_owned();
    let flags: Vec<String> = lines().filter_map(|line| line.strip_prefix("- --")).map(word).collect();
    let variables: Vec<String> =
        lines().filter_map(|line| line.strip_prefix("- {name: ")).map(word).collect();
    let variables: Vec<_> = variables
        .into_iter()
        .filter(|name| name.chars().all(|one| one.is_ascii_uppercase() || one == '_'))
        .collect();
    assert!(flags.len() >= 8 && variables.len() >= 15, "{flags:?} {variables:?}");
    for flag in flags {
        assert!(
            help.contains(&format!("--{flag}")),
            "the chart sets --{flag}, which `wva serve` does not have"
        );
    }
    for name in variables.iter().filter(|name| !hidden.contains(&name.as_str())) {
        assert!(
            help.contains(&format!("[env: {name}=")),
            "the chart sets {name}, which `wva serve` does not read"
        );
    }
}

#[test]
fn the_chart_grants_every_state_object_by_name() {
    let manifest = read("manifests/wva.yaml");
    for name in object_names("wva") {
        assert!(manifest.contains(&name), "{name} is not granted");
    }
}

#[test]
fn the_chart_grants_every_apiservice_by_name_and_writing_only_to_its_own() {
    let manifest = read("manifests/wva.yaml");
    let rules = manifest.split("  - apiGroups: [apiregistration.k8s.io]").skip(1);
    let rules: Vec<_> = rules.map(|rule| rule.split("  - apiGroups:").next().unwrap()).collect();
    let [reading, writing] = rules[..] else { panic!("{rules:?}") };
    for name in NAMES {
        assert!(reading.contains(name), "{name} is not granted");
    }
    assert!(reading.contains("[list, watch]") && writing.contains("verbs: [patch]"), "{rules:?}");
    assert!(!writing.contains("custom"), "the default install owns no custom metrics: {writing}");
}
