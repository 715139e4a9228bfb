//! Figures as people read them.

use crate::simulate::{Figure, Line};

/// A column of a table.
pub(super) struct Column {
    /// For a terminal.
    pub(super) short: &'static str,
    /// For a page.
    pub(super) long: &'static str,
    /// What stands in it.
    pub(super) figure: fn(&Line) -> Figure,
    /// How it is written.
    pub(super) write: fn(f64) -> String,
}

/// What is shown of every scenario and policy.
pub(super) const COLUMNS: &[Column] = &[
    Column { short: "COST", long: "Cost an hour", figure: |line| line.row.cost_avg, write: two },
    Column { short: "REPLICAS", long: "Replicas", figure: |line| line.row.replicas_avg, write: two },
    Column {
        short: "TTFT P50",
        long: "First token, median",
        figure: |line| line.row.ttft_p50_s,
        write: time,
    },
    Column { short: "P95", long: "95 %", figure: |line| line.row.ttft_p95_s, write: time },
    Column { short: "P99", long: "99 %", figure: |line| line.row.ttft_p99_s, write: time },
    Column { short: "ITL P99", long: "Between tokens, 99 %", figure: |line| line.row.itl_p99_s, write: time },
    Column { short: "ERRORS", long: "Errors", figure: |line| line.row.errors, write: count },
    Column { short: "CHANGES", long: "Changes", figure: |line| line.row.changes, write: count },
    Column { short: "FLIPS", long: "Reversals", figure: |line| line.row.flips, write: count },
    Column {
        short: "IN SLO",
        long: "Within objectives",
        figure: |line| line.row.slo_attainment,
        write: percent,
    },
    Column { short: "GPU-H", long: "GPU-hours", figure: |line| line.row.gpu_hours, write: two },
];

/// A mean, and of several seeds the worst.
pub(super) fn cell(column: &Column, line: &Line) -> String {
    let Figure { mean, worst } = (column.figure)(line);
    let mean = (column.write)(mean);
    if line.seeds > 1 { format!("{mean} ({})", (column.write)(worst)) } else { mean }
}

fn two(value: f64) -> String {
    format!("{value:.2}")
}

fn count(value: f64) -> String {
    if value.fract().abs() < 1e-9 { format!("{value:.0}") } else { format!("{value:.1}") }
}

/// A share, with as many digits as tell it from all.
fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent >= 99.95 && share < 1.0 { format!("{percent:.3} %") } else { format!("{percent:.1} %") }
}

/// Seconds, or milliseconds below one.
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
    fn figures_have_the_digits_that_people_read() {
        assert_eq!(
            [0.0123, 0.123, 1.234, 12.34, 123.4].map(time),
            ["12.3 ms", "123 ms", "1.23 s", "12.3 s", "123 s"]
        );
        assert_eq!([1.0, 0.9999, 0.95].map(percent), ["100.0 %", "99.990 %", "95.0 %"]);
        assert_eq!([3.0, 3.25].map(count), ["3", "3.2"]);
    }
}
