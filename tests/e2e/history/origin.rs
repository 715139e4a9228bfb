//! The origin of an answered number: a listed evaluation or, if it was not listed, what its neighbours and the end of the deciding
//! instance allow. Pure.

use std::collections::BTreeMap;

use super::check::{Evaluation, MAX_LISTING_DELAY_S, TermOrder};
use super::line::{Event, Line, Number};

/// The maximum duration of a request, seconds. A request sent this long before an instance stopped answering may have been answered
/// while it still decided.
const MAX_REQUEST_S: f64 = 1.0;

/// The longest gap between listed evaluations that a few missed ones explain, seconds. Evaluations are seconds apart.
const MAX_GAP_S: f64 = 10.0;

/// The terms that a number may be from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TermRange {
    pub(crate) oldest: TermOrder,
    pub(crate) newest: TermOrder,
}

/// The origin of a number, with its terms; `None` if they are not known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Origin {
    /// A listed evaluation with the same evidence.
    Exact(Option<TermRange>),
    /// An evaluation that was not listed, between two listed ones, one of which has the same value.
    Between(Option<TermRange>),
    /// Its evidence is older than all listed evaluations.
    Before(Option<TermRange>),
    /// An instance decided it within one second before it stopped answering, so it could not be listed.
    Lost(Option<TermRange>),
    /// No evaluation.
    Unknown,
}

impl Origin {
    pub(crate) fn terms(self) -> Option<TermRange> {
        match self {
            Self::Exact(terms) | Self::Between(terms) | Self::Before(terms) | Self::Lost(terms) => terms,
            Self::Unknown => None,
        }
    }
}

/// A time from which a deciding instance did not answer.
struct Outage<'a> {
    /// The first request that it did not answer.
    from_s: f64,
    /// The latest time at which it stopped.
    until_s: f64,
    /// Its last listed evaluation.
    last: &'a Evaluation<'a>,
}

/// The evaluations of a variant, by number and by evidence.
#[derive(Default)]
struct VariantNumbers<'a> {
    by_number: BTreeMap<&'a Number, Vec<&'a Evaluation<'a>>>,
    /// With the value of the number.
    by_evidence: BTreeMap<i64, Vec<(&'a str, &'a Evaluation<'a>)>>,
}

/// All evaluations, and the instances that stopped answering.
pub(crate) struct Origins<'a> {
    by_variant: BTreeMap<&'a str, VariantNumbers<'a>>,
    outages: Vec<Outage<'a>>,
    /// The oldest known term. Earlier numbers are of no later term.
    oldest: Option<TermOrder>,
    /// The start of the history, Unix seconds.
    start_unix_s: f64,
}

impl<'a> Origins<'a> {
    pub(crate) fn new(lines: &'a [Line], evaluations: &'a [Evaluation<'a>], start_unix_s: f64) -> Self {
        let mut by_variant: BTreeMap<&str, VariantNumbers<'_>> = BTreeMap::new();
        for evaluation in evaluations {
            for (variant, number) in evaluation.numbers {
                let known = by_variant.entry(variant).or_default();
                known.by_number.entry(number).or_default().push(evaluation);
                known.by_evidence.entry(number.evidence).or_default().push((&number.value, evaluation));
            }
        }
        let oldest = evaluations.iter().filter_map(|evaluation| evaluation.order).min();
        Self { by_variant, outages: outages(lines, evaluations), oldest, start_unix_s }
    }

    /// The origin of the `number` of `variant` in the answer of `line`.
    pub(crate) fn origin(&self, line: &Line, variant: &str, number: &Number) -> Origin {
        let Some(known) = self.by_variant.get(variant) else { return Origin::Before(None) };
        let has_begun = |evaluation: &&&Evaluation<'_>| evaluation.earliest_s < line.received_s;
        let exact: Vec<_> =
            known.by_number.get(number).into_iter().flatten().filter(has_begun).copied().collect();
        if !exact.is_empty() {
            return Origin::Exact(range(&exact));
        }
        let below = known.by_evidence.range(..=number.evidence).next_back();
        let Some((_, below)) = below else {
            let oldest = TermOrder { lease: 0, epoch: i64::MIN };
            return Origin::Before(self.oldest.map(|newest| TermRange { oldest, newest }));
        };
        let above = known.by_evidence.range(number.evidence + 1..).next().map(|(_, evaluations)| evaluations);
        let below = || below.iter().filter(|(_, evaluation)| has_begun(&evaluation));
        let last_s = below().map(|(_, evaluation)| evaluation.latest_s).fold(f64::NEG_INFINITY, f64::max);
        let next_s = above.into_iter().flatten().map(|(_, evaluation)| evaluation.latest_s);
        let gap_s = next_s.fold(line.received_s, f64::min) - last_s;
        let neighbours = below().chain(above.into_iter().flatten());
        let same_value =
            neighbours.filter(|(value, _)| *value == number.value).map(|(_, evaluation)| *evaluation);
        let same_value: Vec<_> = same_value.collect();
        if !same_value.is_empty() && gap_s < MAX_GAP_S {
            return Origin::Between(range(&same_value));
        }
        let outage = self.outages.iter().find(|outage| self.is_lost(outage, line, variant, number));
        outage.map_or(Origin::Unknown, |outage| {
            Origin::Lost(outage.last.order.map(|order| TermRange { oldest: order, newest: order }))
        })
    }

    /// Whether the instance may have decided the number in the second before it stopped answering: after its last listed evaluation,
    /// from evidence that existed by then.
    fn is_lost(&self, outage: &Outage<'_>, line: &Line, variant: &str, number: &Number) -> bool {
        let last = outage.last.numbers.get(variant).map_or(i64::MIN, |last| last.evidence);
        let existed = number.evidence as f64 <= self.start_unix_s + outage.until_s;
        line.received_s >= outage.from_s - MAX_LISTING_DELAY_S && number.evidence >= last && existed
    }
}

/// The terms of `evaluations`.
fn range(evaluations: &[&Evaluation<'_>]) -> Option<TermRange> {
    let orders = || evaluations.iter().filter_map(|evaluation| evaluation.order);
    orders().min().zip(orders().max()).map(|(oldest, newest)| TermRange { oldest, newest })
}

/// When deciding instances stopped answering. Instances that had decided nothing are left out.
fn outages<'a>(lines: &[Line], evaluations: &'a [Evaluation<'a>]) -> Vec<Outage<'a>> {
    let mut silent: BTreeMap<&str, bool> = BTreeMap::new();
    let mut outages = Vec::new();
    for line in lines {
        let is_silent = match line.event {
            Event::NoAnswer { .. } => true,
            Event::Answer { .. } | Event::Refusal { .. } => false,
            Event::Start { .. } | Event::Evaluation { .. } => continue,
        };
        if silent.insert(&line.instance, is_silent) == Some(true) || !is_silent {
            continue;
        }
        let from_s = line.sent_s;
        let until_s = line.received_s.min(from_s + MAX_REQUEST_S);
        let listed = evaluations.iter().filter(|evaluation| evaluation.instance == line.instance);
        let listed = listed.filter(|evaluation| evaluation.latest_s <= line.received_s);
        if let Some(last) = listed.max_by(|a, b| a.latest_s.total_cmp(&b.latest_s)) {
            outages.push(Outage { from_s, until_s, last });
        }
    }
    outages
}
