//! The figures of a run, counted as things happen.

use super::results::{Point, Run, Write};
use crate::load::Request;
use crate::quantiles::Quantiles;
use crate::scenario::Slo;
use crate::stats::{Gaps, Served, Witness};

/// What becomes of requests, over the whole run and since the last point of its series.
#[derive(Debug)]
pub(super) struct Tally {
    ttft_s: f64,
    itl_s: f64,
    first_tokens: Quantiles,
    gaps: Quantiles,
    pub(super) requests: u64,
    pub(super) finished: u64,
    pub(super) errors: u64,
    /// Requests served well.
    good: u64,
    since: Since,
    series: Vec<Point>,
    writes: Vec<Write>,
    changes: u32,
    flips: u32,
    /// By variant, whether its last change was up.
    last_up: Vec<Option<bool>>,
}

/// What happened since the last point.
#[derive(Debug, Default)]
struct Since {
    at_s: f64,
    requests: u64,
    errors: u64,
    first_tokens: Quantiles,
    gaps_s: f64,
    gaps: f64,
}

impl Tally {
    pub(super) fn new(slo: Slo, variants: usize) -> Self {
        Self {
            ttft_s: slo.ttft.as_secs_f64(),
            itl_s: slo.itl.as_secs_f64(),
            first_tokens: Quantiles::default(),
            gaps: Quantiles::default(),
            requests: 0,
            finished: 0,
            errors: 0,
            good: 0,
            since: Since::default(),
            series: Vec::new(),
            writes: Vec::new(),
            changes: 0,
            flips: 0,
            last_up: vec![None; variants],
        }
    }

    /// A request came.
    pub(super) fn came(&mut self) {
        self.requests += 1;
        self.since.requests += 1;
    }

    /// Requests were refused or cut off.
    pub(super) fn lost(&mut self, requests: usize) {
        self.errors += requests as u64;
        self.since.errors += requests as u64;
    }

    /// A request will never have a first token: it counts with the time it waited.
    pub(super) fn gave_up(&mut self, request: Request, now_s: f64) {
        self.first_tokens.add((now_s - request.arrived_s).max(0.0), 1.0);
    }

    /// An HPA wrote a number.
    pub(super) fn wrote(&mut self, write: Write) {
        let up = write.to > write.from;
        self.changes = self.changes.saturating_add(1);
        if let Some(last) = self.last_up.get_mut(write.variant) {
            self.flips = self.flips.saturating_add(u32::from(*last == Some(!up)));
            *last = Some(up);
        }
        if self.writes.len() < Run::MOST_WRITES {
            self.writes.push(write);
        }
    }

    /// Ends a stretch of the series: `point` says how things are, this what has happened.
    pub(super) fn point(&mut self, point: Point) {
        let since = &mut self.since;
        let lasted_s = point.at_s - since.at_s;
        self.series.push(Point {
            rps: if lasted_s > 0.0 { since.requests as f64 / lasted_s } else { 0.0 },
            ttft_p50_s: since.first_tokens.at(0.5),
            ttft_p95_s: since.first_tokens.at(0.95),
            itl_s: (since.gaps > 0.0).then(|| since.gaps_s / since.gaps),
            errors: since.errors,
            ..point
        });
        since.at_s = self.series.last().map_or(0.0, |point| point.at_s);
        since.first_tokens.clear();
        (since.requests, since.errors, since.gaps_s, since.gaps) = (0, 0, 0.0, 0.0);
    }

    /// Puts what was counted into `run`.
    pub(super) fn into_run(self, run: Run) -> Run {
        let quantile = |of: &Quantiles, share| of.at(share).unwrap_or(0.0);
        Run {
            ttft_p50_s: quantile(&self.first_tokens, 0.5),
            ttft_p95_s: quantile(&self.first_tokens, 0.95),
            ttft_p99_s: quantile(&self.first_tokens, 0.99),
            itl_p99_s: quantile(&self.gaps, 0.99),
            errors: self.errors,
            changes: self.changes,
            flips: self.flips,
            slo_attainment: if self.requests > 0 { self.good as f64 / self.requests as f64 } else { 1.0 },
            requests: self.requests,
            finished: self.finished,
            unfinished: self.requests - self.finished - self.errors,
            writes: self.writes,
            series: self.series,
            ..run
        }
    }
}

impl Witness for Tally {
    fn started(&mut self, _: f64) {}

    fn first_token(&mut self, _: f64, after_s: f64, weight: f64) {
        self.first_tokens.add(after_s, weight);
        self.since.first_tokens.add(after_s, weight);
    }

    fn gaps(&mut self, gaps: Gaps) {
        self.gaps.add_gaps(gaps);
        self.since.gaps_s += gaps.sum_s();
        self.since.gaps += gaps.count();
    }

    fn finished(&mut self, served: Served) {
        let Served { request, first_token_s, finished_s } = served;
        let gaps = f64::from(request.output.saturating_sub(1).max(1));
        let well = first_token_s - request.arrived_s <= self.ttft_s
            && (finished_s - first_token_s) / gaps <= self.itl_s;
        self.finished += 1;
        self.good += u64::from(well);
    }
}
