//! What the requests of a variant look like on average, and how much of the KV cache one of them holds.

use serde::{Deserialize, Serialize};

use super::Observation;

/// Lengths up to this, in tokens, are no lengths. Source: algorithm reference §4.1.
const SHORTEST: f64 = 1.0;

/// Lengths above this, in tokens, are no lengths either: far beyond every context, and sums of them stay finite.
const LONGEST: f64 = 1e12;

/// A shape that differs by more than this share is another one. Source: algorithm reference §4.1.
const TOLERANCE: f64 = 0.20;

/// The average request.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Shape {
    /// Prompt tokens.
    pub prompt: f64,
    /// Generated tokens.
    pub generated: f64,
    /// Share of the prompt found in the prefix cache, 0 to 1.
    pub hits: f64,
}

impl Shape {
    /// The mean over `replicas`, weighted by the requests they finish; unweighted when none finishes any. `None` when
    /// no replica has lengths. Source: algorithm reference §4.2.
    #[must_use]
    pub fn mean<'o>(replicas: impl IntoIterator<Item = &'o Observation>) -> Option<Self> {
        let (mut weighted, mut plain) = (Sums::default(), Sums::default());
        for one in replicas.into_iter().filter(|one| one.has_lengths()) {
            plain.add(one, 1.0);
            if one.finished > 0.0 {
                weighted.add(one, one.finished);
            }
        }
        if weighted.weight > 0.0 { weighted.mean() } else { plain.mean() }
    }

    /// `tokens` can be the length of a prompt or of an answer.
    pub(super) fn is_length(tokens: f64) -> bool {
        tokens > SHORTEST && tokens <= LONGEST
    }

    /// Tokens one running request holds in the KV cache on average: its own prompt and half of what it generates.
    #[must_use]
    pub fn resident(self) -> f64 {
        self.prompt * (1.0 - self.hits) + self.generated / 2.0
    }

    /// Requests of another kind than those of `reference`.
    #[must_use]
    pub fn differs(self, reference: Self) -> bool {
        let moved = |now: f64, then: f64| (now - then).abs() / then > TOLERANCE;
        moved(self.prompt, reference.prompt) || moved(self.generated, reference.generated)
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
    fn add(&mut self, one: &Observation, weight: f64) {
        self.weight += weight;
        self.prompt += weight * one.prompt;
        self.generated += weight * one.generated;
        self.hits += weight * one.hits;
    }

    fn mean(&self) -> Option<Shape> {
        let shape = Shape {
            prompt: self.prompt / self.weight,
            generated: self.generated / self.weight,
            hits: (self.hits / self.weight).clamp(0.0, 1.0),
        };
        // Nothing over nothing, and sums beyond every number, are no shape.
        (shape.prompt.is_finite() && shape.resident().is_finite()).then_some(shape)
    }
}
