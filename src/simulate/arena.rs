//! The arena: who takes part, and all their runs, one on each processor.

use std::num::NonZero;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use wva_sim::{Arena, Controller, GOLDEN, MetricPath, Score, Sources, WORKLOADS, arena_sources};

use super::input::InputError;
use super::policy::controller_for;
use super::trace::{self, Trace};

/// Who takes part: a name, a policy, and the period of its HPA in seconds.
const ENTRANTS: [(&str, &str, u64); 8] = [
    ("static-2", "static:2", 15),
    ("static-4", "static:4", 15),
    ("static-8", "static:8", 15),
    ("KEDA, queue 5", "arena-keda", 15),
    ("reactive", "arena-reactive", 15),
    ("rate", "rate", 15),
    ("rate, HPA every 3 s", "rate", 3),
    (SCRAPES_PODS, "rate", 3),
];
/// The one that scrapes pods itself. The others that read metrics through an HPA have a Prometheus that scrapes every 15 s.
const SCRAPES_PODS: &str = "rate, HPA every 3 s, pods scraped";
/// The usual scrape interval of a Prometheus.
const SCRAPE_INTERVAL: Duration = Duration::from_secs(15);
/// The one that all others are compared with.
pub const BASELINE: &str = "static-4";

/// Plays workloads with a policy.
#[derive(Debug, Clone)]
pub struct Entrant {
    /// Its name in tables.
    pub name: &'static str,
    controller: Controller,
    sync: Duration,
}

/// The scalers of the tables.
///
/// # Errors
/// A policy is unknown.
pub fn entrants() -> Result<Vec<Entrant>, InputError> {
    let entrant = |(name, policy, sync_s)| {
        let mut controller = controller_for(policy)?;
        if policy == "rate" && name != SCRAPES_PODS {
            controller.path = MetricPath::behind_prometheus(SCRAPE_INTERVAL);
        }
        Ok(Entrant { name, controller, sync: Duration::from_secs(sync_s) })
    };
    ENTRANTS.into_iter().map(entrant).collect()
}

/// The sources of a trace of single requests.
///
/// # Errors
/// The trace cannot be read, or has rates only.
pub fn sources(path: &Path) -> Result<Sources, InputError> {
    match trace::read(path, None)? {
        Trace::Requests(requests) => Ok(arena_sources(requests)),
        Trace::Rates(_) => {
            let cause = "has rates and no single requests: give an Azure LLM CSV or Mooncake JSON lines";
            Err(InputError::new(path.display(), cause))
        }
    }
}

/// The score of one run.
#[derive(Debug, Clone, Copy)]
pub struct Played {
    /// Index into the entrants.
    pub entrant: usize,
    /// Name of the workload.
    pub workload: &'static str,
    /// Its figures.
    pub score: Score,
}

/// Every workload that `arena` has with every entrant and seed. `report` gets the number of runs that are done, and of all.
pub fn play(
    arena: &Arena,
    entrants: &[Entrant],
    seeds: &[u64],
    report: impl Fn(usize, usize) + Sync,
) -> Vec<Played> {
    // The longest first, so that no processor has one of them alone at the end.
    let workloads = GOLDEN.iter().copied().chain(WORKLOADS.into_iter().filter(|name| !GOLDEN.contains(name)));
    let mut jobs = Vec::new();
    for workload in workloads {
        for entrant in 0..entrants.len() {
            jobs.extend(seeds.iter().map(|seed| (workload, entrant, *seed)));
        }
    }
    let (next, done, all) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(vec![None; jobs.len()]));
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some((workload, entrant, seed)) = jobs.get(index).copied() else { return };
            let Entrant { controller, sync, .. } = &entrants[entrant];
            let score = arena.play(workload, controller, *sync, seed);
            if let Ok(mut all) = all.lock() {
                all[index] = score.map(|score| Played { entrant, workload, score });
            }
            report(done.fetch_add(1, Ordering::Relaxed) + 1, jobs.len());
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(work);
        }
    });
    all.into_inner().unwrap_or_default().into_iter().flatten().collect()
}

/// Means over the runs of `entrant` in the workloads that `includes` accepts; `None` without such runs.
#[must_use]
pub fn mean(played: &[Played], entrant: usize, includes: impl Fn(&str) -> bool) -> Option<Means> {
    let runs = played.iter().filter(|run| run.entrant == entrant && includes(run.workload));
    let scores: Vec<Score> = runs.map(|run| run.score).collect();
    let mean =
        |value: fn(&Score) -> f64| scores.iter().map(value).sum::<f64>() / f64::max(scores.len() as f64, 1.0);
    (!scores.is_empty()).then(|| Means {
        per_gpu: mean(|score| score.per_gpu),
        good: mean(|score| score.good),
        gpus: mean(|score| score.gpus),
        changes: mean(|score| f64::from(score.changes)),
        reversals: mean(|score| f64::from(score.reversals)),
    })
}

/// Means over runs; each counts the same.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Means {
    /// Good requests a second and average GPU.
    pub per_gpu: f64,
    /// Good requests by all that came.
    pub good: f64,
    /// Average GPUs.
    pub gpus: f64,
    /// Changes of the number of replicas.
    pub changes: f64,
    /// Of these, changes of direction.
    pub reversals: f64,
}
