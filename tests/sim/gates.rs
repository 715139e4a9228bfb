//! The gates: a criterion, the result, and whether it holds. A criterion that the policy must meet is applied to fixed fleets as
//! well, and they must fail it: otherwise it says nothing.

use serde::{Deserialize, Serialize};
use wva_sim::{ReplicaChange, Run};

use super::stats::Mean;

/// The least share of requests within the objectives, of the mean over runs.
pub(crate) const LEAST_SHARE: f64 = 0.95;
/// How far the cost may be above that of an oracle with the same share within the objectives.
pub(crate) const MOST_REGRET: f64 = 0.35;
/// A peer is better only below this share of the cost or the tail.
const BETTER: f64 = 0.95;
/// The most requests outside the objectives in the random sets, mean over runs.
pub(crate) const MOST_OUTSIDE: f64 = 0.01;
/// The most replicas in the random sets, in those of WVA V2.
pub(crate) const MOST_REPLICAS: f64 = 0.68;
/// Seconds after which a number must not change direction under constant load.
const SETTLED_S: f64 = 900.0;

/// One gate.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Gate {
    /// Its subject.
    pub(crate) subject: String,
    /// The criterion.
    pub(crate) criterion: String,
    /// The result.
    pub(crate) result: String,
    /// Whether it holds.
    pub(crate) holds: bool,
    /// What was found, as a multiple of what is wanted: above 1 it is missed. 0 where that has no measure.
    pub(crate) excess: f64,
}

impl Gate {
    pub(crate) fn new(subject: String, criterion: impl Into<String>, result: String, holds: bool) -> Self {
        Self { subject, criterion: criterion.into(), result, holds, excess: 0.0 }
    }

    /// The same with the multiple of what is wanted.
    pub(crate) fn by(self, excess: f64) -> Self {
        Self { excess: if excess.is_finite() { excess } else { 0.0 }, ..self }
    }
}

/// The figures of a fleet in a group of runs, which meet the strict criterion or not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Verdict {
    pub(crate) share: Mean,
    /// Cost above the oracle's, as a share of it.
    pub(crate) regret: Mean,
}

impl Verdict {
    /// Of `runs`, each with the cost of the oracle that does as well.
    pub(crate) fn new(runs: &[&Run], oracle_costs: &[f64]) -> Self {
        let shares: Vec<f64> = runs.iter().map(|run| run.slo_attainment).collect();
        let regrets = runs.iter().zip(oracle_costs).map(|(run, oracle)| run.cost_avg / oracle - 1.0);
        Self { share: Mean::of(&shares), regret: Mean::of(&regrets.collect::<Vec<f64>>()) }
    }

    pub(crate) fn passes(&self) -> bool {
        self.share.mean >= LEAST_SHARE && self.regret.mean <= MOST_REGRET
    }

    /// The worse of its shares of what is allowed.
    fn excess(&self) -> f64 {
        f64::max((1.0 - self.share.mean) / (1.0 - LEAST_SHARE), self.regret.mean / MOST_REGRET)
    }

    pub(crate) fn shown(&self) -> String {
        format!("{:.1} % within, {:.0} % above the oracle", self.share.times(100.0), self.regret.times(100.0))
    }
}

/// The strict criterion.
pub(crate) fn strict(subject: &str, verdict: &Verdict) -> Gate {
    let criterion = format!(
        "at least {:.0} % within the objectives, cost at most {:.0} % above an oracle with the same share",
        100.0 * LEAST_SHARE,
        100.0 * MOST_REGRET
    );
    Gate::new(format!("{subject}: objectives and cost"), criterion, verdict.shown(), verdict.passes())
        .by(verdict.excess())
}

/// No fixed fleet meets the criterion that the policy must meet. `met` names those that do, `tried` how many were tried.
pub(crate) fn no_fixed_fleet(subject: &str, met: &[String], tried: usize) -> Gate {
    let result = match met {
        [] => format!("none of {tried}"),
        met => format!("{} of {tried}", met.join(", ")),
    };
    let criterion = "no fixed fleet, nor the largest one, meets the same criterion";
    let holds = met.is_empty() && tried > 0;
    Gate::new(format!("{subject}: fixed fleets"), criterion, result, holds).by(met.len() as f64)
}

/// No fixed fleet is cheaper with as many requests within the objectives.
pub(crate) fn cheaper_than_fixed(subject: &str, ours: f64, best: Option<(&str, f64)>) -> Gate {
    let result = best
        .map_or_else(|| format!("{ours:.2}; none"), |(name, cost)| format!("{ours:.2}; {name} {cost:.2}"));
    let holds = ours.is_finite() && best.is_none_or(|(_, cost)| ours <= cost);
    let excess = best.map_or(0.0, |(_, cost)| ours / cost);
    let criterion = "no fixed fleet is cheaper with as many requests within the objectives";
    Gate::new(format!("{subject}: cost of the best fixed fleet"), criterion, result, holds).by(excess)
}

/// Nobody who began with the same fleet is cheaper than the oracle while doing as well as what it was compared with. `cheaper` has
/// a case for each that is.
pub(crate) fn oracle_is_best(subject: &str, cheaper: &[String], searches: usize) -> Gate {
    let result = match cheaper {
        [] => format!("nobody in {searches} searches"),
        cheaper => format!("{} in {searches} searches: {}", cheaper.len(), cheaper.join("; ")),
    };
    Gate::new(
        format!("{subject}: the oracle"),
        "is beaten by nobody at the same share",
        result,
        cheaper.is_empty() && searches > 0,
    )
}

/// The mean of a figure is at most `max`.
pub(crate) fn at_most(subject: &str, figure: Mean, max: f64, unit: &str) -> Gate {
    let result = format!("{figure:.3}{unit}");
    Gate::new(subject.into(), format!("at most {max:.3}{unit}"), result, figure.mean <= max)
        .by(figure.mean / max)
}

/// Whether a fleet with these figures (cost, requests outside the objectives, p99) is better than one with `own`: clearly in one of them
/// and no worse in the others, or clearly in cost and in another one.
fn is_better([cost, outside, p99]: [f64; 3], own: [f64; 3]) -> bool {
    let clearly = |value: f64, own: f64| value < BETTER * own;
    let (cheaper, serves_more) = (clearly(cost, own[0]), clearly(outside, own[1]));
    let faster = clearly(p99, own[2]);
    let is_no_worse = cost <= own[0] && BETTER * outside <= own[1] && BETTER * p99 <= own[2];
    (is_no_worse && (cheaper || serves_more || faster)) || (cheaper && (serves_more || faster))
}

/// No peer is better.
pub(crate) fn no_peer_better(subject: &str, runs: &[Run], ours: &str, peers: &[String]) -> Gate {
    let figures = |policy: &str| {
        let own: Vec<&Run> = runs.iter().filter(|run| run.policy == policy).collect();
        let mean =
            |value: fn(&Run) -> f64| Mean::of(&own.iter().map(|run| value(run)).collect::<Vec<f64>>()).mean;
        [mean(|run| run.cost_avg), 1.0 - mean(|run| run.slo_attainment), mean(|run| run.ttft_p99_s)]
    };
    let shown = |[cost, outside, p99]: [f64; 3]| format!("{cost:.2}, {:.2} %, {p99:.2} s", 100.0 * outside);
    let own = figures(ours);
    let mut result = shown(own);
    let mut holds = own.iter().all(|figure| figure.is_finite());
    for peer in peers {
        let figures = figures(peer);
        if is_better(figures, own) {
            result += &format!("; {peer} {}", shown(figures));
            holds = false;
        }
    }
    let criterion = "no peer is better in cost, requests outside or p99 and no worse in the others, nor in cost and another one";
    Gate::new(format!("{subject}: peers"), criterion, result, holds)
}

/// No change of direction once constant load has settled.
pub(crate) fn no_late_reversal(subject: &str, runs: &[&Run]) -> Gate {
    let mut reversals = 0;
    let mut changes = 0;
    for run in runs {
        for (index, write) in run.writes.iter().enumerate().filter(|(_, write)| write.at_s > SETTLED_S) {
            changes += 1;
            let before = run.writes[..index].iter().rev().find(|before| before.variant == write.variant);
            let is_reversal = |before: &ReplicaChange| (before.to > before.from) != (write.to > write.from);
            reversals += usize::from(before.is_some_and(is_reversal));
        }
    }
    let result = format!("{reversals} in {} runs, {changes} changes at all", runs.len());
    let holds = reversals == 0 && !runs.is_empty();
    Gate::new(subject.into(), "no change of direction after minute 15", result, holds)
}

/// Over all scenarios with both orders, fewer streams are cut when the least loaded pods go first than when the youngest do.
pub(crate) fn fewer_cut(runs: &[&Run], policy: &str) -> Gate {
    let cut = |first: &str| {
        let runs = runs.iter().filter(|run| run.scenario.ends_with(first));
        runs.map(|run| run.errors).sum::<u64>()
    };
    let youngest = cut("the youngest first");
    let least_loaded = cut("the least loaded first");
    let subject = format!("{policy}: streams cut with the least loaded pods first");
    let result = format!("{least_loaded}, with the youngest {youngest}");
    Gate::new(subject, "fewer than with the youngest first", result, least_loaded < youngest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_at_half_the_cost_is_better_also_where_every_request_is_within() {
        let own = [4.0, 0.0, 0.083];
        assert!(is_better([2.0, 0.0, 0.085], own) && is_better([4.0, 0.0, 0.05], own));
        assert!(
            !is_better([2.0, 0.1, 0.085], own) && !is_better([4.1, 0.0, 0.05], own) && !is_better(own, own)
        );
    }

    fn run(policy: &str, cost_avg: f64, slo_attainment: f64) -> Run {
        Run { policy: policy.into(), cost_avg, slo_attainment, ttft_p99_s: 1.0, ..Run::default() }
    }

    #[test]
    fn too_few_within_and_too_dear_both_fail_the_strict_criterion() {
        for (cost, share, passes) in [(1.3, 0.96, true), (1.3, 0.94, false), (1.4, 0.96, false)] {
            assert_eq!(Verdict::new(&[&run("rate", cost, share)], &[1.0]).passes(), passes, "{cost} {share}");
        }
    }

    #[test]
    fn a_peer_that_is_cheaper_and_serves_more_is_found() {
        let peer = |cost, share| [run("rate", 2.0, 0.98), run("peer", cost, share)];
        let holds = |runs: [Run; 2]| no_peer_better("test", &runs, "rate", &["peer".into()]).holds;
        assert!(!holds(peer(1.5, 0.99)) && !holds(peer(1.99, 0.99)));
        assert!(holds(peer(1.5, 0.97)) && holds(peer(2.5, 1.0)));
    }

    #[test]
    fn nothing_that_ran_meets_nothing() {
        let nothing = Mean::of(&[]);
        assert!(!at_most("test", nothing, 1.0, "").holds);
        assert!(!cheaper_than_fixed("test", nothing.mean, None).holds);
        assert!(!no_fixed_fleet("test", &[], 0).holds);
        assert!(!no_peer_better("test", &[run("peer", 2.0, 1.0)], "rate", &["peer".into()]).holds);
        assert!(!Verdict::new(&[], &[]).passes());
        assert!(!oracle_is_best("test", &[], 0).holds);
        assert!(!no_late_reversal("test", &[]).holds);
    }
}
