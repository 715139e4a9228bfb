//! How many requests an engine runs at once at most, as the analyzers of capacity estimate it.

use std::borrow::Cow;

use crate::decide::context::{ModelContext, VariantContext};
use crate::sequence_limit::{MAX_SEEN, estimated_max};
use crate::snapshot::EngineParameters;

/// Requests that an engine of `variant` runs at once at most, as estimated; 0 is not known. Upstream assumes 256 where no argument
/// says it.
pub(crate) fn max_sequences(context: ModelContext<'_>, variant: &VariantContext<'_>) -> u32 {
    if context.compat.is_upstream() {
        let assumed = variant.state.template.engine.as_ref().map(|engine| engine.max_sequences);
        return assumed.and_then(|most| u32::try_from(most).ok()).unwrap_or(0);
    }
    estimate(variant).unwrap_or(0)
}

/// The settings of the engines of `variant`. Upstream's maximum of sequences is 256 where no argument says it, ours what is
/// estimated, and none where that is not known.
pub(crate) fn parameters<'a>(
    context: ModelContext<'_>,
    variant: &VariantContext<'a>,
) -> Option<Cow<'a, EngineParameters>> {
    let engine = variant.state.template.engine.as_ref()?;
    let most = i64::from(estimate(variant).unwrap_or(MAX_SEEN));
    if context.compat.is_upstream() || engine.max_sequences == most {
        return Some(Cow::Borrowed(engine));
    }
    Some(Cow::Owned(EngineParameters { max_sequences: most, ..engine.clone() }))
}

fn estimate(variant: &VariantContext<'_>) -> Option<u32> {
    estimated_max(variant.state, variant.memory.most_running.of(variant.state))
}
