//! Which variants are valid together. Of several variants with one scale target, the oldest decides: otherwise the workload
//! would be scaled by the numbers of several. And the variants of one model are bounded in number, because they are decided
//! together and the work grows with the square of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use wva_core::model::{InvalidVariant, TargetRef, Variant, VariantId};

use crate::cluster::objects::VariantObject;
use crate::engine::{Claim, MAX_VARIANTS_PER_MODEL};
use wva_core::text::quoted;

/// Every valid object's claim on its scale target. Of those on one target, the first decides: that of the oldest object, or
/// of the first by name where several are equally old.
pub(crate) fn claims(objects: &BTreeMap<VariantId, Arc<VariantObject>>) -> Vec<Claim> {
    let valid = objects.values().filter_map(|object| Some((object.variant.as_ref().ok()?, object.created)));
    let mut valid: Vec<_> = valid.collect();
    valid.sort_by(|(left, left_created), (right, right_created)| {
        let by_age = || left_created.cmp(right_created).then_with(|| left.id.name.cmp(&right.id.name));
        target_key(left).cmp(&target_key(right)).then_with(by_age)
    });
    let claim = |variant: &Variant| Claim { target: variant.target.clone(), variant: variant.id.clone() };
    valid.into_iter().map(|(variant, _)| claim(variant)).collect()
}

fn target_key(variant: &Variant) -> (&str, &TargetRef) {
    (&variant.id.namespace, &variant.target)
}

/// The valid variants, sorted by their ids, and the invalid ones. `claims` are those of `objects`.
pub(crate) fn split_by_validity<'a>(
    objects: &'a BTreeMap<VariantId, Arc<VariantObject>>,
    claims: &[Claim],
) -> (Vec<(&'a Variant, &'a VariantObject)>, Vec<InvalidVariant>) {
    let problems = objects.values().filter_map(|object| object.variant.as_ref().err());
    let mut invalid: Vec<_> = problems.cloned().collect();
    let mut valid = Vec::with_capacity(claims.len());
    for claimants in claims.chunk_by(|left, right| left.key() == right.key()) {
        let Some((first, rest)) = claimants.split_first() else { continue };
        let object = objects.get(&first.variant);
        valid.extend(object.and_then(|object| Some((object.variant.as_ref().ok()?, &**object))));
        invalid.extend(rest.iter().map(|claim| shared_target(claim, &first.variant)));
    }
    valid.sort_by_key(|(variant, _)| &variant.id);
    invalid.extend(remove_excess(&mut valid));
    (valid, invalid)
}

/// Removes the variants above [`MAX_VARIANTS_PER_MODEL`] from `valid`, which is sorted by id: the first by name stay, so
/// that they are the same each time. The message has no count, which would change all of them with each new object.
fn remove_excess(valid: &mut Vec<(&Variant, &VariantObject)>) -> Vec<InvalidVariant> {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut invalid = Vec::new();
    valid.retain(|(variant, _)| {
        // The engine counts those whose model is learned.
        if !variant.names_model() {
            return true;
        }
        let namespace = variant.id.namespace.as_str();
        let count = counts.entry((namespace, variant.model.as_str())).or_default();
        *count += 1;
        let stays = *count <= MAX_VARIANTS_PER_MODEL;
        if !stays {
            let problem = format!(
                "model {} has more than {MAX_VARIANTS_PER_MODEL} variants in namespace {namespace}; only the first \
                 {MAX_VARIANTS_PER_MODEL} by name are scaled: delete this variant or others of the model",
                quoted(&variant.model)
            );
            invalid.push(InvalidVariant::new(variant.id.clone(), problem));
        }
        stays
    });
    invalid
}

/// Names only the variant that decides: with all of them, 10,000 objects that name one workload would make 10,000 messages
/// with 10,000 names each.
fn shared_target(claim: &Claim, first: &VariantId) -> InvalidVariant {
    let problem = format!(
        "spec.scaleTargetRef {} is the target of {first} too, which was created first and decides: delete one of the two, or \
         name another target",
        claim.target
    );
    InvalidVariant::new(claim.variant.clone(), problem)
}

#[cfg(test)]
pub(super) mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::cluster::objects::VariantKind;

    /// A valid variant of the model `m` on the Deployment `target`.
    pub(in super::super) fn object(namespace: &str, name: &str, target: &str) -> VariantObject {
        let variant = Variant {
            accelerator: Some("labelled".into()),
            ..Variant::new(VariantId::new(namespace, name), "m", TargetRef::deployment(target))
        };
        VariantObject {
            kind: VariantKind::default(),
            is_called: false,
            uid: name.into(),
            created: Timestamp::UNIX_EPOCH,
            generation: 1,
            notices: Vec::new(),
            settings: None,
            model: Some("m".into()),
            target: Some(variant.target.clone()),
            variant: Ok(variant),
            status: None,
        }
    }

    fn entry(namespace: &str, index: u32, target: &str) -> (VariantId, Arc<VariantObject>) {
        let name = format!("v{index:05}");
        (VariantId::new(namespace, name.as_str()), Arc::new(object(namespace, &name, target)))
    }

    /// [`split_by_validity`] with the claims of `objects`.
    fn split(
        objects: &BTreeMap<VariantId, Arc<VariantObject>>,
    ) -> (Vec<(&Variant, &VariantObject)>, Vec<InvalidVariant>) {
        split_by_validity(objects, &claims(objects))
    }

    #[test]
    fn ten_thousand_variants_on_one_workload_have_short_messages_that_name_the_first() {
        let objects: BTreeMap<_, _> = (0..10_000).map(|index| entry("llm", index, "chat")).collect();
        let (valid, invalid) = split(&objects);
        assert_eq!((valid.len(), invalid.len()), (1, 9_999));
        assert_eq!(valid[0].0.id, VariantId::new("llm", "v00000"), "equally old, so by name");
        assert!(invalid.iter().all(|invalid| invalid.problem.len() < 256), "{}", invalid[0].problem);
        assert!(invalid[0].problem.contains("the target of llm/v00000 too"), "{}", invalid[0].problem);
    }

    #[test]
    fn the_oldest_variant_of_a_workload_decides_and_one_of_another_kind_is_no_rival() {
        let mut objects: BTreeMap<_, _> = (0..4).map(|index| entry("llm", index, "chat")).collect();
        for (object, second) in objects.values_mut().zip([30, 10, 20, 5]) {
            Arc::make_mut(object).created = Timestamp::from_second(second).unwrap();
        }
        let set = Arc::make_mut(objects.get_mut(&VariantId::new("llm", "v00003")).unwrap());
        set.variant.as_mut().unwrap().target.kind = "StatefulSet".into();
        let (valid, invalid) = split(&objects);
        let names: Vec<_> = valid.iter().map(|(variant, _)| variant.id.name.as_str()).collect();
        assert_eq!((names, invalid.len()), (vec!["v00001", "v00003"], 2));
        let of_deployment: Vec<_> = claims(&objects).into_iter().map(|claim| claim.variant.name).collect();
        assert_eq!(of_deployment, ["v00001", "v00002", "v00000", "v00003"], "by target, then by age");
    }

    #[test]
    fn of_too_many_variants_of_one_model_the_first_by_name_are_valid() {
        let crowded = |index: u32| entry("crowded", index, &format!("d{index}"));
        let mut objects: BTreeMap<_, _> = (0..5_000).map(crowded).collect();
        objects.extend([entry("llm", 7, "chat")]);
        let names = |objects: &BTreeMap<_, _>| -> Vec<String> {
            split(objects).0.iter().map(|(variant, _)| variant.id.to_string()).collect()
        };
        let valid = names(&objects);
        assert_eq!(valid.len(), 101);
        assert_eq!(valid[98..], ["crowded/v00098", "crowded/v00099", "llm/v00007"]);
        let invalid = split(&objects).1;
        assert_eq!((invalid.len(), invalid[0].id.name.as_str()), (4_900, "v00100"));
        assert_eq!(
            invalid[0].problem,
            "model \"m\" has more than 100 variants in namespace crowded; only the first 100 by name are scaled: \
             delete this variant or others of the model"
        );
        // A later object changes none of the first ones.
        objects.extend([crowded(6_000)]);
        assert_eq!((names(&objects), split(&objects).1.len()), (valid, 4_901));
        let mut unnamed = objects.clone();
        for object in unnamed.values_mut() {
            Arc::make_mut(object).variant.as_mut().unwrap().model = "".into();
        }
        assert_eq!(split(&unnamed).1, [], "which model theirs is, is not known here");
        // A variant whose target another one decides about does not count.
        Arc::make_mut(objects.get_mut(&VariantId::new("crowded", "v00000")).unwrap()).created =
            Timestamp::from_second(1).unwrap();
        objects.extend([entry("crowded", 6_001, "d0")]);
        assert_eq!(names(&objects)[99], "crowded/v00100");
    }
}
