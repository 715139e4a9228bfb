//! Unusual requests on connections of API servers: floods, bodies, old connections. They do not affect others, and no
//! well-behaved request is lost.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::client::TlsStream;
use wva_core::VariantId;

use super::READ;
use super::client::{H2, config, is_closed, tcp_with_small_buffers, tls, tls_over};
use super::identity::eventually;
use super::pki::SERVICE;
use super::raw_http2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, PING, RST_STREAM, Raw, SETTINGS,
    frame, get, initial_window, more, read, read_headers,
};
use super::test_server::{NOW, TestServer, advance_clock, sample, target};

const ENHANCE_YOUR_CALM: u32 = 11;
const CANCEL: [u8; 4] = [0, 0, 0, 8];

#[tokio::test]
async fn a_rapid_reset_flood_ends_its_connection() {
    let server = TestServer::new().await;
    let mut raw = Raw::connect(&server, Some(&server.proxy)).await;
    let flood: Vec<u8> = (0..1000)
        .flat_map(|n| [read(2 * n + 1), frame(RST_STREAM, 0, 2 * n + 1, &CANCEL)].concat())
        .collect();
    raw.send(&flood).await;
    let frames = raw.until(|frame| frame.kind == GOAWAY).await;
    assert_eq!(frames.last().expect("GOAWAY").code(), ENHANCE_YOUR_CALM);
    assert!(raw.is_closed().await);
    let answered = server.reads.count.load(Ordering::SeqCst);
    assert!(answered < 300, "{answered} of 1000 were read");
    assert_eq!(server.proxied("hpa", READ).await.value(), "5");
}

#[tokio::test]
async fn streams_above_the_limit_are_refused_one_by_one() {
    let server = TestServer::new().await;
    *server.reads.hangs.lock() = true;
    let mut raw = Raw::connect(&server, Some(&server.proxy)).await;
    let requests: Vec<u8> = (0..260).flat_map(|n| read(2 * n + 1)).collect();
    raw.send(&requests).await;
    let last = 2 * 259 + 1;
    let frames = raw.until(|frame| frame.kind == RST_STREAM && frame.stream == last).await;
    let refused: Vec<_> = frames.iter().filter(|frame| frame.kind == RST_STREAM).collect();
    assert_eq!(refused.len(), 10);
    assert!(refused.iter().all(|frame| frame.code() == 7), "REFUSED_STREAM: clients send it again");
    assert!(!frames.iter().any(|frame| frame.kind == GOAWAY));
}

#[tokio::test]
async fn a_header_block_that_never_ends_is_cut() {
    let server = TestServer::new().await;
    let mut raw = Raw::connect(&server, Some(&server.proxy)).await;
    raw.send(&read(1)).await;
    raw.until(|frame| frame.ends(1)).await;
    // The proxy's connection may be idle, but this one keeps a header block open.
    raw.send(&frame(HEADERS, END_STREAM, 3, &read_headers())).await;
    sleep(Duration::from_millis(50)).await;
    advance_clock(Duration::from_secs(20)).await;
    raw.send(&frame(CONTINUATION, 0, 3, &[])).await;
    sleep(Duration::from_millis(50)).await;
    advance_clock(Duration::from_secs(11)).await;
    assert!(is_closed(&mut raw.0).await, "it has begun 31 s ago");
}

#[tokio::test]
async fn a_pipelined_head_is_cut_30_s_after_the_answer_before_it() {
    let server = TestServer::new().await;
    let mut open = server.h1(Some(&server.proxy)).await;
    let pipelined = "GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET /livez HTTP/1.1\r\nHost:";
    open.write_all(pipelined.as_bytes()).await.unwrap();
    let mut answer = [0; 64];
    let read = timeout(Duration::from_secs(2), open.read(&mut answer)).await.unwrap().unwrap();
    assert!(answer[..read].starts_with(b"HTTP/1.1 200"));
    sleep(Duration::from_millis(50)).await;
    advance_clock(Duration::from_secs(31)).await;
    assert!(is_closed(&mut open).await, "an idle connection may be quiet for 90 s, and this one is not idle");
}

#[tokio::test]
async fn a_flood_of_continuations_ends_its_connection() {
    let server = TestServer::new().await;
    let mut raw = Raw::connect(&server, Some(&server.proxy)).await;
    let mut flood = frame(HEADERS, END_STREAM, 1, &read_headers());
    for _ in 0..2000 {
        flood.extend(frame(CONTINUATION, 0, 1, &[]));
    }
    let _ = raw.0.write_all(&flood).await;
    assert!(raw.is_closed().await);
    assert_eq!(server.reads.count.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_peer_that_floods_and_never_reads_is_cut_and_the_others_are_answered() {
    for flood in [frame(PING, 0, 0, &[0; 8]), frame(SETTINGS, 0, 0, &[])] {
        let server = TestServer::new().await;
        let config = config(&server.shared_ca.pem(), Some(&server.proxy), &["h2"], rustls::DEFAULT_VERSIONS);
        let mut raw = Raw::begin(
            tls_over(tcp_with_small_buffers(server.address).await, SERVICE, config).await.unwrap(),
        )
        .await;
        raw.send(&read(1)).await;
        let flood = flood.repeat(1000);
        // Until neither side takes any more.
        let mut sent = 0;
        while sent < 10_000
            && timeout(Duration::from_millis(300), raw.0.write_all(&flood))
                .await
                .is_ok_and(|sent| sent.is_ok())
        {
            sent += 1;
        }
        assert!(sent < 10_000, "it is not read for ever");
        assert_eq!(server.proxied("hpa", READ).await.value(), "5");
        assert!(is_cut(&mut raw.0, &flood).await);
    }
}

#[tokio::test]
async fn a_body_is_not_read_and_holds_nothing_up() {
    let mut server = TestServer::with(|options| options.drain = Duration::from_secs(30)).await;
    let mut raw = Raw::connect(&server, Some(&server.proxy)).await;
    for stream in [1, 3] {
        raw.send(&frame(HEADERS, END_HEADERS, stream, &read_headers())).await;
        raw.send(&frame(DATA, 0, stream, &[0; 16_384])).await;
        let frames = raw.until(|frame| frame.ends(stream)).await;
        assert!(frames.iter().any(|frame| frame.kind == DATA && !frame.payload.is_empty()), "it is answered");
        // More than the connection's window, unless the server restores it.
        for _ in 0..2 {
            let _ = raw.0.write_all(&frame(DATA, 0, stream, &[0; 16_384])).await;
        }
    }
    raw.send(&read(5)).await;
    raw.until(|frame| frame.ends(5)).await;
    server.shutdown.cancel();
    raw.until(|frame| frame.kind == GOAWAY && frame.last_stream() == 5).await;
    server.wait_for_end().await;
}

#[tokio::test]
async fn an_http1_body_is_not_read_either() {
    let server = TestServer::new().await;
    for (request, status) in [
        (format!("GET {READ} HTTP/1.1\r\nX-Remote-User: hpa\r\nContent-Length: 1000000000"), "200"),
        (format!("GET {READ} HTTP/1.1\r\nX-Remote-User: hpa\r\nTransfer-Encoding: chunked"), "200"),
        ("POST /apis HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1000000000".into(), "405"),
    ] {
        let mut stream = server.h1(Some(&server.proxy)).await;
        stream.write_all(format!("{request}\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
        let _ = stream.write_all(&[b'7'; 10_000]).await;
        let mut answer = [0; 12];
        timeout(Duration::from_secs(2), stream.read_exact(&mut answer)).await.expect("at once").unwrap();
        assert_eq!(&answer[9..], status.as_bytes(), "{request}");
        assert!(
            is_closed(&mut stream).await,
            "{request}: what follows is no request, so the connection ends"
        );
    }
}

#[tokio::test]
async fn a_slow_request_head_is_cut_after_30_s_and_an_idle_connection_is_not() {
    let server = TestServer::new().await;
    let request = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n";
    let connect = async || {
        let mut h1 = server.h1(Some(&server.proxy)).await;
        h1.write_all(request).await.unwrap();
        h1.read_exact(&mut [0; 12]).await.unwrap();
        h1
    };
    let mut idle = connect().await;
    let mut slow = connect().await;
    sleep(Duration::from_millis(50)).await;
    slow.write_all(b"GET /livez HT").await.unwrap();
    sleep(Duration::from_millis(50)).await;
    advance_clock(Duration::from_secs(28)).await;
    slow.write_all(b"T").await.unwrap();
    sleep(Duration::from_millis(50)).await;
    advance_clock(Duration::from_secs(3)).await;
    assert!(is_closed(&mut slow).await, "a byte now and then buys no more time");
    idle.write_all(request).await.unwrap();
    let served = timeout(Duration::from_secs(2), async {
        let mut answers = Vec::new();
        while answers.windows(15).filter(|window| window == b"HTTP/1.1 200 OK").count() < 1 {
            answers.push(idle.read_u8().await.unwrap());
        }
    });
    assert!(served.await.is_ok(), "an idle connection is served");
}

#[tokio::test]
async fn a_proxys_connection_without_a_preface_is_cut() {
    let server = TestServer::new().await;
    let mut spare =
        tls(server.address, &server.shared_ca.pem(), SERVICE, Some(&server.proxy), "h2").await.unwrap();
    sleep(Duration::from_millis(50)).await;
    // Idle for 90 s, then 5 s to finish requests.
    advance_clock(Duration::from_secs(91)).await;
    sleep(Duration::from_millis(50)).await;
    advance_clock(Duration::from_secs(6)).await;
    assert!(is_closed(&mut spare).await, "no preface");
}

/// True when nothing can be sent any more a little after 30 s. What has arrived is still answered until nothing fits on
/// the way back, which takes a busy machine its time: asked more than once.
async fn is_cut(stream: &mut TlsStream<TcpStream>, bytes: &[u8]) -> bool {
    for _ in 0..3 {
        sleep(Duration::from_millis(300)).await;
        advance_clock(Duration::from_secs(31)).await;
        sleep(Duration::from_millis(50)).await;
        if let Ok(Err(_)) = timeout(Duration::from_secs(1), stream.write_all(bytes)).await {
            return true;
        }
    }
    false
}

#[tokio::test]
async fn a_client_that_never_reads_its_answers_is_cut() {
    let server = TestServer::new().await;
    let config =
        config(&server.shared_ca.pem(), Some(&server.proxy), &["http/1.1"], rustls::DEFAULT_VERSIONS);
    let mut stream = tls_over(tcp_with_small_buffers(server.address).await, SERVICE, config).await.unwrap();
    let requests = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n".repeat(100);
    while timeout(Duration::from_secs(1), stream.write_all(&requests)).await.is_ok_and(|sent| sent.is_ok()) {}
    assert!(is_cut(&mut stream, &requests).await);
}

#[tokio::test]
async fn answers_that_are_not_taken_hold_their_permits_until_the_connection_ends() {
    for window in [0, 1] {
        let server = TestServer::new().await;
        let scrape = async || server.metrics().await.status;
        assert_eq!(scrape().await, 200);
        let mut raw = Raw::connect(&server, None).await;
        raw.send(&initial_window(window)).await;
        let scrapes: Vec<u8> =
            (0..40).flat_map(|n| get("/metrics", "authorization", "Bearer good", 2 * n + 1)).collect();
        raw.send(&scrapes).await;
        let heads = Cell::new(0);
        let is_last_head = |frame: &Frame| {
            heads.set(heads.get() + usize::from(frame.kind == HEADERS));
            heads.get() == 40
        };
        let frames = raw.until(is_last_head).await;
        // :status 200 is entry 8 of HPACK's static table; no other status begins with this byte.
        let served = frames.iter().filter(|frame| frame.kind == HEADERS && frame.payload[0] == 0x88).count();
        assert_eq!(served, 16, "window {window}");
        assert_eq!(scrape().await, 429);
        advance_clock(Duration::from_secs(31)).await;
        sleep(Duration::from_millis(50)).await;
        advance_clock(Duration::from_secs(6)).await;
        assert!(raw.is_closed().await, "window {window}");
        eventually(|| async { scrape().await == 200 }).await;
    }
}

#[tokio::test]
async fn a_slow_download_is_not_idle() {
    let server = TestServer::new().await;
    let mut many = sample();
    let variant = |index| (VariantId::new("llm", format!("variant-{index:04}")), target(1, Some(1), NOW));
    many.decisions.extend((0..3000).map(variant));
    server.publish(many);
    let alice = server.users.client("alice", &[]);
    let mut raw = Raw::connect(&server, Some(&alice)).await;
    raw.send(&get(READ, "accept", "application/json", 1)).await;
    let received = &Cell::new(0);
    let mut window = 65_535;
    let until = |size: usize| {
        move |frame: &Frame| {
            received.set(received.get() + if frame.kind == DATA { frame.payload.len() } else { 0 });
            received.get() >= size
        }
    };
    raw.until(until(window)).await;
    for _ in 0..13 {
        advance_clock(Duration::from_secs(10)).await;
        raw.send(&more(1, 16_384)).await;
        window += 16_384;
        raw.until(until(window)).await;
        assert_eq!(received.get(), window, "it is still sent");
    }
    raw.send(&more(1, 16 * 1024 * 1024)).await;
    let frames = raw.until(|frame| frame.ends(1)).await;
    assert!(frames.last().is_some_and(|frame| frame.kind == DATA), "to its end");
}

#[tokio::test]
async fn a_half_closed_connection_ends_at_once_and_returns_its_permit() {
    // The quota for untrusted peers is one.
    let server = TestServer::with(|options| options.max_connections = Some(4)).await;
    for _ in 0..3 {
        let mut stream = server.h1(None).await;
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _ = timeout(Duration::from_secs(2), stream.read_to_end(&mut answer)).await.expect("an end");
        assert!(answer.starts_with(b"HTTP/1.1 200 OK"), "{}", String::from_utf8_lossy(&answer));
    }
}

/// Reads as API servers do: on one connection, and on a new one after GOAWAY. Returns the number of
/// connections.
async fn reads(server: &TestServer, until: Instant, answered: Arc<AtomicUsize>) -> usize {
    let mut connections = 0;
    let mut open = Vec::new();
    while Instant::now() < until {
        let mut h2 = H2::connect(server, Some(&server.proxy)).await;
        connections += 1;
        while Instant::now() < until && h2.sender.ready().await.is_ok() {
            let answers = join_all((0..3).map(|_| h2.read())).await;
            for answer in answers {
                match answer {
                    Ok(answer) => {
                        assert_eq!(answer.status(), 200);
                        answer.into_body().collect().await.expect("a whole answer");
                        answered.fetch_add(1, Ordering::SeqCst);
                    }
                    // Never sent: the client had received GOAWAY.
                    Err(error) => assert!(error.is_canceled() || error.is_closed(), "lost: {error:?}"),
                }
            }
        }
        open.push(h2);
    }
    connections
}

#[tokio::test]
async fn an_old_connection_is_closed_without_losing_a_request() {
    let age = Some(Duration::from_millis(100));
    let server = TestServer::with(|options| options.max_connection_age = age).await;
    *server.reads.delay.lock() = Duration::from_millis(5);
    let until = Instant::now() + Duration::from_secs(2);
    let answered = Arc::new(AtomicUsize::new(0));
    let connections = join_all((0..4).map(|_| reads(&server, until, answered.clone()))).await;
    assert!(connections.iter().all(|count| (5..=40).contains(count)), "{connections:?}");
    // What was read is what was answered: nothing was cut off on its way.
    assert_eq!(server.reads.count.load(Ordering::SeqCst), answered.load(Ordering::SeqCst));
    assert!(answered.load(Ordering::SeqCst) > 100);
}

#[tokio::test]
async fn an_old_http1_connection_is_closed_only_with_an_answer() {
    let age = Some(Duration::from_millis(200));
    let server = TestServer::with(|options| options.max_connection_age = age).await;
    let mut stream = server.h1(None).await;
    for (wait, is_last) in [(0, false), (400, true)] {
        sleep(Duration::from_millis(wait)).await;
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut answer = [0; 1024];
        let count = stream.read(&mut answer).await.unwrap();
        let head = String::from_utf8_lossy(&answer[..count]).into_owned();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert_eq!(head.contains("connection: close"), is_last, "{head}");
    }
    assert_eq!(stream.read(&mut [0; 16]).await.unwrap_or(0), 0);
}
