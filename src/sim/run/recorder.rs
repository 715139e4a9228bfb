//! Records the figures of a run.

use super::results::{Point, ReplicaChange, Run};
use crate::gaps::TokenGaps;
use crate::load::Request;
use crate::quantiles::Quantiles;
use crate::recorder::{Recorder, ServedRequest};
use crate::scenario::Slo;

/// Figures of the whole run, and since the last point of its series.
#[derive(Debug)]
pub(super) struct RunRecorder {
    ttft_s: f64,
    itl_s: f64,
    first_tokens: Quantiles,
    gaps: Quantiles,
    requests: u64,
    finished: u64,
    errors: u64,
    /// Requests within the objectives.
    within_slo: u64,
    interval: Interval,
    series: Vec<Point>,
    replica_changes: Vec<ReplicaChange>,
    changes: u32,
    flips: u32,
    /// By variant, whether its last change was up.
    last_up: Vec<Option<bool>>,
}

/// Figures since the last point.
#[derive(Debug, Default)]
struct Interval {
    start_s: f64,
    requests: u64,
    errors: u64,
    first_tokens: Quantiles,
    gaps_s: f64,
    gaps: f64,
}

impl RunRecorder {
    pub(super) fn new(slo: Slo, variants: usize) -> Self {
        Self {
            ttft_s: slo.ttft.as_secs_f64(),
            itl_s: slo.itl.as_secs_f64(),
            first_tokens: Quantiles::default(),
            gaps: Quantiles::default(),
            requests: 0,
            finished: 0,
            errors: 0,
            within_slo: 0,
            interval: Interval::default(),
            series: Vec::new(),
            replica_changes: Vec::new(),
            changes: 0,
            flips: 0,
            last_up: vec![None; variants],
        }
    }

    /// Records that an HPA changed a number.
    pub(super) fn replicas_changed(&mut self, change: ReplicaChange) {
        let up = change.to > change.from;
        self.changes = self.changes.saturating_add(1);
        if let Some(last) = self.last_up.get_mut(change.variant) {
            self.flips = self.flips.saturating_add(u32::from(*last == Some(!up)));
            *last = Some(up);
        }
        if self.replica_changes.len() < Run::MAX_CHANGES {
            self.replica_changes.push(change);
        }
    }

    /// Adds a point to the series. `point` has the state at its end; the figures since the last point are added here.
    pub(super) fn add_point(&mut self, point: Point) {
        let interval = &mut self.interval;
        let duration_s = point.at_s - interval.start_s;
        self.series.push(Point {
            rps: if duration_s > 0.0 { interval.requests as f64 / duration_s } else { 0.0 },
            ttft_p50_s: interval.first_tokens.quantile(0.5),
            ttft_p95_s: interval.first_tokens.quantile(0.95),
            itl_s: (interval.gaps > 0.0).then(|| interval.gaps_s / interval.gaps),
            errors: interval.errors,
            ..point
        });
        interval.start_s = self.series.last().map_or(0.0, |point| point.at_s);
        // 37 kB of bins: cleared, not allocated anew.
        interval.first_tokens.clear();
        interval.requests = 0;
        interval.errors = 0;
        interval.gaps_s = 0.0;
        interval.gaps = 0.0;
    }

    /// Adds the recorded figures to `run`.
    pub(super) fn into_run(self, run: Run) -> Run {
        let quantile = |quantiles: &Quantiles, share| quantiles.quantile(share).unwrap_or(0.0);
        Run {
            ttft_p50_s: quantile(&self.first_tokens, 0.5),
            ttft_p95_s: quantile(&self.first_tokens, 0.95),
            ttft_p99_s: quantile(&self.first_tokens, 0.99),
            itl_p99_s: quantile(&self.gaps, 0.99),
            errors: self.errors,
            changes: self.changes,
            flips: self.flips,
            slo_attainment: if self.requests > 0 {
                self.within_slo as f64 / self.requests as f64
            } else {
                1.0
            },
            requests: self.requests,
            finished: self.finished,
            unfinished: self.requests - self.finished - self.errors,
            writes: self.replica_changes,
            series: self.series,
            ..run
        }
    }
}

impl Recorder for RunRecorder {
    fn arrived(&mut self) {
        self.requests += 1;
        self.interval.requests += 1;
    }

    fn first_token(&mut self, _at_s: f64, ttft_s: f64) {
        self.first_tokens.add(ttft_s, 1.0);
        self.interval.first_tokens.add(ttft_s, 1.0);
    }

    fn token_gaps(&mut self, gaps: TokenGaps) {
        self.gaps.add_gaps(gaps);
        self.interval.gaps_s += gaps.sum_s();
        self.interval.gaps += gaps.count();
    }

    fn failed(&mut self, requests: usize) {
        self.errors += requests as u64;
        self.interval.errors += requests as u64;
    }

    /// It counts with the time it waited: leaving it out would make an overloaded fleet look fast.
    fn unanswered(&mut self, request: Request, at_s: f64) {
        self.first_tokens.add((at_s - request.arrived_s).max(0.0), 1.0);
    }

    fn finished(&mut self, served: ServedRequest) {
        let ServedRequest { request, first_token_s, finished_s } = served;
        let gaps = f64::from(request.output.saturating_sub(1).max(1));
        let is_within_slo = first_token_s - request.arrived_s <= self.ttft_s
            && (finished_s - first_token_s) / gaps <= self.itl_s;
        self.finished += 1;
        self.within_slo += u64::from(is_within_slo);
    }
}
