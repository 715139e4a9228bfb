//! How long and how much is kept of what Prometheus and the API server have answered.

use std::time::Duration;

/// How long an answer is used again: HPAs that follow one metric read it within a sync of 15 s.
pub(super) const ANSWER_AGE: Duration = Duration::from_secs(1);
/// How long an answer that many reads share is used while the next one is on its way.
pub(super) const MAX_ANSWER_AGE: Duration = Duration::from_secs(2);
/// Most bytes of answers that are kept for that time, of each kind.
pub(super) const MAX_KEPT_BYTES: u64 = 16 * 1024 * 1024;
