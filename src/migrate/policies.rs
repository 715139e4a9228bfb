//! The ConfigMaps that tune decisions: what they mean here, and which of them have to be copied.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wva_core::Policy;
use wva_core::model::Analyzer;

use super::controller::Controller;
use super::objects::Objects;
use super::report::{ObjectName, Report};
use crate::config::Config;
use crate::config::policy_config::{ConfigMapKind, ConfigMapNames, ConfigMapTexts, PolicyLoader};

/// The policy of a controller's ConfigMaps.
pub(super) struct Policies {
    pub(super) policy: Policy,
    /// The ConfigMaps in the namespace of the controller.
    pub(super) own: Vec<ObjectName>,
}

impl Policies {
    /// Reads the ConfigMaps of a controller as this program would, and reports what they mean.
    pub(super) fn read(
        controller: &Controller<'_>,
        config: &Config,
        objects: &Objects,
        report: &mut Report,
    ) -> Self {
        let names = &config.config_maps;
        let release = &controller.name.namespace;
        let namespaces: BTreeSet<String> =
            objects.variants.keys().map(|name| name.namespace.clone()).collect();
        let existing = existing(names, release, &namespaces, objects);
        let texts = existing.iter().map(|((namespace, kind), name)| {
            let data = objects.config_maps.get(name).and_then(|map| map.data.clone()).unwrap_or_default();
            ((namespace.clone(), *kind), Ok(Arc::new(data)))
        });
        let texts: ConfigMapTexts = texts.collect();
        let mut loader = PolicyLoader::new(config.policy.clone(), names.clone(), release.clone());
        let (policy, problems) = loader.load(&texts, &namespaces);
        for name in existing.values() {
            report.found(format!("ConfigMap {name}, which tunes decisions"));
        }
        for problem in problems.iter() {
            let object = format!("ConfigMap {}/{}", problem.namespace, problem.config_map);
            let entry =
                if problem.key.is_empty() { String::new() } else { format!("entry {}: ", problem.key) };
            let cause = format!("{entry}{}", problem.text);
            match problem.is_rejected {
                true => report.act(object, cause, "correct the entry: until then it has no effect here"),
                false => report.change(object, cause),
            }
        }
        if problems.left_out() > 0 {
            report.act(
                "ConfigMaps",
                format!("{} more entries have problems", problems.left_out()),
                "correct the others first",
            );
        }
        let saturation = existing.get(&(release.clone(), ConfigMapKind::Saturation));
        report_analyzer(&policy, saturation, names, release, report);
        let own = existing.iter().filter(|((namespace, _), _)| namespace == release);
        Self { own: own.map(|(_, name)| name.clone()).collect(), policy }
    }
}

/// The ConfigMaps that exist, by namespace and kind.
fn existing(
    names: &ConfigMapNames,
    release: &str,
    namespaces: &BTreeSet<String>,
    objects: &Objects,
) -> BTreeMap<(String, ConfigMapKind), ObjectName> {
    let mut existing = BTreeMap::new();
    for (kind, name) in names {
        let local = namespaces.iter().filter(|_| kind.may_be_local()).map(String::as_str);
        for namespace in std::iter::once(release).chain(local) {
            let object = ObjectName::new(namespace, name);
            if objects.config_maps.contains_key(&object) {
                existing.insert((namespace.to_owned(), *kind), object);
            }
        }
    }
    existing
}

/// Reports which analyzer decides, and limits.
fn report_analyzer(
    policy: &Policy,
    saturation: Option<&ObjectName>,
    names: &ConfigMapNames,
    release: &str,
    report: &mut Report,
) {
    let analyzer = policy.global.default.analyzer;
    match (analyzer, saturation) {
        (_, None) => {
            let name = names.get(&ConfigMapKind::Saturation).map_or("", String::as_str);
            report.change(
                format!("ConfigMap {release}/{name}"),
                format!(
                    "it does not exist: WVA decides about no model without it, and {} decides here",
                    analyzer.as_str()
                ),
            );
        }
        (Analyzer::SaturationPercent, Some(name)) => {
            report.same(format!(
                "the percent-saturation rule decides, with the thresholds of ConfigMap {name}"
            ));
        }
        (analyzer, Some(name)) => {
            report.same(format!("analyzer {} of ConfigMap {name} decides", analyzer.as_str()))
        }
    }
    if policy.limits.inventory {
        report.same(
            "additions are limited by the GPUs of the nodes: wva-values.yaml grants the right to list nodes",
        );
    }
}
