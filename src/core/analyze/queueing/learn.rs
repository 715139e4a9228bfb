//! What a variant's parameters become in one cycle.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::fit::{concurrency, fit};
use super::matrix::{Mat3, Vec3, symmetric};
use super::service_time::Service;
use super::tuner::{Environment, Filter, Start, guess};
use crate::model::Compat;

/// What has been learned of one variant. To be kept by the caller from cycle to cycle; less than 2 kB as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Parameters {
    /// α, β, γ.
    pub service: Service,
    /// What is known of their error, rows of the filter's P.
    pub covariance: Mat3,
    /// Of the last observation; `None` when the model had no answer to it.
    pub nis: Option<f64>,
    /// Cycles in a row in which no observation was accepted.
    #[serde(default)]
    pub refused: u32,
    /// The newest accepted observation of each load, newest last. Empty with upstream's way.
    #[serde(default)]
    pub seen: Vec<Environment>,
    /// What held before each of the last new starts, newest last.
    #[serde(default)]
    pub before: Vec<Service>,
    /// When an observation was last accepted. Earlier versions did not store it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learned_at: Option<Timestamp>,
}

/// After this many cycles of refusals it is the parameters that are wrong, not the observations.
pub const PATIENCE: u32 = 3;
/// Loads kept, each twice the one before it: from 1 request to 256.
const LOADS: usize = 8;
/// Earlier parameters kept: a signal that is told wrongly for some minutes makes two new starts when it begins and when it ends.
const EARLIER: usize = 4;

/// The parameters after the environments of one cycle. With none, or when no filter can be built, they stay.
#[must_use]
pub fn learn(stored: Option<&Parameters>, now: &[Environment], compat: Compat) -> Option<Parameters> {
    let Some(first) = now.first() else {
        return stored.cloned();
    };
    let learned = if compat.is_upstream() {
        follow(&upstream_start(stored, first), now, compat)
    } else {
        robust(stored, now, compat)
    };
    learned.or_else(|| stored.cloned())
}

fn upstream_start(stored: Option<&Parameters>, first: &Environment) -> Start {
    if let Some(Parameters { service, covariance, .. }) = stored {
        return Start::stored(*service, Some(*covariance));
    }
    let [ttft, itl] = first.observed();
    let (input, output) = (f64::from(first.shape.input), f64::from(first.shape.output));
    guess(ttft, itl, input, output).map_or_else(Start::unknown, Start::guessed)
}

/// Upstream's cycle: one filter walks over all environments, and what it ends with is kept, refused or not.
fn follow(start: &Start, now: &[Environment], compat: Compat) -> Option<Parameters> {
    let mut filter = Filter::new(start, now.first()?, compat).ok()?;
    let mut nis = None;
    for seen in now {
        nis = filter.step(seen).nis;
    }
    kept(&filter, nis)
}

fn kept(filter: &Filter, nis: Option<f64>) -> Option<Parameters> {
    let service = service(filter.state)?;
    Some(Parameters {
        service,
        covariance: filter.covariance,
        nis,
        refused: 0,
        seen: Vec::new(),
        before: Vec::new(),
        learned_at: None,
    })
}

fn service([alpha, beta, gamma]: Vec3) -> Option<Service> {
    Service::new(alpha as f32, beta as f32, gamma as f32).ok()
}

/// Ours: starts from a fit over the loads that were seen, and tries to start again whenever everything has been refused
/// for [`PATIENCE`] cycles more.
fn robust(stored: Option<&Parameters>, now: &[Environment], compat: Compat) -> Option<Parameters> {
    let Some(stored) = stored else {
        return refit(&[], &[], now, compat);
    };
    let covariance = symmetric(stored.covariance).then_some(stored.covariance);
    let start = Start::stored(stored.service, covariance);
    let mut next = Parameters { nis: None, refused: stored.refused.saturating_add(1), ..stored.clone() };
    // The noise is that of the first environment the filter can start with.
    let filter = now.iter().find_map(|first| Filter::new(&start, first, compat).ok());
    if let Some(mut filter) = filter {
        for seen in now {
            let step = filter.step(seen);
            next.nis = step.nis;
            if step.accepted {
                next.refused = 0;
                file(&mut next.seen, seen);
            }
        }
        next.covariance = filter.covariance;
        next.service = service(filter.state)?;
    }
    if next.refused == 0 || !next.refused.is_multiple_of(PATIENCE) {
        return Some(next);
    }
    let Some(mut started) = refit(&next.seen, &next.before, now, compat) else { return Some(next) };
    started.before = next.before;
    started.before.push(stored.service);
    let surplus = started.before.len().saturating_sub(EARLIER);
    started.before.drain(..surplus);
    Some(started)
}

/// A new start: what held before an earlier one, if it explains what is seen now, since a signal that was told wrongly for a while
/// looks like an engine that changed and changed back; else the fit over all loads seen; else what was seen before no longer holds,
/// and is forgotten. `None` when none of these explains it.
fn refit(
    before: &[Environment],
    earlier: &[Service],
    now: &[Environment],
    compat: Compat,
) -> Option<Parameters> {
    let window = |before: &[Environment]| {
        let mut window = before.to_vec();
        now.iter().for_each(|seen| file(&mut window, seen));
        window
    };
    let fitted = |window: Vec<Environment>| started(service(fit(&window, compat)?)?, window, now, compat);
    let again = |service: &Service| started(*service, window(&[]), now, compat);
    earlier.iter().rev().find_map(again).or_else(|| fitted(window(before))).or_else(|| fitted(window(&[])))
}

/// A filter at `service`, which was learned over `window`, if at least half of what is seen `now` is then likely.
fn started(
    service: Service,
    window: Vec<Environment>,
    now: &[Environment],
    compat: Compat,
) -> Option<Parameters> {
    let start = Start::stored(service, None);
    let filter = now.iter().find_map(|first| Filter::new(&start, first, compat).ok())?;
    let steps: Vec<_> = now.iter().map(|seen| filter.clone().step(seen)).collect();
    let likely = steps.iter().filter(|step| step.accepted).count();
    let nis = steps.last().and_then(|step| step.nis);
    let found = kept(&filter, nis)?;
    (2 * likely >= steps.len()).then_some(Parameters { seen: window, ..found })
}

/// Keeps `seen` as the newest of its load: one observation for each doubling of the requests in a replica.
fn file(window: &mut Vec<Environment>, seen: &Environment) {
    let octave = |seen: &Environment| concurrency(seen).map(|n| n.log2().floor() as i32);
    let Some(own) = octave(seen) else { return };
    window.retain(|other| octave(other) != Some(own));
    window.push(*seen);
    let surplus = window.len().saturating_sub(LOADS);
    window.drain(..surplus);
}

#[cfg(test)]
mod tests {
    use super::super::model::{Limits, Model};
    use super::super::service_time::Shape;
    use super::*;

    const SERVICE: Service = Service { alpha: 8.0, beta: 0.016, gamma: 0.0005 };

    /// One request in the replica takes 1 s at these latencies, so that `rate` requests/s are as many in it.
    fn holding(requests: f32) -> Environment {
        let shape = Shape { input: 512.0, output: 99.0 };
        Environment { rate: requests * 60.0, shape, batch: 1024, ttft: 10.0, itl: 10.0 }
    }

    fn loads(window: &[Environment]) -> Vec<f32> {
        window.iter().map(|seen| (seen.rate / 60.0).round()).collect()
    }

    #[test]
    fn the_newest_of_each_doubling_of_requests_is_kept_and_eight_at_most() {
        let mut window = Vec::new();
        [2.0, 3.9, 4.1, 7.5, 8.5].iter().for_each(|requests| file(&mut window, &holding(*requests)));
        assert_eq!(loads(&window), [4.0, 8.0, 9.0]);
        file(&mut window, &holding(5.0));
        assert_eq!(loads(&window), [4.0, 9.0, 5.0], "the newest is last");
        [1.5, 20.0, 40.0, 70.0, 130.0].iter().for_each(|requests| file(&mut window, &holding(*requests)));
        assert_eq!(loads(&window).len(), 8);
        file(&mut window, &holding(300.0));
        assert_eq!(loads(&window), [9.0, 5.0, 2.0, 20.0, 40.0, 70.0, 130.0, 300.0]);
        file(&mut window, &holding(1000.0));
        assert_eq!(loads(&window).len(), 8, "a full batch says nothing");
    }

    fn seen(rate: f32, slower: f32) -> Environment {
        let (shape, batch) = (Shape { input: 512.0, output: 128.0 }, 64);
        let mut model = Model::new(SERVICE, shape, Limits::long(batch), Compat::Corrected).unwrap();
        let at = model.analyze(rate).unwrap();
        Environment {
            rate: rate * 60.0,
            shape,
            batch,
            ttft: (at.wait + at.prefill) * slower,
            itl: at.itl * slower,
        }
    }

    #[test]
    fn a_start_has_to_make_half_of_what_is_seen_likely() {
        let (good, odd) = (seen(6.0, 1.0), seen(6.0, 3.0));
        let window = || vec![seen(2.0, 1.0), good];
        let service = service(fit(&window(), Compat::Corrected).unwrap()).unwrap();
        let begins = |now: &[Environment]| started(service, window(), now, Compat::Corrected).is_some();
        assert!(begins(&[good]) && begins(&[good, odd]) && begins(&[odd, good]));
        assert!(!begins(&[odd]) && !begins(&[odd, good, odd]));
    }

    #[test]
    fn a_signal_that_is_right_again_finds_what_was_learned_before_it_was_wrong() {
        let learned = learn(None, &[seen(2.0, 1.0), seen(6.0, 1.0)], Compat::Corrected).unwrap();
        let cycle = |own: Parameters, slower| {
            learn(Some(&own), &[seen(5.0, slower), seen(6.0, slower)], Compat::Corrected).unwrap()
        };
        let halved = (0..20).fold(learned.clone(), |own, _| cycle(own, 0.5));
        assert!(!halved.before.is_empty() && halved.service != learned.service);
        let after = (0..i32::try_from(PATIENCE).unwrap()).fold(halved, |own, _| cycle(own, 1.0));
        assert_eq!(after.service, learned.service);
    }

    #[test]
    fn after_every_third_refusal_a_new_start_is_tried() {
        let usual = [seen(2.0, 1.0), seen(6.0, 1.0)];
        let stored = learn(None, &usual, Compat::Corrected).unwrap();
        let after = |refused| {
            let stored = Parameters { refused, ..stored.clone() };
            learn(Some(&stored), &[seen(6.0, 3.0)], Compat::Corrected).unwrap().refused
        };
        assert_eq!([0, 1, 2, 3, 4, 5].map(after), [1, 2, 0, 4, 5, 0]);
    }

    #[test]
    fn an_accepted_observation_ends_the_refusals_and_is_filed() {
        let stored = learn(None, &[seen(2.0, 1.0)], Compat::Corrected).unwrap();
        let stored = Parameters { refused: 2, ..stored };
        let next = learn(Some(&stored), &[seen(6.0, 1.0)], Compat::Corrected).unwrap();
        assert_eq!((next.refused, loads(&next.seen)), (0, vec![2.0, 6.0]));
    }

    #[test]
    fn without_observations_what_is_known_stays() {
        let stored = learn(None, &[seen(2.0, 1.0)], Compat::Corrected);
        for compat in [Compat::Corrected, Compat::Upstream] {
            assert_eq!(learn(stored.as_ref(), &[], compat), stored);
            assert_eq!(learn(None, &[], compat), None);
        }
    }
}
