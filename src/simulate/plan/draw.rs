//! Draws the scenario of a seed: tokens, hardware, start-up and load, each in the range of the file.

use std::time::Duration;

use wva_core::model::Bounds;
use wva_core::units::{Replicas, truncated_u32};
use wva_sim::{
    Deviations, LoadShape, Physics, RequestSizes, Rng, Scenario, Segment, SimVariant, SizeSpread, TP1,
};

use super::super::file::{PhysicsEntry, Problem, RandomLoad, Range, TimeRange, preset};
use super::super::values::Share;
use super::build;

/// Utilisation at the start, as of a fleet that was sized for its load.
const INITIAL_UTILISATION: f64 = 0.75;

/// Changes a seed, so that these random numbers are not those that the simulator draws from it. "drawn" in ASCII.
const SEED_MASK: u64 = 0x0064_7261_776e;

/// Checks the ranges of a random scenario.
pub(super) fn check(random: &RandomLoad) -> Result<(), Problem> {
    let RandomLoad { slower, kv, first, factor, within, start_up, .. } = random;
    for (name, range) in
        [("slower", slower), ("kv", kv), ("first", first), ("factor", factor), ("within", within)]
    {
        let (from, to) = (range.from.get(), range.to.get());
        if from > to {
            return Err(Problem::new(name, format!("from {from} is more than to {to}")));
        }
    }
    if start_up.from > start_up.to {
        return Err(Problem::new("startUp", "from is more than to"));
    }
    if random.tokens.is_empty() == random.sizes.is_none() {
        return Err(Problem::new("tokens", "must have at least one entry, unless there are `sizes` instead"));
    }
    match (&random.preset, random.families.is_empty()) {
        (Some(name), true) => preset(name).map(|_| ()).map_err(|cause| Problem::new("preset", cause))?,
        (None, false) => {}
        _ => return Err(Problem::new("preset", "needs a preset or `families`, not both")),
    }
    for (index, family) in random.families.iter().enumerate() {
        let inside = |cause| Problem::new(&format!("families[{index}].physics"), cause);
        family.physics.physics().map_err(inside)?;
    }
    if random.parts.get() * random.part.get().as_secs_f64() > Scenario::MAX_DURATION.as_secs_f64() {
        return Err(Problem::new("parts", "the parts together are longer than 8784h"));
    }
    Ok(())
}

/// The scenario of `seed`. Values are drawn in a fixed order, so that a new field at the end changes none before it.
pub(super) fn scenario(name: &str, random: &RandomLoad, seed: u64) -> Scenario {
    let mut rng = Rng::new(seed ^ SEED_MASK);
    let sizes = draw_sizes(&mut rng, random);
    let (prompt, output) = (sizes.prompt, sizes.output);
    let (standard, deviations) = draw_hardware(&mut rng, random);
    let mut physics = standard.slower(log_uniform(&mut rng, &random.slower));
    physics.kv_tokens =
        truncated_u32((f64::from(physics.kv_tokens) * uniform(&mut rng, &random.kv)).max(1.0));
    let start_up = uniform_time(&mut rng, &random.start_up);

    // At full load, nearly all experts are read in every step.
    let loaded = Physics { base_s: physics.base_s + deviations.experts_s, ..physics };
    let full = loaded.capacity_rps(RequestSizes::fixed(prompt.trunc(), output.trunc()));
    let (min_load, max_load) = (random.within.from.get(), random.within.to.get());
    let mut load = uniform(&mut rng, &random.first).clamp(min_load, max_load);
    let first = load;
    let mut segments = Vec::new();
    for _ in 0..truncated_u32(random.parts.get()) {
        segments.push(Segment::Hold { rps: load * full, lasts: random.part.get() });
        load = (load * log_uniform(&mut rng, &random.factor)).clamp(min_load, max_load);
    }
    let load = LoadShape::new(segments);
    let max = truncated_u32(random.max.get());
    let replicas = Replicas::new(truncated_u32((first / INITIAL_UTILISATION).ceil()).clamp(1, max));
    let bounds = Bounds { min: Replicas::ONE, max: Some(Replicas::new(max)) };
    let mut variant =
        SimVariant { replicas, bounds, ..SimVariant::new("replica", physics, build::cost(None)) };
    variant.start_up.mean = start_up;
    variant.deviations = deviations;
    Scenario::new(name, load.length(), load, sizes, vec![variant])
}

fn draw_sizes(rng: &mut Rng, random: &RandomLoad) -> RequestSizes {
    if let Some(ranges) = &random.sizes {
        let (prompt, output) =
            (log_uniform(rng, &ranges.prompt).round(), log_uniform(rng, &ranges.output).round());
        let spread = SizeSpread::LogNormal(log_uniform(rng, &ranges.cv));
        return RequestSizes { prompt, output, spread };
    }
    let shape = pick(rng, &random.tokens);
    let (prompt, output) = shape.map_or((1000.0, 100.0), |shape| (shape.prompt.get(), shape.output.get()));
    RequestSizes::uniform(prompt, output, random.spread.map_or(0.5, Share::get))
}

/// The hardware of the preset; or of a family, each parameter of its own between a half of it and twice it.
fn draw_hardware(rng: &mut Rng, random: &RandomLoad) -> (Physics, Deviations) {
    let Some(family) = pick(rng, &random.families) else {
        let known = random.preset.as_ref().and_then(|name| preset(name).ok());
        return (known.map_or(TP1, PhysicsEntry::physics), Deviations::default());
    };
    let mut physics = family.physics.physics().unwrap_or(TP1);
    for parameter in [
        &mut physics.base_s,
        &mut physics.per_prompt_token_s,
        &mut physics.per_sequence_s,
        &mut physics.per_kv_token_s,
    ] {
        *parameter *= 2.0_f64.powf(2.0 * rng.unit() - 1.0);
    }
    (physics, family.rough.as_ref().map(build::deviations).unwrap_or_default())
}

/// One of `choices`; draws nothing where there are none.
fn pick<'a, T>(rng: &mut Rng, choices: &'a [T]) -> Option<&'a T> {
    if choices.is_empty() {
        return None;
    }
    choices.get(truncated_u32(rng.unit() * choices.len() as f64) as usize).or(choices.first())
}

fn uniform(rng: &mut Rng, range: &Range) -> f64 {
    let (from, to) = (range.from.get(), range.to.get());
    from + (to - from) * rng.unit()
}

fn log_uniform(rng: &mut Rng, range: &Range) -> f64 {
    let (from, to) = (range.from.get(), range.to.get());
    from * (to / from).powf(rng.unit())
}

fn uniform_time(rng: &mut Rng, range: &TimeRange) -> Duration {
    let (from, to) = (range.from.get(), range.to.get());
    from + to.saturating_sub(from).mul_f64(rng.unit())
}
