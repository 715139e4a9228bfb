//! Policies from valid and invalid ConfigMaps.

#![expect(clippy::float_cmp, reason = "numbers that were read, not computed")]

mod documents;
mod entries;
mod properties;
mod reload;
mod scopes;
mod variants;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wva_core::Policy;

use super::{ConfigMapKind, ConfigMapNames, ConfigMapTexts, EntryTexts, PolicyLoader, Problems};

/// The release namespace.
const RELEASE: &str = "wva-system";

pub(super) fn names() -> ConfigMapNames {
    let names = ["saturation", "scale-to-zero", "queueing-model", "service-classes", "accelerator-costs"];
    ConfigMapKind::ALL.into_iter().zip(names.map(str::to_owned)).collect()
}

pub(super) fn loader() -> PolicyLoader {
    PolicyLoader::new(Policy::default(), names(), RELEASE.to_owned())
}

pub(super) fn map(entries: &[(&str, &str)]) -> EntryTexts {
    Ok(Arc::new(entries.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect()))
}

/// ConfigMaps by namespace and kind.
type TestConfigMaps<'a> = &'a [(&'a str, ConfigMapKind, &'a [(&'a str, &'a str)])];

pub(super) fn maps(config_maps: TestConfigMaps<'_>) -> ConfigMapTexts {
    config_maps
        .iter()
        .map(|(namespace, kind, entries)| (((*namespace).to_owned(), *kind), map(entries)))
        .collect::<BTreeMap<_, _>>()
}

/// The policy of these ConfigMaps, and their problems, for variants in `llm` and `chat`.
pub(super) fn load(config_maps: TestConfigMaps<'_>) -> (Policy, Problems) {
    let namespaces = ["llm", "chat"].map(str::to_owned);
    loader().load(&maps(config_maps), &BTreeSet::from(namespaces))
}

/// The policy of an entry `default` of the saturation ConfigMap, and its problems.
pub(super) fn load_default(text: &str) -> (Policy, Vec<String>) {
    let (policy, problems) = load(&[(RELEASE, ConfigMapKind::Saturation, &[("default", text)])]);
    (policy, messages(&problems))
}

pub(super) fn messages(problems: &Problems) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}
