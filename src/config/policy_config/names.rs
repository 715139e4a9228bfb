//! The names of the ConfigMaps: those that are configured, and those that WVA's releases and their charts gave them.

use std::collections::BTreeMap;

use super::super::args::{ACCELERATOR_COSTS, QUEUEING_MODEL, SATURATION, SCALE_TO_ZERO, SERVICE_CLASSES};

/// The purpose of a ConfigMap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConfigMapKind {
    /// Thresholds and analyzers by model, and limits.
    Saturation,
    /// Scaling to zero by model.
    ScaleToZero,
    /// The queueing model. Its default entry makes it the analyzer of all models.
    QueueingModel,
    /// The service classes of the legacy solver.
    ServiceClasses,
    /// The accelerators of the legacy solver.
    AcceleratorCosts,
}

/// The names of the ConfigMaps, which are unique.
pub type ConfigMapNames = BTreeMap<ConfigMapKind, String>;

/// The names of a ConfigMap in installations of this program and of WVA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownNames {
    /// Its name unless configured.
    pub default: &'static str,
    /// Names that WVA's releases gave it, the first of which counts before the second.
    exact: &'static [&'static str],
    /// Endings of names that begin with the name of a Helm release or a prefix of kustomize.
    endings: &'static [&'static str],
}

/// The ConfigMap of a kind among those that exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found<'a> {
    /// There is none.
    None,
    /// The one that counts.
    Only(&'a str),
    /// Several whose names end as WVA's do, so that none counts.
    Ambiguous(Vec<&'a str>),
}

impl ConfigMapKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::Saturation,
        Self::ScaleToZero,
        Self::QueueingModel,
        Self::ServiceClasses,
        Self::AcceleratorCosts,
    ];

    /// What its entries decide about.
    #[must_use]
    pub const fn purpose(self) -> &'static str {
        match self {
            Self::Saturation => "thresholds, analyzers and limits",
            Self::ScaleToZero => "scaling to zero",
            Self::QueueingModel => "the queueing model",
            Self::ServiceClasses => "service classes",
            Self::AcceleratorCosts => "the costs of accelerators",
        }
    }

    /// Whether a namespace with variants may have a ConfigMap of this kind, which replaces that of the release namespace there.
    #[must_use]
    pub const fn may_be_local(self) -> bool {
        matches!(self, Self::Saturation | Self::ScaleToZero | Self::QueueingModel)
    }

    /// The flag that sets its name.
    #[must_use]
    pub const fn flag(self) -> &'static str {
        match self {
            Self::Saturation => "--saturation-config-map",
            Self::ScaleToZero => "--scale-to-zero-config-map",
            Self::QueueingModel => "--queueing-model-config-map",
            Self::ServiceClasses => "--service-classes-config-map",
            Self::AcceleratorCosts => "--accelerator-costs-config-map",
        }
    }

    /// Its names.
    #[must_use]
    pub const fn names(self) -> KnownNames {
        match self {
            Self::Saturation => KnownNames {
                default: SATURATION,
                exact: &["saturation-scaling-config", "capacity-scaling-config"],
                endings: &["-saturation-scaling-config", "-capacity-scaling-config"],
            },
            Self::ScaleToZero => KnownNames {
                default: SCALE_TO_ZERO,
                exact: &["model-scale-to-zero-config"],
                endings: &["-model-scale-to-zero-config"],
            },
            Self::QueueingModel => KnownNames {
                default: QUEUEING_MODEL,
                exact: &["queueing-model-config"],
                endings: &["-queueing-model-config"],
            },
            Self::ServiceClasses => KnownNames {
                default: SERVICE_CLASSES,
                exact: &["service-class-config"],
                endings: &["-service-classes-config", "-service-class-config"],
            },
            Self::AcceleratorCosts => KnownNames {
                default: ACCELERATOR_COSTS,
                exact: &["accelerator-costs"],
                endings: &["-accelerator-unit-costs", "-accelerator-costs"],
            },
        }
    }
}

impl KnownNames {
    /// Whether WVA gave this name to it, other than the default name.
    #[must_use]
    pub fn is_of_wva(self, name: &str) -> bool {
        let has_ending = || self.endings.iter().any(|ending| name.ends_with(ending));
        name != self.default && (self.exact.contains(&name) || has_ending())
    }

    /// The ConfigMap among the `existing` names of the release namespace: the one that is called `configured`. If that is the default
    /// name, then else the first with a name that WVA gave it, else the only one whose name ends so.
    pub fn find<'a>(self, configured: &str, existing: impl Iterator<Item = &'a str> + Clone) -> Found<'a> {
        let called = |name: &str| existing.clone().find(|existing| *existing == name);
        if let Some(name) = called(configured) {
            return Found::Only(name);
        }
        if configured != self.default {
            return Found::None;
        }
        if let Some(name) = self.exact.iter().find_map(|name| called(name)) {
            return Found::Only(name);
        }
        let matching: Vec<&str> = existing.filter(|name| self.is_of_wva(name)).collect();
        match matching.as_slice() {
            [] => Found::None,
            [name] => Found::Only(name),
            _ => Found::Ambiguous(matching),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ConfigMapKind::{AcceleratorCosts, QueueingModel, Saturation, ScaleToZero, ServiceClasses};

    const PAGE: &str = include_str!("../../../docs/configuration.md");

    fn found<'a>(kind: ConfigMapKind, existing: &[&'a str]) -> Found<'a> {
        kind.names().find(kind.names().default, existing.iter().copied())
    }

    #[test]
    fn the_configmaps_of_every_release_of_wva_are_found() {
        for (kind, name) in [
            (Saturation, "wva-saturation-scaling-config"),
            (Saturation, "saturation-scaling-config"),
            (Saturation, "capacity-scaling-config"),
            (Saturation, "workload-variant-autoscaler-saturation-scaling-config"),
            (Saturation, "prod-workload-variant-autoscaler-wva-saturation-scaling-config"),
            (ScaleToZero, "wva-model-scale-to-zero-config"),
            (ScaleToZero, "prod-wva-model-scale-to-zero-config"),
            (QueueingModel, "prod-wva-queueing-model-config"),
            (ServiceClasses, "service-class-config"),
            (ServiceClasses, "prod-service-classes-config"),
            (AcceleratorCosts, "accelerator-costs"),
            (AcceleratorCosts, "prod-accelerator-unit-costs"),
        ] {
            let existing = ["kube-root-ca.crt", name, "wva-state-memory-0"];
            for found_kind in ConfigMapKind::ALL {
                let expected = if found_kind == kind { Found::Only(name) } else { Found::None };
                assert_eq!(found(found_kind, &existing), expected, "{name} as {found_kind:?}");
            }
        }
    }

    #[test]
    fn our_name_counts_before_wvas_and_an_exact_one_before_one_with_a_prefix() {
        let (own, exact, prefixed) =
            ("wva-saturation-scaling-config", "capacity-scaling-config", "a-saturation-scaling-config");
        assert_eq!(found(Saturation, &[prefixed, exact, own]), Found::Only(own));
        assert_eq!(found(Saturation, &[prefixed, exact]), Found::Only(exact));
        let two = [prefixed, "b-capacity-scaling-config"];
        assert_eq!(found(Saturation, &two), Found::Ambiguous(two.into()));
    }

    #[test]
    fn a_configured_name_counts_alone() {
        let existing = ["wva-saturation-scaling-config", "mine"].into_iter();
        assert_eq!(Saturation.names().find("mine", existing.clone()), Found::Only("mine"));
        assert_eq!(Saturation.names().find("missing", existing), Found::None);
    }

    #[test]
    fn the_page_has_every_name() {
        let code = |names: &[&str], star: &str| {
            names.iter().map(|name| format!("`{star}{name}`")).collect::<Vec<_>>().join(", ")
        };
        for names in ConfigMapKind::ALL.map(ConfigMapKind::names) {
            let KnownNames { default, exact, endings } = names;
            let row = format!("| `{default}` | {} | {} |\n", code(exact, ""), code(endings, "*"));
            assert!(PAGE.contains(&row), "docs/configuration.md must contain exactly:\n{row}");
        }
    }
}
