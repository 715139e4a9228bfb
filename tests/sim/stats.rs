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
    /// result. NaN without values, which meets no gate.
    pub(crate) fn of(values: &[f64]) -> Self {
        let count = values.len() as f64;
        if values.is_empty() {
            return Self { mean: f64::NAN, half: 0.0 };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_students() {
        // Ten values with mean 5.5 and a standard deviation of 3.0277: 2.262 × 3.0277 / √10.
        let values: Vec<f64> = (1..=10).map(f64::from).collect();
        let Mean { mean, half } = Mean::of(&values);
        assert!((mean - 5.5).abs() < 1e-12 && (half / 2.1659 - 1.0).abs() < 0.01, "{mean} ± {half}");
        assert_eq!(Mean::of(&[3.0]).to_string(), "3.00", "a single value has no interval");
        assert_eq!(format!("{:.1}", Mean::of(&[1.0, 1.0, 4.0])), "2.0 ± 4.3");
    }

    #[test]
    fn the_quantiles_are_those_of_the_tables() {
        for (degrees, quantile) in [(1.0, 12.706), (4.0, 2.776), (9.0, 2.262), (79.0, 1.990), (959.0, 1.962)]
        {
            assert!((quantile_of_t(degrees) / quantile - 1.0).abs() < 0.01, "{degrees}");
        }
    }
}
