//! Defaults of the program that the simulator repeats. It cannot depend on the program, so these are copies: a test of the
//! program compares each with the original.

use std::time::Duration;

/// The settings that a simulated instance of the program runs with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramDefaults {
    /// The program evaluates, and scrapes pods, at least this often.
    pub evaluation_interval: Duration,
    /// A read is answered from an evaluation that is at most this old.
    pub max_age: Duration,
    /// A read waits this long for a new evaluation before it gets the last number.
    pub read_wait: Duration,
    /// Scraped samples are kept for at least this long.
    pub scrape_window: Duration,
    /// Samples kept of one series.
    pub max_samples: usize,
}

/// The defaults of `wva serve`.
pub const PROGRAM_DEFAULTS: ProgramDefaults = ProgramDefaults {
    evaluation_interval: Duration::from_secs(5),
    max_age: Duration::from_secs(2),
    read_wait: Duration::from_secs(1),
    scrape_window: Duration::from_secs(120),
    max_samples: 120,
};
