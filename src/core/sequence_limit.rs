//! How many requests an engine of a variant runs at once at most: the one place that says so.
//!
//! *Known* is only what its arguments say. No series does: vLLM shows nothing of `--max-num-seqs` (`vllm:cache_config_info` has the
//! blocks of the KV cache), and SGLang's `max_running_requests_under_SLO` is an estimate that no code of it sets. What was seen
//! running is less than the maximum of any calm engine, so it raises what is known and is no maximum by itself.
//!
//! Without an argument an *estimate* may take the default of vLLM, which is its device's. SGLang's grows with its KV cache.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::moment::may_lower;
use crate::snapshot::{Engine, EngineParameters, Phase, Signal, Signals, Template, VariantState};
use crate::units::truncated_u32;

/// vLLM's default on a device of less than 70 GiB, and on an A100.
const OF_SMALL_DEVICES: u32 = 256;
/// The same on a larger device (vLLM 0.32, the defaults of its API server).
const OF_LARGE_DEVICES: u32 = 1024;
/// Devices of at least 70 GiB, as labels of nodes and of variants name them.
const LARGE_DEVICES: [&str; 11] =
    ["H100", "H200", "H800", "H20", "B100", "B200", "B300", "MI300", "MI325", "MI350", "MI355"];

/// More than this is never believed to have run in one engine: SGLang's default, the highest there is, ends here.
pub const MAX_SEEN: u32 = 4096;

/// What ran is remembered for good when nothing has contradicted it for so long, as what is usual of an engine.
const SETTLED: SignedDuration = SignedDuration::from_secs(120);

/// Sequences that vLLM runs at most on such a device when no argument says it. A slice of a device (MIG) is a small one.
#[must_use]
pub fn default_for_device(accelerator: Option<&str>) -> u32 {
    let name = accelerator.unwrap_or_default().to_ascii_uppercase();
    let is_large = LARGE_DEVICES.iter().any(|device| name.contains(device)) && !name.contains("MIG");
    if is_large { OF_LARGE_DEVICES } else { OF_SMALL_DEVICES }
}

/// For estimates: what the arguments of an engine of `state` say, else what its device's default is, or more where `seen` were
/// running. `None` where neither is known.
#[must_use]
pub fn estimated_max(state: &VariantState, seen: u32) -> Option<u32> {
    let own = || {
        let engine = state.template.engine.as_ref().filter(|engine| engine.engine == Engine::Vllm)?;
        // An argument that is no count is none of ours to replace.
        (!engine.has_max_sequences)
            .then(|| default_for_device(state.variant.accelerator.as_deref()).max(seen))
    };
    state.template.sequences().or_else(own)
}

/// The most requests that were ever running in one engine of a variant, as long as its pods are made the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PeakRunning {
    /// Of which template and device, as a checksum.
    of: u32,
    /// Undisputed for long enough.
    settled: u32,
    /// When so many last ran. Earlier versions did not store it.
    #[serde(skip_serializing_if = "Option::is_none")]
    settled_at: Option<Timestamp>,
    /// More than that, and since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    lately: Option<(Timestamp, u32)>,
}

impl PeakRunning {
    /// Takes in what the engines of `state` show. While something that engines of the model show is `doubted`, nothing new is believed.
    pub(crate) fn observe(&mut self, state: &VariantState, doubted: bool, now: Timestamp) {
        let of = checksum(state);
        if self.of != of {
            *self = Self { of, ..Self::default() };
        }
        if doubted {
            self.lately = None;
            return;
        }
        if let Some((_, most)) = self.lately.filter(|(since, _)| now.duration_since(*since) >= SETTLED) {
            (self.settled, self.settled_at, self.lately) = (self.settled.max(most), Some(now), None);
        }
        let shown = shown(state);
        if shown > self.highest() {
            self.lately = Some((now, shown));
        }
        if self.settled > 0 && (shown >= self.settled || self.settled_at.is_none()) {
            self.settled_at = Some(now);
        }
        if !may_lower(self.settled_at, now) {
            (self.settled, self.settled_at) = (0, None);
        }
        if self.highest() == 0 {
            *self = Self::default();
        }
    }

    fn highest(&self) -> u32 {
        self.lately.map_or(self.settled, |(_, most)| self.settled.max(most))
    }

    /// The most that is remembered to have run in an engine of `state`; 0 when nothing is, or of other pods.
    #[must_use]
    pub fn remembered(&self, state: &VariantState) -> u32 {
        if self.of == checksum(state) { self.highest() } else { 0 }
    }

    /// The most that was seen running in an engine of `state`, now or ever.
    #[must_use]
    pub fn of(&self, state: &VariantState) -> u32 {
        self.remembered(state).max(shown(state))
    }

    /// The last moment that is remembered.
    pub(crate) fn latest(&self) -> Option<Timestamp> {
        self.settled_at.max(self.lately.map(|(since, _)| since))
    }

    /// Puts right what is later than `now`: the clock was set back.
    pub(crate) fn not_after(&mut self, now: Timestamp) {
        self.settled_at = self.settled_at.map(|at| at.min(now));
        self.lately = self.lately.map(|(since, most)| (since.min(now), most));
    }
}

/// The most requests that two engines of `state` show running now (an older sample may have been contradicted meanwhile): what
/// one shows says nothing of what all the others can. Of an engine alone it is what two scrapes show.
fn shown(state: &VariantState) -> u32 {
    let ready = state.replicas.iter().filter(|replica| replica.phase == Phase::Ready);
    let engines: Vec<&Signals> = ready.flat_map(|replica| replica.engines.values()).collect();
    let values: Vec<f64> = match engines[..] {
        [alone] => alone.get(Signal::Running).iter().rev().take(2).map(|sample| sample.value).collect(),
        _ => engines
            .iter()
            .filter_map(|engine| engine.newest(Signal::Running))
            .map(|sample| sample.value)
            .collect(),
    };
    truncated_u32(second_highest(values).unwrap_or(0.0)).min(MAX_SEEN)
}

/// The second highest of `values` that are numbers; the only one where there is one.
pub(crate) fn second_highest(values: Vec<f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values.iter().nth_back(1).or_else(|| values.first()).copied()
}

/// Of what an engine's maximum depends on (FNV-1a, 32 bits).
fn checksum(state: &VariantState) -> u32 {
    let Template { gpus, engine } = &state.template;
    let numbers = engine.as_ref().map(|engine| {
        let EngineParameters { engine: kind, memory_fraction, tensor_parallel_size, .. } = engine;
        let EngineParameters { max_sequences, max_length, batched_tokens, .. } = engine;
        let kind = i64::from(*kind == Engine::Sglang);
        [kind, *tensor_parallel_size, *max_sequences, *max_length, *batched_tokens]
            .map(i64::to_le_bytes)
            .into_iter()
            .chain([memory_fraction.to_le_bytes()])
    });
    let device = state.variant.accelerator.as_deref().unwrap_or_default();
    let bytes = numbers.into_iter().flatten().flatten();
    let bytes = bytes.chain(gpus.to_le_bytes()).chain(device.bytes());
    bytes.fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests;
