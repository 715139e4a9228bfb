//! The estimated maximum of requests that an engine runs at once, for the capacity analyzers.

use std::borrow::Cow;

use crate::decide::context::{ModelContext, VariantContext};
use crate::sequence_limit::MAX_SEEN;
use crate::snapshot::EngineParameters;

/// The estimated maximum of requests that an engine of `variant` runs at once; 0 if it is not known.
pub(crate) fn max_sequences(context: ModelContext<'_>, variant: &VariantContext<'_>) -> u32 {
    estimate(context, variant).and_then(|max| u32::try_from(max).ok()).unwrap_or(0)
}

/// The settings of the engines of `variant`, with the estimated maximum of sequences, or no effective one if that is not known.
pub(crate) fn parameters<'a>(
    context: ModelContext<'_>,
    variant: &VariantContext<'a>,
) -> Option<Cow<'a, EngineParameters>> {
    let engine = variant.state.template.engine.as_ref()?;
    let max = estimate(context, variant).unwrap_or(i64::from(MAX_SEEN));
    if engine.max_sequences == max {
        return Some(Cow::Borrowed(engine));
    }
    Some(Cow::Owned(EngineParameters { max_sequences: max, ..engine.clone() }))
}

fn estimate(context: ModelContext<'_>, variant: &VariantContext<'_>) -> Option<i64> {
    (context.inputs.max_sequences)(variant.state, variant.memory.most_running.of(variant.state))
}
