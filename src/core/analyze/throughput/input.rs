//! The input of the analyzer: the variants of a model, what their engines show, and the mean request.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::latency_line::LatencyLine;
use crate::model::Role;
use crate::units::{Cost, Replicas, Requests, Seconds, to_f64};

/// A length of at most this many tokens is not measured (upstream's bound).
const MIN_LENGTH: f64 = 1.0;
/// Neither is a longer one, in tokens: no context is as long, and sums of valid lengths stay finite.
const MAX_LENGTH: f64 = 1e12;
/// Requests whose mean length differs by more than this share are of another kind (upstream's bound).
const SHAPE_TOLERANCE: f64 = 0.20;

/// The measurements of one engine; 0 if not measured.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct ThroughputObservation {
    pub stale: bool,
    /// Current KV-cache usage, 0 to 1.
    pub kv: f64,
    /// Size of the KV cache, tokens.
    pub capacity: i64,
    /// Seconds between two tokens.
    pub latency: f64,
    pub prompt: f64,
    pub generated: f64,
    /// Share of the prompt found in the prefix cache, 0 to 1.
    pub hits: f64,
    /// Requests a second that the scheduler sends it.
    pub arriving: f64,
    /// Requests a second that it finishes.
    pub finished: f64,
    /// Tokens a second that it generates.
    pub generating: f64,
}

impl ThroughputObservation {
    fn has_lengths(&self) -> bool {
        let is_length = |tokens: f64| tokens > MIN_LENGTH && tokens <= MAX_LENGTH;
        is_length(self.prompt) && is_length(self.generated)
    }

    pub(crate) fn is_healthy(&self) -> bool {
        let is_measured = self.capacity > 0 && self.latency > 0.0 && self.latency.is_finite();
        !self.stale && is_measured && (0.0..=1.0).contains(&self.kv) && self.has_lengths()
    }

    /// Tokens/s that `line` predicts: the number of running requests, from the tokens they hold, divided by the time that each token takes.
    pub(crate) fn predicted_rate(&self, line: LatencyLine, shape: RequestShape) -> f64 {
        let latency = line.at(self.kv);
        if latency > 0.0 { self.kv * to_f64(self.capacity) / shape.resident() / latency } else { 0.0 }
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.kv > 0.0 || self.finished > 0.0 || self.generating > 0.0
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ThroughputVariant {
    pub name: SmolStr,
    pub role: Role,
    pub accelerator: Option<SmolStr>,
    pub cost: Cost,
    pub pending: Replicas,
    /// Ready replicas, measured or not.
    pub ready: Replicas,
    pub engines: Vec<ThroughputObservation>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ThroughputInput {
    pub now: Timestamp,
    pub variants: Vec<ThroughputVariant>,
    /// Requests/s that arrive for the model; `None` if not measured.
    pub arrival: Option<f64>,
    pub queue: Requests,
    pub settings: ThroughputSettings,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ThroughputSettings {
    /// Utilisation above which replicas are missing.
    pub up: f64,
    /// Utilisation below which some are spare.
    pub down: f64,
    pub score: f64,
    /// Time between two analyses.
    pub period: Seconds,
}

/// The mean request.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct RequestShape {
    pub prompt: f64,
    pub generated: f64,
    /// Share of the prompt found in the prefix cache, 0 to 1.
    pub hits: f64,
}

impl RequestShape {
    /// The mean over `engines`, weighted by the requests they finish; unweighted if none finishes any. `None` if no engine has
    /// lengths.
    pub(crate) fn mean<'o>(engines: impl IntoIterator<Item = &'o ThroughputObservation>) -> Option<Self> {
        let mut weighted = Sums::default();
        let mut unweighted = Sums::default();
        for engine in engines.into_iter().filter(|engine| engine.has_lengths()) {
            unweighted.add(engine, 1.0);
            if engine.finished > 0.0 {
                weighted.add(engine, engine.finished);
            }
        }
        if weighted.weight > 0.0 { weighted.mean() } else { unweighted.mean() }
    }

    /// Tokens that a running request holds in the KV cache on average: the part of its prompt that it does not share, and half of its answer.
    pub(crate) fn resident(self) -> f64 {
        self.prompt * (1.0 - self.hits) + self.generated / 2.0
    }

    /// Whether these are requests of another kind than `reference`.
    pub(crate) fn differs(self, reference: Self) -> bool {
        let has_moved = |now: f64, then: f64| (now - then).abs() / then > SHAPE_TOLERANCE;
        has_moved(self.prompt, reference.prompt) || has_moved(self.generated, reference.generated)
    }
}

#[derive(Default)]
struct Sums {
    weight: f64,
    prompt: f64,
    generated: f64,
    hits: f64,
}

impl Sums {
    fn add(&mut self, engine: &ThroughputObservation, weight: f64) {
        self.weight += weight;
        self.prompt += weight * engine.prompt;
        self.generated += weight * engine.generated;
        self.hits += weight * engine.hits;
    }

    fn mean(&self) -> Option<RequestShape> {
        let shape = RequestShape {
            prompt: self.prompt / self.weight,
            generated: self.generated / self.weight,
            hits: (self.hits / self.weight).clamp(0.0, 1.0),
        };
        // A division of 0 by 0 is NaN, and a sum may overflow.
        (shape.prompt.is_finite() && shape.resident().is_finite()).then_some(shape)
    }
}
