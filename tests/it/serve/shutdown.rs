//! Shutdown of a server, step by step, and of connections that should go to another instance, as the peers see it.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::raw_http2::{DATA, GOAWAY, Raw, get, read};
use super::test_server::TestServer;

async fn ready(server: &TestServer) -> u16 {
    server.get("/readyz").await.status
}

#[tokio::test]
async fn shutdown_ends_readiness_then_sends_goaway_and_answers_requests_in_flight() {
    let mut server = TestServer::with(|options| options.drain = Duration::from_secs(30)).await;
    let mut raw = Raw::connect(&server, Some(&server.proxy)).await;
    assert_eq!(ready(&server).await, 200);

    server.stopping.cancel();
    assert_eq!(ready(&server).await, 500);
    let shutdown = server.get("/readyz/shutdown").await;
    assert_eq!(
        (shutdown.status, shutdown.body.as_str()),
        (500, "internal server error: this process is stopping\n")
    );
    for path in ["/livez", "/healthz", "/apis"] {
        assert_eq!(server.get_as_proxy(path).await.status, 200, "{path}");
    }
    raw.send(&read(1)).await;
    let frames = raw.until(|frame| frame.ends(1)).await;
    assert!(!frames.iter().any(|frame| frame.kind == GOAWAY), "requests go on, on the same connection");

    *server.reads.hangs.lock() = true;
    raw.send(&read(3)).await;
    sleep(Duration::from_millis(50)).await;
    server.shutdown.cancel();
    let frames = raw.until(|frame| frame.kind == GOAWAY).await;
    let first = frames.last().expect("the first GOAWAY");
    assert_eq!((first.last_stream(), first.code()), (u32::MAX >> 1, 0), "what is on its way still counts");
    let frames = raw.until(|frame| frame.kind == GOAWAY).await;
    assert_eq!(frames.last().expect("the second").last_stream(), 3);
    assert!(TcpStream::connect(server.address).await.is_err(), "it no longer listens");
    server.reads.release.notify_waiters();
    let frames = raw.until(|_| false).await;
    assert!(frames.iter().any(|frame| frame.kind == DATA && frame.stream == 3), "it is answered");
    server.wait_for_end().await;
}

#[tokio::test]
async fn a_peer_that_ignores_goaway_is_cut_at_the_deadline() {
    let drain = Duration::from_millis(700);
    let mut server = TestServer::with(|options| options.drain = drain).await;
    *server.reads.hangs.lock() = true;
    let mut raw = Raw::connect(&server, Some(&server.proxy)).await;
    raw.send(&read(1)).await;
    sleep(Duration::from_millis(50)).await;
    let began = Instant::now();
    server.shutdown.cancel();
    raw.until(|frame| frame.kind == GOAWAY).await;
    // It keeps sending requests.
    for stream in [3, 5, 7] {
        raw.send(&read(stream)).await;
        sleep(Duration::from_millis(50)).await;
    }
    server.wait_for_end().await;
    let took = began.elapsed();
    assert!((drain..drain * 2).contains(&took), "{took:?}");
    assert!(raw.is_closed().await);
}

/// The HTTP/1.1 answer until the server closes, at most 2 s.
async fn until_closed(server: &TestServer, path: &str) -> String {
    let mut stream = server.h1(Some(&server.proxy)).await;
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nX-Remote-User: hpa\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = timeout(Duration::from_secs(2), stream.read_to_end(&mut answer)).await;
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn an_http1_peer_is_told_to_close_before_the_listener_closes() {
    let server = TestServer::new().await;
    server.stopping.cancel();
    let began = Instant::now();
    let answer = until_closed(&server, "/livez").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close"), "{answer}");
    assert!(began.elapsed() < Duration::from_secs(2), "closed after its answer");
}

#[tokio::test]
async fn an_isolated_instance_closes_the_connection_of_an_api_server() {
    let server = TestServer::new().await;
    let mut raw = Raw::connect(&server, Some(&server.proxy)).await;
    *server.reads.has_expired.lock() = true;
    raw.send(&read(1)).await;
    let frames = raw.until(|frame| frame.ends(1)).await;
    assert!(!frames.iter().any(|frame| frame.kind == GOAWAY), "the lease is its own: it answers in a moment");

    server.leadership.send_replace(wva::engine::Leadership::default());
    raw.send(&get("/apis", "x-remote-user", "hpa", 3)).await;
    let frames = raw.until(|frame| frame.ends(3)).await;
    assert!(!frames.iter().any(|frame| frame.kind == GOAWAY), "discovery is the same everywhere");
    raw.send(&read(5)).await;
    let frames = raw.until(|_| false).await;
    assert!(frames.iter().any(|frame| frame.kind == DATA && frame.stream == 5), "the error arrives");
    let goaway = frames.iter().rfind(|frame| frame.kind == GOAWAY).expect("the connection ends");
    assert_eq!((goaway.last_stream(), goaway.code()), (5, 0));

    let rejected = until_closed(&server, super::READ).await;
    assert!(rejected.starts_with("HTTP/1.1 503") && rejected.contains("connection: close"), "{rejected}");
    let discovery = until_closed(&server, "/apis").await;
    assert!(discovery.starts_with("HTTP/1.1 200") && !discovery.contains("connection: close"), "{discovery}");
}
