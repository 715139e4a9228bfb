//! Plans: a scenario file gives one or more, and a plan gives the simulator's scenario of each seed.

mod build;
mod change;
mod draw;
mod traced;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use smol_str::SmolStr;
use wva_sim::{Arrivals, Scenario, Slo};

use self::traced::TracedRequests;
use super::file::{self, File, FileError, RandomLoad, ScenarioFile, SetFile, Source};
use super::trace::{Series, TraceError};

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

/// A file that gives no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The scenario file is invalid.
    #[error(transparent)]
    File(#[from] FileError),
    /// The trace is invalid.
    #[error(transparent)]
    Trace(#[from] TraceError),
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
pub fn plans(path: &Path, trace_override: &TraceOverride) -> Result<Vec<Plan>, PlanError> {
    let (source, file) = file::read(path)?;
    match file {
        File::Scenario(scenario) => scenario_plans(&source, &scenario, trace_override),
        File::Set(set) => set_plans(&source, &set, trace_override),
        File::Random(random) => {
            let checked = draw::check(&random.random);
            checked.map_err(|problem| source.problem(&problem.inside(["random".into()])))?;
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
) -> Result<Vec<Plan>, PlanError> {
    let error = |problem: &_| source.problem(problem);
    let base = build::scenario(name(&source.path), file).map_err(|problem| error(&problem))?;
    let trace = match (&trace_override.trace, &file.load.trace) {
        (Some(path), options) => Some((path.clone(), options.clone().unwrap_or_default())),
        (None, Some(options)) => {
            let folder = source.path.parent().unwrap_or(Path::new(""));
            let missing = build::missing_trace();
            let path = options.file.as_ref().map(|file| folder.join(file)).ok_or_else(|| error(&missing))?;
            Some((path, options.clone()))
        }
        (None, None) => None,
    };
    let mut scenario = base;
    let traced = match trace {
        None => None,
        Some((path, options)) => {
            let series = Series(trace_override.series.clone().or_else(|| options.series.clone()));
            let read = super::trace::read(&path, &series)?;
            traced::apply(&mut scenario, read, &options, file).map_err(|problem| error(&problem))?
        }
    };
    let about = file.about.clone().unwrap_or_default();
    let kind = Kind::Fixed { scenario: Box::new(scenario), traced: traced.map(Arc::new) };
    let plan = Plan { name: name(&source.path), about, kind };
    with_variations(source, vec![plan], &file.vary)
}

fn set_plans(source: &Source, set: &SetFile, trace_override: &TraceOverride) -> Result<Vec<Plan>, PlanError> {
    let mut all = Vec::new();
    for (index, path) in set.of.iter().enumerate() {
        let beside = source.path.parent().unwrap_or(Path::new("")).join(path);
        let (inner, file) = file::read(&beside)?;
        let File::Scenario(scenario) = file else {
            let cause = format!("{}: must be a scenario, not a set or a random one", path.display());
            let problem = file::Problem::at(["of".into(), index.into()], cause);
            return Err(source.problem(&problem).into());
        };
        all.extend(scenario_plans(&inner, &scenario, trace_override)?);
    }
    with_variations(source, all, &set.vary)
}

/// Each plan with each of the changes; the plans themselves if there are none.
fn with_variations(
    source: &Source,
    plans: Vec<Plan>,
    changes: &[file::Change],
) -> Result<Vec<Plan>, PlanError> {
    if changes.is_empty() {
        return Ok(plans);
    }
    let mut all = Vec::with_capacity(plans.len() * changes.len());
    for plan in &plans {
        for (index, change) in changes.iter().enumerate() {
            let changed = change::changed(plan, change);
            let outer = |problem: file::Problem| problem.inside(["vary".into(), index.into()]);
            all.push(changed.map_err(|problem| source.problem(&outer(problem)))?);
        }
    }
    Ok(all)
}
