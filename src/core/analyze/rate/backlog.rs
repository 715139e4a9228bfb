//! What will wait when a pod ordered now serves: a fluid of requests, followed over the horizon.

use super::capacity::Replica;

/// Steps of the forecast; each is a few seconds, short against a request's residence.
const STEPS: u32 = 40;

/// A pod, and in how many seconds it serves (0: it does).
pub type Coming = (Replica, f64);

/// Requests in the role at the end of `horizon` seconds: `now` of them are there, `arriving` come each second, and each pod
/// takes a share of them by how many it may run.
#[must_use]
pub fn at_horizon(now: f64, arriving: f64, pods: &[Coming], horizon: f64) -> f64 {
    let step = horizon / f64::from(STEPS);
    let mut inside = now;
    for index in 0..STEPS {
        let passed = f64::from(index) * step;
        let serving = || pods.iter().filter(|(_, ready_in)| *ready_in <= passed).map(|(replica, _)| replica);
        let room: f64 = serving().map(|replica| replica.most).sum();
        let worked: f64 = serving().map(|replica| replica.at(inside * replica.most / room)).sum();
        inside = (inside + (arriving - worked) * step).max(0.0);
    }
    inside
}
