//! `wva simulate capacity`: what one replica of each variant carries within the objectives, and what that makes a token cost.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use wva_core::model::Bounds;
use wva_core::units::Replicas;
use wva_sim::{
    Arrivals, Controller, LoadShape, Pattern, RequestSizes, Scenario, Segment, SimVariant, SizeSpread,
    simulate,
};

use super::super::decisions::{Failure, Output, structured};
use super::{TraceArgs, read};

/// Requests that a rate is judged by, at least: of 3,000, 1 % are 30.
const REQUESTS: f64 = 3000.0;
/// And how long, at least and at most.
const MIN_DURATION_S: f64 = 1200.0;
const MAX_DURATION_S: f64 = 4.0 * 3600.0;
/// Halvings of the interval that the rate is in: to 0.03 % of the rate at full load.
const HALVINGS: u32 = 12;

/// How many requests a second each variant carries within the objectives, and the price of a million tokens
///
/// Found by simulating replicas under Poisson arrivals at one rate after the other. Of a scenario whose token sizes change, each
/// is told; of a trace its means. The rate at full load is what a replica carries when nobody minds waiting.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// Scenario files: their variants, tokens and objectives count.
    #[arg(value_name = "SCENARIO", required = true)]
    scenarios: Vec<PathBuf>,
    /// The share of requests that must be within the objectives.
    #[arg(long, default_value_t = 0.99, value_name = "SHARE", value_parser = share)]
    within: f64,
    /// Replicas that share the load: several carry more each than one alone.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    replicas: u32,
    #[command(flatten)]
    trace: TraceArgs,
    /// How to show it.
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.5..1.0).contains(share));
    share.ok_or_else(|| "give a share from 0.5 to below 1, as 0.99".into())
}

/// What one variant carries of one kind of requests.
#[derive(Debug, Serialize)]
struct Carried {
    scenario: String,
    variant: String,
    prompt_tokens: f64,
    output_tokens: f64,
    replicas: u32,
    /// Of all replicas together.
    rps_within_slo: f64,
    rps_at_full_load: f64,
    cost_per_hour: f64,
    /// `None` when nothing is carried within the objectives.
    cost_per_million_tokens: Option<f64>,
    cost_per_million_output_tokens: Option<f64>,
}

pub(super) fn run(args: &Args, out: &mut impl Write) -> Result<ExitCode, Failure> {
    let mut all = Vec::new();
    for plan in read(&args.scenarios, &args.trace.given())? {
        let scenario = plan.scenario(1);
        for variant in &scenario.variants {
            for sizes in kinds(&scenario) {
                all.push(carried(&scenario, variant, sizes, args)?);
            }
        }
    }
    if args.output == Output::Table {
        table(out, &all)?;
    } else {
        structured(out, &all, args.output)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The sizes of a scenario, each once; a trace is its means and its spread.
fn kinds(scenario: &Scenario) -> Vec<RequestSizes> {
    if let Arrivals::Trace(trace) = &scenario.arrivals {
        let count = trace.len().max(1) as f64;
        let mean = |of: fn(&wva_sim::Arrival) -> u32| {
            trace.iter().map(|one| f64::from(of(one))).sum::<f64>() / count
        };
        let (prompt, output) = (mean(|one| one.prompt).max(1.0), mean(|one| one.output).max(1.0));
        let squares = trace.iter().map(|one| (f64::from(one.prompt) / prompt - 1.0).powi(2)).sum::<f64>();
        return vec![RequestSizes {
            prompt,
            output,
            spread: SizeSpread::LogNormal((squares / count).sqrt().min(10.0)),
        }];
    }
    let mut kinds: Vec<RequestSizes> = Vec::new();
    for (_, sizes) in &scenario.sizes {
        if !kinds.contains(sizes) {
            kinds.push(*sizes);
        }
    }
    kinds
}

fn carried(
    scenario: &Scenario,
    variant: &SimVariant,
    sizes: RequestSizes,
    args: &Args,
) -> Result<Carried, Failure> {
    let tokens = RequestSizes::fixed(sizes.prompt.round(), sizes.output.round());
    let full = variant.physics.capacity_rps(tokens) * f64::from(args.replicas);
    let (mut good, mut bad) = (0.0, 1.25 * full);
    for _ in 0..HALVINGS {
        let rps = f64::midpoint(good, bad);
        if attainment(scenario, variant, sizes, rps, args.replicas)? >= args.within {
            good = rps;
        } else {
            bad = rps;
        }
    }
    let cost_per_hour = variant.cost.get() * f64::from(args.replicas);
    let price = |tokens: f64| (good > 0.0).then(|| cost_per_hour / (good * 3600.0 * tokens) * 1e6);
    Ok(Carried {
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
    })
}

/// The share of requests within the objectives when so many replicas get so many requests a second.
fn attainment(
    scenario: &Scenario,
    variant: &SimVariant,
    sizes: RequestSizes,
    rps: f64,
    replicas: u32,
) -> Result<f64, Failure> {
    let count = Replicas::new(replicas);
    let lasts = Duration::from_secs_f64((REQUESTS / rps).clamp(MIN_DURATION_S, MAX_DURATION_S));
    let bounds = Bounds { min: count, max: Some(count) };
    let alone = SimVariant { bounds, replicas: count, max_scheduled_pods: None, ..variant.clone() };
    let steady = Scenario {
        duration: lasts,
        arrivals: Arrivals::Rate {
            load: LoadShape::new(vec![Segment::Hold { rps, lasts }]),
            pattern: Pattern::Poisson,
        },
        sizes: vec![(Duration::ZERO, sizes)],
        variants: vec![alone],
        ..scenario.clone()
    };
    let run = simulate(&steady, &Controller::fixed(replicas), 1, |_| {});
    Ok(run.map_err(|invalid| format!("{}: {invalid}", scenario.name))?.slo_attainment)
}

fn table(out: &mut impl Write, all: &[Carried]) -> std::io::Result<()> {
    let width = |of: fn(&Carried) -> usize, least: usize| all.iter().map(of).max().unwrap_or(0).max(least);
    let names = width(|one| one.variant.chars().count(), "VARIANT".len());
    let scenarios = width(|one| one.scenario.chars().count(), "SCENARIO".len());
    writeln!(
        out,
        "{:<scenarios$}  {:<names$}  {:>13}  {:>8}  {:>11}  {:>12}  {:>8}  {:>14}  {:>13}",
        "SCENARIO",
        "VARIANT",
        "PROMPT/OUTPUT",
        "REPLICAS",
        "RPS IN SLO",
        "AT FULL LOAD",
        "COST",
        "PER M TOKENS",
        "PER M OUTPUT"
    )?;
    for one in all {
        let shape = format!("{:.0}/{:.0}", one.prompt_tokens, one.output_tokens);
        let price = |price: Option<f64>| price.map_or("-".into(), |price| format!("{price:.4}"));
        writeln!(
            out,
            "{:<scenarios$}  {:<names$}  {shape:>13}  {:>8}  {:>11.2}  {:>12.2}  {:>8.2}  {:>14}  {:>13}",
            one.scenario,
            one.variant,
            one.replicas,
            one.rps_within_slo,
            one.rps_at_full_load,
            one.cost_per_hour,
            price(one.cost_per_million_tokens),
            price(one.cost_per_million_output_tokens),
        )?;
    }
    Ok(())
}
