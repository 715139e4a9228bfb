//! The simulator repeats defaults of the program, which it cannot depend on.

use std::time::Duration;

use clap::Parser;
use wva::collect::ScrapeSettings;
use wva::config::ServeArgs;
use wva::engine::ReadSettings;
use wva_sim::{PROGRAM_DEFAULTS, ProgramDefaults, Scrape};

#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    serve: ServeArgs,
}

#[test]
fn the_simulator_has_the_defaults_of_the_program() {
    let decision = CommandLine::parse_from(["wva"]).serve.decision;
    let duration = |value: jiff::SignedDuration| Duration::try_from(value).unwrap();
    let program = ProgramDefaults {
        evaluation_interval: duration(decision.interval),
        max_age: duration(decision.max_age),
        read_wait: duration(decision.read_wait),
        scrape_window: ScrapeSettings::default().window,
        max_samples: ScrapeSettings::MAX_SAMPLES,
    };
    assert_eq!(PROGRAM_DEFAULTS, program);
    // The program scrapes pods in every evaluation.
    assert_eq!(Scrape::default().interval, program.evaluation_interval);
    let ReadSettings { max_age, read_wait } = ReadSettings::default();
    assert_eq!((max_age, read_wait), (program.max_age, program.read_wait));
}
