//! The closed loop: requests arrive, pods serve them, a controller observes and decides, HPAs write, pods come and go. The
//! next event is always known, so time jumps from one event to the next.

mod controllers;
mod event_loop;
mod faults;
mod observer;
mod recorder;
mod results;
mod scaler;
#[cfg(test)]
mod tests;

use std::time::Duration;

use self::event_loop::EventLoop;
use self::recorder::RunRecorder;
use super::arrivals::RequestSource;
use super::cluster::SimCluster;
use super::controller::Controller;
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
pub fn simulate(
    scenario: &Scenario,
    controller: &Controller,
    seed: u64,
    mut progress: impl FnMut(f64),
) -> Run {
    let mut source = RequestSource::new(scenario, Rng::stream(seed, REQUEST_STREAM));
    let run =
        Run { scenario: scenario.name.clone(), policy: controller.name.clone(), seed, ..Run::default() };
    let recorder = RunRecorder::new(run, scenario);
    let mut cluster = SimCluster::new(scenario.clone(), seed, recorder);
    let mut events = EventLoop::new(scenario, controller, seed);
    let end_s = scenario.duration.as_secs_f64();
    loop {
        let request_s = source.next_s();
        let cluster_s = cluster.next_event_s();
        let timer_s = events.next_s();
        if request_s.min(cluster_s).min(timer_s) >= end_s {
            break;
        }
        // At the same time, requests come before pods and pods before timers.
        if request_s <= cluster_s.min(timer_s) {
            source.next().into_iter().for_each(|request| cluster.arrive(request));
        } else if cluster_s <= timer_s {
            cluster.process_events(cluster_s);
        } else if events.process(timer_s, &mut cluster) {
            progress(timer_s / end_s);
        }
    }
    events.finish(&mut cluster);
    cluster.recorder.run.gpu_hours = cluster.gpu_seconds(end_s) / 3600.0;
    drain(&mut cluster, end_s + DRAIN_TIMEOUT.as_secs_f64());
    progress(1.0);
    cluster.recorder.into_run()
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
