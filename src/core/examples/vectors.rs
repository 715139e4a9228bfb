//! `cargo run -p wva-core --example vectors -- [--groups v1,enforcer,hpa] FILE…`: runs files of test vectors, prints
//! `group/id: why` for each that fails, and `N passed, M failed` last.

use std::process::ExitCode;

#[path = "../tests/support/vectors/mod.rs"]
mod vectors;

#[expect(clippy::print_stdout, reason = "a command-line tool")]
fn main() -> ExitCode {
    let mut tally = vectors::Tally::default();
    let mut groups = Vec::new();
    let mut files = 0;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--groups" {
            groups = arguments.next().unwrap_or_default().split(',').map(str::to_owned).collect();
            continue;
        }
        files += 1;
        let text = std::fs::read_to_string(&argument).map_err(|error| error.to_string());
        if let Err(why) = text.and_then(|text| vectors::run(&text, &groups, &mut tally)) {
            tally.failures.push(format!("{argument}: {why}"));
        }
    }
    for failure in &tally.failures {
        println!("{failure}");
    }
    println!("{} passed, {} failed", tally.passed, tally.failures.len());
    if files > 0 && tally.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
