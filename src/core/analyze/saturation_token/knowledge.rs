//! What the analyzer remembers about one model group, and the capacity of variants without replicas.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::history::Histories;
use super::input::{EngineInput, TokenPolicy, TokenVariant};
use super::queue::Workload;
use crate::name_map::NameMap;
use crate::snapshot::EngineParameters;
use crate::units::Tokens;

/// What is remembered about one model in one namespace, at most 2 KiB of JSON for each variant. Upstream keeps one store for the whole cluster,
/// so that one tenant's load changes another tenant's numbers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Knowledge {
    /// Tokens resident when requests queued.
    #[serde(default)]
    pub histories: Histories,
    /// The capacity of a replica, by variant name.
    #[serde(default)]
    pub records: NameMap<Record>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The accelerator's name; empty if it is unknown.
    pub accelerator: SmolStr,
    pub gpus: u32,
    /// C: tokens that fit into the KV cache; 0 is unknown.
    pub capacity: Tokens,
    /// Its capacity, tokens. In a live record it includes the threshold on memory; in one from arguments it is only the size of a batch.
    pub effective: Tokens,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Box<EngineParameters>>,
    pub learned: Learned,
    /// When it was last confirmed, in whole seconds.
    pub updated: Timestamp,
}

/// Where a record is from, the better source first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Learned {
    /// A running replica.
    Live,
    Arguments,
}

/// A record that has not been confirmed for this long is dropped.
const MAX_RECORD_AGE: SignedDuration = SignedDuration::from_hours(7 * 24);
/// Histories per variant at most: one for each length of output.
const MAX_HISTORIES_PER_VARIANT: usize = 3;
/// Records per variant at most: its own, and one of a variant that is gone.
const MAX_RECORDS_PER_VARIANT: usize = 2;

impl Record {
    pub(crate) fn from_arguments(
        variant: &TokenVariant<'_>,
        parameters: &EngineParameters,
        capacity: Tokens,
        now: Timestamp,
    ) -> Self {
        Self {
            accelerator: variant.accelerator.into(),
            gpus: variant.gpus,
            capacity,
            effective: Tokens::new(parameters.batched_tokens),
            parameters: Some(Box::new(parameters.clone())),
            learned: Learned::Arguments,
            updated: now,
        }
    }

    pub(crate) fn estimate(&self, prompt: f64, output: f64) -> Option<Tokens> {
        self.parameters.as_ref().and_then(|parameters| parameters.resident_tokens(prompt, output))
    }

    pub(crate) fn is_from(&self, variant: &TokenVariant<'_>) -> bool {
        self.parameters.as_deref() == variant.parameters
            && self.accelerator == variant.accelerator
            && self.gpus == variant.gpus
    }
}

impl Knowledge {
    pub(crate) fn forget(&mut self, now: Timestamp) {
        self.histories.forget(now);
        self.records.retain(|_, record| now.duration_since(record.updated) <= MAX_RECORD_AGE);
    }

    /// Drops what exceeds the maxima: the oldest first, and no record of a variant that exists.
    pub(super) fn limit(&mut self, variants: &[TokenVariant<'_>]) {
        let count = variants.len().max(1);
        self.histories.limit(MAX_HISTORIES_PER_VARIANT * count);
        while self.records.len() > MAX_RECORDS_PER_VARIANT * count {
            let exists = |name: &SmolStr| variants.iter().any(|variant| variant.name == name);
            let gone = self.records.iter().filter(|(name, _)| !exists(name));
            let Some(name) = gone.min_by_key(|(_, record)| record.updated).map(|(name, _)| name.clone())
            else {
                break;
            };
            self.records.remove(&name);
        }
    }

    /// The capacity of a replica of `variant` as running ones have shown it, tokens; `None` if none has.
    pub fn carried_by(&self, variant: &str) -> Option<f64> {
        let record = self.records.get(variant).filter(|record| record.learned == Learned::Live)?;
        Some(record.effective.to_f64()).filter(|carried| *carried > 0.0)
    }

    /// Notes a variant's arguments. What a replica has shown outweighs them until they change in a way that affects capacity.
    pub(super) fn read_arguments(&mut self, variant: &TokenVariant<'_>, now: Timestamp) {
        let Some(parameters) = variant.parameters else { return };
        if let Some(record) = self.records.get_mut(variant.name) {
            let known = record.parameters.as_deref();
            match record.learned {
                Learned::Live if known == Some(parameters) => return,
                Learned::Live if known.is_none_or(|known| known.is_compatible(parameters)) => {
                    record.parameters = Some(Box::new(parameters.clone()));
                    return;
                }
                Learned::Arguments if record.is_from(variant) => {
                    record.updated = now;
                    return;
                }
                Learned::Live | Learned::Arguments => {}
            }
        }
        let record = Record::from_arguments(variant, parameters, parameters.kv_tokens(), now);
        self.records.insert(variant.name.into(), record);
    }

    pub(crate) fn learn(&mut self, engine: &EngineInput<'_>, effective: Tokens, now: Timestamp) {
        let observed = &engine.observed;
        if let Some(record) = self.records.get_mut(observed.variant) {
            if record.accelerator != engine.setting.accelerator {
                record.accelerator = engine.setting.accelerator.into();
            }
            record.gpus = engine.setting.gpus;
            record.capacity = observed.capacity;
            record.effective = effective;
            record.learned = Learned::Live;
            record.updated = now;
            return;
        }
        let record = Record {
            accelerator: engine.setting.accelerator.into(),
            gpus: engine.setting.gpus,
            capacity: observed.capacity,
            effective,
            parameters: None,
            learned: Learned::Live,
            updated: now,
        };
        self.records.insert(observed.variant.into(), record);
    }

    /// Learns from the lower median engine of every variant, so that the order of engines does not matter.
    pub(super) fn learn_medians(&mut self, mut shown: Vec<(&EngineInput<'_>, Tokens)>, now: Timestamp) {
        shown.sort_by_key(|(engine, effective)| {
            (engine.observed.variant, *effective, engine.observed.capacity)
        });
        for variant in shown.chunk_by(|(left, _), (right, _)| left.observed.variant == right.observed.variant)
        {
            if let Some((engine, effective)) = variant.get((variant.len() - 1) / 2) {
                self.learn(engine, *effective, now);
            }
        }
    }

    /// The capacity that a replica of `variant`, which has none, would have; `None` if nothing is known.
    pub(super) fn stored_capacity(
        &self,
        variant: &str,
        workload: Workload,
        policy: &TokenPolicy,
    ) -> Option<Tokens> {
        let own = self.records.get(variant)?;
        let alike = self.alike(own);
        if own.effective == Tokens::ZERO {
            return alike.map(|record| record.effective);
        }
        Some(own.stored_capacity(alike, workload, policy))
    }

    /// The record of another variant with the same hardware and settings: a live one before one from arguments, then by name. Where it is
    /// asked for, `own` has no capacity, or only a live record counts and `own` is none.
    fn alike(&self, own: &Record) -> Option<&Record> {
        let parameters = own.parameters.as_deref()?;
        self.best_record(&own.accelerator, own.gpus, |other| other.is_compatible(parameters))
    }

    /// The best record with a capacity, of this hardware and with such settings.
    pub(crate) fn best_record(
        &self,
        accelerator: &str,
        gpus: u32,
        has_settings: impl Fn(&EngineParameters) -> bool,
    ) -> Option<&Record> {
        let is_alike = |record: &&Record| {
            record.accelerator == accelerator
                && record.gpus == gpus
                && record.effective > Tokens::ZERO
                && record.parameters.as_deref().is_some_and(&has_settings)
        };
        self.records.values().filter(is_alike).min_by_key(|record| record.learned)
    }
}

impl Record {
    /// The capacity of a replica by this record: what one has shown, or else the least of the estimate from arguments, the memory, and what a
    /// live replica with the same hardware and settings (`alike`) has shown.
    pub(crate) fn stored_capacity(
        &self,
        alike: Option<&Self>,
        workload: Workload,
        policy: &TokenPolicy,
    ) -> Tokens {
        let estimate = match self.learned {
            Learned::Live => None,
            Learned::Arguments => self.estimate(workload.prompt, workload.output),
        };
        let Some(estimate) = estimate else { return self.effective };
        let memory =
            Some(self.capacity.share(policy.kv_cache_threshold)).filter(|limit| *limit > Tokens::ZERO);
        let shown = alike.filter(|record| record.learned == Learned::Live).map(|record| record.effective);
        [memory, shown].into_iter().flatten().fold(estimate, Tokens::min)
    }
}

#[cfg(test)]
mod tests {
    use super::super::input::TokenInput;
    use super::super::tests::{later, record, variant};
    use super::*;
    use crate::arithmetic;
    use crate::model::Compat;
    use crate::snapshot::Engine;

    #[test]
    fn a_record_from_arguments_is_confirmed_by_the_same_arguments_and_hardware_only() {
        let usual = EngineParameters::defaults(Engine::Vllm);
        let larger_batch = EngineParameters { batched_tokens: 4096, ..usual.clone() };
        let confirmed = |parameters, accelerator, gpus| {
            let before = TokenVariant { parameters: Some(&usual), ..variant("a", 0) };
            let mut knowledge = Knowledge::default();
            knowledge.read_arguments(&before, later(0));
            // What tells a confirmed record from one that is made again.
            knowledge.records.get_mut("a").unwrap().capacity = Tokens::new(77);
            let after = TokenVariant { parameters: Some(parameters), accelerator, gpus, ..before };
            knowledge.read_arguments(&after, later(1));
            let Record { accelerator, gpus, capacity, effective, updated, .. } =
                knowledge.records.get("a").unwrap().clone();
            assert_eq!(updated, later(1));
            (accelerator, gpus, capacity.get(), effective.get())
        };
        assert_eq!(confirmed(&usual, "H100", 1), ("H100".into(), 1, 77, 8192));
        assert_eq!(confirmed(&usual, "A100", 1), ("A100".into(), 1, 0, 8192));
        assert_eq!(confirmed(&usual, "H100", 2), ("H100".into(), 2, 0, 8192));
        assert_eq!(confirmed(&larger_batch, "H100", 1), ("H100".into(), 1, 0, 4096));
    }

    #[test]
    fn the_capacity_of_a_sleeper_is_the_least_of_estimate_memory_and_a_similar_variant() {
        let workload = Workload { prompt: 100.0, output: 50.0, prefix_hits: 0.0 };
        let live = |effective| record(Learned::Live, 0, effective);
        let cases = [
            ("256 requests of 125 tokens", 0, None, 32_000),
            ("0.8 of its memory", 30_000, None, 24_000),
            ("more memory than it needs", 50_000, None, 32_000),
            ("one like it carries less", 50_000, Some(live(9_000)), 9_000),
            ("one like it carries more", 50_000, Some(live(90_000)), 32_000),
            ("nobody saw the one like it", 50_000, Some(record(Learned::Arguments, 0, 9_000)), 32_000),
            ("nothing is known of the one like it", 50_000, Some(live(0)), 32_000),
            ("other GPUs", 50_000, Some(Record { gpus: 2, ..live(9_000) }), 32_000),
            ("another device", 50_000, Some(Record { accelerator: "A100".into(), ..live(9_000) }), 32_000),
        ];
        for (name, capacity, like, expected) in cases {
            let mut knowledge = Knowledge::default();
            knowledge.records.insert("a".into(), record(Learned::Arguments, capacity, 8192));
            if let Some(like) = like {
                knowledge.records.insert("b".into(), like);
            }
            let carried = knowledge.stored_capacity("a", workload, &TokenPolicy::default());
            assert_eq!(carried, Some(Tokens::new(expected)), "{name}");
        }
    }

    #[test]
    fn two_records_per_variant_are_kept_and_the_oldest_of_absent_variants_are_dropped() {
        let usual = EngineParameters::defaults(Engine::Vllm);
        let left = |names: &[&str], compat| {
            let mut knowledge = Knowledge::default();
            for (hour, name) in (0..).zip(names) {
                let known = TokenVariant { parameters: Some(&usual), ..variant(name, 0) };
                knowledge.read_arguments(&known, later(hour));
            }
            let variants = ["a", "b"].map(|name| variant(name, 0));
            let input = TokenInput { variants: &variants, ..TokenInput::default() };
            let policy = TokenPolicy::default();
            let _ = arithmetic::analyze_tokens(&input, &mut knowledge, &policy, compat, later(9));
            knowledge.records.iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(left(&["a", "b", "d", "c"], Compat::Corrected), ["a", "b", "c", "d"]);
        assert_eq!(left(&["a", "b", "e", "d", "c"], Compat::Corrected), ["a", "b", "c", "d"]);
        assert_eq!(left(&["a", "b", "e", "d", "c"], Compat::Upstream).len(), 5);
    }

    #[test]
    fn only_what_running_replicas_have_shown_is_what_a_variant_carries() {
        let carried = |learned, effective| {
            let records = [("a".into(), record(learned, 9000, effective))].into();
            Knowledge { records, ..Knowledge::default() }.carried_by("a")
        };
        assert_eq!(carried(Learned::Live, 5000), Some(5000.0));
        assert_eq!([carried(Learned::Arguments, 5000), carried(Learned::Live, 0)], [None, None]);
        assert_eq!(Knowledge::default().carried_by("a"), None);
    }
}
