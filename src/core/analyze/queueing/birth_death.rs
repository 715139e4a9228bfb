//! The queue in front of a batch as a birth–death chain: requests arrive at a constant rate λ, and with j in the system they leave at the
//! rate μ of min(j, N) in service; state K is full and loses what arrives. A state-dependent M/M/1/K queue, probabilities in f64. Source:
//! WVA 526ce85 (2026-06), `pkg/analyzer/mm1modelstatedependent.go`.
//!
//! Each state waits for the division of the one before, so two chains side by side take as long as one: everything here has two lanes,
//! for the two bisections of a sizing. A lane's numbers are those that it would have alone.

/// Two values, one a lane.
type Lanes = [f64; 2];

/// One set of service rates, to be solved for many λ. The buffer is kept between solutions.
#[derive(Debug, Clone)]
pub(super) struct Chain {
    /// μ(1)…μ(N), requests per ms, all finite and above 0.
    rates: Vec<f64>,
    /// The probability of each state 0…K, before and after normalisation.
    p: Vec<Lanes>,
    /// μ never falls from one state to the next.
    is_rising: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Occupancy {
    pub(super) in_system: f64,
    pub(super) in_service: f64,
    /// The probability that an arrival is lost; 0 where it is below 2⁻⁵⁶.
    pub(super) full: f64,
}

/// A state is negligible below this part of each running sum: added to it, the state and all after it would be rounded
/// away. 2⁻⁵⁴ is what an f64 loses; the rest is for the rounding on the way.
const NEGLIGIBLE: f64 = 1.0 / 72_057_594_037_927_936.0; // 2⁻⁵⁶

impl Chain {
    /// A chain of N = `rates.len()` ≥ 1 places in service and K = `states` ≥ N in all.
    pub(super) fn new(rates: Vec<f64>, states: usize) -> Self {
        let is_rising = rates.is_sorted();
        Self { rates, p: vec![[0.0; 2]; states.saturating_add(1)], is_rising }
    }

    /// Solves the chain for two λ, in requests per ms, above 0 and finite.
    pub(super) fn solve(&mut self, lambda: Lanes) -> [Occupancy; 2] {
        let visited = self.weigh(lambda).unwrap_or_else(|| self.weigh_scaled(lambda));
        let (served, places) = (self.rates.len(), float(self.rates.len()));
        let (mut in_service, mut in_system, mut sum): (Option<Lanes>, Lanes, Lanes) =
            (None, [0.0; 2], [0.0; 2]);
        let serving =
            |in_system: Lanes, sum: Lanes| both(in_system, sum, |mean, sum| mean + (1.0 - sum) * places);
        let mut place = 0.0;
        for (state, p) in self.p.iter().take(visited).enumerate() {
            in_system = both(in_system, *p, |mean, p| mean + place * p);
            sum = both(sum, *p, |sum, p| sum + p);
            place += 1.0;
            if state == served {
                in_service = Some(serving(in_system, sum));
            }
        }
        let last = self.p.last().copied().unwrap_or_default();
        let [full0, full1] = if visited == self.p.len() { last } else { [0.0; 2] };
        let [serving0, serving1] = in_service.unwrap_or_else(|| serving(in_system, sum));
        let [system0, system1] = in_system;
        [
            Occupancy { in_system: system0, in_service: serving0, full: full0 },
            Occupancy { in_system: system1, in_service: serving1, full: full1 },
        ]
    }

    /// The common case: nothing overflows. Normalises the first states and returns how many these are: all, or those
    /// before the tail that every sum of both lanes would round away.
    fn weigh(&mut self, lambda: Lanes) -> Option<usize> {
        let last = self.rates.last().copied()?;
        let (states, [lambda0, lambda1]) = (float(self.p.len()), lambda);
        let faster = lambda0.max(lambda1);
        let (mut value, mut sum, mut weighted): (Lanes, Lanes, Lanes) = ([1.0; 2], [1.0; 2], [0.0; 2]);
        let (mut place, mut visited) = (0.0, 1);
        let (first, rest) = self.p.split_first_mut()?;
        *first = value;
        let rates = self.rates.iter().copied().chain(std::iter::repeat(last));
        for (p, rate) in rest.iter_mut().zip(rates) {
            value = both(value, lambda, |value, lambda| value * lambda / rate);
            *p = value;
            place += 1.0;
            sum = both(sum, value, |sum, value| sum + value);
            weighted = both(weighted, value, |weighted, value| weighted + place * value);
            visited += 1;
            if faster <= rate && self.is_rising {
                let [done0, done1] = both(both(weighted, sum, f64::min), value, |sums, value| {
                    NEGLIGIBLE * sums - states * value
                });
                if done0 > 0.0 && done1 > 0.0 {
                    break;
                }
            }
        }
        if !sum.iter().chain(&weighted).all(|sum| sum.is_finite()) {
            return None;
        }
        self.p.iter_mut().take(visited).for_each(|p| *p = both(*p, sum, |p, sum| p / sum));
        Some(visited)
    }

    /// Upstream's way with its rule for overflow: what there is so far is divided by the largest float by K. Returns
    /// the number of states, which is all.
    fn weigh_scaled(&mut self, [lambda0, lambda1]: Lanes) -> usize {
        let first = self.weigh_lane(lambda0);
        let second = self.weigh_lane(lambda1);
        self.p = first.into_iter().zip(second).map(<Lanes>::from).collect();
        self.p.len()
    }

    fn weigh_lane(&self, lambda: f64) -> Vec<f64> {
        let scale = f64::MAX / float(self.p.len().saturating_sub(1));
        let last = self.rates.last().copied().unwrap_or(1.0);
        let rates = self.rates.iter().copied().chain(std::iter::repeat(last));
        let mut value = 1.0_f64;
        let mut p = Vec::with_capacity(self.p.len());
        p.push(value);
        for rate in rates.take(self.p.len().saturating_sub(1)) {
            let mut next = value * lambda / rate;
            if !next.is_finite() {
                p.iter_mut().for_each(|p| *p /= scale);
                next = value / scale * lambda / rate;
            }
            value = next;
            p.push(value);
        }
        let mut sum: f64 = p.iter().sum();
        if !sum.is_finite() {
            p.iter_mut().for_each(|p| *p /= scale);
            sum = p.iter().sum();
        }
        p.iter_mut().for_each(|p| *p /= sum);
        p
    }
}

/// `of` in each lane.
fn both([a0, a1]: Lanes, [b0, b1]: Lanes, of: impl Fn(f64, f64) -> f64) -> Lanes {
    [of(a0, b0), of(a1, b1)]
}

/// A count of states as a float; exact, since a chain has at most 2²⁰.
fn float(count: usize) -> f64 {
    f64::from(crate::units::count(count))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::units::to_f32;

    /// The chain of a server whose iterations take 1 + slope·n.
    fn chain(batch: usize, queue: usize, slope: f64) -> Chain {
        let rate = |n: usize| float(n) / (1.0 + slope * float(n));
        Chain::new((1..=batch).map(rate).collect(), batch + queue)
    }

    proptest! {
        #![proptest_config(crate::tests::support::cases::quick())]

        #[test]
        fn the_probabilities_sum_to_one_and_the_short_way_finds_the_long_ways_bits(
            batch in 1_usize..60, queue in 0_usize..80, slope in 0.0..2.0_f64, load in prop::array::uniform2(-9.0..3.0_f64),
        ) {
            let mut short = chain(batch, queue, slope);
            let max_rate = *short.rates.last().unwrap();
            let lambda = load.map(|load| max_rate * load.exp2());
            let mut long = short.clone();
            let found = short.solve(lambda);
            long.is_rising = false;
            long.weigh_scaled(lambda);
            for (lane, found) in found.iter().enumerate() {
                let p: Vec<f64> = long.p.iter().map(|p| p[lane]).collect();
                prop_assert!((p.iter().sum::<f64>() - 1.0).abs() < 1e-9);
                let mut mean = 0.0;
                p.iter().enumerate().for_each(|(state, p)| mean += float(state) * p);
                prop_assert_eq!(mean.to_bits(), found.in_system.to_bits());
                let served: f64 = p.iter().take(batch + 1).enumerate().map(|(state, p)| float(state) * p).sum();
                let beyond = 1.0 - p.iter().take(batch + 1).sum::<f64>();
                prop_assert_eq!((served + beyond * float(batch)).to_bits(), found.in_service.to_bits());
                prop_assert_eq!((1.0 - to_f32(p[p.len() - 1])).to_bits(), (1.0 - to_f32(found.full)).to_bits());
            }
        }
    }

    #[test]
    fn a_lane_finds_what_it_would_find_alone() {
        let mut chain = chain(32, 40, 0.1);
        let [slow, fast] = chain.solve([0.3, 6.0]);
        let means = |found: Occupancy| [found.in_system, found.in_service].map(f64::to_bits);
        assert_eq!(chain.solve([6.0, 6.0]).map(means), [means(fast); 2]);
        assert_eq!(chain.solve([0.3, 0.3]).map(means), [means(slow); 2]);
    }

    #[test]
    fn a_weight_beyond_the_largest_float_is_scaled_and_not_lost() {
        let mut chain = Chain::new(vec![1e-3; 400], 400);
        let [found, _] = chain.solve([1.0, 1.0]);
        assert!((found.in_system - 400.0).abs() < 0.01, "{found:?}");
        assert!((chain.p.iter().map(|p| p[0]).sum::<f64>() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_tail_that_no_sum_would_notice_is_not_walked() {
        let mut chain = chain(32, 400, 0.1);
        let idle = chain.weigh([0.01, 0.01]).unwrap();
        let busier = chain.weigh([0.01, 1.0]).unwrap();
        assert!(idle < 20 && idle < busier && busier < 433, "{idle} and {busier} of 433");
        chain.is_rising = false;
        assert_eq!(chain.weigh([0.01, 0.01]), Some(433), "rates that fall may bring a tail back");
    }

    #[test]
    fn states_after_an_overflow_are_as_likely_as_those_before_make_them() {
        let rates: Vec<f64> = (1..=400).map(|state| if state <= 103 { 1e-3 } else { 2.0 }).collect();
        let weight =
            |state: i32| if state <= 103 { 1e-3_f64.powi(103 - state) } else { 0.5_f64.powi(state - 103) };
        let (mut sum, mut mean) = (0.0, 0.0);
        for state in 0..=400 {
            sum += weight(state);
            mean += f64::from(state) * weight(state);
        }
        let [found, _] = Chain::new(rates, 400).solve([1.0, 1.0]);
        assert!((found.in_system - mean / sum).abs() < 1e-9, "{found:?} is not {}", mean / sum);
    }

    #[test]
    fn a_sum_beyond_the_largest_float_is_scaled_where_no_weight_is_beyond_it() {
        // Weights of 1, and of 1, 1.5 and 1.2 times ten to the 308th.
        let [found, _] = Chain::new(vec![1e-308, 1.0 / 1.5, 1.25], 3).solve([1.0, 1.0]);
        assert!((found.in_system - 7.6 / 3.7).abs() < 1e-9, "{found:?}");
    }
}
