//! Takes evaluations from the engine without keeping it waiting, and hands them to whoever keeps them. Each has a queue of
//! two; who is behind misses some, and those are counted.

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
use super::shelf::Removed;
use crate::engine::{Evaluation, Recorder};

/// Evaluations that wait to be kept: one is being written, the next may come.
const QUEUE: usize = 2;

/// A failure that goes on is told again after this long.
const REMIND: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// What became of evaluations that were to be recorded to files.
#[derive(Debug, Clone, Default)]
pub struct KeeperMetrics {
    evaluations: Family<ResultLabel, Counter>,
    removed: Family<ReasonLabel, Counter>,
    size: Gauge,
}

impl KeeperMetrics {
    /// Fresh families, registered in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Evaluations by what became of their recording to a file: written, dropped because the disk was slow, failed";
        registry.register("wva_recorded_evaluations", help, metrics.evaluations.clone());
        let help = "Recorded files that went to make room, by why: bound (--record-max-size), disk (full before that)";
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

    fn look(&self, recording: &Recording) {
        self.size.set(recording.total().try_into().unwrap_or(i64::MAX));
        let Removed { for_the_bound, for_the_disk } = recording.removed();
        for (reason, count) in [("bound", for_the_bound), ("disk", for_the_disk)] {
            self.removed.get_or_create(&ReasonLabel { reason }).inner().store(count, Ordering::Relaxed);
        }
    }
}

/// Evaluations on their way to who keeps them.
pub type Queue = mpsc::Receiver<Arc<Evaluation>>;

/// The engine's recorder.
#[derive(Debug, Default)]
pub struct Keeper {
    recent: Option<mpsc::Sender<Arc<Evaluation>>>,
    files: Option<(mpsc::Sender<Arc<Evaluation>>, KeeperMetrics)>,
}

impl Keeper {
    /// Hands them to [`keep_recent`] too.
    #[must_use]
    pub fn to_recent(self) -> (Self, Queue) {
        let (sender, queue) = mpsc::channel(QUEUE);
        (Self { recent: Some(sender), ..self }, queue)
    }

    /// Hands them to [`keep_files`] too.
    #[must_use]
    pub fn to_files(self, metrics: KeeperMetrics) -> (Self, Queue) {
        let (sender, queue) = mpsc::channel(QUEUE);
        (Self { files: Some((sender, metrics)), ..self }, queue)
    }
}

impl Recorder for Keeper {
    fn record(&self, evaluation: Arc<Evaluation>) {
        if let Some((files, metrics)) = &self.files
            && files.try_send(evaluation.clone()).is_err()
        {
            metrics.count("dropped");
        }
        if let Some(recent) = &self.recent {
            // Who looks at the last few sees by their numbers that one is missing.
            let _ = recent.try_send(evaluation);
        }
    }
}

/// Keeps the last few in `recent`, until `stop`.
pub async fn keep_recent(mut queue: Queue, recent: Arc<Recent>, stop: CancellationToken) {
    while let Some(Some(evaluation)) = stop.run_until_cancelled(queue.recv()).await {
        let recent = recent.clone();
        // Away from the threads that answer reads: it is measured by being written down.
        if let Err(failure) = spawn_blocking(move || recent.keep(evaluation)).await {
            error!(%failure, "keeping an evaluation died; this is a bug");
        }
    }
    stop.cancelled().await;
}

/// Writes all of them to files, until `stop`; then what is still waiting.
pub async fn keep_files(
    mut queue: Queue,
    recording: Recording,
    metrics: KeeperMetrics,
    stop: CancellationToken,
) {
    let lost = metrics.clone();
    metrics.look(&recording);
    let mut writer = Some(Writer { recording, metrics, told: None, told_of_disk: None });
    while let Some(Some(evaluation)) = stop.run_until_cancelled(queue.recv()).await {
        writer = on_its_thread(writer, move |writer| writer.write(&evaluation)).await;
        if writer.is_none() {
            lost.count("failed");
        }
    }
    let rest = on_its_thread(writer, move |writer| {
        while let Ok(evaluation) = queue.try_recv() {
            writer.write(&evaluation);
        }
        let closed = writer.recording.close();
        writer.tell(closed);
    });
    rest.await;
    stop.cancelled().await;
}

/// Disks may take their time: not on the threads that answer reads. A writer that dies of a bug takes nothing with it.
async fn on_its_thread(
    writer: Option<Writer>,
    work: impl FnOnce(&mut Writer) + Send + 'static,
) -> Option<Writer> {
    let mut writer = writer?;
    let done = spawn_blocking(move || {
        work(&mut writer);
        writer
    });
    done.await.inspect_err(|failure| error!(%failure, "recording died; this is a bug")).ok()
}

struct Writer {
    recording: Recording,
    metrics: KeeperMetrics,
    /// The failure as last logged, and when.
    told: Option<(String, Instant)>,
    /// When it was last logged that the disk is full.
    told_of_disk: Option<Instant>,
}

impl Writer {
    fn write(&mut self, evaluation: &Evaluation) {
        let before = self.recording.removed().for_the_disk;
        let written = self.recording.write(evaluation);
        self.metrics.count(if written.is_ok() { "written" } else { "failed" });
        self.metrics.look(&self.recording);
        if self.recording.removed().for_the_disk > before {
            self.tell_of_disk();
        }
        self.tell(written);
    }

    /// Once a minute while it is so.
    fn tell_of_disk(&mut self) {
        if self.told_of_disk.is_none_or(|at| at.elapsed() >= REMIND) {
            let bytes = self.recording.total();
            warn!(
                bytes,
                "the disk of --record-dir is full before --record-max-size: the oldest recordings went"
            );
            self.told_of_disk = Some(Instant::now());
        }
    }

    /// One line when it begins to fail or fails otherwise, one a minute while it does, one when it works again.
    fn tell(&mut self, result: io::Result<()>) {
        match (result, &self.told) {
            (Ok(()), None) => {}
            (Ok(()), Some(_)) => {
                info!("evaluations are recorded again");
                self.told = None;
            }
            (Err(error), told) => {
                let cause = error.to_string();
                if told.as_ref().is_none_or(|(before, at)| *before != cause || at.elapsed() >= REMIND) {
                    warn!(%error, "an evaluation cannot be recorded; the next one is tried");
                    self.told = Some((cause, Instant::now()));
                }
            }
        }
    }
}
