//! How many tokens requests have: the means, and how single requests differ from them.

use super::rng::Rng;

/// The distribution of the tokens of requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RequestSizes {
    /// Mean tokens of a prompt, at least 1.
    pub prompt: f64,
    /// Mean tokens generated, at least 1.
    pub output: f64,
    /// How single requests differ from the means.
    pub spread: SizeSpread,
}

/// Tokens of a single request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestSize {
    pub(super) prompt: u32,
    pub(super) output: u32,
}

/// How sizes are distributed around their mean. Prompt and output vary independently unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SizeSpread {
    /// Uniform in mean ± this share of it, 0 to 1.
    Uniform(f64),
    /// Log-normal with this coefficient of variation (standard deviation by mean), 0 to 10.
    LogNormal(f64),
    /// Some requests are larger in prompt and output alike; the others are as much smaller as keeps the means.
    TwoSizes {
        /// Share of the larger ones, 0 to 1.
        share: f64,
        /// How many times the mean they are, at least 1; `share × factor` is below 1.
        factor: f64,
    },
}

impl RequestSizes {
    /// The most tokens of a prompt or an output.
    pub const MAX_TOKENS: f64 = 1e7;

    /// All requests have the same size.
    #[must_use]
    pub const fn fixed(prompt: f64, output: f64) -> Self {
        Self::uniform(prompt, output, 0.0)
    }

    /// Sizes that vary uniformly by `share` (0 to 1) around the means.
    #[must_use]
    pub const fn uniform(prompt: f64, output: f64, share: f64) -> Self {
        Self { prompt, output, spread: SizeSpread::Uniform(share) }
    }

    /// Draws the size of the next request.
    pub(super) fn draw(&self, rng: &mut Rng) -> RequestSize {
        let (prompt, output) = match self.spread {
            SizeSpread::Uniform(share) => (rng.around(self.prompt, share), rng.around(self.output, share)),
            SizeSpread::LogNormal(cv) => {
                (self.prompt * log_normal(cv, rng), self.output * log_normal(cv, rng))
            }
            SizeSpread::TwoSizes { share, factor } => {
                let small = (1.0 - share * factor) / (1.0 - share);
                let scale = if rng.unit() < share { factor } else { small };
                (self.prompt * scale, self.output * scale)
            }
        };
        RequestSize { prompt: whole_tokens(prompt), output: whole_tokens(output) }
    }
}

/// A log-normal factor with mean 1: `exp(σ·z − σ²/2)` with `σ² = ln(1 + cv²)`. Without `− σ²/2` the mean would be
/// `exp(σ²/2)`.
fn log_normal(cv: f64, rng: &mut Rng) -> f64 {
    let variance = (1.0 + cv * cv).ln();
    (variance.sqrt() * rng.normal() - variance / 2.0).exp()
}

fn whole_tokens(tokens: f64) -> u32 {
    wva_core::units::truncated_u32(tokens.round().clamp(1.0, RequestSizes::MAX_TOKENS))
}
