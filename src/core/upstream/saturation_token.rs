//! The token saturation analyzer. Source: WVA v0.9, `internal/engines/analyzers/saturation_v2/analyzer.go` and `capacity_store.go`.
//!
//! Defects: it learns from one replica after the other, so that earlier ones change later ones; it learns from replicas of other variants; roles share
//! their histories; the threshold on memory counts twice for a replica that does not show its capacity.

use jiff::Timestamp;
use smol_str::SmolStr;

use super::Tree;
use crate::analyze::finding::VariantCapacity;
use crate::analyze::saturation_token::history::Setting;
use crate::analyze::saturation_token::knowledge::{Learned, Record};
use crate::analyze::saturation_token::queue::Workload;
use crate::analyze::saturation_token::replica::{is_at_limit, measured, waiting};
use crate::analyze::saturation_token::{
    EngineInput, Knowledge, NO_DATA, Source, TokenAnalysis, TokenCapacity, TokenInput, TokenObservation,
    TokenPolicy, TokenVariant, VariantSums, engine_counts, median, whole_seconds,
};
use crate::model::Role;
use crate::snapshot::EngineParameters;
use crate::units::{Tokens, count, to_f64};

/// Analyzes one model, and learns from what its engines show.
#[must_use]
pub(crate) fn analyze<'a>(
    input: &TokenInput<'a>,
    knowledge: &mut Knowledge,
    policy: &TokenPolicy,
    tree: Tree,
    now: Timestamp,
) -> TokenAnalysis<'a> {
    let now = whole_seconds(now);
    knowledge.forget(now);
    for variant in input.variants {
        read_arguments(knowledge, variant, tree, now);
    }
    let engine = |observation: &TokenObservation<'a>| {
        let index = input.variants.iter().position(|variant| variant.name == observation.variant);
        let engine = EngineInput::new(observation, index, index.and_then(|index| input.variants.get(index)));
        EngineInput { setting: Setting { role: Role::Both, ..engine.setting }, ..engine }
    };
    let engines: Vec<EngineInput<'a>> = input.replicas.iter().map(engine).collect();
    let capacities: Vec<Option<TokenCapacity<'a>>> =
        engines.iter().map(|engine| capacity(engine, knowledge, policy, tree, now)).collect();
    let workload = Workload::mean(input.replicas);
    let sums = VariantSums::collect(input.variants.len(), &engines, &capacities);
    let store = Store { knowledge, policy, tree, workload };
    let variants = input.variants.iter().zip(sums).map(|(variant, sums)| store.capacity(variant, sums));
    TokenAnalysis::new(input, variants.collect(), workload, capacities, policy)
}

/// Notes a variant's arguments. What a replica has shown outweighs them forever.
fn read_arguments(knowledge: &mut Knowledge, variant: &TokenVariant<'_>, tree: Tree, now: Timestamp) {
    let Some(parameters) = variant.parameters else { return };
    if let Some(record) = knowledge.records.get_mut(variant.name) {
        if record.learned == Learned::Live {
            return;
        }
        if record.is_from(variant) {
            record.updated = now;
            return;
        }
    }
    let record = Record::from_arguments(variant, parameters, kv_tokens(parameters, tree), now);
    knowledge.records.insert(variant.name.into(), record);
}

/// Tokens in the KV cache if an argument sets them, else 0. June's tree does not know SGLang.
pub(crate) fn kv_tokens(parameters: &EngineParameters, tree: Tree) -> Tokens {
    match tree {
        Tree::June if parameters.blocks_override <= 0 => Tokens::ZERO,
        Tree::June | Tree::August => parameters.kv_tokens(),
    }
}

/// Equal in everything that determines the capacity. June's tree does not know SGLang.
pub(crate) fn is_compatible(parameters: &EngineParameters, other: &EngineParameters, tree: Tree) -> bool {
    match tree {
        Tree::June => parameters.has_same_memory(other),
        Tree::August => parameters.is_compatible(other),
    }
}

/// The capacity of one engine, which is learned from first.
fn capacity<'a>(
    engine: &EngineInput<'a>,
    knowledge: &mut Knowledge,
    policy: &TokenPolicy,
    tree: Tree,
    now: Timestamp,
) -> Option<TokenCapacity<'a>> {
    if !engine.has_capacity() {
        return recorded(engine, knowledge, policy, tree);
    }
    if is_at_limit(engine, policy) {
        knowledge.histories.add(engine.setting, engine.observed.in_use, now);
    }
    let capacity = measured(engine, knowledge, policy, waiting_tokens(engine, tree), || None);
    knowledge.learn(engine, capacity.effective, now);
    Some(capacity)
}

/// The capacity of an engine that does not show the size of its KV cache: the record of its variant counts as that size.
fn recorded<'a>(
    engine: &EngineInput<'a>,
    knowledge: &Knowledge,
    policy: &TokenPolicy,
    tree: Tree,
) -> Option<TokenCapacity<'a>> {
    let record = knowledge.records.get(engine.observed.variant)?;
    let effective = record.effective.share(policy.kv_cache_threshold);
    let demand = effective.share(engine.observed.kv).plus(waiting_tokens(engine, tree));
    (record.effective > Tokens::ZERO && effective > Tokens::ZERO)
        .then(|| TokenCapacity::new(engine, effective, effective, demand, Source::Memory))
}

/// Tokens of the waiting requests. June's tree counts only their prompts, v0.9 prompts and outputs. In v0.9 a number beyond 63 bits counts as 0.
fn waiting_tokens(engine: &EngineInput<'_>, tree: Tree) -> Tokens {
    const TOO_MANY: f64 = to_f64(i64::MAX);
    match tree {
        Tree::June => Tokens::truncated(engine.observed.prompt).times(engine.observed.queue),
        Tree::August if waiting(engine) >= TOO_MANY => Tokens::ZERO,
        Tree::August => Tokens::truncated(waiting(engine)),
    }
}

/// What is known of variants after all engines have been learned from.
struct Store<'k> {
    knowledge: &'k Knowledge,
    policy: &'k TokenPolicy,
    tree: Tree,
    workload: Workload,
}

impl Store<'_> {
    /// Cost and accelerator come from an engine, so that a variant without any has cost 0 and no accelerator. June's tree counts pods, v0.9 engines.
    fn capacity(&self, variant: &TokenVariant<'_>, mut sums: VariantSums<'_>) -> VariantCapacity {
        let ready = variant.current.saturating_sub(variant.pending);
        let engines = count(sums.effective.len());
        let accelerator = sums.accelerator.unwrap_or_default();
        sums.effective.sort_by_key(|(tokens, _)| *tokens);
        let mut counts = (ready, variant.pending);
        let (per_replica, reason) = if let Some((capacity, source)) = median(&sums.effective) {
            if self.tree == Tree::August {
                counts = engine_counts(engines, ready, variant.pending);
            }
            (capacity, source.label())
        } else {
            let stored = self.stored_capacity(variant, accelerator);
            (stored.unwrap_or_default(), stored.map_or(NO_DATA, |_| Source::Stored.label()))
        };
        VariantCapacity {
            name: variant.name.into(),
            role: variant.role,
            accelerator: (!accelerator.is_empty()).then(|| accelerator.into()),
            cost: sums.cost.unwrap_or_default(),
            replicas: counts.0,
            pending: counts.1,
            per_replica: per_replica.to_f64(),
            demand: sums.demand,
            reason: SmolStr::new_static(reason),
        }
    }

    /// The capacity of a replica of a variant without any. A variant without a capacity of its own is compared by the accelerator that an engine
    /// showed in this cycle, which is usually none.
    fn stored_capacity(&self, variant: &TokenVariant<'_>, accelerator: &str) -> Option<Tokens> {
        let own = self.knowledge.records.get(variant.name)?;
        if own.effective == Tokens::ZERO {
            return self.alike(own, accelerator, variant.gpus).map(|record| record.effective);
        }
        let alike = self.alike(own, &own.accelerator, own.gpus);
        Some(own.stored_capacity(alike, self.workload, self.policy))
    }

    /// Upstream takes whichever record its map yields; this is the first by name.
    fn alike(&self, own: &Record, accelerator: &str, gpus: u32) -> Option<&Record> {
        let parameters = own.parameters.as_deref()?;
        let has_settings = |other: &EngineParameters| is_compatible(other, parameters, self.tree);
        self.knowledge.best_record(accelerator, gpus, has_settings)
    }
}
