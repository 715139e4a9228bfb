//! Finds violations in a history. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::Context as _;

use super::line::{Line, Number, Seen, Term};
use super::origin::{Origin, Origins};

/// The maximum time between publishing and listing an evaluation, seconds.
pub(crate) const LISTING_DELAY: f64 = 1.0;
/// Violations that are described; the rest is only counted.
const MAX_VIOLATIONS: usize = 50;

/// A history, with the order of its terms.
pub(crate) struct History {
    lines: Vec<Line>,
    /// Leases in the order of their first evaluations. A Lease that is deleted and recreated has another uid.
    leases: Vec<String>,
    /// The start of the history, Unix seconds.
    clock: f64,
}

/// The order of terms: the position of the Lease, then `leaseTransitions`.
pub(crate) type Order = (usize, i64);

/// The result of a check.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) violations: Vec<String>,
    /// Violations beyond the described ones.
    more: usize,
    answers: usize,
    warned: usize,
    refusals: usize,
    silences: usize,
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
    /// It happened after this time, seconds.
    pub(crate) earliest: f64,
    /// It happened before this time, seconds.
    pub(crate) latest: f64,
    pub(crate) order: Option<Order>,
    pub(crate) numbers: &'a BTreeMap<String, Number>,
}

/// An answered number, with the range of terms it may be from; `None` if unknown.
struct Answered<'a> {
    line: &'a Line,
    variant: &'a str,
    number: &'a Number,
    terms: Option<(Order, Order)>,
    warned: bool,
}

impl History {
    /// Reads the lines of a history.
    ///
    /// # Errors
    /// If a line is not of a history, or no line has its start. An incomplete last line is ignored.
    pub(crate) fn read(text: &str) -> anyhow::Result<Self> {
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let parse = |(at, line): (usize, &str)| {
            serde_json::from_str::<Line>(line).with_context(|| format!("line {}", at + 1))
        };
        let lines: Vec<Line> = whole.lines().enumerate().map(parse).collect::<Result<_, _>>()?;
        let began = lines.iter().find_map(|line| match line.seen {
            Seen::Began { clock } => Some(clock),
            _ => None,
        });
        let clock = began.context("no line says when the history began")?;
        let mut leases: Vec<String> = Vec::new();
        for line in &lines {
            if let Seen::Evaluation { term: Some(term), .. } = &line.seen
                && !leases.contains(&term.lease)
            {
                leases.push(term.lease.clone());
            }
        }
        Ok(Self { lines, leases, clock })
    }

    fn order(&self, term: Option<&Term>) -> Option<Order> {
        let term = term?;
        Some((self.leases.iter().position(|lease| *lease == term.lease)?, term.epoch))
    }

    fn evaluations(&self) -> Vec<Evaluation<'_>> {
        let mut evaluations = Vec::new();
        for line in &self.lines {
            let Seen::Evaluation { since, term, numbers, .. } = &line.seen else { continue };
            let earliest = since.map_or(f64::NEG_INFINITY, |since| since - LISTING_DELAY);
            let order = self.order(term.as_ref());
            let (instance, latest) = (line.instance.as_str(), line.answered);
            evaluations.push(Evaluation { instance, earliest, latest, order, numbers });
        }
        evaluations
    }

    /// Checks all rules.
    pub(crate) fn check(&self, strict: bool) -> Found {
        let evaluations = self.evaluations();
        let mut found = Found { evaluations: evaluations.len(), ..Found::default() };
        for line in &self.lines {
            match &line.seen {
                Seen::Answer { warning, .. } => {
                    found.answers += 1;
                    found.warned += usize::from(warning.is_some());
                }
                Seen::Refusal { .. } => found.refusals += 1,
                Seen::Silence { .. } => found.silences += 1,
                Seen::Began { .. } | Seen::Evaluation { .. } => {}
            }
        }
        deciders(&evaluations, &mut found);
        let answered = self.answered(&evaluations, &mut found);
        terms(&answered, strict, &mut found);
        found
    }

    /// Every answered number, with its origin.
    fn answered(&self, evaluations: &[Evaluation<'_>], found: &mut Found) -> Vec<Answered<'_>> {
        let origins = Origins::of(&self.lines, evaluations, self.clock);
        let mut answered = Vec::new();
        for line in &self.lines {
            let Seen::Answer { numbers, warning } = &line.seen else { continue };
            for (variant, number) in numbers {
                let origin = origins.origin(line, variant, number);
                match origin {
                    Origin::Exact(_) => found.exact += 1,
                    Origin::Between(_) => found.between += 1,
                    Origin::Before(_) => found.before += 1,
                    Origin::Lost(_) => found.lost += 1,
                    Origin::Nobody => {
                        let (instance, asked, value) = (&line.instance, line.asked, &number.value);
                        found.say(format!(
                            "at {asked:.2} s {instance} answered {value} for {variant}, which no evaluation made"
                        ));
                    }
                }
                let (terms, warned) = (origin.terms(), warning.is_some());
                answered.push(Answered { line, variant, number, terms, warned });
            }
        }
        answered
    }
}

/// At most one instance decides in a term, and none in a term that has ended.
fn deciders(evaluations: &[Evaluation<'_>], found: &mut Found) {
    let mut by_term: BTreeMap<Order, BTreeSet<&str>> = BTreeMap::new();
    for evaluation in evaluations {
        if let Some(order) = evaluation.order {
            by_term.entry(order).or_default().insert(evaluation.instance);
        }
    }
    found.terms = by_term.len();
    for ((_, epoch), instances) in by_term.iter().filter(|(_, instances)| instances.len() > 1) {
        found.say(format!("term {epoch}: {instances:?} evaluated in it"));
    }
    let known = || evaluations.iter().filter_map(|evaluation| Some((evaluation.order?, evaluation)));
    for (order, evaluation) in known() {
        let newer = known().filter(|(newer, other)| *newer > order && other.latest < evaluation.earliest);
        if let Some((newer, other)) = newer.max_by_key(|(newer, _)| *newer) {
            let (instance, from, to) = (evaluation.instance, evaluation.earliest, evaluation.latest);
            found.say(format!(
                "between {from:.2} and {to:.2} s {instance} evaluated in term {}, after {} had in term {}",
                order.1, other.instance, newer.1
            ));
        }
    }
}

/// No instance answers a number of an earlier term after one of a later term was answered.
fn terms(answered: &[Answered<'_>], strict: bool, found: &mut Found) {
    let held = |answer: &&Answered<'_>| strict || !answer.warned;
    let mut asked: Vec<_> = answered.iter().filter(held).collect();
    asked.sort_by(|a, b| a.line.asked.total_cmp(&b.line.asked));
    let mut done: Vec<_> = answered.iter().collect();
    done.sort_by(|a, b| a.line.answered.total_cmp(&b.line.answered));
    let (mut done, mut newest) =
        (done.into_iter().peekable(), BTreeMap::<&str, (Order, &Answered<'_>)>::new());
    for answer in asked {
        while let Some(other) = done.next_if(|other| other.line.answered < answer.line.asked) {
            let Some((oldest, _)) = other.terms else { continue };
            let entry = newest.entry(other.variant).or_insert((oldest, other));
            if oldest > entry.0 {
                *entry = (oldest, other);
            }
        }
        let Some((_, latest)) = answer.terms else { continue };
        if let Some((order, other)) = newest.get(answer.variant).filter(|(order, _)| *order > latest) {
            let Line { instance, asked, .. } = answer.line;
            found.say(format!(
                "at {asked:.2} s {instance} answered {} for {} of term {}, after {} had answered {} of term {} at {:.2} s",
                answer.number.value, answer.variant, latest.1,
                other.line.instance, other.number.value, order.1, other.line.answered
            ));
        }
    }
}

impl Found {
    fn say(&mut self, violation: String) {
        if self.violations.len() < MAX_VIOLATIONS {
            self.violations.push(violation);
        } else {
            self.more += 1;
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { answers, warned, refusals, silences, evaluations, terms, .. } = self;
        let Self { exact, between, before, lost, violations, more, .. } = self;
        let count = violations.len() + more;
        write!(
            f,
            "{answers} answers ({warned} with a warning), {refusals} refusals, {silences} without an answer; {evaluations} \
             evaluations in {terms} terms; numbers: {exact} by their evidence, {between} of an evaluation that was not listed, \
             {before} older than the history, {lost} perhaps of an instance that ended; {count} violations"
        )
    }
}
