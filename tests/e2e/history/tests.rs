//! Histories that are true, and histories that cannot be.

use std::collections::BTreeMap;

use super::check::{Found, History};
use super::line::{Line, Number, Seen, Term};

fn numbers(value: u32, evidence: i64) -> BTreeMap<String, Number> {
    BTreeMap::from([("llm/llama".into(), Number { value: value.to_string(), evidence })])
}

fn line(instance: &str, asked: f64, seen: Seen) -> Line {
    Line { instance: instance.into(), asked, answered: asked + 0.1, seen }
}

fn evaluation(instance: &str, asked: f64, epoch: i64, value: u32, evidence: i64) -> Line {
    let (since, term) = (Some(asked - 0.3), Some(Term { lease: "uid".into(), epoch }));
    let (at, sequence) = (format!("{asked}"), 1);
    line(instance, asked, Seen::Evaluation { since, at, sequence, term, numbers: numbers(value, evidence) })
}

fn answer(instance: &str, asked: f64, value: u32, evidence: i64) -> Line {
    line(instance, asked, Seen::Answer { numbers: numbers(value, evidence), warning: None })
}

fn found(lines: &[Line], strict: bool) -> Found {
    let text: String = lines.iter().map(|line| serde_json::to_string(line).unwrap() + "\n").collect();
    History::read(&(text + "{\"instance\":\"torn")).unwrap().check(strict)
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
    let violations = found(&lines, false).violations;
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
    assert!(figures.contains("4 by their evidence, 0 by value"), "{figures}");
}

#[test]
fn a_number_of_an_old_term_after_one_of_a_new_term_is_a_violation() {
    violation(answer("a", 30.0, 3, 100), "after b had answered 4 of term 2");
}

#[test]
fn an_old_number_with_a_warning_is_a_violation_only_where_that_is_asked_for() {
    let mut lines = hand_over();
    let warning = Some("299 - \"this is the last state it published\"".into());
    lines.push(line("a", 30.0, Seen::Answer { numbers: numbers(3, 100), warning }));
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
fn a_number_that_nobody_made_is_a_violation_unless_its_maker_is_gone() {
    violation(answer("b", 30.0, 7, 125), "which no evaluation made");
    let mut lines = hand_over();
    lines.push(line("a", 29.0, Seen::Silence { error: "refused".into() }));
    lines.push(answer("b", 30.0, 7, 125));
    assert_eq!(found(&lines, false).violations, Vec::<String>::new());
}
