//! Random numbers from a seed: `SplitMix64` (Steele, Lea, Flood 2014), a counter and a finaliser. Not for secrets.

/// A generator of pseudo-random numbers that its seed determines completely.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rng(u64);

impl Rng {
    /// The golden ratio in 64 bits: the increment that makes the counter visit every state.
    const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
    /// 2^-53: a 53-bit integer times this is a uniform f64 below 1.
    const UNIT: f64 = 1.0 / 9_007_199_254_740_992.0;

    /// The generator of `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The generator of `seed` for one of many purposes; their sequences are independent of each other.
    #[must_use]
    pub fn stream(seed: u64, purpose: u64) -> Self {
        let mixed = Self(seed).bits();
        Self(mixed ^ Self(purpose.wrapping_add(1)).bits())
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(Self::GAMMA);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Uniform from 0 to 1, without 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * Self::UNIT
    }

    /// Exponential with mean 1: the gap between arrivals of a Poisson process of rate 1.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// Normal with mean 0 and variance 1, by the Box-Muller transform. Its second value is dropped.
    pub fn normal(&mut self) -> f64 {
        (2.0 * self.exponential()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Uniform in `mean` ± `share` × `mean`.
    pub fn around(&mut self, mean: f64, share: f64) -> f64 {
        mean * (1.0 + share * (2.0 * self.unit() - 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_that_of_the_published_generator() {
        let mut rng = Rng::new(1_234_567);
        assert_eq!([rng.bits(), rng.bits()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn distributions_have_their_means() {
        let mut rng = Rng::new(7);
        let n = 20_000;
        let mean = |total: f64| total / f64::from(n);
        assert!((mean((0..n).map(|_| rng.unit()).sum()) - 0.5).abs() < 0.01);
        assert!((mean((0..n).map(|_| rng.exponential()).sum()) - 1.0).abs() < 0.03);
        assert!((0..n).map(|_| rng.around(100.0, 0.1)).all(|x| (90.0..=110.0).contains(&x)));
    }
}
