//! The house rules that a compiler does not know: who may import whom, how long things get, what core may depend on.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// No file is longer than a reader's patience.
const MAX_FILE_LINES: usize = 500;
/// No function is longer than a screen.
const MAX_FUNCTION_LINES: usize = 70;

/// Room, the rooms of ours it may use, and the crates it must not know.
const ROOMS: &[(&str, &[&str], &[&str])] = &[
    ("config", &[], &["kube", "axum", "reqwest", "tokio"]),
    ("telemetry", &[], &["kube", "axum", "reqwest"]),
    ("engine", &["telemetry"], &["kube", "k8s_openapi", "axum", "hyper", "reqwest", "prometheus_http_query"]),
    ("collect", &["engine", "telemetry"], &["kube", "k8s_openapi", "axum"]),
    ("cluster", &["config", "engine", "telemetry"], &["axum", "reqwest", "prometheus_http_query"]),
    (
        "policy",
        &["cluster", "config", "engine", "telemetry"],
        &["kube", "k8s_openapi", "axum", "hyper", "reqwest", "prometheus_http_query"],
    ),
    ("record", &["engine"], &["kube", "k8s_openapi", "axum", "reqwest"]),
    ("serve", &["engine", "record", "telemetry"], &["kube", "prometheus_http_query"]),
    ("simulate", &["config", "record"], &["kube", "k8s_openapi", "axum", "hyper", "reqwest", "tokio"]),
];

/// Pure packages and all that their manifests may name.
const PURE_PACKAGES: &[(&str, &[&str])] = &[
    ("src/core", &["jiff", "serde", "smol_str", "thiserror"]),
    ("src/sim", &["jiff", "serde", "smol_str", "thiserror", "wva-core"]),
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(below: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![below.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    assert!(!files.is_empty(), "no Rust file below {}", below.display());
    files
}

fn all_rust_files() -> Vec<PathBuf> {
    ["src", "tests"].iter().flat_map(|folder| rust_files(&root().join(folder))).collect()
}

/// True when `code` has a path that begins with `name`: followed by `::`, `;` or a space, and no part of a longer word.
fn names(code: &str, name: &str) -> bool {
    let word = |letter: char| letter.is_alphanumeric() || letter == '_';
    code.match_indices(name).any(|(at, _)| {
        let (before, after) = (&code[..at], &code[at + name.len()..]);
        let alone = !before.ends_with(word) && !before.ends_with("::") && !after.starts_with(word);
        alone && (after.starts_with("::") || before.trim_start() == "use ")
    })
}

#[test]
fn no_room_imports_a_room_it_must_not_know() {
    let rooms: BTreeSet<&str> = ROOMS.iter().map(|(room, ..)| *room).chain(["app", "cmd"]).collect();
    let mut wrong = Vec::new();
    for (room, allowed, banned) in ROOMS {
        for file in rust_files(&root().join("src").join(room)) {
            for (number, line) in fs::read_to_string(&file).unwrap().lines().enumerate() {
                let code = line.split("//").next().unwrap_or_default();
                let others = rooms.iter().filter(|name| *name != room && !allowed.contains(name));
                let ours = others.filter(|name| names(code, &format!("crate::{name}")));
                let theirs = banned.iter().filter(|name| names(code, name));
                // A grouped import would hide which rooms it names.
                assert!(!code.contains("crate::{"), "{}:{}: one `use` a room", file.display(), number + 1);
                for name in ours.chain(theirs) {
                    wrong.push(format!("{}:{}: {room} must not know {name}", file.display(), number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_pure_packages_cannot_express_io() {
    for (folder, dependencies) in PURE_PACKAGES {
        assert_pure(&root().join(folder), dependencies);
    }
}

fn assert_pure(package: &Path, dependencies: &[&str]) {
    let manifest = fs::read_to_string(package.join("Cargo.toml")).unwrap();
    let section = manifest.split("[dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
    let lines = section.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let named: Vec<&str> = lines.map(|line| line.split(['.', ' ', '=']).next().unwrap()).collect();
    assert_eq!(named, dependencies);
    for file in rust_files(package) {
        let text = fs::read_to_string(&file).unwrap();
        for banned in [
            "std::fs",
            "std::net",
            "std::env",
            "std::thread",
            "std::process",
            "std::io",
            "time::Instant",
            "SystemTime",
        ] {
            let example_or_test = file
                .components()
                .any(|part| ["examples", "tests"].map(Path::new).iter().any(|dir| part.as_os_str() == *dir));
            assert!(example_or_test || !text.contains(banned), "{} names {banned}", file.display());
        }
    }
}

#[test]
fn every_file_says_what_it_is_and_stays_short() {
    for file in all_rust_files() {
        let text = fs::read_to_string(&file).unwrap();
        let lines = text.lines().count();
        assert!(lines <= MAX_FILE_LINES, "{} has {lines} lines: split it", file.display());
        assert!(text.starts_with("//!"), "{} does not say what it is", file.display());
    }
}

#[test]
fn no_function_is_longer_than_a_screen() {
    let mut long = Vec::new();
    for file in all_rust_files() {
        let text = fs::read_to_string(&file).unwrap();
        let mut open: Option<(usize, usize)> = None;
        for (number, line) in text.lines().enumerate() {
            let indent = line.len() - line.trim_start().len();
            let word = line.trim_start();
            let starts = [
                "fn ",
                "pub fn ",
                "const fn ",
                "pub const fn ",
                "async fn ",
                "pub async fn ",
                "pub(crate) fn ",
                "pub(super) fn ",
            ];
            if open.is_none() && starts.iter().any(|start| word.starts_with(start)) && !word.ends_with(';') {
                open = Some((number, indent));
            }
            if let Some((first, depth)) = open.filter(|(first, depth)| {
                indent == *depth && word.starts_with('}') || (*first == number && word.ends_with('}'))
            }) {
                let _ = depth;
                if number - first + 1 > MAX_FUNCTION_LINES {
                    long.push(format!("{}:{}: {} lines", file.display(), first + 1, number - first + 1));
                }
                open = None;
            }
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn nothing_is_left_for_later() {
    let marks = [
        ["TO", "DO"],
        ["FIX", "ME"],
        ["XX", "X:"],
        ["todo", "!("],
        ["unimplemented", "!("],
        ["#[ig", "nore"],
    ];
    for file in all_rust_files() {
        let text = fs::read_to_string(&file).unwrap();
        for mark in marks.map(|halves| halves.concat()) {
            assert!(!text.contains(&mark), "{} contains {mark}", file.display());
        }
    }
}

#[test]
fn one_tls_provider_one_hyper_and_no_openssl() {
    let cargo = std::process::Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--edges", "normal", "--prefix", "none", "--format", "{p}"])
        .current_dir(root())
        .output()
        .unwrap();
    let tree = String::from_utf8(cargo.stdout).unwrap();
    let versions = |name: &str| {
        let named = tree.lines().filter_map(|line| line.split_once(' ')).filter(|(one, _)| *one == name);
        named.filter_map(|(_, rest)| rest.split(' ').next()).collect::<BTreeSet<_>>().len()
    };
    for name in ["hyper", "rustls", "aws-lc-rs", "axum", "http", "kube-client", "reqwest"] {
        assert_eq!(versions(name), 1, "{name} must resolve to one version");
    }
    for name in ["ring", "openssl-sys", "native-tls", "rustls-pemfile", "serde_yaml"] {
        assert_eq!(versions(name), 0, "{name} must not be in the tree");
    }
}
