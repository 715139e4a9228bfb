//! The gates: a criterion, the result, and whether it holds. The mean of all seeds counts; the worst is shown as well.

use wva::simulate::Figure;
use wva_sim::{ReplicaChange, Run};

use super::runs::{BASELINES, Runs};

/// A baseline is better only below this share of the figure.
const BETTER: f64 = 0.95;
/// Seconds after which a number must not change direction under constant load.
const SETTLED_S: f64 = 900.0;

/// One gate.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    /// Its subject.
    pub(crate) subject: String,
    /// The criterion.
    pub(crate) criterion: String,
    /// The result.
    pub(crate) result: String,
    /// Whether it holds.
    pub(crate) holds: bool,
}

/// The mean of `figure` is at most `max`.
pub(crate) fn at_most(subject: &str, figure: Figure, max: f64, unit: &str) -> Gate {
    let Figure { mean, worst } = figure;
    Gate {
        subject: subject.into(),
        criterion: format!("at most {max:.3}{unit}"),
        result: format!("{mean:.3}{unit} (worst {worst:.3})"),
        holds: mean <= max,
    }
}

/// No baseline is better in both cost and tail latency.
pub(crate) fn on_the_frontier(runs: &Runs, scenario: &str, ours: &str) -> Result<Gate, String> {
    let figures = |policy: &str| {
        let line = runs.line(scenario, policy)?;
        Ok::<_, String>([line.highest(|run| run.cost_avg).mean, line.highest(|run| run.ttft_p99_s).mean])
    };
    let [cost, tail] = figures(ours)?;
    let mut result = format!("{cost:.2}, {tail:.2} s");
    let mut holds = true;
    for name in BASELINES {
        let [baseline_cost, baseline_tail] = figures(name)?;
        result += &format!("; {name} {baseline_cost:.2}, {baseline_tail:.2} s");
        holds &= !(baseline_cost < BETTER * cost && baseline_tail < BETTER * tail);
    }
    let criterion = "no baseline better on both".into();
    Ok(Gate { subject: format!("{scenario}: cost and p99"), criterion, result, holds })
}

/// No collapse where a baseline does not collapse: half of the requests within the objectives, and all of them answered.
pub(crate) fn no_collapse(runs: &Runs, scenario: &str, ours: &str) -> Result<Gate, String> {
    let figures = |policy: &str| {
        let line = runs.line(scenario, policy)?;
        let unanswered = line.runs.iter().map(|run| run.unfinished).sum::<u64>();
        Ok::<_, String>((line.slo_attainment().mean, unanswered))
    };
    let (own, own_unanswered) = figures(ours)?;
    let mut best = 0.0_f64;
    let mut best_unanswered = u64::MAX;
    for name in BASELINES {
        let (share, unanswered) = figures(name)?;
        best = best.max(share);
        best_unanswered = best_unanswered.min(unanswered);
    }
    let own_percent = 100.0 * own;
    let best_percent = 100.0 * best;
    Ok(Gate {
        subject: format!("{scenario}: no collapse"),
        criterion:
            "half of the requests within the objectives where a baseline has that, none left unanswered"
                .into(),
        result: format!(
            "{own_percent:.1} % (best baseline {best_percent:.1} %), {own_unanswered} unanswered"
        ),
        holds: (own >= 0.5 || best < 0.5) && (own_unanswered == 0 || best_unanswered > 0),
    })
}

/// No change of direction once constant load has settled.
pub(crate) fn no_late_reversal<'a>(subject: &str, runs: impl Iterator<Item = &'a Run>) -> Gate {
    let mut count = 0;
    let mut reversals = 0;
    let mut changes = 0;
    for run in runs {
        count += 1;
        for (index, write) in run.writes.iter().enumerate().filter(|(_, write)| write.at_s > SETTLED_S) {
            changes += 1;
            let before = run.writes[..index].iter().rev().find(|before| before.variant == write.variant);
            let is_reversal = |before: &ReplicaChange| (before.to > before.from) != (write.to > write.from);
            reversals += usize::from(before.is_some_and(is_reversal));
        }
    }
    Gate {
        subject: subject.into(),
        criterion: "no change of direction after minute 15".into(),
        result: format!("{reversals} in {count} runs, {changes} changes at all"),
        holds: reversals == 0,
    }
}

/// Over all scenarios with both orders, fewer streams are cut when the least loaded pods go first than when the youngest do.
pub(crate) fn fewer_cut(runs: &Runs, policy: &str) -> Gate {
    let cut = |first: &str| {
        let runs = runs.of(policy).filter(|run| run.scenario.ends_with(first));
        runs.map(|run| run.errors).sum::<u64>()
    };
    let youngest = cut("the youngest first");
    let least_loaded = cut("the least loaded first");
    Gate {
        subject: format!("{policy}: streams cut with the least loaded pods first"),
        criterion: "fewer than with the youngest first".into(),
        result: format!("{least_loaded}, with the youngest {youngest}"),
        holds: least_loaded < youngest,
    }
}

/// A set of random scenarios: fewer replicas than WVA V2 by 30 %, and nearly all runs without tail latency.
pub(crate) fn random_set(name: &str, runs: &Runs, ours: &str) -> Vec<Gate> {
    let replicas = |policy: &str| mean(runs.of(policy).map(|run| run.replicas_avg));
    let own = replicas(ours);
    let wva_v2 = replicas(BASELINES[0]);
    let count = runs.of(ours).count();
    let quick = runs.of(ours).filter(|run| run.ttft_p95_s < 1.0).count();
    let min_quick = count * 72 / 80;
    vec![
        Gate {
            subject: format!("{name}: replicas"),
            criterion: "at most 0.7 × WVA V2's".into(),
            result: format!("{own:.2} = {:.2} × {wva_v2:.2}", own / wva_v2),
            holds: own <= 0.7 * wva_v2,
        },
        Gate {
            subject: format!("{name}: runs with p95 below 1 s"),
            criterion: format!("at least {min_quick} of {count}"),
            result: format!("{quick}"),
            holds: quick >= min_quick,
        },
    ]
}

/// Share of all requests of all runs that are outside the objectives.
pub(crate) fn outside<'a>(runs: impl Iterator<Item = &'a Run>) -> f64 {
    let mut outside = 0.0;
    let mut all = 0.0;
    for run in runs {
        outside += (1.0 - run.slo_attainment) * run.requests as f64;
        all += run.requests as f64;
    }
    outside / f64::max(all, 1.0)
}

/// The mean of `values`; 0 without values.
pub(crate) fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let mut sum = 0.0;
    let mut count = 0.0;
    values.for_each(|value| {
        sum += value;
        count += 1.0;
    });
    sum / f64::max(count, 1.0)
}
