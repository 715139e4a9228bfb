//! When the arrival rate last changed, and what it has been since: the mean over as long as nothing changed, over seconds after a step.
//!
//! Counts of two neighbouring periods come from one Poisson process or from two. The logarithm of the likelihood ratio (LLR) says how
//! much better two are, in nats: `c₁ ln(c₁/t₁) + c₂ ln(c₂/t₂) − c ln(c/t)`. For arrivals that come in batches the variance of
//! counts is F times their mean, and so is the ratio that chance alone reaches.

/// LLR in nats, times F, above which the rate has changed. By chance one test in `e^12` = 160,000 finds a change: with a test every
/// 5 s that is 1 % in two hours. A step from `l0` to `l1` requests/s is found after `12 / (l1 ln(l1/l0) − (l1 − l0))` seconds: one from
/// 2 to 4 after 16 s, one from 16 to 20 after 26 s.
pub(super) const MIN_LOG_RATIO: f64 = 12.0;

/// Shorter periods, seconds, show no trend.
const MIN_TREND_SECONDS: f64 = 120.0;

/// Penalty, in nats times F, for each further step of a staircase compared with a straight line: a step has two parameters (where
/// and how high) and a line has one. 3 nats are the 1 % quantile for one parameter.
const STEP_PENALTY: f64 = 3.0;

/// In a level younger than this, seconds, the later counts alone are used if their rate is higher: the first count contains
/// arrivals from before the change, which hardly ever coincides with a scrape. After a minute that is a twelfth of the level.
const YOUNG_SECONDS: f64 = 60.0;

/// Arrivals in a period.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ArrivalCount {
    /// Length of the period, seconds, above 0.
    pub(crate) seconds: f64,
    /// Requests. Below 0 where a request was counted twice, as held and as arrived.
    pub arrivals: f64,
}

/// The current arrival rate.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct ArrivalLevel {
    pub(crate) rate: f64,
    /// Growth of the rate, requests/s per second; 0 without a trend.
    pub(crate) slope: f64,
    /// Seconds since the last change, which the rate is the mean of.
    pub(crate) seconds: f64,
}

/// The level at the end of `counts` (oldest first), whose variance is `dispersion` times their mean.
///
/// Repeatedly drops everything before the best change point, until none is left above the threshold, or until a straight line
/// explains the rest better than steps do.
pub(crate) fn current_level(counts: &[ArrivalCount], dispersion: f64) -> ArrivalLevel {
    let threshold = MIN_LOG_RATIO * dispersion;
    let mut recent = counts;
    loop {
        let split = best_split(recent);
        let total = Total::of_counts(recent);
        if total.seconds >= MIN_TREND_SECONDS {
            let line = Line::fit(recent, total);
            let is_better_than_steps =
                || line.nats > staircase_nats(recent, threshold, STEP_PENALTY * dispersion);
            if line.nats > threshold && line.nats > split.nats && is_better_than_steps() {
                return ArrivalLevel { rate: line.end.max(0.0), slope: line.slope, seconds: total.seconds };
            }
        }
        if split.nats <= threshold {
            let has_changed = recent.len() < counts.len();
            let rate = if has_changed { rate_after_change(recent, total) } else { total.rate() };
            return ArrivalLevel { rate, slope: 0.0, seconds: total.seconds };
        }
        recent = &recent[split.at..];
    }
}

/// The rate of a level that starts with the first of `counts`.
fn rate_after_change(counts: &[ArrivalCount], total: Total) -> f64 {
    let later = counts.get(1..).filter(|later| !later.is_empty() && total.seconds < YOUNG_SECONDS);
    later.map_or(0.0, |later| Total::of_counts(later).rate()).max(total.rate())
}

#[derive(Debug, Clone, Copy, Default)]
struct Total {
    seconds: f64,
    arrivals: f64,
}

impl Total {
    fn of_counts(counts: &[ArrivalCount]) -> Self {
        counts.iter().fold(Self::default(), |total, count| total.plus(count))
    }

    fn plus(self, count: &ArrivalCount) -> Self {
        Self { seconds: self.seconds + count.seconds, arrivals: self.arrivals + count.arrivals }
    }

    fn rate(self) -> f64 {
        if self.seconds > 0.0 { self.arrivals.max(0.0) / self.seconds } else { 0.0 }
    }

    /// `c ln(c/t)`, which tends to 0 without arrivals.
    fn nats(self) -> f64 {
        if self.arrivals > 0.0 { self.arrivals * (self.arrivals / self.seconds).ln() } else { 0.0 }
    }
}

/// The best place to cut a period in two.
#[derive(Debug, Clone, Copy, Default)]
struct Split {
    nats: f64,
    /// The first count of the later part.
    at: usize,
}

fn best_split(counts: &[ArrivalCount]) -> Split {
    let total = Total::of_counts(counts);
    let (mut best, mut before) = (Split::default(), Total::default());
    for at in 1..counts.len() {
        before = before.plus(&counts[at - 1]);
        // Negative counts (see `ArrivalCount`) have no logarithm.
        let earlier = Total { arrivals: before.arrivals.max(0.0), ..before };
        let later = Total {
            seconds: total.seconds - before.seconds,
            arrivals: (total.arrivals - before.arrivals).max(0.0),
        };
        let both = Total { seconds: total.seconds, arrivals: earlier.arrivals + later.arrivals };
        let nats = earlier.nats() + later.nats() - both.nats();
        if nats > best.nats {
            best = Split { nats, at };
        }
    }
    best
}

/// What a staircase explains: the LLR of every cut above `threshold`, recursively, minus `penalty` for each.
fn staircase_nats(counts: &[ArrivalCount], threshold: f64, penalty: f64) -> f64 {
    let split = best_split(counts);
    if split.nats <= threshold {
        return 0.0;
    }
    let (earlier, later) = counts.split_at(split.at);
    split.nats - penalty
        + staircase_nats(earlier, threshold, penalty)
        + staircase_nats(later, threshold, penalty)
}

/// A straight line through the rates by least squares, each weighted by its duration (the variance of a rate is `mean / duration`).
struct Line {
    slope: f64,
    /// Value at the end.
    end: f64,
    /// Log-likelihood compared with the mean: half the square of the slope in standard errors.
    nats: f64,
}

impl Line {
    fn fit(counts: &[ArrivalCount], total: Total) -> Self {
        let mean = total.rate();
        let (mut start, mut moment) = (0.0, 0.0);
        for count in counts {
            moment += count.seconds * (start + count.seconds / 2.0);
            start += count.seconds;
        }
        // Centred at the mean time, so that slope and mean are independent.
        let centre = moment / total.seconds;
        let (mut start, mut time_variance, mut covariance) = (0.0, 0.0, 0.0);
        for count in counts {
            let x = start + count.seconds / 2.0 - centre;
            time_variance += count.seconds * x * x;
            covariance += x * (count.arrivals - mean * count.seconds);
            start += count.seconds;
        }
        if time_variance <= 0.0 || mean <= 0.0 {
            return Self { slope: 0.0, end: mean, nats: 0.0 };
        }
        let slope = covariance / time_variance;
        let nats = slope * slope * time_variance / (2.0 * mean);
        Self { slope, end: mean + slope * (total.seconds - centre), nats }
    }
}
