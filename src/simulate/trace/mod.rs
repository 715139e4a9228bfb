//! Traces: what came to real systems, read as load for the simulator. Each format is a file; which one a file has is told by its
//! first line.
//!
//! Two kinds of knowledge: single requests ([`Trace::Requests`]), or rates over stretches of time ([`Trace::Rates`]), whose
//! requests are drawn. Nothing here knows of scenarios.

mod azure;
mod mooncake;
mod recording;
mod servegen;

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::time::Duration;

use wva_sim::Arrival;

use super::input::open;

/// Requests that are kept at most: 240 MB.
const MOST_REQUESTS: usize = 10_000_000;
/// Stretches that are kept at most: 95 years of ServeGen, half a year of recordings.
const MOST_STRETCHES: usize = 5_000_000;

/// What came, from its first moment on.
#[derive(Debug, Clone, PartialEq)]
pub enum Trace {
    /// Each request, in the order of time.
    Requests(Vec<Arrival>),
    /// How many came in each stretch of time, one after the other without gaps.
    Rates(Vec<Stretch>),
}

/// A rate for some time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stretch {
    /// When it ends, since the trace's first moment.
    pub until: Duration,
    /// Requests a second.
    pub rps: f64,
    /// Mean tokens of prompts and outputs, where the trace knows.
    pub tokens: Option<(f64, f64)>,
}

/// Which part of a file is meant, where it holds several series.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Series(pub Option<String>);

/// A trace that cannot be used: where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It cannot be read.
    #[error("{path}: {source}; give a file that exists and that you may read")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Its first line is of no known format.
    #[error(
        "{path}:1: not a trace: give an Azure LLM CSV (TIMESTAMP,ContextTokens,GeneratedTokens), ServeGen rates (t_s,…), \
         Mooncake JSON lines, or a recording of wva; each may be gzipped"
    )]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// A line is wrong.
    #[error("{path}:{line}: {cause}")]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Which field, and what is allowed.
        cause: String,
    },
    /// The whole is of no use.
    #[error("{path}: {cause}")]
    Whole {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: String,
    },
}

/// Reads `path`, whatever its format.
///
/// # Errors
/// Names the file, the line and the field.
pub fn read(path: &Path, series: &Series) -> Result<Trace, TraceError> {
    let unreadable = |source| TraceError::Unreadable { path: path.into(), source };
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
        return Err(TraceError::Foreign { path: path.into() });
    };
    let empty = match &trace {
        Trace::Requests(requests) => requests.is_empty(),
        Trace::Rates(stretches) => stretches.is_empty(),
    };
    let cause = || TraceError::Whole { path: path.into(), cause: "nothing came in it".into() };
    (!empty).then_some(trace).ok_or_else(cause)
}

/// Requests in the order of time, from the first one on: some traces are almost sorted only.
fn sorted(mut requests: Vec<Arrival>) -> Vec<Arrival> {
    requests.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    let first = requests.first().map_or(0.0, |request| request.at_s);
    for request in &mut requests {
        request.at_s -= first;
    }
    requests
}
