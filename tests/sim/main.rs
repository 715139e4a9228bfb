//! Makes `docs/evidence.md`: runs the scenarios of `tests/scenarios/sim` under the policy and the baselines, and checks the results
//! against the gates. `tests/sim/evidence` calls it.

#![allow(clippy::print_stderr, clippy::print_stdout, reason = "a program for developers")]

mod gates;
mod page;
mod parts;
mod runs;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use self::gates::Gate;
use self::parts::Part;

/// Run the scenarios and check the gates
#[derive(Debug, Parser)]
struct Args {
    /// The folder of the scenarios.
    #[arg(long, default_value = "tests/scenarios/sim")]
    scenarios: PathBuf,
    /// The folder of the traces. Without it, scenarios that need them are left out with a note.
    #[arg(long, default_value = "target/traces")]
    traces: PathBuf,
    /// A part to run: cases, constant, others, random, traces, robust, victims. By default all.
    #[arg(long = "part", value_enum)]
    parts: Vec<Part>,
    /// The policy to check against the gates.
    #[arg(long, default_value = "rate")]
    policy: String,
    /// Seeds of each scenario. The random sets have their own.
    #[arg(long, default_value_t = 10)]
    seeds: u64,
    /// Sets of the 80 random scenarios, of four.
    #[arg(long, default_value_t = 4)]
    random_sets: usize,
    /// Write the page as Markdown to this file.
    #[arg(long)]
    write: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("evidence: {error}");
            ExitCode::from(2)
        }
    }
}

/// Returns whether every gate holds.
fn run(args: &Args) -> Result<bool, String> {
    let parts = if args.parts.is_empty() { Part::ALL.to_vec() } else { args.parts.clone() };
    let mut results = Vec::new();
    for part in parts {
        let part_results = part.run(args)?;
        for Gate { subject, criterion, result, holds } in &part_results.gates {
            println!("{} {subject}: {result} (wanted: {criterion})", if *holds { "ok  " } else { "FAIL" });
        }
        part_results.left_out.iter().for_each(|left_out| println!("left out: {left_out}"));
        results.push(part_results);
    }
    if let Some(path) = &args.write {
        let text = page::text(args, &results);
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(results.iter().flat_map(|result| &result.gates).all(|gate| gate.holds))
}
