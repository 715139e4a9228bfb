//! Finds violations in a history. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::Context as _;

use super::line::{Event, Line, Number, Term};
use super::origin::{Origin, Origins, TermRange};

/// The maximum time between publishing and listing an evaluation, seconds.
pub(crate) const MAX_LISTING_DELAY_S: f64 = 1.0;
/// Violations that are described; the rest is only counted.
const MAX_VIOLATIONS: usize = 50;

/// A history, with the order of its terms.
pub(crate) struct History {
    lines: Vec<Line>,
    /// Leases in the order of their first evaluations. A Lease that is deleted and recreated has another uid.
    leases: Vec<String>,
    /// The start of the history, Unix seconds.
    unix_s: f64,
}

/// The order of terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TermOrder {
    /// The position of the Lease among all Leases of the history.
    pub(crate) lease: usize,
    /// `leaseTransitions`.
    pub(crate) epoch: i64,
}

/// The result of a check.
#[derive(Debug, Default)]
pub(crate) struct CheckResult {
    pub(crate) violations: Vec<String>,
    /// Violations beyond the described ones.
    undescribed: usize,
    answers: usize,
    with_warning: usize,
    refusals: usize,
    unanswered: usize,
    evaluations: usize,
    terms: usize,
    /// Numbers of a listed evaluation with the same evidence.
    exact: usize,
    /// Numbers of an evaluation that was not listed, with the value of the previous or next one.
    between: usize,
    /// Numbers with evidence older than the first listed evaluation.
    before: usize,
    /// Numbers that an instance may have decided just before it stopped answering.
    lost: usize,
}

/// An evaluation.
pub(crate) struct Evaluation<'a> {
    pub(crate) instance: &'a str,
    /// It happened after this time.
    pub(crate) earliest_s: f64,
    /// It happened before this time.
    pub(crate) latest_s: f64,
    pub(crate) order: Option<TermOrder>,
    pub(crate) numbers: &'a BTreeMap<String, Number>,
}

/// An answered number, with the terms it may be from; `None` if unknown.
struct AnsweredNumber<'a> {
    line: &'a Line,
    variant: &'a str,
    number: &'a Number,
    terms: Option<TermRange>,
    has_warning: bool,
}

impl History {
    /// Reads the lines of a history.
    ///
    /// # Errors
    /// If a line is not of a history, or no line has its start. An incomplete last line is ignored.
    pub(crate) fn read(text: &str) -> anyhow::Result<Self> {
        let complete = text.rsplit_once('\n').map_or("", |(complete, _)| complete);
        let parse = |(index, line): (usize, &str)| {
            serde_json::from_str::<Line>(line).with_context(|| format!("line {}", index + 1))
        };
        let lines: Vec<Line> = complete.lines().enumerate().map(parse).collect::<Result<_, _>>()?;
        let start = lines.iter().find_map(|line| match line.event {
            Event::Start { unix_s } => Some(unix_s),
            _ => None,
        });
        let unix_s = start.context("no line has the start of the history")?;
        let mut leases: Vec<String> = Vec::new();
        for line in &lines {
            if let Event::Evaluation { term: Some(term), .. } = &line.event
                && !leases.contains(&term.lease)
            {
                leases.push(term.lease.clone());
            }
        }
        Ok(Self { lines, leases, unix_s })
    }

    fn order(&self, term: Option<&Term>) -> Option<TermOrder> {
        let Term { lease, epoch } = term?;
        let lease = self.leases.iter().position(|known| known == lease)?;
        Some(TermOrder { lease, epoch: *epoch })
    }

    fn evaluations(&self) -> Vec<Evaluation<'_>> {
        let mut evaluations = Vec::new();
        for line in &self.lines {
            let Event::Evaluation { since_s, term, numbers, .. } = &line.event else { continue };
            evaluations.push(Evaluation {
                instance: line.instance.as_str(),
                earliest_s: since_s.map_or(f64::NEG_INFINITY, |since_s| since_s - MAX_LISTING_DELAY_S),
                latest_s: line.received_s,
                order: self.order(term.as_ref()),
                numbers,
            });
        }
        evaluations
    }

    /// Checks all rules.
    pub(crate) fn check(&self, strict: bool) -> CheckResult {
        let evaluations = self.evaluations();
        let mut result = CheckResult { evaluations: evaluations.len(), ..CheckResult::default() };
        for line in &self.lines {
            match &line.event {
                Event::Answer { warning, .. } => {
                    result.answers += 1;
                    result.with_warning += usize::from(warning.is_some());
                }
                Event::Refusal { .. } => result.refusals += 1,
                Event::NoAnswer { .. } => result.unanswered += 1,
                Event::Start { .. } | Event::Evaluation { .. } => {}
            }
        }
        check_one_decider(&evaluations, &mut result);
        let answered = self.answered(&evaluations, &mut result);
        check_answered_terms(&answered, strict, &mut result);
        result
    }

    /// Every answered number, with its origin.
    fn answered(&self, evaluations: &[Evaluation<'_>], result: &mut CheckResult) -> Vec<AnsweredNumber<'_>> {
        let origins = Origins::new(&self.lines, evaluations, self.unix_s);
        let mut answered = Vec::new();
        for line in &self.lines {
            let Event::Answer { numbers, warning } = &line.event else { continue };
            for (variant, number) in numbers {
                let origin = origins.origin(line, variant, number);
                match origin {
                    Origin::Exact(_) => result.exact += 1,
                    Origin::Between(_) => result.between += 1,
                    Origin::Before(_) => result.before += 1,
                    Origin::Lost(_) => result.lost += 1,
                    Origin::Unknown => {
                        let Line { instance, sent_s, .. } = line;
                        let value = &number.value;
                        result.add_violation(format!(
                            "at {sent_s:.2} s {instance} answered {value} for {variant}, which no evaluation made"
                        ));
                    }
                }
                let has_warning = warning.is_some();
                answered.push(AnsweredNumber { line, variant, number, terms: origin.terms(), has_warning });
            }
        }
        answered
    }
}

/// At most one instance decides in a term, and none in a term that has ended.
fn check_one_decider(evaluations: &[Evaluation<'_>], result: &mut CheckResult) {
    let mut by_term: BTreeMap<TermOrder, BTreeSet<&str>> = BTreeMap::new();
    for evaluation in evaluations {
        if let Some(order) = evaluation.order {
            by_term.entry(order).or_default().insert(evaluation.instance);
        }
    }
    result.terms = by_term.len();
    for (TermOrder { epoch, .. }, instances) in by_term.iter().filter(|(_, instances)| instances.len() > 1) {
        result.add_violation(format!("term {epoch}: {instances:?} evaluated in it"));
    }
    let known = || evaluations.iter().filter_map(|evaluation| Some((evaluation.order?, evaluation)));
    for (order, evaluation) in known() {
        let newer = known()
            .filter(|(newer_order, newer)| *newer_order > order && newer.latest_s < evaluation.earliest_s);
        if let Some((newer_order, newer)) = newer.max_by_key(|(newer_order, _)| *newer_order) {
            let Evaluation { instance, earliest_s, latest_s, .. } = evaluation;
            result.add_violation(format!(
                "between {earliest_s:.2} and {latest_s:.2} s {instance} evaluated in term {}, after {} had in term {}",
                order.epoch, newer.instance, newer_order.epoch
            ));
        }
    }
}

/// No instance answers a number of an earlier term after one of a later term was answered.
fn check_answered_terms(answered: &[AnsweredNumber<'_>], strict: bool, result: &mut CheckResult) {
    let is_judged = |answer: &&AnsweredNumber<'_>| strict || !answer.has_warning;
    let mut by_sending: Vec<_> = answered.iter().filter(is_judged).collect();
    by_sending.sort_by(|a, b| a.line.sent_s.total_cmp(&b.line.sent_s));
    let mut by_receipt: Vec<_> = answered.iter().collect();
    by_receipt.sort_by(|a, b| a.line.received_s.total_cmp(&b.line.received_s));
    let mut by_receipt = by_receipt.into_iter().peekable();
    // By variant, the newest term that must have decided by now, and an answer of it.
    let mut newest = BTreeMap::<&str, (TermOrder, &AnsweredNumber<'_>)>::new();
    for answer in by_sending {
        while let Some(earlier) = by_receipt.next_if(|earlier| earlier.line.received_s < answer.line.sent_s) {
            let Some(TermRange { oldest, .. }) = earlier.terms else { continue };
            let entry = newest.entry(earlier.variant).or_insert((oldest, earlier));
            if oldest > entry.0 {
                *entry = (oldest, earlier);
            }
        }
        let Some(TermRange { newest: latest, .. }) = answer.terms else { continue };
        if let Some((order, earlier)) = newest.get(answer.variant).filter(|(order, _)| *order > latest) {
            let Line { instance, sent_s, .. } = answer.line;
            result.add_violation(format!(
                "at {sent_s:.2} s {instance} answered {} for {} of term {}, after {} had answered {} of term {} at {:.2} s",
                answer.number.value, answer.variant, latest.epoch,
                earlier.line.instance, earlier.number.value, order.epoch, earlier.line.received_s
            ));
        }
    }
}

impl CheckResult {
    fn add_violation(&mut self, violation: String) {
        if self.violations.len() < MAX_VIOLATIONS {
            self.violations.push(violation);
        } else {
            self.undescribed += 1;
        }
    }
}

impl fmt::Display for CheckResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { answers, with_warning, refusals, unanswered, evaluations, terms, .. } = self;
        let Self { exact, between, before, lost, violations, undescribed, .. } = self;
        let count = violations.len() + undescribed;
        write!(
            f,
            "{answers} answers ({with_warning} with a warning), {refusals} refusals, {unanswered} without an answer; {evaluations} \
             evaluations in {terms} terms; numbers: {exact} by their evidence, {between} of an evaluation that was not listed, \
             {before} older than the history, {lost} perhaps of an instance that ended; {count} violations"
        )
    }
}
