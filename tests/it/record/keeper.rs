//! Between the engine and who keeps: nobody waits, and what is left out is counted.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use wva::engine::Recorder as _;
use wva::record::{FileSettings, QueueRecorder, Recent, Recording, RecordingMetrics, write_files};

use super::material::{Folder, lines, stream};
use crate::serve::identity::eventually;

const SCENARIO: &str = "fresh-busy-goes-up";

fn shown(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    text
}

fn counted(registry: &Registry, result: &str) -> u64 {
    let name = format!("wva_recorded_evaluations_total{{result=\"{result}\"}} ");
    let found = shown(registry).lines().find_map(|line| line.strip_prefix(&name).map(str::to_owned));
    found.map_or(0, |count| count.parse().unwrap())
}

#[tokio::test]
async fn a_disk_that_hangs_delays_no_evaluation_and_what_it_misses_is_counted() {
    let mut registry = Registry::default();
    let (keeper, queue) = QueueRecorder::default().to_files(RecordingMetrics::register(&mut registry));
    for evaluation in stream(SCENARIO, 5) {
        keeper.record(evaluation);
    }
    assert_eq!(counted(&registry, "dropped"), 3);
    drop(queue);
}

#[tokio::test]
async fn what_waits_at_the_end_is_written_before_the_process_goes() {
    let (folder, mut registry) = (Folder::new(), Registry::default());
    let metrics = RecordingMetrics::register(&mut registry);
    let (keeper, queue) = QueueRecorder::default().to_files(metrics.clone());
    let settings =
        FileSettings { folder: folder.path().into(), total: 1 << 20, file: 1 << 18, instance: "a/b".into() };
    stream(SCENARIO, 2).into_iter().for_each(|evaluation| keeper.record(evaluation));
    let stop = CancellationToken::new();
    stop.cancel();
    write_files(queue, Recording::open(settings).unwrap(), metrics, stop).await;
    assert_eq!(counted(&registry, "written"), 2);
    let files = folder.recordings();
    assert_eq!(std::fs::read(&files[0]).unwrap(), lines(&stream(SCENARIO, 2)));
    assert!(shown(&registry).contains("wva_recorded_files_removed_total{reason=\"disk\"} 0"));
    let bytes = format!("wva_recording_bytes {}", files[0].metadata().unwrap().len());
    assert!(shown(&registry).contains(&bytes), "{}", shown(&registry));
}

#[tokio::test]
async fn a_failure_is_counted_each_time_and_recording_goes_on() {
    let (folder, mut registry) = (Folder::new(), Registry::default());
    let metrics = RecordingMetrics::register(&mut registry);
    let (keeper, queue) = QueueRecorder::default().to_files(metrics.clone());
    let inside = folder.path().join("r");
    let settings = FileSettings { folder: inside.clone(), total: 1 << 20, file: 1, instance: "a".into() };
    let recording = Recording::open(settings).unwrap();
    std::fs::remove_dir(&inside).unwrap();
    let stop = CancellationToken::new();
    let ending = stop.clone();
    let keeping = write_files(queue, recording, metrics, stop);
    let feeding = async {
        let evaluations = stream(SCENARIO, 2);
        keeper.record(evaluations[0].clone());
        eventually(|| async { counted(&registry, "failed") == 1 }).await;
        std::fs::create_dir(&inside).unwrap();
        keeper.record(evaluations[1].clone());
        eventually(|| async { counted(&registry, "written") == 1 }).await;
        ending.cancel();
    };
    tokio::join!(keeping, feeding);
}

#[test]
fn the_last_few_are_bounded_by_count_and_by_bytes() {
    let evaluations = stream(SCENARIO, 6);
    let line = lines(&evaluations[..1]).len() as u64;
    let kept =
        |recent: &Recent| recent.list().iter().map(|evaluation| evaluation.sequence).collect::<Vec<_>>();
    let recent = Recent::new(4, line * 100);
    evaluations.iter().for_each(|evaluation| recent.keep(evaluation.clone()));
    assert_eq!(kept(&recent), [3, 4, 5, 6]);
    assert_eq!(recent.latest().unwrap().published.sequence, 6);
    assert_eq!(recent.at(evaluations[3].published.at).unwrap().published.sequence, 4);
    let recent = Recent::new(100, line * 5 / 2);
    evaluations.iter().for_each(|evaluation| recent.keep(evaluation.clone()));
    assert_eq!(kept(&recent), [5, 6]);
}

#[test]
fn a_fleet_that_is_too_large_is_not_kept_and_is_measured_again_after_ten_minutes() {
    let evaluations = stream(SCENARIO, 16);
    let small = stream("an-invalid-object-is-an-error", 1);
    let recent = Recent::new(8, lines(&small).len() as u64);
    recent.keep(small[0].clone());
    assert!(recent.latest().is_some() && recent.reason_for_none().is_none());
    recent.keep(evaluations[0].clone());
    assert!(recent.latest().is_none());
    assert!(
        recent.reason_for_none().unwrap().contains("--record-snapshots-size"),
        "{:?}",
        recent.reason_for_none()
    );
    let mut later = small[0].as_ref().clone();
    let mut published = later.published.as_ref().clone();
    published.at = evaluations[0].published.at + Duration::from_secs(599);
    later.published = Arc::new(published.clone());
    recent.keep(Arc::new(later.clone()));
    assert!(recent.latest().is_none());
    published.at += Duration::from_secs(1);
    later.published = Arc::new(published);
    recent.keep(Arc::new(later));
    assert!(recent.latest().is_some());
}
