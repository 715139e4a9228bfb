//! How many tokens requests have: means, and how single requests differ from them.

use super::invalid::{Field, Invalid};
use super::rng::Rng;
use super::scenario::Scenario;

/// Sizes of requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sizes {
    /// Mean tokens of a prompt, at least 1.
    pub prompt: f64,
    /// Mean tokens generated, at least 1.
    pub output: f64,
    /// How single requests differ; prompt and output each on its own, except where it says otherwise.
    pub spread: Spread,
}

/// How sizes are spread around their mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Spread {
    /// Uniform in mean ± this share of it, 0 to 1.
    Uniform(f64),
    /// Log-normal with this coefficient of variation (standard deviation by mean), 0 to 10.
    LogNormal(f64),
    /// Some requests are larger in prompt and output alike; the others as much smaller as keeps the means.
    TwoSizes {
        /// Share of the larger ones, 0 to 1.
        share: f64,
        /// How many times the mean they are, at least 1; `share × factor` below 1.
        factor: f64,
    },
}

impl Sizes {
    /// Sizes that vary uniformly by `share` (0 to 1) around the means.
    #[must_use]
    pub const fn uniform(prompt: f64, output: f64, share: f64) -> Self {
        Self { prompt, output, spread: Spread::Uniform(share) }
    }

    pub(super) fn check(&self, field: &Field<'_>) -> Result<(), Invalid> {
        field.at("prompt").number(self.prompt, 1.0, Scenario::MOST_TOKENS)?;
        field.at("output").number(self.output, 1.0, Scenario::MOST_TOKENS)?;
        let spread = field.at("spread");
        match self.spread {
            Spread::Uniform(share) => spread.number(share, 0.0, 1.0),
            Spread::LogNormal(cv) => spread.number(cv, 0.0, 10.0),
            Spread::TwoSizes { share, factor } => {
                spread.at("share").number(share, 0.0, 1.0)?;
                spread.at("factor").number(factor, 1.0, 1e6)?;
                spread.number(share * factor, 0.0, 0.999)
            }
        }
    }

    /// Tokens of the next request: prompt and output.
    pub(super) fn draw(&self, rng: &mut Rng) -> (u32, u32) {
        let (prompt, output) = match self.spread {
            Spread::Uniform(share) => (rng.around(self.prompt, share), rng.around(self.output, share)),
            Spread::LogNormal(cv) => (self.prompt * log_normal(cv, rng), self.output * log_normal(cv, rng)),
            Spread::TwoSizes { share, factor } => {
                let small = (1.0 - share * factor) / (1.0 - share);
                let scale = if rng.unit() < share { factor } else { small };
                (self.prompt * scale, self.output * scale)
            }
        };
        (whole(prompt), whole(output))
    }
}

/// Mean 1.
fn log_normal(cv: f64, rng: &mut Rng) -> f64 {
    let variance = (1.0 + cv * cv).ln();
    (variance.sqrt() * rng.normal() - variance / 2.0).exp()
}

fn whole(tokens: f64) -> u32 {
    wva_core::units::whole(tokens.round().clamp(1.0, Scenario::MOST_TOKENS))
}
