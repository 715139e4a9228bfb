//! Records the figures of a run.

use super::results::{Point, ReplicaChange, Run};
use crate::load::Request;
use crate::quantiles::Quantiles;
use crate::recorder::{Recorder, ServedRequest, TokenGaps};
use crate::scenario::Scenario;

/// Figures of the whole run, and since the last point of its series.
#[derive(Debug, Clone)]
pub(super) struct RunRecorder {
    ttft_s: f64,
    itl_s: f64,
    end_to_end_s: f64,
    /// The figures that are counted one by one.
    pub(super) run: Run,
    first_tokens: Quantiles,
    gaps: Quantiles,
    /// Requests within the objectives.
    within_slo: u64,
    /// Requests known by now to be outside them.
    pub(super) outside_slo: u64,
    /// Figures since the last point; `None` without a series.
    interval: Option<Interval>,
    /// By variant, whether its last change was up.
    last_up: Vec<Option<bool>>,
}

/// Figures since the last point.
#[derive(Debug, Clone, Default)]
struct Interval {
    start_s: f64,
    requests: u64,
    errors: u64,
    first_tokens: Quantiles,
    gaps_s: f64,
    gaps: f64,
}

impl RunRecorder {
    /// A recorder for `run`, which names the scenario, the controller and the seed.
    pub(super) fn new(run: Run, scenario: &Scenario, has_series: bool) -> Self {
        Self {
            ttft_s: scenario.slo.ttft.as_secs_f64(),
            itl_s: scenario.slo.itl.as_secs_f64(),
            end_to_end_s: scenario.slo.end_to_end.map_or(f64::INFINITY, |limit| limit.as_secs_f64()),
            run,
            first_tokens: Quantiles::default(),
            gaps: Quantiles::default(),
            within_slo: 0,
            outside_slo: 0,
            interval: has_series.then(Interval::default),
            last_up: vec![None; scenario.variants.len()],
        }
    }

    /// The run over time is recorded.
    pub(super) const fn has_series(&self) -> bool {
        self.interval.is_some()
    }

    /// Records that an HPA changed a number.
    pub(super) fn replicas_changed(&mut self, change: ReplicaChange) {
        let up = change.to > change.from;
        self.run.changes = self.run.changes.saturating_add(1);
        let last = self.last_up[change.variant].replace(up);
        self.run.flips = self.run.flips.saturating_add(u32::from(last == Some(!up)));
        if self.run.writes.len() < Run::MAX_CHANGES {
            self.run.writes.push(change);
        }
    }

    /// Adds a point to the series. `point` has the state at its end; the figures since the last point are added here.
    pub(super) fn add_point(&mut self, point: Point) {
        let Some(interval) = &mut self.interval else { return };
        let at_s = point.at_s;
        let duration_s = at_s - interval.start_s;
        self.run.series.push(Point {
            rps: if duration_s > 0.0 { interval.requests as f64 / duration_s } else { 0.0 },
            ttft_p50_s: interval.first_tokens.quantile(0.5),
            ttft_p95_s: interval.first_tokens.quantile(0.95),
            itl_s: (interval.gaps > 0.0).then(|| interval.gaps_s / interval.gaps),
            errors: interval.errors,
            ..point
        });
        interval.start_s = at_s;
        // 37 kB of bins: cleared, not allocated again.
        interval.first_tokens.clear();
        interval.requests = 0;
        interval.errors = 0;
        interval.gaps_s = 0.0;
        interval.gaps = 0.0;
    }

    /// The run, with the figures that follow from all requests.
    pub(super) fn into_run(self) -> Run {
        let run = self.run;
        let quantile = |quantiles: &Quantiles, share| quantiles.quantile(share).unwrap_or(0.0);
        Run {
            ttft_p50_s: quantile(&self.first_tokens, 0.5),
            ttft_p95_s: quantile(&self.first_tokens, 0.95),
            ttft_p99_s: quantile(&self.first_tokens, 0.99),
            itl_p99_s: quantile(&self.gaps, 0.99),
            slo_attainment: if run.requests > 0 { self.within_slo as f64 / run.requests as f64 } else { 1.0 },
            unfinished: run.requests - run.finished - run.errors,
            ..run
        }
    }
}

impl Recorder for RunRecorder {
    fn arrived(&mut self) {
        self.run.requests += 1;
        if let Some(interval) = &mut self.interval {
            interval.requests += 1;
        }
    }

    fn first_token(&mut self, _at_s: f64, ttft_s: f64) {
        self.first_tokens.add(ttft_s, 1.0);
        if let Some(interval) = &mut self.interval {
            interval.first_tokens.add(ttft_s, 1.0);
        }
    }

    fn token_gaps(&mut self, gaps: TokenGaps) {
        self.gaps.add_gaps(gaps);
        if let Some(interval) = &mut self.interval {
            interval.gaps_s += gaps.sum_s();
            interval.gaps += gaps.count();
        }
    }

    fn failed(&mut self, requests: usize) {
        self.run.errors += requests as u64;
        self.outside_slo += requests as u64;
        if let Some(interval) = &mut self.interval {
            interval.errors += requests as u64;
        }
    }

    /// It counts with the time it waited: leaving it out would make an overloaded fleet look fast.
    fn unanswered(&mut self, request: Request, at_s: f64) {
        self.first_tokens.add((at_s - request.arrived_s).max(0.0), 1.0);
    }

    fn finished(&mut self, served: ServedRequest) {
        let ServedRequest { request, first_token_s, finished_s } = served;
        let gaps = f64::from(request.output.saturating_sub(1).max(1));
        let is_within_slo = first_token_s - request.arrived_s <= self.ttft_s
            && (finished_s - first_token_s) / gaps <= self.itl_s
            && finished_s - request.arrived_s <= self.end_to_end_s;
        self.run.finished += 1;
        // A single token has no time between tokens.
        self.run.good += u64::from(is_within_slo && request.output >= 2);
        self.within_slo += u64::from(is_within_slo);
        self.outside_slo += u64::from(!is_within_slo);
    }
}
