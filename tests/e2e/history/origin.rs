//! Where an answered number comes from: the evaluation that made it or, where that was not listed, what its neighbours and
//! the silence of its maker allow. Pure.

use std::collections::BTreeMap;

use super::check::{Evaluation, LISTING_DELAY, Order};
use super::line::{Line, Number, Seen};

/// How long an instance works on an answer at most, seconds: what was asked so long before an instance fell silent may have been
/// asked while it still decided.
const ANSWERING: f64 = 1.0;

/// Evaluations are seconds apart. Where none was listed for so long, seconds, it is not that a few of them were missed.
const LONGEST_GAP: f64 = 10.0;

/// Where a number comes from, with the oldest and the newest term that it may be of; none where terms are not known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Origin {
    /// An evaluation made it from this very evidence.
    Exact(Option<(Order, Order)>),
    /// An evaluation that was not listed, between two that were, one of which made the same value.
    Between(Option<(Order, Order)>),
    /// It is older than all evaluations that are known.
    Before(Option<(Order, Order)>),
    /// An instance made it within a second before it went silent, and nobody could list that any more.
    Lost(Option<(Order, Order)>),
    /// Nobody made it.
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

/// An instance that decided no longer answers.
struct Silence<'a> {
    /// The first question that it did not answer.
    from: f64,
    /// By then it was silent, at the latest.
    until: f64,
    /// The last evaluation of it that was listed.
    last: &'a Evaluation<'a>,
}

/// What is known of the numbers of a variant.
#[derive(Default)]
struct Made<'a> {
    by_number: BTreeMap<&'a Number, Vec<&'a Evaluation<'a>>>,
    by_evidence: BTreeMap<i64, Vec<(&'a str, &'a Evaluation<'a>)>>,
}

/// What was made, and who went silent.
pub(crate) struct Origins<'a> {
    made: BTreeMap<&'a str, Made<'a>>,
    silences: Vec<Silence<'a>>,
    /// The oldest term that is known: what was made before is of no later one.
    oldest: Option<Order>,
    /// When the history began, Unix seconds.
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

    /// Where the `number` of `variant` comes from that `line` answered.
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

    /// True when the instance may have made the number in the second before it went silent: after its last evaluation that was
    /// listed, from evidence that was there by then.
    fn is_lost(&self, silence: &Silence<'_>, line: &Line, variant: &str, number: &Number) -> bool {
        let last = silence.last.numbers.get(variant).map_or(i64::MIN, |last| last.evidence);
        let there = number.evidence as f64 <= self.clock + silence.until;
        line.answered >= silence.from - LISTING_DELAY && number.evidence >= last && there
    }
}

/// The oldest and the newest term of these.
fn range(evaluations: &[&Evaluation<'_>]) -> Option<(Order, Order)> {
    let orders = || evaluations.iter().filter_map(|evaluation| evaluation.order);
    orders().min().zip(orders().max())
}

/// When instances that had decided went silent. One that had decided nothing lost nothing.
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
