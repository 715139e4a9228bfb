//! Least squares for α, β, γ over several loads: where our tuner starts. Ours; upstream only has its guess.
//!
//! By Little's law the requests in a replica are seen, not guessed: n = λ·(TTFT + O·ITL). With n known both latencies are
//! linear in α, β, γ (algorithm reference §5.1):
//!
//! ```text
//! TTFT = α + β·(n·x + I) + γ·(n·y + I)      x = (I+O)/(O+1)
//! ITL  = α + β·(n·x + 1) + γ·(n·y + y)      y = I + O/2
//! ```
//!
//! One load gives two equations for three unknowns. What they leave open is settled by a prior, which two different
//! loads overrule.

use super::matrix::{Vec3, add, dot, scale};
use super::tuner::{DEFAULT_STATE, Environment, bounds};

/// At this many requests the load's part of an iteration is taken to be as long as its fixed part, until a second load
/// tells. Measured servers of 8 to 70 billion parameters lie between 10 and 50.
const EVEN_BATCH: f64 = 20.0;
/// The error an observation is taken to have, a part of its value.
const OBSERVED: f64 = 0.05;
/// Above this part of the batch TTFT has the queue's wait in it, and says nothing of a prompt.
const FULL: f64 = 0.9;
/// Sweeps at most; a fit over one load takes about ten, over two similar ones some hundred.
const SWEEPS: u32 = 2_000;

/// Requests in the replica, where that says something of its service times.
pub(super) fn concurrency(seen: &Environment) -> Option<f64> {
    let [ttft, itl] = seen.observed();
    let per_ms = f64::from(seen.rate) / 60_000.0;
    let n = per_ms * (ttft + f64::from(seen.shape.output) * itl);
    (n < FULL * f64::from(seen.batch)).then_some(n)
}

/// The state that explains `window` best, newest last. `None` when nothing in it says anything.
pub(super) fn fit(window: &[Environment]) -> Option<Vec3> {
    let rows: Vec<(&Environment, f64)> =
        window.iter().filter_map(|seen| Some((seen, concurrency(seen)?))).collect();
    let (newest, n) = rows.last()?;
    let prior = prior(newest, *n);
    // Unknowns as parts of the prior, each 1 ± 1.
    let mut normal = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];
    let mut right = [1.0; 3];
    for (seen, n) in rows {
        let (input, output) = (f64::from(seen.shape.input), f64::from(seen.shape.output));
        let (x, y) = ((input + output) / (output + 1.0), input + output / 2.0);
        let equations = [[1.0, n * x + input, n * y + input], [1.0, n * x + 1.0, n * y + y]];
        for (row, value) in equations.into_iter().zip(seen.observed()) {
            let [a, b, c] = row;
            let [pa, pb, pc] = prior;
            let row = scale([a * pa, b * pb, c * pc], 1.0 / (OBSERVED * value));
            right = add(right, scale(row, 1.0 / OBSERVED));
            for (line, factor) in normal.iter_mut().zip(row) {
                *line = add(*line, scale(row, factor));
            }
        }
    }
    let (low, high) = bounds(DEFAULT_STATE);
    let parts = |limit: Vec3| {
        let [[a, b, c], [pa, pb, pc]] = [limit, prior];
        [a / pa, b / pb, c / pc]
    };
    let [a, b, c] = least(normal, right, parts(low), parts(high));
    let [pa, pb, pc] = prior;
    let state = [a * pa, b * pb, c * pc];
    state.iter().all(|value| value.is_finite() && *value > 0.0).then_some(state)
}

/// The scale of each parameter by one observation at `n` requests.
fn prior(seen: &Environment, n: f64) -> Vec3 {
    let [ttft, itl] = seen.observed();
    let (input, output) = (f64::from(seen.shape.input), f64::from(seen.shape.output));
    let alpha = itl / (1.0 + n / EVEN_BATCH);
    let prompt = (ttft - itl).max(OBSERVED * itl);
    let load = (itl - alpha).max(OBSERVED * itl);
    [alpha, prompt / input, load / ((n + 1.0) * (input + output / 2.0))]
}

/// The minimum of ½·uᵀ·A·u − bᵀ·u within a box, coordinate by coordinate: then the box is a clamp.
fn least(normal: [Vec3; 3], right: Vec3, low: Vec3, high: Vec3) -> Vec3 {
    let mut best: Vec3 = [1.0; 3];
    for _ in 0..SWEEPS {
        let mut moved = 0.0_f64;
        for index in 0..3 {
            let (Some(line), Some(b), Some(own)) = (normal.get(index), right.get(index), best.get(index))
            else {
                continue;
            };
            let (Some(pivot), Some(low), Some(high)) = (line.get(index), low.get(index), high.get(index))
            else {
                continue;
            };
            let next = (own + (b - dot(*line, best)) / pivot).max(*low).min(*high);
            moved = moved.max((next - own).abs());
            if let Some(own) = best.get_mut(index) {
                *own = next;
            }
        }
        if moved < 1e-9 {
            break;
        }
    }
    best
}
