//! The gates: what must hold, what was found, and whether it does. Means of all seeds count; the worst stands beside them.

use wva::simulate::{Figure, Line};
use wva_sim::Run;

use super::runs::{BASELINES, Runs};

/// By how much a baseline must be better to be better.
const BETTER: f64 = 0.95;
/// Seconds after which constant load may turn no number round.
const SETTLED_S: f64 = 900.0;

/// One gate.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    /// What it is about.
    pub(crate) what: String,
    /// What must hold.
    pub(crate) wanted: String,
    /// What was found.
    pub(crate) found: String,
    /// It holds.
    pub(crate) holds: bool,
}

/// `figure` stays below `most`, or at it.
pub(crate) fn at_most(what: &str, figure: Figure, most: f64, unit: &str) -> Gate {
    let Figure { mean, worst } = figure;
    Gate {
        what: what.into(),
        wanted: format!("at most {most:.3}{unit}"),
        found: format!("{mean:.3}{unit} (worst {worst:.3})"),
        holds: mean <= most,
    }
}

/// No baseline is better on both: cost and the tail.
pub(crate) fn on_the_frontier(runs: &Runs, scenario: &str, ours: &str) -> Result<Gate, String> {
    let own = runs.line(scenario, ours)?;
    let (cost, tail) = (own.row.cost_avg.mean, own.row.ttft_p99_s.mean);
    let mut found = format!("{cost:.2}, {tail:.2} s");
    let mut holds = true;
    for name in BASELINES {
        let other = runs.line(scenario, name)?;
        let (its_cost, its_tail) = (other.row.cost_avg.mean, other.row.ttft_p99_s.mean);
        found += &format!("; {name} {its_cost:.2}, {its_tail:.2} s");
        holds &= !(its_cost < BETTER * cost && its_tail < BETTER * tail);
    }
    let (what, wanted) = (format!("{scenario}: cost and p99"), "no baseline better on both".into());
    Ok(Gate { what, wanted, found, holds })
}

/// Nobody collapses where a baseline stands: most requests in time, and all of them answered.
pub(crate) fn no_collapse(runs: &Runs, scenario: &str, ours: &str) -> Result<Gate, String> {
    let share = |line: &Line| line.row.slo_attainment.mean;
    let own = share(&runs.line(scenario, ours)?);
    let mut best: f64 = 0.0;
    for name in BASELINES {
        best = best.max(share(&runs.line(scenario, name)?));
    }
    let left = |policy: &str| {
        let own = runs.of(policy).filter(|run| run.scenario == scenario);
        own.map(|run| run.unfinished).sum::<u64>()
    };
    let (own_left, their_left) = (left(ours), BASELINES.map(left).into_iter().min().unwrap_or(0));
    let (own_percent, best_percent) = (100.0 * own, 100.0 * best);
    Ok(Gate {
        what: format!("{scenario}: no collapse"),
        wanted: "half of the requests within the objectives where a baseline has that, none left unanswered"
            .into(),
        found: format!("{own_percent:.1} % (best baseline {best_percent:.1} %), {own_left} unanswered"),
        holds: (own >= 0.5 || best < 0.5) && (own_left == 0 || their_left > 0),
    })
}

/// No change of direction once constant load has settled.
pub(crate) fn no_late_reversal<'a>(what: &str, runs: impl Iterator<Item = &'a Run>) -> Gate {
    let (mut count, mut reversed, mut late) = (0, 0, 0);
    for run in runs {
        count += 1;
        let (turns, changes) = late_changes(run);
        reversed += turns;
        late += changes;
    }
    Gate {
        what: what.into(),
        wanted: "no change of direction after minute 15".into(),
        found: format!("{reversed} in {count} runs, {late} changes at all"),
        holds: reversed == 0,
    }
}

/// Changes of direction after it has settled, and changes.
fn late_changes(run: &Run) -> (usize, usize) {
    let (mut turns, mut changes) = (0, 0);
    for (index, write) in run.writes.iter().enumerate().filter(|(_, write)| write.at_s > SETTLED_S) {
        changes += 1;
        let before = run.writes[..index].iter().rev().find(|other| other.variant == write.variant);
        turns +=
            usize::from(before.is_some_and(|before| (before.to > before.from) != (write.to > write.from)));
    }
    (turns, changes)
}

/// Fewer streams are cut where the least loaded pods go first than where the youngest do, over all scenarios in which both were tried.
pub(crate) fn fewer_cut(runs: &Runs, policy: &str) -> Gate {
    let cut = |first: &str| {
        let own = runs.of(policy).filter(|run| run.scenario.ends_with(first));
        own.map(|run| run.errors).sum::<u64>()
    };
    let (young, light) = (cut("the youngest first"), cut("the least loaded first"));
    Gate {
        what: format!("{policy}: streams cut with the least loaded pods first"),
        wanted: "fewer than with the youngest first".into(),
        found: format!("{light}, with the youngest {young}"),
        holds: light < young,
    }
}

/// One set of random scenarios: cheaper than WVA V2 by a third, and nearly all runs without a tail.
pub(crate) fn random_set(name: &str, runs: &Runs, ours: &str) -> Vec<Gate> {
    let replicas = |policy: &str| mean(runs.of(policy).map(|run| run.replicas_avg));
    let (own, wva) = (replicas(ours), replicas(BASELINES[0]));
    let count = runs.of(ours).count();
    let quick = runs.of(ours).filter(|run| run.ttft_p95_s < 1.0).count();
    let wanted = count * 72 / 80;
    vec![
        Gate {
            what: format!("{name}: replicas"),
            wanted: "at most 0.7 × WVA V2's".into(),
            found: format!("{own:.2} = {:.2} × {wva:.2}", own / wva),
            holds: own <= 0.7 * wva,
        },
        Gate {
            what: format!("{name}: runs with p95 below 1 s"),
            wanted: format!("at least {wanted} of {count}"),
            found: format!("{quick}"),
            holds: quick >= wanted,
        },
    ]
}

/// Share of requests outside the objectives, of all requests of all runs.
pub(crate) fn outside<'a>(runs: impl Iterator<Item = &'a Run>) -> f64 {
    let (mut outside, mut all) = (0.0, 0.0);
    for run in runs {
        outside += (1.0 - run.slo_attainment) * run.requests as f64;
        all += run.requests as f64;
    }
    outside / f64::max(all, 1.0)
}

/// The mean of what there is; 0 of nothing.
pub(crate) fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    values.for_each(|value| {
        sum += value;
        count += 1.0;
    });
    sum / f64::max(count, 1.0)
}
