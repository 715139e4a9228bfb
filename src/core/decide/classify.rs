//! Prepares a model's decision: its variants, how completely they are measured, which roles are saturated, which orders are withdrawn because
//! their evidence is contradicted, and which analyzer decides.

use std::borrow::Cow;
use std::sync::Arc;

use jiff::Timestamp;
use smol_str::SmolStr;

use super::analyze::fallback;
use super::context::{ModelContext, VariantContext};
use super::model::ModelDecision;
use super::{safety_net, withdrawn_orders};
use crate::memory::{GroupMemory, VariantMemory};
use crate::model::Role;
use crate::name_map::NameMap;
use crate::normalize::remembered;
use crate::quality::analyzer_signals::CROSS_CHECK_SIGNALS;
use crate::quality::{SignalHistory, assess_variant};

/// Begins the decision about the model of `context`; `before` is its memory.
pub(super) fn classify<'a>(context: ModelContext<'a>, before: Option<&'a GroupMemory>) -> ModelDecision<'a> {
    let mut model = ModelDecision {
        context,
        variants: variants(context, before),
        proposals: Vec::new(),
        optimizer_input: None,
        steps: Vec::new(),
        saturated: Vec::new(),
        fallbacks: Vec::new(),
        memory: memory(context, before),
        before,
    };
    model.memory.signal_history = signal_history(context, &model.variants);
    model.variants.sort_by_key(|variant| variant.role());
    model.saturated = safety_net::find(context, &model.variants);
    let learned = model.memory.learned.get_or_insert_default();
    let saturated: Vec<Role> = model.saturated.iter().map(|(role, _)| *role).collect();
    model.steps = withdrawn_orders::withdraw(context, &saturated, &mut model.variants, learned);
    model.fallbacks = fallback::choose_for_unmeasured(context, &mut model.variants, learned);
    if !model.fallbacks.is_empty() {
        fallback::count_all_demand(context, learned);
    }
    model
}

fn memory(context: ModelContext<'_>, before: Option<&GroupMemory>) -> GroupMemory {
    let Some(before) = before else { return GroupMemory::default() };
    // A moment in the future is from before the clock was set back.
    let until_now = |moment: Option<Timestamp>| moment.map(|at| at.min(context.now));
    GroupMemory {
        cycle_at: before.cycle_at,
        idle_since: until_now(before.idle_since),
        observed_at: until_now(before.observed_at),
        learned: before.learned.clone(),
        signal_history: None,
        failed: None,
        variants: NameMap::with_capacity(context.group.variants.len()),
    }
}

/// The variants whose scale target exists.
fn variants<'a>(context: ModelContext<'a>, before: Option<&'a GroupMemory>) -> Vec<VariantContext<'a>> {
    let mut variants = Vec::with_capacity(context.group.variants.len());
    for state in &context.group.variants {
        let Some(scale) = state.scale else { continue };
        let memory = variant_memory(context, before, &state.variant.id.name);
        let declared = context.declared(state.variant.role);
        let coverage = assess_variant(state, declared, context.signal_history, context.now);
        variants.push(VariantContext::new(context, state, scale, memory, coverage));
    }
    variants
}

pub(super) fn variant_memory<'a>(
    context: ModelContext<'a>,
    before: Option<&'a GroupMemory>,
    variant: &SmolStr,
) -> Cow<'a, VariantMemory> {
    let before = before.and_then(|before| before.variants.get(variant));
    before.map_or_else(Cow::default, |before| remembered(before, context.now))
}

/// The history of signals after this evaluation.
fn signal_history(context: ModelContext<'_>, variants: &[VariantContext<'_>]) -> Option<Arc<SignalHistory>> {
    let reads = context.declared(Role::Both).all().with(CROSS_CHECK_SIGNALS);
    let none = SignalHistory::default();
    let before = context.signal_history.unwrap_or(&none);
    let observed = variants.iter().map(|variant| (variant.state, &variant.coverage));
    Some(Arc::new(before.after(observed, reads, context.now))).filter(|after| !after.is_empty())
}
