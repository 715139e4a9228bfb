//! Which of upstream's source trees a function follows, where they differ.

use crate::model::Compat;

/// A source tree of upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tree {
    /// The main branch of 2026-06 (commit 526ce85), which counts pods where v0.9 counts engines.
    June,
    /// Release v0.9 (2026-08).
    August,
}

impl Tree {
    /// The tree that `compat` asks for; `None` for the default arithmetic.
    pub const fn from_compat(compat: Compat) -> Option<Self> {
        match compat {
            Compat::Corrected => None,
            Compat::Upstream => Some(Self::August),
            Compat::UpstreamJune => Some(Self::June),
        }
    }
}
