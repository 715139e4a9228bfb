//! Which variant has which workload as its target. A workload that several claim belongs to none of them: each would be
//! scaled by another's number.

use std::collections::BTreeMap;
use std::sync::Arc;

use wva_core::model::{InvalidVariant, Variant, VariantId};

use super::view::VariantObject;
use crate::engine::Claim;

/// Claimants that a message names; the rest are counted. Without a bound, a namespace of 10,000 objects on one workload
/// makes 10,000 messages with 10,000 names each.
const MAX_NAMED: usize = 8;

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
    (valid, invalid)
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

    #[test]
    fn ten_thousand_variants_on_one_workload_are_told_in_few_words_each() {
        let object = |index: u32| {
            let id = VariantId::new("llm", format!("v{index}"));
            let variant = Variant {
                id: id.clone(),
                model: "m".into(),
                target: TargetRef { kind: "Deployment".into(), name: "chat".into() },
                cost: Cost::ZERO,
                bounds: Bounds::default(),
                accelerator: None,
                role: Role::Both,
            };
            let uid = index.to_string();
            (id, Arc::new(VariantObject { uid, generation: 1, variant: Ok(variant), status: None }))
        };
        let objects: BTreeMap<_, _> = (0..10_000).map(object).collect();
        let (valid, invalid) = valid(&objects);
        assert_eq!((valid.len(), invalid.len()), (0, 10_000));
        assert!(invalid.iter().all(|invalid| invalid.problem.len() < 256), "{}", invalid[0].problem);
        assert!(invalid[0].problem.contains("and 9992 more"), "{}", invalid[0].problem);
    }
}
