//! Formats figures for people, on the terminal and on the page.

use std::fmt::Write as _;
use std::sync::Arc;

use wva_sim::Run;

use super::super::terminal::aligned;
use super::what_if::WhatIf;
use crate::simulate::{Figure, Plan, SummaryLine, summarize};

/// A column of a table.
pub(super) struct Column {
    /// Its title on a terminal.
    short: &'static str,
    /// Its title on a page.
    pub(super) long: &'static str,
    value: fn(&Run) -> f64,
    format: fn(f64) -> String,
    /// The worse of two values.
    worst: fn(f64, f64) -> f64,
}

const fn column(
    short: &'static str,
    long: &'static str,
    value: fn(&Run) -> f64,
    format: fn(f64) -> String,
) -> Column {
    Column { short, long, value, format, worst: f64::max }
}

/// The figures shown of each scenario and policy.
pub(super) const COLUMNS: &[Column] = &[
    column("COST", "Cost an hour", |run| run.cost_avg, two_decimals),
    column("REPLICAS", "Replicas", |run| run.replicas_avg, two_decimals),
    column("TTFT P50", "First token, median", |run| run.ttft_p50_s, time),
    column("P95", "95 %", |run| run.ttft_p95_s, time),
    column("P99", "99 %", |run| run.ttft_p99_s, time),
    column("ITL P99", "Between tokens, 99 %", |run| run.itl_p99_s, time),
    column("ERRORS", "Errors", |run| run.errors as f64, count),
    column("CHANGES", "Changes", |run| f64::from(run.changes), count),
    column("FLIPS", "Reversals", |run| f64::from(run.flips), count),
    Column { worst: f64::min, ..column("IN SLO", "Within objectives", |run| run.slo_attainment, percent) },
    column("GPU-H", "GPU-hours", |run| run.gpu_hours, two_decimals),
];

/// The mean, with several seeds also the worst.
pub(super) fn cell(column: &Column, line: &SummaryLine<'_>) -> String {
    let Figure { mean, worst } = line.figure(column.value, column.worst);
    let mean = (column.format)(mean);
    if line.runs.len() > 1 { format!("{mean} ({})", (column.format)(worst)) } else { mean }
}

/// The table for a terminal: a block per scenario, a line per policy.
pub(super) fn table(plans: &[Arc<Plan>], runs: &[Run], what_if: Option<&WhatIf>) -> String {
    let mut text = String::new();
    for (index, plan) in plans.iter().enumerate() {
        let own: Vec<&Run> = runs.iter().filter(|run| run.scenario == plan.name).collect();
        if index > 0 {
            text.push('\n');
        }
        block(&mut text, plan, &summarize(own.iter().copied()));
        for sentence in what_if.map(|what_if| what_if.sentences(plan.hours(), &own)).unwrap_or_default() {
            let _ = writeln!(text, "  {sentence}");
        }
    }
    text
}

fn block(text: &mut String, plan: &Plan, lines: &[SummaryLine<'_>]) {
    let about = if plan.about.is_empty() { String::new() } else { format!(": {}", plan.about) };
    let seeds = lines.first().map_or(0, |line| line.runs.len());
    let seeds = if seeds > 1 { format!(" ({seeds} seeds; mean, worst in brackets)") } else { String::new() };
    let _ = writeln!(text, "{}{about}{seeds}", plan.name);
    let header = std::iter::once("POLICY").chain(COLUMNS.iter().map(|column| column.short));
    let mut rows = vec![header.map(str::to_owned).collect::<Vec<_>>()];
    rows.extend(lines.iter().map(|line| {
        let cells = COLUMNS.iter().map(|column| cell(column, line));
        std::iter::once(line.policy.to_owned()).chain(cells).collect()
    }));
    for line in aligned(&rows, COLUMNS.len() + 1) {
        let _ = writeln!(text, "  {line}");
    }
}

fn two_decimals(value: f64) -> String {
    format!("{value:.2}")
}

fn count(value: f64) -> String {
    if value.fract().abs() < 1e-9 { format!("{value:.0}") } else { format!("{value:.1}") }
}

/// A share in percent, with enough digits to differ from 100 %.
fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent >= 99.95 && share < 1.0 { format!("{percent:.3} %") } else { format!("{percent:.1} %") }
}

/// Seconds, or milliseconds below a second.
pub(super) fn time(seconds: f64) -> String {
    match seconds {
        s if s < 0.0995 => format!("{:.1} ms", s * 1000.0),
        s if s < 0.9995 => format!("{:.0} ms", s * 1000.0),
        s if s < 9.95 => format!("{s:.2} s"),
        s if s < 99.5 => format!("{s:.1} s"),
        s => format!("{s:.0} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_two_or_three_significant_digits() {
        assert_eq!(
            [0.0123, 0.123, 1.234, 12.34, 123.4].map(time),
            ["12.3 ms", "123 ms", "1.23 s", "12.3 s", "123 s"]
        );
        assert_eq!([1.0, 0.9999, 0.95].map(percent), ["100.0 %", "99.990 %", "95.0 %"]);
        assert_eq!([3.0, 3.25].map(count), ["3", "3.2"]);
    }
}
