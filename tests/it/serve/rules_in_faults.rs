//! Metrics of rules while the clock jumps, or Prometheus hangs.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use wiremock::matchers::{body_string_contains, method};
use wiremock::{Mock, MockServer, Request, ResponseTemplate};
use wva::engine::{Clock, SystemClock};

use super::READ;
use super::rules::{Fixture, vector};

const FILE: &str = "externalRules:
- {seriesQuery: jobs, resources: {namespaced: false}, metricsQuery: sum(<<.Series>>)}
";

/// A clock that is some seconds off.
#[derive(Default)]
struct WrongClock(AtomicI64);

impl Clock for WrongClock {
    fn now(&self) -> Timestamp {
        SystemClock.now() + SignedDuration::from_secs(self.0.load(Ordering::Relaxed))
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        sleep(duration).boxed()
    }
}

/// A Prometheus whose series has the value 5 now, had 7 an hour ago, and has none in an hour.
fn answer(request: &Request) -> ResponseTemplate {
    let form: HashMap<String, String> = form_urlencoded::parse(&request.body).into_owned().collect();
    let now = SystemClock.now().as_second();
    let at = form.get("time").map_or(now, |time| time.parse::<f64>().unwrap() as i64);
    let sample = |value: &str| json!([{ "metric": { "__name__": "jobs" }, "value": [at, value] }]);
    let samples = match at - now {
        1800.. => json!([]),
        -1800..1800 => sample("5"),
        _ => sample("7"),
    };
    vector(&samples)
}

#[tokio::test]
async fn a_clock_that_was_an_hour_late_read_the_value_of_an_hour_ago() {
    let prometheus = MockServer::start().await;
    Mock::given(method("POST")).respond_with(answer).mount(&prometheus).await;
    let clock = Arc::new(WrongClock::default());
    let fixture = Fixture::with_clock(FILE, prometheus, clock.clone()).await;
    fixture.await_names(&["jobs"]).await;
    for offset in [0, -3600, 3600] {
        clock.0.store(offset, Ordering::Relaxed);
        // Longer than an answer is used again, and than the series are not listed anew.
        sleep(Duration::from_millis(1_200)).await;
        let answer = fixture.read("jobs", "").await;
        assert_eq!((answer.status, answer.value()), (200, "5".to_owned()), "{offset} s off: {}", answer.body);
        let list: Value = serde_json::from_str(&answer.body).unwrap();
        let at: Timestamp = list["items"][0]["timestamp"].as_str().unwrap().parse().unwrap();
        let age = SystemClock.now().duration_since(at);
        assert!(age < SignedDuration::from_secs(30), "the time is that of Prometheus: {age}");
    }
}

#[tokio::test]
async fn while_prometheus_hangs_reads_end_in_time_and_those_of_variants_wait_for_none() {
    let prometheus = MockServer::start().await;
    let hanging = vector(&json!([])).set_delay(Duration::from_secs(120));
    Mock::given(method("POST"))
        .and(body_string_contains("last_over_time"))
        .respond_with(answer)
        .mount(&prometheus)
        .await;
    Mock::given(method("POST"))
        .and(body_string_contains("sum"))
        .respond_with(hanging)
        .with_priority(9)
        .mount(&prometheus)
        .await;
    let fixture = Fixture::new(FILE, prometheus).await;
    fixture.await_names(&["jobs"]).await;
    let began = Instant::now();
    // More readers than there are queries at a time, each of a query of its own.
    let selectors: Vec<_> = (0..40).map(|index| format!("?labelSelector=queue%3Da{index}")).collect();
    let reads = selectors.iter().map(|selector| fixture.read("jobs", selector));
    let variants = async {
        let mut longest = Duration::ZERO;
        while began.elapsed() < Duration::from_secs(8) {
            let read = Instant::now();
            assert_eq!(fixture.server.read_as_hpa(READ, &[]).await.status, 200);
            longest = longest.max(read.elapsed());
            sleep(Duration::from_millis(200)).await;
        }
        longest
    };
    let all =
        timeout(Duration::from_secs(60), futures::future::join(futures::future::join_all(reads), variants));
    let (answers, longest) = all.await.expect("reads end");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert!(longest < Duration::from_secs(2), "a variant's read took {longest:?}");
    for answer in answers {
        assert!(
            answer.status >= 500 && answer.body.contains("Prometheus"),
            "{} {}",
            answer.status,
            answer.body
        );
    }
}
