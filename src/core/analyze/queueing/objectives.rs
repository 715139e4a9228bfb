//! Where the targets of latency come from when nobody gives them (algorithm reference §5.4).

use super::service_time::{Service, Shape};
use super::size::Targets;

/// m where the user sets none, or one that is not above 1.
pub const DEFAULT_MULTIPLIER: f64 = 3.0;
/// Observed latencies are allowed to grow by this factor.
const HEADROOM: f64 = 1.5;
/// The largest target of TTFT that an observation can give, ms.
const MOST_TTFT: f64 = 10_000.0;
/// The largest target of ITL that an observation can give, ms.
const MOST_ITL: f64 = 500.0;

/// What requests see on average. Seconds and tokens; 0 is not known.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Means {
    /// Tokens of a prompt.
    pub input: f64,
    /// Generated tokens of a request.
    pub output: f64,
    /// Time to first token, s.
    pub ttft: f64,
    /// Time between tokens, s.
    pub itl: f64,
}

impl Means {
    /// The mean request, when it can be one.
    #[must_use]
    pub fn shape(&self) -> Option<Shape> {
        Shape::new(self.input as f32, self.output as f32).ok()
    }
}

/// What a replica keeps whose iterations are `multiplier` times as long as an empty one's, which is meant to express a
/// utilisation of 1 − 1/m; not above 1 is the default. `None` when a parameter is 0 or no finite targets follow.
#[must_use]
pub fn inferred(service: Service, means: &Means, multiplier: f64) -> Option<Targets> {
    if ![service.alpha, service.beta, service.gamma].iter().all(|one| *one > 0.0) {
        return None;
    }
    let multiplier = if multiplier > 1.0 { multiplier } else { DEFAULT_MULTIPLIER };
    let (beta, gamma) = (f64::from(service.beta), f64::from(service.gamma));
    let iteration = multiplier * f64::from(service.alpha);
    let ttft = iteration + (beta + gamma) * means.input;
    let itl = iteration + (beta + gamma * (means.input + (means.output + 1.0) / 2.0));
    positive(ttft, itl)
}

/// What is seen, with headroom and within limits. `None` when a latency is not known.
#[must_use]
pub fn fallback(means: &Means) -> Option<Targets> {
    let ttft = (means.ttft * 1000.0 * HEADROOM).clamp(0.0, MOST_TTFT);
    let itl = (means.itl * 1000.0 * HEADROOM).clamp(0.0, MOST_ITL);
    positive(ttft, itl)
}

/// The larger of each.
#[must_use]
pub fn larger(a: Targets, b: Targets) -> Targets {
    Targets { ttft: a.ttft.max(b.ttft), itl: a.itl.max(b.itl), tps: a.tps.max(b.tps) }
}

fn positive(ttft: f64, itl: f64) -> Option<Targets> {
    let targets = Targets::latency(ttft as f32, itl as f32).ok()?;
    (targets.ttft > 0.0 && targets.itl > 0.0).then_some(targets)
}
