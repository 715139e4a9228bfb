//! The plots of the page, as small SVGs.

use std::fmt::Write as _;

use super::store::Point;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
/// Room for the axes: left, right, top, bottom.
const MARGIN: [f64; 4] = [50.0, 20.0, 28.0, 36.0];
const COLOURS: [&str; 6] = ["#0b6e4f", "#c1440e", "#33658a", "#7d5ba6", "#8a6d3b", "#555555"];

/// Axes from 0 to the largest values.
struct Axes {
    max: (f64, f64),
}

impl Axes {
    fn of(points: &[&Point]) -> Self {
        let max = |value: fn(&Point) -> f64| points.iter().map(|point| value(point)).fold(1e-9, f64::max);
        Self { max: (nice(max(|point| point.x)), nice(max(|point| point.y))) }
    }

    fn x(&self, x: f64) -> f64 {
        MARGIN[0] + (WIDTH - MARGIN[0] - MARGIN[1]) * x / self.max.0
    }

    fn y(&self, y: f64) -> f64 {
        HEIGHT - MARGIN[3] - (HEIGHT - MARGIN[2] - MARGIN[3]) * y.max(0.0) / self.max.1
    }

    /// Grid, numbers and titles.
    fn draw(&self, svg: &mut String, title: &str, x_title: &str) {
        let _ = writeln!(svg, "<text x=\"{}\" y=\"16\" font-weight=\"bold\">{title}</text>", MARGIN[0]);
        for step in 0..=4 {
            let tick = |max: f64| (max * f64::from(step) * 250.0).round() / 1000.0;
            let (x, y) = (tick(self.max.0), tick(self.max.1));
            let (right, left) = (WIDTH - MARGIN[1], MARGIN[0]);
            let _ = writeln!(svg, "<path d=\"M{left} {0:.1}H{right}\" stroke=\"#ddd\"/>", self.y(y));
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{y}</text>",
                left - 6.0,
                self.y(y) + 4.0
            );
            if !x_title.is_empty() {
                let below = HEIGHT - MARGIN[3] + 14.0;
                let _ = writeln!(
                    svg,
                    "<text x=\"{:.1}\" y=\"{below}\" text-anchor=\"middle\">{x}</text>",
                    self.x(x)
                );
            }
        }
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{x_title}</text>",
            WIDTH - MARGIN[1],
            HEIGHT - 6.0
        );
    }
}

/// The next of 1, 2, 4, 5, 8 and 10 times a power of ten.
fn nice(value: f64) -> f64 {
    let power = 10.0_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 4.0, 5.0, 8.0, 10.0];
    steps.into_iter().map(|step| step * power).find(|step| *step >= value).unwrap_or(value)
}

/// A dot with its name for each point: what costs less is left, what serves more is below.
pub(crate) fn dots(points: &[&Point], title: &str, x_title: &str) -> String {
    let axes = Axes::of(points);
    let mut body = String::new();
    axes.draw(&mut body, title, x_title);
    for point in points {
        let (x, y) = (axes.x(point.x), axes.y(point.y));
        // Names near the right edge are left of their dots.
        let (anchor, side) = if x > 0.9 * WIDTH { ("end", -1.0) } else { ("start", 1.0) };
        let colour = if point.series.starts_with("static") { COLOURS[5] } else { COLOURS[0] };
        let _ = writeln!(body, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>");
        let _ = writeln!(
            body,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
            x + 6.0 * side,
            y - 5.0,
            escaped(&point.series)
        );
    }
    document(&body)
}

/// A bar for each point, whose height is its x and whose interval is its y.
pub(crate) fn bars(points: &[&Point], title: &str, limit: f64) -> String {
    let tops: Vec<Point> =
        points.iter().map(|point| Point { y: point.x + point.y, x: 1.0, ..(*point).clone() }).collect();
    let axes = Axes {
        max: (points.len().max(1) as f64, Axes::of(&tops.iter().collect::<Vec<&Point>>()).max.1.max(limit)),
    };
    let mut body = String::new();
    axes.draw(&mut body, title, "");
    let width = (axes.x(1.0) - axes.x(0.0)) * 0.7;
    for (index, point) in points.iter().enumerate() {
        let (x, y) = (axes.x(index as f64 + 0.15), axes.y(point.x));
        let height = axes.y(0.0) - y;
        let colour = if point.x <= limit { COLOURS[0] } else { COLOURS[1] };
        let _ = writeln!(
            body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>"
        );
        let (low, high, middle) = (axes.y(point.x - point.y), axes.y(point.x + point.y), x + width / 2.0);
        let _ = writeln!(body, "<path d=\"M{middle:.1} {low:.1}V{high:.1}\" stroke=\"#000\"/>");
        let below = HEIGHT - MARGIN[3] + 14.0;
        let _ = writeln!(
            body,
            "<text x=\"{middle:.1}\" y=\"{below}\" text-anchor=\"middle\">{}</text>",
            escaped(&point.series)
        );
    }
    let (right, y) = (WIDTH - MARGIN[1], axes.y(limit));
    let _ = writeln!(
        body,
        "<path d=\"M{} {y:.1}H{right}\" stroke=\"#c1440e\" stroke-dasharray=\"4 3\"/>",
        MARGIN[0]
    );
    document(&body)
}

/// A line for each series.
pub(crate) fn lines(points: &[&Point], title: &str, x_title: &str) -> String {
    let axes = Axes::of(points);
    let mut body = String::new();
    axes.draw(&mut body, title, x_title);
    let mut names: Vec<&str> = points.iter().map(|point| point.series.as_str()).collect();
    names.dedup();
    for (index, name) in names.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let own = points.iter().filter(|point| point.series == *name);
        let path: Vec<String> =
            own.map(|point| format!("{:.1} {:.1}", axes.x(point.x), axes.y(point.y))).collect();
        let _ = writeln!(
            body,
            "<path d=\"M{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join("L")
        );
        let x = 70.0 + 110.0 * index as f64;
        let _ = writeln!(
            body,
            "<text x=\"{x}\" y=\"{}\" fill=\"{colour}\">{}</text>",
            MARGIN[2] + 14.0,
            escaped(name)
        );
    }
    document(&body)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

fn document(body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{body}</svg>\n"
    )
}
