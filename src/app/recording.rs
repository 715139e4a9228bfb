//! Constructs the recorder of evaluations.

use std::sync::Arc;

use anyhow::Context;
use prometheus_client::registry::Registry;
use tracing::info;

use super::tasks::Phase;
use crate::config::RecordSettings;
use crate::record::{
    FileSettings, QueueRecorder, Recent, Recording, RecordingMetrics, keep_recent, write_files,
};

/// The engine's recorder, whose tasks run in `phase`, and the evaluations in memory.
pub(super) fn recorder(
    settings: &RecordSettings,
    instance: &str,
    registry: &mut Registry,
    phase: &mut Phase,
) -> anyhow::Result<(QueueRecorder, Arc<Recent>)> {
    let recent = Arc::new(Recent::new(settings.snapshots, settings.snapshots_size));
    let mut recorder = QueueRecorder::default();
    if settings.snapshots > 0 {
        let (more, queue) = recorder.to_recent();
        let recent = recent.clone();
        phase.start("recent snapshots", |stop| keep_recent(queue, recent, stop));
        recorder = more;
    }
    if let Some(files) = settings.files.clone() {
        let folder = files.folder.display().to_string();
        let settings = FileSettings {
            folder: files.folder,
            total: files.total,
            file: files.file,
            instance: instance.into(),
        };
        let recording = Recording::open(settings)
            .with_context(|| format!("--record-dir {folder}: give a directory that may be written to"))?;
        info!(folder, "evaluations are recorded");
        let metrics = RecordingMetrics::register(registry);
        let (more, queue) = recorder.to_files(metrics.clone());
        phase.start("recording", |stop| write_files(queue, recording, metrics, stop));
        recorder = more;
    }
    Ok((recorder, recent))
}
