//! What the analyzer remembers of one model group, and what a variant without replicas could carry.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::VariantInput;
use super::history::Histories;
use super::queue::Workload;
use super::replica::{Look, ReplicaCapacity, Seen};
use crate::model::Compat;
use crate::name_map::NameMap;
use crate::snapshot::EngineParameters;
use crate::units::Tokens;

/// What is remembered between analyses of one model in one namespace.
///
/// Upstream keeps one store for the whole cluster: namespaces that serve the same model share histories of equal hardware
/// and look for compatible records in each other. Here every group has its own, so that the order in which groups are
/// decided cannot matter and no tenant's load moves another's numbers. At most 2 KiB of JSON for each variant.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Knowledge {
    /// Tokens resident when requests queued.
    #[serde(default)]
    pub histories: Histories,
    /// What a replica of each variant can carry, by the variant's name.
    #[serde(default)]
    pub records: NameMap<Record>,
}

/// What a replica of one variant can carry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The accelerator's name; empty when not known.
    pub accelerator: SmolStr,
    /// Accelerators of a replica.
    pub gpus: u32,
    /// C: tokens that fit into the KV cache; 0 is not known.
    pub capacity: Tokens,
    /// Tokens it can carry. Of a live record the threshold on memory is part of it; of one from arguments it is only the
    /// size of a batch.
    pub effective: Tokens,
    /// The engine's settings, when known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Box<EngineParameters>>,
    /// Where the record is from.
    pub learned: Learned,
    /// When it was last confirmed, in whole seconds.
    pub updated: Timestamp,
}

/// Where a record is from, the better first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Learned {
    /// A running replica.
    Live,
    /// The engine's arguments.
    Arguments,
}

impl Record {
    /// A record that was not confirmed for longer is dropped.
    const KEPT: SignedDuration = SignedDuration::from_hours(7 * 24);

    /// E of its settings.
    pub(super) fn estimate(&self, prompt: f64, output: f64) -> Option<Tokens> {
        self.parameters.as_ref().and_then(|parameters| parameters.resident_tokens(prompt, output))
    }

    fn from_arguments(variant: &VariantInput<'_>, parameters: &EngineParameters, look: &Look<'_>) -> Self {
        Self {
            accelerator: variant.accelerator.into(),
            gpus: variant.gpus,
            capacity: parameters.capacity(look.compat),
            effective: Tokens::new(parameters.batched_tokens),
            parameters: Some(Box::new(parameters.clone())),
            learned: Learned::Arguments,
            updated: look.now,
        }
    }
}

impl Knowledge {
    /// Histories and records kept for each variant at most: one of each length of output; the variant's own record and
    /// one of a variant that is gone.
    const MOST_A_VARIANT: (usize, usize) = (3, 2);

    /// Drops what is too old, and ours also what is too much: the oldest first, and no record of a variant that exists.
    pub(super) fn forget(&mut self, variants: &[VariantInput<'_>], look: &Look<'_>) {
        self.histories.forget(look.now);
        self.records.retain(|_, record| look.now.duration_since(record.updated) <= Record::KEPT);
        if look.compat.is_upstream() {
            return;
        }
        let (histories, records) = Self::MOST_A_VARIANT;
        let among = variants.len().max(1);
        self.histories.limit(histories * among);
        while self.records.len() > records * among {
            let exists = |name: &SmolStr| variants.iter().any(|variant| variant.name == name);
            let gone = self.records.iter().filter(|(name, _)| !exists(name));
            let Some(name) = gone.min_by_key(|(_, record)| record.updated).map(|(name, _)| name.clone())
            else {
                break;
            };
            self.records.remove(&name);
        }
    }

    /// What running replicas of `variant` have shown that one of them carries, tokens; `None` when none has.
    #[must_use]
    pub fn carried_by(&self, variant: &str) -> Option<f64> {
        let record = self.records.get(variant).filter(|record| record.learned == Learned::Live)?;
        Some(record.effective.float()).filter(|carried| *carried > 0.0)
    }

    /// Takes note of a variant's arguments. What a replica showed outweighs them: with upstream for good, ours until the
    /// arguments change in what decides capacity.
    pub(super) fn read_arguments(&mut self, variant: &VariantInput<'_>, look: &Look<'_>) {
        let Some(parameters) = variant.parameters else { return };
        if let Some(record) = self.records.get_mut(variant.name) {
            let known = record.parameters.as_deref();
            let same = known == Some(parameters);
            if record.learned == Learned::Live {
                if look.compat.is_upstream() || same {
                    return;
                }
                let alike = |known: &EngineParameters| known.compatible(parameters, look.compat);
                if known.is_none_or(alike) {
                    record.parameters = Some(Box::new(parameters.clone()));
                    return;
                }
            } else if same && record.accelerator == variant.accelerator && record.gpus == variant.gpus {
                record.updated = look.now;
                return;
            }
        }
        let record = Record::from_arguments(variant, parameters, look);
        self.records.insert(variant.name.into(), record);
    }

    /// Takes note of what a running replica showed.
    pub(super) fn learn(&mut self, seen: &Seen<'_>, effective: Tokens, now: Timestamp) {
        let (accelerator, gpus, capacity) =
            (seen.setting.accelerator, seen.setting.gpus, seen.observed.capacity);
        if let Some(record) = self.records.get_mut(seen.observed.variant) {
            if record.accelerator != accelerator {
                record.accelerator = accelerator.into();
            }
            (record.gpus, record.capacity, record.effective) = (gpus, capacity, effective);
            (record.learned, record.updated) = (Learned::Live, now);
            return;
        }
        let (accelerator, learned, parameters) = (accelerator.into(), Learned::Live, None);
        let record = Record { accelerator, gpus, capacity, effective, parameters, learned, updated: now };
        self.records.insert(seen.observed.variant.into(), record);
    }

    /// Takes note of the lower median replica of every variant, so that the order of replicas does not matter.
    pub(super) fn learn_medians(
        &mut self,
        seen: &[Seen<'_>],
        found: &[Option<ReplicaCapacity<'_>>],
        now: Timestamp,
    ) {
        let known =
            seen.iter().zip(found).filter_map(|(one, found)| found.as_ref().map(|it| (one, it.effective)));
        let mut order: Vec<_> = known.collect();
        order.sort_by_key(|(one, effective)| (one.observed.variant, *effective, one.observed.capacity));
        for variant in order.chunk_by(|(a, _), (b, _)| a.observed.variant == b.observed.variant) {
            if let Some((one, effective)) = variant.get((variant.len() - 1) / 2) {
                self.learn(one, *effective, now);
            }
        }
    }

    /// What a replica of a variant without any could carry; `None` when nothing is known (§3.5).
    pub(super) fn stored_capacity(
        &self,
        variant: &VariantInput<'_>,
        seen_accelerator: &str,
        workload: Workload,
        look: &Look<'_>,
    ) -> Option<Tokens> {
        let own = self.records.get(variant.name)?;
        if own.effective == Tokens::ZERO {
            // Upstream looks for the accelerator that was seen in this cycle, mostly none.
            let hardware = match look.compat {
                Compat::Corrected => (own.accelerator.as_str(), own.gpus),
                Compat::Upstream | Compat::UpstreamJune => (seen_accelerator, variant.gpus),
            };
            return self.compatible(own, hardware, look.compat).map(|record| record.effective);
        }
        let estimate = match own.learned {
            Learned::Live => None,
            Learned::Arguments => own.estimate(workload.prompt, workload.output),
        };
        let Some(estimate) = estimate else { return Some(own.effective) };
        let memory = own.capacity.share(look.policy.kv_cache_threshold);
        let memory = Some(memory).filter(|limit| *limit > Tokens::ZERO);
        let hardware = (own.accelerator.as_str(), own.gpus);
        let like = self.compatible(own, hardware, look.compat);
        let like = like.filter(|record| record.learned == Learned::Live).map(|record| record.effective);
        Some([memory, like].into_iter().flatten().fold(estimate, Tokens::min))
    }

    /// The record of another variant with the same hardware and settings: a live one before one from arguments, then by
    /// name. The asking one's own is never chosen: it has no capacity, or only a live one will do and it is not. Upstream
    /// takes whichever its map yields.
    fn compatible(&self, own: &Record, (accelerator, gpus): (&str, u32), compat: Compat) -> Option<&Record> {
        let parameters = own.parameters.as_ref()?;
        let alike = |record: &&Record| {
            record.accelerator == accelerator
                && record.gpus == gpus
                && record.effective > Tokens::ZERO
                && record.parameters.as_ref().is_some_and(|other| other.compatible(parameters, compat))
        };
        self.records.values().filter(alike).min_by_key(|record| record.learned)
    }
}

#[cfg(test)]
mod tests {
    use super::super::policy::TokenPolicy;
    use super::*;
    use crate::model::Role;
    use crate::snapshot::Engine;
    use crate::units::{Cost, Replicas};

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

    fn look(policy: &TokenPolicy, hours: i64) -> Look<'_> {
        Look { policy, compat: Compat::Corrected, now: NOW + SignedDuration::from_hours(hours) }
    }

    fn variant<'a>(parameters: &'a EngineParameters, accelerator: &'a str, gpus: u32) -> VariantInput<'a> {
        VariantInput {
            name: "a",
            role: Role::Both,
            accelerator,
            cost: Cost::ZERO,
            gpus,
            current: Replicas::ZERO,
            pending: Replicas::ZERO,
            parameters: Some(parameters),
        }
    }

    #[test]
    fn a_record_from_arguments_is_confirmed_by_the_same_arguments_and_hardware_only() {
        let policy = TokenPolicy::default();
        let usual = EngineParameters::defaults(Engine::Vllm);
        let other = EngineParameters { batched_tokens: 4096, ..usual.clone() };
        let after = |variant: &VariantInput<'_>| {
            let mut knowledge = Knowledge::default();
            knowledge.read_arguments(&self::variant(&usual, "H100", 1), &look(&policy, 0));
            // What tells a confirmed record from one that is made again.
            knowledge.records.get_mut("a").unwrap().capacity = Tokens::new(77);
            knowledge.read_arguments(variant, &look(&policy, 1));
            let Record { accelerator, gpus, capacity, effective, updated, .. } =
                knowledge.records.get("a").unwrap().clone();
            assert_eq!(updated, NOW + SignedDuration::from_hours(1));
            (accelerator, gpus, capacity.get(), effective.get())
        };
        assert_eq!(after(&variant(&usual, "H100", 1)), ("H100".into(), 1, 77, 8192));
        assert_eq!(after(&variant(&usual, "A100", 1)), ("A100".into(), 1, 0, 8192));
        assert_eq!(after(&variant(&usual, "H100", 2)), ("H100".into(), 2, 0, 8192));
        assert_eq!(after(&variant(&other, "H100", 1)), ("H100".into(), 1, 0, 4096));
    }

    #[test]
    fn what_a_sleeper_could_carry_is_the_least_of_its_estimate_its_memory_and_a_like_one() {
        let policy = TokenPolicy::default();
        let usual = EngineParameters::defaults(Engine::Vllm);
        let record = |learned, capacity, effective| Record {
            accelerator: "H100".into(),
            gpus: 1,
            capacity: Tokens::new(capacity),
            effective: Tokens::new(effective),
            parameters: Some(Box::new(usual.clone())),
            learned,
            updated: NOW,
        };
        let asleep = variant(&usual, "H100", 1);
        let workload = Workload { prompt: 100.0, output: 50.0, prefix_hits: 0.0 };
        let carries = |capacity, like: Option<Record>| {
            let mut knowledge = Knowledge::default();
            knowledge.records.insert("a".into(), record(Learned::Arguments, capacity, 8192));
            if let Some(like) = like {
                knowledge.records.insert("b".into(), like);
            }
            knowledge.stored_capacity(&asleep, "", workload, &look(&policy, 0)).map(Tokens::get)
        };
        assert_eq!(carries(0, None), Some(32_000), "256 requests of 125 tokens");
        assert_eq!(carries(30_000, None), Some(24_000), "0.8 of its memory");
        assert_eq!(carries(50_000, None), Some(32_000));
        assert_eq!(carries(50_000, Some(record(Learned::Live, 0, 9_000))), Some(9_000));
        assert_eq!(carries(50_000, Some(record(Learned::Live, 0, 90_000))), Some(32_000));
        assert_eq!(
            carries(50_000, Some(record(Learned::Arguments, 0, 9_000))),
            Some(32_000),
            "nobody saw it"
        );
        assert_eq!(
            carries(50_000, Some(record(Learned::Live, 0, 0))),
            Some(32_000),
            "nothing is known of it"
        );
        let other = Record { gpus: 2, ..record(Learned::Live, 0, 9_000) };
        assert_eq!(carries(50_000, Some(other)), Some(32_000));
        let other = Record { accelerator: "A100".into(), ..record(Learned::Live, 0, 9_000) };
        assert_eq!(carries(50_000, Some(other)), Some(32_000));
    }

    #[test]
    fn two_records_a_variant_are_kept_and_of_more_the_oldest_of_variants_that_are_gone_go() {
        let usual = EngineParameters::defaults(Engine::Vllm);
        let policy = TokenPolicy::default();
        let left = |names: &[&str], compat| {
            let mut knowledge = Knowledge::default();
            for (hour, name) in (0..).zip(names) {
                let one = VariantInput { name, ..variant(&usual, "H100", 1) };
                knowledge.read_arguments(&one, &look(&policy, hour));
            }
            let there = ["a", "b"].map(|name| VariantInput { name, ..variant(&usual, "H100", 1) });
            knowledge.forget(&there, &Look { compat, ..look(&policy, 9) });
            knowledge.records.iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(left(&["a", "b", "d", "c"], Compat::Corrected), ["a", "b", "c", "d"]);
        assert_eq!(left(&["a", "b", "e", "d", "c"], Compat::Corrected), ["a", "b", "c", "d"]);
        assert_eq!(left(&["a", "b", "e", "d", "c"], Compat::Upstream).len(), 5);
    }

    #[test]
    fn only_what_running_replicas_have_shown_is_what_a_variant_carries() {
        let carried = |learned, effective| {
            let record = Record {
                accelerator: "H100".into(),
                gpus: 1,
                capacity: Tokens::new(9000),
                effective: Tokens::new(effective),
                parameters: None,
                learned,
                updated: NOW,
            };
            let records = [("a".into(), record)].into();
            Knowledge { records, ..Knowledge::default() }.carried_by("a").map(|carried| carried as i64)
        };
        assert_eq!(carried(Learned::Live, 5000), Some(5000));
        assert_eq!([carried(Learned::Arguments, 5000), carried(Learned::Live, 0)], [None, None]);
        assert_eq!(Knowledge::default().carried_by("a"), None);
    }
}
