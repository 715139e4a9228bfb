//! The result of a decision: one [`Decision`] for each variant, the report that explains it, and the next memory.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::decision::Decision;
use crate::memory::Memory;
use crate::model::VariantId;
use crate::report::Report;

/// The result of one decision over a whole snapshot.
#[must_use]
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Exactly one for every variant of the snapshot, the invalid ones included.
    pub decisions: BTreeMap<VariantId, Decision>,
    /// Why.
    pub report: Report,
    /// What the next decision gets.
    pub memory: Memory,
}
