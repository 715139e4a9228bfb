//! `wva simulate`: policies under one's own traffic. The words, the tables and the page; what is simulated comes from
//! [`crate::simulate`].

mod calibrate;
mod capacity;
mod go;
mod html;
mod physics;
mod table;
mod what_if;
mod words;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Subcommand, ValueEnum};
use wva_core::Policy;
use wva_sim::{Controller, Run};

use self::go::Ended;
use self::what_if::WhatIf;
use super::decisions::{Failure, exit};
use crate::simulate::{Given, Job, Keep, Plan, file, plans, policy};

/// The exit code of a process that Ctrl-C ended, as shells have it.
const INTERRUPTED: u8 = 130;
/// Runs of one command at most: each has its progress and its line.
const MOST_RUNS: usize = 100_000;

/// Try policies on your own traffic, with pods that take time to start and an HPA's real arithmetic
///
/// SCENARIO is a YAML file: what comes, what serves it and what was promised (`wva simulate schema` prints its schema). Every
/// policy meets the same requests; a seed decides them wholly, so a run can be repeated anywhere.
///
///   wva simulate two-variants.yaml                    this program beside WVA V2 and KEDA with the endpoint picker's metrics
///   wva simulate mine.yaml --seeds 10 --policy rate --policy static:4 --policy bold.yaml
///   wva simulate mine.yaml --trace azure_llm_2023_code.csv.gz --output html > page.html
///   wva simulate mine.yaml --what-if spare=1          what a warm spare replica costs, and what it saves
///   wva simulate capacity mine.yaml                   requests/s within the objectives, and the price of a million tokens
///   wva simulate calibrate measured.csv               how fast your hardware is, from a table of measurements
///
/// POLICY is rate, wva-v2, wva-v1, keda-epp, static:N (N replicas of every variant), the name of another analyzer, or a file as
/// for `wva decide --policy`. wva-v2, wva-v1 and keda-epp are the field's own, with their published settings.
///
/// Of several seeds the table shows the mean, and the worst in brackets. COST is what replicas cost an hour on average, in the
/// unit of `cost` in the scenario.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct Args {
    /// Scenario files.
    #[arg(value_name = "SCENARIO", required = true)]
    scenarios: Vec<PathBuf>,
    /// Who decides; may be repeated. By default this program, wva-v2 and keda-epp.
    #[arg(long = "policy", value_name = "POLICY")]
    policies: Vec<String>,
    /// So many times, each with other chance.
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1, value_name = "SEED", value_parser = clap::value_parser!(u64).range(0..=1_000_000_000))]
    first_seed: u64,
    #[command(flatten)]
    trace: TraceArgs,
    /// How to show it: a table, JSON with one object for each scenario, policy and seed, or one page with plots.
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Every policy once more with N replicas of the cheapest variant on top: what they cost and what they save.
    #[arg(long, value_name = "spare=N")]
    what_if: Option<WhatIf>,
    #[command(subcommand)]
    command: Option<Command>,
}

/// A trace on the command line.
#[derive(Debug, clap::Args)]
struct TraceArgs {
    /// What really came somewhere, in place of the scenario's load: an Azure LLM CSV, ServeGen rates, Mooncake JSON lines, or a
    /// recording of this program; gzipped or not.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Which column or model of the trace, where it has several.
    #[arg(long, value_name = "NAME")]
    series: Option<String>,
}

impl TraceArgs {
    fn given(&self) -> Given {
        Given { trace: self.trace.clone(), series: self.series.clone() }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    Capacity(capacity::Args),
    Calibrate(calibrate::Args),
    /// Print the JSON schema of scenario files
    Schema,
    Physics(physics::Args),
}

/// How a simulation is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people.
    Table,
    /// For programs: an array with one object for each scenario, policy and seed.
    Json,
    /// One self-contained page with plots, to show to somebody.
    Html,
}

pub(super) fn main(args: Args) -> ExitCode {
    let mut out = io::stdout().lock();
    exit(match &args.command {
        None => run(&args, &mut out),
        Some(Command::Capacity(args)) => capacity::run(args, &mut out),
        Some(Command::Calibrate(args)) => calibrate::run(args, &mut out),
        Some(Command::Physics(args)) => physics::run(args, &mut out),
        Some(Command::Schema) => schema(&mut out),
    })
}

fn schema(out: &mut impl Write) -> Result<ExitCode, Failure> {
    let text = serde_json::to_string_pretty(&file::schema()).map_err(io::Error::from)?;
    writeln!(out, "{text}")?;
    Ok(ExitCode::SUCCESS)
}

fn run(args: &Args, out: &mut impl Write) -> Result<ExitCode, Failure> {
    let plans = read(&args.scenarios, &args.trace.given())?;
    let controllers = controllers(args)?;
    let jobs = jobs(args, &plans, &controllers)?;
    let runs = match go::all(jobs)? {
        Ended::Done(runs) => runs,
        Ended::Interrupted => return Ok(ExitCode::from(INTERRUPTED)),
    };
    match args.output {
        Output::Table => out.write_all(table::text(&plans, &runs, args.what_if.as_ref()).as_bytes())?,
        Output::Json => json(out, runs)?,
        Output::Html => out.write_all(html::page(&plans, &runs, args.what_if.as_ref()).as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// All plans of all files, in their order, no two of one name.
fn read(files: &[PathBuf], given: &Given) -> Result<Vec<Arc<Plan>>, Failure> {
    let mut all: Vec<Arc<Plan>> = Vec::new();
    for path in files {
        for plan in plans(path, given).map_err(|error| error.to_string())? {
            if all.iter().any(|other| other.name == plan.name) {
                let (path, name) = (path.display(), &plan.name);
                return Err(format!("{path}: another scenario is named {name} too; rename one file").into());
            }
            all.push(Arc::new(plan));
        }
    }
    Ok(all)
}

fn controllers(args: &Args) -> Result<Vec<Arc<Controller>>, Failure> {
    let ours = Policy::default().global.default.analyzer.as_str();
    let standard = || [ours, "wva-v2", "keda-epp"].map(str::to_owned).to_vec();
    let words = if args.policies.is_empty() { standard() } else { args.policies.clone() };
    let mut all: Vec<Arc<Controller>> = Vec::new();
    for word in &words {
        let controller = policy(word).map_err(|error| error.to_string())?;
        if all.iter().any(|other| other.name == controller.name) {
            return Err(format!("--policy {word}: given twice, or two files of one name").into());
        }
        let twin = args.what_if.as_ref().map(|what_if| Arc::new(what_if.of(&controller)));
        all.push(Arc::new(controller));
        all.extend(twin);
    }
    Ok(all)
}

/// Every scenario under every policy with every seed. Only the first seed's course is kept, for plots.
fn jobs(args: &Args, plans: &[Arc<Plan>], controllers: &[Arc<Controller>]) -> Result<Vec<Job>, Failure> {
    let count = (plans.len() * controllers.len()).saturating_mul(args.seeds as usize);
    if count > MOST_RUNS {
        return Err(
            format!("{count} runs; give fewer seeds, scenarios or policies: at most {MOST_RUNS}").into()
        );
    }
    let mut jobs = Vec::with_capacity(count);
    for plan in plans {
        for controller in controllers {
            for seed in args.first_seed..args.first_seed + args.seeds {
                let plotted = args.output == Output::Html && seed == args.first_seed;
                let keep = if plotted { Keep::Series } else { Keep::Figures };
                jobs.push(Job { plan: plan.clone(), controller: controller.clone(), seed, keep });
            }
        }
    }
    Ok(jobs)
}

/// One object a run, without the course of it.
fn json(out: &mut impl Write, runs: Vec<Run>) -> Result<(), Failure> {
    writeln!(out, "[")?;
    let last = runs.len();
    for (index, run) in runs.into_iter().enumerate() {
        let mut value = serde_json::to_value(&run).map_err(io::Error::from)?;
        if let Some(fields) = value.as_object_mut() {
            fields.retain(|name, _| !matches!(name.as_str(), "series" | "writes"));
        }
        let comma = if index + 1 < last { "," } else { "" };
        writeln!(out, "{value}{comma}")?;
    }
    writeln!(out, "]")?;
    Ok(())
}
