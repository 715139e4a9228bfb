//! `wva simulate capacity`: the capacity of a replica of each variant within the objectives, and the resulting cost of tokens.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use wva_core::model::Bounds;
use wva_core::units::Replicas;
use wva_sim::{
    Arrival, Arrivals, Controller, LoadShape, Pattern, RequestSizes, Scenario, Segment, SimVariant,
    SizeSpread, TimedSizes, simulate,
};

use super::super::output::{CommandError, OutputFormat, write_structured};
use super::super::terminal::aligned;
use super::input::TraceArgs;

/// The least number of requests that a rate is judged by: 1 % of 3,000 are 30.
const MIN_REQUESTS: f64 = 3000.0;
/// The least and the most duration, seconds.
const MIN_DURATION_S: f64 = 1200.0;
const MAX_DURATION_S: f64 = 4.0 * 3600.0;
/// Halvings of the interval of the rate: to 0.03 % of the rate at full load.
const HALVINGS: u32 = 12;

/// Find the requests a second that each variant carries within the objectives, and the cost of a million tokens
///
/// Simulates replicas under Poisson arrivals at different rates. A scenario whose token sizes change has a line for each; a trace
/// has one with its means. The rate at full load is what a replica sustains when requests may wait.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// Scenario files. Their variants, tokens and objectives are used.
    #[arg(value_name = "SCENARIO", required = true)]
    scenarios: Vec<PathBuf>,
    /// The share of requests that must be within the objectives.
    #[arg(long, default_value_t = 0.99, value_name = "SHARE", value_parser = share)]
    within: f64,
    /// Replicas that share the load. Several carry more each than one alone.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    replicas: u32,
    #[command(flatten)]
    trace: TraceArgs,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Table)]
    output: OutputFormat,
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.5..1.0).contains(share));
    share.ok_or_else(|| "give a share from 0.5 to below 1, as 0.99".into())
}

/// The capacity of a variant for requests of one size.
#[derive(Debug, Serialize)]
struct Capacity {
    scenario: String,
    variant: String,
    prompt_tokens: f64,
    output_tokens: f64,
    replicas: u32,
    /// Of all replicas together.
    rps_within_slo: f64,
    rps_at_full_load: f64,
    cost_per_hour: f64,
    /// `None` when no rate is within the objectives.
    cost_per_million_tokens: Option<f64>,
    cost_per_million_output_tokens: Option<f64>,
}

pub(super) fn run(args: &Args, out: &mut impl Write) -> Result<ExitCode, CommandError> {
    let mut all = Vec::new();
    for plan in args.trace.read_plans(&args.scenarios)? {
        let scenario = plan.scenario(1);
        for variant in &scenario.variants {
            for sizes in request_sizes(&scenario) {
                all.push(capacity(&scenario, variant, sizes, args));
            }
        }
    }
    if args.output == OutputFormat::Table {
        table(out, &all)?;
    } else {
        write_structured(out, &all, args.output)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The different sizes of a scenario; means and spread of a trace.
fn request_sizes(scenario: &Scenario) -> Vec<RequestSizes> {
    if let Arrivals::Trace(trace) = &scenario.arrivals {
        let count = trace.len().max(1) as f64;
        let mean = |tokens: fn(&Arrival) -> u32| {
            trace.iter().map(|arrival| f64::from(tokens(arrival))).sum::<f64>() / count
        };
        let prompt = mean(|arrival| arrival.prompt).max(1.0);
        let output = mean(|arrival| arrival.output).max(1.0);
        let squares =
            trace.iter().map(|arrival| (f64::from(arrival.prompt) / prompt - 1.0).powi(2)).sum::<f64>();
        return vec![RequestSizes {
            prompt,
            output,
            spread: SizeSpread::LogNormal((squares / count).sqrt().min(10.0)),
        }];
    }
    let mut different: Vec<RequestSizes> = Vec::new();
    for TimedSizes { sizes, .. } in &scenario.sizes {
        if !different.contains(sizes) {
            different.push(*sizes);
        }
    }
    different
}

fn capacity(scenario: &Scenario, variant: &SimVariant, sizes: RequestSizes, args: &Args) -> Capacity {
    let tokens = RequestSizes::fixed(sizes.prompt.round(), sizes.output.round());
    let full = variant.physics.capacity_rps(tokens) * f64::from(args.replicas);
    let mut good = 0.0;
    let mut bad = 1.25 * full;
    for _ in 0..HALVINGS {
        let rps = f64::midpoint(good, bad);
        if attainment(scenario, variant, sizes, rps, args.replicas) >= args.within {
            good = rps;
        } else {
            bad = rps;
        }
    }
    let cost_per_hour = variant.cost.get() * f64::from(args.replicas);
    let price = |tokens: f64| (good > 0.0).then(|| cost_per_hour / (good * 3600.0 * tokens) * 1e6);
    Capacity {
        scenario: scenario.name.to_string(),
        variant: variant.name.to_string(),
        prompt_tokens: sizes.prompt,
        output_tokens: sizes.output,
        replicas: args.replicas,
        rps_within_slo: good,
        rps_at_full_load: full,
        cost_per_hour,
        cost_per_million_tokens: price(sizes.prompt + sizes.output),
        cost_per_million_output_tokens: price(sizes.output),
    }
}

/// The share of requests within the objectives when `replicas` get `rps`.
fn attainment(
    scenario: &Scenario,
    variant: &SimVariant,
    sizes: RequestSizes,
    rps: f64,
    replicas: u32,
) -> f64 {
    let count = Replicas::new(replicas);
    let lasts = Duration::from_secs_f64((MIN_REQUESTS / rps).clamp(MIN_DURATION_S, MAX_DURATION_S));
    let bounds = Bounds { min: count, max: Some(count) };
    let alone = SimVariant { bounds, replicas: count, max_scheduled_pods: None, ..variant.clone() };
    let steady = Scenario {
        duration: lasts,
        arrivals: Arrivals::Rate {
            load: LoadShape::new(vec![Segment::Hold { rps, lasts }]),
            pattern: Pattern::Poisson,
        },
        sizes: vec![TimedSizes { from: Duration::ZERO, sizes }],
        variants: vec![alone],
        ..scenario.clone()
    };
    simulate(&steady, &Controller::fixed(replicas), 1, |_| {}).slo_attainment
}

fn table(out: &mut impl Write, all: &[Capacity]) -> std::io::Result<()> {
    let header = [
        "SCENARIO",
        "VARIANT",
        "PROMPT/OUTPUT",
        "REPLICAS",
        "RPS IN SLO",
        "AT FULL LOAD",
        "COST",
        "PER M TOKENS",
        "PER M OUTPUT",
    ];
    let price = |price: Option<f64>| price.map_or("-".into(), |price| format!("{price:.4}"));
    let row = |capacity: &Capacity| {
        vec![
            capacity.scenario.clone(),
            capacity.variant.clone(),
            format!("{:.0}/{:.0}", capacity.prompt_tokens, capacity.output_tokens),
            capacity.replicas.to_string(),
            format!("{:.2}", capacity.rps_within_slo),
            format!("{:.2}", capacity.rps_at_full_load),
            format!("{:.2}", capacity.cost_per_hour),
            price(capacity.cost_per_million_tokens),
            price(capacity.cost_per_million_output_tokens),
        ]
    };
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(all.iter().map(row));
    aligned(&rows, 2).iter().try_for_each(|line| writeln!(out, "{line}"))
}
