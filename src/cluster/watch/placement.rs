//! Which nodes the pods of a template may be placed on: those whose taints it tolerates, and whose labels its node selector and
//! required node affinity ask for. As hashes: 8 bytes for what would be about 80. Pure.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};

use super::partial_objects::{PartialTaint, PartialToleration, TemplateSpec};
use super::template::{GPU_RESOURCES, gpus_by_resource};

/// Most tolerations, selected labels, and terms with their requirements and values, of one template: more are a mistake, and the scheduler
/// alone says where its pods fit.
const MAX_RULES: usize = 64;
/// Most labels of a node that are kept: those with GPU features have about a hundred.
const MAX_LABELS: usize = 512;
/// Effects of taints that keep pods off a node. That of the third kind is only a preference.
const NO_SCHEDULE: &str = "NoSchedule";
const NO_EXECUTE: &str = "NoExecute";

/// What keeps pods off a node, or draws them to it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NodeTraits {
    /// Keys, and keys with their values, sorted.
    labels: Box<[u64]>,
    taints: Box<[Taint]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Taint {
    key: u64,
    value: u64,
    effect: u64,
}

/// The nodes that a template asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Placement {
    tolerations: Box<[Toleration]>,
    /// Labels that a node must have.
    selected: Box<[u64]>,
    /// Of these, a node must meet one, unless there are none.
    terms: Box<[Box<[Requirement]>]>,
}

/// `None` tolerates every key, value or effect.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Toleration {
    key: Option<u64>,
    value: Option<u64>,
    effect: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Requirement {
    /// Has one of these.
    Any(Box<[u64]>),
    /// Has none of these.
    None(Box<[u64]>),
    /// The scheduler alone can say.
    Unknown,
}

impl NodeTraits {
    pub(crate) fn new(labels: Option<&BTreeMap<String, String>>, taints: &[PartialTaint]) -> Self {
        let labels = labels.into_iter().flatten().take(MAX_LABELS);
        let mut labels: Vec<u64> = labels.flat_map(|label| [hash(&label.0), hash(&label)]).collect();
        labels.sort_unstable();
        let keeps_off = |taint: &&PartialTaint| [NO_SCHEDULE, NO_EXECUTE].contains(&taint.effect.as_str());
        let taint = |taint: &PartialTaint| Taint {
            key: hash(&taint.key),
            value: hash(&taint.value.as_deref().unwrap_or_default()),
            effect: hash(&taint.effect),
        };
        Self { labels: labels.into(), taints: taints.iter().filter(keeps_off).map(taint).collect() }
    }

    fn has(&self, label: &u64) -> bool {
        self.labels.binary_search(label).is_ok()
    }
}

impl Placement {
    /// `None` for a template without GPUs or claims, and for one with more rules than are kept.
    pub(crate) fn of(template: &TemplateSpec) -> Option<Self> {
        let tolerated = tolerated_gpus(template);
        let affinity = template.affinity.as_ref();
        let terms: Vec<_> = affinity.into_iter().flat_map(|affinity| affinity.required()).collect();
        let selected = template.node_selector.iter().flatten();
        let rules = terms.iter().map(|term| count_rules(term)).fold(terms.len(), usize::saturating_add);
        let counts = [template.tolerations.len(), rules, selected.clone().count()];
        let asks_for_gpus = !tolerated.is_empty() || !template.resource_claims.is_empty();
        if !asks_for_gpus || counts.into_iter().any(|count| count > MAX_RULES) {
            return None;
        }
        let mut tolerations: Vec<_> = template.tolerations.iter().map(toleration).chain(tolerated).collect();
        tolerations.sort_unstable();
        Some(Self {
            tolerations: tolerations.into(),
            selected: selected.map(|label| hash(&label)).collect(),
            terms: terms.into_iter().map(requirements).collect(),
        })
    }

    /// Whether the scheduler may place pods on a node, as far as taints and labels decide.
    pub(crate) fn accepts(&self, node: &NodeTraits) -> bool {
        let meets = |requirement: &Requirement| match requirement {
            Requirement::Any(labels) => labels.iter().any(|label| node.has(label)),
            Requirement::None(labels) => !labels.iter().any(|label| node.has(label)),
            Requirement::Unknown => true,
        };
        let is_tolerated = |taint: &Taint| self.tolerations.iter().any(|own| own.tolerates(taint));
        node.taints.iter().all(is_tolerated)
            && self.selected.iter().all(|label| node.has(label))
            && (self.terms.is_empty() || self.terms.iter().any(|term| term.iter().all(meets)))
    }
}

impl Toleration {
    fn tolerates(&self, taint: &Taint) -> bool {
        let is_for = |own: Option<u64>, of_taint| own.is_none_or(|own| own == of_taint);
        is_for(self.key, taint.key) && is_for(self.value, taint.value) && is_for(self.effect, taint.effect)
    }
}

/// Clusters whose GPU nodes have a taint called like the resource let admission add its toleration to pods, not to templates.
fn tolerated_gpus(template: &TemplateSpec) -> Vec<Toleration> {
    let requested = GPU_RESOURCES.iter().zip(gpus_by_resource(template, template, 1));
    let requested = requested.filter(|(_, gpus)| *gpus > 0);
    requested.map(|(name, _)| Toleration { key: Some(hash(name)), value: None, effect: None }).collect()
}

fn count_rules(term: &NodeSelectorTerm) -> usize {
    let labels = term.match_expressions.iter().flatten();
    let of_labels = labels.map(|label| 1 + label.values.as_ref().map_or(0, Vec::len));
    of_labels.sum::<usize>() + term.match_fields.as_ref().map_or(0, Vec::len)
}

/// An empty key with `Exists` is every key, and an empty effect every effect. An operator of a newer Kubernetes may tolerate any value.
fn toleration(own: &PartialToleration) -> Toleration {
    let some =
        |text: &Option<String>| text.as_deref().filter(|text| !text.is_empty()).map(|text| hash(&text));
    let is_equal = matches!(own.operator.as_deref(), None | Some("" | "Equal"));
    Toleration {
        key: some(&own.key),
        value: is_equal.then(|| hash(&own.value.as_deref().unwrap_or_default())),
        effect: some(&own.effect),
    }
}

fn requirements(term: &NodeSelectorTerm) -> Box<[Requirement]> {
    let fields = term.match_fields.iter().flatten().map(|_| Requirement::Unknown);
    let labels = term.match_expressions.iter().flatten().map(requirement);
    let all: Box<[Requirement]> = labels.chain(fields).collect();
    // As in Kubernetes, a term without requirements is met by no node.
    if all.is_empty() { [Requirement::Any(Box::default())].into() } else { all }
}

fn requirement(own: &NodeSelectorRequirement) -> Requirement {
    let labels = || own.values.iter().flatten().map(|value| hash(&(&own.key, value))).collect();
    match own.operator.as_str() {
        "In" => Requirement::Any(labels()),
        "NotIn" => Requirement::None(labels()),
        "Exists" => Requirement::Any([hash(&own.key)].into()),
        "DoesNotExist" => Requirement::None([hash(&own.key)].into()),
        _ => Requirement::Unknown,
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// What `spec` says beside a GPU.
    fn placement_of(mut spec: Value) -> Option<Placement> {
        spec["containers"] = json!([{ "resources": { "limits": { "nvidia.com/gpu": 1 } } }]);
        Placement::of(&serde_json::from_value(spec).unwrap())
    }

    fn placement(spec: Value) -> Placement {
        placement_of(spec).unwrap()
    }

    fn node(labels: Value, taints: Value) -> NodeTraits {
        let labels: BTreeMap<String, String> = serde_json::from_value(labels).unwrap();
        NodeTraits::new(Some(&labels), &serde_json::from_value::<Vec<PartialTaint>>(taints).unwrap())
    }

    #[test]
    fn a_taint_keeps_off_every_pod_that_does_not_tolerate_it() {
        let tainted = |effect: &str| {
            let taint = json!({ "key": "dedicated", "value": "present", "effect": effect });
            node(json!({}), json!([taint]))
        };
        let with = |toleration: Value| placement(json!({ "tolerations": [toleration] }));
        let nothing = placement(json!({}));
        assert!(nothing.accepts(&node(json!({}), json!([]))));
        assert!(nothing.accepts(&tainted("PreferNoSchedule")), "only a preference");
        for effect in ["NoSchedule", "NoExecute"] {
            assert!(!nothing.accepts(&tainted(effect)), "{effect}");
            for enough in [
                json!({ "operator": "Exists" }),
                json!({ "key": "dedicated", "operator": "Exists" }),
                json!({ "key": "dedicated", "operator": "Exists", "effect": effect }),
                json!({ "key": "dedicated", "value": "present" }),
                json!({ "key": "dedicated", "operator": "Equal", "value": "present", "effect": effect }),
            ] {
                assert!(with(enough.clone()).accepts(&tainted(effect)), "{enough}");
            }
            for less in [
                json!({ "key": "dedicated" }),
                json!({ "key": "dedicated", "operator": "Equal", "value": "absent" }),
                json!({ "key": "amd.com/gpu", "operator": "Exists" }),
                json!({ "key": "dedicated", "operator": "Exists", "effect": "PreferNoSchedule" }),
            ] {
                assert!(!with(less.clone()).accepts(&tainted(effect)), "{less}");
            }
        }
        let two = json!([{ "key": "a", "effect": "NoSchedule" }, { "key": "b", "effect": "NoSchedule" }]);
        let of_a = with(json!({ "key": "a", "operator": "Exists" }));
        assert!(!of_a.accepts(&node(json!({}), two)), "each of its taints");
    }

    #[test]
    fn a_node_has_every_selected_label_and_meets_a_term_of_the_required_affinity() {
        let node = node(json!({ "pool": "blue", "zone": "a", "gpu.memory": "80" }), json!([]));
        let selects = |labels: Value| placement(json!({ "nodeSelector": labels })).accepts(&node);
        assert!(selects(json!({ "pool": "blue", "zone": "a" })) && selects(json!({})));
        assert!(!selects(json!({ "pool": "red" })) && !selects(json!({ "pool": "blue", "rack": "1" })));
        let requires = |kind: &str, terms: Value| {
            let terms = if kind == REQUIRED { json!({ "nodeSelectorTerms": terms }) } else { terms };
            placement(json!({ "affinity": { "nodeAffinity": { kind: terms } } })).accepts(&node)
        };
        let term = |key: &str, operator: &str, values: &[&str]| {
            let expression = json!({ "key": key, "operator": operator, "values": values });
            json!({ "matchExpressions": [expression] })
        };
        let (red, blue) = (term("pool", "In", &["red"]), term("pool", "In", &["red", "blue"]));
        for (expected, terms) in [
            (true, json!([blue])),
            (false, json!([red])),
            (true, json!([red, blue])),
            (false, json!([term("pool", "NotIn", &["blue"])])),
            (true, json!([term("rack", "NotIn", &["1"])])),
            (true, json!([term("zone", "Exists", &[])])),
            (false, json!([term("zone", "DoesNotExist", &[])])),
            (true, json!([term("gpu.memory", "Gt", &["100"])])),
            (false, json!([{}])),
            (true, json!([])),
        ] {
            assert_eq!(requires(REQUIRED, terms.clone()), expected, "{terms}");
        }
        let preferred = json!([{ "weight": 1, "preference": red }]);
        assert!(requires("preferredDuringSchedulingIgnoredDuringExecution", preferred));
    }

    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

    #[test]
    fn the_taint_of_gpu_nodes_that_admission_lets_pods_tolerate_kept_all_of_them_off() {
        let tainted =
            |key: &str| node(json!({}), json!([{ "key": key, "value": "present", "effect": "NoSchedule" }]));
        let own = placement(json!({}));
        assert!(own.accepts(&tainted("nvidia.com/gpu")));
        assert!(!own.accepts(&tainted("amd.com/gpu")), "it asks for none of these");
        let without_gpus = serde_json::from_value(json!({ "containers": [{}] })).unwrap();
        assert_eq!(Placement::of(&without_gpus), None, "no node is one of GPUs for it");
    }

    #[test]
    fn a_template_of_endless_rules_is_left_to_the_scheduler() {
        let many = |rule: Value| vec![rule; MAX_RULES + 1];
        let terms = |terms: Value| json!({ "affinity": { "nodeAffinity": { REQUIRED: { "nodeSelectorTerms": terms } } } });
        for endless in [
            json!({ "tolerations": many(json!({ "key": "k", "operator": "Exists" })) }),
            terms(json!(many(json!({})))),
            terms(json!([{ "matchExpressions": many(json!({ "key": "k", "operator": "Exists" })) }])),
            terms(json!([{ "matchFields": many(json!({ "key": "k", "operator": "In", "values": ["v"] })) }])),
            terms(
                json!([{ "matchExpressions": [{ "key": "k", "operator": "In", "values": many(json!("v")) }] }]),
            ),
        ] {
            assert_eq!(placement_of(endless.clone()), None, "{endless}");
        }
    }
}
