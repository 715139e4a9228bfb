//! Scraping of pods: both formats, concurrency, silent pods, truncated pages, and samples of earlier rounds.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use wiremock::matchers::{method, path};
use wiremock::{Mock, MockServer, Request, Respond, ResponseTemplate};
use wva::collect::{QueueScraper, ScrapeSettings, ScrapeSource, Token};
use wva::engine::{Collected, Endpoint, MetricSource, QueueSource, Scheduler, Scope};
use wva_core::snapshot::Signal;

use super::support::{HandClock, LOOPBACK, NOW, RawServer, endpoint, provider, scope, values};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

fn page(waiting: f64) -> String {
    format!(
        "# TYPE vllm:num_requests_waiting gauge\n\
         vllm:num_requests_waiting{{engine=\"0\",model_name=\"m\"}} {waiting}\n\
         # TYPE vllm:prompt_tokens_total counter\n\
         vllm:prompt_tokens_total{{engine=\"0\",model_name=\"m\"}} 100.0\n"
    )
}

fn classic(waiting: f64) -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_raw(page(waiting), "text/plain; version=0.0.4; charset=utf-8")
}

async fn pod(answer: impl Respond + 'static) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(method("GET")).and(path("/metrics")).respond_with(answer).mount(&server).await;
    server
}

fn serving(pods: &[(&str, SocketAddr)]) -> Scope {
    let endpoints: Vec<Endpoint> = pods.iter().map(|(pod, address)| endpoint("llm", pod, *address)).collect();
    Scope { endpoints, ..scope(&["llm"]) }
}

fn source(settings: &ScrapeSettings) -> (ScrapeSource, Arc<HandClock>) {
    provider();
    let clock = Arc::new(HandClock::new());
    (ScrapeSource::new(settings, Arc::clone(&clock) as _).unwrap(), clock)
}

async fn collect(source: &ScrapeSource, scope: &Scope) -> Collected {
    source.collect(scope).await.unwrap()
}

#[tokio::test]
async fn samples_accumulate_over_rounds_with_times_of_the_clock() {
    let calls = AtomicUsize::new(0);
    let server = pod(move |_: &Request| classic(calls.fetch_add(1, Ordering::Relaxed) as f64)).await;
    let (source, clock) = source(&ScrapeSettings::default());
    let scope = serving(&[("p", *server.address())]);
    for _ in 0..3 {
        collect(&source, &scope).await;
        clock.advance(50);
    }
    let collected = collect(&source, &scope).await;
    let series = collected.series.iter().find(|series| series.signal == Signal::Waiting).unwrap();
    assert_eq!(
        (&*series.labels.pod, &*series.labels.engine, series.labels.model.as_deref()),
        ("p", "0", Some("m"))
    );
    let times: Vec<_> = series.samples.iter().map(|s| (s.at.as_second() - NOW, s.value)).collect();
    assert_eq!(times, [(50, 1.0), (100, 2.0), (150, 3.0)], "the first is older than the window");
    assert!(collected.gaps.is_empty());
}

#[tokio::test]
async fn open_metrics_is_preferred_and_read() {
    let answer = |request: &Request| {
        let accept = request.headers["accept"].to_str().unwrap();
        assert!(accept.starts_with("application/openmetrics-text"), "{accept}");
        let text = "# TYPE vllm:prompt_tokens counter\nvllm:prompt_tokens_total{engine=\"0\"} 7.0\n# EOF\n";
        ResponseTemplate::new(200).set_body_raw(text, OPEN_METRICS)
    };
    let server = pod(answer).await;
    let (source, _) = source(&ScrapeSettings::default());
    let collected = collect(&source, &serving(&[("p", *server.address())])).await;
    assert_eq!(values(&collected, Signal::PromptTokens), [("p".to_owned(), vec![7.0])]);
    assert!(collected.gaps.is_empty());
}

#[tokio::test]
async fn an_open_metrics_page_without_its_end_is_used_and_is_a_gap() {
    let text = "vllm:num_requests_waiting 7\n";
    let server = pod(ResponseTemplate::new(200).set_body_raw(text, OPEN_METRICS)).await;
    let (source, _) = source(&ScrapeSettings::default());
    let collected = collect(&source, &serving(&[("p", *server.address())])).await;
    assert_eq!(values(&collected, Signal::Waiting), [("p".to_owned(), vec![7.0])]);
    assert_eq!(collected.gaps[0].namespace.as_deref(), Some("llm"));
    assert!(collected.gaps[0].reason.contains("end mark"), "{:?}", collected.gaps);
}

#[tokio::test]
async fn half_a_number_at_the_end_of_a_truncated_page_is_never_a_sample() {
    let text = "vllm:num_requests_running 4\nvllm:num_requests_waiting 12";
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 9999\r\n\r\n";
    let server = RawServer::start(format!("{head}{text}").into_bytes()).await;
    let (source, _) = source(&ScrapeSettings::default());
    let collected = collect(&source, &serving(&[("p", server.address)])).await;
    assert_eq!(values(&collected, Signal::Running), [("p".to_owned(), vec![4.0])]);
    assert_eq!(values(&collected, Signal::Waiting), []);
    assert!(collected.gaps[0].reason.contains("broke off"), "{:?}", collected.gaps);
}

#[tokio::test]
async fn the_complete_lines_of_a_page_above_the_size_limit_are_used_and_it_is_a_gap() {
    let text = page(3.0) + &"# filler\n".repeat(10_000);
    let server = pod(ResponseTemplate::new(200).set_body_raw(text, "text/plain")).await;
    let (source, _) = source(&ScrapeSettings { max_body_bytes: 1_000, ..ScrapeSettings::default() });
    let collected = collect(&source, &serving(&[("p", *server.address())])).await;
    assert_eq!(values(&collected, Signal::Waiting), [("p".to_owned(), vec![3.0])]);
    assert!(collected.gaps[0].reason.contains("longer than 1000 bytes"), "{:?}", collected.gaps);
}

#[tokio::test]
async fn one_silent_pod_among_many_is_no_gap_and_keeps_its_old_samples() {
    let (good, other) = (pod(classic(1.0)).await, pod(classic(2.0)).await);
    let (source, clock) = source(&ScrapeSettings::default());
    let scope = serving(&[("a", *good.address()), ("b", *other.address())]);
    collect(&source, &scope).await;
    other.reset().await;
    clock.advance(30);
    let collected = collect(&source, &scope).await;
    assert!(collected.gaps.is_empty(), "{:?}", collected.gaps);
    let expected = [("a".to_owned(), vec![1.0, 1.0]), ("b".to_owned(), vec![2.0])];
    assert_eq!(values(&collected, Signal::Waiting), expected);
}

#[tokio::test]
async fn when_no_pod_answers_the_gap_names_the_first_cause_and_the_next_step() {
    let listener = std::net::TcpListener::bind((LOOPBACK, 0)).unwrap();
    let gone = listener.local_addr().unwrap();
    drop(listener);
    let (source, _) = source(&ScrapeSettings::default());
    let collected = collect(&source, &serving(&[("a", gone), ("b", gone)])).await;
    assert!(collected.series.is_empty());
    let [gap] = collected.gaps.as_slice() else { panic!("{:?}", collected.gaps) };
    let expected = format!("none of 2 pods answered; pod a at http://{gone}/metrics: ");
    assert!(gap.reason.starts_with(&expected) && gap.reason.contains("refused"), "{}", gap.reason);
    assert!(gap.reason.contains("check the scrape port"), "{}", gap.reason);
}

#[tokio::test]
async fn a_slow_pod_delays_no_other() {
    let slow = pod(classic(1.0).set_delay(Duration::from_secs(5))).await;
    let good = pod(classic(2.0)).await;
    let (source, _) =
        source(&ScrapeSettings { timeout: Duration::from_millis(300), ..ScrapeSettings::default() });
    let started = tokio::time::Instant::now();
    let collected = collect(&source, &serving(&[("a", *slow.address()), ("b", *good.address())])).await;
    assert!(started.elapsed() < Duration::from_secs(3));
    assert_eq!(values(&collected, Signal::Waiting), [("b".to_owned(), vec![2.0])]);
}

#[tokio::test]
async fn pods_of_one_namespace_that_hang_affect_no_other_namespace() {
    let hanging = pod(classic(1.0).set_delay(Duration::from_secs(9))).await;
    let good = pod(classic(2.0)).await;
    let names: Vec<String> = (0..40).map(|n| format!("p{n:02}")).collect();
    let mut endpoints: Vec<Endpoint> =
        names.iter().map(|name| endpoint("a", name, *hanging.address())).collect();
    endpoints.extend(["x", "y", "z"].map(|name| endpoint("b", name, *good.address())));
    let scope = Scope { endpoints, ..scope(&["a", "b"]) };
    let (source, _) = source(&ScrapeSettings {
        concurrency: 4,
        timeout: Duration::from_millis(300),
        deadline: Duration::from_millis(1_000),
        ..ScrapeSettings::default()
    });
    for _ in 0..2 {
        let started = tokio::time::Instant::now();
        let collected = collect(&source, &scope).await;
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
        assert_eq!(values(&collected, Signal::Waiting).len(), 3);
        let [gap] = collected.gaps.as_slice() else { panic!("{:?}", collected.gaps) };
        assert!(gap.namespace.as_deref() == Some("a") && gap.reason.contains("of 40 pods"), "{gap:?}");
    }
}

#[tokio::test]
async fn a_pod_that_left_the_scope_is_forgotten() {
    let server = pod(classic(1.0)).await;
    let (source, _) = source(&ScrapeSettings::default());
    collect(&source, &serving(&[("p", *server.address())])).await;
    let collected = collect(&source, &serving(&[])).await;
    assert!(collected.series.is_empty());
}

#[tokio::test]
async fn two_rounds_at_once_never_read_a_pod_twice_at_once() {
    let server = pod(classic(1.0).set_delay(Duration::from_millis(200))).await;
    let (source, _) = source(&ScrapeSettings::default());
    let scope = serving(&[("p", *server.address())]);
    let started = tokio::time::Instant::now();
    tokio::join!(collect(&source, &scope), collect(&source, &scope));
    assert!(started.elapsed() >= Duration::from_millis(400), "{:?}", started.elapsed());
}

#[tokio::test]
async fn the_number_of_concurrent_scrapes_is_limited() {
    let server = pod(classic(1.0).set_delay(Duration::from_millis(100))).await;
    let pods: Vec<String> = (0..8).map(|n| format!("p{n}")).collect();
    let pods: Vec<(&str, SocketAddr)> = pods.iter().map(|pod| (pod.as_str(), *server.address())).collect();
    let (source, _) = source(&ScrapeSettings { concurrency: 2, ..ScrapeSettings::default() });
    let started = tokio::time::Instant::now();
    assert_eq!(values(&collect(&source, &serving(&pods)).await, Signal::Waiting).len(), 8);
    assert!(started.elapsed() >= Duration::from_millis(400), "{:?}", started.elapsed());
}

#[tokio::test]
async fn the_token_is_never_sent_over_plain_http() {
    let server = pod(classic(1.0)).await;
    let token = Token::Inline("t0ken".into());
    let (source, _) = source(&ScrapeSettings { token, ..ScrapeSettings::default() });
    collect(&source, &serving(&[("p", *server.address())])).await;
    let requests = server.received_requests().await.unwrap();
    assert!(
        requests.iter().all(|request| !request.headers.contains_key("authorization")) && !requests.is_empty()
    );
}

#[tokio::test]
async fn engines_of_one_pod_at_several_ports_stay_apart() {
    let (first, second) = (pod(classic(1.0)).await, pod(classic(2.0)).await);
    let (source, _) = source(&ScrapeSettings::default());
    let collected = collect(&source, &serving(&[("p", *first.address()), ("p", *second.address())])).await;
    let mut engines: Vec<_> =
        collected.series.iter().map(|series| series.labels.engine.to_string()).collect();
    engines.sort();
    engines.dedup();
    let mut expected = [first, second].map(|server| format!("{}/0", server.address().port()));
    expected.sort();
    assert_eq!(engines, expected);
}

#[tokio::test]
async fn a_pod_with_a_path_of_its_own_is_read_there() {
    let server = MockServer::start().await;
    let at = |path_: &str| Mock::given(method("GET")).and(path(path_.to_owned()));
    at("/metrics").respond_with(classic(1.0)).mount(&server).await;
    at("/prometheus/metrics").respond_with(classic(2.0)).mount(&server).await;
    let (source, _) = source(&ScrapeSettings::default());
    let mut scope = serving(&[("p", *server.address())]);
    scope.endpoints[0].path = Some("/prometheus/metrics".into());
    assert_eq!(values(&collect(&source, &scope).await, Signal::Waiting), [("p".to_owned(), vec![2.0])]);
}

/// The newest value of each engine, of one signal.
pub(super) fn newest(collected: &Collected, signal: Signal) -> Vec<f64> {
    let found = collected.series.iter().filter(|series| series.signal == signal);
    found.filter_map(|series| series.samples.last()).map(|sample| sample.value).collect()
}

pub(super) async fn read(page: &'static str) -> Collected {
    let server = pod(ResponseTemplate::new(200).set_body_raw(page, "text/plain; version=0.0.4")).await;
    let (source, _) = source(&ScrapeSettings::default());
    collect(&source, &serving(&[("p", *server.address())])).await
}

#[tokio::test]
async fn a_page_of_a_real_vllm_has_every_signal_of_an_engine() {
    let collected = read(include_str!("pages/vllm-0.32.txt")).await;
    assert!(collected.gaps.is_empty() && collected.bad_samples == 0 && collected.dropped_series == 0);
    let expected = [
        (Signal::Waiting, 0.0),
        (Signal::Running, 22.0),
        (Signal::KvCapacity, 131_072.0),
        (Signal::TimeToFirstTokenCount, 7_999.0),
        (Signal::EngineSteps, 45_028.0),
        (Signal::RefusedRequests, 0.0),
    ];
    for (signal, value) in expected {
        assert_eq!(newest(&collected, signal), [value], "{signal:?}");
    }
    let missing = Signal::ALL.into_iter().filter(|signal| newest(&collected, *signal).is_empty());
    let not_an_engines =
        [Signal::Asleep, Signal::SchedulerQueueSize, Signal::SchedulerQueueBytes, Signal::SchedulerAttempts];
    assert_eq!(missing.collect::<Vec<_>>(), not_an_engines);
}

#[tokio::test]
async fn requests_refused_for_any_reason_are_shared_by_the_data_parallel_engines_of_a_server() {
    let page = r#"vllm:num_requests_running{engine="0",model_name="tiny"} 16.0
vllm:num_requests_running{engine="1",model_name="tiny"} 15.0
vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"} 230.0
vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_tokens"} 10.0
"#;
    let collected = read(page).await;
    assert_eq!(newest(&collected, Signal::RefusedRequests), [120.0, 120.0]);
    let engines: std::collections::BTreeSet<_> =
        collected.series.iter().map(|series| &*series.labels.engine).collect();
    assert_eq!(engines.into_iter().collect::<Vec<_>>(), ["0", "1"]);
}

#[tokio::test]
async fn two_sglang_ranks_are_two_engines_and_share_the_token_counters() {
    let collected = read(include_str!("pages/sglang-0.5.23.txt")).await;
    assert_eq!(newest(&collected, Signal::Running), [3.0, 4.0], "the total, not the priorities");
    assert_eq!(newest(&collected, Signal::Waiting), [0.0, 5.0]);
    assert_eq!(newest(&collected, Signal::KvUsage), [0.25, 0.5]);
    assert_eq!(newest(&collected, Signal::TimeToFirstTokenCount), [230.5, 230.5], "461 of both kinds");
    assert_eq!(newest(&collected, Signal::GenerationTokens), [23_050.0, 23_050.0]);
    let engines: std::collections::BTreeSet<_> =
        collected.series.iter().map(|series| &*series.labels.engine).collect();
    assert_eq!(engines.into_iter().collect::<Vec<_>>(), ["0", "1"]);
}

#[tokio::test]
async fn a_hostile_page_affects_only_its_namespace_and_is_a_gap() {
    let label = "x".repeat(4_000);
    let lines = (0..900).map(|n| format!("vllm:prompt_tokens_total{{engine=\"{n}-{label}\"}} 1\n"));
    let hostile = pod(ResponseTemplate::new(200).set_body_string(lines.collect::<String>())).await;
    let honest = pod(classic(3.0)).await;
    let (source, _) = source(&ScrapeSettings::default());
    let mut scope = serving(&[("p", *honest.address())]);
    scope.namespaces.insert("evil".to_owned());
    scope.endpoints.push(endpoint("evil", "e", *hostile.address()));
    let collected = collect(&source, &scope).await;
    assert_eq!(newest(&collected, Signal::Waiting), [3.0]);
    assert_eq!(collected.dropped_series, 900);
    let [gap] = collected.gaps.as_slice() else { panic!("{:?}", collected.gaps) };
    assert!(gap.namespace.as_deref() == Some("evil") && gap.reason.starts_with("pod e: 900"), "{gap:?}");
}

/// A scheduler of the model `m`.
fn scheduler(server: &MockServer) -> Scheduler {
    let endpoint = endpoint("llm", "epp", *server.address());
    Scheduler { endpoint, models: ["m".into()].into(), has_one_model: false }
}

const SCHEDULER_PAGE: &str = r#"inference_extension_flow_control_queue_size{fairness_id="a",model_name="m",target_model_name="m"} 2
inference_extension_flow_control_queue_size{fairness_id="b",model_name="m",target_model_name="m"} 1
inference_extension_flow_control_queue_size{fairness_id="a",model_name="foreign",target_model_name="foreign"} 9
inference_extension_scheduler_attempts_total{status="success",target_model_name="m",pod_name="vllm-0",port="8000"} 5
inference_extension_scheduler_attempts_total{status="failure",target_model_name="m"} 7
vllm:num_requests_waiting{model_name="m"} 4
"#;

#[tokio::test]
async fn a_scheduler_gives_the_signals_of_the_models_of_its_pools_and_of_no_other() {
    let server = pod(ResponseTemplate::new(200).set_body_raw(SCHEDULER_PAGE, "text/plain")).await;
    let (source, _) = source(&ScrapeSettings::default());
    let collected =
        collect(&source, &Scope { schedulers: vec![scheduler(&server)], ..scope(&["llm"]) }).await;
    assert_eq!(values(&collected, Signal::SchedulerQueueSize), [("epp".to_owned(), vec![3.0])]);
    let models: Vec<_> = collected.series.iter().map(|series| series.labels.model.as_deref()).collect();
    assert!(models.iter().all(|model| *model == Some("m")), "{models:?}");
    assert!(values(&collected, Signal::Waiting).is_empty(), "it is no engine");
    let attempts = collected.series.iter().filter(|series| series.signal == Signal::SchedulerAttempts);
    let destinations: Vec<_> =
        attempts.filter_map(|series| series.labels.destination.as_ref().map(|to| &*to.pod)).collect();
    assert_eq!(destinations, ["vllm-0"]);
    assert!(collected.gaps.is_empty(), "{:?}", collected.gaps);
}

#[tokio::test]
async fn an_engine_that_pretends_to_be_a_scheduler_says_nothing_about_a_queue() {
    let server = pod(ResponseTemplate::new(200).set_body_raw(SCHEDULER_PAGE, "text/plain")).await;
    let (source, _) = source(&ScrapeSettings::default());
    let engines = serving(&[("vllm-0", *server.address())]);
    let collected = collect(&source, &Scope { schedulers: vec![], ..engines }).await;
    assert!(values(&collected, Signal::SchedulerQueueSize).is_empty());
    assert_eq!(values(&collected, Signal::Waiting), [("vllm-0".to_owned(), vec![4.0])]);
}

#[tokio::test]
async fn a_scheduler_that_answers_too_much_or_nothing_makes_no_answer_incomplete() {
    let filler = "# filler\n".repeat(10_000);
    let endless = format!("{SCHEDULER_PAGE}{filler}");
    for answer in [
        ResponseTemplate::new(200).set_body_raw(endless, "text/plain"),
        ResponseTemplate::new(401),
        ResponseTemplate::new(200).set_body_raw(vec![0xff; 5_000], "text/plain"),
    ] {
        let broken = pod(answer).await;
        let engine = pod(classic(1.0)).await;
        let settings = ScrapeSettings { max_body_bytes: 2_000, ..ScrapeSettings::default() };
        let (source, _) = source(&settings);
        let engines = serving(&[("p", *engine.address())]);
        let collected = collect(&source, &Scope { schedulers: vec![scheduler(&broken)], ..engines }).await;
        assert!(values(&collected, Signal::SchedulerQueueSize).is_empty(), "half a sum is none");
        assert_eq!(values(&collected, Signal::Waiting), [("p".to_owned(), vec![1.0])]);
        assert!(collected.gaps.is_empty(), "{:?}", collected.gaps);
    }
}

#[tokio::test]
async fn the_queue_of_a_sleeping_model_is_read_up_to_a_bound_and_its_errors_say_why() {
    provider();
    let queues = QueueScraper::new(&ScrapeSettings::default()).unwrap();
    let full = pod(ResponseTemplate::new(200).set_body_raw(SCHEDULER_PAGE, "text/plain")).await;
    assert_eq!(queues.read(&scheduler(&full)).await.unwrap(), [("m".into(), 3.0)].into());
    // 100 MB, of which the first is enough.
    let endless = format!("{SCHEDULER_PAGE}{}", "# filler\n".repeat(12_000_000));
    let endless = pod(ResponseTemplate::new(200).set_body_raw(endless, "text/plain")).await;
    assert_eq!(queues.read(&scheduler(&endless)).await.unwrap(), [("m".into(), 3.0)].into());
    let garbage = pod(ResponseTemplate::new(200).set_body_raw(vec![0xff; 5_000], "text/plain")).await;
    assert!(queues.read(&scheduler(&garbage)).await.unwrap().is_empty());
    let refused = pod(ResponseTemplate::new(401)).await;
    assert!(queues.read(&scheduler(&refused)).await.unwrap_err().message.contains("401"));
    let never = pod(ResponseTemplate::new(200).set_delay(Duration::from_secs(30))).await;
    assert!(queues.read(&scheduler(&never)).await.unwrap_err().message.contains("no answer in time"));
}
