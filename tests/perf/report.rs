//! What the load client saw, as a line for people and as flat JSON. Pure.

use std::time::Duration;

use serde::Serialize;

/// The latencies of one or many connections.
#[derive(Debug, Default)]
pub(crate) struct Latencies {
    counted: Vec<Duration>,
    /// With those of the warm-up.
    answers: usize,
    bytes: usize,
}

impl Latencies {
    /// One answer of `bytes`; `counts` is false while warming up.
    pub(crate) fn add(&mut self, took: Duration, bytes: usize, counts: bool) {
        self.answers += 1;
        self.bytes += bytes;
        if counts {
            self.counted.push(took);
        }
    }

    pub(crate) fn extend(&mut self, other: Self) {
        self.counted.extend(other.counted);
        self.answers += other.answers;
        self.bytes += other.bytes;
    }

    pub(crate) fn count(&self) -> usize {
        self.counted.len()
    }

    fn mean_bytes(&self) -> usize {
        self.bytes / self.answers.max(1)
    }

    fn sorted_ms(&self) -> Sorted {
        Sorted::new(self.counted.iter().map(|took| took.as_secs_f64() * 1000.0).collect())
    }
}

/// Values in rising order.
pub(crate) struct Sorted(Vec<f64>);

impl Sorted {
    pub(crate) fn new(mut values: Vec<f64>) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        Self(values)
    }

    /// The value below which so many thousandths are; 0 when there is none, which no answer ever takes.
    pub(crate) fn at(&self, permille: usize) -> f64 {
        let place = (self.0.len() * permille / 1000).min(self.0.len().saturating_sub(1));
        self.0.get(place).map_or(0.0, |value| (value * 1000.0).round() / 1000.0)
    }
}

/// Reads one by one.
#[derive(Debug, Serialize)]
pub(crate) struct Reads {
    variants: usize,
    connections: usize,
    /// Counted, in the measured seconds.
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    /// All of them, those of the warm-up included: what the server worked for.
    answers: usize,
    /// The mean length of a body.
    bytes: usize,
}

impl Reads {
    pub(crate) fn of(variants: usize, connections: usize, seconds: f64, seen: Latencies) -> Self {
        let sorted = seen.sorted_ms();
        Self {
            variants,
            connections,
            per_second: (seen.count() as f64 / seconds).round(),
            p50_ms: sorted.at(500),
            p99_ms: sorted.at(990),
            p999_ms: sorted.at(999),
            answers: seen.answers,
            bytes: seen.mean_bytes(),
        }
    }

    pub(crate) fn text(&self) -> String {
        let Self { variants, connections, per_second, p50_ms, p99_ms, p999_ms, bytes, .. } = self;
        format!(
            "{variants} variants, {connections} connections: {per_second} answers/s of {bytes} bytes, \
             p50 {p50_ms} ms, p99 {p99_ms} ms, p99.9 {p999_ms} ms"
        )
    }
}

/// Whole lists.
#[derive(Debug, Serialize)]
pub(crate) struct List {
    lists: usize,
    p50_ms: f64,
    p99_ms: f64,
    bytes: usize,
}

impl List {
    pub(crate) fn of(seen: Latencies) -> Self {
        let sorted = seen.sorted_ms();
        Self { lists: seen.count(), p50_ms: sorted.at(500), p99_ms: sorted.at(990), bytes: seen.mean_bytes() }
    }

    pub(crate) fn text(&self) -> String {
        let Self { lists, p50_ms, p99_ms, bytes } = self;
        format!("{lists} lists of {bytes} bytes: p50 {p50_ms} ms, p99 {p99_ms} ms")
    }
}

/// The times in answers are whole seconds.
const WHOLE: f64 = 1.0;

/// How old the evidence of one answer is, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Age {
    /// Of the evidence.
    evidence: f64,
    /// Of the newest sample in Prometheus.
    scrape: f64,
    /// For how long there had been a newer sample than the evidence; 0 when there was none.
    above: f64,
}

impl Age {
    /// Of an answer that came at `now`, from the times of its evidence and of the samples; `None` without a sample.
    /// What was scraped after the answer was not there for it.
    pub(crate) fn of(now: f64, evidence: f64, samples: &[f64]) -> Option<Self> {
        let there = || samples.iter().copied().filter(|at| *at <= now);
        let newest = there().max_by(f64::total_cmp)?;
        let newer = there().filter(|at| *at >= evidence + WHOLE).min_by(f64::total_cmp);
        let above = newer.map_or(0.0, |since| now - since);
        Some(Self { evidence: now - evidence, scrape: now - newest, above })
    }
}

/// Ages of evidence, in seconds.
#[derive(Debug, Serialize)]
pub(crate) struct Ages {
    reads: usize,
    evidence_p50_s: f64,
    evidence_p99_s: f64,
    scrape_p50_s: f64,
    scrape_p99_s: f64,
    above_p50_s: f64,
    above_p99_s: f64,
    above_most_s: f64,
}

impl Ages {
    pub(crate) fn of(seen: &[Age]) -> Self {
        let sorted = |field: fn(&Age) -> f64| Sorted::new(seen.iter().map(field).collect());
        let (evidence, scrape) = (sorted(|age| age.evidence), sorted(|age| age.scrape));
        let above = sorted(|age| age.above);
        Self {
            reads: seen.len(),
            evidence_p50_s: evidence.at(500),
            evidence_p99_s: evidence.at(990),
            scrape_p50_s: scrape.at(500),
            scrape_p99_s: scrape.at(990),
            above_p50_s: above.at(500),
            above_p99_s: above.at(990),
            above_most_s: above.at(1000),
        }
    }

    pub(crate) fn text(&self) -> String {
        let Self { reads, evidence_p50_s, evidence_p99_s, scrape_p50_s, scrape_p99_s, .. } = self;
        let Self { above_p50_s, above_p99_s, above_most_s, .. } = self;
        format!(
            "{reads} reads: evidence p50 {evidence_p50_s} s, p99 {evidence_p99_s} s old, the newest sample p50 {scrape_p50_s} s, \
             p99 {scrape_p99_s} s; above the scrape's p50 {above_p50_s} s, p99 {above_p99_s} s, at most {above_most_s} s"
        )
    }
}
