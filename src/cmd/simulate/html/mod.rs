//! An HTML page with the cost and latency of each policy: a table and four plots per scenario. It loads nothing and executes
//! nothing.

mod chart;

use std::fmt::Write as _;
use std::sync::Arc;

use wva_sim::Run;

use self::chart::{Axis, Chart, LINE_STYLES, escaped};
use super::format::{COLUMNS, cell, time};
use super::what_if::WhatIf;
use crate::simulate::{Plan, SummaryLine, summarize};

const STYLE: &str = include_str!("style.css");

/// The page.
pub(super) fn page(plans: &[Arc<Plan>], runs: &[Run], what_if: Option<&WhatIf>) -> String {
    let mut page = String::with_capacity(64 * 1024);
    page.push_str("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    page.push_str("<meta name=\"viewport\" content=\"width=device-width\">");
    let _ = write!(page, "<title>wva simulate</title><style>{STYLE}</style></head><body><main>");
    page.push_str("<h1>Cost and latency of each policy</h1>");
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
    let objectives = format!(
        "Objectives: first token within {}, {} between tokens on average, no stream cut.",
        time(slo.ttft.as_secs_f64()),
        time(slo.itl.as_secs_f64())
    );
    table(page, &lines, &objectives);
    plots(page, plan, runs, slo.ttft.as_secs_f64());
    page.push_str("</section>");
}

/// Cost and attainment of a policy, and its cost relative to the first policy.
fn sentence(line: &SummaryLine<'_>, first: Option<&SummaryLine<'_>>) -> String {
    let cost = |line: &SummaryLine<'_>| line.highest(|run| run.cost_avg).mean;
    let own = cost(line);
    let within = 100.0 * line.slo_attainment().mean;
    let name = escaped(line.policy);
    let mut text =
        format!("<b>{name}</b> costs {own:.2} an hour and serves {within:.1} % within the objectives");
    let base = first.filter(|first| first.policy != line.policy).map(|first| (first, cost(first)));
    if let Some((first, base)) = base.filter(|(_, base)| *base > 0.0) {
        let more = 100.0 * (own / base - 1.0);
        let word = if more < 0.0 { "cheaper" } else { "more expensive" };
        let _ = write!(text, ": {:.0} % {word} than {}", more.abs(), escaped(first.policy));
    }
    text.push('.');
    text
}

fn table(page: &mut String, lines: &[SummaryLine<'_>], objectives: &str) {
    let seeds = lines.first().map_or(0, |line| line.runs.len());
    let seeds =
        if seeds > 1 { format!(" Means of {seeds} seeds, the worst in brackets.") } else { String::new() };
    let _ = write!(
        page,
        "<div class=\"wide\"><table><caption>{objectives}{seeds}</caption><thead><tr><th scope=\"col\">Policy</th>"
    );
    for column in COLUMNS {
        let _ = write!(page, "<th scope=\"col\">{}</th>", column.long);
    }
    page.push_str("</tr></thead><tbody>");
    for line in lines {
        let _ = write!(page, "<tr><th scope=\"row\">{}</th>", escaped(line.policy));
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
    let Some(first) = shown.first() else { return };
    let hours = plan.hours();
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
    let chart = |title, value| Chart { title, axis: Axis::Linear, goal: None, hours, value, pick: f64::max };
    chart("Requests a second", |point| Some(point.rps)).draw(page, &shown[..1]);
    // The number at the end, because the largest would show replicas that are gone.
    let replicas = chart("Replicas ready", |point| Some(f64::from(point.ready)));
    Chart { pick: |_, last| last, ..replicas }.draw(page, &shown);
    chart("Requests waiting", |point| Some(point.waiting)).draw(page, &shown);
    let latency = chart("Time to first token, 95 %", |point| point.ttft_p95_s);
    Chart { axis: Axis::LogTime, goal: Some(ttft_s), ..latency }.draw(page, &shown);
}
