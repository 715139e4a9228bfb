//! Statuses of variants, and the events about them.

use wva::cluster::{EventRecorder, StatusWriter};

use super::*;

/// A status writer beside the cluster with `llm/chat`.
struct Fixture {
    board: Board,
    leadership: watch::Sender<Leadership>,
    writes: Writes,
}

impl Fixture {
    async fn new(leadership: Leadership) -> Self {
        Self::of(variant(), leadership).await
    }

    async fn of(variant: Value, leadership: Leadership) -> Self {
        let (client, writes, reader) = cluster_of(variant).await;
        let board = Board::new();
        let leadership = watch::Sender::new(leadership);
        let published = board.subscribe();
        let held = leadership.subscribe();
        let writer = StatusWriter::new(client, reader, published, held, "a".into(), |_| Vec::new());
        spawn(writer.run(CancellationToken::new()));
        Self { board, leadership, writes }
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

#[tokio::test]
async fn while_statuses_are_written_their_result_is_not_kept_beside_a_newer_one() {
    let mut fixture = Fixture::new(held()).await;
    let written = Arc::downgrade(&fixture.board.publish(published(1, 3)));
    assert_eq!(next(&mut fixture.writes).await.method, "PATCH");
    // The writer pauses after each write.
    fixture.board.publish(published(2, 4));
    assert!(written.upgrade().is_none());
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

#[tokio::test]
async fn an_object_of_an_earlier_version_gets_an_event_for_what_to_know_once() {
    let mut stored = variant();
    stored["spec"]["maxReplicas"] = json!(2);
    stored["spec"]["modelProfile"] = json!({ "accelerators": [] });
    let mut fixture = Fixture::of(stored, held()).await;
    let reason = |event: ApiRequest| event.body["reason"].as_str().unwrap().to_owned();
    fixture.board.publish(published(1, 1));
    assert_eq!(reason(event(&mut fixture.writes).await), "MaximumMayBeDefault");
    assert_eq!(reason(event(&mut fixture.writes).await), "FieldsWithoutEffect");
    fixture.board.publish(published(2, 2));
    assert_eq!(reason(event(&mut fixture.writes).await), "DesiredReplicasChanged");
    silence(&mut fixture.writes).await;
}

/// The same evaluation, of another revision of `llm/chat`.
fn decided_about(revision: Revision, published: Published) -> Published {
    let revisions = Arc::new(BTreeMap::from([(VariantId::new("llm", "chat"), revision)]));
    Published { revisions, ..published }
}

#[tokio::test]
async fn a_status_named_a_generation_that_was_not_decided_about() {
    let mut fixture = Fixture::new(held()).await;
    // The object has been changed to generation 3 since it was decided about.
    fixture.board.publish(decided_about(revision(2), published(1, 3)));
    let status = &next(&mut fixture.writes).await.body["status"];
    assert_eq!(status["conditions"][0]["observedGeneration"], 2);
    fixture.board.publish(published(2, 3));
    let status = &next(&mut fixture.writes).await.body["status"];
    assert_eq!(status["conditions"][0]["observedGeneration"], 3);
}

#[tokio::test]
async fn a_number_of_a_deleted_variant_was_written_to_the_one_created_after_it() {
    let mut fixture = Fixture::new(held()).await;
    let deleted = Revision { uid: "u-0".into(), ..revision(3) };
    fixture.board.publish(decided_about(deleted, published(1, 3)));
    silence(&mut fixture.writes).await;
    fixture.board.publish(published(2, 4));
    let status = &next(&mut fixture.writes).await.body["status"];
    assert_eq!(status["desiredOptimizedAlloc"]["numReplicas"], 4);
}

#[tokio::test]
async fn last_run_time_stood_still_while_nothing_changed() {
    let mut fixture = Fixture::new(held()).await;
    fixture.board.publish(published(1, 3));
    let first =
        next(&mut fixture.writes).await.body["status"]["desiredOptimizedAlloc"]["lastRunTime"].clone();
    fixture.board.publish(published(60, 3));
    silence(&mut fixture.writes).await;
    fixture.board.publish(published(61, 3));
    let applied = next(&mut fixture.writes).await;
    let second = &applied.body["status"]["desiredOptimizedAlloc"]["lastRunTime"];
    assert_eq!((first, second), (json!("2023-11-14T22:13:21Z"), &json!("2023-11-14T22:14:21Z")));
    silence(&mut fixture.writes).await;
    // Without a number there is nothing that was decided later.
    fixture.board.publish(unknown(70));
    let kept = &next(&mut fixture.writes).await.body["status"]["desiredOptimizedAlloc"]["lastRunTime"];
    assert_eq!(kept, &json!("2023-11-14T22:14:21Z"));
}

#[tokio::test]
async fn a_number_that_went_to_and_fro_made_an_event_for_each_change() {
    let mut fixture = Fixture::new(held()).await;
    fixture.board.publish(published(1, 1));
    assert_eq!(next(&mut fixture.writes).await.method, "PATCH", "the first number is no change");
    let mut written = Vec::new();
    for (sequence, desired) in [(2, 2), (3, 1), (4, 2)] {
        fixture.board.publish(published(sequence, desired));
        let event = event(&mut fixture.writes).await;
        let count = event.body["series"]["count"].as_u64();
        written.push((event.method, event.body["note"].as_str().unwrap().to_owned(), count));
    }
    let expected = [
        ("POST", "desired replicas 1 → 2: busy", None),
        ("POST", "desired replicas 2 → 1: busy", None),
        ("PATCH", "desired replicas 1 → 2: busy", Some(2)),
    ];
    assert_eq!(written, expected.map(|(method, note, count)| (method.to_owned(), note.to_owned(), count)));
}

/// A status writer whose writes get this answer, the first one read, and what follows it.
async fn refused(answer: (u16, Value)) -> (Board, Writes, watch::Sender<Leadership>) {
    let (client, mut writes, reader) = cluster_that_answers(variant(), answer).await;
    let (events, recording) =
        EventRecorder::new(client.clone(), reader.clone(), "a".into(), &mut Registry::default());
    spawn(recording.run(CancellationToken::new()));
    let (board, leadership) = (Board::new(), watch::Sender::new(held()));
    let (results, lease) = (board.subscribe(), leadership.subscribe());
    let writer = StatusWriter::new(client, reader, results, lease, "a".into(), |_| Vec::new());
    spawn(writer.with_failures(events).run(CancellationToken::new()));
    board.publish(published(1, 3));
    assert!(next(&mut writes).await.path.ends_with("/chat/status"));
    (board, writes, leadership)
}

#[tokio::test]
async fn a_refused_status_was_only_in_the_log() {
    let (board, mut writes, _leadership) = refused(status(403, "Forbidden")).await;
    let event = event(&mut writes).await;
    assert_eq!(
        (&event.body["reason"], &event.body["regarding"]["uid"]),
        (&json!("StatusUpdateFailed"), &json!("u-1"))
    );
    let note = event.body["note"].as_str().unwrap();
    assert!(note.contains("(403); check the definition of VariantAutoscalings"), "{note}");
    board.publish(published(2, 4));
    silence(&mut writes).await;
}

#[tokio::test]
async fn an_overloaded_api_server_was_sent_an_event_for_each_status_that_it_refused() {
    let (_board, mut writes, _leadership) = refused(status(429, "TooManyRequests")).await;
    silence(&mut writes).await;
}

#[tokio::test]
async fn a_status_that_an_old_object_does_not_allow_is_one_event_and_no_loop() {
    let (code, mut answer) = status(422, "Invalid");
    answer["message"] = json!("spec.variantCost: Invalid value: \"cheap\"\nFORGED");
    let (board, mut writes, _leadership) = refused((code, answer)).await;
    let event = event(&mut writes).await;
    assert_eq!(event.body["reason"], "StatusUpdateFailed");
    let note = event.body["note"].as_str().unwrap();
    assert!(note.contains("spec.variantCost: Invalid value") && note.contains("correct the field"), "{note}");
    assert!(!note.contains('\n'), "{note}");
    for sequence in 2..5 {
        board.publish(published(sequence, 4));
        silence(&mut writes).await;
    }
}
