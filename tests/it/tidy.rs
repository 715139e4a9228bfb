//! The house rules that a compiler does not know: who may import whom, how long things get, what core may depend on.

mod imports;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use imports::Imports;
use syn::visit::{self, Visit};

const MAX_FILE_LINES: usize = 500;
/// From `fn` to the closing brace.
const MAX_FUNCTION_LINES: usize = 70;

/// Room, the rooms of ours it may use, and the crates it must not know.
const ROOMS: &[(&str, &[&str], &[&str])] = &[
    ("config", &[], &["kube", "axum", "reqwest", "tokio"]),
    ("telemetry", &[], &["kube", "axum", "reqwest"]),
    ("engine", &["telemetry"], &["kube", "k8s_openapi", "axum", "hyper", "reqwest", "prometheus_http_query"]),
    ("collect", &["engine", "telemetry"], &["kube", "k8s_openapi", "axum"]),
    ("cluster", &["config", "engine", "lint", "telemetry"], &["axum", "reqwest", "prometheus_http_query"]),
    ("lint", &[], &["kube", "axum", "hyper", "reqwest", "tokio", "prometheus_http_query"]),
    (
        "policy",
        &["cluster", "config", "engine", "telemetry"],
        &["kube", "k8s_openapi", "axum", "hyper", "reqwest", "prometheus_http_query"],
    ),
    ("record", &["engine"], &["kube", "k8s_openapi", "axum", "reqwest"]),
    (
        "explain",
        &["cluster", "collect", "engine", "record"],
        &["kube", "k8s_openapi", "axum", "hyper", "reqwest", "tokio", "prometheus_http_query"],
    ),
    ("serve", &["engine", "explain", "record", "telemetry"], &["kube", "prometheus_http_query"]),
    (
        "rules",
        &["collect", "engine", "serve", "telemetry"],
        &["kube", "k8s_openapi", "axum", "hyper", "reqwest", "prometheus_http_query"],
    ),
    (
        "otlp",
        &["collect", "engine", "serve"],
        &["kube", "k8s_openapi", "axum", "hyper", "prometheus_http_query"],
    ),
    (
        "pass_through",
        &["collect", "serve", "telemetry"],
        &["kube", "k8s_openapi", "hyper", "prometheus_http_query"],
    ),
    (
        "migrate",
        &["cluster", "config", "lint", "serve"],
        &["kube", "axum", "hyper", "reqwest", "tokio", "prometheus_http_query"],
    ),
    ("simulate", &["config", "record"], &["kube", "k8s_openapi", "axum", "hyper", "reqwest", "tokio"]),
];

/// Pure packages and all that their manifests may name.
const PURE_PACKAGES: &[(&str, &[&str])] = &[
    ("src/core", &["jiff", "serde", "smol_str", "thiserror"]),
    ("src/sim", &["jiff", "serde", "smol_str", "thiserror", "wva-core"]),
];

/// Files that import each other in a cycle, with the reason.
const NAMED_CYCLES: &[&str] = &[
    // One checker in two files, which share what they ask of a sample.
    "check, check::fits",
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

fn imports_of_the_program() -> Imports {
    Imports::read(&root().join("src"), &["core", "sim"])
}

#[test]
fn no_room_imports_a_room_it_must_not_know() {
    let imports = imports_of_the_program();
    let rooms: BTreeSet<&str> = ROOMS.iter().map(|(room, ..)| *room).chain(["app", "cmd"]).collect();
    let mut violations = Vec::new();
    for (room, allowed, banned) in ROOMS {
        let unknown_rooms = rooms.iter().filter(|name| *name != room && !allowed.contains(name));
        let rooms = unknown_rooms.map(|target| (target, imports.users_of_room(room, target)));
        let crates = banned.iter().map(|target| (target, imports.users_of_crate(room, target)));
        for (target, users) in rooms.chain(crates) {
            violations.extend(users.iter().map(|module| format!("{module} must not know {target}")));
        }
    }
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

#[test]
fn no_modules_inside_a_room_import_each_other_in_a_cycle() {
    let imports = imports_of_the_program();
    let mut cycles = Vec::new();
    for room in ROOMS.iter().map(|(room, ..)| *room).chain(["app", "cmd"]) {
        cycles.extend(imports.cycles_between_children(&[room]));
    }
    for (package, _) in PURE_PACKAGES {
        cycles.extend(
            Imports::read(&root().join(package), &["tests", "benches", "examples"])
                .cycles_between_children(&[]),
        );
    }
    assert!(cycles.is_empty(), "{}", cycles.join("\n"));
}

#[test]
fn no_other_files_import_each_other_in_a_cycle() {
    let mut cycles = imports_of_the_program().cycles_between_files();
    for (package, _) in PURE_PACKAGES {
        let imports = Imports::read(&root().join(package), &["tests", "benches", "examples"]);
        cycles.extend(imports.cycles_between_files());
    }
    let is_named = |cycle: &String| {
        NAMED_CYCLES
            .iter()
            .any(|named| cycle.split(", ").all(|file| named.split(", ").any(|name| name == file)))
    };
    cycles.retain(|cycle| !is_named(cycle));
    assert!(cycles.is_empty(), "{}", cycles.join("\n"));
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
        let mut functions = Functions::default();
        functions.visit_file(&syn::parse_file(&fs::read_to_string(&file).unwrap()).unwrap());
        let too_long = functions.lines.iter().filter(|(_, lines)| *lines > MAX_FUNCTION_LINES);
        long.extend(too_long.map(|(name, lines)| format!("{}: {name} has {lines} lines", file.display())));
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

/// The functions of a file, with their lines.
#[derive(Default)]
struct Functions {
    lines: Vec<(String, usize)>,
}

impl Functions {
    fn add(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let first = signature.fn_token.span.start().line;
        let last = body.brace_token.span.close().end().line;
        self.lines.push((signature.ident.to_string(), last - first + 1));
    }
}

impl<'a> Visit<'a> for Functions {
    fn visit_item_fn(&mut self, function: &'a syn::ItemFn) {
        self.add(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'a syn::ImplItemFn) {
        self.add(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }
}

#[test]
fn code_that_the_pages_name_is_defined() {
    let mut defined = Definitions::default();
    for file in rust_files(&root().join("src")) {
        defined.0.extend(file.iter().map(|part| part.to_str().unwrap().trim_end_matches(".rs").to_owned()));
        defined.visit_file(&syn::parse_file(&fs::read_to_string(&file).unwrap()).unwrap());
    }
    let mut missing = Vec::new();
    for page in ["README.md", "docs", "docs/decisions"].iter().flat_map(|place| pages(&root().join(place))) {
        let text = fs::read_to_string(&page).unwrap();
        for code in text.split('`').skip(1).step_by(2).filter(|code| code.contains("::")) {
            let is_name =
                |segment: &str| segment.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
            let mut segments = code.trim_start_matches("wva_").trim_end_matches("()").split("::");
            if segments.clone().all(is_name) && !segments.all(|segment| defined.0.contains(segment)) {
                missing.push(format!("{}: {code}", page.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

fn pages(place: &Path) -> Vec<PathBuf> {
    if place.is_file() {
        return vec![place.to_path_buf()];
    }
    let files = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|ending| ending == "md")).collect()
}

/// The names of all items in a file.
#[derive(Default)]
struct Definitions(BTreeSet<String>);

impl<'a> Visit<'a> for Definitions {
    fn visit_item(&mut self, item: &'a syn::Item) {
        let name = match item {
            syn::Item::Const(item) => Some(&item.ident),
            syn::Item::Enum(item) => Some(&item.ident),
            syn::Item::Fn(item) => Some(&item.sig.ident),
            syn::Item::Mod(item) => Some(&item.ident),
            syn::Item::Struct(item) => Some(&item.ident),
            syn::Item::Trait(item) => Some(&item.ident),
            syn::Item::Type(item) => Some(&item.ident),
            _ => None,
        };
        self.0.extend(name.map(ToString::to_string));
        visit::visit_item(self, item);
    }

    fn visit_variant(&mut self, variant: &'a syn::Variant) {
        self.0.insert(variant.ident.to_string());
    }

    fn visit_impl_item_fn(&mut self, function: &'a syn::ImplItemFn) {
        self.0.insert(function.sig.ident.to_string());
    }
}

#[test]
fn every_finding_of_a_check_is_explained() {
    let page = fs::read_to_string(root().join("docs/check.md")).unwrap();
    let mut reasons = BTreeSet::new();
    for file in ["src/lint", "src/cmd/check"].iter().flat_map(|room| rust_files(&root().join(room))) {
        let text = fs::read_to_string(&file).unwrap();
        let names = text.split('"').filter(|part| {
            let is_name = part.chars().all(char::is_alphanumeric) && part.starts_with(char::is_uppercase);
            is_name && part.len() > 5 && text.contains(&format!("\"{part}\""))
        });
        let after_severity = |name: &&str| {
            text.split(&format!("\"{name}\"")).next().is_some_and(|before| {
                let before = before.trim_end().trim_end_matches(',').trim_end();
                ["Severity::Error", "Severity::Warning", "Severity::Note"]
                    .iter()
                    .any(|end| before.ends_with(end))
            })
        };
        reasons.extend(names.filter(after_severity).map(str::to_owned));
    }
    assert!(reasons.len() > 60, "{reasons:?}");
    let missing: Vec<_> = reasons.iter().filter(|reason| !page.contains(&format!("`{reason}`"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn nothing_is_left_for_later() {
    let marks = [
        ["TO", "DO"],
        ["FIX", "ME"],
        ["XX", "X:"],
        ["todo", "!("],
        ["unimplemented", "!("],
        ["#[ig", "nore]"], // with a reason, a test may need data that the repository does not contain
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
        let named =
            tree.lines().filter_map(|line| line.split_once(' ')).filter(|(package, _)| *package == name);
        named.filter_map(|(_, rest)| rest.split(' ').next()).collect::<BTreeSet<_>>().len()
    };
    for name in ["hyper", "rustls", "aws-lc-rs", "axum", "http", "kube-client", "reqwest"] {
        assert_eq!(versions(name), 1, "{name} must resolve to one version");
    }
    for name in ["ring", "openssl-sys", "native-tls", "rustls-pemfile", "serde_yaml"] {
        assert_eq!(versions(name), 0, "{name} must not be in the tree");
    }
}
