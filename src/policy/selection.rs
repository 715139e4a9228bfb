//! Which of the watched ConfigMaps count. Pure.

use crate::cluster::watch::config_maps::ConfigMaps;
use crate::config::policy_config::{ConfigMapKind, ConfigMapNames, ConfigMapTexts, Found};

/// The ConfigMaps that count.
#[derive(Debug, PartialEq)]
pub(crate) struct Selection {
    /// Their texts.
    pub(crate) texts: ConfigMapTexts,
    /// The names of those in the release namespace.
    pub(crate) release_names: ConfigMapNames,
}

/// The ConfigMaps among `maps` that count: in the namespaces of variants those with a configured name, in the release namespace
/// also those with a name that WVA gave them. `before` are the names that counted there last: of several that may be the right
/// one, that stays.
pub(crate) fn select(
    maps: &ConfigMaps,
    configured: &ConfigMapNames,
    release: &str,
    before: &ConfigMapNames,
) -> Selection {
    let mut texts = ConfigMapTexts::new();
    for ((namespace, name), map) in maps.maps.iter().filter(|((namespace, _), _)| namespace != release) {
        let mut local = configured.iter().filter(|(kind, _)| kind.may_be_local());
        if let Some((kind, _)) = local.find(|(_, known)| *known == name) {
            texts.insert((namespace.clone(), *kind), map.entries.clone());
        }
    }
    let mut release_names = ConfigMapNames::new();
    for (kind, own_name) in configured {
        let is_free = |name: &str| name == own_name || configured.values().all(|of_kind| of_kind != name);
        let in_release = maps.maps.keys().filter(|(namespace, _)| namespace == release);
        let names = in_release.map(|(_, name)| name.as_str()).filter(|name| is_free(name));
        let (name, text) = match kind.names().find(own_name, names) {
            Found::None => (own_name.as_str(), None),
            Found::Only(name) => {
                let map = maps.maps.get(&(release.to_owned(), name.to_owned()));
                (name, map.map(|map| map.entries.clone()))
            }
            Found::Ambiguous(names) => {
                let last = before.get(kind).map(String::as_str).filter(|last| names.contains(last));
                let name = last.or(names.first().copied()).unwrap_or(own_name);
                (name, Some(Err(ambiguity(*kind, name, &names))))
            }
        };
        texts.extend(text.map(|text| ((release.to_owned(), *kind), text)));
        release_names.insert(*kind, name.to_owned());
    }
    Selection { texts, release_names }
}

/// The problem of ConfigMap `name`, where several have `names` that may be those of `kind`.
fn ambiguity(kind: ConfigMapKind, name: &str, names: &[&str]) -> String {
    let mut others = names.iter().filter(|listed| **listed != name);
    let second = others.next().copied().unwrap_or_default();
    let more = match others.count() {
        0 => String::new(),
        count => format!(", and {count} more"),
    };
    let (purpose, flag) = (kind.purpose(), kind.flag());
    format!(
        "by its name it decides about {purpose}, and so does ConfigMap {second}{more}: set the name of the right one with {flag}, \
         or delete the others"
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cluster::watch::config_maps::WatchedConfigMap;

    const FIRST: &str = "a-saturation-scaling-config";
    const SECOND: &str = "b-capacity-scaling-config";
    const THIRD: &str = "c-saturation-scaling-config";

    fn configured() -> ConfigMapNames {
        ConfigMapKind::ALL.into_iter().map(|kind| (kind, kind.names().default.to_owned())).collect()
    }

    /// The name and text of the saturation ConfigMap of the release, where `names` exist and `before` counted last.
    fn saturation(names: &[&str], before: &str) -> (String, Option<Result<(), String>>) {
        let map = WatchedConfigMap { entries: Ok(Arc::default()), object: Default::default() };
        let maps = names.iter().map(|name| (("wva".to_owned(), (*name).to_owned()), map.clone())).collect();
        let mut last = configured();
        last.insert(ConfigMapKind::Saturation, before.to_owned());
        let selection = select(&ConfigMaps { listed: true, maps }, &configured(), "wva", &last);
        let text = selection.texts.get(&("wva".to_owned(), ConfigMapKind::Saturation)).cloned();
        (selection.release_names[&ConfigMapKind::Saturation].clone(), text.map(|text| text.map(|_| ())))
    }

    #[test]
    fn of_two_configmaps_that_match_none_is_taken_silently_and_the_last_one_stays() {
        let default = ConfigMapKind::Saturation.names().default;
        let problem = |(name, text): (String, Option<Result<(), String>>)| (name, text.unwrap().unwrap_err());
        let (name, text) = problem(saturation(&[FIRST, SECOND], default));
        assert_eq!(name, FIRST, "nothing was in force");
        assert!(
            text.contains(&format!("so does ConfigMap {SECOND}: "))
                && text.contains("--saturation-config-map"),
            "{text}"
        );
        let (name, text) = problem(saturation(&[FIRST, SECOND, THIRD], THIRD));
        assert_eq!(name, THIRD);
        assert!(text.contains(&format!("so does ConfigMap {FIRST}, and 1 more: ")), "{text}");
        assert_eq!(saturation(&[FIRST, SECOND, default], FIRST), (default.to_owned(), Some(Ok(()))));
        assert_eq!(saturation(&[], FIRST), (default.to_owned(), None));
    }
}
