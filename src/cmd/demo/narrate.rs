//! What changed from one look to the next, in sentences. Pure: looks in, lines out.

use std::time::Duration;

use wva_core::Decision;
use wva_core::decision::Verdict;

use super::stage::Scene;
use super::story;

/// Everything one look sees.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Look {
    /// The fleet.
    pub(super) scene: Scene,
    /// Pods that the Deployment should have.
    pub(super) replicas: u32,
    /// What the server answers, and the decision's own sentence; `None` before the first decision.
    pub(super) verdict: Option<(Result<u32, ()>, String)>,
}

impl Look {
    /// The desired replicas, if there is a number.
    pub(super) fn desired(&self) -> Option<u32> {
        self.verdict.as_ref().and_then(|(desired, _)| desired.ok())
    }
}

/// The number and the sentence of a decision; without the variant's name, because there is only one.
pub(super) fn verdict(decision: &Decision) -> (Result<u32, ()>, String) {
    let (desired, message) = match &decision.verdict {
        Verdict::Target(target) => (Ok(target.desired.get()), &target.message),
        Verdict::Unknown(unknown) => (Err(()), &unknown.message),
    };
    (desired, without(&format!("{}/{}: ", story::NAMESPACE, story::VARIANT), message).to_owned())
}

fn without<'a>(prefix: &str, text: &'a str) -> &'a str {
    text.strip_prefix(prefix).unwrap_or(text)
}

/// Remembers the last look and the extremes.
#[derive(Debug, Default)]
pub(super) struct Narrator {
    last: Option<Look>,
    most_replicas: u32,
    longest_wait_s: f64,
}

impl Narrator {
    /// One sentence for each thing that is new in `look`.
    pub(super) fn notice(&mut self, look: &Look) -> Vec<String> {
        self.most_replicas = self.most_replicas.max(look.replicas);
        self.longest_wait_s = self.longest_wait_s.max(look.scene.fleet.max_wait_s);
        let mut lines = Vec::new();
        lines.extend(self.number(look));
        if let Some(last) = &self.last {
            lines.extend(resized(last.replicas, look.replicas));
            lines.extend(served(last, look));
        }
        self.last = Some(look.clone());
        lines
    }

    fn number(&self, look: &Look) -> Option<String> {
        let (new, message) = look.verdict.as_ref()?;
        let old = self.last.as_ref().and_then(|last| last.verdict.as_ref()).map(|(old, _)| old);
        match (old, new) {
            (Some(old), new) if old == new => None,
            (Some(Ok(old)), Ok(new)) => {
                let why = without(&format!("{old} to {new}: "), message);
                Some(format!("wva wants {new} instead of {old}: {why}"))
            }
            (_, Ok(new)) => Some(format!("wva wants {new}: {message}")),
            (_, Err(())) => Some(format!("wva gives no number: {message}")),
        }
    }

    /// The last line of the demo.
    pub(super) fn sum_up(&self, end: &Scene) -> String {
        let hours = end.at.as_secs_f64() / 3600.0;
        let always = f64::from(self.most_replicas) * story::pod().cost * hours;
        format!(
            "{} of virtual time: {:.0} requests answered, longest wait {}; cost {:.2}, where {} pods all the time cost {:.2}",
            minutes(end.at),
            end.fleet.completed,
            seconds(self.longest_wait_s),
            end.cost,
            self.most_replicas,
            always,
        )
    }
}

fn resized(old: u32, new: u32) -> Option<String> {
    let start = story::START_UP.mean.as_secs();
    if new > old {
        Some(format!(
            "the HPA read it and makes {old} → {new} pods; a new one loads its model for about {start} s"
        ))
    } else {
        (new < old).then(|| {
            format!("the HPA read it and makes {old} → {new} pods; the one that leaves finishes its requests first")
        })
    }
}

fn served(last: &Look, look: &Look) -> Option<String> {
    let (old, new) = (last.scene.fleet.ready, look.scene.fleet.ready);
    let fleet = &look.scene.fleet;
    (new > old).then(|| {
        let verb = if new == 1 { "pod serves" } else { "pods serve" };
        format!("{new} {verb} now: room for {:.1} requests/s, {:.1} come", fleet.capacity_rps, fleet.rps)
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

    fn look(desired: u32, replicas: u32, ready: usize) -> Look {
        let fleet = Summary { ready, rps: 9.0, capacity_rps: 8.0 * ready as f64, ..Summary::default() };
        let scene = Scene { at: Duration::from_secs(75), fleet, cost: 1.0 };
        Look { scene, replicas, verdict: Some((Ok(desired), "KV usage is high.".into())) }
    }

    #[test]
    fn each_change_is_told_once_and_in_its_order() {
        let mut narrator = Narrator::default();
        assert_eq!(narrator.notice(&look(1, 1, 1)), ["wva wants 1: KV usage is high."]);
        assert!(narrator.notice(&look(1, 1, 1)).is_empty());
        let up = Look { verdict: Some((Ok(2), "1 to 2: KV usage is high.".into())), ..look(2, 1, 1) };
        assert_eq!(narrator.notice(&up), ["wva wants 2 instead of 1: KV usage is high."]);
        let lines = narrator.notice(&look(2, 2, 1));
        assert!(
            lines.len() == 1 && lines[0].starts_with("the HPA read it and makes 1 → 2 pods"),
            "{lines:?}"
        );
        assert_eq!(narrator.notice(&look(2, 2, 2)), ["2 pods serve now: room for 16.0 requests/s, 9.0 come"]);
        let lines = narrator.notice(&look(1, 1, 2));
        assert!(lines.len() == 2 && lines[1].contains("finishes its requests first"), "{lines:?}");
    }

    #[test]
    fn no_number_is_said_with_its_reason() {
        let mut narrator = Narrator::default();
        let blind = Look { verdict: Some((Err(()), "Nothing measured.".into())), ..look(1, 1, 1) };
        assert_eq!(narrator.notice(&blind), ["wva gives no number: Nothing measured."]);
    }

    #[test]
    fn the_end_compares_the_cost_with_a_fixed_fleet() {
        let mut narrator = Narrator::default();
        narrator.notice(&look(3, 4, 3));
        let end = Scene { at: Duration::from_secs(1800), fleet: Summary::default(), cost: 12.5 };
        assert!(narrator.sum_up(&end).ends_with("cost 12.50, where 4 pods all the time cost 20.00"));
    }
}
