//! The field's autoscalers ask for what their formulas say.

use std::time::Duration;

use wva_core::model::Bounds;
use wva_core::units::{Cost, Replicas};
use wva_sim::{Controller, LoadShape, Peer, RequestSizes, Run, Scenario, Segment, SimVariant, TP1, simulate};

const SIZES: RequestSizes = RequestSizes::fixed(1000.0, 250.0);

/// 1000/250 tokens at a constant rate for half an hour.
fn play(peer: Peer, rps: f64, replicas: u32) -> Run {
    let lasts = Duration::from_secs(1800);
    let variant = SimVariant {
        replicas: Replicas::new(replicas),
        bounds: Bounds { min: Replicas::ONE, max: Some(Replicas::new(20)) },
        ..SimVariant::new("v", TP1, Cost::new(1.0).unwrap())
    };
    let load = LoadShape::new(vec![Segment::Hold { rps, lasts }]);
    let scenario = Scenario::new("constant", lasts, load, SIZES, vec![variant]);
    simulate(&scenario, &Controller::peer(peer), 1, |_| {})
}

/// The replicas at the end.
fn last(run: &Run) -> u32 {
    run.series.last().unwrap().spec_replicas[0]
}

#[test]
fn those_that_count_requests_keep_their_number_in_a_pod() {
    // 30 requests/s take 1.4 s where they run alone, and longer together.
    for per_pod in [8.0, 16.0] {
        for peer in [Peer::RunningRequests { per_pod }, Peer::KnativeKpa { concurrency: per_pod }] {
            let run = play(peer, 30.0, 3);
            let replicas = f64::from(last(&run));
            let running = replicas * TP1.concurrency(30.0 / replicas, SIZES);
            assert!(
                (0.5..=1.2).contains(&(running / replicas / per_pod)),
                "{}: {replicas} for {running}",
                run.policy
            );
        }
    }
}

#[test]
fn apa_grows_above_its_tolerance_and_halves_below_it() {
    let grows = play(Peer::AibrixApa { kv_usage: 0.05 }, 60.0, 4);
    assert!(grows.writes[0].to > 4 && grows.writes[0].to <= 8, "at most twice as many: {:?}", grows.writes);
    let shrinks = play(Peer::AibrixApa { kv_usage: 0.9 }, 1.0, 4);
    assert_eq!(
        [shrinks.writes[0].to, last(&shrinks)],
        [2, 1],
        "half of them at a time: {:?}",
        shrinks.writes
    );
}

#[test]
fn kthena_panics_upwards_and_comes_down_late() {
    let run = play(Peer::Kthena { waiting: 5.0 }, 40.0, 1);
    let up = run.writes.iter().find(|write| write.to > write.from).unwrap();
    assert!(up.at_s < 60.0, "one replica serves 23.5 requests/s: {:?}", run.writes);
    let down = run.writes.iter().find(|write| write.to < write.from);
    assert!(down.is_none_or(|down| down.at_s > up.at_s + 250.0), "{:?}", run.writes);
}

#[test]
fn a_load_planner_divides_by_the_profile() {
    for (rps, replicas) in [(20.0, 1), (40.0, 2), (65.0, 3)] {
        let planner = Peer::LoadPlanner { interval: Duration::from_secs(180), utilisation: 1.0 };
        assert_eq!(last(&play(planner, rps, 1)), replicas, "at {rps} requests/s");
    }
}

#[test]
fn a_name_gives_the_peer_that_has_it() {
    for word in ["hpa-running:16", "kpa:70", "aibrix-apa:0.5", "kthena:10", "load-planner:180"] {
        assert_eq!(Peer::named(word).unwrap().name(), word);
    }
    assert_eq!(Peer::named("kpa").unwrap().name(), "kpa:70", "the published default");
    assert!(Peer::named("kpa:none").is_none() && Peer::named("static:3").is_none());
}
