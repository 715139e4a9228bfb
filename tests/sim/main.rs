//! Makes `docs/evidence.md`: runs the scenarios of `tests/scenarios/sim` under the policy, its peers, fixed fleets and an oracle, and
//! checks the results against the gates. `tests/sim/evidence` calls it.

#![allow(clippy::print_stderr, clippy::print_stdout, reason = "a program for developers")]

mod gates;
mod groups;
mod misses;
mod page;
mod parts;
mod plots;
mod policies;
mod random;
mod runs;
mod seeds;
mod stats;
mod store;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tokio::time::Instant;

use self::gates::Gate;
use self::parts::Part;
use self::seeds::Seeds;
use self::store::PartResults;

/// Run the scenarios and check the gates
#[derive(Debug, Parser)]
struct Args {
    /// The folder of the scenarios.
    #[arg(long, default_value = "tests/scenarios/sim")]
    scenarios: PathBuf,
    /// The folder of the traces. Without it, scenarios that need them are left out with a note.
    #[arg(long, default_value = "target/traces")]
    traces: PathBuf,
    /// A part to run. By default all.
    #[arg(long = "part", value_enum)]
    parts: Vec<Part>,
    /// The policy to check against the gates: rate, or a policy file.
    #[arg(long, default_value = "rate")]
    policy: String,
    /// Seeds of each scenario, at most. The random sets have their own.
    #[arg(long, default_value_t = 10)]
    seeds: u64,
    /// Sets of 80 random scenarios.
    #[arg(long, default_value_t = 12)]
    sets: usize,
    /// The hash that seeds are made of, 16 hexadecimal digits at least. By default that of the trees in git that hold the constants.
    #[arg(long)]
    seed_of: Option<String>,
    /// Run the part that takes minutes: few seeds, one random set, few oracles.
    #[arg(long)]
    ci: bool,
    /// Run parts again that were run before for the same tree and settings.
    #[arg(long)]
    fresh: bool,
    /// The folder in which the results of parts are kept.
    #[arg(long, default_value = "target/evidence")]
    out: PathBuf,
    /// The file with the gates that are known to be missed.
    #[arg(long, default_value = "tests/sim/known-misses")]
    known_misses: PathBuf,
    /// Write the misses that are found into that file, in place of those that it has of the same gates.
    #[arg(long)]
    record_misses: bool,
    /// Write the page as Markdown to this file, and its plots beside it.
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

/// Returns whether every gate is met but for the known misses, and whether none of these is met.
fn run(args: &Args) -> Result<bool, String> {
    let seeds = Seeds::new(args.seed_of.as_deref())?;
    println!("seeds of {}", seeds.hash);
    let parts = if args.parts.is_empty() { Part::ALL.to_vec() } else { args.parts.clone() };
    let mut results = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        eprintln!("part {} of {}: {part:?}", index + 1, parts.len());
        let found = part_results(args, &seeds, *part)?;
        for Gate { subject, criterion, result, holds, .. } in &found.gates {
            println!("{} {subject}: {result} (wanted: {criterion})", if *holds { "ok  " } else { "MISS" });
        }
        found.left_out.iter().for_each(|left_out| println!("left out: {left_out}"));
        println!("{part:?}: {} runs in {:.0} s", found.runs, found.took_s);
        results.push(found);
    }
    if let Some(path) = &args.write {
        page::write(path, args, &seeds, &results)?;
    }
    let gates: Vec<&Gate> = results.iter().flat_map(|result| &result.gates).collect();
    let run = if args.ci { "ci" } else { "full" };
    if args.record_misses {
        misses::record(&args.known_misses, run, &gates)?;
    }
    let surprises = misses::surprises(&args.known_misses, run, &gates)?;
    surprises.iter().for_each(|surprise| println!("FAIL: {surprise}"));
    Ok(surprises.is_empty())
}

/// The results of a part: of now, or of an earlier run with the same settings.
fn part_results(args: &Args, seeds: &Seeds, part: Part) -> Result<PartResults, String> {
    if let Some(earlier) = (!args.fresh && !args.ci).then(|| store::load(args, seeds, part)).flatten() {
        eprintln!("kept from an earlier run; --fresh runs it again");
        return Ok(earlier);
    }
    let started = Instant::now();
    let mut found = part.run(args, seeds)?;
    found.took_s = started.elapsed().as_secs_f64();
    if found.runs > 0 {
        store::save(args, seeds, part, &found)?;
    } else {
        let result = found.left_out.join("; ");
        found.gates.push(Gate::new(
            format!("{part:?}: runs"),
            "at least one",
            format!("none: {result}"),
            false,
        ));
    }
    Ok(found)
}
