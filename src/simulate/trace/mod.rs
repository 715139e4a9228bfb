//! Reads traces of real systems as load. Each format has a file of its own here; the first line of a trace tells its format.
//!
//! A trace has single requests ([`Trace::Requests`]), or rates over intervals of time ([`Trace::Rates`]) from which requests are
//! drawn.

mod azure;
mod load;
mod mooncake;
mod recording;
mod servegen;

use std::io::BufRead;
use std::path::Path;

use super::input::{InputError, open};

pub use load::{RateInterval, TokenMeans, Trace};

/// Reads `path`, whatever its format. `series` selects a column or model where a file has several.
///
/// # Errors
/// Names the file, the line and the field.
pub fn read(path: &Path, series: Option<&str>) -> Result<Trace, InputError> {
    let unreadable = |error| InputError::unreadable(path, &error);
    let mut input = open(path).map_err(unreadable)?;
    let start = input.fill_buf().map_err(unreadable)?;
    let starts_with = |words: &[u8]| start.trim_ascii_start().starts_with(words);
    let trace = if starts_with(azure::HEADER) {
        Trace::Requests(azure::read(input, path)?)
    } else if starts_with(servegen::HEADER) {
        Trace::Rates(servegen::read(input, path, series)?)
    } else if starts_with(b"{\"entry\"") {
        Trace::Rates(recording::read(input, path, series)?)
    } else if starts_with(b"{") {
        Trace::Requests(mooncake::read(input, path)?)
    } else {
        let cause = "not a trace: give an Azure LLM CSV (TIMESTAMP,ContextTokens,GeneratedTokens), ServeGen rates (t_s,…), \
                     Mooncake JSON lines, or a recording of wva; each may be gzipped";
        return Err(InputError::new(format!("{}:1", path.display()), cause));
    };
    let is_empty = match &trace {
        Trace::Requests(requests) => requests.is_empty(),
        Trace::Rates(intervals) => intervals.is_empty(),
    };
    if is_empty { Err(InputError::new(path.display(), "has no requests")) } else { Ok(trace) }
}
