//! Learns the parameters of a variant, one step each cycle.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::fit::{concurrency, fit};
use super::matrix::{Mat3, Vec3, is_symmetric};
use super::model::Service;
use super::tuner::{Environment, Filter, Start};
use crate::units::{to_f32, truncated_i64};

/// The learned parameters of one variant, less than 2 kB as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Parameters {
    /// α, β, γ.
    pub service: Service,
    /// The covariance of their error, rows of the filter's P.
    pub covariance: Mat3,
    /// Of the last observation; `None` if the model had no solution for it.
    pub nis: Option<f64>,
    /// Cycles in a row in which no observation was accepted. Stored as `refused`.
    #[serde(default, rename = "refused")]
    pub rejections: u32,
    /// The newest accepted observation of each load, newest last. Empty in upstream's arithmetic. Stored as `seen`.
    #[serde(default, rename = "seen")]
    pub window: Vec<Environment>,
    /// The parameters before each of the last restarts, newest last. Stored as `before`.
    #[serde(default, rename = "before")]
    pub earlier: Vec<Service>,
    /// When an observation was last accepted. Earlier versions did not store it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learned_at: Option<Timestamp>,
}

/// After this many cycles in which every observation is rejected, the parameters are wrong, and not the observations.
pub(crate) const MAX_REJECTIONS: u32 = 3;
/// Loads that are kept, each twice the one before: from 1 request to 256.
const MAX_LOADS: usize = 8;
/// Earlier parameters that are kept. A signal that is wrong for some minutes causes two restarts: when it becomes wrong and when it is right
/// again.
const MAX_EARLIER: usize = 4;

/// The parameters after the observations of one cycle. Without any, or if no filter can be built, they stay.
///
/// Starts from a fit over the loads that were seen, and tries to restart after every [`MAX_REJECTIONS`] cycles in which everything was
/// rejected.
pub(crate) fn learn(stored: Option<&Parameters>, now: &[Environment]) -> Option<Parameters> {
    if now.is_empty() {
        return stored.cloned();
    }
    let learned = match stored {
        Some(stored) => follow(stored, now),
        None => restart(&[], &[], now),
    };
    learned.or_else(|| stored.cloned())
}

fn follow(stored: &Parameters, now: &[Environment]) -> Option<Parameters> {
    let covariance = is_symmetric(stored.covariance).then_some(stored.covariance);
    let start = Start::stored(stored.service, covariance);
    let mut next =
        Parameters { nis: None, rejections: stored.rejections.saturating_add(1), ..stored.clone() };
    // The noise is that of the first observation with which the filter can start.
    let filter = now.iter().find_map(|first| Filter::new(&start, first).ok());
    if let Some(mut filter) = filter {
        for observed in now {
            let step = filter.step(observed);
            next.nis = step.nis;
            if step.accepted {
                next.rejections = 0;
                keep_newest(&mut next.window, observed);
            }
        }
        next.covariance = filter.covariance;
        next.service = service(filter.state)?;
    }
    if next.rejections == 0 || !next.rejections.is_multiple_of(MAX_REJECTIONS) {
        return Some(next);
    }
    let Some(mut restarted) = restart(&next.window, &next.earlier, now) else { return Some(next) };
    restarted.earlier = next.earlier;
    restarted.earlier.push(stored.service);
    let surplus = restarted.earlier.len().saturating_sub(MAX_EARLIER);
    restarted.earlier.drain(..surplus);
    Some(restarted)
}

/// A filter's state as parameters; `None` if they are out of range.
pub(crate) fn parameters(filter: &Filter, nis: Option<f64>) -> Option<Parameters> {
    Some(Parameters {
        service: service(filter.state)?,
        covariance: filter.covariance,
        nis,
        rejections: 0,
        window: Vec::new(),
        earlier: Vec::new(),
        learned_at: None,
    })
}

fn service([alpha, beta, gamma]: Vec3) -> Option<Service> {
    Service::new(to_f32(alpha), to_f32(beta), to_f32(gamma)).ok()
}

/// New parameters: the first of these that explains what is observed now. The parameters before an earlier restart, because a signal that was
/// wrong for a while looks like an engine that changed and changed back; the fit over all loads of `window`; the fit over the present
/// observations alone, which forgets the rest. `None` if none does.
fn restart(window: &[Environment], earlier: &[Service], now: &[Environment]) -> Option<Parameters> {
    let with_now = |window: &[Environment]| {
        let mut window = window.to_vec();
        now.iter().for_each(|observed| keep_newest(&mut window, observed));
        window
    };
    let fitted = |window: Vec<Environment>| start_at(service(fit(&window)?)?, window, now);
    let again = |service: &Service| start_at(*service, with_now(&[]), now);
    let from_earlier = earlier.iter().rev().find_map(again);
    from_earlier.or_else(|| fitted(with_now(window))).or_else(|| fitted(with_now(&[])))
}

/// Starts a filter at `service`, which was learned over `window`; `None` unless it accepts at least half of the observations of `now`.
fn start_at(service: Service, window: Vec<Environment>, now: &[Environment]) -> Option<Parameters> {
    let start = Start::stored(service, None);
    let filter = now.iter().find_map(|first| Filter::new(&start, first).ok())?;
    let steps: Vec<_> = now.iter().map(|observed| filter.clone().step(observed)).collect();
    let likely = steps.iter().filter(|step| step.accepted).count();
    let nis = steps.last().and_then(|step| step.nis);
    let started = parameters(&filter, nis)?;
    (2 * likely >= steps.len()).then_some(Parameters { window, ..started })
}

/// Keeps `observed` as the newest of its load: one observation for each doubling of the requests in a replica.
fn keep_newest(window: &mut Vec<Environment>, observed: &Environment) {
    // Rounded down and well within i32: a replica holds between 2⁻¹⁰⁷⁴ and 2²⁰ requests.
    let octave =
        |environment: &Environment| concurrency(environment).map(|n| truncated_i64(n.log2().floor()));
    let Some(own) = octave(observed) else { return };
    window.retain(|kept| octave(kept) != Some(own));
    window.push(*observed);
    let surplus = window.len().saturating_sub(MAX_LOADS);
    window.drain(..surplus);
}

#[cfg(test)]
mod tests {
    use super::super::model::RequestLengths;
    use super::super::tests::shown;
    use super::*;

    /// One request in the replica takes 1 s at these latencies, so that `rate` requests/s are as many in it.
    fn holding(requests: f32) -> Environment {
        let lengths = RequestLengths { input: 512.0, output: 99.0 };
        Environment { rate: requests * 60.0, lengths, batch: 1024, ttft: 10.0, itl: 10.0 }
    }

    fn loads(window: &[Environment]) -> Vec<f32> {
        window.iter().map(|observed| (observed.rate / 60.0).round()).collect()
    }

    #[test]
    fn the_newest_of_each_doubling_of_requests_is_kept_and_eight_at_most() {
        let mut window = Vec::new();
        [2.0, 3.9, 4.1, 7.5, 8.5].iter().for_each(|requests| keep_newest(&mut window, &holding(*requests)));
        assert_eq!(loads(&window), [4.0, 8.0, 9.0]);
        keep_newest(&mut window, &holding(5.0));
        assert_eq!(loads(&window), [4.0, 9.0, 5.0], "the newest is last");
        [1.5, 20.0, 40.0, 70.0, 130.0]
            .iter()
            .for_each(|requests| keep_newest(&mut window, &holding(*requests)));
        assert_eq!(loads(&window).len(), 8);
        keep_newest(&mut window, &holding(300.0));
        assert_eq!(loads(&window), [9.0, 5.0, 2.0, 20.0, 40.0, 70.0, 130.0, 300.0]);
        keep_newest(&mut window, &holding(1000.0));
        assert_eq!(loads(&window).len(), 8, "a full batch says nothing");
    }

    /// What a replica shows that is `factor` times as slow as the usual one.
    fn slowed(rate: f32, factor: f32) -> Environment {
        let usual = shown(rate);
        Environment { ttft: usual.ttft * factor, itl: usual.itl * factor, ..usual }
    }

    #[test]
    fn a_start_has_to_make_half_of_what_is_seen_likely() {
        let (good, odd) = (shown(6.0), slowed(6.0, 3.0));
        let window = || vec![shown(2.0), good];
        let service = service(fit(&window()).unwrap()).unwrap();
        let begins = |now: &[Environment]| start_at(service, window(), now).is_some();
        assert!(begins(&[good]) && begins(&[good, odd]) && begins(&[odd, good]));
        assert!(!begins(&[odd]) && !begins(&[odd, good, odd]));
    }

    #[test]
    fn a_signal_that_is_right_again_finds_what_was_learned_before_it_was_wrong() {
        let learned = learn(None, &[shown(2.0), shown(6.0)]).unwrap();
        let cycle =
            |own: Parameters, factor| learn(Some(&own), &[slowed(5.0, factor), slowed(6.0, factor)]).unwrap();
        let halved = (0..20).fold(learned.clone(), |own, _| cycle(own, 0.5));
        assert!(!halved.earlier.is_empty() && halved.service != learned.service);
        let after = (0..i32::try_from(MAX_REJECTIONS).unwrap()).fold(halved, |own, _| cycle(own, 1.0));
        assert_eq!(after.service, learned.service);
    }

    #[test]
    fn after_every_third_refusal_a_new_start_is_tried() {
        let usual = [shown(2.0), shown(6.0)];
        let stored = learn(None, &usual).unwrap();
        let after = |refused| {
            let stored = Parameters { rejections: refused, ..stored.clone() };
            learn(Some(&stored), &[slowed(6.0, 3.0)]).unwrap().rejections
        };
        assert_eq!([0, 1, 2, 3, 4, 5].map(after), [1, 2, 0, 4, 5, 0]);
    }

    #[test]
    fn an_accepted_observation_ends_the_refusals_and_is_filed() {
        let stored = learn(None, &[shown(2.0)]).unwrap();
        let stored = Parameters { rejections: 2, ..stored };
        let next = learn(Some(&stored), &[shown(6.0)]).unwrap();
        assert_eq!((next.rejections, loads(&next.window)), (0, vec![2.0, 6.0]));
    }

    #[test]
    fn without_observations_what_is_known_stays() {
        let stored = learn(None, &[shown(2.0)]);
        for learn in [learn, crate::upstream::queueing::learn] {
            assert_eq!(learn(stored.as_ref(), &[]), stored);
            assert_eq!(learn(None, &[]), None);
        }
    }
}
