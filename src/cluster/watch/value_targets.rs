//! HPAs that read the number with a target of the type `Value`, which the HPA controller multiplies by its Ready pods. Where all HPAs that read
//! a variant do, and this is switched on, the number is served divided by these pods. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use smol_str::SmolStr;
use wva_core::VariantId;
use wva_core::model::{TargetRef, Variant};

use super::pods::JoinedPod;
use crate::cluster::objects::ObjectKey;
use crate::lint::selected_names;

/// How an HPA reads the desired replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NumberRead {
    /// The names of variants that it selects; `None`: those of all in its namespace. Further requirements are not kept, so that it
    /// may read fewer.
    names: Option<Box<[SmolStr]>>,
    /// What it scales, and by whose pods it multiplies, if its target has the type `Value`.
    multiplied: Option<TargetRef>,
}

impl NumberRead {
    /// A read with this selector, whose target has this type, by an HPA that scales `scaled`.
    pub(super) fn new(selector: Option<&LabelSelector>, target_type: &str, scaled: &TargetRef) -> Self {
        let names = selector.and_then(selected_names);
        let names = names.map(|names| names.into_iter().map(SmolStr::from).collect());
        Self { names, multiplied: (target_type == "Value").then(|| scaled.clone()) }
    }
}

/// The types of target by which something is read.
#[derive(Debug, Clone, Copy, Default)]
struct Types<'a> {
    /// What the HPAs with targets of the type `Value` scale.
    multiplied: Option<&'a TargetRef>,
    /// Whether there are others too, or such HPAs of another workload.
    has_others: bool,
}

impl<'a> Types<'a> {
    fn add(&mut self, read: &'a NumberRead) {
        let multiplied = read.multiplied.as_ref();
        self.has_others |= multiplied.is_none() || self.multiplied.is_some_and(|own| Some(own) != multiplied);
        self.multiplied = self.multiplied.or(multiplied);
    }

    /// Whether all multiply by the pods of `target`, or none reads at all.
    fn are_of(&self, target: &TargetRef) -> bool {
        !self.has_others && self.multiplied.is_none_or(|own| own == target)
    }
}

/// The types of target by which variants are read.
#[derive(Default)]
pub(super) struct ReadTypes<'a> {
    named: BTreeMap<VariantId, Types<'a>>,
    /// Of reads that select all of a namespace.
    namespaces: BTreeMap<&'a str, Types<'a>>,
}

impl<'a> ReadTypes<'a> {
    /// Those of `reads`; `aliases` are further names of variants.
    pub(super) fn new(
        reads: impl Iterator<Item = (&'a ObjectKey, &'a NumberRead)>,
        aliases: &BTreeMap<VariantId, SmolStr>,
    ) -> Self {
        let mut types = Self::default();
        for (key, read) in reads {
            let Some(names) = &read.names else {
                types.namespaces.entry(&key.namespace).or_default().add(read);
                continue;
            };
            for name in names {
                let id = VariantId::new(&*key.namespace, name.clone());
                let own = aliases.get(&id).map(|name| VariantId::new(&*key.namespace, name.clone()));
                types.named.entry(own.unwrap_or(id)).or_default().add(read);
            }
        }
        types
    }

    /// Whether somebody reads a variant, and all do so with the type `Value` and scale its own target: an HPA multiplies by the pods of
    /// what it scales.
    pub(super) fn are_value(&self, Variant { id, target, .. }: &Variant) -> bool {
        let named = self.named.get(id).copied().unwrap_or_default();
        let all = self.namespaces.get(id.namespace.as_str()).copied().unwrap_or_default();
        named.multiplied.or(all.multiplied).is_some() && named.are_of(target) && all.are_of(target)
    }
}

/// The pods by which the HPA controller multiplies: the Ready ones, also those that are being deleted; of a group that of its leader.
pub(super) fn multiplier(pods: &[JoinedPod<'_>]) -> u32 {
    let is_counted = |joined: &&JoinedPod<'_>| {
        joined.pod.is_ready && joined.leader.is_none_or(|leader| *leader == *joined.pod.uid)
    };
    u32::try_from(pods.iter().filter(is_counted).count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A read of an HPA that scales the Deployment `scaled`.
    fn read_by(scaled: &str, names: &[&str], type_: &str) -> NumberRead {
        let selector =
            json!({ "matchExpressions": [{ "key": "variant_name", "operator": "In", "values": names }] });
        let selector: LabelSelector = serde_json::from_value(selector).unwrap();
        NumberRead::new((!names.is_empty()).then_some(&selector), type_, &TargetRef::deployment(scaled))
    }

    fn read(names: &[&str], type_: &str) -> NumberRead {
        read_by("d", names, type_)
    }

    /// The variant of this name, which scales the Deployment `d`.
    fn variant(name: &str) -> Variant {
        Variant::new(VariantId::new("llm", name), "m", TargetRef::deployment("d"))
    }

    #[test]
    fn a_number_that_is_multiplied_by_the_pods_of_another_workload_was_divided_by_those_of_its_own() {
        let llm = ObjectKey::new("llm", "hpa");
        let are_value = |reads: &[NumberRead]| {
            ReadTypes::new(reads.iter().map(|read| (&llm, read)), &BTreeMap::new()).are_value(&variant("a"))
        };
        assert!(are_value(&[read(&["a"], "Value")]));
        assert!(!are_value(&[read_by("x", &["a"], "Value")]));
        assert!(!are_value(&[read(&["a"], "Value"), read_by("x", &["a"], "Value")]));
        assert!(!are_value(&[read(&["a"], "Value"), read_by("x", &[], "Value")]));
    }

    #[test]
    fn a_number_is_divided_only_where_all_hpas_multiply_it() {
        let (llm, prod) = (ObjectKey::new("llm", "hpa"), ObjectKey::new("prod", "hpa"));
        let aliases = BTreeMap::from([(VariantId::new("llm", "target"), SmolStr::new_static("own"))]);
        let are_value = |reads: &[(&ObjectKey, NumberRead)], name: &str| {
            let reads = reads.iter().map(|(key, read)| (*key, read));
            ReadTypes::new(reads, &aliases).are_value(&variant(name))
        };
        let value = (&llm, read(&["a", "target"], "Value"));
        assert!(!are_value(&[], "a"), "nobody reads it");
        assert!(are_value(std::slice::from_ref(&value), "a"));
        assert!(are_value(std::slice::from_ref(&value), "own"), "by another of its names");
        assert!(!are_value(std::slice::from_ref(&value), "b"));
        assert!(!are_value(&[value.clone(), (&llm, read(&["a"], "AverageValue"))], "a"));
        assert!(!are_value(&[value.clone(), (&llm, read(&[], "AverageValue"))], "a"), "it reads all");
        assert!(are_value(&[value, (&prod, read(&["a"], "AverageValue"))], "a"), "of another namespace");
        assert!(are_value(&[(&llm, read(&[], "Value"))], "a"));
    }
}
