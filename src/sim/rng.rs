//! Chance from a seed: `SplitMix64`, a counter and a finaliser. Not for secrets.

/// Pseudo-random numbers that a seed determines wholly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rng(u64);

impl Rng {
    /// The golden ratio in 64 bits: the increment that makes the counter visit every state.
    const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
    /// 2^-53: a 53-bit integer times this is a uniform f64 below 1.
    const UNIT: f64 = 1.0 / 9_007_199_254_740_992.0;

    /// The sequence of `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The sequence of `seed` for one of many purposes: each is independent of the others.
    #[must_use]
    pub fn stream(seed: u64, purpose: u64) -> Self {
        let mut own = Self(seed);
        let mixed = own.bits();
        Self(mixed ^ Self(purpose.wrapping_add(1)).bits())
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(Self::GAMMA);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Uniform in 0..1 (1 excluded).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * Self::UNIT
    }

    /// Exponential with mean 1: the gap between arrivals of a unit-rate Poisson process.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// Normal with mean 0 and variance 1 (Box and Muller's transform; the second value is not kept).
    pub fn normal(&mut self) -> f64 {
        (2.0 * self.exponential()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Uniform in `mean` ± `share` × `mean`.
    pub fn around(&mut self, mean: f64, share: f64) -> f64 {
        mean * (1.0 + share * (2.0 * self.unit() - 1.0))
    }

    /// Five letters as Kubernetes puts them behind a pod's name (no vowels, nothing that looks like another letter).
    pub fn suffix(&mut self) -> String {
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        (0..5).map(|_| char::from(LETTERS[(self.bits() % LETTERS.len() as u64) as usize])).collect()
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
    fn means_are_what_they_say() {
        let mut rng = Rng::new(7);
        let n = 20_000;
        let mean = |total: f64| total / f64::from(n);
        assert!((mean((0..n).map(|_| rng.unit()).sum()) - 0.5).abs() < 0.01);
        assert!((mean((0..n).map(|_| rng.exponential()).sum()) - 1.0).abs() < 0.03);
        assert!((0..n).map(|_| rng.around(100.0, 0.1)).all(|x| (90.0..=110.0).contains(&x)));
    }

    #[test]
    fn a_suffix_is_five_letters() {
        assert_eq!(Rng::new(1).suffix().len(), 5);
        assert_ne!(Rng::new(1).suffix(), Rng::new(2).suffix());
    }
}
