//! The table for a terminal: a block per scenario, a line per policy.

use std::fmt::Write as _;
use std::sync::Arc;

use wva_sim::Run;

use super::format::{COLUMNS, cell};
use super::what_if::WhatIf;
use crate::simulate::{Plan, SummaryLine, summarize};

/// The blocks of all scenarios.
pub(super) fn text(plans: &[Arc<Plan>], runs: &[Run], what_if: Option<&WhatIf>) -> String {
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

fn block(text: &mut String, plan: &Plan, lines: &[SummaryLine]) {
    let about = if plan.about.is_empty() { String::new() } else { format!(": {}", plan.about) };
    let seeds = lines.first().map_or(0, |line| line.seeds);
    let seeds = if seeds > 1 { format!(" ({seeds} seeds; mean, worst in brackets)") } else { String::new() };
    let _ = writeln!(text, "{}{about}{seeds}", plan.name);
    let mut table = vec![header()];
    table.extend(lines.iter().map(|line| {
        let cells = COLUMNS.iter().map(|column| cell(column, line));
        std::iter::once(line.policy.clone()).chain(cells).collect()
    }));
    let columns = COLUMNS.len() + 1;
    let width = |column: usize| table.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in &table {
        let mut line = String::from(" ");
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, " {cell:<width$} ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

fn header() -> Vec<String> {
    std::iter::once("POLICY").chain(COLUMNS.iter().map(|column| column.short)).map(str::to_owned).collect()
}
