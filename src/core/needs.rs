//! Which signals a decision looks at. A source that has to ask for each may leave out the others: of the 16 that are
//! known of a vLLM pod that is more than half of what an evaluation reads.

use crate::snapshot::Signal;

/// Everything that [`crate::observe()`], [`crate::decide()`] and [`crate::check`] read of a snapshot.
pub const NEEDS: [Signal; 7] = [
    Signal::KvUsage,
    Signal::Waiting,
    Signal::Running,
    Signal::TimeToFirstTokenCount,
    Signal::RequestGenerationTokensCount,
    Signal::RequestPromptTokensCount,
    Signal::SchedulerQueueSize,
];
