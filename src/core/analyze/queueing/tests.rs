//! The reference's tables, and what is ours beside them.
#![allow(clippy::float_cmp, reason = "rounded before, or exact by construction")]

use super::learn::{MAX_REJECTIONS, learn};
use super::model::{Limits, Model, Performance, Service, Unsolvable};
use super::tuner::{Filter, Start, guess};
use super::*;
use crate::arithmetic::analyze_queueing as analyze;
use crate::model::{Compat, Role};
use crate::units::{Cost, Replicas};
use crate::upstream;

pub(super) const SERVICE: Service = Service { alpha: 8.0, beta: 0.016, gamma: 0.0005 };
const SMALL: Service = Service { alpha: 1.0, beta: 0.01, gamma: 0.001 };
pub(super) const LENGTHS: RequestLengths = RequestLengths { input: 512.0, output: 128.0 };

fn model(service: Service, (input, output): (f32, f32), batch: u32, queue: u32) -> Model {
    Model::new(service, RequestLengths { input, output }, Limits { batch, queue }).unwrap()
}

fn rounded(value: f32, digits: i32) -> f64 {
    let by = 10_f64.powi(digits);
    (f64::from(value) * by).round() / by
}

/// What a replica of [`SERVICE`] shows at `rate` requests/s.
pub(super) fn shown(rate: f32) -> Environment {
    let mut model = Model::new(SERVICE, LENGTHS, Limits::long(64)).unwrap();
    let at = model.analyze(rate).unwrap();
    given(rate * 60.0, at.wait + at.prefill, at.itl)
}

fn given(rate: f32, ttft: f32, itl: f32) -> Environment {
    Environment { rate, lengths: LENGTHS, batch: 64, ttft, itl }
}

fn observation(arrival: Option<f64>) -> LatencyObservation {
    LatencyObservation { arrival, input: 512.0, output: 128.0, ttft: 0.05, itl: 0.02, batch: 256 }
}

fn load(name: &str, role: Role, ready: u32, pending: u32, arrivals: &[f64]) -> VariantLoad {
    VariantLoad {
        name: name.into(),
        role,
        accelerator: Some("A100".into()),
        cost: Cost::new(40.0).unwrap(),
        ready: Replicas::new(ready),
        pending: Replicas::new(pending),
        observations: arrivals.iter().map(|rate| observation(Some(*rate))).collect(),
    }
}

/// [`SERVICE`] for each name.
fn known(names: &[&str]) -> BTreeMap<SmolStr, Parameters> {
    let filter = Filter::new(&Start::stored(SERVICE, None), &shown(6.0)).unwrap();
    let parameters = learn::parameters(&filter, None).unwrap();
    names.iter().map(|name| (SmolStr::from(*name), parameters.clone())).collect()
}

/// Without tuning, so that the parameters are the given ones.
fn found(loads: &[VariantLoad], queued: f64, compat: Compat) -> Finding {
    let names: Vec<&str> = loads.iter().map(|load| load.name.as_str()).collect();
    let settings = QueueingSettings { tuning: false, ..QueueingSettings::default() };
    analyze(loads, Requests::new(queued).unwrap(), &known(&names), &settings, compat).finding.unwrap()
}

#[test]
fn the_reference_tables_rates_agree() {
    let a0 = model(SMALL, (200.0, 20.0), 8, 16).analyze(10.0).unwrap();
    assert_eq!([a0.in_service, a0.itl, a0.ttft].map(|value| rounded(value, 4)), [0.3663, 1.6658, 4.9811]);
    let a3 = model(SMALL, (0.0, 10.0), 8, 16).analyze(50.0).unwrap();
    assert_eq!([a3.in_service, a3.itl, a3.ttft].map(|value| rounded(value, 4)), [0.5182, 1.0364, 1.0364]);
    assert_eq!(rounded(a3.max_rate, 3), 708.682);
}

#[test]
fn the_reference_tables_sizes_agree() {
    let s3 = model(SERVICE, (512.0, 128.0), 256, 100).size(Targets::latency(200.0, 40.0).unwrap()).unwrap();
    let rates = [s3.rate_ttft, s3.rate_itl, s3.rate_tps, s3.at.throughput].map(|value| rounded(value, 3));
    assert_eq!(rates, [18.613, 16.5, 19.357, 16.5]);
    let s7 = model(SMALL, (200.0, 20.0), 8, 16).size(Targets::latency(1.0, 0.0).unwrap());
    assert_eq!(s7.unwrap_err(), Unsolvable::Unreachable("TTFT"));
}

#[test]
fn the_reference_tables_targets_agree() {
    let means = |input, output| Means { input, output, ..Means::default() };
    let targets = |service, means, multiplier| {
        let Targets { ttft, itl, .. } = inferred(service, &means, multiplier).unwrap();
        [ttft, itl].map(|value| rounded(value, 4))
    };
    assert_eq!(targets(SERVICE, means(512.0, 128.0), 2.0), [24.448, 16.3043]);
    let slower = Service::new(12.0, 0.03, 0.0002).unwrap();
    assert_eq!(targets(slower, means(4000.0, 500.0), 5.0), [180.8, 60.8801]);
    let slow = fallback(&Means { ttft: 8.0, itl: 0.02, ..Means::default() }).unwrap();
    assert_eq!([slow.ttft, slow.itl], [10_000.0, 30.0]);
    let no_latencies = [
        (0.0, 0.02),
        (0.05, 0.0),
        (1e-60, 0.02),
        (0.05, 1e-60),
        (f64::NAN, 0.02),
        (-8.0, 0.02),
        (0.05, -0.02),
    ];
    for (ttft, itl) in no_latencies {
        assert_eq!(fallback(&Means { ttft, itl, ..Means::default() }), None, "{ttft} {itl}");
    }
    let (brisk, patient) = (Targets::latency(9.0, 5.0).unwrap(), Targets::latency(8.0, 6.0).unwrap());
    assert_eq!(larger(brisk, patient), Targets::latency(9.0, 6.0).unwrap());
}

#[test]
fn the_reference_tables_filters_agree() {
    let followed = |start: Start, environments: &[Environment]| {
        let mut filter = Filter::new(&start, &environments[0]).unwrap();
        environments.iter().map(|environment| filter.step(environment)).last().unwrap()
    };
    let from_guess = |environments: &[Environment]| {
        let first = environments[0];
        let guess = guess(f64::from(first.ttft), f64::from(first.itl), 512.0, 128.0).unwrap();
        followed(Start::guessed(guess), environments)
    };
    let low = from_guess(&[given(120.0, 12.0, 11.5)]);
    assert!((low.nis.unwrap() - 26.103).abs() < 1e-3 && !low.accepted, "{low:?}");
    let drift = [given(120.0, 40.0, 12.0), given(120.0, 44.0, 12.6), given(120.0, 46.0, 13.0)];
    let drift = from_guess(&drift);
    assert!((drift.nis.unwrap() - 37.716).abs() < 1e-3 && !drift.accepted, "{drift:?}");

    let covariance = matrix::diagonal([0.1764, 7.056e-7, 6.76e-10]);
    let start = Start::stored(Service::new(8.4, 0.0168, 0.00052).unwrap(), Some(covariance));
    let slower = |by: f32| given(480.0, 21.781_807 * by, 14.008_057 * by);
    let slow = followed(start, &[1.0, 1.02, 1.04, 1.06, 1.08].map(slower));
    assert!((slow.nis.unwrap() - 0.199).abs() < 1e-3 && slow.accepted, "{slow:?}");
    assert!((slow.state[0] - 8.407).abs() < 1e-3, "{slow:?}");
}

#[test]
fn a_rate_that_is_no_rate_or_too_high_is_refused() {
    let mut model = model(SMALL, (200.0, 20.0), 8, 16);
    assert_eq!(model.analyze(0.0), Err(Unsolvable::NoRate(0.0)));
    assert_eq!(model.analyze(-1.0), Err(Unsolvable::NoRate(-1.0)));
    assert!(matches!(model.analyze(f32::NAN), Err(Unsolvable::NoRate(_))));
    assert_eq!(model.analyze(f32::from_bits(1)), Err(Unsolvable::NoRate(0.0)), "too small to be one a ms");
    assert!(model.analyze(model.max_rate()).is_ok());
    assert!(matches!(model.analyze(100.0), Err(Unsolvable::AboveMaximum { .. })));
}

#[test]
fn a_model_out_of_range_is_named() {
    let new = |lengths, limits| Model::new(SERVICE, lengths, limits).unwrap_err().to_string();
    let short = RequestLengths { input: 1.0, output: 0.5 };
    assert_eq!(
        new(short, Limits::sizing(8)),
        "output tokens 0.5 is out of range: must be finite and at least 1"
    );
    assert!(new(LENGTHS, Limits::sizing(0)).starts_with("batch 0 is out of range"));
    assert!(new(LENGTHS, Limits::long(u32::MAX)).starts_with("batch 4294967295 is out of range"));
    let free = Service { alpha: 0.0, beta: 0.0, gamma: 0.0 };
    let free = Model::new(free, LENGTHS, Limits::sizing(8)).unwrap_err();
    assert_eq!(free, Unsolvable::NoServiceRate);
    let target = Targets::latency(-1.0, 0.0).unwrap_err();
    assert_eq!(target.unit, "target TTFT");
}

#[test]
fn room_for_one_request_is_refused_by_upstream_only() {
    let limits = Limits { batch: 1, queue: 0 };
    let refused = upstream::queueing::model(SERVICE, LENGTHS, limits);
    assert_eq!(refused.unwrap_err(), Unsolvable::SingleState);
    assert!(Model::new(SERVICE, LENGTHS, limits).unwrap().analyze(0.5).is_ok());
}

#[test]
fn without_a_target_the_maximum_is_the_answer_whatever_its_last_bit() {
    for batch in 1..300 {
        let mut model = model(SERVICE, (512.0, 128.0), batch, 1);
        assert_eq!(model.size(Targets::default()).map(|size| size.at.max_rate), Ok(model.max_rate()));
    }
}

#[test]
fn upstream_counts_the_replicas_it_wants_as_supply_and_never_scales_up() {
    let finding = found(&[load("v", Role::Both, 2, 0, &[40.0, 50.0])], 0.0, Compat::Upstream);
    assert_eq!((finding.analyzer, finding.score), (Analyzer::Saturation, 1.0));
    let Totals { supply, anticipated, demand, required, spare } = finding.total;
    assert!((supply - 93.514).abs() < 1e-3 && (spare - 3.514).abs() < 1e-3, "{:?}", finding.total);
    assert_eq!([anticipated, demand, required], [0.0, 90.0, 0.0]);
}

#[test]
fn the_default_counts_the_replicas_there_are() {
    let finding = found(&[load("v", Role::Both, 2, 1, &[40.0, 50.0])], 60.0, Compat::Corrected);
    let prc = finding.variants[0].per_replica;
    assert!((prc - 6.2343).abs() < 1e-4, "{prc}");
    let total = finding.total;
    assert_eq!([total.supply, total.anticipated, total.demand], [2.0 * prc, 3.0 * prc, 92.0]);
    assert_eq!([total.required, total.spare], [92.0 / 0.85 - 3.0 * prc, 0.0]);
    assert!(finding.roles.is_empty() && finding.live);
}

#[test]
fn an_idle_variant_has_no_capacity_upstream_and_spare_capacity_here() {
    let idle = [load("v", Role::Both, 3, 0, &[0.0, 0.0, 0.0])];
    let settings = QueueingSettings {
        tuning: false,
        targets: Targets::latency(32.448, 24.304).ok(),
        ..QueueingSettings::default()
    };
    let finding = |compat| analyze(&idle, Requests::ZERO, &known(&["v"]), &settings, compat).finding.unwrap();
    let upstream = finding(Compat::Upstream);
    assert_eq!((upstream.variants[0].per_replica, upstream.variants[0].reason.as_str()), (0.0, "no-load"));
    let corrected = finding(Compat::Corrected).total;
    assert!(corrected.supply > 18.0 && corrected.spare == corrected.supply, "{corrected:?}");
}

#[test]
fn a_replica_that_shows_no_arrivals_leaves_nothing_to_spare() {
    let spare = |load: &VariantLoad| found(std::slice::from_ref(load), 0.0, Compat::Corrected).total.spare;
    let mut partial = load("v", Role::Both, 3, 0, &[1.0, 1.0]);
    assert_eq!(spare(&partial), 0.0, "one of three is not observed");
    partial.observations.push(observation(None));
    assert_eq!(spare(&partial), 0.0, "one shows no arrivals");
    partial.observations[2].arrival = Some(0.0);
    assert!(spare(&partial) > 0.0, "all are observed");
}

#[test]
fn a_variant_without_load_is_sized_for_the_models_requests() {
    let loads = [load("busy", Role::Both, 1, 0, &[4.0]), load("asleep", Role::Both, 0, 0, &[])];
    let corrected = found(&loads, 0.0, Compat::Corrected);
    assert!((corrected.variants[1].per_replica - 6.2343).abs() < 1e-4);
    let upstream = found(&loads, 0.0, Compat::Upstream);
    let asleep = &upstream.variants[1];
    assert_eq!((asleep.per_replica, asleep.cost, asleep.accelerator.as_deref()), (0.0, Cost::ZERO, None));
}

#[test]
fn a_queue_waits_for_each_role_once() {
    let loads = [load("p", Role::Prefill, 1, 0, &[4.0]), load("d", Role::Decode, 2, 0, &[3.0, 1.0])];
    let finding = found(&loads, 30.0, Compat::Corrected);
    assert_eq!(finding.total.demand, 9.0);
    let demand: Vec<_> = finding.roles.iter().map(|(role, totals)| (*role, totals.demand)).collect();
    assert_eq!(demand, [(Role::Decode, 5.0), (Role::Prefill, 5.0)]);
}

#[test]
fn without_parameters_an_analysis_says_nothing_and_is_not_live() {
    let settings = QueueingSettings { tuning: false, ..QueueingSettings::default() };
    let loads = [load("v", Role::Both, 1, 0, &[4.0])];
    let queued = Requests::new(100.0).unwrap();
    let analysis = analyze(&loads, queued, &BTreeMap::new(), &settings, Compat::Corrected);
    assert_eq!(analysis.targets, Targets::latency(75.0, 30.0).ok(), "from the latencies seen");
    let finding = analysis.finding.unwrap();
    assert_eq!((finding.total, finding.live), (Totals::default(), false));
    assert_eq!(finding.variants[0].reason, "no-parameters");
}

#[test]
fn without_targets_there_is_no_finding_and_what_was_learned_stays() {
    let loads = [load("v", Role::Both, 1, 0, &[])];
    let (known_before, settings) = (known(&["v", "gone"]), QueueingSettings::default());
    let analysis = analyze(&loads, Requests::ZERO, &known_before, &settings, Compat::Corrected);
    assert_eq!(analysis.finding, Err(NoTargets));
    assert_eq!(analysis.learned, known(&["v"]), "and only of variants there are");
}

#[test]
fn a_steady_load_at_which_upstream_never_learns_is_learned() {
    let steady = given(120.0, 40.0, 12.0);
    let after_five = |learn: fn(Option<&Parameters>, &[Environment]) -> Option<Parameters>| {
        (0..5).fold(None, |known, _| learn(known.as_ref(), &[steady])).unwrap()
    };
    let (upstream, corrected) = (after_five(upstream::queueing::learn), after_five(learn));
    assert!((upstream.nis.unwrap() - 35.341).abs() < 1e-2, "{upstream:?}");
    assert_eq!(upstream.service.alpha, 10.8, "the guess for good");
    assert!(corrected.nis.unwrap() < 0.01 && corrected.rejections == 0, "{corrected:?}");
}

#[test]
fn a_load_that_the_guess_cannot_carry_is_learned() {
    let busy = given(600.0, 40.0, 12.0);
    assert_eq!(upstream::queueing::learn(None, &[busy]), None);
    let learned = learn(None, &[busy]).unwrap();
    assert!(learned.nis.unwrap() < 1.0, "{learned:?}");
}

/// ITL and TTFT as predicted, relative to what is true, at `rate`.
fn error(learned: &Parameters, rate: f32) -> f32 {
    let truth: Performance = model(SERVICE, (512.0, 128.0), 64, 640).analyze(rate).unwrap();
    let predicted = model(learned.service, (512.0, 128.0), 64, 640).analyze(rate).unwrap();
    (predicted.itl / truth.itl - 1.0).abs().max((predicted.ttft / truth.ttft - 1.0).abs())
}

#[test]
fn a_second_load_settles_what_the_first_left_open() {
    let mut learned = learn(None, &[shown(0.2)]);
    assert!(error(learned.as_ref().unwrap(), 13.0) > 0.1, "one load is not enough");
    for _ in 0..2 * MAX_REJECTIONS {
        learned = learn(learned.as_ref(), &[shown(13.0)]);
    }
    let learned = learned.unwrap();
    assert!(error(&learned, 13.0) < 0.01 && error(&learned, 0.2) < 0.01, "{learned:?}");
}

#[test]
fn an_outlier_is_refused_and_a_new_truth_is_believed_after_three_cycles() {
    let usual = [shown(2.0), shown(6.0)];
    let mut learned = learn(None, &usual).unwrap();
    let before = learned.service;
    let slow = given(360.0, 80.0, 48.0);
    for cycle in 1..MAX_REJECTIONS {
        learned = learn(Some(&learned), &[slow]).unwrap();
        assert_eq!((learned.service, learned.rejections), (before, cycle));
    }
    learned = learn(Some(&learned), &[slow]).unwrap();
    assert_eq!(learned.rejections, 0, "{learned:?}");
    assert!(learned.nis.unwrap() < tuner::MAX_NIS, "{learned:?}");
}

#[test]
fn a_rate_beyond_the_model_is_refused_without_a_measure() {
    let start = Start::stored(SERVICE, None);
    let mut filter = Filter::new(&start, &shown(6.0)).unwrap();
    let before = filter.clone();
    let step = filter.step(&given(6000.0, 40.0, 12.0));
    assert_eq!((step.accepted, step.nis, step.predicted), (false, None, None));
    assert_eq!(filter, before);
    let skewed = Start { covariance: Some([[1.0, 2.0, 0.0], [0.0; 3], [0.0; 3]]), ..start };
    let error = Filter::new(&skewed, &shown(6.0)).unwrap_err();
    assert_eq!(error, Unsolvable::Asymmetric);
}

#[test]
fn what_is_learned_survives_being_written_down() {
    let learned = learn(None, &[shown(2.0), shown(12.0)]).unwrap();
    let text = serde_json::to_string(&learned).unwrap();
    assert_eq!(serde_json::from_str::<Parameters>(&text).unwrap(), learned);
    assert!(text.len() < 1_000, "{text}");
}

#[test]
fn three_loads_give_the_truth_back() {
    let learned = learn(None, &[1.0, 5.0, 14.0].map(shown)).unwrap();
    let close = |found: f32, truth: f32| (found / truth - 1.0).abs() < 0.01;
    let Service { alpha, beta, gamma } = learned.service;
    assert!(close(alpha, 8.0) && close(beta, 0.016) && close(gamma, 0.0005), "{learned:?}");
}

#[test]
fn the_page_says_what_the_code_computes() {
    let page = include_str!("../../../../docs/decisions/queueing-model.md");
    let loads = [load("v", Role::Both, 2, 1, &[10.0, 14.0])];
    let finding = found(&loads, 30.0, Compat::Corrected);
    let means = means(&loads[0].observations).unwrap();
    let targets = inferred(SERVICE, &means, 3.0).unwrap();
    let upstream = found(&loads, 30.0, Compat::Upstream).total;
    let Totals { supply, anticipated, demand, required, spare } = finding.total;
    let expected = [
        format!("TTFT {:.3} ms, ITL {:.3} ms", targets.ttft, targets.itl),
        format!("μ* = {:.4}", finding.variants[0].per_replica),
        format!("supply {supply:.4}, anticipated {anticipated:.4}, demand {demand:.1}"),
        format!("required {required:.4}, spare {spare:.0}"),
        format!(
            "supply {:.4}, required {:.0}, spare {:.4}",
            upstream.supply, upstream.required, upstream.spare
        ),
    ];
    for words in expected {
        assert!(page.contains(&words), "the page does not say: {words}");
    }
}

#[test]
fn an_observation_teaches_only_when_all_of_it_is_known() {
    let whole = given(120.0, 40.0, 12.0);
    assert_eq!(whole.validated(), Some(whole));
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let parts = [
            Environment { rate: bad, ..whole },
            Environment { ttft: bad, ..whole },
            Environment { itl: bad, ..whole },
            Environment { lengths: RequestLengths { input: bad, ..LENGTHS }, ..whole },
            Environment { lengths: RequestLengths { output: bad, ..LENGTHS }, ..whole },
        ];
        assert_eq!(parts.map(Environment::validated), [None; 5], "{bad}");
    }
    assert_eq!(Environment { batch: 0, ..whole }.validated(), None);
}

#[test]
fn a_guess_needs_three_parameters_above_nothing() {
    assert_eq!(guess(10.0, 10.0, 1.0, 1.0), None, "gamma would be 0");
    assert_eq!(guess(9.0, 10.0, 1.0, 1.0), None, "no time for the prompt");
    assert_eq!(guess(40.0, 12.0, 0.0, 0.0), None);
    let [alpha, beta, gamma] = guess(40.0, 12.0, 512.0, 128.0).unwrap();
    let (both, share) = ((40.0 - 10.8) / 512.0, 512.0 + 64.5 - 1.0);
    let near = |value: f64, expected: f64| (value / expected - 1.0).abs() < 1e-9;
    assert!(near(alpha, 10.8) && near(gamma, (1.2 - both) / share) && near(beta, both - gamma));
}

#[test]
fn the_batch_is_that_of_the_first_replica_that_shows_one() {
    let batches = |batches: &[u32]| {
        let observations =
            batches.iter().map(|batch| LatencyObservation { batch: *batch, ..observation(None) });
        batch(&observations.collect::<Vec<_>>())
    };
    assert_eq!([batches(&[]), batches(&[0]), batches(&[0, 8, 16])], [256, 256, 8]);
}

#[test]
fn a_filter_sees_requests_a_minute_and_milliseconds() {
    let whole = LatencyObservation { ttft: 0.25, itl: 0.5, batch: 64, ..observation(Some(4.0)) };
    let silent = LatencyObservation { arrival: None, ..whole };
    let wrong = LatencyObservation { input: f64::NAN, ..whole };
    assert_eq!(environments(&[silent, whole, wrong]), [given(240.0, 250.0, 500.0)]);
}
