//! An HTML page for people who decide about money: cost and latency of each policy, a table and four plots per scenario. It loads
//! nothing and executes nothing.

mod chart;
mod curves;

use std::fmt::Write as _;
use std::sync::Arc;

use wva_sim::Run;

use self::chart::{Axis, Chart};
use self::curves::{Curve, curves};
use super::format::{COLUMNS, cell, time};
use super::what_if::WhatIf;
use crate::simulate::{Plan, SummaryLine, summarize};

const STYLE: &str = include_str!("style.css");
/// Line styles in the style sheet; further policies repeat them.
const LINE_STYLES: usize = 6;

/// The page.
pub(super) fn page(plans: &[Arc<Plan>], runs: &[Run], what_if: Option<&WhatIf>) -> String {
    let mut page = String::with_capacity(64 * 1024);
    page.push_str("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    page.push_str("<meta name=\"viewport\" content=\"width=device-width\">");
    let _ = write!(page, "<title>wva simulate</title><style>{STYLE}</style></head><body><main>");
    page.push_str("<h1>What each policy costs, and what its users feel</h1>");
    page.push_str(
        "<p class=\"dim\">Simulated: model servers with continuous batching, pods that take time to start, and the \
         arithmetic of a HorizontalPodAutoscaler. Every policy got the same requests.</p>",
    );
    for plan in plans {
        let own: Vec<&Run> = runs.iter().filter(|run| run.scenario == plan.name).collect();
        section(&mut page, plan, &own, what_if);
    }
    let version = env!("CARGO_PKG_VERSION");
    let _ = writeln!(
        page,
        "<p class=\"dim\">Made by wva {version}. The same command gives the same page.</p></main></body></html>"
    );
    page
}

fn section(page: &mut String, plan: &Plan, runs: &[&Run], what_if: Option<&WhatIf>) {
    let lines = summarize(runs.iter().copied());
    let _ = write!(page, "<section><h2>{}</h2>", escaped(&plan.name));
    if !plan.about.is_empty() {
        let _ = write!(page, "<p>{}</p>", escaped(&plan.about));
    }
    let slo = plan.slo();
    for line in &lines {
        let _ = write!(page, "<p>{}</p>", sentence(line, lines.first()));
    }
    for sentence in what_if.map(|what_if| what_if.sentences(plan.hours(), runs)).unwrap_or_default() {
        let _ = write!(page, "<p>{}</p>", escaped(&sentence));
    }
    let goals = format!(
        "Objectives: first token within {}, {} between tokens on average, no stream cut.",
        time(slo.ttft.as_secs_f64()),
        time(slo.itl.as_secs_f64())
    );
    table(page, &lines, &goals);
    plots(page, plan, runs, slo.ttft.as_secs_f64());
    page.push_str("</section>");
}

/// The gist of a policy, compared with the first one.
fn sentence(line: &SummaryLine, first: Option<&SummaryLine>) -> String {
    let cost = line.figures.cost_avg.mean;
    let within = 100.0 * line.figures.slo_attainment.mean;
    let name = escaped(&line.policy);
    let mut text =
        format!("<b>{name}</b> costs {cost:.2} an hour and serves {within:.1} % within the objectives");
    let base =
        first.filter(|first| first.policy != line.policy).map(|first| (first, first.figures.cost_avg.mean));
    if let Some((first, base)) = base.filter(|(_, base)| *base > 0.0) {
        let more = 100.0 * (cost / base - 1.0);
        let word = if more < 0.0 { "cheaper" } else { "dearer" };
        let _ = write!(text, ": {:.0} % {word} than {}", more.abs(), escaped(&first.policy));
    }
    text.push('.');
    text
}

fn table(page: &mut String, lines: &[SummaryLine], goals: &str) {
    let seeds = lines.first().map_or(0, |line| line.seeds);
    let seeds =
        if seeds > 1 { format!(" Means of {seeds} seeds, the worst in brackets.") } else { String::new() };
    let _ = write!(
        page,
        "<div class=\"wide\"><table><caption>{goals}{seeds}</caption><thead><tr><th scope=\"col\">Policy</th>"
    );
    for column in COLUMNS {
        let _ = write!(page, "<th scope=\"col\">{}</th>", column.long);
    }
    page.push_str("</tr></thead><tbody>");
    for line in lines {
        let _ = write!(page, "<tr><th scope=\"row\">{}</th>", escaped(&line.policy));
        for column in COLUMNS {
            let _ = write!(page, "<td>{}</td>", cell(column, line));
        }
        page.push_str("</tr>");
    }
    page.push_str("</tbody></table></div>");
}

/// The series of the first seed.
fn plots(page: &mut String, plan: &Plan, runs: &[&Run], ttft_s: f64) {
    let shown: Vec<&Run> = runs.iter().copied().filter(|run| !run.series.is_empty()).collect();
    let (Some(first), hours) = (shown.first(), plan.hours()) else { return };
    page.push_str("<p>");
    for (index, run) in shown.iter().enumerate() {
        let style = index % LINE_STYLES;
        let name = escaped(&run.policy);
        let _ = write!(
            page,
            "<span class=\"key\"><svg viewBox=\"0 0 28 8\" aria-hidden=\"true\"><path class=\"curve c{style}\" d=\"M0 4H28\"/></svg>{name}</span>"
        );
    }
    let _ = write!(page, "<span class=\"dim\">seed {}</span></p>", first.seed);
    let shown_curves = |curve: Curve| curves(&shown, curve);
    let load = Chart { title: "Requests a second", axis: Axis::Linear, goal: None, hours };
    load.draw(page, &curves(&[*first], Curve::Load));
    let replicas = Chart { title: "Replicas ready", axis: Axis::Linear, goal: None, hours };
    replicas.draw(page, &shown_curves(Curve::Ready));
    let queue = Chart { title: "Requests waiting", axis: Axis::Linear, goal: None, hours };
    queue.draw(page, &shown_curves(Curve::Waiting));
    let latency =
        Chart { title: "Time to first token, 95 %", axis: Axis::LogTime, goal: Some(ttft_s), hours };
    latency.draw(page, &shown_curves(Curve::FirstToken));
}

/// Text with markup escaped.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_escaped() {
        assert_eq!(escaped("<a & \"b\">"), "&lt;a &amp; &quot;b&quot;&gt;");
    }
}
