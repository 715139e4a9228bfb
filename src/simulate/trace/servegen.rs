//! Rates derived from ServeGen (alibaba/ServeGen, Apache-2.0): `t_s`, then one column of requests/s a model, each for the
//! window that begins there. A zero is a gap of the collection: the rate before it goes on.

use std::io::BufRead;
use std::path::Path;
use std::time::Duration;

use super::super::fields::{Row, names};
use super::super::input::TextLines;
use super::{MOST_STRETCHES, Series, Stretch, TraceError};

/// How a file begins.
pub(super) const HEADER: &[u8] = b"t_s,";

/// A window whose successor is not there lasts as long as the one before it; a single one this long.
const WINDOW_S: f64 = 600.0;

pub(super) fn read(
    input: Box<dyn BufRead>,
    path: &Path,
    series: &Series,
) -> Result<Vec<Stretch>, TraceError> {
    let mut lines = TextLines::new(input, path);
    let names = names(lines.next()?.unwrap_or_default());
    let column = column(&names, series).map_err(|cause| lines.wrong(&cause))?;
    let (mut windows, mut last_at): (Vec<(f64, f64)>, f64) = (Vec::new(), f64::NEG_INFINITY);
    while let Some(line) = lines.next()? {
        let window = Row::new(&names, line).and_then(|row| window(&row, column));
        let (at, rps) = window.map_err(|cause| lines.wrong(&cause))?;
        if at <= last_at {
            return Err(lines.wrong("t_s does not grow"));
        }
        last_at = at;
        windows.push((at, rps));
        if windows.len() > MOST_STRETCHES {
            return Err(lines.wrong(&format!("more than {MOST_STRETCHES} windows; cut the file")));
        }
    }
    Ok(stretches(&windows))
}

/// Which column is meant: the one that is named, or the only one.
fn column(names: &[String], series: &Series) -> Result<usize, String> {
    let models = names.get(1..).unwrap_or_default();
    let list = models.join(", ");
    match &series.0 {
        Some(wanted) => names
            .iter()
            .skip(1)
            .position(|name| name == wanted)
            .map(|found| found + 1)
            .ok_or_else(|| format!("no column {wanted:?}; there are {list}")),
        None if models.len() == 1 => Ok(1),
        None => Err(format!("several columns: give --series with one of {list}")),
    }
}

/// When a window begins and its rate; 0 where nothing was collected.
fn window(row: &Row<'_>, column: usize) -> Result<(f64, f64), String> {
    let rps = if row.text(column).is_empty() { 0.0 } else { row.number(column)? };
    Ok((row.number(0)?, rps))
}

/// Fills the gaps; those at both ends are not part of the trace.
fn stretches(windows: &[(f64, f64)]) -> Vec<Stretch> {
    let known = |window: &(f64, f64)| window.1 > 0.0;
    let (Some(first), Some(last)) = (windows.iter().position(known), windows.iter().rposition(known)) else {
        return Vec::new();
    };
    let mut found: Vec<Stretch> = Vec::with_capacity(last - first + 1);
    let mut length = WINDOW_S;
    for (index, (at, rps)) in windows.iter().enumerate().take(last + 1).skip(first) {
        length = windows.get(index + 1).map_or(length, |next| next.0 - at);
        let before = found.last().map_or(0.0, |stretch| stretch.rps);
        let rps = if *rps > 0.0 { *rps } else { before };
        let until = Duration::from_secs_f64(at + length - windows[first].0);
        found.push(Stretch { until, rps, tokens: None });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "t_s,m-large,m-mid\n0,,1\n600,200.5,0\n1200,0,3\n1800,100,4\n2400,,5\n";

    fn parse(text: &str, series: Option<&str>) -> Result<Vec<Stretch>, String> {
        let input = Box::new(std::io::Cursor::new(text.to_owned()));
        let series = Series(series.map(str::to_owned));
        read(input, Path::new("s.csv"), &series).map_err(|error| error.to_string())
    }

    #[test]
    fn a_gap_goes_on_with_the_rate_before_it_and_the_ends_are_cut() {
        let found = parse(TEXT, Some("m-large")).unwrap();
        let seen: Vec<_> = found.iter().map(|one| (one.until.as_secs(), one.rps)).collect();
        assert_eq!(seen, [(600, 200.5), (1200, 200.5), (1800, 100.0)]);
    }

    #[test]
    fn which_column_has_to_be_said_where_there_are_several() {
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
