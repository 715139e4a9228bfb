//! Answers many reads at once. While several that differ in one value come within a second, Prometheus or the API server is asked once for
//! all values, and each read takes its part of the answer. Later reads do not wait for the next answer: they have this one meanwhile.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use moka::future::Cache;
use moka::policy::EvictionPolicy;
use parking_lot::Mutex;
use smol_str::SmolStr;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::debug;

use super::limits::{ANSWER_AGE, MAX_ANSWER_AGE, MAX_KEPT_BYTES};

/// Fewest values within [`ANSWER_AGE`] that are asked for at once.
const MIN_VALUES: usize = 4;
/// Most values that are counted. A question about all of them that takes as long as more than so many about one is not asked.
const MAX_VALUES: usize = 1_000;
/// How long reads are answered one by one, where there was no answer for all, or it was too large, or had no place to be kept.
const PAUSE: Duration = Duration::from_mins(10);
/// Answers that wait to be renewed, and those that are being renewed. Where there are more, reads wait for the next answer.
const MAX_DUE: usize = 1_000;
/// Roughly the bytes of what is known of a question, and of an answer, beside their texts.
const OF_QUESTION: usize = 400;

/// What is asked for all values, and what the answer to it is.
pub(super) trait Shared: Send + Sync + 'static {
    type Question: Clone + Send + Sync;
    /// The bytes of an answer, roughly.
    fn bytes(&self) -> usize;
}

/// An answer for all values, or why there is none. It is bounded in time.
pub(super) trait Answering<T>: Future<Output = Result<T, String>> {}
impl<T, A: Future<Output = Result<T, String>>> Answering<T> for A {}

/// What is known of reads that differ in one value, and what was answered just now.
pub(super) struct Sharing<T: Shared> {
    /// By a text that is the same for all values.
    reads: Cache<String, Arc<SharedReads<T::Question>>>,
    /// By the same; `None` if there is no answer.
    answers: Cache<String, Option<Arc<Dated<T>>>>,
    /// How long answers to one read take, lately; zero before the first.
    own: Mutex<Duration>,
    due: mpsc::Sender<Due<T::Question>>,
    renewals: tokio::sync::Mutex<mpsc::Receiver<Due<T::Question>>>,
}

/// Reads that differ in one value.
struct SharedReads<Q> {
    /// What is asked for all values; `None` if its answer is not that of them all.
    question: OnceLock<Option<Q>>,
    recent: Mutex<RecentReads>,
}

/// An answer, and since when it was asked for.
pub(super) struct Dated<T> {
    pub(super) answer: T,
    at: Instant,
    /// Whether a newer one has been asked for.
    is_due: AtomicBool,
}

/// An answer that is to be renewed.
struct Due<Q> {
    key: String,
    question: Q,
    reads: Arc<SharedReads<Q>>,
}

impl<T: Shared> Sharing<T> {
    pub(super) fn new() -> Self {
        let bytes = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let reads = Cache::builder().max_capacity(MAX_KEPT_BYTES).time_to_idle(PAUSE);
        let reads = reads.eviction_policy(EvictionPolicy::lru());
        let reads = reads.weigher(move |key: &String, _: &Arc<_>| bytes(2 * key.len() + OF_QUESTION));
        let answers = Cache::builder().max_capacity(MAX_KEPT_BYTES).time_to_live(MAX_ANSWER_AGE);
        let answers = answers.eviction_policy(EvictionPolicy::lru());
        let answers = answers.weigher(move |key: &String, answer: &Option<Arc<Dated<T>>>| {
            bytes(key.len() + OF_QUESTION + answer.iter().map(|dated| dated.answer.bytes()).sum::<usize>())
        });
        let (due, renewals) = mpsc::channel(MAX_DUE);
        Self {
            reads: reads.build(),
            answers: answers.build(),
            own: Mutex::default(),
            due,
            renewals: renewals.into(),
        }
    }

    /// The answer that a read of `value` shares with all those of the same `key`; `None` if the read has to be answered by itself. `question`
    /// makes what is asked for all values, and `ask` asks it.
    pub(super) async fn find<A: Answering<T>>(
        &self,
        (key, value): (&str, &str),
        question: impl FnOnce() -> Option<T::Question>,
        ask: impl FnOnce(T::Question) -> A,
    ) -> Option<Arc<Dated<T>>> {
        let new = || SharedReads { question: OnceLock::new(), recent: Mutex::default() };
        let reads = self.reads.get_with_by_ref(key, async { Arc::new(new()) }).await;
        if !reads.recent.lock().add(value, Instant::now()) {
            return None;
        }
        let question = reads.question.get_or_init(question).as_ref()?;
        let dated = match self.answers.get(key).await {
            Some(dated) => dated?,
            // In a box: few reads ask.
            None => {
                let is_lost = reads.recent.lock().answered.is_some_and(|at| at.elapsed() < ANSWER_AGE);
                let answering = async {
                    if is_lost {
                        Err("its last answer had no place".to_owned())
                    } else {
                        ask(question.clone()).await
                    }
                };
                let answer = self.answer(&reads, answering, true);
                Box::pin(self.answers.get_with_by_ref(key, answer)).await?
            }
        };
        if dated.at.elapsed() >= ANSWER_AGE && !dated.is_due.swap(true, Ordering::Relaxed) {
            let (question, reads) = (question.clone(), Arc::clone(&reads));
            // Without a place, the answer is used until it is too old.
            let _ = self.due.try_send(Due { key: key.to_owned(), question, reads });
        }
        Some(dated)
    }

    /// Renews answers that are read, until cancelled. Without it, reads wait for the next answer when the last one is too old.
    pub(super) async fn renew<A: Answering<T>>(&self, ask: impl Fn(T::Question) -> A) {
        let mut due = self.renewals.lock().await;
        let mut running = FuturesUnordered::new();
        loop {
            tokio::select! {
                Some(due) = due.recv(), if running.len() < MAX_DUE => running.push(self.renew_one(due, &ask)),
                Some(()) = running.next() => {}
            }
        }
    }

    async fn renew_one<A: Answering<T>>(&self, due: Due<T::Question>, ask: impl Fn(T::Question) -> A) {
        let Due { key, question, reads } = due;
        // Another one may have come meanwhile: before this began, or before it ended.
        let newest = async || self.answers.get(&key).await.flatten().map(|newest| newest.at);
        if newest().await.is_some_and(|at| at.elapsed() < ANSWER_AGE) {
            return;
        }
        if let Some(answer) = self.answer(&reads, ask(question), false).await
            && newest().await.is_none_or(|at| at < answer.at)
        {
            self.answers.insert(key, Some(answer)).await;
        }
    }

    /// The answer for all values, or `None`, after which reads are answered one by one for a while. `is_timed`: how long it took says whether it
    /// was worth it.
    async fn answer<A: Answering<T>>(
        &self,
        reads: &SharedReads<T::Question>,
        answering: A,
        is_timed: bool,
    ) -> Option<Arc<Dated<T>>> {
        let started = Instant::now();
        let answer = answering.await;
        let own = *self.own.lock();
        let mut recent = reads.recent.lock();
        match answer {
            Ok(answer) => {
                recent.answered = Some(Instant::now());
                if is_timed {
                    recent.note_duration(started.elapsed(), own);
                }
                Some(Arc::new(Dated { answer, at: started, is_due: AtomicBool::new(false) }))
            }
            Err(cause) => {
                recent.paused_until = Some(Instant::now() + PAUSE);
                debug!(cause, "reads do not share an answer for {} s", PAUSE.as_secs());
                None
            }
        }
    }

    /// Notes how long the answer to one read took.
    pub(super) fn note_own(&self, duration: Duration) {
        let mut own = self.own.lock();
        *own = if own.is_zero() { duration } else { (*own * 15 + duration) / 16 };
    }
}

/// How many values are read, and whether they may be answered at once.
struct RecentReads {
    /// Since when `values` are counted.
    since: Option<Instant>,
    /// Different ones, at most `min_values`.
    values: HashSet<SmolStr>,
    /// So many values within [`ANSWER_AGE`] are answered at once. Fewer cost less one by one, as the last answer has shown.
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
                // It may have been slow for a moment only.
                self.min_values = MIN_VALUES;
            }
        }
        if self.values.len() < self.min_values {
            self.values.insert(value.into());
        }
        let is_paused = self.paused_until.is_some_and(|until| now < until);
        !is_paused && (self.were_many || self.values.len() >= self.min_values)
    }

    /// Notes that the answer for all values took `duration`, and that to a single read takes `own`: fewer of those cost less.
    fn note_duration(&mut self, duration: Duration, own: Duration) {
        let now = Instant::now();
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

#[cfg(test)]
impl<T: Shared> Sharing<T> {
    /// Sets how long answers to one read take.
    pub(super) fn set_own(&self, duration: Duration) {
        *self.own.lock() = duration;
    }

    /// Loses all answers.
    pub(super) fn forget_answers(&self) {
        self.answers.invalidate_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Shared for u32 {
        type Question = ();

        fn bytes(&self) -> usize {
            4
        }
    }

    /// Four reads of different values: what they share, and what is asked for it.
    async fn read(sharing: &Sharing<u32>, answer: u32) -> Option<u32> {
        let mut last = None;
        for value in ["a", "b", "c", "d"] {
            last = sharing.find(("key", value), || Some(()), |()| async { Ok(answer) }).await;
        }
        last.map(|dated| dated.answer)
    }

    async fn due(sharing: &Sharing<u32>) -> Due<()> {
        sharing.renewals.lock().await.recv().await.unwrap()
    }

    #[tokio::test]
    async fn a_late_renewal_replaced_a_newer_answer() {
        let sharing = Sharing::new();
        assert_eq!(read(&sharing, 1).await, Some(1));
        tokio::time::sleep(ANSWER_AGE).await;
        assert_eq!(read(&sharing, 2).await, Some(1), "the last one, until it is renewed");
        let slow = async |()| {
            tokio::time::sleep(MAX_ANSWER_AGE).await;
            Ok(2)
        };
        let meanwhile = async {
            tokio::time::sleep(MAX_ANSWER_AGE - ANSWER_AGE / 2).await;
            assert_eq!(read(&sharing, 3).await, Some(3), "the first one is too old");
        };
        let late = due(&sharing).await;
        tokio::join!(sharing.renew_one(late, slow), meanwhile);
        assert_eq!(read(&sharing, 4).await, Some(3));
    }

    #[tokio::test]
    async fn reads_shared_an_answer_that_could_not_be_renewed() {
        let sharing = Sharing::new();
        assert_eq!(read(&sharing, 1).await, Some(1));
        tokio::time::sleep(ANSWER_AGE).await;
        read(&sharing, 1).await;
        sharing.renew_one(due(&sharing).await, async |()| Err("down".to_owned())).await;
        assert_eq!(read(&sharing, 1).await, None, "each is answered by itself");
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
        reads.note_duration(Duration::from_secs(5), Duration::from_secs(1));
        let answered = Instant::now();
        reads.answered = Some(answered);
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
