//! Whose number an HPA reads.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use smol_str::SmolStr;
use wva_core::VariantId;
use wva_core::text::{first_names, quoted};

use super::input::{Candidate, Label, Workload};
use super::metric::Read;
use super::words::{Severity, Words};

/// Most variants that a sentence names.
const MAX_NAMED: usize = 5;
/// The labels that name a variant.
const NAME_LABELS: [&str; 2] = ["variant_name", "variant"];

/// What is wrong with what is selected.
#[derive(Debug, Clone, PartialEq)]
pub enum SelectorIssue {
    /// It finds no variant.
    None {
        /// The selector as text.
        selector: String,
        /// Why, as far as that can be told.
        cause: Mismatch,
        /// The variant to select, if it is known.
        meant: Option<SmolStr>,
    },
    /// It finds several, whose numbers are added up.
    Several {
        /// The selector as text.
        selector: String,
        /// Their names.
        names: Vec<SmolStr>,
        /// The variant to select, if it is known.
        meant: Option<SmolStr>,
    },
    /// It finds a variant with another scale target.
    Other {
        /// That variant.
        reads: VariantId,
        /// Its target.
        its_target: String,
        /// What the autoscaler scales.
        scales: String,
        /// The variant to select, if it is known.
        meant: Option<SmolStr>,
        /// Whether it reads the number as a metric of an object.
        is_object: bool,
    },
    /// It names no variant, and finds one only because there is no second one.
    NamesNone {
        /// That variant.
        reads: VariantId,
    },
    /// The described object has no number.
    ObjectWithoutNumber {
        /// Its kind and name.
        object: String,
        /// The variant to describe, if it is known.
        meant: Option<SmolStr>,
    },
}

/// Why a selector finds no variant.
#[derive(Debug, Clone, PartialEq)]
pub enum Mismatch {
    /// Of a variant that it names, these labels have other values, or do not exist.
    Labels {
        /// The variant.
        name: SmolStr,
        /// The labels, with the values that the number has.
        labels: Vec<(String, Option<String>)>,
    },
    /// It names no variant of the namespace.
    Names {
        /// The first variants that the namespace has.
        first: Vec<SmolStr>,
        /// How many it has.
        count: usize,
    },
}

/// What is wrong with a read, if anything.
pub(super) fn judge(read: &Read, workload: &Workload<'_>) -> Option<SelectorIssue> {
    let meant = workload.variant.map(|variant| variant.id.name.clone());
    match read {
        Read::External(selector) => judge_selector(&selector.clone().unwrap_or_default(), workload, meant),
        Read::Object(kind, name) => {
            let is_described = |candidate: &&Candidate| match kind.as_str() {
                "VariantAutoscaling" => candidate.variant.name == *name,
                kind => candidate.target.kind == *kind && candidate.target.name == *name,
            };
            match workload.candidates.of(workload.namespace).find(is_described) {
                None if !workload.knows_variants => None,
                None => Some(SelectorIssue::ObjectWithoutNumber {
                    object: format!("{kind} {}", quoted(name)),
                    meant,
                }),
                Some(found) => other_target(found, workload, (meant, true)),
            }
        }
    }
}

fn judge_selector(
    selector: &LabelSelector,
    workload: &Workload<'_>,
    meant: Option<SmolStr>,
) -> Option<SelectorIssue> {
    let requirements = requirements(selector);
    let selects = |candidate: &&Candidate| {
        requirements.iter().all(|requirement| holds(requirement, candidate.label(&requirement.key)))
    };
    let candidates = || workload.candidates.of(workload.namespace);
    // Of thousands in a namespace, nearly every selector names one.
    let names = names(&requirements);
    let named = || {
        names
            .unwrap_or_default()
            .iter()
            .filter_map(|name| workload.candidates.named(workload.namespace, name))
    };
    let found: Vec<&Candidate> = if names.is_some() {
        named().filter(selects).collect()
    } else {
        candidates().filter(selects).collect()
    };
    let is_unknown = |candidate: &&Candidate| {
        requirements.iter().any(|requirement| candidate.label(&requirement.key) == Label::Unknown)
    };
    let mut variants: Vec<&VariantId> = found.iter().map(|candidate| &candidate.variant).collect();
    variants.sort();
    variants.dedup();
    let is_certain = !found.iter().any(is_unknown) || names.is_some() && variants.len() == 1;
    match (&variants[..], found.first()) {
        ([_, ..], _) if !is_certain => None,
        ([id], Some(candidate)) => other_target(candidate, workload, (meant, false))
            .or_else(|| names.is_none().then(|| SelectorIssue::NamesNone { reads: (*id).clone() })),
        ([], _) | (_, None) if !workload.knows_variants => None,
        ([], _) | (_, None) => {
            let cause = named().next().map_or_else(
                || Mismatch::Names {
                    first: candidates().take(MAX_NAMED).map(|candidate| candidate.name.clone()).collect(),
                    count: candidates().count(),
                },
                |named| Mismatch::of(named, &requirements),
            );
            Some(SelectorIssue::None { selector: text(requirements), cause, meant })
        }
        (several, _) => {
            let names = several.iter().map(|id| id.name.clone()).collect();
            Some(SelectorIssue::Several { selector: text(requirements), names, meant })
        }
    }
}

/// The names of variants that a selector gives; `None` if it gives none.
#[must_use]
pub fn selected_names(selector: &LabelSelector) -> Option<Vec<String>> {
    names(&requirements(selector)).map(<[String]>::to_vec)
}

/// The names that a selector gives; `None` if it gives none.
fn names(requirements: &[LabelSelectorRequirement]) -> Option<&[String]> {
    let is_name =
        |own: &&LabelSelectorRequirement| NAME_LABELS.contains(&own.key.as_str()) && own.operator == "In";
    requirements.iter().find(is_name).map(|own| own.values.as_deref().unwrap_or_default())
}

/// A read of the number of another workload.
fn other_target(
    found: &Candidate,
    workload: &Workload<'_>,
    (meant, is_object): (Option<SmolStr>, bool),
) -> Option<SelectorIssue> {
    (found.target != *workload.target).then(|| SelectorIssue::Other {
        reads: found.variant.clone(),
        its_target: found.target.to_string(),
        scales: workload.target.to_string(),
        meant,
        is_object,
    })
}

fn requirements(selector: &LabelSelector) -> Vec<LabelSelectorRequirement> {
    let equal = selector.match_labels.iter().flatten().map(|(key, value)| LabelSelectorRequirement {
        key: key.clone(),
        operator: "In".into(),
        values: Some(vec![value.clone()]),
    });
    equal.chain(selector.match_expressions.iter().flatten().cloned()).collect()
}

/// Whether a requirement holds; of an unknown label it may.
fn holds(requirement: &LabelSelectorRequirement, label: Label<&str>) -> bool {
    let label = match label {
        Label::Known(value) => Some(value),
        Label::Absent => None,
        Label::Unknown => return true,
    };
    let is_listed = |label: &str| requirement.values.iter().flatten().any(|value| value.as_str() == label);
    match requirement.operator.as_str() {
        "In" => label.is_some_and(is_listed),
        "NotIn" => !label.is_some_and(is_listed),
        "Exists" => label.is_some(),
        "DoesNotExist" => label.is_none(),
        _ => false,
    }
}

/// A selector as text.
fn text(requirements: Vec<LabelSelectorRequirement>) -> String {
    let one = |requirement: LabelSelectorRequirement| {
        let values = requirement.values.unwrap_or_default().join(",");
        match requirement.operator.as_str() {
            "In" if !values.contains(',') => format!("{}={values}", requirement.key),
            "In" => format!("{} in ({values})", requirement.key),
            "NotIn" => format!("{} notin ({values})", requirement.key),
            "DoesNotExist" => format!("!{}", requirement.key),
            _ => requirement.key,
        }
    };
    requirements.into_iter().map(one).collect::<Vec<_>>().join(",")
}

fn named(meant: Option<&SmolStr>) -> &str {
    meant.map_or("VARIANT", SmolStr::as_str)
}

fn select_by_name(meant: Option<&SmolStr>) -> String {
    format!(
        "spec:\n  metrics:\n  - external:\n      metric:\n        name: wva_desired_replicas\n        selector: {{matchLabels: {{variant_name: \"{}\"}}}}",
        named(meant)
    )
}

fn describe(meant: Option<&SmolStr>) -> String {
    format!(
        "spec:\n  metrics:\n  - object:\n      describedObject: {{apiVersion: llmd.ai/v1alpha1, kind: VariantAutoscaling, name: \"{}\"}}",
        named(meant)
    )
}

impl Mismatch {
    /// Why a selector does not find the variant that it names.
    fn of(named: &Candidate, requirements: &[LabelSelectorRequirement]) -> Self {
        let failed = requirements.iter().filter(|own| !holds(own, named.label(&own.key)));
        let labels = failed.map(|own| {
            let value = match named.label(&own.key) {
                Label::Known(value) => Some(value.to_owned()),
                Label::Absent | Label::Unknown => None,
            };
            (own.key.clone(), value)
        });
        Self::Labels { name: named.name.clone(), labels: labels.collect() }
    }

    fn words(&self) -> String {
        match self {
            Self::Labels { name, labels } => {
                let causes = labels.iter().map(|(key, value)| match value {
                    Some(value) => format!("{} is {} here", quoted(key), quoted(value)),
                    None => {
                        format!("{} is no label of the number (Prometheus may have added it)", quoted(key))
                    }
                });
                format!("of the variant {name} that it names, {}", causes.collect::<Vec<_>>().join("; "))
            }
            Self::Names { count: 0, .. } => "the namespace has no variants".into(),
            Self::Names { first, count } => {
                let more = count.saturating_sub(first.len());
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                format!("the namespace has {}{more}", first.join(", "))
            }
        }
    }
}

impl SelectorIssue {
    pub(super) fn words(&self) -> Words {
        match self {
            Self::None { selector, cause, meant } => Words::new(
                (Severity::Error, "SelectsNoVariant"),
                format!("its selector is {}", quoted(selector)),
                format!(
                    "it finds no variant ({}): the HPA gets an error and keeps its replicas",
                    cause.words()
                ),
                select_by_name(meant.as_ref()),
            ),
            Self::Several { selector, names, meant } => Words::new(
                (Severity::Error, "SelectsSeveralVariants"),
                format!("its selector is {}", quoted(selector)),
                format!(
                    "it finds {} variants ({}), and the HPA adds up what it reads: the workload gets the replicas of all of them",
                    names.len(),
                    first_names(names.iter().map(ToString::to_string), MAX_NAMED, ", ")
                ),
                select_by_name(meant.as_ref()),
            ),
            Self::Other { reads, its_target, scales, meant, is_object } => Words::new(
                (Severity::Error, "FollowsAnotherVariant"),
                format!("it reads variant {reads}, whose scale target is {its_target}, and scales {scales}"),
                format!("{scales} gets the replicas that {its_target} needs"),
                if *is_object { describe(meant.as_ref()) } else { select_by_name(meant.as_ref()) },
            ),
            Self::NamesNone { reads } => Words::new(
                (Severity::Note, "SelectorNamesNoVariant"),
                "its selector names no variant".to_owned(),
                format!(
                    "it finds {reads}, the only one there is; with a second one in the namespace, the HPA would add up both numbers"
                ),
                select_by_name(Some(&reads.name)),
            ),
            Self::ObjectWithoutNumber { object, meant } => Words::new(
                (Severity::Error, "ObjectWithoutNumber"),
                format!("it reads the number as a metric of {object}"),
                "no variant is that object or scales it: the HPA gets an error and keeps its replicas",
                describe(meant.as_ref()),
            ),
        }
    }
}
