//! Rates derived from ServeGen (alibaba/ServeGen, Apache-2.0): `t_s`, then a column of requests/s for each model, over the window
//! that begins at `t_s`. A zero is a gap in the data: the rate before it continues.

use std::io::BufRead;
use std::path::Path;
use std::time::Duration;

use super::super::input::{CsvRow, InputError, TextLines};
use super::load::{MAX_INTERVALS, RateInterval};

/// How a file begins.
pub(super) const HEADER: &[u8] = b"t_s,";

/// Length of a single window, seconds. The last of several windows is as long as the one before it.
const WINDOW_S: f64 = 600.0;

pub(super) fn read(
    input: Box<dyn BufRead>,
    path: &Path,
    series: Option<&str>,
) -> Result<Vec<RateInterval>, InputError> {
    let mut lines = TextLines::new(input, path);
    let names = lines.header()?;
    let column = column(&names, series).map_err(|cause| lines.error(cause))?;
    let mut last_s = f64::NEG_INFINITY;
    let windows = lines.parse_all(MAX_INTERVALS, "windows", |line| {
        let window = window(&CsvRow::new(&names, line)?, column)?;
        if window.at_s <= last_s {
            return Err("t_s does not grow".into());
        }
        last_s = window.at_s;
        Ok(window)
    })?;
    Ok(intervals(&windows))
}

/// The index of the column that is named, or of the only one.
fn column(names: &[String], series: Option<&str>) -> Result<usize, String> {
    let models = names.get(1..).unwrap_or_default();
    let list = models.join(", ");
    match series {
        Some(model) => models
            .iter()
            .position(|name| name == model)
            .map(|index| index + 1)
            .ok_or_else(|| format!("no column {model:?}; there are {list}")),
        None if models.len() == 1 => Ok(1),
        None => Err(format!("several columns: give --series with one of {list}")),
    }
}

/// A window of a constant rate.
#[derive(Debug, Clone, Copy)]
struct Window {
    /// When it begins.
    at_s: f64,
    /// 0 where the data has a gap.
    rps: f64,
}

fn window(row: &CsvRow<'_>, column: usize) -> Result<Window, String> {
    let rps = if row.text(column).is_empty() { 0.0 } else { row.number(column)? };
    Ok(Window { at_s: row.number(0)?, rps })
}

/// Fills the gaps between windows. Gaps at both ends are not part of the trace.
fn intervals(windows: &[Window]) -> Vec<RateInterval> {
    let is_known = |window: &Window| window.rps > 0.0;
    let first = windows.iter().position(is_known);
    let last = windows.iter().rposition(is_known);
    let (Some(first), Some(last)) = (first, last) else { return Vec::new() };
    let mut intervals: Vec<RateInterval> = Vec::with_capacity(last - first + 1);
    let mut length_s = WINDOW_S;
    for (index, window) in windows.iter().enumerate().take(last + 1).skip(first) {
        length_s = windows.get(index + 1).map_or(length_s, |next| next.at_s - window.at_s);
        let rps = if is_known(window) { window.rps } else { intervals.last().map_or(0.0, |last| last.rps) };
        let until = Duration::from_secs_f64(window.at_s + length_s - windows[first].at_s);
        intervals.push(RateInterval { until, rps, tokens: None });
    }
    intervals
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "t_s,m-large,m-mid\n0,,1\n600,200.5,0\n1200,0,3\n1800,100,4\n2400,,5\n";

    fn parse(text: &str, series: Option<&str>) -> Result<Vec<RateInterval>, String> {
        let input = Box::new(std::io::Cursor::new(text.to_owned()));
        read(input, Path::new("s.csv"), series).map_err(|error| error.to_string())
    }

    #[test]
    fn a_gap_goes_on_with_the_rate_before_it_and_the_ends_are_cut() {
        let intervals = parse(TEXT, Some("m-large")).unwrap();
        let rates: Vec<_> =
            intervals.iter().map(|interval| (interval.until.as_secs(), interval.rps)).collect();
        assert_eq!(rates, [(600, 200.5), (1200, 200.5), (1800, 100.0)]);
    }

    #[test]
    fn a_file_with_several_columns_needs_the_name_of_one() {
        assert!(parse(TEXT, None).unwrap_err().ends_with("give --series with one of m-large, m-mid"));
        assert!(parse(TEXT, Some("m")).unwrap_err().ends_with("no column \"m\"; there are m-large, m-mid"));
        assert_eq!(parse("t_s,x\n0,1\n", None).unwrap().len(), 1);
    }

    #[test]
    fn a_wrong_field_is_named_with_its_line() {
        let error = parse("t_s,x\n0,1\n600,many\n", None).unwrap_err();
        assert_eq!(error, "s.csv:3: x \"many\" is out of range: must be a number from 0 to 1e12");
        assert_eq!(parse("t_s,x\n0,1\n0,1\n", None).unwrap_err(), "s.csv:3: t_s does not grow");
    }
}
