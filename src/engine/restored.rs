//! The state that a new leader starts from: the memory and the decisions of the last leader. Pure.

use std::collections::BTreeMap;

use wva_core::decision::Verdict;
use wva_core::{Decision, GroupId, Memory, VariantId};

/// The content of the state objects.
#[derive(Debug, Clone, Default)]
pub struct Restored {
    /// The last published decisions, written at every change.
    pub decisions: BTreeMap<VariantId, Decision>,
    /// The memory, written every few minutes: older than the decisions.
    pub memory: Memory,
}

/// The memory to start from: what was learned, with the targets that were last published.
#[must_use]
pub fn adopt(restored: Restored) -> Memory {
    let Restored { decisions, mut memory } = restored;
    for (id, decision) in decisions {
        let Verdict::Target(target) = decision.verdict else { continue };
        let group = memory.groups.entry(GroupId::new(id.namespace.clone(), decision.model)).or_default();
        let variant = group.variants.or_default(&id.name);
        if variant.target != Some(target.desired) {
            variant.target_since = Some(target.evidence);
        }
        variant.target = Some(target.desired);
        variant.evidence = variant.evidence.max(Some(target.evidence));
    }
    memory
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use wva_core::decision::{Reason, Target};
    use wva_core::units::Replicas;

    #[test]
    fn a_published_target_wins_over_an_older_memory() {
        let evidence: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        let group = GroupId::new("llm", "meta/llama");
        let mut memory = Memory::default();
        let remembered = memory.groups.entry(group.clone()).or_default();
        remembered.variants.or_default("llama").target = Some(Replicas::new(2));
        let target =
            Target { desired: Replicas::new(5), reason: Reason::ScaleUp, explanation: "".into(), evidence };
        let decision = Decision {
            model: group.model.clone(),
            accelerator: None,
            current: None,
            verdict: Verdict::Target(target),
            gap: None,
        };
        let decisions = BTreeMap::from([(VariantId::new("llm", "llama"), decision)]);

        let adopted = adopt(Restored { decisions, memory });

        let variant = adopted.groups[&group].variants.get("llama").unwrap();
        assert_eq!((variant.target, variant.evidence), (Some(Replicas::new(5)), Some(evidence)));
    }
}
