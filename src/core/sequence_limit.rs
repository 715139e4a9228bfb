//! The most requests that an engine of a variant runs at once (`--max-num-seqs`).
//!
//! It is *known* only from the engine's arguments: vLLM does not export it, and SGLang's `max_running_requests_under_SLO` is never set.
//! Without an argument an *estimate* may use vLLM's default, which depends on the device. What was seen running may raise both.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::moment::may_lower;
use crate::snapshot::{Engine, EngineParameters, Phase, Signal, Signals, Template, VariantState};
use crate::units::truncated_u32;

/// vLLM's default on a device of less than 70 GiB, and on an A100.
const SMALL_DEVICE_DEFAULT: u32 = 256;
/// vLLM's default on a larger device (API server, vLLM 0.32).
const LARGE_DEVICE_DEFAULT: u32 = 1024;
/// Devices of at least 70 GiB, as labels of nodes and variants name them.
const LARGE_DEVICES: [&str; 11] =
    ["H100", "H200", "H800", "H20", "B100", "B200", "B300", "MI300", "MI325", "MI350", "MI355"];

/// Higher numbers of running requests are not believed: this is the maximum of SGLang's default, the highest of all engines.
pub(crate) const MAX_SEEN: u32 = 4096;

/// A number of running requests is remembered for good after it has not been contradicted for this long; the same as for baselines.
const MIN_SETTLED_AGE: SignedDuration = SignedDuration::from_secs(120);

/// vLLM's default on `accelerator`. A slice of a device (MIG) is a small device.
pub(crate) fn default_for_device(accelerator: Option<&str>) -> u32 {
    let name = accelerator.unwrap_or_default().to_ascii_uppercase();
    let is_large = LARGE_DEVICES.iter().any(|device| name.contains(device)) && !name.contains("MIG");
    if is_large { LARGE_DEVICE_DEFAULT } else { SMALL_DEVICE_DEFAULT }
}

/// Estimated maximum of an engine of `state`: its argument, or else the default of its device, or `peak` if more were seen running. `None`
/// if nothing is known.
pub(crate) fn estimated_max(state: &VariantState, peak: u32) -> Option<u32> {
    let own = || {
        let engine = state.template.engine.as_ref().filter(|engine| engine.engine == Engine::Vllm)?;
        // An invalid argument is not replaced by a default.
        (!engine.has_max_sequences)
            .then(|| default_for_device(state.variant.accelerator.as_deref()).max(peak))
    };
    state.template.sequences().or_else(own)
}

/// The most requests that were ever running in one engine of a variant, for as long as its pod template stays the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PeakRunning {
    /// Checksum of the template and the device.
    of: u32,
    /// The number that has settled.
    settled: u32,
    /// When that many last ran. Earlier versions did not store it.
    #[serde(skip_serializing_if = "Option::is_none")]
    settled_at: Option<Timestamp>,
    /// A higher number, and since when it has been seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    lately: Option<(Timestamp, u32)>,
}

impl PeakRunning {
    /// Adds what the engines of `state` show. Nothing new is learned while signals of the model are `doubted`, that is distrusted.
    pub(crate) fn observe(&mut self, state: &VariantState, doubted: bool, now: Timestamp) {
        let of = checksum(state);
        if self.of != of {
            *self = Self { of, ..Self::default() };
        }
        if doubted {
            self.lately = None;
            return;
        }
        if let Some((_, peak)) =
            self.lately.filter(|(since, _)| now.duration_since(*since) >= MIN_SETTLED_AGE)
        {
            (self.settled, self.settled_at, self.lately) = (self.settled.max(peak), Some(now), None);
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
        self.lately.map_or(self.settled, |(_, peak)| self.settled.max(peak))
    }

    /// The most that is remembered for engines of `state`; 0 if nothing is, or only of another template.
    pub(crate) fn remembered(&self, state: &VariantState) -> u32 {
        if self.of == checksum(state) { self.highest() } else { 0 }
    }

    /// The most that was seen running in an engine of `state`, now or before.
    pub(crate) fn of(&self, state: &VariantState) -> u32 {
        self.remembered(state).max(shown(state))
    }

    pub(crate) fn latest(&self) -> Option<Timestamp> {
        self.settled_at.max(self.lately.map(|(since, _)| since))
    }

    pub(crate) fn not_after(&mut self, now: Timestamp) {
        self.settled_at = self.settled_at.map(|at| at.min(now));
        self.lately = self.lately.map(|(since, peak)| (since.min(now), peak));
    }
}

/// The most requests that at least two engines of `state` show running now: what one alone shows says nothing about the others. With a single
/// engine, the most that its last two scrapes show.
fn shown(state: &VariantState) -> u32 {
    let ready = state.pods.iter().filter(|pod| pod.phase == Phase::Ready);
    let engines: Vec<&Signals> = ready.flat_map(|pod| pod.engines.values()).collect();
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

/// The second highest of the finite `values`; the only one if there is just one.
pub(crate) fn second_highest(values: Vec<f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values.iter().nth_back(1).or_else(|| values.first()).copied()
}

/// Checksum (FNV-1a, 32 bits) of everything that an engine's maximum depends on.
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
    let bytes = bytes.chain(gpus.unwrap_or_default().to_le_bytes()).chain(device.bytes());
    bytes.fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests;
