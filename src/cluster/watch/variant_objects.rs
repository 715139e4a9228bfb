//! Which objects make variants, and by which names reads find these. A VariantAutoscaling always makes one. An annotated HPA or
//! ScaledObject makes none where another object has its name or decides about its scale target: then there would be two numbers
//! for one workload, or two variants of one name. Pure.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use smol_str::SmolStr;
use wva_core::model::{TargetRef, VariantId};

use super::claims::claims;
use crate::cluster::objects::{Bystander, Notice, VariantObject};

/// The objects that make variants, and what becomes of the others.
#[derive(Debug, Default)]
pub(crate) struct VariantObjects {
    /// By namespace and name.
    pub(crate) objects: BTreeMap<VariantId, Arc<VariantObject>>,
    /// Further names of variants, with their own.
    pub(crate) aliases: BTreeMap<VariantId, SmolStr>,
    /// The annotated objects that make no variant.
    pub(crate) bystanders: Vec<Bystander>,
}

/// The reason of the notice to an object whose name another one has.
const NAME_TAKEN: &str = "NameTaken";

/// A scale target with its namespace.
type NamespacedTarget = (SmolStr, TargetRef);

impl VariantObjects {
    /// `variants` are the VariantAutoscalings. Of annotated objects with one name or one scale target, the oldest makes the
    /// variant, and one that KEDA's calls would make a variant only where no annotated one does.
    pub(crate) fn new(
        variants: BTreeMap<VariantId, Arc<VariantObject>>,
        mut annotated: Vec<(VariantId, Arc<VariantObject>)>,
    ) -> Self {
        if annotated.is_empty() {
            return Self { objects: variants, ..Self::default() };
        }
        annotated.sort_by(|(left_id, left), (right_id, right)| {
            let left = (left.is_called, left.created, left.kind, left_id);
            left.cmp(&(right.is_called, right.created, right.kind, right_id))
        });
        // In reverse, so that of several claims on one target the first one stays.
        let claims = claims(&variants).into_iter().rev();
        let mut deciders: BTreeMap<NamespacedTarget, VariantId> =
            claims.map(|claim| ((claim.variant.namespace.clone(), claim.target), claim.variant)).collect();
        // A mistake in a VariantAutoscaling must not hand its workload to an annotated object with other settings.
        for (id, object) in &variants {
            if let Some(target) = namespaced_target(id, object) {
                deciders.entry(target).or_insert_with(|| id.clone());
            }
        }
        let mut merged = Self { objects: variants, ..Self::default() };
        let (mut targets, mut undecided, mut bystanders) = (Vec::new(), Vec::new(), Vec::new());
        for (id, object) in annotated {
            let target = namespaced_target(&id, &object);
            let is_valid = object.variant.is_ok();
            targets.extend(target.clone().filter(|_| is_valid));
            let decider = target.as_ref().and_then(|target| deciders.get(target));
            if let Some(decider) = decider {
                merged.aliases.entry(id.clone()).or_insert_with(|| decider.name.clone());
                bystanders.push((id, object, Some(decider.clone())));
                continue;
            }
            match merged.objects.entry(id) {
                Entry::Occupied(held) => bystanders.push((held.key().clone(), object, None)),
                Entry::Vacant(free) => {
                    let claim = target.map(|target| (target, free.key().clone()));
                    if is_valid {
                        deciders.extend(claim)
                    } else {
                        undecided.extend(claim)
                    }
                    free.insert(object);
                }
            }
        }
        // A read by the target's name is told what is wrong.
        for (target, id) in undecided {
            if let Entry::Vacant(free) = deciders.entry(target) {
                targets.push(free.key().clone());
                free.insert(id);
            }
        }
        merged.add_target_names(targets, &deciders);
        let bystanders = bystanders.into_iter().map(|(id, object, decider)| {
            let notice = merged.notice(&id, &object, decider.as_ref());
            Bystander { id, object, notice }
        });
        merged.bystanders = bystanders.collect();
        merged
    }

    /// Why an object makes no variant: `decider` decides about its scale target, it is invalid, or its name is taken.
    fn notice(&self, id: &VariantId, object: &VariantObject, decider: Option<&VariantId>) -> Notice {
        let kind = |id: &VariantId| self.objects.get(id).map(|object| object.kind).unwrap_or_default();
        let number_of = |named: &VariantId| format!("the number of {} {named}", kind(named));
        let named = VariantId::new(
            id.namespace.clone(),
            self.aliases.get(id).cloned().unwrap_or_else(|| id.name.clone()),
        );
        match (decider, &object.variant) {
            (Some(decider), _) => {
                let read = if *decider == named { "its number".to_owned() } else { number_of(&named) };
                let kind = kind(decider);
                // The object scales the workload, so deleting it is no advice.
                let remedy = if object.is_called {
                    format!("in its trigger, set variantName: {} in place of modelID", decider.name)
                } else if kind.is_annotated() {
                    "remove the annotations from one of the two".to_owned()
                } else {
                    "remove the annotations here, or delete the VariantAutoscaling".to_owned()
                };
                Notice {
                    reason: "TargetDecidedElsewhere",
                    note: format!(
                        "{kind} {decider} decides about the same scale target with its own settings, and reads of this \
                         object's name get {read}: {remedy}"
                    ),
                }
            }
            (None, Err(invalid)) => Notice { reason: "InvalidConfiguration", note: invalid.problem.clone() },
            (None, Ok(_)) if object.is_called => Notice {
                reason: NAME_TAKEN,
                note: format!(
                    "{} {id} has the name of this object and another scale target, so that no number is computed for this object's scale target: \
                     give one of the two another name, or make this one's target a variant by a VariantAutoscaling and name that by variantName \
                     in the trigger",
                    kind(id)
                ),
            },
            (None, Ok(_)) => Notice {
                reason: NAME_TAKEN,
                note: format!(
                    "{} {id} has the name of this object, so that no number is computed for this object's scale target, and \
                     reads of this name get the number of the other workload: give one of the two another name, or remove \
                     the annotations here",
                    kind(id)
                ),
            },
        }
    }

    /// Adds the names of scale targets as names of the variants that decide about them. The name of an object takes precedence,
    /// and of targets of several kinds with one name, that of the oldest object.
    fn add_target_names(
        &mut self,
        targets: Vec<NamespacedTarget>,
        deciders: &BTreeMap<NamespacedTarget, VariantId>,
    ) {
        for target in targets {
            if let Some(decider) = deciders.get(&target) {
                let (namespace, target) = target;
                let name = VariantId::new(namespace, target.name);
                self.aliases.entry(name).or_insert_with(|| decider.name.clone());
            }
        }
        let Self { objects, aliases, .. } = self;
        aliases.retain(|name, _| !objects.contains_key(name));
    }
}

fn namespaced_target(id: &VariantId, object: &VariantObject) -> Option<NamespacedTarget> {
    Some((id.namespace.clone(), object.target.clone()?))
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::*;
    use crate::cluster::objects::VariantKind;
    use crate::cluster::watch::claims::tests::object;
    use crate::cluster::watch::convert::invalid_variant;

    const HPA: VariantKind = VariantKind::HorizontalPodAutoscaler;

    type Named = (VariantId, Arc<VariantObject>);

    /// An object that was created `second` seconds after the epoch.
    fn created(kind: VariantKind, second: i64, name: &str, target: &str) -> Named {
        let created = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second);
        let object = VariantObject { kind, created, ..object("llm", name, target) };
        (VariantId::new("llm", name), Arc::new(object))
    }

    fn merge(variants: &[Named], annotated: &[Named]) -> VariantObjects {
        VariantObjects::new(variants.iter().cloned().collect(), annotated.to_vec())
    }

    fn kinds(merged: &VariantObjects) -> Vec<(&str, VariantKind)> {
        merged.objects.iter().map(|(id, object)| (id.name.as_str(), object.kind)).collect()
    }

    fn aliases(merged: &VariantObjects) -> Vec<(&str, &str)> {
        merged.aliases.iter().map(|(id, own)| (id.name.as_str(), own.as_str())).collect()
    }

    fn reasons(merged: &VariantObjects) -> Vec<(&str, &str)> {
        let bystanders = merged.bystanders.iter();
        bystanders.map(|bystander| (bystander.id.name.as_str(), bystander.notice.reason)).collect()
    }

    const VA: VariantKind = VariantKind::VariantAutoscaling;
    const SCALED_OBJECT: VariantKind = VariantKind::ScaledObject;

    #[test]
    fn an_annotated_object_is_found_by_its_name_and_by_that_of_its_target() {
        let merged = merge(&[created(VA, 0, "web", "web-server")], &[created(HPA, 0, "chat-hpa", "chat")]);
        assert_eq!(kinds(&merged), [("chat-hpa", HPA), ("web", VA)]);
        assert_eq!(aliases(&merged), [("chat", "chat-hpa")], "a VariantAutoscaling has only its own name");
        assert!(merged.bystanders.is_empty());
    }

    #[test]
    fn with_a_variant_autoscaling_on_one_target_there_is_one_variant_with_every_name() {
        let merged = merge(&[created(VA, 9, "llama", "chat")], &[created(HPA, 1, "chat-hpa", "chat")]);
        assert_eq!(kinds(&merged), [("llama", VA)], "although the HPA is older");
        assert_eq!(aliases(&merged), [("chat", "llama"), ("chat-hpa", "llama")]);
        assert_eq!(reasons(&merged), [("chat-hpa", "TargetDecidedElsewhere")]);
        let note = &merged.bystanders[0].notice.note;
        assert!(
            note.starts_with("VariantAutoscaling llm/llama decides about the same scale target"),
            "{note}"
        );
        let same_name = merge(&[created(VA, 9, "chat", "chat")], &[created(HPA, 1, "chat", "chat")]);
        assert_eq!((kinds(&same_name), aliases(&same_name)), (vec![("chat", VA)], vec![]));
        assert_eq!(reasons(&same_name), [("chat", "TargetDecidedElsewhere")]);
    }

    #[test]
    fn of_two_annotated_objects_with_one_target_the_older_decides() {
        let merged =
            merge(&[], &[created(HPA, 5, "young", "chat"), created(SCALED_OBJECT, 3, "old", "chat")]);
        assert_eq!(kinds(&merged), [("old", SCALED_OBJECT)]);
        assert_eq!(aliases(&merged), [("chat", "old"), ("young", "old")]);
        assert_eq!(reasons(&merged), [("young", "TargetDecidedElsewhere")]);
    }

    #[test]
    fn of_two_objects_with_one_name_and_different_targets_one_keeps_the_name() {
        let hpa = created(HPA, 3, "chat", "a");
        let merged = merge(&[created(VA, 9, "chat", "b")], std::slice::from_ref(&hpa));
        assert_eq!((kinds(&merged), reasons(&merged)), (vec![("chat", VA)], vec![("chat", "NameTaken")]));
        assert!(merged.aliases.is_empty(), "nothing is decided about the target of the other one");
        let merged = merge(&[], &[created(SCALED_OBJECT, 1, "chat", "b"), hpa]);
        assert_eq!(
            (kinds(&merged), reasons(&merged)),
            (vec![("chat", SCALED_OBJECT)], vec![("chat", "NameTaken")])
        );
        assert_eq!(aliases(&merged), [("b", "chat")]);
    }

    #[test]
    fn a_name_of_an_object_is_never_that_of_another_objects_target() {
        let merged = merge(&[], &[created(HPA, 1, "a", "b"), created(HPA, 2, "b", "a")]);
        assert_eq!(kinds(&merged), [("a", HPA), ("b", HPA)]);
        assert!(merged.aliases.is_empty(), "each own name finds its object");
    }

    fn invalid((id, object): Named) -> Named {
        let problem = invalid_variant(id.clone(), "the annotation is missing");
        (id, Arc::new(VariantObject { variant: Err(problem), ..VariantObject::clone(&object) }))
    }

    /// The same, whose scale target cannot be read either.
    fn unreadable(named: Named) -> Named {
        let (id, object) = invalid(named);
        (id, Arc::new(VariantObject { target: None, ..VariantObject::clone(&object) }))
    }

    #[test]
    fn an_hpa_without_a_model_had_no_number_beside_the_variant_autoscaling_of_its_target() {
        let hpa = invalid(created(HPA, 1, "chat-hpa", "chat"));
        let merged = merge(&[created(VA, 9, "llama", "chat")], &[hpa]);
        assert_eq!((kinds(&merged), aliases(&merged)), (vec![("llama", VA)], vec![("chat-hpa", "llama")]));
        assert_eq!(reasons(&merged), [("chat-hpa", "TargetDecidedElsewhere")]);
    }

    #[test]
    fn a_mistake_in_a_variant_autoscaling_handed_its_workload_to_the_hpa() {
        let merged =
            merge(&[invalid(created(VA, 9, "llama", "chat"))], &[created(HPA, 1, "chat-hpa", "chat")]);
        assert_eq!(kinds(&merged), [("llama", VA)]);
        assert_eq!(aliases(&merged), [("chat", "llama"), ("chat-hpa", "llama")]);
    }

    #[test]
    fn who_was_told_that_a_variant_autoscaling_decides_was_advised_to_delete_the_hpa() {
        let note = |variants: &[Named], annotated: &[Named]| {
            merge(variants, annotated).bystanders[0].notice.note.clone()
        };
        let beside = note(&[created(VA, 9, "llama", "chat")], &[created(HPA, 1, "chat-hpa", "chat")]);
        assert!(
            beside.ends_with("remove the annotations here, or delete the VariantAutoscaling"),
            "{beside}"
        );
        let two = note(&[], &[created(HPA, 5, "young", "chat"), created(HPA, 3, "old", "chat")]);
        assert!(two.ends_with("remove the annotations from one of the two"), "{two}");
    }

    #[test]
    fn a_called_object_was_told_to_remove_what_gives_it_its_number() {
        let called = |(id, object): Named| {
            (id, Arc::new(VariantObject { is_called: true, ..VariantObject::clone(&object) }))
        };
        let note = |target: &str| {
            let scaled = called(created(SCALED_OBJECT, 1, "chat", "web"));
            merge(&[created(VA, 9, if target == "web" { "llama" } else { "chat" }, target)], &[scaled])
                .bystanders
                .remove(0)
                .notice
        };
        let elsewhere = note("web");
        assert_eq!(elsewhere.reason, "TargetDecidedElsewhere");
        assert!(elsewhere.note.ends_with("set variantName: llama in place of modelID"), "{}", elsewhere.note);
        let taken = note("b");
        assert_eq!(taken.reason, "NameTaken");
        assert!(
            taken.note.contains("and name that by variantName") && !taken.note.contains("annotations"),
            "{}",
            taken.note
        );
    }

    #[test]
    fn an_invalid_object_beside_a_variant_autoscaling_of_its_name_was_told_to_rename() {
        let hpa = unreadable(created(HPA, 1, "chat", "chat"));
        let merged = merge(&[created(VA, 9, "chat", "chat")], &[hpa]);
        assert_eq!(reasons(&merged), [("chat", "InvalidConfiguration")]);
        assert!(merged.bystanders[0].notice.note.contains("the annotation is missing"));
    }

    #[test]
    fn a_notice_promised_the_number_of_the_target_under_a_name_that_another_object_has() {
        let hpa = created(HPA, 1, "chat", "web");
        let merged = merge(&[created(VA, 9, "chat", "b"), created(VA, 9, "web", "web")], &[hpa]);
        assert_eq!(reasons(&merged), [("chat", "TargetDecidedElsewhere")]);
        let note = &merged.bystanders[0].notice.note;
        assert!(note.starts_with("VariantAutoscaling llm/web decides"), "{note}");
        assert!(note.contains("name get the number of VariantAutoscaling llm/chat:"), "{note}");
    }

    #[test]
    fn a_mistake_in_an_hpa_was_not_named_where_it_reads_by_the_name_of_its_target() {
        let merged = merge(&[], &[invalid(created(HPA, 1, "chat-hpa", "chat"))]);
        assert_eq!(aliases(&merged), [("chat", "chat-hpa")]);
    }

    #[test]
    fn an_invalid_object_keeps_its_name_and_no_target() {
        let hpa = invalid(created(HPA, 1, "chat-hpa", "chat"));
        let merged = merge(&[], &[hpa, created(HPA, 2, "second", "chat")]);
        assert_eq!(kinds(&merged), [("chat-hpa", HPA), ("second", HPA)]);
        assert_eq!(aliases(&merged), [("chat", "second")]);
    }
}
