//! A scenario drawn by a seed: token shape, hardware, start-up and load, each within what the file says.

use std::time::Duration;

use wva_core::model::Bounds;
use wva_core::units::{Replicas, whole};
use wva_sim::{LoadShape, RequestSizes, Rng, Scenario, Segment, SimVariant, StartUp};

use super::super::file::{Between, Problem, RandomLoad, TimeBetween, known_physics};
use super::build;

/// What a replica is filled to at the start: a fleet that somebody has sized.
const FILLED: f64 = 0.75;

/// What is wrong with a random scenario.
pub(super) fn check(random: &RandomLoad) -> Result<(), Problem> {
    let upright = |name: &'static str, between: &Between| {
        let Between { from, to } = between;
        let wrong =
            || Problem::at([name.into()], format!("from {} is more than to {}", from.get(), to.get()));
        (from <= to).then_some(()).ok_or_else(wrong)
    };
    upright("slower", &random.slower)?;
    upright("kv", &random.kv)?;
    upright("first", &random.first)?;
    upright("factor", &random.factor)?;
    upright("within", &random.within)?;
    if random.start_up.from > random.start_up.to {
        return Err(Problem::at(["startUp".into()], "from is more than to"));
    }
    if random.tokens.is_empty() {
        return Err(Problem::at(["tokens".into()], "must be one at least"));
    }
    if !known_physics().contains_key(&random.preset) {
        let names: Vec<_> = known_physics().keys().map(String::as_str).collect();
        let cause = format!("no preset {:?}: must be one of {}", random.preset, names.join(", "));
        return Err(Problem::at(["preset".into()], cause));
    }
    let most = super::super::values::MAX_DURATION.as_secs_f64();
    if random.parts.get() * random.part.get().as_secs_f64() > most {
        return Err(Problem::at(["parts".into()], "longer than 8784h together"));
    }
    Ok(())
}

/// The scenario of `seed`. What is drawn comes in a fixed order, so that a later field never changes an earlier one.
pub(super) fn scenario(name: &str, random: &RandomLoad, seed: u64) -> Scenario {
    // Another sequence than the one that the simulator draws from the same seed.
    let mut rng = Rng::new(seed ^ 0x0064_7261_776e);
    let place = whole(rng.unit() * random.tokens.len() as f64) as usize;
    let shape = random.tokens.get(place).or(random.tokens.first());
    let (prompt, output) = shape.map_or((1000.0, 100.0), |shape| (shape.prompt.get(), shape.output.get()));
    let sizes = RequestSizes::uniform(prompt, output, random.spread.get());
    let preset = known_physics().get(&random.preset).map_or(wva_sim::TP1, |entry| entry.physics());
    let mut physics = preset.slower(even_in_log(&mut rng, &random.slower));
    physics.kv_tokens = whole((f64::from(physics.kv_tokens) * even(&mut rng, &random.kv)).max(1.0));
    let start_up = StartUp { mean: time(&mut rng, &random.start_up), spread: 0.05 };

    let full = physics.capacity_rps(RequestSizes::fixed(prompt.trunc(), output.trunc()));
    let (least, most) = (random.within.from.get(), random.within.to.get());
    let mut asked = even(&mut rng, &random.first).clamp(least, most);
    let first = asked;
    let mut segments = Vec::new();
    for _ in 0..whole(random.parts.get()) {
        segments.push(Segment::Hold { rps: asked * full, lasts: random.part.get() });
        asked = (asked * even_in_log(&mut rng, &random.factor)).clamp(least, most);
    }
    let load = LoadShape::new(segments);
    let max = whole(random.max.get());
    let replicas = Replicas::new(whole((first / FILLED).ceil()).clamp(1, max));
    let bounds = Bounds { min: Replicas::ONE, max: Some(Replicas::new(max)) };
    let variant =
        SimVariant { replicas, bounds, start_up, ..SimVariant::new("replica", physics, build::cost(None)) };
    Scenario::new(name, load.length(), load, sizes, vec![variant])
}

fn even(rng: &mut Rng, between: &Between) -> f64 {
    let (from, to) = (between.from.get(), between.to.get());
    from + (to - from) * rng.unit()
}

fn even_in_log(rng: &mut Rng, between: &Between) -> f64 {
    let (from, to) = (between.from.get(), between.to.get());
    from * (to / from).powf(rng.unit())
}

fn time(rng: &mut Rng, between: &TimeBetween) -> Duration {
    let (from, to) = (between.from.get(), between.to.get());
    from + to.saturating_sub(from).mul_f64(rng.unit())
}
