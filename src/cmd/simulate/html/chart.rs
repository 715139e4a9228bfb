//! A plot as SVG: axes with round numbers, a path per curve.

use std::fmt::Write as _;

use wva_sim::{Point, Run};

use super::super::format::time;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 150.0;
/// Line styles in the style sheet; further policies repeat them.
pub(super) const LINE_STYLES: usize = 6;
/// Margin for the numbers of the axes.
const LEFT: f64 = 52.0;
const BOTTOM: f64 = 20.0;
/// The most points of a curve: one per two pixels.
const MAX_POINTS: usize = 360;
/// The least time shown, seconds.
const MIN_S: f64 = 0.01;

/// How values become heights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Axis {
    /// From 0.
    Linear,
    /// Seconds, in powers of ten.
    LogTime,
}

/// A plot with a curve for each run.
pub(super) struct Chart {
    pub(super) title: &'static str,
    pub(super) axis: Axis,
    /// An upper limit to draw.
    pub(super) goal: Option<f64>,
    /// Its length.
    pub(super) hours: f64,
    /// What it shows of a point; `None` is a gap.
    pub(super) value: fn(&Point) -> Option<f64>,
    /// Which of two values stands for both where there are more points than fit.
    pub(super) pick: fn(f64, f64) -> f64,
}

/// Hours after the start, and the value; `None` is a gap.
type Curve = Vec<(f64, Option<f64>)>;

impl Chart {
    /// Draws the curves of `runs`.
    pub(super) fn draw(&self, page: &mut String, runs: &[&Run]) {
        let curves: Vec<Curve> = runs.iter().map(|run| self.curve(&run.series)).collect();
        let values = curves.iter().flatten().filter_map(|(_, value)| *value);
        let scale = Scale::new(self.axis, values.chain(self.goal).fold(0.0, f64::max));
        let (title, bottom) = (self.title, HEIGHT + BOTTOM);
        let _ = write!(
            page,
            "<figure><h3>{title}</h3><svg viewBox=\"0 0 {WIDTH} {bottom}\" role=\"img\" aria-label=\"{title} over time\">"
        );
        for (value, words) in scale.ticks() {
            let y = scale.y(value);
            let (text_x, text_y) = (LEFT - 6.0, y + 4.0);
            let _ = write!(page, "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{WIDTH}\"/>");
            let _ = write!(page, "<text x=\"{text_x}\" y=\"{text_y:.1}\" text-anchor=\"end\">{words}</text>");
        }
        for (hour, words) in self.hours_ticks() {
            let (x, y) = (self.x(hour), HEIGHT + 14.0);
            let _ = write!(page, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{words}</text>");
        }
        if let Some(goal) = self.goal {
            let _ = write!(page, "<path class=\"goal\" d=\"M{LEFT} {:.1}H{WIDTH}\"/>", scale.y(goal));
        }
        for (index, (run, curve)) in runs.iter().zip(&curves).enumerate() {
            let style = index % LINE_STYLES;
            let name = escaped(&run.policy);
            let path = self.path(&scale, curve);
            let _ = write!(page, "<path class=\"curve c{style}\" d=\"{path}\"><title>{name}</title></path>");
        }
        page.push_str("</svg></figure>");
    }

    /// A curve with few points, each of which stands for several of `series`.
    fn curve(&self, series: &[Point]) -> Curve {
        let share = series.len().div_ceil(MAX_POINTS).max(1);
        let point = |chunk: &[Point]| {
            let hours = chunk.last().map_or(0.0, |point| point.at_s) / 3600.0;
            (hours, chunk.iter().filter_map(self.value).reduce(self.pick))
        };
        series.chunks(share).map(point).collect()
    }

    fn x(&self, hours: f64) -> f64 {
        LEFT + (WIDTH - LEFT) * (hours / self.hours.max(1e-9)).clamp(0.0, 1.0)
    }

    /// The curve up to the scenario's end: after it no requests arrive.
    fn path(&self, scale: &Scale, curve: &Curve) -> String {
        let (mut path, mut open) = (String::new(), false);
        for (hours, value) in curve.iter().filter(|(hours, _)| *hours <= self.hours * 1.0001) {
            match value {
                None => open = false,
                Some(value) => {
                    let step = if open { 'L' } else { 'M' };
                    let _ = write!(path, "{step}{:.1} {:.1}", self.x(*hours), scale.y(*value));
                    open = true;
                }
            }
        }
        path
    }

    fn hours_ticks(&self) -> Vec<(f64, String)> {
        let step = round_step(
            self.hours * 60.0 / 8.0,
            &[1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 240.0, 360.0, 720.0, 1440.0],
        );
        let count = (self.hours * 60.0 / step).floor() as u32;
        let words = |minutes: f64| match step {
            step if step >= 60.0 => format!("{:.0} h", minutes / 60.0),
            _ => format!("{minutes:.0} min"),
        };
        (0..=count.min(40)).map(|tick| f64::from(tick) * step).map(|at| (at / 60.0, words(at))).collect()
    }
}

/// Text with markup escaped.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The first of `steps` that is at least `min`; beyond them, a multiple of the last.
fn round_step(min: f64, steps: &[f64]) -> f64 {
    let last = steps.last().copied().unwrap_or(1.0);
    steps.iter().copied().find(|step| *step >= min).unwrap_or_else(|| (min / last).ceil() * last)
}

/// The scale of the vertical axis.
struct Scale {
    axis: Axis,
    max: f64,
    step: f64,
}

impl Scale {
    fn new(axis: Axis, max: f64) -> Self {
        match axis {
            Axis::Linear => {
                let max = max.max(1.0);
                let power = 10_f64.powf((max / 4.0).log10().floor());
                let step = power * round_step(max / 4.0 / power, &[1.0, 2.0, 2.5, 5.0, 10.0]);
                Self { axis, max: (max / step).ceil() * step, step }
            }
            Axis::LogTime => {
                let decades = (max.max(MIN_S * 10.0) / MIN_S).log10().ceil();
                Self { axis, max: MIN_S * 10_f64.powf(decades), step: 10.0 }
            }
        }
    }

    fn y(&self, value: f64) -> f64 {
        let share = match self.axis {
            Axis::Linear => value / self.max,
            Axis::LogTime => (value.max(MIN_S) / MIN_S).log10() / (self.max / MIN_S).log10(),
        };
        // A margin of 6 above, so that a line at the top is not cut.
        6.0 + (HEIGHT - 6.0) * (1.0 - share.clamp(0.0, 1.0))
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        let mut ticks = Vec::new();
        match self.axis {
            Axis::Linear => {
                let count = (self.max / self.step).round() as u32;
                let digits = if self.step.fract().abs() < 1e-9 { 0 } else { 1 };
                for tick in 0..=count.min(20) {
                    let value = f64::from(tick) * self.step;
                    ticks.push((value, format!("{value:.digits$}")));
                }
            }
            Axis::LogTime => {
                let mut value = MIN_S;
                while value <= self.max * 1.01 && ticks.len() < 12 {
                    ticks.push((value, round_time(value)));
                    value *= self.step;
                }
            }
        }
        ticks
    }
}

/// A power of ten of a second, without decimals.
fn round_time(seconds: f64) -> String {
    if seconds < 0.9 {
        format!("{:.0} ms", seconds * 1000.0)
    } else if seconds < 9.0 {
        "1 s".into()
    } else {
        time(seconds).replace(".0", "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(value: fn(&Point) -> Option<f64>) -> Chart {
        Chart { title: "x", axis: Axis::Linear, goal: None, hours: 0.5, value, pick: f64::max }
    }

    #[test]
    fn axes_have_round_numbers() {
        let words = |scale: &Scale| scale.ticks().into_iter().map(|(_, words)| words).collect::<Vec<_>>();
        assert_eq!(words(&Scale::new(Axis::Linear, 7.3)), ["0", "2", "4", "6", "8"]);
        assert_eq!(words(&Scale::new(Axis::Linear, 0.0)), ["0.0", "0.2", "0.5", "0.8", "1.0"]);
        assert_eq!(words(&Scale::new(Axis::LogTime, 42.0)), ["10 ms", "100 ms", "1 s", "10 s", "100 s"]);
        let chart = chart(|_| None);
        let at: Vec<_> = chart.hours_ticks().into_iter().map(|(_, words)| words).collect();
        assert_eq!(at, ["0 min", "5 min", "10 min", "15 min", "20 min", "25 min", "30 min"]);
    }

    #[test]
    fn markup_is_escaped() {
        assert_eq!(escaped("<a & \"b\">"), "&lt;a &amp; &quot;b&quot;&gt;");
    }

    #[test]
    fn a_curve_has_a_gap_where_nothing_is_known() {
        let values = [Some(1.0), None, Some(2.0), Some(2.0)];
        let point = |(at, ttft_p95_s)| Point { at_s: 360.0 * f64::from(at), ttft_p95_s, ..Point::default() };
        let series = (0..).zip(values).map(point).collect();
        let run = Run { policy: "a<b".into(), series, ..Run::default() };
        let mut page = String::new();
        chart(|point| point.ttft_p95_s).draw(&mut page, &[&run]);
        let path = page.split("c0\" d=\"").nth(1).unwrap().split('"').next().unwrap();
        assert_eq!(path.matches('M').count(), 2, "{path}");
        assert!(page.contains("<title>a&lt;b</title>"), "{page}");
    }

    #[test]
    fn a_spike_survives_the_thinning() {
        let mut series: Vec<Point> =
            (0..2000).map(|at| Point { at_s: f64::from(at), ..Point::default() }).collect();
        series[777].waiting = 50.0;
        let points = chart(|point| Some(point.waiting)).curve(&series);
        assert!(points.len() <= MAX_POINTS, "{}", points.len());
        assert_eq!(points.iter().filter_map(|(_, value)| *value).reduce(f64::max), Some(50.0));
        assert!(chart(|point| point.ttft_p95_s).curve(&series).iter().all(|(_, value)| value.is_none()));
    }
}
