//! `wva simulate`: policies under one's own traffic. The command line, tables and HTML page; [`crate::simulate`] has the
//! scenarios.

mod arena;
mod calibrate;
mod capacity;
mod format;
mod html;
mod input;
mod physics;
mod run;
mod what_if;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Subcommand, ValueEnum};
use wva_core::Policy;
use wva_sim::{Controller, Run};

use self::input::TraceArgs;
use self::what_if::WhatIf;
use super::output::{CommandError, exit_code};
use crate::simulate::{Job, Plan, RunDetail, controller_for, file};

/// The exit code of shells for a process that Ctrl-C ended.
const EXIT_INTERRUPTED: u8 = 130;
/// The most runs of a command.
const MAX_RUNS: usize = 100_000;

/// Try policies on your own traffic, with pods that take time to start and an HPA's real arithmetic
///
/// SCENARIO is a YAML file with the load, the variants and the latency objectives (`wva simulate schema` prints its schema). Every
/// policy gets the same requests. The seed determines all random numbers, so a run can be repeated anywhere.
///
///   wva simulate two-variants.yaml                    wva, WVA V2, and KEDA on the endpoint picker's metrics
///   wva simulate mine.yaml --seeds 10 --policy rate --policy static:4 --policy early.yaml
///   wva simulate mine.yaml --trace azure_llm_2023_code.csv.gz --output html > page.html
///   wva simulate mine.yaml --what-if spare=1          cost and benefit of a warm spare replica
///   wva simulate capacity mine.yaml                   requests/s within the objectives, and the cost of a million tokens
///   wva simulate arena                                the workloads and metric of NVIDIA's Planner Gym
///   wva simulate calibrate measured.csv               physics of your hardware from a table of measurements
///
/// POLICY is rate, wva-v2, wva-v1, keda-epp, static:N (N replicas of every variant), the name of another analyzer, or a file as
/// for `wva decide --policy`. wva-v2, wva-v1 and keda-epp are other autoscalers with their published settings.
///
/// With several seeds the table shows the mean, and the worst in brackets. COST is the mean cost of replicas an hour, in the unit
/// of `cost` in the scenario.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct Args {
    /// Scenario files.
    #[arg(value_name = "SCENARIO", required = true)]
    scenarios: Vec<PathBuf>,
    /// A policy; may be repeated. By default wva, wva-v2 and keda-epp.
    #[arg(long = "policy", value_name = "POLICY")]
    policies: Vec<String>,
    /// Number of seeds.
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1, value_name = "SEED", value_parser = clap::value_parser!(u64).range(0..=1_000_000_000))]
    first_seed: u64,
    #[command(flatten)]
    trace: TraceArgs,
    /// Output format: a table, JSON with an object for each scenario, policy and seed, or an HTML page with plots.
    #[arg(long, short, value_enum, default_value_t = SimulationFormat::Table)]
    output: SimulationFormat,
    /// Run every policy once more with N warm spares of the cheapest variant, and show their cost and benefit.
    #[arg(long, value_name = "spare=N")]
    what_if: Option<WhatIf>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Arena(arena::Args),
    Capacity(capacity::Args),
    Calibrate(calibrate::Args),
    /// Print the JSON schema of scenario files
    Schema,
    Physics(physics::Args),
}

/// The output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SimulationFormat {
    /// A table.
    Table,
    /// An array with an object for each scenario, policy and seed.
    Json,
    /// A self-contained page with plots.
    Html,
}

pub(super) fn main(args: Args) -> ExitCode {
    let mut out = io::stdout().lock();
    exit_code(match &args.command {
        None => run(&args, &mut out),
        Some(Command::Arena(args)) => arena::run(args, &mut out),
        Some(Command::Capacity(args)) => capacity::run(args, &mut out),
        Some(Command::Calibrate(args)) => calibrate::run(args, &mut out),
        Some(Command::Physics(args)) => physics::run(args, &mut out),
        Some(Command::Schema) => write_schema(&mut out),
    })
}

fn write_schema(out: &mut impl Write) -> Result<ExitCode, CommandError> {
    let text = serde_json::to_string_pretty(&file::schema()).map_err(io::Error::from)?;
    writeln!(out, "{text}")?;
    Ok(ExitCode::SUCCESS)
}

fn run(args: &Args, out: &mut impl Write) -> Result<ExitCode, CommandError> {
    let plans = args.trace.read_plans(&args.scenarios)?;
    let controllers = controllers(args)?;
    let jobs = jobs(args, &plans, &controllers)?;
    let Some(runs) = run::run_all(jobs)? else { return Ok(ExitCode::from(EXIT_INTERRUPTED)) };
    match args.output {
        SimulationFormat::Table => {
            out.write_all(format::table(&plans, &runs, args.what_if.as_ref()).as_bytes())?
        }
        SimulationFormat::Json => write_json(out, runs)?,
        SimulationFormat::Html => {
            out.write_all(html::page(&plans, &runs, args.what_if.as_ref()).as_bytes())?
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn controllers(args: &Args) -> Result<Vec<Arc<Controller>>, CommandError> {
    let default = Policy::default().global.default.analyzer.as_str();
    let defaults = || [default, "wva-v2", "keda-epp"].map(str::to_owned).to_vec();
    let words = if args.policies.is_empty() { defaults() } else { args.policies.clone() };
    let mut all: Vec<Arc<Controller>> = Vec::new();
    for word in &words {
        let controller = controller_for(word).map_err(|error| error.to_string())?;
        if all.iter().any(|previous| previous.name == controller.name) {
            return Err(format!("--policy {word}: given twice, or two files have the same name").into());
        }
        let with_spares = args.what_if.as_ref().map(|what_if| Arc::new(what_if.with_spares(&controller)));
        all.push(Arc::new(controller));
        all.extend(with_spares);
    }
    Ok(all)
}

/// Every scenario with every policy and every seed. Only the first seed's series is kept, for plots.
fn jobs(args: &Args, plans: &[Arc<Plan>], controllers: &[Arc<Controller>]) -> Result<Vec<Job>, CommandError> {
    let count = (plans.len() * controllers.len()).saturating_mul(args.seeds as usize);
    if count > MAX_RUNS {
        let next = "give fewer seeds, scenarios or policies";
        return Err(format!("{count} runs are more than {MAX_RUNS}; {next}").into());
    }
    let mut jobs = Vec::with_capacity(count);
    for plan in plans {
        for controller in controllers {
            for seed in args.first_seed..args.first_seed + args.seeds {
                let is_plotted = args.output == SimulationFormat::Html && seed == args.first_seed;
                let detail = if is_plotted { RunDetail::Series } else { RunDetail::Figures };
                jobs.push(Job { plan: plan.clone(), controller: controller.clone(), seed, detail });
            }
        }
    }
    Ok(jobs)
}

/// An object for each run, without its series.
fn write_json(out: &mut impl Write, runs: Vec<Run>) -> Result<(), CommandError> {
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
