//! Formats figures for people.

use crate::simulate::{Figure, SummaryLine};

/// A column of a table.
pub(super) struct Column {
    /// Its title on a terminal.
    pub(super) short: &'static str,
    /// Its title on a page.
    pub(super) long: &'static str,
    /// The figure in it.
    pub(super) figure: fn(&SummaryLine) -> Figure,
    /// Formats a value.
    pub(super) format: fn(f64) -> String,
}

/// The figures shown of each scenario and policy.
pub(super) const COLUMNS: &[Column] = &[
    Column {
        short: "COST",
        long: "Cost an hour",
        figure: |line| line.figures.cost_avg,
        format: two_decimals,
    },
    Column {
        short: "REPLICAS",
        long: "Replicas",
        figure: |line| line.figures.replicas_avg,
        format: two_decimals,
    },
    Column {
        short: "TTFT P50",
        long: "First token, median",
        figure: |line| line.figures.ttft_p50_s,
        format: time,
    },
    Column { short: "P95", long: "95 %", figure: |line| line.figures.ttft_p95_s, format: time },
    Column { short: "P99", long: "99 %", figure: |line| line.figures.ttft_p99_s, format: time },
    Column {
        short: "ITL P99",
        long: "Range tokens, 99 %",
        figure: |line| line.figures.itl_p99_s,
        format: time,
    },
    Column { short: "ERRORS", long: "Errors", figure: |line| line.figures.errors, format: count },
    Column { short: "CHANGES", long: "Changes", figure: |line| line.figures.changes, format: count },
    Column { short: "FLIPS", long: "Reversals", figure: |line| line.figures.flips, format: count },
    Column {
        short: "IN SLO",
        long: "Within objectives",
        figure: |line| line.figures.slo_attainment,
        format: percent,
    },
    Column { short: "GPU-H", long: "GPU-hours", figure: |line| line.figures.gpu_hours, format: two_decimals },
];

/// The mean, with several seeds also the worst.
pub(super) fn cell(column: &Column, line: &SummaryLine) -> String {
    let Figure { mean, worst } = (column.figure)(line);
    let mean = (column.format)(mean);
    if line.seeds > 1 { format!("{mean} ({})", (column.format)(worst)) } else { mean }
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
