//! Whose arithmetic: ours, or upstream's with its known defects.

use serde::{Deserialize, Serialize};

/// Where the reference names a defect of upstream, the corrected behaviour is the default; these switch it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compat {
    /// Without upstream's defects.
    #[default]
    Corrected,
    /// Upstream's release v0.9 (2026-08), defects and all.
    Upstream,
    /// Upstream as of 2026-06, which counts pods where v0.9 counts engines.
    UpstreamJune,
}

impl Compat {
    /// One of upstream's two.
    #[must_use]
    pub const fn is_upstream(self) -> bool {
        matches!(self, Self::Upstream | Self::UpstreamJune)
    }
}
