//! Which variants are valid together. A workload that several variants name as their scale target belongs to none of them:
//! each would be scaled by another's number. And the variants of one model are bounded in number, because they are decided
//! together and the work grows with the square of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use wva_core::model::{InvalidVariant, Variant, VariantId};

use crate::cluster::objects::VariantObject;
use crate::cluster::text::{first_names, quoted};
use crate::engine::Claim;

/// Variants that a message names; the rest are counted. Without a bound, 10,000 objects that name one workload make 10,000
/// messages with 10,000 names each.
const MAX_NAMED: usize = 8;

/// Most variants of one model in one namespace: several times what accelerators, roles and prices make of one. Further ones
/// are invalid, so that one tenant's objects do not delay the decisions of others.
const MAX_VARIANTS_PER_MODEL: usize = 100;

/// Every valid object's claim on its scale target, disputed or not.
pub(crate) fn claims(objects: &BTreeMap<VariantId, Arc<VariantObject>>) -> Vec<Claim> {
    let variants = objects.values().filter_map(|object| object.variant.as_ref().ok());
    let mut claims: Vec<_> = variants
        .map(|variant| Claim { deployment: variant.target.name.clone(), variant: variant.id.clone() })
        .collect();
    claims.sort_by(|left, right| left.target().cmp(&right.target()));
    claims
}

/// The valid variants, sorted by their ids, and the invalid ones.
pub(crate) fn split_by_validity(
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
            invalid.extend(shared_target(&claimants));
        }
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
        let namespace = variant.id.namespace.as_str();
        let count = counts.entry((namespace, variant.model.as_str())).or_default();
        *count += 1;
        let stays = *count <= MAX_VARIANTS_PER_MODEL;
        if !stays {
            let problem = format!(
                "spec.modelID {} has more than {MAX_VARIANTS_PER_MODEL} variants in namespace {namespace}; only the first \
                 {MAX_VARIANTS_PER_MODEL} by name are scaled: delete this variant or others of the model",
                quoted(&variant.model)
            );
            invalid.push(InvalidVariant { id: variant.id.clone(), problem });
        }
        stays
    });
    invalid
}

fn shared_target(claimants: &[(&Variant, &VariantObject)]) -> Vec<InvalidVariant> {
    let ids = claimants.iter().map(|(variant, _)| variant.id.to_string());
    let names = first_names(ids, MAX_NAMED, " and ");
    let invalid = |(variant, _): &(&Variant, &VariantObject)| {
        let target = &variant.target;
        let problem = format!("spec.scaleTargetRef {target} is the target of {names}: keep one of them");
        InvalidVariant { id: variant.id.clone(), problem }
    };
    claimants.iter().map(invalid).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use wva_core::model::{Bounds, Role, TargetRef};
    use wva_core::units::Cost;

    use super::*;

    /// A valid variant of the model `m` on the Deployment `target`.
    pub(in super::super) fn object(namespace: &str, name: &str, target: &str) -> VariantObject {
        let variant = Variant {
            id: VariantId::new(namespace, name),
            model: "m".into(),
            target: TargetRef { kind: "Deployment".into(), name: target.into() },
            cost: Cost::ZERO,
            bounds: Bounds::default(),
            accelerator: Some("labelled".into()),
            role: Role::Both,
        };
        VariantObject { uid: name.into(), generation: 1, variant: Ok(variant), status: None }
    }

    fn entry(namespace: &str, index: u32, target: &str) -> (VariantId, Arc<VariantObject>) {
        let name = format!("v{index:05}");
        (VariantId::new(namespace, name.as_str()), Arc::new(object(namespace, &name, target)))
    }

    #[test]
    fn ten_thousand_variants_on_one_workload_have_short_messages() {
        let objects: BTreeMap<_, _> = (0..10_000).map(|index| entry("llm", index, "chat")).collect();
        let (valid, invalid) = split_by_validity(&objects);
        assert_eq!((valid.len(), invalid.len()), (0, 10_000));
        assert!(invalid.iter().all(|invalid| invalid.problem.len() < 256), "{}", invalid[0].problem);
        assert!(invalid[0].problem.contains("and 9992 more"), "{}", invalid[0].problem);
    }

    #[test]
    fn of_too_many_variants_of_one_model_the_first_by_name_are_valid() {
        let crowded = |index: u32| entry("crowded", index, &format!("d{index}"));
        let mut objects: BTreeMap<_, _> = (0..5_000).map(crowded).collect();
        objects.extend([entry("llm", 7, "chat")]);
        let names = |objects: &BTreeMap<_, _>| -> Vec<String> {
            split_by_validity(objects).0.iter().map(|(variant, _)| variant.id.to_string()).collect()
        };
        let valid = names(&objects);
        assert_eq!(valid.len(), 101);
        assert_eq!(valid[98..], ["crowded/v00098", "crowded/v00099", "llm/v00007"]);
        let invalid = split_by_validity(&objects).1;
        assert_eq!((invalid.len(), invalid[0].id.name.as_str()), (4_900, "v00100"));
        assert_eq!(
            invalid[0].problem,
            "spec.modelID \"m\" has more than 100 variants in namespace crowded; only the first 100 by name are scaled: \
             delete this variant or others of the model"
        );
        // A later object changes none of the first ones.
        objects.extend([crowded(6_000)]);
        assert_eq!((names(&objects), split_by_validity(&objects).1.len()), (valid, 4_901));
        // Variants with a shared target do not count.
        objects.extend([entry("crowded", 6_001, "d0")]);
        assert_eq!(names(&objects)[99], "crowded/v00100");
    }
}
