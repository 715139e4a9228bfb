//! One server on one accelerator. Derived from WVA until v0.5, `pkg/core/allocation.go`.

use smol_str::SmolStr;

use super::data::{Accelerator, Current, PerformanceProfile, Server};
use crate::analyze::queueing::model::{Limits, Model, RequestLengths, single_count};
use crate::analyze::queueing::sizing::Targets;
use crate::units::Replicas;

/// Replicas of one server on one accelerator, and what they do. Times in ms.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Allocation {
    /// The accelerator's name; empty for the allocation of nothing.
    pub accelerator: SmolStr,
    pub replicas: Replicas,
    pub batch: u32,
    /// Cents/hour.
    pub cost: f32,
    /// What it is chosen by; the smallest wins. Can be negative.
    pub value: f32,
    /// Time between tokens.
    pub itl: f32,
    /// Time to first token, here without the token's own iteration.
    pub ttft: f32,
    /// Use of the batch, 0 to 1.
    pub rho: f32,
    /// The most one replica takes, requests/ms.
    pub max_rate: f32,
}

/// A possible allocation of a server, and the accelerators that it uses.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AllocationChoice {
    pub allocation: Allocation,
    /// The type of accelerator that it counts against; `None` if the accelerator is unknown or none.
    pub kind: Option<SmolStr>,
    /// Accelerators of the type that one replica takes, multiplicity included.
    pub units: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AllocationRequest {
    pub server: SmolStr,
    /// Its class's priority, 1 the highest.
    pub priority: u32,
    pub choices: Vec<AllocationChoice>,
}

impl AllocationRequest {
    /// The server and its choice of the smallest value, the first of equal ones.
    pub(crate) fn into_cheapest(self) -> Option<(SmolStr, Allocation)> {
        let smaller = |best: AllocationChoice, next: AllocationChoice| {
            if next.allocation.value < best.allocation.value { next } else { best }
        };
        let best = self.choices.into_iter().reduce(smaller)?;
        Some((self.server, best.allocation))
    }
}

/// A change of accelerator costs this share of the sum of both costs (upstream's constant).
const SWITCHING_COST: f32 = 0.1;

/// The value of a change from `from` to `to`: the smaller, the better.
pub(crate) fn penalty(from: &Current, to: &Allocation) -> f32 {
    let more = to.cost - from.cost;
    if from.accelerator != to.accelerator {
        SWITCHING_COST * (from.cost + to.cost) + more
    } else if from.replicas == to.replicas {
        0.0
    } else {
        more
    }
}

/// The replicas that `server` needs on `accelerator`; `None` if it cannot reach `targets` there, or if its data is out of range.
pub(crate) fn allocate(
    server: &Server,
    accelerator: &Accelerator,
    performance: &PerformanceProfile,
    targets: Targets,
) -> Option<Allocation> {
    if !(server.load.arrival.is_finite() && server.load.arrival >= 0.0) {
        return None;
    }
    let is_idle = server.load.arrival <= 0.0 || server.load.output == 0;
    let allocation = if is_idle {
        idle_allocation(server, accelerator, performance)
    } else {
        loaded_allocation(server, accelerator, performance, targets)?
    };
    let value = server.current.as_ref().map_or(allocation.cost, |current| penalty(current, &allocation));
    Some(Allocation { value, ..allocation })
}

fn cost(accelerator: &Accelerator, performance: &PerformanceProfile, replicas: Replicas) -> f32 {
    accelerator.cost * single_count(performance.units().saturating_mul(replicas.get()))
}

/// Without load: the minimum, and with a minimum of 0 nothing.
fn idle_allocation(
    server: &Server,
    accelerator: &Accelerator,
    performance: &PerformanceProfile,
) -> Allocation {
    if server.min == Replicas::ZERO {
        return Allocation::default();
    }
    let batch = if server.max_batch > 0 { server.max_batch } else { performance.max_batch };
    let service = performance.service;
    // The time of an iteration with one request, and with a full batch.
    let single = service.alpha + service.beta;
    let full = service.alpha + service.beta * single_count(batch);
    let sum = single + full;
    Allocation {
        accelerator: accelerator.name.clone(),
        replicas: server.min,
        batch,
        cost: cost(accelerator, performance, server.min),
        value: 0.0,
        itl: single,
        ttft: single,
        rho: 0.0,
        max_rate: if sum > 0.0 { single_count(batch) / sum } else { 0.0 },
    }
}

fn loaded_allocation(
    server: &Server,
    accelerator: &Accelerator,
    performance: &PerformanceProfile,
    targets: Targets,
) -> Option<Allocation> {
    let output = server.load.output;
    // The profile's batch, scaled to as many tokens of longer or shorter answers.
    let tokens = u64::from(performance.max_batch) * u64::from(performance.at_tokens);
    let scaled = u32::try_from(tokens.checked_div(u64::from(output))?).unwrap_or(u32::MAX).max(1);
    let batch = if server.max_batch > 0 { server.max_batch } else { scaled };
    let lengths = RequestLengths::new(single_count(server.load.input), single_count(output)).ok()?;
    let mut model = Model::new(performance.service, lengths, Limits::long(batch)).ok()?;
    let best = model.size(targets).ok()?.at.throughput;
    let total =
        if targets.tps > 0.0 { targets.tps / single_count(output) } else { server.load.arrival / 60.0 };
    let replicas = Replicas::ceil(f64::from(total) / f64::from(best)).max(server.min);
    let at = model.analyze(total / single_count(replicas.get())).ok()?;
    Some(Allocation {
        accelerator: accelerator.name.clone(),
        replicas,
        batch,
        cost: cost(accelerator, performance, replicas),
        value: 0.0,
        itl: at.itl,
        ttft: at.wait + at.prefill,
        rho: at.rho,
        max_rate: best / 1000.0,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp, reason = "exact by construction")]

    use super::super::data::ServerLoad;
    use super::*;
    use crate::analyze::queueing::model::Service;

    fn parts(batch: u32, min: u32, load: ServerLoad) -> (Server, Accelerator, PerformanceProfile) {
        let server = Server {
            name: "s".into(),
            class: "".into(),
            model: "m".into(),
            load,
            min: Replicas::new(min),
            max_batch: batch,
            keep_accelerator: false,
            current: None,
        };
        let accelerator = Accelerator { name: "A".into(), kind: "A".into(), multiplicity: 1, cost: 40.0 };
        let service = Service { alpha: 8.0, beta: 0.5, gamma: 0.001 };
        let (model, name) = ("m".into(), "A".into());
        let performance =
            PerformanceProfile { model, accelerator: name, units: 2, max_batch: 64, at_tokens: 256, service };
        (server, accelerator, performance)
    }

    fn allocated(batch: u32, min: u32, load: ServerLoad) -> Option<Allocation> {
        let (server, accelerator, performance) = parts(batch, min, load);
        allocate(&server, &accelerator, &performance, Targets::latency(500.0, 100.0).unwrap())
    }

    #[test]
    fn without_load_the_minimum_stands_by_at_the_speed_of_a_first_request() {
        for load in [
            ServerLoad { arrival: 0.0, input: 9, output: 9 },
            ServerLoad { arrival: 9.0, input: 9, output: 0 },
        ] {
            let found = allocated(0, 3, load).unwrap();
            assert_eq!((found.replicas.get(), found.batch, found.cost, found.value), (3, 64, 240.0, 240.0));
            // 8.5 for one request, 40 for sixty-four.
            assert_eq!([found.itl, found.ttft, found.rho, found.max_rate], [8.5, 8.5, 0.0, 64.0 / 48.5]);
            let own = allocated(16, 3, load).unwrap();
            assert_eq!((own.batch, own.max_rate), (16, 16.0 / 24.5));
            assert_eq!(allocated(0, 0, load), Some(Allocation::default()));
        }
    }

    #[test]
    fn a_first_request_that_takes_no_time_says_nothing_of_a_rate() {
        let (server, accelerator, performance) =
            parts(0, 1, ServerLoad { arrival: 0.0, input: 9, output: 9 });
        let service = Service { alpha: 0.0, beta: 0.0, gamma: 0.001 };
        let found = idle_allocation(&server, &accelerator, &PerformanceProfile { service, ..performance });
        assert_eq!((found.itl, found.max_rate), (0.0, 0.0));
    }

    #[test]
    fn a_batch_holds_fewer_of_longer_answers() {
        let batch = |output, own| {
            allocated(own, 0, ServerLoad { arrival: 6.0, input: 128, output }).map(|found| found.batch)
        };
        assert_eq!([batch(256, 0), batch(512, 0), batch(512, 7)], [64, 32, 7].map(Some));
    }

    #[test]
    fn replicas_are_as_many_as_the_arrivals_take_and_at_least_the_minimum() {
        let load = |arrival| ServerLoad { arrival, input: 128, output: 256 };
        let found = allocated(0, 0, load(6.0)).unwrap();
        assert_eq!((found.replicas, found.cost), (Replicas::ONE, 80.0));
        let per_minute = found.max_rate * 60_000.0;
        assert_eq!(allocated(0, 0, load(per_minute * 2.5)).unwrap().replicas.get(), 3);
        assert_eq!(allocated(0, 5, load(per_minute * 2.5)).unwrap().replicas.get(), 5);
    }
}
