//! Measures how many times faster than real time the simulator is, including the decisions of the core.
//!
//! `cargo run --profile dist -p wva-sim --example speed [REPLICAS] [HOURS]`

#![allow(clippy::disallowed_methods, reason = "it measures real time")]

use std::io::Write;
use std::time::{Duration, Instant};

use wva_core::model::Analyzer;
use wva_core::model::Policy;
use wva_core::units::{Cost, OutOfRange, Replicas};
use wva_sim::{Controller, LoadShape, RequestSizes, Scenario, Segment, SimVariant, TP1, simulate};

/// `replicas` under 4000/1000 tokens at 60 % of their capacity.
fn scenario(replicas: u32, hours: u64) -> Result<Scenario, OutOfRange> {
    let lasts = Duration::from_secs(hours * 3600);
    let load = LoadShape::new(vec![Segment::Hold { rps: 1.8 * f64::from(replicas), lasts }]);
    let mut variant = SimVariant::new("v", TP1, Cost::new(1.0)?);
    variant.replicas = Replicas::new(replicas);
    variant.bounds.min = variant.replicas;
    variant.bounds.max = Some(variant.replicas);
    Ok(Scenario::new("speed", lasts, load, RequestSizes::uniform(4000.0, 1000.0, 0.1), vec![variant]))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let core = |analyzer: Analyzer| {
        let mut policy = Policy::default();
        policy.global.default.analyzer = analyzer;
        Controller::core(analyzer.as_str(), policy)
    };
    let controllers = [
        core(Analyzer::Rate),
        core(Analyzer::Saturation),
        core(Analyzer::SaturationPercent),
        Controller::keda_epp(),
        Controller::fixed(0),
    ];
    let mut arguments = std::env::args().skip(1);
    let replicas = arguments.next().map_or(Ok(10), |text| text.parse())?;
    let hours = arguments.next().map_or(Ok(24), |text| text.parse())?;
    let scenario = scenario(replicas, hours)?;
    for controller in &controllers {
        let started = Instant::now();
        let run = simulate(&scenario, controller, 1, |_| {})?;
        let elapsed_s = started.elapsed().as_secs_f64();
        let name = &controller.name;
        let ratio = scenario.duration.as_secs_f64() / elapsed_s;
        let request_ns = elapsed_s * 1e9 / run.requests as f64;
        writeln!(
            std::io::stdout(),
            "{name:18} {elapsed_s:7.2} s, {ratio:7.0} times real time, {request_ns:6.0} ns a request"
        )?;
    }
    Ok(())
}
