//! Least squares for α, β, γ over several loads: the start of the tuner. Upstream starts from a guess.
//!
//! By Little's law the number of requests in a replica is measured: n = λ·(TTFT + O·ITL). With n known both latencies are linear in
//! α, β, γ:
//!
//! ```text
//! TTFT = α + β·(n·x + I) + γ·(n·y + I)      x = (I+O)/(O+1)
//! ITL  = α + β·(n·x + 1) + γ·(n·y + y)      y = I + O/2
//! ```
//!
//! One load gives two equations for three unknowns. A prior decides what they leave open; two different loads outweigh it.

use super::matrix::{Vec3, add, dot, scale};
use super::tuner::{DEFAULT_STATE, Environment, bounds};

/// At this many requests the load's part of an iteration is assumed to be as long as its fixed part, until a second load is seen.
/// With prompts of 512 tokens and answers of 128, upstream's default parameters give 18, the examples of its tests 22.
const EVEN_BATCH: f64 = 20.0;
/// The standard error of an observation, a part of its value.
const OBSERVATION_ERROR: f64 = 0.05;
/// Above this share of the batch, TTFT includes waiting time, so that it does not show how long a prompt takes.
const MAX_BATCH_SHARE: f64 = 0.9;
/// Steps of a fit, halvings of a step, and attempts to find a state that carries the load, at most.
const MAX_ROUNDS: i32 = 10;
const SPEED_UP: f64 = 0.9;
/// Maximum of sweeps over the coordinates. The more alike the loads are, the more it takes; a sweep is 9 products.
const MAX_SWEEPS: u32 = 2_000;
/// The last sweep moves no coordinate by more than this share of the prior.
const CONVERGED: f64 = 1e-9;

/// Requests in the replica; `None` if it is so full that its latencies do not show its service times.
pub(super) fn concurrency(observed: &Environment) -> Option<f64> {
    let [ttft, itl] = observed.latencies();
    let per_ms = f64::from(observed.rate) / 60_000.0;
    let n = per_ms * (ttft + f64::from(observed.lengths.output) * itl);
    (n < MAX_BATCH_SHARE * f64::from(observed.batch)).then_some(n)
}

/// One observation with the requests in the replica.
struct Row<'a> {
    observed: &'a Environment,
    /// The coefficients of α, β, γ in TTFT and in ITL.
    factors: [Vec3; 2],
    n: f64,
    /// The latencies of the linear model at a state of 0.
    offset: [f64; 2],
}

impl<'a> Row<'a> {
    fn new(observed: &'a Environment) -> Option<Self> {
        let n = concurrency(observed)?;
        let input = f64::from(observed.lengths.input);
        let output = f64::from(observed.lengths.output);
        let x = (input + output) / (output + 1.0);
        let y = input + output / 2.0;
        let factors = [[1.0, n * x + input, n * y + input], [1.0, n * x + 1.0, n * y + y]];
        Some(Self { observed, factors, n, offset: [0.0; 2] })
    }

    /// Makes this the linear model that touches the queue at `state`.
    fn linearize(&mut self, state: Vec3) -> Option<()> {
        let [ttft, itl] = self.observed.predict(state).ok()?;
        self.factors = self.observed.jacobian(state)?;
        let [ttft_line, itl_line] = self.factors.map(|factors| dot(factors, state));
        self.offset = [ttft - ttft_line, itl - itl_line];
        Some(())
    }
}

/// The state that explains `window` best, newest last: the linear fit, and from there by the queue itself (Gauss–Newton, with shorter
/// steps if a full one does not help). `None` if nothing in the window says anything.
pub(super) fn fit(window: &[Environment]) -> Option<Vec3> {
    let mut rows: Vec<Row<'_>> = window.iter().filter_map(Row::new).collect();
    let newest = rows.last()?;
    let prior = prior(newest.observed, newest.n);
    let mut state = linear(&rows, prior)?;
    let mut best = misfit(&rows, prior, state);
    // Near the maximum rate the linear fit may be too slow for the load, so that the queue has no solution. A faster replica has one.
    for _ in 0..MAX_ROUNDS {
        if best.is_finite() {
            break;
        }
        state = scale(state, SPEED_UP);
        best = misfit(&rows, prior, state);
    }
    for _ in 0..MAX_ROUNDS {
        if rows.iter_mut().try_for_each(|row| row.linearize(state)).is_none() {
            break;
        }
        let full = add(linear(&rows, prior)?, scale(state, -1.0));
        let steps = (0..MAX_ROUNDS).map(|halvings| add(state, scale(full, 0.5_f64.powi(halvings))));
        let mut tried = steps.map(|next| (misfit(&rows, prior, next), next));
        let Some((less, next)) = tried.find(|(misfit, _)| *misfit < best) else { break };
        best = less;
        state = next;
    }
    Some(state)
}

/// The sum of squares that a fit minimises: the errors of the latencies, and the distance from the prior.
fn misfit(rows: &[Row<'_>], prior: Vec3, state: Vec3) -> f64 {
    let distance: f64 =
        state.into_iter().zip(prior).map(|(value, prior)| (value / prior - 1.0).powi(2)).sum();
    let error = |row: &Row<'_>| {
        let predicted = row.observed.predict(state).ok()?;
        let pairs = predicted.into_iter().zip(row.observed.latencies());
        let squares =
            pairs.map(|(predicted, shown)| ((predicted - shown) / (OBSERVATION_ERROR * shown)).powi(2));
        Some(squares.sum::<f64>())
    };
    rows.iter().map(|row| error(row).unwrap_or(f64::INFINITY)).sum::<f64>() + distance
}

/// The linear fit, by the normal equations. The unknowns are parts of the prior, which says 1 ± 1 of each: hence the identity and the
/// ones at the start.
fn linear(rows: &[Row<'_>], prior: Vec3) -> Option<Vec3> {
    let mut normal = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];
    let mut right = [1.0; 3];
    for row in rows {
        for ((factors, offset), value) in
            row.factors.into_iter().zip(row.offset).zip(row.observed.latencies())
        {
            let error = OBSERVATION_ERROR * value;
            let factors = scale(product(factors, prior), 1.0 / error);
            right = add(right, scale(factors, (value - offset) / error));
            for (line, factor) in normal.iter_mut().zip(factors) {
                *line = add(*line, scale(factors, factor));
            }
        }
    }
    let (low, high) = bounds(DEFAULT_STATE);
    let inverse = prior.map(|value| 1.0 / value);
    let state = product(minimum(normal, right, product(low, inverse), product(high, inverse)), prior);
    state.iter().all(|value| value.is_finite() && *value > 0.0).then_some(state)
}

fn product([a, b, c]: Vec3, [x, y, z]: Vec3) -> Vec3 {
    [a * x, b * y, c * z]
}

/// The scale of each parameter by one observation at `n` requests.
fn prior(observed: &Environment, n: f64) -> Vec3 {
    let [ttft, itl] = observed.latencies();
    let input = f64::from(observed.lengths.input);
    let output = f64::from(observed.lengths.output);
    let alpha = itl / (1.0 + n / EVEN_BATCH);
    // A difference below the error of an observation says nothing; the scale stays above 0.
    let prompt = (ttft - itl).max(OBSERVATION_ERROR * itl);
    let load = (itl - alpha).max(OBSERVATION_ERROR * itl);
    [alpha, prompt / input, load / ((n + 1.0) * (input + output / 2.0))]
}

/// The minimum of ½·uᵀ·A·u − bᵀ·u within a box. It is found one coordinate at a time, because then the box is a clamp.
fn minimum(normal: [Vec3; 3], right: Vec3, low: Vec3, high: Vec3) -> Vec3 {
    let mut best: Vec3 = [1.0; 3];
    for _ in 0..MAX_SWEEPS {
        let mut moved = 0.0_f64;
        for index in 0..3 {
            let value = best[index];
            let gradient = right[index] - dot(normal[index], best);
            let next = (value + gradient / normal[index][index]).max(low[index]).min(high[index]);
            moved = moved.max((next - value).abs());
            best[index] = next;
        }
        if moved < CONVERGED {
            break;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp, reason = "exact by construction")]

    use super::super::model::RequestLengths;
    use super::super::tests::shown;
    use super::*;

    fn misfit_of(window: &[Environment], state: Vec3) -> f64 {
        let rows: Vec<Row<'_>> = window.iter().filter_map(Row::new).collect();
        let newest = rows.last().unwrap();
        misfit(&rows, prior(newest.observed, newest.n), state)
    }

    fn near(found: Vec3, expected: Vec3, share: f64) -> bool {
        found.into_iter().zip(expected).all(|(a, b)| (a / b - 1.0).abs() < share)
    }

    #[test]
    fn a_product_is_taken_element_by_element() {
        assert_eq!(product([2.0, 3.0, 4.0], [5.0, 7.0, 11.0]), [10.0, 21.0, 44.0]);
    }

    #[test]
    fn the_least_of_a_parabola_is_found_within_its_box() {
        let normal = [[4.0, 1.0, 0.0], [1.0, 3.0, 1.0], [0.0, 1.0, 2.0]];
        let right = [6.0, 10.0, 8.0]; // of [1, 2, 3]
        let free = minimum(normal, right, [-9.0; 3], [9.0; 3]);
        assert!(near(free, [1.0, 2.0, 3.0], 3e-7), "{free:?}");
        let boxed = minimum(normal, right, [1.5; 3], [2.5; 3]);
        assert!(near(boxed, [1.5, 2.0, 2.5], 3e-7), "{boxed:?}");
    }

    #[test]
    fn nothing_near_a_fit_explains_the_loads_better() {
        for window in
            [vec![shown(2.0)], vec![shown(1.0), shown(9.0)], vec![shown(14.0), shown(3.0), shown(1.0)]]
        {
            let found = fit(&window).unwrap();
            let best = misfit_of(&window, found);
            for index in 0..3 {
                for part in [0.98, 1.02] {
                    let mut nearby = found;
                    nearby[index] *= part;
                    let misfit = misfit_of(&window, nearby);
                    assert!(misfit > best, "{window:?}: {nearby:?} has {misfit}, {found:?} {best}");
                }
            }
        }
    }

    #[test]
    fn a_misfit_is_the_errors_of_the_latencies_and_the_distance_from_the_prior() {
        let window = [shown(2.0)];
        let rows: Vec<Row<'_>> = window.iter().filter_map(Row::new).collect();
        let truth = [8.0, 0.016, 0.0005];
        let twice = truth.map(|value| 2.0 * value);
        let near = |value: f64, expected: f64| (value - expected).abs() < 1e-4 * (1.0 + expected);
        let exact = misfit(&rows, truth, truth);
        assert!(near(exact, 0.0), "{exact}");
        let far = misfit(&rows, twice, truth);
        assert!(near(far, 0.75), "three times a half squared, not {far}");
        let [ttft, itl] = window[0].latencies();
        let [slow1, slow2] = window[0].predict(twice).unwrap();
        let missed = ((slow1 - ttft) / (0.05 * ttft)).powi(2) + ((slow2 - itl) / (0.05 * itl)).powi(2);
        let wrong = misfit(&rows, twice, twice);
        assert!(near(wrong, missed), "{wrong} is not {missed}");
    }

    #[test]
    fn requests_in_a_replica_are_what_arrives_while_one_is_served() {
        let usual = shown(2.0);
        let n = concurrency(&usual).unwrap();
        let served = f64::from(usual.ttft) + 128.0 * f64::from(usual.itl);
        assert!((n - 2.0 * served / 1000.0).abs() < 1e-6, "{n}");
        let full = Environment { ttft: 1e6, ..usual };
        assert_eq!(concurrency(&full), None, "in a full batch the time to first token says nothing");
    }

    #[test]
    fn the_prior_takes_half_of_an_iteration_for_its_fixed_part_at_twenty_requests() {
        let usual = shown(2.0);
        let [ttft, itl] = usual.latencies();
        let (prompt, load) = ((ttft - itl) / 512.0, 0.5 * itl / (21.0 * 576.0));
        assert!(near(prior(&usual, 20.0), [0.5 * itl, prompt, load], 1e-9));
        assert!(near(prior(&usual, 60.0), [0.25 * itl, prompt, 0.75 * itl / (61.0 * 576.0)], 1e-9));
        // What cannot be told apart is a twentieth.
        let short = Environment { ttft: usual.itl, ..usual };
        assert!(near(prior(&short, 0.2), [itl / 1.01, 0.05 * itl / 512.0, 0.05 * itl / (1.2 * 576.0)], 1e-9));
    }

    #[test]
    fn a_load_says_what_each_parameter_counts_for_in_both_latencies() {
        // Three requests of 20 ms each at a time; x = 8/3, y = 7.
        let lengths = RequestLengths { input: 6.0, output: 2.0 };
        let observed = Environment { rate: 9000.0, lengths, batch: 64, ttft: 10.0, itl: 5.0 };
        let row = Row::new(&observed).unwrap();
        let expected = [[1.0, 14.0, 27.0], [1.0, 9.0, 28.0]];
        let off =
            row.factors.into_iter().zip(expected).map(|(found, expected)| add(found, scale(expected, -1.0)));
        assert!(off.flatten().all(|off| off.abs() < 1e-4), "{:?}", row.factors);
        assert!((row.n - 3.0).abs() < 1e-6 && row.offset.iter().all(|offset| offset.abs() <= 0.0));
    }

    #[test]
    fn a_row_touches_the_queue_where_it_is_asked_to() {
        let (observed, state) = (shown(9.0), [9.0, 0.02, 0.0004]);
        let mut row = Row::new(&observed).unwrap();
        row.linearize(state).unwrap();
        let predicted = observed.predict(state).unwrap();
        for ((factors, offset), predicted) in row.factors.into_iter().zip(row.offset).zip(predicted) {
            let off = dot(factors, state) + offset - predicted;
            assert!(off.abs() < 1e-9, "{factors:?} {offset} {predicted}");
        }
    }
}
