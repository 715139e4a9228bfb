//! Which variant has which workload as its target. A workload that several claim belongs to none of them: each would be
//! scaled by another's number. And how many variants a model may have: all of them are decided about together, so that the work
//! grows with the square of their number.

use std::collections::BTreeMap;
use std::sync::Arc;

use wva_core::model::{InvalidVariant, Variant, VariantId};

use crate::cluster::objects::VariantObject;
use crate::cluster::text::quoted;
use crate::engine::Claim;

/// Claimants that a message names; the rest are counted. Without a bound, a namespace of 10,000 objects on one workload
/// makes 10,000 messages with 10,000 names each.
const MAX_NAMED: usize = 8;

/// Variants of one model in one namespace that are decided about: several times what accelerators, roles and prices make of
/// one. The others are invalid, so that a tenant's objects cost no other tenant its decisions.
const MAX_VARIANTS_OF_A_MODEL: usize = 100;

/// Every readable object's claim on its target, disputed or not.
pub(crate) fn claims(objects: &BTreeMap<VariantId, Arc<VariantObject>>) -> Vec<Claim> {
    let readable = objects.values().filter_map(|object| object.variant.as_ref().ok());
    let mut claims: Vec<_> = readable
        .map(|variant| Claim { deployment: variant.target.name.clone(), variant: variant.id.clone() })
        .collect();
    claims.sort_by(|a, b| a.target().cmp(&b.target()));
    claims
}

/// The variants that can be decided about, sorted by their ids, and the others.
pub(crate) fn valid(
    objects: &BTreeMap<VariantId, Arc<VariantObject>>,
) -> (Vec<(&Variant, &VariantObject)>, Vec<InvalidVariant>) {
    let mut claims: BTreeMap<(&str, &str), Vec<(&Variant, &VariantObject)>> = BTreeMap::new();
    let mut invalid = Vec::new();
    for object in objects.values() {
        match &object.variant {
            Ok(variant) => {
                let target = (variant.id.namespace.as_str(), variant.target.name.as_str());
                claims.entry(target).or_default().push((variant, object));
            }
            Err(problem) => invalid.push(problem.clone()),
        }
    }
    let mut valid = Vec::with_capacity(claims.len());
    for claimants in claims.into_values() {
        if let [only] = claimants[..] {
            valid.push(only);
        } else {
            invalid.extend(disputed(&claimants));
        }
    }
    valid.sort_by_key(|(variant, _)| &variant.id);
    invalid.extend(crowded(&mut valid));
    (valid, invalid)
}

/// Takes the variants out of `valid` (sorted by their ids) of which their model has too many: the first by name stay, so that it
/// is the same ones each time. The message has no count, which would change all of them with each new object.
fn crowded(valid: &mut Vec<(&Variant, &VariantObject)>) -> Vec<InvalidVariant> {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut invalid = Vec::new();
    valid.retain(|(variant, _)| {
        let namespace = variant.id.namespace.as_str();
        let count = counts.entry((namespace, variant.model.as_str())).or_default();
        *count += 1;
        let stays = *count <= MAX_VARIANTS_OF_A_MODEL;
        if !stays {
            let problem = format!(
                "spec.modelID {} has more than {MAX_VARIANTS_OF_A_MODEL} variants in namespace {namespace}, and only the \
                 first {MAX_VARIANTS_OF_A_MODEL} by name are decided about: delete others of them, or this one",
                quoted(&variant.model)
            );
            invalid.push(InvalidVariant { id: variant.id.clone(), problem });
        }
        stays
    });
    invalid
}

fn disputed(claimants: &[(&Variant, &VariantObject)]) -> Vec<InvalidVariant> {
    let named: Vec<_> = claimants.iter().take(MAX_NAMED).map(|(variant, _)| variant.id.to_string()).collect();
    let more = claimants.len().saturating_sub(MAX_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let names = named.join(" and ");
    let problem = |variant: &Variant| {
        let target = &variant.target;
        format!("spec.scaleTargetRef {target} is the target of {names}{more}: keep one of them")
    };
    claimants
        .iter()
        .map(|(variant, _)| InvalidVariant { id: variant.id.clone(), problem: problem(variant) })
        .collect()
}

#[cfg(test)]
mod tests {
    use wva_core::model::{Bounds, Role, TargetRef};
    use wva_core::units::Cost;

    use super::*;

    fn object(namespace: &str, index: u32, target: &str) -> (VariantId, Arc<VariantObject>) {
        let id = VariantId::new(namespace, format!("v{index:05}"));
        let variant = Variant {
            id: id.clone(),
            model: "m".into(),
            target: TargetRef { kind: "Deployment".into(), name: target.into() },
            cost: Cost::ZERO,
            bounds: Bounds::default(),
            accelerator: None,
            role: Role::Both,
        };
        let uid = index.to_string();
        (id, Arc::new(VariantObject { uid, generation: 1, variant: Ok(variant), status: None }))
    }

    #[test]
    fn ten_thousand_variants_on_one_workload_are_told_in_few_words_each() {
        let objects: BTreeMap<_, _> = (0..10_000).map(|index| object("llm", index, "chat")).collect();
        let (valid, invalid) = valid(&objects);
        assert_eq!((valid.len(), invalid.len()), (0, 10_000));
        assert!(invalid.iter().all(|invalid| invalid.problem.len() < 256), "{}", invalid[0].problem);
        assert!(invalid[0].problem.contains("and 9992 more"), "{}", invalid[0].problem);
    }

    #[test]
    fn of_more_variants_of_one_model_than_it_may_have_the_first_by_name_are_decided_about() {
        let own = |index: u32| object("crowded", index, &format!("d{index}"));
        let mut objects: BTreeMap<_, _> = (0..5_000).map(own).collect();
        objects.extend([object("llm", 7, "chat")]);
        let names = |objects: &BTreeMap<_, _>| -> Vec<String> {
            valid(objects).0.iter().map(|(variant, _)| variant.id.to_string()).collect()
        };
        let kept = names(&objects);
        assert_eq!(kept.len(), 101);
        assert_eq!(kept[98..], ["crowded/v00098", "crowded/v00099", "llm/v00007"]);
        let invalid = valid(&objects).1;
        assert_eq!((invalid.len(), invalid[0].id.name.as_str()), (4_900, "v00100"));
        assert_eq!(
            invalid[0].problem,
            "spec.modelID \"m\" has more than 100 variants in namespace crowded, and only the first 100 by name are \
             decided about: delete others of them, or this one"
        );
        // One of the last to come, and the first ones are the same.
        objects.extend([own(6_000)]);
        assert_eq!((names(&objects), valid(&objects).1.len()), (kept, 4_901));
        // Disputed ones take no place.
        objects.extend([object("crowded", 6_001, "d0")]);
        assert_eq!(names(&objects)[99], "crowded/v00100");
    }
}
