//! Reads traces of real systems as load. Each format has a file of its own here; the first line of a trace tells its format.
//!
//! A trace has single requests ([`Trace::Requests`]), or rates over intervals of time ([`Trace::Rates`]) from which requests are
//! drawn.

mod azure;
mod mooncake;
mod recording;
mod servegen;

use std::io::BufRead;
use std::path::Path;
use std::time::Duration;

use wva_sim::Arrival;

use super::input::{InputError, open};

/// The most requests that are kept: 240 MB.
const MAX_REQUESTS: usize = 10_000_000;
/// The most intervals that are kept: 95 years of ServeGen, two years of recordings.
const MAX_INTERVALS: usize = 5_000_000;

/// The load of a trace from its first request on.
#[derive(Debug, Clone, PartialEq)]
pub enum Trace {
    /// The requests in the order of time.
    Requests(Vec<Arrival>),
    /// The rates of consecutive intervals.
    Rates(Vec<RateInterval>),
}

/// A rate over an interval of time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateInterval {
    /// When it ends, since the trace's start.
    pub until: Duration,
    /// Requests a second.
    pub rps: f64,
    /// Mean tokens of its requests, if the trace has them.
    pub tokens: Option<TokenMeans>,
}

/// Mean tokens of requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenMeans {
    /// Of prompts.
    pub prompt: f64,
    /// Generated.
    pub output: f64,
}

/// The series to read where a file has several.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Series(pub Option<String>);

/// Reads `path`, whatever its format.
///
/// # Errors
/// Names the file, the line and the field.
pub fn read(path: &Path, series: &Series) -> Result<Trace, InputError> {
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

/// Sorts requests and shifts them so that the first arrives at 0. Some traces are only almost sorted.
fn sorted(mut requests: Vec<Arrival>) -> Vec<Arrival> {
    requests.sort_by(|left, right| left.at_s.total_cmp(&right.at_s));
    let first = requests.first().map_or(0.0, |request| request.at_s);
    for request in &mut requests {
        request.at_s -= first;
    }
    requests
}
