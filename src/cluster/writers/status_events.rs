//! Events about the status of a variant: what changed from one status to the next, and how many of these changes are written.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::runtime::events::{Event, EventType};
use tokio::time::Instant;

use super::events::MAX_NOTE_BYTES;
use crate::cluster::crd::{
    AUTOSCALER_CONFIGURED, CAPACITY_CONSTRAINED, LIMIT_ENFORCED, METRICS_AVAILABLE, OPTIMIZATION_READY,
    PAUSED, SIGNALS_COMPLETE, TARGET_RESOLVED, VariantAutoscalingStatus,
};
use crate::cluster::watch::AutoscalerVerdict;
use crate::lint::{Advice, NO_AUTOSCALER, NUMBER_NOT_READ, Severity};
use wva_core::text::{plain, shortened};

/// Most events of one variant and type in [`EVENT_WINDOW`]: one every 10 s, so that a number which changes with each evaluation
/// (5 s) makes half as many events as changes, and no warning less. Those of all variants come with their statuses, of which 20 a second are written.
const MAX_EVENTS: usize = 6;
/// The time in which the events of a variant are counted.
const EVENT_WINDOW: Duration = Duration::from_secs(60);

/// The events of a variant: when the last ones were written, and how many were dropped since.
#[derive(Debug, Clone, Default)]
pub(super) struct EventBudget {
    normal: Vec<Instant>,
    warnings: Vec<Instant>,
    dropped: usize,
}

impl EventBudget {
    /// How many warnings, and how many normal events, may be written after `due`.
    pub(super) fn room(&self, due: &[Event]) -> EventRoom {
        let room = |type_: EventType, written: &[Instant]| {
            let recent = written.iter().filter(|at| at.elapsed() < EVENT_WINDOW).count();
            let due = due.iter().filter(|event| event.type_ == type_).count();
            MAX_EVENTS.saturating_sub(recent + due)
        };
        EventRoom {
            warnings: room(EventType::Warning, &self.warnings),
            normal: room(EventType::Normal, &self.normal),
        }
    }

    /// Those of `events` that may be written now. The next one that is written says how many before it were dropped.
    pub(super) fn take(&mut self, events: Vec<Event>) -> Vec<Event> {
        for written in [&mut self.normal, &mut self.warnings] {
            written.retain(|at| at.elapsed() < EVENT_WINDOW);
        }
        let mut taken = Vec::new();
        for mut event in events {
            let written = match event.type_ {
                EventType::Normal => &mut self.normal,
                EventType::Warning => &mut self.warnings,
            };
            if written.len() >= MAX_EVENTS {
                self.dropped += 1;
                continue;
            }
            if self.dropped > 0 {
                let note = event.note.unwrap_or_default();
                let dropped = format!(" ({} earlier events were dropped)", self.dropped);
                event.note = Some(shortened(&note, MAX_NOTE_BYTES - dropped.len()).to_owned() + &dropped);
                self.dropped = 0;
            }
            written.push(Instant::now());
            taken.push(event);
        }
        taken
    }
}

/// How many events may be written.
#[derive(Debug, Clone, Copy)]
pub(super) struct EventRoom {
    warnings: usize,
    normal: usize,
}

/// The findings about the autoscalers of a variant that are known, as digests of severity, reason and object; `None` before any.
#[derive(Debug, Clone, Default)]
pub(super) struct ToldFindings(Option<Box<[u64]>>);

impl ToldFindings {
    /// The events about those of `findings` that are new, the worst first, as far as there is room: the others have theirs next time. The
    /// first has one with its condition, unless it is a note. What is found at first sight has none: another instance, or this one before
    /// its start, has told it, or a large fleet is seen for the first time.
    pub(super) fn take(&mut self, findings: &[Advice], room: EventRoom) -> Vec<Event> {
        let digest = |advice: &Advice| {
            let mut hasher = DefaultHasher::new();
            (advice.severity, advice.reason, &advice.object).hash(&mut hasher);
            hasher.finish()
        };
        let known = self.0.take();
        let EventRoom { mut warnings, mut normal } = room;
        let (mut now, mut deferred, mut events) = (Vec::new(), Vec::new(), Vec::new());
        for (index, advice) in findings.iter().enumerate() {
            let is_note = advice.severity == Severity::Note;
            let is_silent = [NO_AUTOSCALER, NUMBER_NOT_READ].contains(&advice.reason)
                && advice.severity > Severity::Error;
            let by_condition = index == 0 && !is_note;
            let is_known = known.as_ref().is_none_or(|known| known.contains(&digest(advice)));
            if !(is_known || is_silent || by_condition) {
                let (type_, room) = if is_note {
                    (EventType::Normal, &mut normal)
                } else {
                    (EventType::Warning, &mut warnings)
                };
                let Some(left) = room.checked_sub(1) else {
                    deferred.push(digest(advice));
                    continue;
                };
                *room = left;
                events.push(event(type_, advice.reason, &plain(&advice.in_words(), MAX_NOTE_BYTES)));
            }
            now.push(digest(advice));
        }
        // Of two of one reason, one may have had no room.
        now.retain(|digest| !deferred.contains(digest));
        self.0 = Some(now.into());
        events
    }
}

/// The events about what changed from `old` to `new`.
pub(super) fn events(old: &VariantAutoscalingStatus, new: &VariantAutoscalingStatus) -> Vec<Event> {
    let desired = |status: &VariantAutoscalingStatus| {
        status.desired_optimized_alloc.as_ref().map(|alloc| alloc.num_replicas)
    };
    let mut events = Vec::new();
    if let (Some(from), Some(to)) = (desired(old), desired(new))
        && from != to
    {
        let why = new.condition(OPTIMIZATION_READY).map_or("", |condition| condition.message.as_str());
        let note = format!("desired replicas {from} → {to}: {why}");
        events.push(event(EventType::Normal, "DesiredReplicasChanged", &note));
    }
    events.extend(target_event(old.condition(TARGET_RESOLVED), new.condition(TARGET_RESOLVED)));
    // Without a target there are no metrics, and the event about the target says so.
    let is_lost = new.condition(TARGET_RESOLVED).is_some_and(|target| target.status == "False");
    let is_problem = |condition: &Condition| match condition.type_.as_str() {
        METRICS_AVAILABLE => !is_lost && condition.status == "False",
        LIMIT_ENFORCED => condition.status == "False",
        CAPACITY_CONSTRAINED | PAUSED => condition.status == "True",
        // Also what only costs money or time. That nothing scales a variant is so of each new one, until its HPA is there; and an
        // autoscaler may read the number under another name.
        AUTOSCALER_CONFIGURED if condition.status == "True" => {
            let silent = [AutoscalerVerdict::AS_EXPECTED, NO_AUTOSCALER, NUMBER_NOT_READ];
            !silent.contains(&condition.reason.as_str())
        }
        AUTOSCALER_CONFIGURED => true,
        _ => false,
    };
    for now in new.conditions.iter().filter(|now| is_problem(now)) {
        let is_known = |old: &Condition| old.status == now.status && old.reason == now.reason;
        if !old.condition(&now.type_).is_some_and(is_known) {
            events.push(event(EventType::Warning, &now.reason, &now.message));
        }
    }
    events.extend(signals_event(old.condition(SIGNALS_COMPLETE), new.condition(SIGNALS_COMPLETE)));
    events
}

/// The event that the scale target is missing, or is there again.
fn target_event(old: Option<&Condition>, new: Option<&Condition>) -> Option<Event> {
    let new = new?;
    let was_missing = old.is_some_and(|old| old.status == "False");
    match new.status.as_str() {
        "False" if !was_missing => Some(event(EventType::Warning, &new.reason, &new.message)),
        "True" if was_missing => Some(event(EventType::Normal, &new.reason, &new.message)),
        _ => None,
    }
}

/// The event that signals are missing, that the reason for it changed, or that they are complete again.
fn signals_event(old: Option<&Condition>, new: Option<&Condition>) -> Option<Event> {
    let new = new?;
    let was_incomplete = old.is_some_and(|old| old.status == "False");
    match new.status.as_str() {
        "False" if was_incomplete && old.is_some_and(|old| old.reason == new.reason) => None,
        "False" => {
            let note = format!("signals are incomplete: {}", new.message);
            Some(event(EventType::Warning, &new.reason, &note))
        }
        "True" if was_incomplete => Some(event(EventType::Normal, SIGNALS_COMPLETE, &new.message)),
        _ => None,
    }
}

pub(super) fn event(type_: EventType, reason: &str, note: &str) -> Event {
    let note = Some(shortened(note, MAX_NOTE_BYTES).to_owned());
    Event { type_, reason: reason.into(), note, action: "Decide".into(), secondary: None }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use wva_core::Decision;
    use wva_core::decision::{GapCause, Reason, SignalGap, Target, Verdict};
    use wva_core::report::LimitGap;
    use wva_core::units::Replicas;

    use super::*;
    use crate::cluster::writers::signal_gap::gap;
    use crate::cluster::writers::status::{StatusInput, render};

    /// The status of a variant whose signals are incomplete because of `cause`, and the events about it after `old`.
    fn step(
        old: &VariantAutoscalingStatus,
        cause: Option<GapCause>,
        limit: Option<&LimitGap>,
    ) -> (VariantAutoscalingStatus, Vec<(EventType, String, String)>) {
        let incomplete = |cause| SignalGap {
            warning: (cause == GapCause::PartialSource).then(|| "a store is down".into()),
            ..gap(cause, 1, 2)
        };
        let at = Timestamp::UNIX_EPOCH;
        let desired = Replicas::new(2);
        let target = Target { desired, reason: Reason::Steady, explanation: "calm".into(), evidence: at };
        let decision = Decision {
            model: "m".into(),
            accelerator: None,
            current: Some(desired),
            verdict: Verdict::Target(target),
            gap: cause.map(incomplete),
        };
        let input = StatusInput {
            decision: &decision,
            target: None,
            generation: 1,
            at,
            series: |_| Vec::new(),
            limit,
            pause: None,
            autoscaler: None,
        };
        let new = render(&input, old);
        let events = events(old, &new)
            .into_iter()
            .map(|event| (event.type_, event.reason, event.note.unwrap_or_default()));
        let events = events.collect();
        (new, events)
    }

    #[test]
    fn each_change_of_signals_complete_is_one_event_with_its_cause() {
        let (mut status, first) = step(&VariantAutoscalingStatus::default(), None, None);
        assert!(first.is_empty(), "complete from the beginning: {first:?}");
        for cause in GapCause::ALL {
            let (next, events) = step(&status, Some(cause), None);
            let [(EventType::Warning, reason, note)] = &events[..] else { panic!("{cause:?}: {events:?}") };
            assert_eq!(reason, cause.as_str());
            assert!(note.starts_with("signals are incomplete: "), "{note}");
            assert!(step(&next, Some(cause), None).1.is_empty(), "{cause:?} again");
            status = next;
        }
        let (_, partial) = step(&status, Some(GapCause::PartialSource), None);
        assert!(partial[0].2.contains("a store is down"), "{partial:?}");
        let (_, complete) = step(&status, None, None);
        let [(EventType::Normal, reason, note)] = &complete[..] else { panic!("{complete:?}") };
        assert_eq!((reason.as_str(), note.contains("every signal")), (SIGNALS_COMPLETE, true));
    }

    #[test]
    fn a_limit_that_is_not_enforced_is_one_event_for_each_cause() {
        let (calm, _) = step(&VariantAutoscalingStatus::default(), None, None);
        let named = LimitGap::NotInInventory { accelerator: "H100".into() };
        let (first, events) = step(&calm, None, Some(&LimitGap::NoInventory));
        let [(EventType::Warning, reason, note)] = &events[..] else { panic!("{events:?}") };
        assert_eq!((reason.as_str(), note.contains("no GPU of any node is known")), ("NoInventory", true));
        assert!(step(&first, None, Some(&LimitGap::NoInventory)).1.is_empty());
        let (second, events) = step(&first, None, Some(&named));
        assert!(events[0].1 == "NotInInventory" && events[0].2.contains("H100"), "{events:?}");
        assert!(step(&second, None, None).1.is_empty(), "the condition is removed without an event");
    }

    /// A status with these conditions, by type: status, reason and message.
    fn status(conditions: &[(&str, &str, &str, &str)]) -> VariantAutoscalingStatus {
        let condition = |(type_, status, reason, message): &(&str, &str, &str, &str)| Condition {
            type_: (*type_).into(),
            status: (*status).into(),
            reason: (*reason).into(),
            message: (*message).into(),
            observed_generation: None,
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
        };
        let conditions = conditions.iter().map(condition).collect();
        VariantAutoscalingStatus { conditions, ..VariantAutoscalingStatus::default() }
    }

    #[test]
    fn each_new_problem_is_an_event_with_its_cause_until_it_has_another_one() {
        let calm = status(&[
            (TARGET_RESOLVED, "True", "TargetFound", "found"),
            (METRICS_AVAILABLE, "True", "MetricsFound", "there"),
            (CAPACITY_CONSTRAINED, "False", "NotConstrained", "free"),
        ]);
        let lost = status(&[
            (TARGET_RESOLVED, "False", "TargetNotFound", "not found"),
            (METRICS_AVAILABLE, "False", "MetricsUnavailable", "no target"),
        ]);
        let down = |text| status(&[(METRICS_AVAILABLE, "False", "PrometheusError", text)]);
        let missing = status(&[(METRICS_AVAILABLE, "False", "MetricsMissing", "no series")]);
        let full = |reason| status(&[(CAPACITY_CONSTRAINED, "True", reason, "team-a of H100")]);
        let (limit, node) = (full("LimitReached"), full("NoNodeHasRoom"));
        for (what, old, new, expected) in [
            ("nothing", &calm, &calm, None),
            ("the target is deleted, which says enough", &calm, &lost, Some("TargetNotFound: not found")),
            ("still", &lost, &lost, None),
            ("it is created again", &lost, &calm, Some("TargetFound: found")),
            ("the source fails", &calm, &down("refused"), Some("PrometheusError: refused")),
            ("in another way", &down("refused"), &down("timed out"), None),
            ("its answer lacks the series", &down("refused"), &missing, Some("MetricsMissing: no series")),
            ("a limit", &calm, &limit, Some("LimitReached: team-a of H100")),
            ("then the nodes", &limit, &node, Some("NoNodeHasRoom: team-a of H100")),
            ("neither", &node, &calm, None),
        ] {
            let written = events(old, new).into_iter();
            let written: Vec<_> = written
                .map(|event| format!("{}: {}", event.reason, event.note.unwrap_or_default()))
                .collect();
            assert_eq!(written, expected.into_iter().collect::<Vec<_>>(), "{what}");
        }
    }

    #[test]
    fn an_invalid_configuration_was_not_reported_because_the_number_had_changed_often() {
        let mut budget = EventBudget::default();
        (0..12).for_each(|from| drop(budget.take(changed(from))));
        let problem = vec![event(EventType::Warning, "InvalidConfiguration", "a wrong cost")];
        assert_eq!(
            budget.take(problem)[0].note.as_deref(),
            Some("a wrong cost (6 earlier events were dropped)")
        );
    }

    fn changed(from: usize) -> Vec<Event> {
        let note = format!("desired replicas {from} → {}", from + 1);
        vec![event(EventType::Normal, "DesiredReplicasChanged", &note)]
    }

    #[tokio::test(start_paused = true)]
    async fn a_number_that_keeps_changing_makes_few_events_that_count_the_dropped_ones() {
        let mut budget = EventBudget::default();
        let written = (0..12).map(|from| budget.take(changed(from)).len()).sum::<usize>();
        assert_eq!((written, budget.normal.len()), (MAX_EVENTS, MAX_EVENTS));
        tokio::time::advance(EVENT_WINDOW).await;
        let notes: Vec<_> = budget.take(changed(12)).into_iter().filter_map(|event| event.note).collect();
        assert_eq!(notes, ["desired replicas 12 → 13 (6 earlier events were dropped)"]);
        assert_eq!(budget.take(changed(13))[0].note.as_deref(), Some("desired replicas 13 → 14"));
    }

    fn advice(severity: Severity, reason: &'static str) -> Advice {
        let [object, set, effect, fix] = ["HorizontalPodAutoscaler llm/a", "x is 1", "y", "spec: {x: 2}"];
        let [object, set, effect, fix] = [object, set, effect, fix].map(str::to_owned);
        Advice { severity, reason, object, set, effect, fix }
    }

    const ROOM: EventRoom = EventRoom { warnings: MAX_EVENTS, normal: MAX_EVENTS };

    fn told_of(told: &mut ToldFindings, findings: &[&Advice], room: EventRoom) -> Vec<(EventType, String)> {
        let findings: Vec<Advice> = findings.iter().copied().cloned().collect();
        told.take(&findings, room).into_iter().map(|event| (event.type_, event.reason)).collect()
    }

    #[test]
    fn each_finding_has_an_event_when_it_is_found_and_none_at_first_sight() {
        let (error, warning, note) = (
            advice(Severity::Error, "TargetTypeMultiplies"),
            advice(Severity::Warning, "RemovalsDelayed"),
            advice(Severity::Note, "MaximumAboveVariants"),
        );
        let mut told = ToldFindings::default();
        assert_eq!(told_of(&mut told, &[&warning], ROOM), []);
        // The condition has the event of the first.
        let noted = [(EventType::Normal, "MaximumAboveVariants".to_owned())];
        assert_eq!(told_of(&mut told, &[&error, &warning, &note], ROOM), noted);
        assert_eq!(told_of(&mut told, &[&warning, &note], ROOM), [], "what is left is known");
        assert_eq!(told_of(&mut told, &[&note], ROOM), []);
        let again = [(EventType::Warning, "RemovalsDelayed".to_owned())];
        assert_eq!(told_of(&mut told, &[&error, &warning], ROOM), again);
        let unread = advice(Severity::Warning, NUMBER_NOT_READ);
        assert_eq!(told_of(&mut told, &[&error, &warning, &unread], ROOM), [], "it may be meant");
        let worse = advice(Severity::Warning, "MaximumAboveVariants");
        assert_eq!(told_of(&mut told, &[&error, &note], ROOM), noted);
        assert_eq!(told_of(&mut told, &[&error, &worse], ROOM).len(), 1, "a note that became a warning");
        let event = told.take(&[error.clone(), warning.clone()], ROOM).remove(0);
        let expected = r#"HorizontalPodAutoscaler llm/a: x is 1; y; what mends it: {"spec":{"x":2}}"#;
        assert_eq!(event.note.as_deref(), Some(expected));
        assert!(told_of(&mut ToldFindings::default(), &[&error, &warning, &note], ROOM).is_empty());
    }

    #[test]
    fn what_there_was_no_room_for_is_told_the_next_time() {
        let findings = ["A", "B", "C", "C"].map(|reason| advice(Severity::Warning, reason));
        let mut told = ToldFindings::default();
        told.take(&findings[..1], ROOM);
        let mut next = |warnings| {
            let events = told.take(&findings, EventRoom { warnings, normal: 0 });
            events.into_iter().map(|event| event.reason).collect::<Vec<_>>().concat()
        };
        // Of the two of one reason, the first comes once more.
        assert_eq!([next(2), next(0), next(2), next(2)], ["BC", "", "CC", ""]);
    }

    #[test]
    fn a_number_that_changes_often_leaves_room_for_findings() {
        let mut budget = EventBudget::default();
        let change = |_| event(EventType::Normal, "DesiredReplicasChanged", "1 → 2");
        let changes = || (0..9).map(change).collect::<Vec<_>>();
        assert_eq!(budget.take(changes()).len(), MAX_EVENTS);
        let room = budget.room(&changes());
        assert_eq!((room.warnings, room.normal), (MAX_EVENTS, 0));
    }
}
