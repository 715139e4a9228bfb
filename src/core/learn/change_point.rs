//! When the arrival rate last changed, and what it is since: the mean over as long as nothing changed, over seconds after a
//! step.
//!
//! Counts of two neighbouring stretches come from one Poisson process or from two: the logarithm of the likelihood ratio
//! (LLR) says how much better two are, in nats: `c₁ ln(c₁/t₁) + c₂ ln(c₂/t₂) − c ln(c/t)`. For arrivals that come in
//! batches the variance of counts is F times the mean, and so is the ratio that chance alone reaches.

/// Nats, times F, from which a change is one. By chance one look in `e^12` = 160,000 finds one: with a look every 5 s that is
/// 1 % in two hours. A step from `l0` to `l1` a second is seen after `12 / (l1 ln(l1/l0) − (l1 − l0))` seconds: 2 to 4
/// after 16 s, 16 to 20 after 26 s.
pub const MIN_LIKELIHOOD_RATIO: f64 = 12.0;

/// Shorter stretches show no trend, seconds.
const TREND_FROM: f64 = 120.0;

/// What each further step of a staircase costs it against a straight line, nats times F: a step has two parameters (where,
/// how high) and a line has one; 3 nats are those of one parameter at 1 %.
const STEP_PRICE: f64 = 3.0;

/// A level as young as this, seconds, is seen by its later stretches if these say more: the first one holds arrivals of both
/// sides of the change, since that hardly ever comes with a reading. After a minute it is a twelfth of what counts.
const YOUNG: f64 = 60.0;

/// Arrivals in a stretch of time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ArrivalCount {
    /// How long, seconds, above 0.
    pub seconds: f64,
    /// How many; below 0 where what was held elsewhere was counted twice.
    pub arrivals: f64,
}

/// What arrives now.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ArrivalLevel {
    /// Requests a second.
    pub rate: f64,
    /// How that grows, requests a second each second; 0 without a trend.
    pub slope: f64,
    /// Seconds of counts it is the mean of.
    pub seconds: f64,
}

/// The level at the end of `counts` (oldest first), whose variance is `dispersion` times their mean.
#[must_use]
pub fn level(counts: &[ArrivalCount], dispersion: f64) -> ArrivalLevel {
    let bar = MIN_LIKELIHOOD_RATIO * dispersion;
    let mut part = counts;
    loop {
        let split = best_split(part);
        let total = Sum::of(part);
        if total.seconds >= TREND_FROM {
            let line = Line::through(part, total);
            let staircase = |price| explained(part, bar, price);
            if line.nats > bar && line.nats > split.nats && line.nats > staircase(STEP_PRICE * dispersion) {
                return ArrivalLevel { rate: line.end.max(0.0), slope: line.slope, seconds: total.seconds };
            }
        }
        if split.nats <= bar {
            let rate = if part.len() < counts.len() { risen(part, total) } else { total.rate() };
            return ArrivalLevel { rate, slope: 0.0, seconds: total.seconds };
        }
        part = &part[split.at..];
    }
}

/// The rate of a level that begins with `part`, `total` in all.
fn risen(part: &[ArrivalCount], total: Sum) -> f64 {
    let later = part.get(1..).filter(|later| !later.is_empty() && total.seconds < YOUNG);
    later.map_or(0.0, |later| Sum::of(later).rate()).max(total.rate())
}

#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    seconds: f64,
    arrivals: f64,
}

impl Sum {
    fn of(counts: &[ArrivalCount]) -> Self {
        counts.iter().fold(Self::default(), |sum, one| sum.plus(*one))
    }

    fn plus(self, one: ArrivalCount) -> Self {
        Self { seconds: self.seconds + one.seconds, arrivals: self.arrivals + one.arrivals }
    }

    fn rate(self) -> f64 {
        if self.seconds > 0.0 { self.arrivals.max(0.0) / self.seconds } else { 0.0 }
    }

    /// `c ln(c/t)`; nothing for no arrivals.
    fn nats(self) -> f64 {
        if self.arrivals > 0.0 { self.arrivals * (self.arrivals / self.seconds).ln() } else { 0.0 }
    }
}

/// The best place to cut a stretch in two.
#[derive(Debug, Clone, Copy, Default)]
struct Split {
    nats: f64,
    /// The first count of the later part.
    at: usize,
}

fn best_split(counts: &[ArrivalCount]) -> Split {
    let total = Sum::of(counts);
    let (mut best, mut before) = (Split::default(), Sum::default());
    for (at, count) in counts.iter().enumerate().skip(1).map(|(at, _)| (at, counts[at - 1])) {
        before = before.plus(count);
        let earlier = Sum { arrivals: before.arrivals.max(0.0), ..before };
        let later = Sum {
            seconds: total.seconds - before.seconds,
            arrivals: (total.arrivals - before.arrivals).max(0.0),
        };
        let whole = Sum { seconds: total.seconds, arrivals: earlier.arrivals + later.arrivals };
        let nats = earlier.nats() + later.nats() - whole.nats();
        if nats > best.nats {
            best = Split { nats, at };
        }
    }
    best
}

/// What a staircase explains: every cut above `bar`, as long as there is one in a part, less `price` each.
fn explained(counts: &[ArrivalCount], bar: f64, price: f64) -> f64 {
    let split = best_split(counts);
    if split.nats <= bar {
        return 0.0;
    }
    let (earlier, later) = counts.split_at(split.at);
    split.nats - price + explained(earlier, bar, price) + explained(later, bar, price)
}

/// A straight line through the rates, each weighted by its time (the variance of a rate is `mean / time`).
struct Line {
    slope: f64,
    /// Its value at the end.
    end: f64,
    /// How much better than the mean it is: half the square of its slope in standard errors.
    nats: f64,
}

impl Line {
    fn through(counts: &[ArrivalCount], total: Sum) -> Self {
        let mean = total.rate();
        let (mut start, mut moment) = (0.0, 0.0);
        for count in counts {
            moment += count.seconds * (start + count.seconds / 2.0);
            start += count.seconds;
        }
        let middle = moment / total.seconds;
        let (mut passed, mut across, mut along) = (0.0, 0.0, 0.0);
        for count in counts {
            let x = passed + count.seconds / 2.0 - middle;
            across += count.seconds * x * x;
            along += x * (count.arrivals - mean * count.seconds);
            passed += count.seconds;
        }
        if across <= 0.0 || mean <= 0.0 {
            return Self { slope: 0.0, end: mean, nats: 0.0 };
        }
        let slope = along / across;
        let nats = slope * slope * across / (2.0 * mean);
        Self { slope, end: mean + slope * (total.seconds - middle), nats }
    }
}
