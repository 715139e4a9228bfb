//! The closed loop: requests come, pods serve them, a controller sees what it sees, HPAs write, pods come and go. What
//! happens next is always known, so time jumps from one event to the next.

mod bed;
mod brain;
mod eyes;
mod faults;
mod pod;
mod results;
mod scaler;
mod tally;
#[cfg(test)]
mod tests;
mod timers;

use self::bed::Bed;
use self::timers::Timers;
use super::PATIENCE;
use super::arrivals::Source;
use super::controller::Controller;
use super::invalid::Invalid;
use super::rng::Rng;
use super::scenario::Scenario;

pub use results::{Answer, Point, Run, Write};

/// What a run's chance is used for: the requests, the same for every controller.
const REQUESTS: u64 = 3;

/// Plays `scenario` with `controller`. The same arguments give the same run; `progress` is told the share that is done
/// (0 to 1), some two thousand times at most.
///
/// # Errors
/// When a field of the scenario or of the controller makes no sense.
pub fn simulate(
    scenario: &Scenario,
    controller: &Controller,
    seed: u64,
    mut progress: impl FnMut(f64),
) -> Result<Run, Invalid> {
    scenario.check()?;
    controller.check()?;
    let mut source = Source::new(scenario, Rng::stream(seed, REQUESTS));
    let mut bed = Bed::new(scenario, seed);
    let mut timers = Timers::new(scenario, controller, seed);
    let end_s = scenario.duration.as_secs_f64();
    loop {
        let (request_s, pods_s, timer_s) = (source.next_s(), bed.next_s(), timers.next_s());
        if request_s.min(pods_s).min(timer_s) >= end_s {
            break;
        }
        if request_s <= pods_s.min(timer_s) {
            source.take().into_iter().for_each(|request| bed.arrive(request));
        } else if pods_s <= timer_s {
            bed.pass(pods_s);
        } else if timers.ring(timer_s, &mut bed) {
            progress(timer_s / end_s);
        }
    }
    timers.finish(&mut bed);
    let gpu_s = bed.all_gpu_seconds(end_s);
    follow(&mut bed, end_s + PATIENCE.as_secs_f64());
    progress(1.0);
    let run = Run {
        scenario: scenario.name.clone(),
        policy: controller.name.clone(),
        seed,
        gpu_hours: gpu_s / 3600.0,
        ..timers.spent()
    };
    let run = Run { doubted: timers.doubted(), answers: timers.into_answers(), ..run };
    Ok(bed.tally.into_run(run))
}

/// Follows the requests that came to their end, or until `until_s`.
fn follow(bed: &mut Bed<'_>, until_s: f64) {
    loop {
        let next_s = bed.next_s();
        if next_s > until_s || bed.in_flight() == 0 {
            break;
        }
        bed.pass(next_s);
    }
    bed.close(until_s);
}
