//! The queues of schedulers while their models sleep: read directly, whatever the metric source is, and only what a request that waits
//! shows.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use smol_str::SmolStr;
use wva_core::snapshot::Signal;

use super::fetch::Fetcher;
use super::parse::{self, ParsedPage};
use super::settings::ScrapeSettings;
use crate::engine::{QueueAnswer, QueueSource, Scheduler, SourceError};

/// Time for one page: a scheduler renders it within milliseconds.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Most bytes of a page, decompressed: several times what a scheduler exposes. A longer one is read up to here.
const MAX_BODY_BYTES: usize = 512 * 1024;

/// Reads queues from schedulers. One connection is kept open to each, because reads of one scheduler come one after the other.
pub struct QueueScraper {
    fetcher: Fetcher,
}

impl QueueScraper {
    /// A scraper with the scheme, path and trust of `settings`.
    ///
    /// # Errors
    /// When the scheme or a certificate file is unusable.
    pub fn new(settings: &ScrapeSettings) -> Result<Self, SourceError> {
        let bounds = ScrapeSettings { timeout: TIMEOUT, max_body_bytes: MAX_BODY_BYTES, ..settings.clone() };
        Ok(Self { fetcher: Fetcher::new(&bounds)? })
    }

    async fn read_queues(&self, scheduler: &Scheduler) -> QueueAnswer {
        let failed = |message| SourceError { kind: "scrape", message };
        // Without credentials: any namespace may have a pool.
        let fetched = self.fetcher.fetch(&scheduler.endpoint, None).await.map_err(failed)?;
        let queues =
            queues(parse::parse_scheduler(&fetched.body, parse::format(&fetched.content_type), scheduler));
        // A request that is seen waits, whatever is missing of the page. Otherwise nothing is known.
        match fetched.truncation.filter(|_| queues.values().all(|requests| *requests <= 0.0)) {
            Some(truncation) => Err(failed(truncation)),
            None => Ok(queues),
        }
    }
}

/// The waiting requests by model. Where a page has the metric under two names, the current one counts. What is missing from a truncated
/// page can only make a sum too small, and a request that is seen waits.
fn queues(page: ParsedPage) -> BTreeMap<SmolStr, f64> {
    let mut queues: BTreeMap<SmolStr, (u8, f64)> = BTreeMap::new();
    for sample in page.samples.into_iter().filter(|sample| sample.name.signal == Signal::SchedulerQueueSize) {
        let (Some(model), (_, age)) = (sample.model, sample.name.generation) else { continue };
        let queue = queues.entry(model.into()).or_insert((age, sample.value));
        if age < queue.0 {
            *queue = (age, sample.value);
        }
    }
    queues.into_iter().map(|(model, (_, requests))| (model, requests)).collect()
}

impl QueueSource for QueueScraper {
    fn read<'a>(&'a self, scheduler: &'a Scheduler) -> BoxFuture<'a, QueueAnswer> {
        self.read_queues(scheduler).boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use prometheus_scraper::TextFormat;
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::task::JoinSet;

    use super::*;
    use crate::engine::Endpoint;

    fn scheduler(models: &[&str], has_one_model: bool) -> Scheduler {
        let ip = std::net::Ipv4Addr::LOCALHOST.into();
        let endpoint = Endpoint { namespace: "llm".into(), pod: "epp".into(), ip, port: None, path: None };
        Scheduler { endpoint, models: models.iter().copied().map(SmolStr::from).collect(), has_one_model }
    }

    fn read_of(scheduler: &Scheduler, page: &str) -> Vec<(String, f64)> {
        let page = parse::parse_scheduler(page.as_bytes(), TextFormat::Prometheus, scheduler);
        queues(page).into_iter().map(|(model, requests)| (model.to_string(), requests)).collect()
    }

    fn read(page: &str) -> Vec<(String, f64)> {
        read_of(&scheduler(&["org/chat", "base"], false), page)
    }

    #[test]
    fn the_parts_of_a_queue_are_added_up_under_the_model_that_is_meant() {
        let page = r#"# TYPE llm_d_epp_flow_control_queue_size gauge
llm_d_epp_flow_control_queue_size{fairness_id="a",priority="0",model_name="chat",target_model_name="org/chat"} 2
llm_d_epp_flow_control_queue_size{fairness_id="b",priority="1",model_name="chat",target_model_name="org/chat"} 1
llm_d_epp_flow_control_queue_size{fairness_id="a",priority="0",model_name="base",target_model_name=""} 4
llm_d_epp_flow_control_queue_size{fairness_id="a",priority="0",model_name="foreign",target_model_name=""} 9
llm_d_epp_flow_control_queue_bytes{fairness_id="a",model_name="base"} 900
vllm:num_requests_waiting{model_name="base"} 7
"#;
        assert_eq!(read(page), [("base".into(), 4.0), ("org/chat".into(), 3.0)]);
    }

    #[test]
    fn of_both_names_of_the_metric_the_current_one_counts() {
        let old = "inference_extension_flow_control_queue_size{model_name=\"base\"} 5\n";
        let new = "llm_d_epp_flow_control_queue_size{model_name=\"base\"} 3\n";
        assert_eq!(read(old), [("base".into(), 5.0)]);
        for both in [format!("{old}{new}"), format!("{new}{old}")] {
            assert_eq!(read(&both), [("base".into(), 3.0)]);
        }
    }

    #[test]
    fn in_a_pool_of_one_model_requests_for_its_adapters_wait_for_it_too() {
        let page = r#"inference_extension_flow_control_queue_size{model_name="base",target_model_name="base"} 1
inference_extension_flow_control_queue_size{model_name="my-lora",target_model_name="my-lora"} 2
"#;
        assert_eq!(read_of(&scheduler(&["base"], true), page), [("base".into(), 3.0)]);
        // Of two models, of which one sleeps, the other one's queue wakes nothing.
        assert_eq!(read_of(&scheduler(&["base"], false), page), [("base".into(), 1.0)]);
    }

    #[test]
    fn values_that_no_queue_can_have_wake_nothing() {
        for value in ["NaN", "+Inf", "-1", "x", "1e999", ""] {
            assert_eq!(
                read(&format!("llm_d_epp_flow_control_queue_size{{model_name=\"base\"}} {value}\n")),
                [],
                "{value}"
            );
        }
        let many = "llm_d_epp_flow_control_queue_size{model_name=\"base\"} 1e308\n".repeat(9);
        assert_eq!(read(&many), [], "their sum is no number");
    }

    #[test]
    fn thousands_of_users_are_one_queue() {
        let line = |user| {
            format!("llm_d_epp_flow_control_queue_size{{fairness_id=\"{user}\",model_name=\"base\"}} 1\n")
        };
        let page: String = (0..20_000).map(line).collect();
        assert_eq!(read(&page), [("base".into(), 20_000.0)]);
    }

    proptest::proptest! {
        #[test]
        fn no_page_makes_it_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200), tail in r#"[{} =",\\#a-z0-9.+eE-]{0,60}"#) {
            let mut page = format!("llm_d_epp_flow_control_queue_size{tail}\n").into_bytes();
            page.extend(bytes);
            for (format, has_one_model) in [(TextFormat::Prometheus, false), (TextFormat::OpenMetrics, true)] {
                let queues = queues(parse::parse_scheduler(&page, format, &scheduler(&["m"], has_one_model)));
                proptest::prop_assert!(queues.values().all(|value| value.is_finite() && *value >= 0.0));
            }
        }
    }

    #[tokio::test]
    async fn the_reads_of_one_scheduler_share_a_connection() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = accepted.clone();
        let mut connections = JoinSet::new();
        connections.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                open.spawn(async move {
                    let (read, mut write) = stream.into_split();
                    let mut lines = BufReader::new(read).lines();
                    while let Ok(Some(line)) = lines.next_line().await {
                        if line.is_empty() {
                            let page = "llm_d_epp_flow_control_queue_size{model_name=\"base\"} 3\n";
                            let length = page.len();
                            let answer = format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\r\n{page}");
                            write.write_all(answer.as_bytes()).await.unwrap();
                        }
                    }
                });
            }
        });
        let scraper = QueueScraper::new(&ScrapeSettings::default()).unwrap();
        let mut scheduler = scheduler(&["base"], true);
        scheduler.endpoint.port = Some(port);
        for _ in 0..20 {
            let queues = scraper.read(&scheduler).await.map_err(|error| error.message);
            assert_eq!(queues, Ok([("base".into(), 3.0)].into()));
        }
        assert_eq!(accepted.load(Ordering::Relaxed), 1);
    }
}
