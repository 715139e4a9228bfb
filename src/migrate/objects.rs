//! The objects that a migration is about, by kind and name. An object that cannot be read is named, and the others are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{ConfigMap, Container, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::documents;
use super::release::{Release, SECRET_TYPE, is_name, owner};
use super::report::ObjectName;
use crate::cluster::crd::VariantAutoscaling;
use crate::cluster::objects::{VariantKind, VariantObject};
use crate::cluster::pki::apiservice::{METRICS_NAMES as METRICS_APIS, NAME as EXTERNAL_METRICS};
use crate::cluster::watch::annotated_manifest;
use crate::lint::{ScaledObject, is_of_keda};
use wva_core::text::{first_names, quoted};

/// The definition of VariantAutoscaling.
pub(super) const CRD_NAME: &str = "variantautoscalings.llmd.ai";
/// The name of WVA: of its chart, its label and its image.
pub(super) const WVA: &str = "workload-variant-autoscaler";
/// The label of an object's program.
const PROGRAM_LABEL: &str = "app.kubernetes.io/name";
/// The APIService of CPU and memory, without which no HPA of these works.
const RESOURCE_METRICS: &str = "v1beta1.metrics.k8s.io";
/// The owner in the label of the Secrets of a release that Helm was made to forget.
pub const FORGOTTEN: &str = "wva-migration";
/// Most releases of Helm that are read. Any tenant may name one in the annotations of its objects.
const MAX_RELEASES: usize = 50;
/// Most namespaces of WVA's controllers.
const MAX_CONTROLLERS: usize = 20;

/// The kinds of objects that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// apps/v1; of these, WVA's controllers.
    Deployment,
    /// v1
    ConfigMap,
    /// v1; of these, releases of Helm.
    Secret,
    /// llmd.ai/v1alpha1
    VariantAutoscaling,
    /// autoscaling/v2
    HorizontalPodAutoscaler,
    /// keda.sh/v1alpha1
    ScaledObject,
    /// apiregistration.k8s.io/v1; of these, those of metrics.
    ApiService,
    /// apiextensions.k8s.io/v1; of these, that of VariantAutoscaling.
    CustomResourceDefinition,
}

/// The objects.
#[derive(Debug, Default)]
pub struct Objects {
    pub(super) controllers: BTreeMap<ObjectName, Deployment>,
    pub(super) config_maps: BTreeMap<ObjectName, ConfigMap>,
    pub(super) releases: BTreeMap<ObjectName, Release>,
    /// The releases whose Secrets were listed, also those without any.
    pub(super) listed_releases: BTreeSet<ObjectName>,
    pub(super) variants: BTreeMap<ObjectName, VariantAutoscaling>,
    /// The names of fields in the specs of the variants.
    pub(super) fields: BTreeMap<ObjectName, Vec<String>>,
    pub(super) hpas: BTreeMap<ObjectName, HorizontalPodAutoscaler>,
    pub(super) scaled_objects: BTreeMap<ObjectName, ScaledObject>,
    /// Those of both kinds that annotations make variants.
    pub(super) annotated: BTreeMap<(ObjectName, VariantKind), Arc<VariantObject>>,
    pub(super) api_services: BTreeMap<String, APIService>,
    pub(super) definition: Option<ObjectMeta>,
    /// The releases that Helm was made to forget.
    pub(super) forgotten: BTreeSet<ObjectName>,
    pub(super) unread: Vec<String>,
    /// The only namespace that was read, if it was one.
    pub(super) namespace: Option<String>,
    /// Whether a cluster was asked for all objects, so that one that was not found does not exist.
    is_cluster: bool,
    /// The kinds with an object, also those whose objects are not about WVA.
    seen: BTreeSet<Kind>,
    /// The kinds of which something could not be read.
    incomplete: BTreeSet<Kind>,
}

/// Objects that are needed as well.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Needed {
    /// All ConfigMaps of a namespace.
    ConfigMapsOf(String),
    /// The ConfigMaps of this name in any namespace.
    ConfigMapsCalled(String),
    /// The Secrets of a release: its namespace and name.
    Release(String, String),
}

impl Kind {
    /// Every kind.
    const ALL: [Self; 8] = [
        Self::Deployment,
        Self::ConfigMap,
        Self::Secret,
        Self::VariantAutoscaling,
        Self::HorizontalPodAutoscaler,
        Self::ScaledObject,
        Self::ApiService,
        Self::CustomResourceDefinition,
    ];

    /// Its name in a manifest.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Deployment => "Deployment",
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
            Self::VariantAutoscaling => "VariantAutoscaling",
            Self::HorizontalPodAutoscaler => "HorizontalPodAutoscaler",
            Self::ScaledObject => "ScaledObject",
            Self::ApiService => "APIService",
            Self::CustomResourceDefinition => "CustomResourceDefinition",
        }
    }

    /// The kind of an object, if it is read.
    #[must_use]
    pub fn of(object: &Value) -> Option<Self> {
        let text = |field: &str| object.get(field).and_then(Value::as_str);
        let group = text("apiVersion")?.rsplit_once('/').map_or("", |(group, _)| group);
        match (group, text("kind")?) {
            ("apps", "Deployment") => Some(Self::Deployment),
            ("", "ConfigMap") => Some(Self::ConfigMap),
            ("", "Secret") => Some(Self::Secret),
            ("llmd.ai", "VariantAutoscaling") => Some(Self::VariantAutoscaling),
            ("autoscaling", "HorizontalPodAutoscaler") => Some(Self::HorizontalPodAutoscaler),
            ("keda.sh", "ScaledObject") => Some(Self::ScaledObject),
            ("apiregistration.k8s.io", "APIService") => Some(Self::ApiService),
            ("apiextensions.k8s.io", "CustomResourceDefinition") => Some(Self::CustomResourceDefinition),
            _ => None,
        }
    }

    const fn is_namespaced(self) -> bool {
        !matches!(self, Self::ApiService | Self::CustomResourceDefinition)
    }
}

impl Objects {
    /// No objects yet, and later those of a cluster: of all namespaces or of one.
    #[must_use]
    pub fn of_cluster(namespace: Option<&str>) -> Self {
        Self { namespace: namespace.map(str::to_owned), is_cluster: true, ..Self::default() }
    }

    /// Adds the objects of a YAML or JSON text from `origin`. `namespace` is that of objects that name none.
    pub fn add_text(&mut self, origin: &str, text: &str, namespace: &str) {
        for (number, document) in documents::objects(text) {
            let origin = format!("{origin}, document {number}");
            match document {
                Err(cause) => {
                    self.add_unread(None, format!("{origin}: not YAML or JSON: {cause}; correct it"))
                }
                Ok(mut object) => {
                    let Some(kind) = Kind::of(&object) else { continue };
                    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
                    if let Some(metadata) = metadata.filter(|_| kind.is_namespaced()) {
                        metadata.entry("namespace").or_insert_with(|| namespace.into());
                    }
                    self.add(kind, &origin, object);
                }
            }
        }
    }

    /// Adds an object that was read from `origin`.
    pub fn add(&mut self, kind: Kind, origin: &str, object: Value) {
        self.seen.insert(kind);
        if let Err(cause) = self.try_add(kind, object) {
            self.add_unread(Some(kind), format!("{origin}: {cause}"));
        }
    }

    /// Adds what could not be read: what, why, and what to do. Without a `kind`, objects of any kind may be missing.
    pub fn add_unread(&mut self, kind: Option<Kind>, text: String) {
        self.incomplete.extend(kind.map_or_else(|| Kind::ALL.to_vec(), |kind| vec![kind]));
        // Two lists of one kind fail for one reason.
        if !self.unread.contains(&text) {
            self.unread.push(text);
        }
    }

    /// Whether there may be objects of a kind that were not read.
    pub(super) fn is_unread(&self, kind: Kind) -> bool {
        self.incomplete.contains(&kind) || self.is_absent_from_files(kind)
    }

    /// Whether files were read and none of them has an object of a kind: this does not show that the cluster has none.
    pub(super) fn is_absent_from_files(&self, kind: Kind) -> bool {
        // Most clusters have no ScaledObjects; where there are some, KEDA has made HPAs.
        let is_expected =
            kind != Kind::ScaledObject || self.hpas.values().any(|hpa| is_of_keda(&hpa.metadata));
        !self.is_cluster && !self.seen.contains(&kind) && is_expected
    }

    /// How many things could not be read.
    #[must_use]
    pub fn unread(&self) -> usize {
        self.unread.len()
    }

    /// Notes that the Secrets of a release were listed, so that one without any is unknown to Helm.
    pub fn note_listed_release(&mut self, namespace: &str, name: &str) {
        self.listed_releases.insert(ObjectName::new(namespace, name));
    }

    /// Keeps only the controller with this name, as `NAMESPACE/NAME`.
    ///
    /// # Errors
    /// Names the controllers that exist.
    pub fn choose_controller(&mut self, chosen: &str) -> Result<(), String> {
        if !self.controllers.keys().any(|name| name.to_string() == chosen) {
            let names = self.controllers.keys().map(ToString::to_string).collect::<Vec<_>>();
            let names = first_names(names.into_iter(), MAX_CONTROLLERS, ", ");
            return Err(format!(
                "--controller {}: no such controller of WVA; there are: {names}",
                quoted(chosen)
            ));
        }
        self.controllers.retain(|name, _| name.to_string() == chosen);
        Ok(())
    }

    fn try_add(&mut self, kind: Kind, mut object: Value) -> Result<(), String> {
        quantities_as_text(&mut object);
        let metadata: ObjectMeta = parse(object.get("metadata").cloned().unwrap_or_default())?;
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let name = ObjectName { namespace: text(&metadata.namespace), name: text(&metadata.name) };
        if !is_name(&name.name) || kind.is_namespaced() && !is_name(&name.namespace) {
            return Err(format!("{} is not the name of an object", quoted(&name.to_string())));
        }
        let failed = |cause: String| format!("{kind:?} {name}: {cause}");
        match kind {
            Kind::Deployment => {
                let deployment: Deployment = parse(object).map_err(failed)?;
                if is_controller(&deployment) {
                    self.controllers.insert(name, deployment);
                }
            }
            Kind::ConfigMap => {
                let config_map = parse(object).map_err(failed)?;
                self.config_maps.insert(name, config_map);
            }
            Kind::Secret => self.add_release(&metadata, object).map_err(failed)?,
            Kind::VariantAutoscaling => self.add_variant(name.clone(), object).map_err(failed)?,
            Kind::HorizontalPodAutoscaler => {
                if object.get("apiVersion").is_some_and(|version| version != "autoscaling/v2") {
                    return Err(failed(
                        "its apiVersion is not autoscaling/v2: read it with `kubectl get hpa.v2.autoscaling`"
                            .into(),
                    ));
                }
                self.add_annotated(VariantKind::HorizontalPodAutoscaler, &name, &metadata, &object);
                let hpa = parse(object).map_err(failed)?;
                self.hpas.insert(name, hpa);
            }
            Kind::ScaledObject => {
                self.add_annotated(VariantKind::ScaledObject, &name, &metadata, &object);
                let scaled_object = parse(object).map_err(failed)?;
                self.scaled_objects.insert(name, scaled_object);
            }
            Kind::ApiService => {
                if metrics_apis().any(|api| api == name.name) {
                    let api_service = parse(object).map_err(failed)?;
                    self.api_services.insert(name.name, api_service);
                }
            }
            Kind::CustomResourceDefinition if name.name == CRD_NAME => self.definition = Some(metadata),
            Kind::CustomResourceDefinition => {}
        }
        Ok(())
    }

    fn add_variant(&mut self, name: ObjectName, object: Value) -> Result<(), String> {
        let fields = object.get("spec").and_then(Value::as_object).map(|spec| spec.keys().cloned().collect());
        let hint = "; set the field, or `wva` gives this variant no number";
        let variant = parse(object).map_err(|cause| cause + hint)?;
        self.fields.insert(name.clone(), fields.unwrap_or_default());
        self.variants.insert(name, variant);
        Ok(())
    }

    /// The metadata of the objects that annotations make variants, with their kinds and names.
    pub(super) fn annotated_metadata(
        &self,
    ) -> impl Iterator<Item = (&'static str, &ObjectName, &ObjectMeta)> {
        self.annotated.keys().filter_map(|(name, kind)| {
            let metadata = match kind {
                VariantKind::HorizontalPodAutoscaler => &self.hpas.get(name)?.metadata,
                VariantKind::ScaledObject => &self.scaled_objects.get(name)?.metadata,
                VariantKind::VariantAutoscaling => return None,
            };
            Some((kind.as_str(), name, metadata))
        })
    }

    fn add_annotated(&mut self, kind: VariantKind, name: &ObjectName, metadata: &ObjectMeta, object: &Value) {
        let variant = annotated_manifest(kind, metadata, object);
        self.annotated.extend(variant.map(|variant| ((name.clone(), kind), variant)));
    }

    /// Keeps the newest revision of a release.
    fn add_release(&mut self, metadata: &ObjectMeta, object: Value) -> Result<(), String> {
        if object.get("type").is_none_or(|type_| type_ != SECRET_TYPE) {
            return Ok(());
        }
        let label = metadata.labels.as_ref().and_then(|labels| labels.get("name"));
        let release =
            label.filter(|name| is_name(name)).ok_or("its label `name` is not the name of a release")?;
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let name = ObjectName::new(namespace, release);
        let owner = metadata.labels.as_ref().and_then(|labels| labels.get("owner"));
        if owner.is_some_and(|owner| owner == FORGOTTEN) {
            self.forgotten.insert(name);
            return Ok(());
        }
        // The causes never quote the Secret, which may contain credentials.
        let secret: Secret = serde_json::from_value(object).map_err(|_| "it is no Secret")?;
        let decoded = Release::decode(&secret, namespace)?;
        let newest = self.releases.entry(name).or_insert_with(|| decoded.clone());
        if newest.version < decoded.version {
            *newest = decoded;
        }
        Ok(())
    }

    /// The objects that are needed to judge these.
    pub(super) fn needed(&mut self) -> BTreeSet<Needed> {
        let mut needed = BTreeSet::new();
        let namespaces: BTreeSet<_> = self.controllers.keys().map(|name| name.namespace.clone()).collect();
        if namespaces.len() > MAX_CONTROLLERS {
            self.unread.push(format!(
                "controllers of WVA run in {} namespaces, and only those of {MAX_CONTROLLERS} are read; give one with -n",
                namespaces.len()
            ));
        }
        needed.extend(namespaces.into_iter().take(MAX_CONTROLLERS).map(Needed::ConfigMapsOf));
        let service =
            self.api_services.get(EXTERNAL_METRICS).and_then(|api| api.spec.as_ref()?.service.as_ref());
        let namespace = service.and_then(|service| service.namespace.clone());
        needed.extend(namespace.filter(|namespace| is_name(namespace)).map(Needed::ConfigMapsOf));
        let releases: BTreeSet<_> = self.owned().filter_map(|(_, _, metadata)| owner(metadata)).collect();
        if releases.len() > MAX_RELEASES {
            self.unread.push(format!(
                "{} releases of Helm own these objects, and only {MAX_RELEASES} are read; give one namespace with -n",
                releases.len()
            ));
        }
        let releases = releases.into_iter().take(MAX_RELEASES);
        needed.extend(releases.map(|release| Needed::Release(release.namespace, release.name)));
        needed
    }

    /// The objects that the removal of a release may delete: kind, name and metadata.
    pub(super) fn owned(&self) -> impl Iterator<Item = (&'static str, ObjectName, &ObjectMeta)> {
        let controllers =
            self.controllers.iter().map(|(name, object)| ("Deployment", name, &object.metadata));
        let variants =
            self.variants.iter().map(|(name, object)| ("VariantAutoscaling", name, &object.metadata));
        let hpas = self.hpas.iter().map(|(name, object)| ("HorizontalPodAutoscaler", name, &object.metadata));
        let scaled =
            self.scaled_objects.iter().map(|(name, object)| ("ScaledObject", name, &object.metadata));
        let namespaced = controllers.chain(variants).chain(hpas).chain(scaled);
        let definition = self.definition.as_ref();
        let definition =
            definition.map(|metadata| ("CustomResourceDefinition", ObjectName::new("", CRD_NAME), metadata));
        let apis = self
            .api_services
            .iter()
            .map(|(name, object)| ("APIService", ObjectName::new("", name), &object.metadata));
        namespaced.map(|(kind, name, metadata)| (kind, name.clone(), metadata)).chain(definition).chain(apis)
    }
}

/// The APIServices of all metrics that HPAs read.
pub fn metrics_apis() -> impl Iterator<Item = &'static str> {
    METRICS_APIS.into_iter().chain([RESOURCE_METRICS])
}

/// Whether it is one of WVA's controllers: by its label, or by its image if its older label or an argument agrees. Anybody may give an
/// image such a name.
fn is_controller(deployment: &Deployment) -> bool {
    let has_label = |key: &str, value: &str| {
        let labels = deployment.metadata.labels.as_ref();
        labels.and_then(|labels| labels.get(key)).is_some_and(|label| label == value)
    };
    let pods = deployment.spec.iter().filter_map(|spec| spec.template.spec.as_ref());
    let mut of_image = pods
        .flat_map(|pod| &pod.containers)
        .filter(|container| container.image.as_deref().is_some_and(is_image_of_wva));
    let has_argument = |container: &Container| {
        container
            .args
            .iter()
            .flatten()
            .any(|argument| argument.trim_start_matches('-').starts_with("leader-elect"))
    };
    has_label(PROGRAM_LABEL, WVA)
        || of_image
            .any(|container| has_label("control-plane", "controller-manager") || has_argument(container))
}

/// Whether the repository of an image is WVA's.
pub(super) fn is_image_of_wva(image: &str) -> bool {
    let repository = image.rsplit('/').next().unwrap_or_default();
    repository.split([':', '@']).next().is_some_and(|name| name.ends_with(WVA))
}

/// Writes quantities as the API server does: in manifests they may be numbers. Elsewhere fields of these names are numbers.
pub(crate) fn quantities_as_text(value: &mut Value) {
    let as_text = |quantity: &mut Value| {
        if let Value::Number(number) = quantity {
            *quantity = Value::String(number.to_string());
        }
    };
    match value {
        Value::Array(items) => items.iter_mut().for_each(quantities_as_text),
        Value::Object(fields) => {
            for (name, field) in fields {
                match (name.as_str(), field) {
                    ("limits" | "requests", Value::Object(resources)) => {
                        resources.values_mut().for_each(as_text)
                    }
                    ("target", Value::Object(target)) => {
                        for name in ["value", "averageValue"] {
                            if let Some(quantity) = target.get_mut(name) {
                                as_text(quantity);
                            }
                        }
                    }
                    ("tolerance", field) => as_text(field),
                    (_, field) => quantities_as_text(field),
                }
            }
        }
        _ => {}
    }
}

fn parse<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| error.to_string())
}
