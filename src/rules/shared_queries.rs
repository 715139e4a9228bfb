//! Asks once for many reads that differ only in the value that they require of one label. While several of them come within a second, the
//! query is asked without that requirement, and each read takes its part of the answer. `commute` says for which queries that is exact.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use moka::future::Cache;
use moka::policy::EvictionPolicy;
use parking_lot::Mutex;
use smol_str::SmolStr;
use tokio::time::Instant;
use tracing::debug;

use super::commute::{MAX_QUERY_BYTES, Requirement, without_requirement};
use super::limits::{ANSWER_AGE, MAX_KEPT_BYTES};
use crate::collect::QuerySample;

/// Fewest values within [`ANSWER_AGE`] that are asked for at once.
const MIN_VALUES: usize = 4;
/// Most values that are counted. A query for all of them that takes as long as more than so many queries is not used.
const MAX_VALUES: usize = 1_000;
/// Most labels of a read of which one may be the one in which reads differ.
const MAX_REQUIREMENTS: usize = 4;
/// Most samples of an answer for many reads.
const MAX_SAMPLES: usize = 10_000;
/// How long reads are asked for one by one, where there was no answer for all, or it was too large, or had no place to be kept.
const PAUSE: Duration = Duration::from_mins(10);
/// Stands in the text of a query in place of a value.
const ANY_VALUE: char = '\0';
/// Roughly the bytes of what is known of a query, of a sample, or of a label, beside their texts.
const OF_QUERY: usize = 400;
const OF_SAMPLE: usize = 100;
const OF_LABEL: usize = 48;

/// What Prometheus answers to a query, or why there is no answer.
pub(super) trait QueryAnswer: Future<Output = Result<Vec<QuerySample>, String>> {}
impl<A: Future<Output = Result<Vec<QuerySample>, String>>> QueryAnswer for A {}

/// What is known of queries that differ in one value, and what was answered just now.
pub(super) struct SharedQueries {
    /// By the query, with [`ANY_VALUE`] in place of the value.
    queries: Cache<String, Arc<SharedQuery>>,
    /// By the same; `None` if there is no answer.
    answers: Cache<String, Option<Arc<SharedAnswer>>>,
    /// How long queries for one read take, lately; zero before the first.
    own_query: Mutex<Duration>,
}

/// Queries that differ in the value that they require of one label.
#[derive(Default)]
struct SharedQuery {
    /// The query without the requirement; `None` if its answer is not that of them all.
    text: OnceLock<Option<String>>,
    reads: Mutex<RecentReads>,
}

impl SharedQueries {
    pub(super) fn new() -> Self {
        let bytes = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let queries = Cache::builder().max_capacity(MAX_KEPT_BYTES).time_to_idle(PAUSE);
        let queries = queries.eviction_policy(EvictionPolicy::lru());
        let queries =
            queries.weigher(move |key: &String, _: &Arc<SharedQuery>| bytes(2 * key.len() + OF_QUERY));
        let answers = Cache::builder().max_capacity(MAX_KEPT_BYTES).time_to_live(ANSWER_AGE);
        let answers = answers.eviction_policy(EvictionPolicy::lru());
        let answers = answers.weigher(move |key: &String, answer: &Option<Arc<SharedAnswer>>| {
            let samples = answer.iter().flat_map(|answer| &answer.samples);
            bytes(key.len() + OF_QUERY + samples.map(SharedSample::bytes).sum::<usize>())
        });
        Self { queries: queries.build(), answers: answers.build(), own_query: Mutex::default() }
    }

    /// The samples of `query`, of an answer that other reads share. `requirements` are those of which reads may differ in one. `ask` asks
    /// Prometheus a query, at most once, and is bounded in time. `None` if the query has to be asked for by itself.
    pub(super) async fn samples<A: QueryAnswer>(
        &self,
        query: &str,
        requirements: &[Requirement<'_>],
        ask: impl Fn(String) -> A,
    ) -> Option<Vec<QuerySample>> {
        if query.len() > MAX_QUERY_BYTES || query.contains(ANY_VALUE) {
            return None;
        }
        for requirement in requirements.iter().take(MAX_REQUIREMENTS) {
            let Requirement { label, value } = *requirement;
            // The label in front: as text, the requirement of one label ends that of another with a longer name.
            let any = query.replace(&requirement.to_string(), &format!("{label}={ANY_VALUE}"));
            let key = format!("{label}{ANY_VALUE}{any}");
            let shared = self.queries.get_with_by_ref(&key, async { Arc::default() }).await;
            if !shared.reads.lock().add(value, Instant::now()) {
                continue;
            }
            let text = shared.text.get_or_init(|| without_requirement(query, *requirement));
            let Some(text) = text else { continue };
            let answer = self.answers.get_with_by_ref(&key, self.answer(&shared, (text, label), &ask));
            return answer.await.map(|answer| answer.samples(*requirement));
        }
        None
    }

    /// The answer for all values, or `None`, after which reads are asked for one by one for a while.
    async fn answer<A: QueryAnswer>(
        &self,
        shared: &SharedQuery,
        (text, label): (&str, &str),
        ask: impl Fn(String) -> A,
    ) -> Option<Arc<SharedAnswer>> {
        let is_lost = shared.reads.lock().answered.is_some_and(|at| at.elapsed() < ANSWER_AGE);
        let started = Instant::now();
        let answer =
            if is_lost { Err("its last answer had no place".to_owned()) } else { ask(text.to_owned()).await };
        let own = *self.own_query.lock();
        let mut reads = shared.reads.lock();
        let cause = match answer {
            Ok(samples) if samples.len() <= MAX_SAMPLES => {
                reads.note_answer(started.elapsed(), own);
                return Some(Arc::new(SharedAnswer::new(samples, label)));
            }
            Ok(samples) => format!("it has {} samples", samples.len()),
            Err(cause) => cause,
        };
        reads.paused_until = Some(Instant::now() + PAUSE);
        debug!(query = text, cause, "a query for many reads is not used for {} s", PAUSE.as_secs());
        None
    }

    /// Notes how long a query for one read took.
    pub(super) fn note_own_query(&self, duration: Duration) {
        let mut own = self.own_query.lock();
        *own = if own.is_zero() { duration } else { (*own * 15 + duration) / 16 };
    }
}

/// How many values are read, and whether they may be asked for at once.
struct RecentReads {
    /// Since when `values` are counted.
    since: Option<Instant>,
    /// Different ones, at most `min_values`.
    values: HashSet<SmolStr>,
    /// So many values within [`ANSWER_AGE`] are asked for at once. Fewer cost Prometheus less one by one, as the last answer has shown.
    min_values: usize,
    /// Whether there were so many in the time before.
    were_many: bool,
    paused_until: Option<Instant>,
    /// When there was an answer last.
    answered: Option<Instant>,
}

impl Default for RecentReads {
    fn default() -> Self {
        Self {
            since: None,
            values: HashSet::new(),
            min_values: MIN_VALUES,
            were_many: false,
            paused_until: None,
            answered: None,
        }
    }
}

impl RecentReads {
    /// Counts a read, and says whether it is one of many.
    fn add(&mut self, value: &str, now: Instant) -> bool {
        let age = self.since.map(|since| now.duration_since(since));
        if age.is_none_or(|age| age >= ANSWER_AGE) {
            // After a time without reads, the first ones are few again.
            self.were_many =
                self.values.len() >= self.min_values && age.is_some_and(|age| age < 2 * ANSWER_AGE);
            self.values.clear();
            self.since = Some(now);
            if self.answered.is_some_and(|at| now.duration_since(at) >= PAUSE) {
                // Prometheus may have been slow for a moment only.
                self.min_values = MIN_VALUES;
            }
        }
        if self.values.len() < self.min_values {
            self.values.insert(value.into());
        }
        let is_paused = self.paused_until.is_some_and(|until| now < until);
        !is_paused && (self.were_many || self.values.len() >= self.min_values)
    }

    /// Notes that the query for all values took `duration`, and that one for a single read takes `own`: fewer of those cost Prometheus less.
    fn note_answer(&mut self, duration: Duration, own: Duration) {
        let now = Instant::now();
        self.answered = Some(now);
        let worth = if own.is_zero() { 0.0 } else { duration.div_duration_f64(own).ceil() };
        if worth > MAX_VALUES as f64 {
            self.paused_until = Some(now + PAUSE);
        } else {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the range")]
            let worth = worth as usize;
            self.min_values = worth.max(MIN_VALUES);
        }
    }
}

/// An answer for all values of a label.
struct SharedAnswer {
    /// Sorted by value; of each, in the order of the answer.
    samples: Vec<SharedSample>,
}

/// A sample in some 100 bytes: one of [`QuerySample`] has more than 500.
struct SharedSample {
    value_of_label: SmolStr,
    /// The others.
    labels: Box<[(SmolStr, SmolStr)]>,
    at: Timestamp,
    value: f64,
}

impl SharedAnswer {
    /// Without the samples that lack the label: no read requires that.
    fn new(samples: Vec<QuerySample>, label: &str) -> Self {
        let sample = |QuerySample { mut labels, at, value }: QuerySample| {
            let value_of_label = labels.remove(label)?.into();
            let labels = labels.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
            Some(SharedSample { value_of_label, labels, at, value })
        };
        let mut samples: Vec<_> = samples.into_iter().filter_map(sample).collect();
        samples.sort_by(|a, b| a.value_of_label.cmp(&b.value_of_label));
        Self { samples }
    }

    /// The samples that have the required value.
    fn samples(&self, requirement: Requirement<'_>) -> Vec<QuerySample> {
        let Requirement { label, value } = requirement;
        let start = self.samples.partition_point(|sample| sample.value_of_label.as_str() < value);
        let samples = self.samples.iter().skip(start).take_while(|sample| sample.value_of_label == value);
        samples.map(|sample| sample.with_label(label)).collect()
    }
}

impl SharedSample {
    fn with_label(&self, label: &str) -> QuerySample {
        let Self { value_of_label, labels, at, value } = self;
        let labels = labels.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        let mut labels: BTreeMap<String, String> = labels.collect();
        labels.insert(label.to_owned(), value_of_label.to_string());
        QuerySample { labels, at: *at, value: *value }
    }

    fn bytes(&self) -> usize {
        let labels = self.labels.iter().map(|(name, value)| name.len() + value.len() + OF_LABEL);
        OF_SAMPLE + self.value_of_label.len() + labels.sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn query(pod: &str) -> String {
        format!("sum(s{{pod={pod:?},namespace=\"llm\"}}) by (pod)")
    }
    const SHARED: &str = "sum(s{namespace=\"llm\"}) by (pod)";

    fn sample(labels: &[(&str, &str)], value: f64) -> QuerySample {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        QuerySample { labels, at: Timestamp::UNIX_EPOCH, value }
    }

    /// A Prometheus with an answer for any query, which counts these.
    struct Prometheus {
        shared: SharedQueries,
        answer: Result<Vec<QuerySample>, String>,
        delay: Duration,
        queries: Mutex<Vec<String>>,
    }

    impl Prometheus {
        fn new(answer: Result<Vec<QuerySample>, String>) -> Self {
            Self { shared: SharedQueries::new(), answer, delay: Duration::ZERO, queries: Mutex::default() }
        }

        async fn read(&self, pod: &str) -> Option<Vec<QuerySample>> {
            let requirement = Requirement { label: "pod", value: pod };
            let ask = |query| async {
                self.queries.lock().push(query);
                tokio::time::sleep(self.delay).await;
                self.answer.clone()
            };
            self.shared.samples(&query(pod), &[requirement], ask).await
        }
    }

    #[tokio::test]
    async fn many_reads_that_differ_in_a_value_have_one_query() {
        let samples = vec![
            sample(&[("pod", "p-4"), ("code", "200")], 1.0),
            sample(&[("pod", "p-5")], 2.0),
            sample(&[("pod", "p-4"), ("code", "500")], 3.0),
            sample(&[("code", "200")], 4.0),
        ];
        let prometheus = Prometheus::new(Ok(samples.clone()));
        for pod in ["p-1", "p-2", "p-3", "p-3", "p-1"] {
            assert_eq!(prometheus.read(pod).await, None, "few are asked for one by one: {pod}");
        }
        let reads = ["p-4", "p-5", "p-6", "p-4", "p"].map(|pod| prometheus.read(pod));
        let answers = futures::future::join_all(reads).await;
        let of_4 = Some(vec![samples[0].clone(), samples[2].clone()]);
        let none = Some(Vec::new());
        assert_eq!(answers, [of_4.clone(), Some(vec![samples[1].clone()]), none.clone(), of_4.clone(), none]);
        assert_eq!(*prometheus.queries.lock(), [SHARED]);
        tokio::time::sleep(ANSWER_AGE + Duration::from_millis(50)).await;
        assert_eq!(prometheus.read("p-4").await, of_4, "the many of a moment ago come again");
        assert_eq!(*prometheus.queries.lock(), [SHARED, SHARED]);
    }

    #[tokio::test]
    async fn a_query_for_many_that_fails_or_has_too_much_is_not_asked_again_for_a_while() {
        let many = vec![sample(&[("pod", "a")], 1.0); MAX_SAMPLES + 1];
        for answer in [Err("down".to_owned()), Ok(many)] {
            let prometheus = Prometheus::new(answer);
            for pod in 0..20 {
                assert_eq!(prometheus.read(&format!("p-{pod}")).await, None);
            }
            assert_eq!(prometheus.queries.lock().len(), 1);
        }
    }

    #[tokio::test]
    async fn four_cheap_reads_made_a_query_of_half_a_million_series_every_second() {
        let delay = Duration::from_millis(100);
        let prometheus = Prometheus { delay, ..Prometheus::new(Ok(Vec::new())) };
        prometheus.shared.note_own_query(delay / 50);
        let queries_after = async |reads: usize| {
            for pod in 0..reads {
                prometheus.read(&format!("p-{pod}")).await;
            }
            tokio::time::sleep(ANSWER_AGE).await;
            prometheus.queries.lock().len()
        };
        assert_eq!(queries_after(10).await, 1, "to see how long it takes");
        assert_eq!(queries_after(10).await, 1, "as long as 50");
        assert_eq!(queries_after(99).await, 2);
        *prometheus.shared.own_query.lock() = delay / 10_000;
        assert_eq!(queries_after(99).await, 3);
        assert_eq!(queries_after(2_000).await, 3, "as long as 10,000");
    }

    #[tokio::test]
    async fn a_reader_was_given_samples_of_another_label_whose_name_ends_alike() {
        let shared = SharedQueries::new();
        let own = sample(&[("name", "a"), ("queue_name", "x")], 1.0);
        let ask = |_| async { Ok(vec![own.clone()]) };
        for value in ["1", "2", "3", "4"] {
            let both = ["name", "queue_name"].map(|label| Requirement { label, value });
            shared.samples(&format!("s{{queue_name={value:?}}}"), &both, ask).await;
        }
        let a = Requirement { label: "queue_name", value: "a" };
        let answer = shared.samples("s{queue_name=\"a\"}", &[a], ask).await;
        assert_eq!(answer, Some(Vec::new()), "no sample has this name of a queue");
    }

    #[tokio::test]
    async fn an_answer_that_lost_its_place_was_asked_for_by_each_read() {
        let prometheus = Prometheus::new(Ok(Vec::new()));
        for pod in 0..10 {
            prometheus.read(&format!("p-{pod}")).await;
            prometheus.shared.answers.invalidate_all();
        }
        assert_eq!(prometheus.queries.lock().len(), 1);
    }

    #[tokio::test]
    async fn labels_of_which_each_could_be_the_one_have_answers_of_their_own() {
        let shared = SharedQueries::new();
        let (x, y) = (sample(&[("a", "x"), ("b", "0")], 1.0), sample(&[("a", "0"), ("b", "x")], 2.0));
        let queries = AtomicUsize::new(0);
        let ask = |query| {
            assert_eq!(query, "sum by (a, b) (s{})");
            queries.fetch_add(1, Ordering::Relaxed);
            async { Ok(vec![x.clone(), y.clone()]) }
        };
        let read = async |label, value| {
            let requirement = Requirement { label, value };
            shared.samples(&format!("sum by (a, b) (s{{{requirement}}})"), &[requirement], ask).await
        };
        for value in ["1", "2", "3"] {
            assert_eq!((read("a", value).await, read("b", value).await), (None, None));
        }
        assert_eq!(
            (read("a", "x").await, read("b", "x").await),
            (Some(vec![x.clone()]), Some(vec![y.clone()]))
        );
        assert_eq!(queries.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_read_of_two_values_shares_with_those_that_have_one_of_them() {
        let shared = SharedQueries::new();
        let ask = |query| async move {
            assert_eq!(query, "s{a=\"1\"}");
            Ok(vec![sample(&[("a", "1"), ("b", "9")], 1.0)])
        };
        let mut last = None;
        for value in ["6", "7", "8", "9"] {
            let requirements = [("a", "1"), ("b", value)].map(|(label, value)| Requirement { label, value });
            last = shared.samples(&format!("s{{b={value:?},a=\"1\"}}"), &requirements, ask).await;
        }
        assert_eq!(last.unwrap().len(), 1);
    }

    #[test]
    fn reads_are_many_while_four_values_come_in_a_second() {
        let (mut reads, start) = (RecentReads::default(), Instant::now());
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let few: Vec<bool> = ["a", "b", "a", "c"].map(|value| reads.add(value, at(0))).into();
        assert_eq!(few, [false; 4]);
        assert!(
            reads.add("d", at(999)) && reads.add("a", at(1_000)),
            "also at the beginning of the next second"
        );
        assert!(!reads.add("a", at(2_000)), "there was only one in that");
        for value in ["a", "b", "c", "d"] {
            reads.add(value, at(2_500));
        }
        assert!(!reads.add("a", at(4_000)), "a while without reads");
        reads.note_answer(Duration::from_secs(5), Duration::from_secs(1));
        let answered = reads.answered.unwrap();
        for value in ["a", "b", "c", "d"] {
            assert!(!reads.add(value, answered + ANSWER_AGE), "it takes as long as five");
        }
        for value in ["a", "b", "c"] {
            assert!(!reads.add(value, answered + PAUSE));
        }
        assert!(reads.add("d", answered + PAUSE), "which is tried again after a while");
        let start = answered + PAUSE;
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        reads.paused_until = Some(at(9_000));
        for value in ["a", "b", "c", "d"] {
            assert!(!reads.add(value, at(8_999)));
        }
        assert!(reads.add("d", at(9_000)));
    }
}
