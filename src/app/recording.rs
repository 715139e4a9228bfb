//! From configured to constructed: who keeps evaluations.

use std::sync::Arc;

use anyhow::Context;
use prometheus_client::registry::Registry;
use tracing::info;

use super::tasks::Phase;
use crate::config::RecordSettings;
use crate::record::{
    FileSettings, QueueRecorder, Recent, Recording, RecordingMetrics, keep_recent, write_files,
};

/// The engine's recorder, with its tasks started in `phase`, and what is in memory.
pub(super) fn recorder(
    settings: &RecordSettings,
    instance: &str,
    registry: &mut Registry,
    phase: &mut Phase,
) -> anyhow::Result<(QueueRecorder, Arc<Recent>)> {
    let recent = Arc::new(Recent::new(settings.snapshots, settings.snapshots_size));
    let mut keeper = QueueRecorder::default();
    if settings.snapshots > 0 {
        let (more, queue) = keeper.to_recent();
        let recent = recent.clone();
        phase.start("recent snapshots", |stop| keep_recent(queue, recent, stop));
        keeper = more;
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
        let (more, queue) = keeper.to_files(metrics.clone());
        phase.start("recording", |stop| write_files(queue, recording, metrics, stop));
        keeper = more;
    }
    Ok((keeper, recent))
}
