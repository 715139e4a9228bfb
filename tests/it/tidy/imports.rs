//! What the modules of a crate import from each other and from other crates, read from the source with tests left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, File, ItemMod, ItemUse, UseTree, Visibility};

/// The path of a module in its crate, such as `["serve", "tls", "pem"]`; empty for the crate itself.
type Module = Vec<String>;
type Graph = BTreeMap<Module, BTreeSet<Module>>;

/// The imports of one crate.
pub(super) struct Imports {
    /// For each module with a file of its own, the modules it names.
    modules: Graph,
    /// For each of them, the first segments of all paths: crates, among others.
    crates: BTreeMap<Module, BTreeSet<String>>,
}

impl Imports {
    /// Reads the crate below `source`, without the folders in `excluded`, which belong to other crates.
    pub(super) fn read(source: &Path, excluded: &[&str]) -> Self {
        let mut files = BTreeMap::new();
        for path in super::rust_files(source) {
            let mut module: Module =
                path.strip_prefix(source).unwrap().iter().map(|part| part.to_str().unwrap().into()).collect();
            let file = module.pop().unwrap();
            if module.first().is_some_and(|folder| excluded.contains(&folder.as_str())) {
                continue;
            }
            if !["lib.rs", "mod.rs", "main.rs"].contains(&file.as_str()) {
                module.push(file.trim_end_matches(".rs").into());
            }
            files.insert(module, syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap());
        }
        let tests: Vec<Module> = files.iter().flat_map(|(module, file)| test_modules(module, file)).collect();
        files.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));

        let paths: BTreeMap<&Module, Paths> =
            files.iter().map(|(module, file)| (module, Paths::read(file))).collect();
        let reexports: BTreeMap<(&Module, String), Module> = paths
            .iter()
            .flat_map(|(module, paths)| paths.reexported.iter().map(move |path| (*module, path)))
            .filter_map(|(module, path)| match resolve(module, path, &files)? {
                (origin, Some(name)) => Some(((module, name), origin)),
                (_, None) => None,
            })
            .collect();
        let targets = |module: &Module, paths: &Paths| {
            let resolved = paths.named.iter().filter_map(|path| resolve(module, path, &files));
            // A test's hook in production code, compiled for tests only.
            let resolved = resolved.filter(|(_, name)| name.as_deref() != Some("tests"));
            let origins = resolved.map(|(target, name)| {
                let origin = name.and_then(|name| reexports.get(&(&target, name)).cloned());
                origin.unwrap_or(target)
            });
            origins.filter(|target| target != module).collect()
        };
        let crates = |paths: &Paths| {
            paths.named.iter().chain(&paths.reexported).filter_map(|path| path.first().cloned()).collect()
        };
        Self {
            modules: paths
                .iter()
                .map(|(module, paths)| ((*module).clone(), targets(module, paths)))
                .collect(),
            crates: paths.iter().map(|(module, paths)| ((*module).clone(), crates(paths))).collect(),
        }
    }

    /// The modules of `room` that name something of another room of this crate.
    pub(super) fn users_of_room(&self, room: &str, target: &str) -> Vec<String> {
        let is_in = |module: &Module, room: &str| module.first().is_some_and(|first| first == room);
        let users = self
            .modules
            .iter()
            .filter(|(module, named)| is_in(module, room) && named.iter().any(|named| is_in(named, target)));
        users.map(|(module, _)| module.join("::")).collect()
    }

    /// The modules of `room` that name something of another crate.
    pub(super) fn users_of_crate(&self, room: &str, target: &str) -> Vec<String> {
        let users = self.crates.iter().filter(|(module, named)| {
            module.first().is_some_and(|first| first == room) && named.contains(target)
        });
        users.map(|(module, _)| module.join("::")).collect()
    }

    /// Import cycles between the children of `room`, one line a cycle. The file of the room itself may name all of them.
    pub(super) fn cycles_between_children(&self, room: &[&str]) -> Vec<String> {
        let child = |module: &Module| {
            let is_below =
                module.len() > room.len() && module.iter().zip(room).all(|(name, room)| name == room);
            is_below.then(|| module[..=room.len()].to_vec())
        };
        let mut edges = Graph::new();
        for (module, targets) in &self.modules {
            if let Some(from) = child(module) {
                let targets = targets.iter().filter_map(child).filter(|target| *target != from);
                edges.entry(from.clone()).or_default().extend(targets);
            }
        }
        cycles(&edges)
    }

    /// Import cycles between the files of the crate, one line a cycle.
    pub(super) fn cycles_between_files(&self) -> Vec<String> {
        cycles(&self.modules)
    }
}

/// The modules that `file` declares for tests only.
fn test_modules(module: &Module, file: &File) -> Vec<Module> {
    let declared = file.items.iter().filter_map(|item| match item {
        syn::Item::Mod(declared) if is_test(&declared.attrs) => Some(declared.ident.to_string()),
        _ => None,
    });
    declared.map(|name| module.iter().cloned().chain([name]).collect()).collect()
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let list = attribute.meta.require_list();
        attribute.path().is_ident("cfg") && list.is_ok_and(|list| list.tokens.to_string() == "test")
    })
}

/// The paths in a file, as their segments.
#[derive(Default)]
struct Paths {
    named: Vec<Vec<String>>,
    reexported: Vec<Vec<String>>,
}

impl Paths {
    fn read(file: &File) -> Self {
        let mut paths = Self::default();
        paths.visit_file(file);
        paths
    }

    /// Takes the paths in the arguments of a macro, which are tokens and no syntax tree.
    fn read_tokens(&mut self, tokens: TokenStream) {
        let mut path = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Ident(ident) if colons == 2 && !path.is_empty() => {
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Ident(ident) => {
                    self.named.push(std::mem::replace(&mut path, vec![ident.to_string()]));
                    colons = 0;
                }
                TokenTree::Group(group) => {
                    self.named.push(std::mem::take(&mut path));
                    self.read_tokens(group.stream());
                }
                _ => self.named.push(std::mem::take(&mut path)),
            }
        }
        self.named.push(path);
        self.named.retain(|path| path.len() > 1);
    }
}

impl<'a> Visit<'a> for Paths {
    fn visit_item_mod(&mut self, item: &'a ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'a ItemUse) {
        let mut paths = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut paths);
        match item.vis {
            _ if is_test(&item.attrs) => {}
            Visibility::Inherited => self.named.extend(paths),
            _ => self.reexported.extend(paths),
        }
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        if path.segments.len() > 1 {
            self.named.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, invocation: &'a syn::Macro) {
        self.read_tokens(invocation.tokens.clone());
        visit::visit_macro(self, invocation);
    }
}

/// The paths that a tree of imports stands for.
fn flatten(tree: &UseTree, prefix: &mut Vec<String>, paths: &mut Vec<Vec<String>>) {
    let leaf = match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            flatten(&path.tree, prefix, paths);
            prefix.pop();
            return;
        }
        UseTree::Group(group) => return group.items.iter().for_each(|item| flatten(item, prefix, paths)),
        UseTree::Name(name) if name.ident == "self" => None,
        UseTree::Name(name) => Some(name.ident.to_string()),
        UseTree::Rename(rename) => Some(rename.ident.to_string()),
        UseTree::Glob(_) => None,
    };
    paths.push(prefix.iter().cloned().chain(leaf).collect());
}

/// The module that `path` leads to from `module`, and the item it names there; `None` for paths of other crates.
fn resolve(
    module: &Module,
    path: &[String],
    files: &BTreeMap<Module, File>,
) -> Option<(Module, Option<String>)> {
    let (mut full, rest) = match path.first()?.as_str() {
        "crate" => (Module::new(), &path[1..]),
        "self" => (module.clone(), &path[1..]),
        "super" => (module.clone(), path),
        child if files.contains_key(&[module.as_slice(), &[child.to_owned()]].concat()) => {
            (module.clone(), path)
        }
        _ => return None,
    };
    for name in rest {
        if name == "super" {
            full.pop();
        } else {
            full.push(name.clone());
        }
    }
    let known = (0..=full.len()).rev().find(|length| files.contains_key(&full[..*length]))?;
    let name = full.get(known).cloned();
    full.truncate(known);
    Some((full, name))
}

/// Modules that reach each other, one line a cycle.
fn cycles(edges: &Graph) -> Vec<String> {
    let reach: BTreeMap<&Module, BTreeSet<&Module>> =
        edges.keys().map(|module| (module, reachable(module, edges))).collect();
    let mut lines = BTreeSet::new();
    for (module, reached) in &reach {
        let returning =
            reached.iter().filter(|target| reach.get(*target).is_some_and(|back| back.contains(module)));
        let cycle: Vec<String> = returning.map(|target| target.join("::")).collect();
        if cycle.len() > 1 {
            lines.insert(cycle.join(", "));
        }
    }
    lines.into_iter().collect()
}

fn reachable<'a>(from: &Module, edges: &'a Graph) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&Module> = edges.get(from).into_iter().flatten().collect();
    while let Some(module) = open.pop() {
        if reached.insert(module) {
            open.extend(edges.get(module).into_iter().flatten());
        }
    }
    reached
}
