//! Takes evaluations from the engine without blocking it, and hands them to the tasks that keep them. Each task has a queue of
//! two; a task that is behind misses evaluations, which are counted.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::file::Recording;
use super::recent::Recent;
use super::retention::RemovedFiles;
use crate::engine::{Evaluation, Recorder};

/// Evaluations that wait in a queue: while one is written, the next may arrive.
const QUEUE_LENGTH: usize = 2;

/// How often a lasting failure is logged.
const REMINDER_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// Metrics of recording to files.
#[derive(Debug, Clone, Default)]
pub struct RecordingMetrics {
    evaluations: Family<ResultLabel, Counter>,
    removed: Family<ReasonLabel, Counter>,
    size: Gauge,
}

impl RecordingMetrics {
    /// Fresh families, registered in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Evaluations to be recorded to a file, by result: written, dropped because the disk was slow, failed";
        registry.register("wva_recorded_evaluations", help, metrics.evaluations.clone());
        let help = "Recorded files removed to make room, by reason: bound (--record-max-size), disk (full before that)";
        registry.register("wva_recorded_files_removed", help, metrics.removed.clone());
        registry.register_with_unit(
            "wva_recording",
            "Bytes of all recorded files",
            Unit::Bytes,
            metrics.size.clone(),
        );
        metrics
    }

    fn count(&self, result: &'static str) {
        self.evaluations.get_or_create(&ResultLabel { result }).inc();
    }

    fn update(&self, recording: &Recording) {
        self.size.set(recording.total().try_into().unwrap_or(i64::MAX));
        let RemovedFiles { for_limit, for_full_disk } = recording.removed();
        for (reason, count) in [("bound", for_limit), ("disk", for_full_disk)] {
            self.removed.get_or_create(&ReasonLabel { reason }).inner().store(count, Ordering::Relaxed);
        }
    }
}

/// Evaluations on their way to a task.
pub type Queue = mpsc::Receiver<Arc<Evaluation>>;

/// The engine's recorder: hands evaluations to queues.
#[derive(Debug, Default)]
pub struct QueueRecorder {
    recent: Option<mpsc::Sender<Arc<Evaluation>>>,
    files: Option<(mpsc::Sender<Arc<Evaluation>>, RecordingMetrics)>,
}

impl QueueRecorder {
    /// Adds a queue for [`keep_recent`].
    #[must_use]
    pub fn to_recent(self) -> (Self, Queue) {
        let (sender, queue) = mpsc::channel(QUEUE_LENGTH);
        (Self { recent: Some(sender), ..self }, queue)
    }

    /// Adds a queue for [`write_files`].
    #[must_use]
    pub fn to_files(self, metrics: RecordingMetrics) -> (Self, Queue) {
        let (sender, queue) = mpsc::channel(QUEUE_LENGTH);
        (Self { files: Some((sender, metrics)), ..self }, queue)
    }
}

impl Recorder for QueueRecorder {
    fn record(&self, evaluation: Arc<Evaluation>) {
        if let Some((files, metrics)) = &self.files
            && files.try_send(evaluation.clone()).is_err()
        {
            metrics.count("dropped");
        }
        if let Some(recent) = &self.recent {
            // A missing one shows in the sequence numbers of the others.
            let _ = recent.try_send(evaluation);
        }
    }
}

/// Keeps evaluations in `recent` until `stop`.
pub async fn keep_recent(mut queue: Queue, recent: Arc<Recent>, stop: CancellationToken) {
    while let Some(Some(evaluation)) = stop.run_until_cancelled(queue.recv()).await {
        let recent = recent.clone();
        // On a blocking thread, because it serializes the evaluation to measure its size.
        if let Err(failure) = spawn_blocking(move || recent.keep(evaluation)).await {
            error!(%failure, "keeping an evaluation panicked; this is a bug");
        }
    }
    stop.cancelled().await;
}

/// Writes evaluations to files until `stop`, then those that are still queued.
pub async fn write_files(
    mut queue: Queue,
    recording: Recording,
    metrics: RecordingMetrics,
    stop: CancellationToken,
) {
    let failures = metrics.clone();
    metrics.update(&recording);
    let mut writer = Some(Writer { recording, metrics, logged_failure: None, logged_full_disk: None });
    while let Some(Some(evaluation)) = stop.run_until_cancelled(queue.recv()).await {
        writer = on_blocking_thread(writer, move |writer| writer.write(&evaluation)).await;
        if writer.is_none() {
            failures.count("failed");
        }
    }
    let rest = on_blocking_thread(writer, move |writer| {
        while let Ok(evaluation) = queue.try_recv() {
            writer.write(&evaluation);
        }
        let closed = writer.recording.close();
        writer.log_result(closed);
    });
    rest.await;
    stop.cancelled().await;
}

/// Runs `work` on a blocking thread, because disks may be slow. Returns `None` when the writer has panicked.
async fn on_blocking_thread(
    writer: Option<Writer>,
    work: impl FnOnce(&mut Writer) + Send + 'static,
) -> Option<Writer> {
    let mut writer = writer?;
    let done = spawn_blocking(move || {
        work(&mut writer);
        writer
    });
    done.await.inspect_err(|failure| error!(%failure, "recording panicked; this is a bug")).ok()
}

struct Writer {
    recording: Recording,
    metrics: RecordingMetrics,
    /// The failure that was logged last, and when.
    logged_failure: Option<(String, Instant)>,
    /// When a full disk was logged last.
    logged_full_disk: Option<Instant>,
}

impl Writer {
    fn write(&mut self, evaluation: &Evaluation) {
        let before = self.recording.removed().for_full_disk;
        let written = self.recording.write(evaluation);
        self.metrics.count(if written.is_ok() { "written" } else { "failed" });
        self.metrics.update(&self.recording);
        if self.recording.removed().for_full_disk > before {
            self.log_full_disk();
        }
        self.log_result(written);
    }

    /// Logs that the disk is full, at most once a minute.
    fn log_full_disk(&mut self) {
        if self.logged_full_disk.is_none_or(|at| at.elapsed() >= REMINDER_INTERVAL) {
            let bytes = self.recording.total();
            warn!(
                bytes,
                "the disk of --record-dir is full before --record-max-size is reached: the oldest recordings were removed"
            );
            self.logged_full_disk = Some(Instant::now());
        }
    }

    /// Logs a new failure, a lasting one once a minute, and the recovery.
    fn log_result(&mut self, result: io::Result<()>) {
        match (result, &self.logged_failure) {
            (Ok(()), None) => {}
            (Ok(()), Some(_)) => {
                info!("evaluations are recorded again");
                self.logged_failure = None;
            }
            (Err(error), logged) => {
                let cause = error.to_string();
                if logged
                    .as_ref()
                    .is_none_or(|(before, at)| *before != cause || at.elapsed() >= REMINDER_INTERVAL)
                {
                    warn!(%error, "an evaluation could not be recorded; the next one will be tried");
                    self.logged_failure = Some((cause, Instant::now()));
                }
            }
        }
    }
}
