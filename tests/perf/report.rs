//! The results of the load client, as a line of text and as flat JSON. Pure.

use std::time::Duration;

use serde::Serialize;

/// The latencies of one or many connections.
#[derive(Debug, Default)]
pub(crate) struct Latencies {
    measured: Vec<Duration>,
    /// All answers, including those of the warm-up.
    answers: usize,
    bytes: usize,
}

impl Latencies {
    /// Adds an answer of `bytes`. `is_measured` is false during the warm-up.
    pub(crate) fn add(&mut self, latency: Duration, bytes: usize, is_measured: bool) {
        self.answers += 1;
        self.bytes += bytes;
        if is_measured {
            self.measured.push(latency);
        }
    }

    pub(crate) fn extend(&mut self, latencies: Self) {
        self.measured.extend(latencies.measured);
        self.answers += latencies.answers;
        self.bytes += latencies.bytes;
    }

    pub(crate) fn count(&self) -> usize {
        self.measured.len()
    }

    fn mean_bytes(&self) -> usize {
        self.bytes / self.answers.max(1)
    }

    fn sorted_ms(&self) -> Sorted {
        Sorted::new(self.measured.iter().map(|latency| latency.as_secs_f64() * 1000.0).collect())
    }
}

/// Values in ascending order.
pub(crate) struct Sorted(Vec<f64>);

impl Sorted {
    pub(crate) fn new(mut values: Vec<f64>) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        Self(values)
    }

    /// The quantile of `permille` thousandths; 0 without values, which no latency ever is.
    pub(crate) fn quantile(&self, permille: usize) -> f64 {
        let index = (self.0.len() * permille / 1000).min(self.0.len().saturating_sub(1));
        self.0.get(index).map_or(0.0, |value| (value * 1000.0).round() / 1000.0)
    }
}

/// Results of reads of single metrics.
#[derive(Debug, Serialize)]
pub(crate) struct Reads {
    requests: usize,
    connections: usize,
    /// Measured answers a second.
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    /// All answers, including those of the warm-up.
    answers: usize,
    /// Mean length of a body.
    bytes: usize,
}

impl Reads {
    pub(crate) fn new(requests: usize, connections: usize, seconds: f64, latencies: Latencies) -> Self {
        let sorted = latencies.sorted_ms();
        Self {
            requests,
            connections,
            per_second: (latencies.count() as f64 / seconds).round(),
            p50_ms: sorted.quantile(500),
            p99_ms: sorted.quantile(990),
            p999_ms: sorted.quantile(999),
            answers: latencies.answers,
            bytes: latencies.mean_bytes(),
        }
    }

    pub(crate) fn text(&self) -> String {
        let Self { requests, connections, per_second, p50_ms, p99_ms, p999_ms, bytes, .. } = self;
        format!(
            "{requests} different reads, {connections} connections: {per_second} answers/s of {bytes} bytes, \
             p50 {p50_ms} ms, p99 {p99_ms} ms, p99.9 {p999_ms} ms"
        )
    }
}

/// Results of reads of all variants.
#[derive(Debug, Serialize)]
pub(crate) struct List {
    lists: usize,
    p50_ms: f64,
    p99_ms: f64,
    bytes: usize,
}

impl List {
    pub(crate) fn new(latencies: Latencies) -> Self {
        let sorted = latencies.sorted_ms();
        Self {
            lists: latencies.count(),
            p50_ms: sorted.quantile(500),
            p99_ms: sorted.quantile(990),
            bytes: latencies.mean_bytes(),
        }
    }

    pub(crate) fn text(&self) -> String {
        let Self { lists, p50_ms, p99_ms, bytes } = self;
        format!("{lists} lists of {bytes} bytes: p50 {p50_ms} ms, p99 {p99_ms} ms")
    }
}

/// Resolution of the times in answers, seconds.
const TIME_RESOLUTION_S: f64 = 1.0;

/// Ages behind one answer, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Age {
    /// Age of the evidence.
    evidence: f64,
    /// Age of the newest sample in Prometheus.
    scrape: f64,
    /// How long a newer sample than the evidence had existed; 0 if there was none.
    added: f64,
}

impl Age {
    /// The ages of an answer at `now`, from the times of its evidence and of the samples; `None` without a sample. Samples after
    /// the answer do not count.
    pub(crate) fn new(now: f64, evidence: f64, samples: &[f64]) -> Option<Self> {
        let existing = || samples.iter().copied().filter(|at| *at <= now);
        let newest = existing().max_by(f64::total_cmp)?;
        let newer = existing().filter(|at| *at >= evidence + TIME_RESOLUTION_S).min_by(f64::total_cmp);
        let added = newer.map_or(0.0, |since| now - since);
        Some(Self { evidence: now - evidence, scrape: now - newest, added })
    }
}

/// Distribution of the ages, in seconds.
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
    pub(crate) fn new(ages: &[Age]) -> Self {
        let sorted = |field: fn(&Age) -> f64| Sorted::new(ages.iter().map(field).collect());
        let evidence = sorted(|age| age.evidence);
        let scrape = sorted(|age| age.scrape);
        let added = sorted(|age| age.added);
        Self {
            reads: ages.len(),
            evidence_p50_s: evidence.quantile(500),
            evidence_p99_s: evidence.quantile(990),
            scrape_p50_s: scrape.quantile(500),
            scrape_p99_s: scrape.quantile(990),
            above_p50_s: added.quantile(500),
            above_p99_s: added.quantile(990),
            above_most_s: added.quantile(1000),
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
