//! What scenario files mean: each becomes one or more plans, and a plan becomes the simulator's scenario for a seed.

mod build;
mod change;
mod draw;
mod traced;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use smol_str::SmolStr;
use wva_sim::{Arrivals, Scenario, Slo};

use self::traced::Traced;
use super::file::{self, File, FileError, RandomLoad, ScenarioFile, SetFile, Source};
use super::trace::{Series, TraceError};

/// A trace in place of the load that files say, or for those that ask for one.
#[derive(Debug, Clone, Default)]
pub struct Given {
    /// The trace's file.
    pub trace: Option<PathBuf>,
    /// Which of its columns or models.
    pub series: Option<String>,
}

/// Something to simulate.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Its name in tables: the file's, and the variation's.
    pub name: SmolStr,
    /// What it is about, for people; empty when nothing is said.
    pub about: String,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    /// The same for every seed, but for a trace whose requests are repeated or shifted by chance.
    Same { scenario: Box<Scenario>, traced: Option<Arc<Traced>> },
    /// Another one for every seed.
    Drawn(Arc<RandomLoad>),
}

/// Files that give no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A scenario file is wrong.
    #[error(transparent)]
    File(#[from] FileError),
    /// A trace is wrong.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

impl Plan {
    /// What users were promised.
    #[must_use]
    pub fn slo(&self) -> Slo {
        match &self.kind {
            Kind::Same { scenario, .. } => scenario.slo,
            Kind::Drawn(_) => Slo::default(),
        }
    }

    /// How long requests come, in hours.
    #[must_use]
    pub fn hours(&self) -> f64 {
        let length = match &self.kind {
            Kind::Same { scenario, .. } => scenario.duration,
            Kind::Drawn(random) => random.part.get().mul_f64(random.parts.get()),
        };
        length.as_secs_f64() / 3600.0
    }

    /// The scenario for `seed`.
    #[must_use]
    pub fn scenario(&self, seed: u64) -> Scenario {
        match &self.kind {
            Kind::Drawn(random) => draw::scenario(&self.name, random, seed),
            Kind::Same { scenario, traced } => {
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
pub fn plans(path: &Path, given: &Given) -> Result<Vec<Plan>, PlanError> {
    let (source, file) = file::read(path)?;
    match file {
        File::Scenario(scenario) => of_scenario(&source, &scenario, given),
        File::Set(set) => of_set(&source, &set, given),
        File::Random(random) => {
            let checked = draw::check(&random.random);
            checked.map_err(|problem| source.problem(&problem.inside(["random".into()])))?;
            let about = random.about.unwrap_or_default();
            Ok(vec![Plan { name: name(path), about, kind: Kind::Drawn(Arc::new(random.random)) }])
        }
    }
}

/// A file's name without its ending.
fn name(path: &Path) -> SmolStr {
    path.file_stem().map_or_else(|| "scenario".into(), |stem| stem.to_string_lossy().into())
}

fn of_scenario(source: &Source, file: &ScenarioFile, given: &Given) -> Result<Vec<Plan>, PlanError> {
    let wrong = |problem: &_| source.problem(problem);
    let base = build::scenario(name(&source.path), file).map_err(|problem| wrong(&problem))?;
    let trace = match (&given.trace, &file.load.trace) {
        (Some(path), wanted) => Some((path.clone(), wanted.clone().unwrap_or_default())),
        (None, Some(wanted)) => {
            let beside = source.path.parent().unwrap_or(Path::new(""));
            let needed = build::needed_trace();
            let path = wanted.file.as_ref().map(|own| beside.join(own)).ok_or_else(|| wrong(&needed))?;
            Some((path, wanted.clone()))
        }
        (None, None) => None,
    };
    let mut scenario = base;
    let traced = match trace {
        None => None,
        Some((path, wanted)) => {
            let series = Series(given.series.clone().or_else(|| wanted.series.clone()));
            let read = super::trace::read(&path, &series)?;
            traced::apply(&mut scenario, read, &wanted, file).map_err(|problem| wrong(&problem))?
        }
    };
    let about = file.about.clone().unwrap_or_default();
    let kind = Kind::Same { scenario: Box::new(scenario), traced: traced.map(Arc::new) };
    let plan = Plan { name: name(&source.path), about, kind };
    varied(source, vec![plan], &file.vary)
}

fn of_set(source: &Source, set: &SetFile, given: &Given) -> Result<Vec<Plan>, PlanError> {
    let mut all = Vec::new();
    for (index, path) in set.of.iter().enumerate() {
        let beside = source.path.parent().unwrap_or(Path::new("")).join(path);
        let (inner, file) = file::read(&beside)?;
        let File::Scenario(scenario) = file else {
            let cause = format!("{}: must be a scenario, not a set or a random one", path.display());
            let problem = file::Problem::at(["of".into(), index.into()], cause);
            return Err(source.problem(&problem).into());
        };
        all.extend(of_scenario(&inner, &scenario, given)?);
    }
    varied(source, all, &set.vary)
}

/// Every plan with each change; as they are without any.
fn varied(source: &Source, plans: Vec<Plan>, changes: &[file::Change]) -> Result<Vec<Plan>, PlanError> {
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
