//! The series of runs as curves with few points. A point shows the worst of the times it stands for.

use wva_sim::{Point, Run};

/// The most points of a curve: one per two pixels.
const MAX_POINTS: usize = 360;

/// What is plotted.
#[derive(Debug, Clone, Copy)]
pub(super) enum Curve {
    /// Requests a second.
    Load,
    /// Ready pods.
    Ready,
    /// Requests waiting.
    Waiting,
    /// 95th percentile of the time to first token, seconds.
    FirstToken,
}

/// A line of a plot.
pub(super) struct Line {
    /// The policy.
    pub(super) name: String,
    /// Hours after the start, and the value; `None` is a gap.
    pub(super) points: Vec<(f64, Option<f64>)>,
}

/// A curve of each run.
pub(super) fn curves(runs: &[&Run], curve: Curve) -> Vec<Line> {
    runs.iter()
        .map(|run| Line { name: run.policy.to_string(), points: thinned(&run.series, curve) })
        .collect()
}

fn thinned(series: &[Point], curve: Curve) -> Vec<(f64, Option<f64>)> {
    let share = series.len().div_ceil(MAX_POINTS).max(1);
    let point = |chunk: &[Point]| {
        let hours = chunk.last().map_or(0.0, |point| point.at_s) / 3600.0;
        let mut values = chunk.iter().filter_map(|point| value(point, curve));
        let shown = match curve {
            // The number at the end, because the largest would show replicas that are gone.
            Curve::Ready => values.next_back(),
            _ => values.reduce(f64::max),
        };
        (hours, shown)
    };
    series.chunks(share).map(point).collect()
}

fn value(point: &Point, curve: Curve) -> Option<f64> {
    match curve {
        Curve::Load => Some(point.rps),
        Curve::Ready => Some(f64::from(point.ready)),
        Curve::Waiting => Some(point.waiting),
        Curve::FirstToken => point.ttft_p95_s,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spike_survives_the_thinning() {
        let mut series: Vec<Point> =
            (0..2000).map(|at| Point { at_s: f64::from(at), ..Point::default() }).collect();
        series[777].waiting = 50.0;
        let points = thinned(&series, Curve::Waiting);
        assert!(points.len() <= MAX_POINTS, "{}", points.len());
        assert_eq!(points.iter().filter_map(|(_, value)| *value).reduce(f64::max), Some(50.0));
        assert!(thinned(&series, Curve::FirstToken).iter().all(|(_, value)| value.is_none()));
    }
}
