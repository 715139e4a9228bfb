//! Statuses of variants, and the events about them.

use wva::cluster::StatusWriter;

use super::*;

/// A status writer beside the cluster with `llm/chat`.
struct Fixture {
    board: Board,
    leadership: watch::Sender<Leadership>,
    writes: Writes,
    stop: CancellationToken,
}

impl Fixture {
    async fn new(leadership: Leadership) -> Self {
        let (client, writes, reader, stop) = cluster().await;
        let board = Board::new();
        let leadership = watch::Sender::new(leadership);
        let published = board.subscribe();
        let held = leadership.subscribe();
        let writer = StatusWriter::new(client, reader, published, held, "a".into(), |_| Vec::new());
        spawn(writer.run(stop.clone()));
        Self { board, leadership, writes, stop }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[tokio::test]
async fn a_status_is_applied_once_and_only_by_the_leader() {
    let mut fixture = Fixture::new(Leadership::default()).await;
    fixture.board.publish(published(1, 3));
    silence(&mut fixture.writes).await;

    fixture.leadership.send_replace(held());
    fixture.board.publish(published(2, 3));
    let applied = next(&mut fixture.writes).await;
    assert_eq!(applied.method, "PATCH");
    assert_eq!(applied.path, "/apis/llmd.ai/v1alpha1/namespaces/llm/variantautoscalings/chat/status");
    assert_eq!(applied.content_type, "application/apply-patch+yaml");
    assert!(
        applied.query.contains("fieldManager=wva") && applied.query.contains("force=true"),
        "{}",
        applied.query
    );
    assert_eq!(applied.body["metadata"]["uid"], "u-1", "never a later object of the same name");
    let status = &applied.body["status"];
    assert_eq!(status["desiredOptimizedAlloc"]["numReplicas"], 3);
    assert_eq!(status["desiredOptimizedAlloc"]["accelerator"], "unresolved");
    assert_eq!(status["actuation"]["applied"], false);
    assert_eq!(status["conditions"][0]["observedGeneration"], 3);

    while let Ok(Some(event)) = timeout(QUIET_WINDOW, fixture.writes.recv()).await {
        assert_eq!(
            event.path, "/apis/events.k8s.io/v1/namespaces/llm/events",
            "events may follow, no second status"
        );
    }
    fixture.board.publish(published(3, 3));
    silence(&mut fixture.writes).await;
    fixture.board.publish(published(4, 4));
    let applied = next(&mut fixture.writes).await;
    assert_eq!(applied.body["status"]["desiredOptimizedAlloc"]["numReplicas"], 4);
}

/// The next event, after whatever is written of statuses.
async fn event(writes: &mut Writes) -> ApiRequest {
    loop {
        let write = next(writes).await;
        if write.path == "/apis/events.k8s.io/v1/namespaces/llm/events" || write.path.contains("/events/") {
            return write;
        }
    }
}

#[tokio::test]
async fn a_second_change_within_minutes_is_an_event_of_its_own() {
    let mut fixture = Fixture::new(held()).await;
    fixture.board.publish(published(1, 1));
    assert_eq!(next(&mut fixture.writes).await.method, "PATCH", "the first number is no change");
    let mut names = Vec::new();
    for (sequence, desired, note) in
        [(2, 2, "desired replicas 1 → 2: busy"), (3, 5, "desired replicas 2 → 5: busy")]
    {
        fixture.board.publish(published(sequence, desired));
        let event = event(&mut fixture.writes).await;
        assert_eq!(
            (event.method.as_str(), event.body["reason"].as_str()),
            ("POST", Some("DesiredReplicasChanged"))
        );
        assert!(event.body["series"].is_null(), "not counted under the first note: {}", event.body);
        assert_eq!(event.body["regarding"]["uid"], "u-1");
        assert!(event.body["note"].as_str().unwrap().starts_with(note), "{}", event.body);
        names.push(event.body["metadata"]["name"].clone());
    }
    assert_ne!(names[0], names[1], "two events");
}
