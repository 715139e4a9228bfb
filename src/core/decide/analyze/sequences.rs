//! The estimated maximum of requests that an engine runs at once, for the capacity analyzers.

use std::borrow::Cow;

use crate::decide::context::{ModelContext, VariantContext};
use crate::sequence_limit::{MAX_SEEN, estimated_max};
use crate::snapshot::EngineParameters;

/// The estimated maximum of requests that an engine of `variant` runs at once; 0 if it is not known. Upstream assumes 256 if no argument
/// sets it.
pub(crate) fn max_sequences(context: ModelContext<'_>, variant: &VariantContext<'_>) -> u32 {
    if context.compat.is_upstream() {
        let assumed = variant.state.template.engine.as_ref().map(|engine| engine.max_sequences);
        return assumed.and_then(|max| u32::try_from(max).ok()).unwrap_or(0);
    }
    estimate(variant).unwrap_or(0)
}

/// The settings of the engines of `variant`, with the estimated maximum of sequences, or no effective one if that is not known. Upstream
/// assumes 256 if no argument sets it.
pub(crate) fn parameters<'a>(
    context: ModelContext<'_>,
    variant: &VariantContext<'a>,
) -> Option<Cow<'a, EngineParameters>> {
    let engine = variant.state.template.engine.as_ref()?;
    let max = i64::from(estimate(variant).unwrap_or(MAX_SEEN));
    if context.compat.is_upstream() || engine.max_sequences == max {
        return Some(Cow::Borrowed(engine));
    }
    Some(Cow::Owned(EngineParameters { max_sequences: max, ..engine.clone() }))
}

fn estimate(variant: &VariantContext<'_>) -> Option<u32> {
    estimated_max(variant.state, variant.memory.most_running.of(variant.state))
}
