//! Plans: a scenario file gives one or more, and a plan gives the simulator's scenario of each seed.

mod build;
mod change;
mod draw;
mod traced;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use smol_str::{SmolStr, format_smolstr};
use wva_sim::{Arrivals, Scenario, Slo};

use self::traced::TracedRequests;
use super::file::{self, Change, File, Problem, RandomLoad, ScenarioFile, SetFile, Source};
use super::input::InputError;
use super::trace;

/// A trace that replaces the load of scenario files, or that they ask for.
#[derive(Debug, Clone, Default)]
pub struct TraceOverride {
    /// The trace's file.
    pub trace: Option<PathBuf>,
    /// The column or model of the trace to use.
    pub series: Option<String>,
}

/// Something to simulate.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Its name in tables: the file's, and the variation's.
    pub name: SmolStr,
    /// A description for people; empty if the file has none.
    pub about: String,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    /// The same scenario for every seed, except that requests of a trace may be repeated or shifted randomly.
    Fixed { scenario: Box<Scenario>, traced: Option<Arc<TracedRequests>> },
    /// A scenario drawn by each seed.
    Random(Arc<RandomLoad>),
}

impl Plan {
    /// The latency objectives.
    #[must_use]
    pub fn slo(&self) -> Slo {
        match &self.kind {
            Kind::Fixed { scenario, .. } => scenario.slo,
            Kind::Random(_) => Slo::default(),
        }
    }

    /// How long requests arrive, hours.
    #[must_use]
    pub fn hours(&self) -> f64 {
        let length = match &self.kind {
            Kind::Fixed { scenario, .. } => scenario.duration,
            Kind::Random(random) => random.part.get().mul_f64(random.parts.get()),
        };
        length.as_secs_f64() / 3600.0
    }

    /// The scenario for `seed`.
    #[must_use]
    pub fn scenario(&self, seed: u64) -> Scenario {
        match &self.kind {
            Kind::Random(random) => draw::scenario(&self.name, random, seed),
            Kind::Fixed { scenario, traced } => {
                let mut scenario = (**scenario).clone();
                if let Some(traced) = traced {
                    scenario.arrivals = Arrivals::Trace(traced.arrivals(seed));
                }
                scenario
            }
        }
    }
}

/// The plans of `path`.
///
/// # Errors
/// Names the file, the line and the field.
pub fn plans(path: &Path, trace_override: &TraceOverride) -> Result<Vec<Plan>, InputError> {
    let (source, file) = file::read(path)?;
    match file {
        File::Scenario(scenario) => scenario_plans(&source, &scenario, trace_override),
        File::Set(set) => set_plans(&source, &set, trace_override),
        File::Random(random) => {
            let checked = draw::check(&random.random);
            checked.map_err(|problem| source.problem(&problem.inside("random")))?;
            let about = random.about.unwrap_or_default();
            Ok(vec![Plan { name: name(path), about, kind: Kind::Random(Arc::new(random.random)) }])
        }
    }
}

/// A file's name without its ending.
fn name(path: &Path) -> SmolStr {
    path.file_stem().map_or_else(|| "scenario".into(), |stem| stem.to_string_lossy().into())
}

fn scenario_plans(
    source: &Source,
    file: &ScenarioFile,
    trace_override: &TraceOverride,
) -> Result<Vec<Plan>, InputError> {
    let name = name(&source.path);
    let mut scenario = build::scenario(name.clone(), file).map_err(|problem| source.problem(&problem))?;
    let mut traced = None;
    if trace_override.trace.is_some() || file.load.trace.is_some() {
        let options = file.load.trace.clone().unwrap_or_default();
        let series = trace_override.series.as_ref().or(options.series.as_ref());
        let beside = options.file.as_ref().map(|file| source.beside(file));
        let path = trace_override.trace.clone().or(beside).ok_or_else(|| {
            let cause = "no trace file: give --trace FILE, or set `file` here";
            source.problem(&Problem::new("load.trace", cause))
        })?;
        let read = trace::read(&path, series.map(String::as_str))?;
        let applied = traced::apply(&mut scenario, read, &options, file);
        traced = applied.map_err(|problem| source.problem(&problem))?.map(Arc::new);
    }
    let about = file.about.clone().unwrap_or_default();
    let plan = Plan { name, about, kind: Kind::Fixed { scenario: Box::new(scenario), traced } };
    with_variations(source, vec![plan], &file.vary)
}

fn set_plans(
    source: &Source,
    set: &SetFile,
    trace_override: &TraceOverride,
) -> Result<Vec<Plan>, InputError> {
    let mut all = Vec::new();
    for (index, path) in set.of.iter().enumerate() {
        let (inner, file) = file::read(&source.beside(path))?;
        let File::Scenario(scenario) = file else {
            let cause = format!("{}: must be a scenario, not a set or a random one", path.display());
            return Err(source.problem(&Problem::new(&format!("of[{index}]"), cause)));
        };
        all.extend(scenario_plans(&inner, &scenario, trace_override)?);
    }
    with_variations(source, all, &set.vary)
}

/// Each plan with each of the changes; the plans themselves if there are none.
fn with_variations(source: &Source, plans: Vec<Plan>, changes: &[Change]) -> Result<Vec<Plan>, InputError> {
    if changes.is_empty() {
        return Ok(plans);
    }
    let mut all = Vec::with_capacity(plans.len() * changes.len());
    for plan in &plans {
        for (index, change) in changes.iter().enumerate() {
            let mut plan = plan.clone();
            plan.name = format_smolstr!("{}, {}", plan.name, change.name);
            // Only scenarios have variations: neither sets nor random ones are part of a set.
            if let Kind::Fixed { scenario, traced } = &mut plan.kind {
                scenario.name = plan.name.clone();
                let applied = change::apply(change, scenario, traced);
                let outer = |problem: Problem| problem.inside(&format!("vary[{index}]"));
                applied.map_err(|problem| source.problem(&outer(problem)))?;
            }
            all.push(plan);
        }
    }
    Ok(all)
}
