//! What changed from one frame of the demo to the next, in sentences. Pure: frames in, lines out.

use std::time::Duration;

use wva_core::Decision;
use wva_core::decision::Verdict;

use super::fleet::FleetState;
use super::scenario;

/// Everything the demo shows at one moment.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Frame {
    pub(super) fleet: FleetState,
    /// What the server answers; `None` before the first decision.
    pub(super) answer: Option<Answer>,
}

/// What the server answers an HPA, and why.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answer {
    /// Desired replicas; `None` when it answers with an error.
    pub(super) desired: Option<u32>,
    /// The decision's reasons, without the number.
    pub(super) reasons: String,
}

impl Answer {
    /// The answer of a decision.
    pub(super) fn new(decision: &Decision) -> Self {
        let desired = match &decision.verdict {
            Verdict::Target(target) => Some(target.desired.get()),
            Verdict::Unknown(_) => None,
        };
        Self { desired, reasons: decision.verdict.explanation().reasons().to_string() }
    }
}

impl Frame {
    /// The desired replicas, if there is a number.
    pub(super) fn desired(&self) -> Option<u32> {
        self.answer.as_ref().and_then(|answer| answer.desired)
    }
}

/// Demand by capacity of the ready pods; `None` without a ready pod.
pub(super) fn utilisation(fleet: &FleetState) -> Option<f64> {
    let capacity_rps = fleet.summary.capacity_rps;
    (capacity_rps > 0.0).then(|| fleet.summary.rps / capacity_rps)
}

/// Compares each frame with the one before, and keeps the extremes for the last line.
#[derive(Debug, Default)]
pub(super) struct Narrator {
    last: Option<Frame>,
    max_replicas: u32,
    max_wait_s: f64,
}

impl Narrator {
    /// A sentence for each change in `frame`.
    pub(super) fn changes(&mut self, frame: &Frame) -> Vec<String> {
        self.max_replicas = self.max_replicas.max(frame.fleet.spec_replicas);
        self.max_wait_s = self.max_wait_s.max(frame.fleet.summary.max_wait_s);
        let mut lines = Vec::new();
        lines.extend(self.desired_line(frame));
        if let Some(last) = &self.last {
            lines.extend(scaled_line(last.fleet.spec_replicas, frame.fleet.spec_replicas));
            lines.extend(ready_line(&last.fleet, &frame.fleet));
        }
        self.last = Some(frame.clone());
        lines
    }

    fn desired_line(&self, frame: &Frame) -> Option<String> {
        let Answer { desired: new, reasons } = frame.answer.as_ref()?;
        let old = self.last.as_ref().and_then(|last| last.answer.as_ref()).map(|answer| answer.desired);
        match (old, *new) {
            (Some(old), new) if old == new => None,
            (Some(Some(old)), Some(new)) => Some(format!("wva: desired replicas {old} → {new}: {reasons}")),
            (_, Some(new)) => Some(format!("wva: desired replicas {new}: {reasons}")),
            (_, None) => Some(format!("wva: no number: {reasons}")),
        }
    }

    /// The last line of the demo.
    pub(super) fn totals(&self, end: &FleetState) -> String {
        let hours = end.at.as_secs_f64() / 3600.0;
        format!(
            "{} of virtual time: {} requests answered, longest wait {}. Cost {:.2}; {} pods all the time would cost {:.2}",
            minutes(end.at),
            end.summary.finished,
            seconds(self.max_wait_s),
            end.summary.cost,
            self.max_replicas,
            f64::from(self.max_replicas) * scenario::COST * hours,
        )
    }
}

fn scaled_line(old: u32, new: u32) -> Option<String> {
    let start_up_s = scenario::START_UP.mean.as_secs();
    if new > old {
        Some(format!("HPA: {old} → {new} pods. A new pod loads its model for about {start_up_s} s"))
    } else {
        (new < old).then(|| format!("HPA: {old} → {new} pods. A pod that goes finishes its requests first"))
    }
}

fn ready_line(last: &FleetState, now: &FleetState) -> Option<String> {
    let ready = now.summary.ready;
    (ready > last.summary.ready).then(|| {
        let pods = if ready == 1 { "pod" } else { "pods" };
        let percent = 100.0 * utilisation(now).unwrap_or(0.0);
        format!(
            "fleet: {ready} {pods} ready: capacity {:.1} req/s, demand {:.1} req/s, utilisation {percent:.0} %",
            now.summary.capacity_rps, now.summary.rps
        )
    })
}

/// `mm:ss`.
pub(super) fn minutes(time: Duration) -> String {
    format!("{:02}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

/// Milliseconds below a second, else seconds.
pub(super) fn seconds(time: f64) -> String {
    if time < 0.9995 { format!("{:.0} ms", time * 1000.0) } else { format!("{time:.1} s") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wva_sim::Summary;

    fn frame(desired: u32, spec_replicas: u32, ready: usize) -> Frame {
        let summary = Summary { ready, rps: 9.0, capacity_rps: 8.0 * ready as f64, ..Summary::default() };
        let fleet = FleetState { at: Duration::from_secs(75), summary, spec_replicas };
        Frame { fleet, answer: Some(Answer { desired: Some(desired), reasons: "KV usage is high.".into() }) }
    }

    #[test]
    fn each_change_is_told_once_and_in_its_order() {
        let mut narrator = Narrator::default();
        assert_eq!(narrator.changes(&frame(1, 1, 1)), ["wva: desired replicas 1: KV usage is high."]);
        assert!(narrator.changes(&frame(1, 1, 1)).is_empty());
        let up = frame(2, 1, 1);
        assert_eq!(narrator.changes(&up), ["wva: desired replicas 1 → 2: KV usage is high."]);
        let lines = narrator.changes(&frame(2, 2, 1));
        assert!(lines.len() == 1 && lines[0].starts_with("HPA: 1 → 2 pods"), "{lines:?}");
        assert_eq!(
            narrator.changes(&frame(2, 2, 2)),
            ["fleet: 2 pods ready: capacity 16.0 req/s, demand 9.0 req/s, utilisation 56 %"]
        );
        let lines = narrator.changes(&frame(1, 1, 2));
        assert!(lines.len() == 2 && lines[1].contains("finishes its requests first"), "{lines:?}");
    }

    #[test]
    fn an_answer_without_a_number_is_shown_with_its_reason() {
        let mut narrator = Narrator::default();
        let answer = Some(Answer { desired: None, reasons: "Nothing measured.".into() });
        let blind = Frame { answer, ..frame(1, 1, 1) };
        assert_eq!(narrator.changes(&blind), ["wva: no number: Nothing measured."]);
    }

    #[test]
    fn the_end_compares_the_cost_with_a_fixed_fleet() {
        let mut narrator = Narrator::default();
        narrator.changes(&frame(3, 4, 3));
        let summary = Summary { cost: 12.5, ..Summary::default() };
        let end = FleetState { at: Duration::from_secs(1800), summary, spec_replicas: 1 };
        assert!(narrator.totals(&end).ends_with("Cost 12.50; 4 pods all the time would cost 20.00"));
    }
}
