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
use crate::model::Compat;

/// At this many requests the load's part of an iteration is taken to be as long as its fixed part, until a second load
/// tells. With prompts of 512 tokens and answers of 128 upstream's default parameters give 18, the reference's examples 22.
const EVEN_BATCH: f64 = 20.0;
/// The error an observation is taken to have, a part of its value.
const OBSERVED: f64 = 0.05;
/// Above this part of the batch TTFT has the queue's wait in it, and says nothing of a prompt.
const FULL: f64 = 0.9;
/// At most: steps of a fit, halvings of a step, attempts to find a state that carries the load.
const ROUNDS: i32 = 10;
/// How much faster the next attempt is.
const FASTER: f64 = 0.9;
/// Sweeps over the coordinates at most. The more alike the loads, the more it takes; a sweep is 9 products.
const SWEEPS: u32 = 2_000;

/// Requests in the replica, where that says something of its service times.
pub(super) fn concurrency(seen: &Environment) -> Option<f64> {
    let [ttft, itl] = seen.observed();
    let per_ms = f64::from(seen.rate) / 60_000.0;
    let n = per_ms * (ttft + f64::from(seen.shape.output) * itl);
    (n < FULL * f64::from(seen.batch)).then_some(n)
}

/// One observation with the requests in the replica.
struct Row<'a> {
    seen: &'a Environment,
    /// What α, β, γ count for in TTFT and in ITL.
    factors: [Vec3; 2],
    n: f64,
    /// What the latencies are at a state of 0.
    above: [f64; 2],
}

impl<'a> Row<'a> {
    fn of(seen: &'a Environment) -> Option<Self> {
        let n = concurrency(seen)?;
        let (input, output) = (f64::from(seen.shape.input), f64::from(seen.shape.output));
        let (x, y) = ((input + output) / (output + 1.0), input + output / 2.0);
        let factors = [[1.0, n * x + input, n * y + input], [1.0, n * x + 1.0, n * y + y]];
        Some(Self { seen, factors, n, above: [0.0; 2] })
    }

    /// The linear model that touches the queue at `state`.
    fn touch(&mut self, state: Vec3, compat: Compat) -> Option<()> {
        let [ttft, itl] = self.seen.predict(state, compat).ok()?;
        self.factors = self.seen.jacobian(state, compat)?;
        let [line1, line2] = self.factors.map(|factors| dot(factors, state));
        self.above = [ttft - line1, itl - line2];
        Some(())
    }
}

/// The state that explains `window` best, newest last: the linear fit, and from there by the queue itself (Gauss–Newton,
/// with shorter steps where a full one does not help). `None` when nothing in the window says anything.
pub(super) fn fit(window: &[Environment], compat: Compat) -> Option<Vec3> {
    let mut rows: Vec<Row<'_>> = window.iter().filter_map(Row::of).collect();
    let newest = rows.last()?;
    let prior = prior(newest.seen, newest.n);
    let mut state = linear(&rows, prior)?;
    let mut best = misfit(&rows, prior, state, compat);
    // Near its maximum the linear model asks too much of a replica. A faster one carries what was seen.
    for _ in 0..ROUNDS {
        if best.is_finite() {
            break;
        }
        state = scale(state, FASTER);
        best = misfit(&rows, prior, state, compat);
    }
    for _ in 0..ROUNDS {
        if rows.iter_mut().try_for_each(|row| row.touch(state, compat)).is_none() {
            break;
        }
        let full = add(linear(&rows, prior)?, scale(state, -1.0));
        let steps = (0..ROUNDS).map(|halvings| add(state, scale(full, 0.5_f64.powi(halvings))));
        let mut tried = steps.map(|next| (misfit(&rows, prior, next, compat), next));
        let Some(better) = tried.find(|(misfit, _)| *misfit < best) else { break };
        (best, state) = better;
    }
    Some(state)
}

/// The sum of squares that a fit makes small: the errors of the latencies, and the distance from the prior.
fn misfit(rows: &[Row<'_>], prior: Vec3, state: Vec3, compat: Compat) -> f64 {
    let far: f64 = state.into_iter().zip(prior).map(|(own, prior)| (own / prior - 1.0).powi(2)).sum();
    let missed = |row: &Row<'_>| {
        let predicted = row.seen.predict(state, compat).ok()?;
        let parts = predicted.into_iter().zip(row.seen.observed());
        Some(parts.map(|(predicted, seen)| ((predicted - seen) / (OBSERVED * seen)).powi(2)).sum::<f64>())
    };
    rows.iter().map(|row| missed(row).unwrap_or(f64::INFINITY)).sum::<f64>() + far
}

/// The linear fit, by the normal equations; the unknowns are parts of the prior, which says 1 ± 1 of each.
fn linear(rows: &[Row<'_>], prior: Vec3) -> Option<Vec3> {
    let mut normal = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];
    let mut right = [1.0; 3];
    for row in rows {
        for ((factors, above), value) in row.factors.into_iter().zip(row.above).zip(row.seen.observed()) {
            let error = OBSERVED * value;
            let factors = scale(product(factors, prior), 1.0 / error);
            right = add(right, scale(factors, (value - above) / error));
            for (line, factor) in normal.iter_mut().zip(factors) {
                *line = add(*line, scale(factors, factor));
            }
        }
    }
    let (low, high) = bounds(DEFAULT_STATE);
    let inverse = prior.map(|value| 1.0 / value);
    let state = product(least(normal, right, product(low, inverse), product(high, inverse)), prior);
    state.iter().all(|value| value.is_finite() && *value > 0.0).then_some(state)
}

/// Element by element.
fn product([a, b, c]: Vec3, [x, y, z]: Vec3) -> Vec3 {
    [a * x, b * y, c * z]
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

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp, reason = "exact by construction")]

    use super::super::model::{Limits, Model};
    use super::super::service_time::{Service, Shape};
    use super::*;

    /// What a replica with 8 ms, 0.016 ms and 0.0005 ms shows at `rate` requests/s.
    fn seen(rate: f32) -> Environment {
        let (shape, batch) = (Shape { input: 512.0, output: 128.0 }, 64);
        let service = Service { alpha: 8.0, beta: 0.016, gamma: 0.0005 };
        let mut model = Model::new(service, shape, Limits::long(batch), Compat::Corrected).unwrap();
        let at = model.analyze(rate).unwrap();
        Environment { rate: rate * 60.0, shape, batch, ttft: at.wait + at.prefill, itl: at.itl }
    }

    fn of(window: &[Environment], state: Vec3) -> f64 {
        let rows: Vec<Row<'_>> = window.iter().filter_map(Row::of).collect();
        let newest = rows.last().unwrap();
        misfit(&rows, prior(newest.seen, newest.n), state, Compat::Corrected)
    }

    #[test]
    fn a_product_is_taken_element_by_element() {
        assert_eq!(product([2.0, 3.0, 4.0], [5.0, 7.0, 11.0]), [10.0, 21.0, 44.0]);
    }

    #[test]
    fn the_least_of_a_parabola_is_found_within_its_box() {
        let normal = [[4.0, 1.0, 0.0], [1.0, 3.0, 1.0], [0.0, 1.0, 2.0]];
        let right = [6.0, 10.0, 8.0]; // of [1, 2, 3]
        let near =
            |found: Vec3, expected: Vec3| found.into_iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6);
        let free = least(normal, right, [-9.0; 3], [9.0; 3]);
        assert!(near(free, [1.0, 2.0, 3.0]), "{free:?}");
        let boxed = least(normal, right, [1.5; 3], [2.5; 3]);
        assert!(near(boxed, [1.5, 2.0, 2.5]), "{boxed:?}");
    }

    #[test]
    fn nothing_near_a_fit_explains_the_loads_better() {
        for window in [vec![seen(2.0)], vec![seen(1.0), seen(9.0)], vec![seen(14.0), seen(3.0), seen(1.0)]] {
            let found = fit(&window, Compat::Corrected).unwrap();
            let best = of(&window, found);
            for index in 0..3 {
                for part in [0.98, 1.02] {
                    let mut other = found;
                    other[index] *= part;
                    let misfit = of(&window, other);
                    assert!(misfit > best, "{window:?}: {other:?} has {misfit}, {found:?} {best}");
                }
            }
        }
    }

    #[test]
    fn a_misfit_is_the_errors_of_the_latencies_and_the_distance_from_the_prior() {
        let window = [seen(2.0)];
        let rows: Vec<Row<'_>> = window.iter().filter_map(Row::of).collect();
        let truth = [8.0, 0.016, 0.0005];
        let twice = truth.map(|value| 2.0 * value);
        let near = |value: f64, expected: f64| (value - expected).abs() < 1e-4 * (1.0 + expected);
        let exact = misfit(&rows, truth, truth, Compat::Corrected);
        assert!(near(exact, 0.0), "{exact}");
        let far = misfit(&rows, twice, truth, Compat::Corrected);
        assert!(near(far, 0.75), "three times a half squared, not {far}");
        let [ttft, itl] = window[0].observed();
        let [slow1, slow2] = window[0].predict(twice, Compat::Corrected).unwrap();
        let missed = ((slow1 - ttft) / (0.05 * ttft)).powi(2) + ((slow2 - itl) / (0.05 * itl)).powi(2);
        let wrong = misfit(&rows, twice, twice, Compat::Corrected);
        assert!(near(wrong, missed), "{wrong} is not {missed}");
    }

    #[test]
    fn requests_in_a_replica_are_what_arrives_while_one_is_served() {
        let one = seen(2.0);
        let n = concurrency(&one).unwrap();
        let served = f64::from(one.ttft) + 128.0 * f64::from(one.itl);
        assert!((n - 2.0 * served / 1000.0).abs() < 1e-6, "{n}");
        let full = Environment { ttft: 1e6, ..one };
        assert_eq!(concurrency(&full), None, "in a full batch the time to first token says nothing");
    }

    #[test]
    fn the_prior_takes_half_of_an_iteration_for_its_fixed_part_at_twenty_requests() {
        let one = seen(2.0);
        let [ttft, itl] = one.observed();
        let (prompt, load) = ((ttft - itl) / 512.0, 0.5 * itl / (21.0 * 576.0));
        let near = |found: Vec3, expected: Vec3| {
            found.into_iter().zip(expected).all(|(a, b)| (a / b - 1.0).abs() < 1e-9)
        };
        assert!(near(prior(&one, 20.0), [0.5 * itl, prompt, load]));
        assert!(near(prior(&one, 60.0), [0.25 * itl, prompt, 0.75 * itl / (61.0 * 576.0)]));
        // What cannot be told apart is a twentieth.
        let short = Environment { ttft: one.itl, ..one };
        assert!(near(prior(&short, 0.2), [itl / 1.01, 0.05 * itl / 512.0, 0.05 * itl / (1.2 * 576.0)]));
    }

    #[test]
    fn a_load_says_what_each_parameter_counts_for_in_both_latencies() {
        // Three requests of 20 ms each at a time; x = 8/3, y = 7.
        let shape = Shape { input: 6.0, output: 2.0 };
        let one = Environment { rate: 9000.0, shape, batch: 64, ttft: 10.0, itl: 5.0 };
        let row = Row::of(&one).unwrap();
        let expected = [[1.0, 14.0, 27.0], [1.0, 9.0, 28.0]];
        let off = row.factors.into_iter().zip(expected).map(|(own, other)| add(own, scale(other, -1.0)));
        assert!(off.flatten().all(|off| off.abs() < 1e-4), "{:?}", row.factors);
        assert!((row.n - 3.0).abs() < 1e-6 && row.above.iter().all(|above| above.abs() <= 0.0));
    }

    #[test]
    fn a_row_touches_the_queue_where_it_is_asked_to() {
        let (one, state) = (seen(9.0), [9.0, 0.02, 0.0004]);
        let mut row = Row::of(&one).unwrap();
        row.touch(state, Compat::Corrected).unwrap();
        let predicted = one.predict(state, Compat::Corrected).unwrap();
        for ((factors, above), predicted) in row.factors.into_iter().zip(row.above).zip(predicted) {
            assert!(
                (dot(factors, state) + above - predicted).abs() < 1e-9,
                "{factors:?} {above} {predicted}"
            );
        }
    }
}
