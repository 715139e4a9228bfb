//! The policy that the ConfigMaps make, and what is wrong with them, as the program reads them.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ConfigMap;
use wva_core::Policy;
use wva_core::model::VariantId;

use super::inputs::Inputs;
use super::report::Report;
use super::settings::Settings;
use crate::cluster::ClusterState;
use crate::cluster::watch::config_maps::{ConfigMaps, watched};
use crate::cluster::watch::{ListedPool, NodeRoom};
use crate::config::policy_config::{Finding, PolicyLoader, Problem, Problems};
use crate::engine::LearnedModels;
use crate::lint::{ObjectRef, Severity};
use crate::policy::{Selection, select, with_settings};

/// Where every field is described.
const FIX: &str = "# correct the field that is named; docs/configuration.md has every field and its range";

/// The state of the cluster, the policy in force there, and what is wrong with the latter.
pub(super) struct Loaded {
    pub(super) state: ClusterState,
    /// The InferencePools of its variants.
    pub(super) pools: Vec<ListedPool>,
    /// The room of the nodes for the replicas of each variant.
    pub(super) rooms: BTreeMap<VariantId, NodeRoom>,
    pub(super) policy: Policy,
    pub(super) report: Report,
}

/// What the objects make together.
pub(super) fn load(inputs: &Inputs, settings: &Settings) -> Loaded {
    let cluster = inputs.cluster(settings);
    let state = cluster.state();
    let (pools, rooms) = (cluster.pools(&state), cluster.node_rooms(&state));
    let release = &settings.service.namespace;
    let key = |map: &ConfigMap| {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        (text(&map.metadata.namespace), text(&map.metadata.name))
    };
    let maps = inputs.config_maps.iter().map(|map| (key(map), watched(map.clone(), release))).collect();
    let maps = ConfigMaps { listed: true, maps };
    let Selection { texts, release_names } =
        select(&maps, &settings.config_maps, release, &settings.config_maps);
    let mut namespaces: BTreeSet<String> = state.objects.keys().map(|id| id.namespace.to_string()).collect();
    if !inputs.is_cluster {
        // The variants may be in other files, and an entry is to be checked in any case.
        namespaces.extend(texts.keys().map(|(namespace, _)| namespace.clone()));
    }
    let mut loader =
        PolicyLoader::new(settings.policy.clone(), settings.config_maps.clone(), release.clone());
    let used: BTreeSet<String> =
        release_names.values().chain(settings.config_maps.values()).cloned().collect();
    loader.set_release_names(release_names);
    loader.set_variants(with_settings(&state, &LearnedModels::default()));
    let (policy, problems) = loader.load(&texts, &namespaces);
    let mut report = Report::default();
    if !inputs.is_cluster {
        report_unused(inputs, settings, &used, &mut report);
    }
    report_problems(problems, &state, &mut report);
    Loaded { state, pools, rooms, policy, report }
}

/// Reports ConfigMaps of files that no name makes ones of this program.
fn report_unused(inputs: &Inputs, settings: &Settings, used: &BTreeSet<String>, report: &mut Report) {
    let unused = inputs
        .config_maps
        .iter()
        .filter(|map| !map.metadata.name.as_ref().is_some_and(|name| used.contains(name)));
    for map in unused {
        let names: Vec<&str> = settings.config_maps.values().map(String::as_str).collect();
        report.add(
            (Severity::Note, "NotConfiguration"),
            ObjectRef::of("ConfigMap", &map.metadata),
            "its name is none under which the program reads a ConfigMap",
            "it was not checked, and has no effect",
            format!(
                "# names: {}; or give its own with a flag such as --saturation-config-map",
                names.join(", ")
            ),
        );
    }
}

fn report_problems(mut problems: Problems, state: &ClusterState, report: &mut Report) {
    for Problem { namespace, config_map, key, is_rejected, text } in problems.iter() {
        let entry = if key.is_empty() { String::new() } else { format!("entry {key}: ") };
        let (kind, effect) = if *is_rejected {
            (
                (Severity::Error, "InvalidConfiguration"),
                "the entry does not count: models get other settings than those written here",
            )
        } else {
            ((Severity::Note, "ConfigurationNote"), "the entry counts, except for this")
        };
        report.add(
            kind,
            format!("ConfigMap {namespace}/{config_map}"),
            format!("{entry}{text}"),
            effect,
            FIX,
        );
    }
    if problems.left_out() > 0 {
        let set = format!("{} more problems are not shown", problems.left_out());
        report.add(
            (Severity::Error, "InvalidConfiguration"),
            "ConfigMaps",
            set,
            "their entries do not count",
            "# correct those that are shown",
        );
    }
    for (id, Finding { errors, notes, in_effect: _ }) in problems.take_variants() {
        let kind = state.objects.get(&id).map(|object| object.kind).unwrap_or_default();
        let object = format!("{kind} {id}");
        for error in errors {
            let effect = "the field does not count";
            report.add((Severity::Error, "InvalidConfiguration"), &object, error, effect, FIX);
        }
        for note in notes {
            let effect = "the field counts for nothing";
            report.add((Severity::Note, "FieldsWithoutEffect"), &object, note, effect, FIX);
        }
    }
}
