//! ConfigMaps as people write them, right and wrong, and what is made of them.

#![expect(clippy::float_cmp, reason = "numbers that were read, not computed")]

mod documents;
mod entries;
mod properties;
mod reload;
mod scopes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wva_core::Policy;

use super::{Kind, Map, Maps, Names, PolicyLoader, Problems};

/// The release's namespace.
const HOME: &str = "wva-system";

pub(super) fn names() -> Names {
    let names = ["saturation", "scale-to-zero", "queueing-model", "service-classes", "accelerator-costs"];
    Kind::ALL.into_iter().zip(names.map(str::to_owned)).collect()
}

pub(super) fn loader() -> PolicyLoader {
    PolicyLoader::new(Policy::default(), names(), HOME.to_owned())
}

pub(super) fn map(entries: &[(&str, &str)]) -> Map {
    Ok(Arc::new(entries.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect()))
}

/// ConfigMaps by namespace and kind.
type Given<'a> = &'a [(&'a str, Kind, &'a [(&'a str, &'a str)])];

pub(super) fn maps(given: Given<'_>) -> Maps {
    given
        .iter()
        .map(|(namespace, kind, entries)| (((*namespace).to_owned(), *kind), map(entries)))
        .collect::<BTreeMap<_, _>>()
}

/// What is made of ConfigMaps, for variants in `llm` and `chat`.
pub(super) fn made(given: Given<'_>) -> (Policy, Problems) {
    let namespaces = ["llm", "chat"].map(str::to_owned);
    loader().load(&maps(given), &BTreeSet::from(namespaces))
}

/// What is made of one entry `default` of the saturation ConfigMap, and what is wrong with it.
pub(super) fn default_of(text: &str) -> (Policy, Vec<String>) {
    let (policy, problems) = made(&[(HOME, Kind::Saturation, &[("default", text)])]);
    (policy, told(&problems))
}

pub(super) fn told(problems: &Problems) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}
