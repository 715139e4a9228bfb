//! The origin of an answered number: a listed evaluation or, if it was not listed, what its neighbours and the end of the deciding
//! instance allow. Pure.

use std::collections::BTreeMap;

use super::check::{Evaluation, LISTING_DELAY, Order};
use super::line::{Line, Number, Seen};

/// The maximum duration of a request, seconds. A request sent this long before an instance stopped answering may have been answered
/// while it still decided.
const ANSWERING: f64 = 1.0;

/// Evaluations are seconds apart. A longer gap without listed evaluations, seconds, is not just a few missed ones.
const LONGEST_GAP: f64 = 10.0;

/// The origin of a number, with the oldest and the newest term it may be from; `None` if terms are not known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Origin {
    /// A listed evaluation with the same evidence.
    Exact(Option<(Order, Order)>),
    /// An evaluation that was not listed, between two listed ones, one of which has the same value.
    Between(Option<(Order, Order)>),
    /// Its evidence is older than all listed evaluations.
    Before(Option<(Order, Order)>),
    /// An instance decided it within one second before it stopped answering, so it could not be listed.
    Lost(Option<(Order, Order)>),
    /// No evaluation.
    Nobody,
}

impl Origin {
    pub(crate) fn terms(self) -> Option<(Order, Order)> {
        match self {
            Self::Exact(terms) | Self::Between(terms) | Self::Before(terms) | Self::Lost(terms) => terms,
            Self::Nobody => None,
        }
    }
}

/// A deciding instance stopped answering.
struct Silence<'a> {
    /// The first request that it did not answer.
    from: f64,
    /// The latest time at which it stopped.
    until: f64,
    /// Its last listed evaluation.
    last: &'a Evaluation<'a>,
}

/// The known numbers of a variant.
#[derive(Default)]
struct Made<'a> {
    by_number: BTreeMap<&'a Number, Vec<&'a Evaluation<'a>>>,
    by_evidence: BTreeMap<i64, Vec<(&'a str, &'a Evaluation<'a>)>>,
}

/// All evaluations, and the instances that stopped answering.
pub(crate) struct Origins<'a> {
    made: BTreeMap<&'a str, Made<'a>>,
    silences: Vec<Silence<'a>>,
    /// The oldest known term. Earlier numbers are of no later term.
    oldest: Option<Order>,
    /// The start of the history, Unix seconds.
    clock: f64,
}

impl<'a> Origins<'a> {
    pub(crate) fn of(lines: &'a [Line], evaluations: &'a [Evaluation<'a>], clock: f64) -> Self {
        let mut made: BTreeMap<&str, Made<'_>> = BTreeMap::new();
        for evaluation in evaluations {
            for (variant, number) in evaluation.numbers {
                let made = made.entry(variant).or_default();
                made.by_number.entry(number).or_default().push(evaluation);
                made.by_evidence.entry(number.evidence).or_default().push((&number.value, evaluation));
            }
        }
        let oldest = evaluations.iter().filter_map(|evaluation| evaluation.order).min();
        Self { made, silences: silences(lines, evaluations), oldest, clock }
    }

    /// The origin of the `number` of `variant` in the answer of `line`.
    pub(crate) fn origin(&self, line: &Line, variant: &str, number: &Number) -> Origin {
        let Some(made) = self.made.get(variant) else { return Origin::Before(None) };
        let begun = |evaluation: &&&Evaluation<'_>| evaluation.earliest < line.answered;
        let exact: Vec<_> = made.by_number.get(number).into_iter().flatten().filter(begun).copied().collect();
        if !exact.is_empty() {
            return Origin::Exact(range(&exact));
        }
        let below = made.by_evidence.range(..=number.evidence).next_back();
        let Some((_, below)) = below else {
            let oldest = (0, i64::MIN);
            return Origin::Before(self.oldest.map(|newest| (oldest, newest)));
        };
        let above = made.by_evidence.range(number.evidence + 1..).next().map(|(_, made)| made);
        let below = || below.iter().filter(|(_, evaluation)| begun(&evaluation));
        let listed = below().map(|(_, evaluation)| evaluation.latest).fold(f64::NEG_INFINITY, f64::max);
        let next = above.into_iter().flatten().map(|(_, evaluation)| evaluation.latest);
        let gap = next.fold(line.answered, f64::min) - listed;
        let neighbours = below().chain(above.into_iter().flatten());
        let makers =
            neighbours.filter(|(value, _)| *value == number.value).map(|(_, evaluation)| *evaluation);
        let makers: Vec<_> = makers.collect();
        if !makers.is_empty() && gap < LONGEST_GAP {
            return Origin::Between(range(&makers));
        }
        let silence = self.silences.iter().find(|silence| self.is_lost(silence, line, variant, number));
        silence.map_or(Origin::Nobody, |silence| Origin::Lost(silence.last.order.map(|order| (order, order))))
    }

    /// Whether the instance may have decided the number in the second before it stopped answering: after its last listed evaluation,
    /// from evidence that existed by then.
    fn is_lost(&self, silence: &Silence<'_>, line: &Line, variant: &str, number: &Number) -> bool {
        let last = silence.last.numbers.get(variant).map_or(i64::MIN, |last| last.evidence);
        let there = number.evidence as f64 <= self.clock + silence.until;
        line.answered >= silence.from - LISTING_DELAY && number.evidence >= last && there
    }
}

/// The oldest and the newest of these terms.
fn range(evaluations: &[&Evaluation<'_>]) -> Option<(Order, Order)> {
    let orders = || evaluations.iter().filter_map(|evaluation| evaluation.order);
    orders().min().zip(orders().max())
}

/// When deciding instances stopped answering. Instances that had decided nothing are left out.
fn silences<'a>(lines: &[Line], evaluations: &'a [Evaluation<'a>]) -> Vec<Silence<'a>> {
    let mut silent: BTreeMap<&str, bool> = BTreeMap::new();
    let mut silences = Vec::new();
    for line in lines {
        let is_silent = match line.seen {
            Seen::Silence { .. } => true,
            Seen::Answer { .. } | Seen::Refusal { .. } => false,
            Seen::Began { .. } | Seen::Evaluation { .. } => continue,
        };
        if silent.insert(&line.instance, is_silent) == Some(true) || !is_silent {
            continue;
        }
        let (from, until) = (line.asked, line.answered.min(line.asked + ANSWERING));
        let listed = evaluations.iter().filter(|evaluation| evaluation.instance == line.instance);
        let listed = listed.filter(|evaluation| evaluation.latest <= line.answered);
        if let Some(last) = listed.max_by(|a, b| a.latest.total_cmp(&b.latest)) {
            silences.push(Silence { from, until, last });
        }
    }
    silences
}
