//! Asks once for many reads that differ only in the value that they require of one label. While several of them come within a second, the
//! query is asked without that requirement, and each read takes its part of the answer. `commute` says for which queries that is exact.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use smol_str::SmolStr;

use super::commute::{MAX_QUERY_BYTES, Requirement, without_requirement};
use super::sharing::{Answering, Shared, Sharing};
use crate::collect::QuerySample;

/// Most labels of a read of which one may be the one in which reads differ.
const MAX_REQUIREMENTS: usize = 4;
/// Most samples of an answer for many reads.
const MAX_SAMPLES: usize = 10_000;
/// Stands in the text of a query in place of a value.
const ANY_VALUE: char = '\0';
/// Roughly the bytes of a sample, or of a label, beside their texts.
const OF_SAMPLE: usize = 100;
const OF_LABEL: usize = 48;

/// What Prometheus answers to a query, or why there is no answer.
pub(super) trait QueryAnswer: Answering<Vec<QuerySample>> {}
impl<A: Answering<Vec<QuerySample>>> QueryAnswer for A {}

/// What is known of queries that differ in one value, and what was answered just now.
pub(super) struct SharedQueries(Sharing<AllSamples>);

impl SharedQueries {
    pub(super) fn new() -> Self {
        Self(Sharing::new())
    }

    /// The samples of `query`, of an answer that other reads share. `requirements` are those of which reads may differ in one; the read is
    /// about the value of this, and about `further` ones. `ask` asks Prometheus a query, and is bounded in time. `None` if the query has to
    /// be asked for by itself.
    pub(super) async fn samples<A: QueryAnswer>(
        &self,
        query: &str,
        (requirements, further): (&[Requirement<'_>], &[&str]),
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
            let question =
                || Some(Question { query: without_requirement(query, *requirement)?, label: label.into() });
            let ask = |question| answer(question, &ask);
            if let Some(shared) = self.0.find((&key, value), question, ask).await {
                let values = [value].into_iter().chain(further.iter().copied());
                return Some(values.flat_map(|value| shared.answer.samples(label, value)).collect());
            }
        }
        None
    }

    /// Asks again for what is read, until cancelled.
    pub(super) async fn renew<A: QueryAnswer>(&self, ask: impl Fn(String) -> A) {
        self.0.renew(|question| answer(question, &ask)).await;
    }

    /// Notes how long a query for one read took.
    pub(super) fn note_own_query(&self, duration: Duration) {
        self.0.note_own(duration);
    }
}

/// A query for all values of a label.
#[derive(Clone)]
pub(super) struct Question {
    query: String,
    label: SmolStr,
}

async fn answer<A: QueryAnswer>(
    Question { query, label }: Question,
    ask: impl Fn(String) -> A,
) -> Result<AllSamples, String> {
    let samples = ask(query).await?;
    if samples.len() > MAX_SAMPLES {
        return Err(format!("it has {} samples", samples.len()));
    }
    Ok(AllSamples::new(samples, &label))
}

/// An answer for all values of a label.
pub(super) struct AllSamples {
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

impl AllSamples {
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

    /// The samples that have this value of the label.
    fn samples<'a>(&'a self, label: &'a str, value: &'a str) -> impl Iterator<Item = QuerySample> + 'a {
        let start = self.samples.partition_point(|sample| sample.value_of_label.as_str() < value);
        let samples =
            self.samples.iter().skip(start).take_while(move |sample| sample.value_of_label == value);
        samples.map(|sample| sample.with_label(label))
    }
}

impl Shared for AllSamples {
    type Question = Question;

    fn bytes(&self) -> usize {
        self.samples.iter().map(SharedSample::bytes).sum()
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

    use parking_lot::Mutex;
    use tokio::time::Instant;

    use super::*;
    use crate::rules::limits::{ANSWER_AGE, MAX_ANSWER_AGE};

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

        async fn ask(&self, query: String) -> Result<Vec<QuerySample>, String> {
            self.queries.lock().push(query);
            tokio::time::sleep(self.delay).await;
            self.answer.clone()
        }

        async fn read(&self, pod: &str) -> Option<Vec<QuerySample>> {
            self.read_all(&[pod]).await
        }

        async fn read_all(&self, pods: &[&str]) -> Option<Vec<QuerySample>> {
            let (first, further) = pods.split_first()?;
            let requirement = Requirement { label: "pod", value: first };
            let ask = |query| self.ask(query);
            self.shared.samples(&query(first), (&[requirement], further), ask).await
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
        let all = prometheus.read_all(&["p-5", "p-6", "p-4"]).await;
        assert_eq!(all, Some([1, 0, 2].map(|index| samples[index].clone()).to_vec()), "those of a selector");
        assert_eq!(prometheus.queries.lock().len(), 1);
    }

    #[tokio::test]
    async fn each_second_some_reads_waited_for_the_query_of_all() {
        let answer = Ok(vec![sample(&[("pod", "p-4")], 1.0)]);
        let prometheus = Prometheus { delay: Duration::from_millis(500), ..Prometheus::new(answer) };
        for pod in ["p-1", "p-2", "p-3", "p-4"] {
            prometheus.read(pod).await;
        }
        tokio::time::sleep(ANSWER_AGE).await;
        let reads = async {
            let started = Instant::now();
            for _ in 0..5 {
                assert!(prometheus.read("p-4").await.is_some(), "the many of a moment ago come again");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert!(started.elapsed() < prometheus.delay, "{:?}", started.elapsed());
            assert_eq!(prometheus.queries.lock().len(), 2, "one of them was due");
            tokio::time::sleep(prometheus.delay + Duration::from_millis(100)).await;
        };
        tokio::select! {
            () = prometheus.shared.renew(|query| prometheus.ask(query)) => {}
            () = reads => {}
        }
        // The first answer is too old now.
        tokio::time::sleep(MAX_ANSWER_AGE - ANSWER_AGE - Duration::from_millis(200)).await;
        for (index, pod) in ["p-1", "p-2", "p-3", "p-4"].into_iter().enumerate() {
            assert_eq!(prometheus.read(pod).await.is_some(), index == 3);
        }
        assert_eq!(prometheus.queries.lock().len(), 2, "the renewed one is used");
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
            tokio::time::sleep(MAX_ANSWER_AGE).await;
            prometheus.queries.lock().len()
        };
        assert_eq!(queries_after(10).await, 1, "to see how long it takes");
        assert_eq!(queries_after(10).await, 1, "as long as 50");
        assert_eq!(queries_after(99).await, 2);
        prometheus.shared.0.set_own(delay / 10_000);
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
            shared.samples(&format!("s{{queue_name={value:?}}}"), (&both, &[]), ask).await;
        }
        let a = Requirement { label: "queue_name", value: "a" };
        let answer = shared.samples("s{queue_name=\"a\"}", (&[a], &[]), ask).await;
        assert_eq!(answer, Some(Vec::new()), "no sample has this name of a queue");
    }

    #[tokio::test]
    async fn an_answer_that_lost_its_place_was_asked_for_by_each_read() {
        let prometheus = Prometheus::new(Ok(Vec::new()));
        for pod in 0..10 {
            prometheus.read(&format!("p-{pod}")).await;
            prometheus.shared.0.forget_answers();
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
            shared.samples(&format!("sum by (a, b) (s{{{requirement}}})"), (&[requirement], &[]), ask).await
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
            last = shared.samples(&format!("s{{b={value:?},a=\"1\"}}"), (&requirements, &[]), ask).await;
        }
        assert_eq!(last.unwrap().len(), 1);
    }
}
