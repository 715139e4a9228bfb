//! The closed loop: requests arrive, pods serve them, a controller observes and decides, HPAs write, pods come and go. The
//! next event is always known, so time jumps from one event to the next.

mod controllers;
mod event_loop;
mod faults;
mod observer;
mod peers;
mod recorder;
mod results;
mod scaler;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use self::controllers::fixed_replicas;
use self::event_loop::EventLoop;
use self::recorder::RunRecorder;
use super::arrivals::RequestSource;
use super::cluster::SimCluster;
use super::controller::{Algorithm, Controller, ScheduleEntry};
use super::rng::Rng;
use super::scenario::Scenario;

pub use results::{Point, ReplicaChange, ReplicaNumbers, Run};

/// How long after a scenario's end the simulation still follows the requests that arrived, with the fleet as it is then:
/// four times the longest residence that a client would wait for.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(900);

/// Random stream of the requests, the same for every controller.
const REQUEST_STREAM: u64 = 3;

/// Simulates `scenario` under `controller`. The same arguments give the same run. `progress` is called with the share that is
/// done, 0 to 1, about two thousand times at most.
pub fn simulate(scenario: &Scenario, controller: &Controller, seed: u64, progress: impl FnMut(f64)) -> Run {
    play(scenario, controller, seed, true, progress)
}

/// The same without the run over time, in three quarters of the time. The figures may differ in their last digits, because the
/// servers are not read for the series.
pub fn simulate_figures(
    scenario: &Scenario,
    controller: &Controller,
    seed: u64,
    progress: impl FnMut(f64),
) -> Run {
    play(scenario, controller, seed, false, progress)
}

fn play(
    scenario: &Scenario,
    controller: &Controller,
    seed: u64,
    has_series: bool,
    mut progress: impl FnMut(f64),
) -> Run {
    let fleet = started(scenario, controller);
    let mut play = Play::new(&fleet, controller, seed, has_series);
    while let Some(share) = play.advance() {
        share.into_iter().for_each(&mut progress);
    }
    progress(1.0);
    play.finish()
}

/// A schedule that is played again and again with changes: a change plays only what comes after it.
pub(crate) struct Rehearsal<'a> {
    /// The run at every `step_s`, from the start on.
    states: Vec<Play<'a>>,
    step_s: f64,
}

impl<'a> Rehearsal<'a> {
    /// Of a controller with a schedule. `states` are kept of each run, at least 1.
    pub(crate) fn new(scenario: &'a Scenario, controller: &'a Controller, seed: u64, states: usize) -> Self {
        let step_s = scenario.duration.as_secs_f64() / states.max(1) as f64;
        Self { states: vec![Play::new(scenario, controller, seed, false)], step_s }
    }

    /// The run under `schedule`, which is that of the last run before `from_s`; `None` as soon as more than `max_outside` requests
    /// are known to be outside the objectives. With it, the states that [`Self::keep`] takes.
    pub(crate) fn play(
        &self,
        schedule: &Arc<[ScheduleEntry]>,
        from_s: f64,
        max_outside: u64,
    ) -> Option<(Run, Vec<Play<'a>>)> {
        let first = ((from_s / self.step_s) as usize).min(self.states.len() - 1);
        let mut play = self.states[first].fork(schedule);
        let mut states = Vec::new();
        let mut next_s = self.step_s * (first + 1) as f64;
        loop {
            while play.next_s() >= next_s && next_s < play.end_s {
                states.push(play.fork(schedule));
                next_s += self.step_s;
            }
            if play.advance().is_none() {
                break;
            }
            if play.cluster.recorder.outside_slo > max_outside {
                return None;
            }
        }
        Some((play.finish(), states))
    }

    /// Makes a run from `from_s` on the one that the next is compared with.
    pub(crate) fn keep(&mut self, from_s: f64, states: Vec<Play<'a>>) {
        let first = ((from_s / self.step_s) as usize).min(self.states.len() - 1);
        self.states.truncate(first + 1);
        self.states.extend(states);
    }
}

/// The scenario with the fleet that it starts with under `controller`.
fn started(scenario: &Scenario, controller: &Controller) -> Scenario {
    let mut scenario = scenario.clone();
    if let Algorithm::Fixed(fleet) = &controller.algorithm {
        for (index, variant) in scenario.variants.iter_mut().enumerate() {
            let own = fixed_replicas(fleet, index).unwrap_or(variant.replicas).max(variant.bounds.min);
            variant.replicas = variant.bounds.max.map_or(own, |max| own.min(max));
        }
    }
    scenario
}

/// A run under way.
pub(crate) struct Play<'a> {
    source: RequestSource<'a>,
    cluster: SimCluster<RunRecorder>,
    events: EventLoop<'a>,
    end_s: f64,
}

impl<'a> Play<'a> {
    fn new(scenario: &'a Scenario, controller: &'a Controller, seed: u64, has_series: bool) -> Self {
        let run =
            Run { scenario: scenario.name.clone(), policy: controller.name.clone(), seed, ..Run::default() };
        let recorder = RunRecorder::new(run, scenario, has_series);
        Self {
            source: RequestSource::new(scenario, Rng::stream(seed, REQUEST_STREAM)),
            cluster: SimCluster::new(scenario.clone(), seed, recorder),
            events: EventLoop::new(scenario, controller, seed),
            end_s: scenario.duration.as_secs_f64(),
        }
    }

    /// The same run, to be continued under another schedule.
    fn fork(&self, schedule: &Arc<[ScheduleEntry]>) -> Self {
        let events = self.events.fork(schedule);
        Self { source: self.source.clone(), cluster: self.cluster.clone(), events, end_s: self.end_s }
    }

    /// When the next event is due, seconds.
    fn next_s(&self) -> f64 {
        self.source.next_s().min(self.cluster.next_event_s()).min(self.events.next_s())
    }

    /// Processes the next event; `None` when none is left before the end. The share that is done is given with each point of the
    /// series.
    fn advance(&mut self) -> Option<Option<f64>> {
        let request_s = self.source.next_s();
        let cluster_s = self.cluster.next_event_s();
        let timer_s = self.events.next_s();
        if request_s.min(cluster_s).min(timer_s) >= self.end_s {
            return None;
        }
        // At the same time, requests come before pods and pods before timers.
        if request_s <= cluster_s.min(timer_s) {
            self.source.next().into_iter().for_each(|request| self.cluster.arrive(request));
        } else if cluster_s <= timer_s {
            self.cluster.process_events(cluster_s);
        } else if self.events.process(timer_s, &mut self.cluster) {
            return Some(Some(timer_s / self.end_s));
        }
        Some(None)
    }

    fn finish(mut self) -> Run {
        self.events.finish(&mut self.cluster);
        self.cluster.recorder.run.gpu_hours = self.cluster.gpu_seconds(self.end_s) / 3600.0;
        drain(&mut self.cluster, self.end_s + DRAIN_TIMEOUT.as_secs_f64());
        self.cluster.recorder.into_run()
    }
}

/// Follows the requests that arrived until all have ended, or until `until_s`.
fn drain(cluster: &mut SimCluster<RunRecorder>, until_s: f64) {
    loop {
        let next_s = cluster.next_event_s();
        if next_s > until_s || cluster.in_flight() == 0 {
            break;
        }
        cluster.process_events(next_s);
    }
    cluster.close(until_s);
}
