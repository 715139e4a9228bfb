//! The objects that are judged, from a cluster or from files.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{ConfigMap, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;
use serde_json::Value;
use smol_str::SmolStr;
use wva_core::model::TargetRef;

use super::report::Report;
use super::settings::Settings;
use crate::cluster::crd::CONTROLLER_INSTANCE_LABEL;
use crate::cluster::watch::{ListedCluster, ListedKind};
use crate::lint::{ScaledObject, Severity, Termination, VerticalPodAutoscaler};

/// A kind of objects that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// One that makes the state of the cluster.
    State(ListedKind),
    /// VerticalPodAutoscalers.
    Vertical,
    /// ConfigMaps.
    ConfigMap,
}

/// A scale target with its namespace.
pub(super) type TargetKey = (SmolStr, TargetRef);

/// The objects.
#[derive(Default)]
pub(super) struct Inputs {
    listed: BTreeMap<ListedKind, Vec<Value>>,
    pub(super) hpas: Vec<HorizontalPodAutoscaler>,
    pub(super) scaled_objects: Vec<ScaledObject>,
    pub(super) vertical: Vec<VerticalPodAutoscaler>,
    pub(super) terminations: BTreeMap<TargetKey, Termination>,
    pub(super) config_maps: Vec<ConfigMap>,
    /// Texts of rules of prometheus-adapter, each with where it stands.
    pub(super) rules: Vec<(String, String)>,
    /// Whether a cluster was asked for all objects.
    pub(super) is_cluster: bool,
    added: usize,
    /// The objects of files by namespace and name.
    names: BTreeSet<(Kind, (String, String))>,
    /// What could not be read: kind, name and cause.
    unread: Vec<(Kind, String, String)>,
    /// Objects that cannot be parsed: object and cause.
    unparsed: Vec<(String, String)>,
}

impl Inputs {
    /// No objects yet, and later those of a cluster.
    pub(super) fn of_cluster() -> Self {
        Self { is_cluster: true, ..Self::default() }
    }

    /// Adds an object. Of several of one name in files, the last counts, as for `kubectl apply`.
    pub(super) fn add(&mut self, kind: Kind, object: Value, settings: &Settings) {
        self.added += 1;
        if !self.is_cluster && !self.names.insert((kind, namespace_and_name(&object))) {
            self.remove(kind, &object);
        }
        match kind {
            Kind::ConfigMap => {
                let parsed = self.parsed("ConfigMap", object);
                self.config_maps.extend(parsed);
            }
            Kind::Vertical => {
                let parsed = self.parsed("VerticalPodAutoscaler", object);
                self.vertical.extend(parsed);
            }
            Kind::State(kind) => {
                match kind {
                    ListedKind::HorizontalPodAutoscaler => {
                        let parsed = self.parsed(kind.name(), object.clone());
                        self.hpas.extend(parsed);
                    }
                    ListedKind::ScaledObject => {
                        let parsed = self.parsed(kind.name(), object.clone());
                        self.scaled_objects.extend(parsed);
                    }
                    _ => self.add_termination(kind, &object),
                }
                if is_of_program(kind, &object, settings) {
                    self.listed.entry(kind).or_default().push(object);
                }
            }
        }
    }

    /// Adds the text of rules of prometheus-adapter.
    pub(super) fn add_rules(&mut self, place: String, text: String) {
        self.added += 1;
        self.rules.push((place, text));
    }

    /// Removes the object with the name of `object`.
    fn remove(&mut self, kind: Kind, object: &Value) {
        let own = namespace_and_name(object);
        let is_other = |metadata: &ObjectMeta| {
            let text = |field: &Option<String>| field.clone().unwrap_or_default();
            (text(&metadata.namespace), text(&metadata.name)) != own
        };
        match kind {
            Kind::ConfigMap => self.config_maps.retain(|map| is_other(&map.metadata)),
            Kind::Vertical => self.vertical.retain(|vertical| is_other(&vertical.metadata)),
            Kind::State(kind) => {
                match kind {
                    ListedKind::HorizontalPodAutoscaler => self.hpas.retain(|hpa| is_other(&hpa.metadata)),
                    ListedKind::ScaledObject => {
                        self.scaled_objects.retain(|scaled| is_other(&scaled.metadata))
                    }
                    _ => {}
                }
                self.listed.entry(kind).or_default().retain(|listed| namespace_and_name(listed) != own);
            }
        }
    }

    /// Notes that a kind was listed completely, perhaps without objects.
    pub(super) fn note_listed(&mut self, kind: Kind) {
        if let Kind::State(kind) = kind {
            self.listed.entry(kind).or_default();
        }
    }

    /// Notes that a list could not be read.
    pub(super) fn add_unread(&mut self, kind: Kind, name: &str, cause: String) {
        if let Kind::State(kind) = kind {
            self.listed.remove(&kind);
        }
        self.unread.push((kind, name.to_owned(), cause));
    }

    /// The objects as the watches of the program with these settings have them.
    pub(super) fn cluster(&self, settings: &Settings) -> ListedCluster {
        let mut cluster = ListedCluster::new(settings.serve_value_targets);
        for (kind, objects) in &self.listed {
            if *kind != ListedKind::ScaledObject || settings.annotated_autoscalers {
                cluster.add(*kind, objects);
            }
        }
        cluster.add_called(self.scaled_values(), &settings.scaler());
        cluster
    }

    /// The ScaledObjects that the program reads, as they are written.
    pub(super) fn scaled_values(&self) -> &[Value] {
        self.listed.get(&ListedKind::ScaledObject).map_or(&[], Vec::as_slice)
    }

    /// Whether all objects of a kind were read.
    pub(super) fn has_all(&self, kind: ListedKind) -> bool {
        self.is_cluster && self.listed.contains_key(&kind)
    }

    /// How many objects of all kinds were added.
    pub(super) fn added(&self) -> usize {
        self.added
    }

    /// Reports what could not be read.
    pub(super) fn report_unread(&self, report: &mut Report) {
        for (kind, name, cause) in &self.unread {
            let is_essential = matches!(
                kind,
                Kind::State(
                    ListedKind::VariantAutoscaling
                        | ListedKind::HorizontalPodAutoscaler
                        | ListedKind::Deployment
                )
            );
            report.add_unchecked(
                is_essential,
                name,
                format!("could not list {name}: {cause}"),
                format!("# grant the right to list {name} to who runs this, or run it as somebody else"),
            );
        }
        for (object, cause) in &self.unparsed {
            report.add(
                (Severity::Error, "Unreadable"),
                object,
                format!("it cannot be read: {cause}"),
                "it is not used, and was not checked",
                "# correct the field that the cause names",
            );
        }
    }

    fn parsed<T: DeserializeOwned>(&mut self, kind: &str, object: Value) -> Option<T> {
        let name = name(kind, &object);
        match serde_json::from_value(object) {
            Ok(parsed) => Some(parsed),
            Err(error) => {
                self.unparsed.push((name, error.to_string()));
                None
            }
        }
    }

    /// Keeps how the pods of a workload end: of a group of pods the leader, which serves.
    fn add_termination(&mut self, kind: ListedKind, object: &Value) {
        let group = match kind {
            ListedKind::Deployment | ListedKind::StatefulSet => TargetRef::APPS,
            ListedKind::LeaderWorkerSet => TargetRef::LEADER_WORKER_SETS,
            _ => return,
        };
        let places = [
            "/spec/template/spec",
            "/spec/leaderWorkerTemplate/leaderTemplate/spec",
            "/spec/leaderWorkerTemplate/workerTemplate/spec",
        ];
        let template = places.iter().find_map(|place| object.pointer(place));
        let spec = template.and_then(|spec| serde_json::from_value::<PodSpec>(spec.clone()).ok());
        let termination = spec.as_ref().and_then(Termination::of);
        let text = |field: &str| object.pointer(field).and_then(Value::as_str).map(SmolStr::from);
        let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
        if let (Some(namespace), Some(name), Some(termination)) = (namespace, name, termination) {
            let target = TargetRef { group: group.into(), kind: kind.name().into(), name };
            self.terminations.insert((namespace, target), termination);
        }
    }
}

impl ListedKind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::VariantAutoscaling => "VariantAutoscaling",
            Self::HorizontalPodAutoscaler => "HorizontalPodAutoscaler",
            Self::ScaledObject => "ScaledObject",
            Self::Deployment => "Deployment",
            Self::StatefulSet => "StatefulSet",
            Self::LeaderWorkerSet => "LeaderWorkerSet",
            Self::Namespace => "Namespace",
            Self::Node => "Node",
            Self::ResourceSlice => "ResourceSlice",
            Self::ResourceClaimTemplate => "ResourceClaimTemplate",
            Self::InferencePool | Self::EarlierInferencePool => "InferencePool",
            Self::Service => "Service",
        }
    }
}

fn namespace_and_name(object: &Value) -> (String, String) {
    let text = |field: &str| object.pointer(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    (text("/metadata/namespace"), text("/metadata/name"))
}

/// Whether the program with these settings reads the object.
fn is_of_program(kind: ListedKind, object: &Value, settings: &Settings) -> bool {
    let label = object.pointer("/metadata/labels").and_then(|labels| labels.get(CONTROLLER_INSTANCE_LABEL));
    let is_of_instance = settings
        .controller_instance
        .as_deref()
        .is_none_or(|instance| label.and_then(Value::as_str) == Some(instance));
    match kind {
        // KEDA's calls make ScaledObjects variants without annotations too.
        ListedKind::VariantAutoscaling | ListedKind::ScaledObject => is_of_instance,
        ListedKind::HorizontalPodAutoscaler => is_of_instance && settings.annotated_autoscalers,
        _ => true,
    }
}

/// The kind and name of an object.
fn name(kind: &str, object: &Value) -> String {
    let metadata: ObjectMeta = object
        .get("metadata")
        .and_then(|metadata| serde_json::from_value(metadata.clone()).ok())
        .unwrap_or_default();
    crate::lint::ObjectRef::of(kind, &metadata).to_string()
}
