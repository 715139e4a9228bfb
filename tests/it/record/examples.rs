//! Every example of every `--help`, run as it stands. What it names, files, a cluster or a server, it gets from here.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::task::spawn_blocking;

use super::material::{Folder, lines, scenarios, stream_of, wva};
use super::served::recorded;
use crate::serve::pki::{Authority, SERVICE};
use crate::serve::process::kubeconfig;
use crate::serve::reviewing_api_server::ReviewingApiServer;

/// Ten minutes of little load on one variant.
const SCENARIO: &str = "\
about: an example
load:
  tokens: {prompt: 1000, output: 100}
  rate: [{rps: 2, for: 10m}]
variants: [{name: a, physics: {preset: h100-8b-tp1}, startUp: 40s, max: 2}]
";
/// A ConfigMap as it is checked before it is applied.
const CONFIG_MAP: &str = "{apiVersion: v1, kind: ConfigMap, metadata: {name: wva-saturation-scaling-config}, data: {default: \"analyzerName: rate\"}}\n";
const EARLY_POLICY: &str = "global: {default: {saturation: {kvSpareTrigger: 0.2}}}\n";
/// Where `--trace` is given, the scenario's own rate does not count.
const TRACE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
    2023-11-16 18:17:03.0000000,4808,10\n2023-11-16 18:17:04.5000000,3180,8\n2023-11-16 18:18:04.0000000,110,27\n";
/// A column of remarks behind an example is so far away from it.
const GAP: &str = "    ";

/// What `--help` of `words` says.
fn help(words: &[String]) -> String {
    let words: Vec<_> = words.iter().map(String::as_str).chain(["--help"]).collect();
    let output = wva(&words);
    assert_eq!(output.code, 0, "{words:?}: {}", output.err);
    output.out
}

/// The words of every command and subcommand, as the helps list them.
fn commands() -> Vec<Vec<String>> {
    let (mut all, mut open) = (Vec::new(), vec![Vec::new()]);
    while let Some(words) = open.pop() {
        let text = help(&words);
        let listed = text.lines().skip_while(|line| *line != "Commands:").skip(1);
        let listed = listed.take_while(|line| !line.is_empty());
        for name in listed.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help") {
            open.push([&words[..], &[name.to_owned()]].concat());
        }
        all.push(words);
    }
    all
}

/// The examples in a help: indented lines that begin with a program, and those that follow a backslash.
fn examples(text: &str) -> Vec<String> {
    let programs = ["wva ", "echo ", "curl ", "kubectl "];
    let (mut found, mut open) = (Vec::<String>::new(), false);
    for line in text.lines() {
        let begins = programs
            .iter()
            .any(|program| line.strip_prefix("  ").is_some_and(|line| line.starts_with(program)));
        let code = line.trim_start().split(GAP).next().unwrap_or_default();
        if open {
            *found.last_mut().unwrap() += code.trim_end_matches('\\');
        } else if begins {
            found.push(code.trim_end_matches('\\').into());
        }
        open = (open || begins) && code.ends_with('\\');
    }
    found
}

/// A program that says what is in `file`, whatever it is asked.
fn stand_in(folder: &Folder, name: &str, file: &Path) {
    let program = folder.file(name, format!("#!/bin/sh\ncat {}\n", file.display()).as_bytes());
    std::fs::set_permissions(program, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// All that the examples name.
fn material(folder: &Folder) {
    let text = std::fs::read_to_string(scenarios().join("fresh-busy-goes-up.json")).unwrap();
    let evaluations = stream_of(&text.replace("default/", "llm/"), 2);
    let recording = folder.file("wva-20261121T120000.000000Z-wva-0.jsonl", &lines(&evaluations));
    folder.file("snapshot.json", &serde_json::to_vec(&evaluations[0].snapshot).unwrap());
    folder.file("early.yaml", EARLY_POLICY.as_bytes());
    folder.file("wva-saturation-scaling-config.yaml", CONFIG_MAP.as_bytes());
    for name in ["two-variants.yaml", "mine.yaml"] {
        folder.file(name, SCENARIO.as_bytes());
    }
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(TRACE.as_bytes()).unwrap();
    folder.file("azure_llm_2023_code.csv.gz", &packed.finish().unwrap());
    let mut table = String::from("prompt_size,batch_size,token_size,prompt_time,token_time\n");
    for (prompt, batch) in
        [(512, 1), (4096, 1), (8192, 1), (512, 8), (512, 32), (128, 1), (4096, 4), (1024, 64)]
    {
        let (p, b) = (f64::from(prompt), f64::from(batch));
        let step = 8.0 + 0.2 * b + 1e-4 * b * (p + 64.0);
        table += &format!("{prompt},{batch},128,{},{step}\n", 8.2 + 0.0501 * p);
    }
    folder.file("measured.csv", table.as_bytes());
    stand_in(folder, "curl", &recording);
    let installation = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/migrate/chart-0.5.yaml");
    let text = std::fs::read(&installation).unwrap();
    std::fs::create_dir(folder.path().join("manifests")).unwrap();
    for name in ["all.yaml", "manifests/wva.yaml", "more.yaml", "releases.yaml"] {
        folder.file(name, &text);
    }
    stand_in(folder, "kubectl", &installation);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_wva"), folder.path().join("wva")).unwrap();
}

/// What an example came to, as a shell runs it.
#[expect(clippy::disallowed_methods, reason = "the shell's search path")]
fn run(folder: &Path, example: &str) -> Result<(), String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("bash")
        .args(["-o", "pipefail", "-e", "-c", example])
        .current_dir(folder)
        .env("PATH", format!("{}:{path}", folder.display()))
        .env("KUBECONFIG", folder.join("kubeconfig"))
        .output()
        .map_err(|error| error.to_string())?;
    // What a check finds is its answer, and the stand-in cluster is no complete installation.
    let is_finding = example.starts_with("wva check") && output.status.code() == Some(1);
    if output.status.success() || is_finding {
        return Ok(());
    }
    Err(format!("{example}\n{}: {}", output.status, String::from_utf8_lossy(&output.stderr)))
}

#[tokio::test]
async fn every_example_of_every_help_runs_as_it_stands() {
    let recorded = recorded().await;
    recorded.evaluate(2).await;
    let server = format!("https://127.0.0.1:{}", recorded.server.address.port());
    let authority = recorded.server.shared_ca.pem();
    let authorities = ["front-proxy-ca", "kubernetes"].map(Authority::new);
    let cluster = ReviewingApiServer::start(&authorities[0], &authorities[1], &[]).await;
    let failed = spawn_blocking(move || {
        let folder = Folder::new();
        material(&folder);
        folder.file("ca.crt", authority.as_bytes());
        folder.file("token", b"good\n");
        folder.file("kubeconfig", kubeconfig(cluster.address).as_bytes());
        let commands = commands();
        let found: BTreeSet<String> = commands.iter().flat_map(|words| examples(&help(words))).collect();
        assert!(commands.len() >= 8 && found.len() >= 12, "{commands:?} {found:#?}");
        // Names of a cluster and a machine that are not here.
        let here = |example: &str| {
            let example = example.replace("https://localhost:8443", &server);
            example.replace("wva.wva-system.svc", SERVICE).replace("/var/lib/wva/", "")
        };
        found.iter().filter_map(|example| run(folder.path(), &here(example)).err()).collect::<Vec<_>>()
    });
    let failed = failed.await.unwrap();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
