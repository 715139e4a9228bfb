//! What people see with `kubectl describe` of a variant whose number changes.

use tokio::sync::watch;
use wva::cluster::StatusWriter;
use wva::engine::Board;

use crate::cluster::{Asked, cluster, held, next, published};

/// The next event; what is written of the status before it is passed over.
async fn event(writes: &mut tokio::sync::mpsc::Receiver<Asked>) -> Asked {
    loop {
        let write = next(writes).await;
        if write.path == "/apis/events.k8s.io/v1/namespaces/llm/events" || write.path.contains("/events/") {
            return write;
        }
    }
}

#[tokio::test]
async fn a_second_change_within_minutes_is_not_counted_under_the_text_of_the_first() {
    let (client, mut writes, reader, stop) = cluster().await;
    let (board, leadership) = (Board::new(), watch::Sender::new(held()));
    let writer = StatusWriter::new(client, reader, board.subscribe(), leadership.subscribe(), "a".into());
    #[expect(clippy::disallowed_methods, reason = "app spawns it; here the test is the app")]
    tokio::spawn(writer.run(stop.clone()));
    board.publish(published(1, 1));
    assert_eq!(next(&mut writes).await.method, "PATCH", "the first number is no change");
    let mut told = Vec::new();
    for (sequence, desired) in [(2, 2), (3, 5)] {
        board.publish(published(sequence, desired));
        let event = event(&mut writes).await;
        assert_eq!(
            (event.method.as_str(), event.body["reason"].as_str()),
            ("POST", Some("DesiredReplicasChanged"))
        );
        assert!(event.body["series"].is_null(), "{}", event.body);
        assert_eq!(event.body["regarding"]["uid"], "u-1");
        told.push((event.body["metadata"]["name"].clone(), event.body["note"].as_str().unwrap().to_owned()));
    }
    assert!(told[0].1.starts_with("desired replicas 1 → 2: busy"), "{told:?}");
    assert!(told[1].1.starts_with("desired replicas 2 → 5: busy"), "{told:?}");
    assert_ne!(told[0].0, told[1].0, "two events");
}
