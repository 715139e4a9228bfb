//! Whether upstream's known defects are corrected or kept.

use serde::{Deserialize, Serialize};

/// Where upstream (llm-d workload-variant-autoscaler) has a known defect, corrected behaviour is the default; the other values keep
/// the defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compat {
    /// Without upstream's known defects.
    #[default]
    Corrected,
    /// As upstream v0.9 (2026-08), with its defects.
    Upstream,
    /// As upstream in 2026-06, which counts pods where v0.9 counts engines: for fleets that move from that version, and for comparison with it.
    UpstreamJune,
}
