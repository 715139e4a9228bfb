//! How many requests an engine runs at once at most, as the analyzers of capacity estimate it.

use std::borrow::Cow;

use super::member::{Member, Scene};
use crate::analyze::saturation_token::EngineParameters;
use crate::sequences::{MAX_SEEN, estimated};

/// Requests that an engine of `member` runs at once at most, as estimated; 0 is not known. Upstream assumes 256 where no argument
/// says it.
pub(super) fn max_sequences(scene: Scene<'_>, member: &Member<'_>) -> u32 {
    if scene.compat.is_upstream() {
        let assumed = member.state.template.engine.as_ref().map(|engine| engine.max_sequences);
        return assumed.and_then(|most| u32::try_from(most).ok()).unwrap_or(0);
    }
    estimate(member).unwrap_or(0)
}

/// The settings of the engines of `member`. Upstream's maximum of sequences is 256 where no argument says it, ours what is
/// estimated, and none where that is not known.
pub(super) fn parameters<'a>(scene: Scene<'_>, member: &Member<'a>) -> Option<Cow<'a, EngineParameters>> {
    let engine = member.state.template.engine.as_ref()?;
    let most = i64::from(estimate(member).unwrap_or(MAX_SEEN));
    if scene.compat.is_upstream() || engine.max_sequences == most {
        return Some(Cow::Borrowed(engine));
    }
    Some(Cow::Owned(EngineParameters { max_sequences: most, ..engine.clone() }))
}

fn estimate(member: &Member<'_>) -> Option<u32> {
    estimated(member.state, member.memory.most_running.of(member.state))
}
