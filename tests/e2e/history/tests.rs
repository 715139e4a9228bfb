//! Histories that are true, and histories that cannot be.

use std::collections::BTreeMap;

use super::check::{CheckResult, History};
use super::line::{Event, Line, Number, Term};

fn numbers(value: u32, evidence: i64) -> BTreeMap<String, Number> {
    BTreeMap::from([("llm/llama".into(), Number { value: value.to_string(), evidence })])
}

fn line(instance: &str, sent_s: f64, event: Event) -> Line {
    Line { instance: instance.into(), sent_s, received_s: sent_s + 0.1, event }
}

fn evaluation(instance: &str, sent_s: f64, epoch: i64, value: u32, evidence: i64) -> Line {
    let (since_s, term) = (Some(sent_s - 0.3), Some(Term { lease: "uid".into(), epoch }));
    let (at, sequence) = (format!("{sent_s}"), 1);
    line(
        instance,
        sent_s,
        Event::Evaluation { since_s, at, sequence, term, numbers: numbers(value, evidence) },
    )
}

fn answer(instance: &str, sent_s: f64, value: u32, evidence: i64) -> Line {
    line(instance, sent_s, Event::Answer { numbers: numbers(value, evidence), warning: None })
}

fn silence(instance: &str, sent_s: f64) -> Line {
    line(instance, sent_s, Event::NoAnswer { error: "refused".into() })
}

/// Evidence of 100 is of the first second.
fn found(lines: &[Line], strict: bool) -> CheckResult {
    let start = line("", 0.0, Event::Start { unix_s: 99.0 });
    let lines = std::iter::once(&start).chain(lines);
    let text: String = lines.map(|line| serde_json::to_string(line).unwrap() + "\n").collect();
    History::read(&(text + "{\"instance\":\"torn")).unwrap().check(strict)
}

fn violations(lines: &[Line]) -> Vec<String> {
    found(lines, false).violations
}

/// A hand-over: term 1 of `a` says 3, then term 2 of `b` says 4.
fn hand_over() -> Vec<Line> {
    vec![
        evaluation("a", 1.0, 1, 3, 100),
        answer("a", 2.0, 3, 100),
        answer("b", 2.1, 3, 100),
        evaluation("b", 20.0, 2, 4, 119),
        answer("b", 21.0, 4, 119),
        answer("a", 21.5, 4, 119),
    ]
}

fn violation(more: Line, about: &str) {
    let mut lines = hand_over();
    lines.push(more);
    let violations = violations(&lines);
    assert!(violations.len() == 1 && violations[0].contains(about), "{violations:?}");
}

#[test]
fn a_hand_over_is_no_violation() {
    let found = found(&hand_over(), true);
    assert_eq!(found.violations, Vec::<String>::new());
    let figures = found.to_string();
    assert!(figures.starts_with(
        "4 answers (0 with a warning), 0 refusals, 0 without an answer; 2 evaluations in 2 terms"
    ));
    assert!(figures.contains("4 by their evidence, 0 of an evaluation that was not listed"), "{figures}");
}

#[test]
fn a_number_of_an_old_term_after_one_of_a_new_term_is_a_violation() {
    violation(answer("a", 30.0, 3, 100), "after b had answered 4 of term 2");
}

#[test]
fn an_old_number_with_a_warning_is_a_violation_only_where_that_is_asked_for() {
    let mut lines = hand_over();
    let warning = Some("299 - \"this is the last state it published\"".into());
    lines.push(line("a", 30.0, Event::Answer { numbers: numbers(3, 100), warning }));
    assert_eq!(found(&lines, false).violations.len(), 0);
    assert_eq!(found(&lines, true).violations.len(), 1);
}

#[test]
fn two_deciders_in_one_term_are_a_violation() {
    violation(evaluation("a", 21.0, 2, 4, 119), "evaluated in it");
}

#[test]
fn an_evaluation_of_a_term_that_is_over_is_a_violation() {
    violation(evaluation("a", 30.0, 1, 3, 129), "evaluated in term 1, after b had in term 2");
}

#[test]
fn a_number_that_nobody_made_is_a_violation() {
    violation(answer("b", 30.0, 7, 125), "which no evaluation made");
}

/// The hand-over, and `a` is silent from 15 s on: term 1 of `a` made its last number that was listed at 1 s.
fn silenced(more: &[Line]) -> Vec<String> {
    let mut lines = hand_over();
    lines.splice(3..3, [silence("a", 15.0), silence("a", 16.0)]);
    lines.retain(|line| line.sent_s < 21.2);
    lines.extend_from_slice(more);
    lines.sort_by(|left, right| left.received_s.total_cmp(&right.received_s));
    violations(&lines)
}

#[test]
fn a_number_of_the_last_second_of_who_went_silent_is_no_violation() {
    assert_eq!(silenced(&[answer("a", 14.6, 7, 113), answer("b", 15.2, 7, 113)]), Vec::<String>::new());
}

#[test]
fn a_silence_excuses_nothing_that_was_answered_before_it_began() {
    assert_eq!(silenced(&[answer("a", 10.0, 7, 108)]).len(), 1);
}

#[test]
fn a_silence_excuses_no_number_from_evidence_after_it() {
    let violations = silenced(&[answer("b", 22.0, 7, 121)]);
    assert!(
        violations.len() == 1 && violations[0].contains("b answered 7 for llm/llama, which no"),
        "{violations:?}"
    );
}

#[test]
fn an_outage_excuses_no_number_from_evidence_before_its_last_evaluation() {
    let mut lines = vec![evaluation("a", 0.5, 1, 2, 90)];
    lines.extend(hand_over());
    lines.splice(4..4, [silence("a", 15.0), answer("b", 15.5, 7, 95)]);
    assert_eq!(violations(&lines).len(), 1);
}

#[test]
fn the_silence_of_who_decides_nothing_excuses_nothing() {
    let mut lines = hand_over();
    lines.splice(3..3, [silence("c", 14.0), silence("b", 14.0), answer("a", 14.5, 7, 113)]);
    assert_eq!(violations(&lines).len(), 1);
}

#[test]
fn a_lost_number_after_one_of_a_later_term_is_a_violation() {
    let violations = silenced(&[answer("b", 22.0, 7, 113)]);
    assert!(
        violations.len() == 1 && violations[0].contains("of term 1, after b had answered 4 of term 2"),
        "{violations:?}"
    );
}

/// Term 1 of `a` says 3, from evidence of 100, 104 and 108; the one of 104 was not listed.
fn unlisted(more: Line) -> CheckResult {
    let mut lines = hand_over();
    lines.insert(3, evaluation("a", 9.0, 1, 3, 108));
    lines.push(more);
    lines.sort_by(|left, right| left.received_s.total_cmp(&right.received_s));
    found(&lines, false)
}

#[test]
fn a_number_between_two_evaluations_that_made_its_value_is_no_violation() {
    let found = unlisted(answer("b", 6.0, 3, 104));
    assert_eq!(found.violations, Vec::<String>::new());
    assert!(found.to_string().contains("1 of an evaluation that was not listed"), "{found}");
}

#[test]
fn a_number_long_after_the_last_evaluation_that_was_listed_is_a_violation() {
    let mut lines = hand_over();
    lines.extend([answer("b", 25.0, 4, 124), answer("b", 40.0, 4, 139)]);
    let violations = violations(&lines);
    assert!(violations.len() == 1 && violations[0].starts_with("at 40.00 s b answered 4"), "{violations:?}");
}

#[test]
fn a_value_that_was_made_once_excuses_no_number_from_other_evidence() {
    let mut lines = hand_over();
    lines.insert(3, evaluation("a", 9.0, 1, 5, 108));
    lines.insert(4, evaluation("a", 12.0, 1, 5, 111));
    lines.insert(5, answer("a", 12.5, 3, 109));
    assert_eq!(violations(&lines).len(), 1);
}

#[test]
fn an_unlisted_number_of_an_old_term_after_one_of_a_new_term_is_a_violation() {
    let violations = unlisted(answer("a", 30.0, 3, 104)).violations;
    assert!(
        violations.len() == 1 && violations[0].contains("after b had answered 4 of term 2"),
        "{violations:?}"
    );
}

#[test]
fn a_number_from_before_the_history_is_a_violation_once_a_later_term_was_answered() {
    let mut lines = hand_over();
    lines.insert(1, answer("b", 1.5, 2, 80));
    assert_eq!(violations(&lines), Vec::<String>::new());
    violation(answer("a", 30.0, 2, 80), "after b had answered 4 of term 2");
}

#[test]
fn a_history_that_does_not_say_when_it_began_is_not_read() {
    let line = serde_json::to_string(&answer("a", 2.0, 3, 100)).unwrap() + "\n";
    assert!(History::read(&line).is_err());
}
