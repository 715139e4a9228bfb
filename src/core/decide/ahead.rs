//! Reading ahead. What a decision reads lies in many pieces of memory, each found through the one before: with thousands of
//! models, to wait for one piece after the other takes longer than to decide. So the pieces of the next models are asked for
//! together; as no model's depend on another's, they come at the same time.

use std::collections::btree_map::Values;
use std::hint::black_box;

use smol_str::SmolStr;

use crate::memory::{GroupMemory, Memory};
use crate::model::GroupId;
use crate::snapshot::{ModelGroup, Snapshot};

/// Pods whose models are asked for together. One has about 3 KiB: a core's second cache has room for these.
const TOGETHER: usize = 48;

/// What has not been read yet.
pub(super) struct Ahead<'a> {
    groups: Values<'a, GroupId, ModelGroup>,
    /// In the same order; where one has no counterpart, those after it come a little too soon or too late.
    remembered: Values<'a, GroupId, GroupMemory>,
    /// Models that were read and are not decided about yet.
    ready: usize,
}

impl<'a> Ahead<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, memory: &'a Memory) -> Self {
        Self { groups: snapshot.groups.values(), remembered: memory.groups.values(), ready: 0 }
    }

    /// Before each decision about a model.
    pub(super) fn next(&mut self) {
        let (mut pods, mut read) = (0, 0_u64);
        while self.ready == 0 || (pods > 0 && pods < TOGETHER) {
            let Some(next) = self.groups.next() else { break };
            pods += next.variants.iter().map(|one| one.replicas.len()).sum::<usize>().max(1);
            read = read.wrapping_add(group(next)).wrapping_add(self.remembered.next().map_or(0, remembered));
            self.ready += 1;
        }
        black_box(read);
        self.ready = self.ready.saturating_sub(1);
    }
}

// Each gives something that depends on all that is to be read: else nothing would be.

fn group(group: &ModelGroup) -> u64 {
    let variants =
        group.variants.iter().map(|one| text(&one.variant.id.name) + text(&one.variant.id.namespace));
    let replicas = group.variants.iter().flat_map(|one| &one.replicas);
    let engines = replicas.flat_map(|replica| replica.engines.values());
    let samples = engines.chain([&group.scheduler]).map(|signals| signals.rows().touch());
    variants.chain(samples).fold(0, u64::wrapping_add)
}

fn remembered(memory: &GroupMemory) -> u64 {
    let said = memory.variants.values().filter_map(|one| one.message.as_ref()).map(text);
    let learned = memory.learned.iter().flat_map(|learned| learned.tokens.records.iter());
    said.chain(learned.map(|(name, _)| text(name))).fold(0, u64::wrapping_add)
}

fn text(text: &SmolStr) -> u64 {
    text.bytes().next().map_or(0, u64::from)
}
