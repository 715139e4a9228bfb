//! Means over runs with their 95 % intervals.

use std::fmt;

/// A mean with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Mean {
    pub(crate) mean: f64,
    /// Half of the interval's width; 0 for a single value.
    pub(crate) half: f64,
}

impl Mean {
    /// Of independent values, by Student's t. A run counts as one value however many requests it has, so that no heavy run is the
    /// result. 0 without values.
    pub(crate) fn of(values: &[f64]) -> Self {
        let count = values.len() as f64;
        if values.is_empty() {
            return Self { mean: 0.0, half: 0.0 };
        }
        let mean = values.iter().sum::<f64>() / count;
        let degrees = count - 1.0;
        if degrees < 1.0 {
            return Self { mean, half: 0.0 };
        }
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / degrees;
        Self { mean, half: quantile_of_t(degrees) * (variance / count).sqrt() }
    }

    /// The same in another unit.
    pub(crate) fn times(self, factor: f64) -> Self {
        Self { mean: self.mean * factor, half: self.half * factor }
    }
}

impl fmt::Display for Mean {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(2);
        write!(f, "{:.digits$}", self.mean)?;
        if self.half > 0.0 { write!(f, " ± {:.digits$}", self.half) } else { Ok(()) }
    }
}

/// The 97.5 % quantile of Student's t: exact below four degrees of freedom, else within 1 %.
fn quantile_of_t(degrees: f64) -> f64 {
    match degrees {
        d if d < 2.0 => 12.706,
        d if d < 3.0 => 4.303,
        d if d < 4.0 => 3.182,
        d => 1.96 + 2.37 / d + 3.5 / (d * d),
    }
}
