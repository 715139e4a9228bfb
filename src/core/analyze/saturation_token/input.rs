//! The input of the analyzer: the variants of a model, and what their engines show.

use super::history::{OutputLength, Setting};
use crate::model::Role;
use crate::snapshot::EngineParameters;
use crate::units::{Cost, Replicas, Tokens, to_f64};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TokenVariant<'a> {
    pub name: &'a str,
    pub role: Role,
    /// The accelerator's name; empty if it is unknown.
    pub accelerator: &'a str,
    pub cost: Cost,
    pub gpus: u32,
    /// Replicas of the scale target.
    pub current: Replicas,
    /// Those that are not Ready, or not for long enough to show their load.
    pub pending: Replicas,
    /// The engine's settings by its arguments, if these could be read.
    pub parameters: Option<&'a EngineParameters>,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct TokenInput<'a> {
    pub variants: &'a [TokenVariant<'a>],
    /// Their engines. An engine of another variant counts for the mean request only; upstream learns from it too.
    pub replicas: &'a [TokenObservation<'a>],
    pub queue: Option<SchedulerQueue>,
}

/// The thresholds of the analyzer. The defaults are upstream's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TokenPolicy {
    /// K: the share of the KV cache that may be used, 0 to 1.
    pub kv_cache_threshold: f64,
    /// Q: with this many waiting requests a replica is at its limit; at least 0. The fraction is ignored, as upstream.
    pub queue_length_threshold: f64,
    /// The required capacity brings utilisation down to this, above 0 to 1.
    pub scale_up_threshold: f64,
    /// Removing the spare capacity brings utilisation up to this, above 0 and below the threshold for scaling up.
    pub scale_down_boundary: f64,
}

impl Default for TokenPolicy {
    fn default() -> Self {
        Self {
            kv_cache_threshold: 0.80,
            queue_length_threshold: 5.0,
            scale_up_threshold: 0.85,
            scale_down_boundary: 0.70,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SchedulerQueue {
    pub requests: u64,
    /// Bytes of their prompts.
    pub bytes: u64,
}

/// The measurements of one engine. A pod has several with data parallelism.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct TokenObservation<'a> {
    pub replica: &'a str,
    pub variant: &'a str,
    /// The accelerator's name; empty if it is unknown.
    pub accelerator: &'a str,
    pub cost: Cost,
    /// Peak share of the KV cache in use, 0 to 1.
    pub kv: f64,
    /// U: the same in tokens.
    pub in_use: Tokens,
    /// C: tokens that fit into the KV cache; 0 is unknown.
    pub capacity: Tokens,
    /// q: peak waiting requests.
    pub queue: u32,
    /// I: mean prompt tokens of a finished request; 0 if none finished.
    pub prompt: f64,
    /// O: mean generated tokens of a finished request; 0 if none finished.
    pub output: f64,
    /// h: share of prompt tokens found in the prefix cache, 0 to 1.
    pub prefix_hits: f64,
}

impl TokenObservation<'_> {
    /// Replaces values that no engine can have by 0, and limits numbers of tokens to 2⁶³.
    pub(crate) fn sanitized(self) -> Self {
        let tokens = |value: f64| if value.is_finite() { value.clamp(0.0, to_f64(i64::MAX)) } else { 0.0 };
        Self {
            kv: tokens(self.kv),
            prompt: tokens(self.prompt),
            output: tokens(self.output),
            prefix_hits: tokens(self.prefix_hits).min(1.0),
            ..self
        }
    }
}

/// U: `share` of `capacity` in whole tokens, at most all of it.
pub(crate) fn tokens_in_use(share: f64, capacity: Tokens) -> Tokens {
    Tokens::truncated((share * capacity.to_f64()).round()).min(capacity)
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct EngineInput<'a> {
    pub(crate) observed: TokenObservation<'a>,
    /// The history that it belongs to.
    pub(crate) setting: Setting<'a>,
    pub(crate) role: Role,
    /// The variant's index in the input; `None` for an engine of another variant.
    pub(crate) variant: Option<usize>,
}

impl<'a> EngineInput<'a> {
    pub(crate) fn new(
        observation: &TokenObservation<'a>,
        index: Option<usize>,
        variant: Option<&TokenVariant<'a>>,
    ) -> Self {
        let observed = observation.sanitized();
        let role = variant.map_or(Role::Both, |variant| variant.role);
        let setting = Setting {
            accelerator: observed.accelerator,
            gpus: variant.map_or(0, |variant| variant.gpus),
            role,
            length: OutputLength::from_mean(observed.output),
        };
        Self { observed, setting, role, variant: index }
    }

    pub(crate) fn has_capacity(&self) -> bool {
        self.observed.capacity > Tokens::ZERO
    }
}
