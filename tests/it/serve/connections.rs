//! Well-behaved and misbehaving connections: the latter never affect the former.

use std::time::Duration;

use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use wva::serve::tls::ServingCertificate;

use super::READ;
use super::client::{H2, exchange, tls};
use super::identity::eventually;
use super::pki::{Authority, INSTANCE, Leaf, SERVICE, Subject};
use super::test_server::{ServerOptions, TestServer, later};

#[tokio::test]
async fn http2_and_http1_are_chosen_by_alpn() {
    let server = TestServer::new().await;
    let mut h2 = H2::connect(&server, Some(&server.proxy)).await;
    for _ in 0..3 {
        let answer = h2.read().await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.version()), (200, http::Version::HTTP_2));
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert!(body.ends_with(br#""value":"5"}]}"#));
    }
    assert_eq!(server.proxied("hpa", READ).await.value(), "5");
}

#[tokio::test]
async fn a_connection_is_closed_gracefully_with_goaway_when_the_server_stops() {
    let mut server = TestServer::new().await;
    let mut h2 = H2::connect(&server, Some(&server.proxy)).await;
    *server.reads.hanging.lock() = true;
    let slow = h2.read();
    sleep(Duration::from_millis(50)).await;
    server.shutdown.cancel();
    let answer = slow.await.expect("a request in flight is answered");
    assert_eq!(answer.status(), 200);
    drop(answer);
    h2.driver.join_next().await.unwrap().unwrap().expect("the server said goodbye");
    timeout(Duration::from_secs(2), server.task.join_next())
        .await
        .expect("the server ended")
        .unwrap()
        .unwrap();
    assert!(TcpStream::connect(server.address).await.is_err(), "the door is closed");
}

#[tokio::test]
async fn a_peer_that_never_leaves_is_cut_at_the_deadline() {
    let mut server =
        TestServer::with(ServerOptions { drain: Duration::from_millis(300), ..ServerOptions::default() })
            .await;
    // Speaks HTTP/2, starts a request and then neither reads nor writes.
    let mut stream = tls(server.address, &server.shared_ca.pem(), SERVICE, None, "h2").await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    stream.write_all(&[0, 0, 1, 1, 0, 0, 0, 0, 1, 0x82]).await.unwrap();
    sleep(Duration::from_millis(100)).await;
    let started = Instant::now();
    server.shutdown.cancel();
    timeout(Duration::from_secs(2), server.task.join_next())
        .await
        .expect("the deadline holds")
        .unwrap()
        .unwrap();
    assert!(started.elapsed() >= Duration::from_millis(250), "it was given its time");
}

#[tokio::test]
async fn garbage_and_silent_connections_do_not_affect_others() {
    let server = TestServer::new().await;
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
    }
    let half = tls(server.address, &server.shared_ca.pem(), SERVICE, None, "http/1.1").await;
    half.unwrap().write_all(b"GET / HT").await.unwrap();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16, 3, 1, 0xff, 0xff, 1], &[0; 4096], b"\xff"] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _ =
            timeout(Duration::from_secs(2), stream.read_to_end(&mut answer)).await.expect("closed at once");
    }
    for garbage in ["GET", "GET / HTTP/1.1\r\nBad Header: x\r\n\r\n", "\0\0\0\0\r\n\r\n"] {
        let mut stream =
            tls(server.address, &server.shared_ca.pem(), SERVICE, None, "http/1.1").await.unwrap();
        stream.write_all(garbage.as_bytes()).await.unwrap();
        let _ = stream.shutdown().await;
    }
    assert_eq!(server.proxied("hpa", READ).await.value(), "5");
    drop(silent);
}

#[tokio::test]
async fn untrusted_connections_leave_room_for_trusted_ones() {
    let server = TestServer::with(ServerOptions { places: Some(8), ..ServerOptions::default() }).await;
    let shared = server.shared_ca.shared();
    let instance = Leaf { certificate: shared.cert_pem, key: shared.key_pem };
    let foreign = Authority::new("front-proxy-ca").client("front-proxy-client", &[]);
    let mut strangers = Vec::new();
    for n in 0..40 {
        let identity = (n % 2 == 0).then_some(&foreign);
        let stream = tls(server.address, &server.shared_ca.pem(), SERVICE, identity, "http/1.1").await;
        strangers.push(stream.expect("the handshake itself is never refused"));
    }
    assert_eq!(server.proxied("hpa", READ).await.value(), "5");
    let user = server.users.client("alice", &[]);
    assert_eq!(server.send(Some(&user), &format!("GET {READ}"), &[]).await.status, 200);
    assert_eq!(server.send(Some(&instance), "GET /livez", &[]).await.status, 200);
    let mut served = 0;
    // Only the newest: an address that holds the whole quota displaces its own connections.
    for stream in &mut strangers {
        let asked = stream.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").await;
        let mut answer = [0; 15];
        let read = timeout(Duration::from_secs(2), stream.read_exact(&mut answer)).await.expect("an end");
        served += usize::from(asked.is_ok() && read.is_ok() && answer == *b"HTTP/1.1 200 OK");
    }
    assert_eq!(served, 2, "a quarter of the places");
}

#[tokio::test]
async fn unfinished_handshakes_do_not_block_the_aggregator() {
    let server = TestServer::with(ServerOptions { places: Some(8), ..ServerOptions::default() }).await;
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
    }
    let read = timeout(Duration::from_secs(2), server.proxied("hpa", READ)).await;
    assert_eq!(read.expect("not after the patience with a handshake").value(), "5");
    drop(silent);
}

#[tokio::test]
async fn an_idle_connection_is_closed_unless_it_is_the_proxys() {
    let server = TestServer::new().await;
    let mut proxy = H2::connect(&server, Some(&server.proxy)).await;
    let mut stranger = H2::connect(&server, None).await;
    assert_eq!(proxy.read().await.unwrap().status(), 200);
    assert_eq!(stranger.read().await.unwrap().status(), 403);
    later(Duration::from_secs(91)).await;
    let ended = timeout(Duration::from_secs(2), stranger.driver.join_next()).await.expect("it is closed");
    ended.unwrap().unwrap().expect("with a goodbye");
    later(Duration::from_secs(91)).await;
    assert_eq!(proxy.read().await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_dual_stack_listener_serves_ipv4_peers() {
    let listen = "[::]:0".parse().unwrap();
    let server = TestServer::with(ServerOptions { listen, ..ServerOptions::default() }).await;
    assert!(server.address.is_ipv4());
    assert_eq!(server.proxied("hpa", READ).await.value(), "5");
}

#[tokio::test]
async fn a_renewed_certificate_applies_to_new_connections_and_keeps_open_ones() {
    let server = TestServer::new().await;
    let open = tls(server.address, &server.shared_ca.pem(), SERVICE, None, "http/1.1").await.unwrap();
    let next = Authority::new("next");
    server.shared.send_replace(Some(next.shared()));
    eventually(|| async { tls(server.address, &next.pem(), SERVICE, None, "http/1.1").await.is_ok() }).await;
    assert!(tls(server.address, &server.shared_ca.pem(), SERVICE, None, "http/1.1").await.is_err());
    assert_eq!(exchange(open, "GET /livez", &[]).await.status, 200);
}

#[tokio::test]
async fn certificate_files_are_reloaded_once_certificate_and_key_match() {
    let directory = std::env::temp_dir().join(format!("wva-serve-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let certificate = directory.join("tls.crt");
    let key = directory.join("tls.key");
    let write = |path, text: &str| std::fs::write(path, text).unwrap();
    let first = Authority::new("first");
    let second = Authority::new("second");
    let leaf = |ca: &Authority| -> Leaf { ca.issue(&Subject { names: &[SERVICE], ..Subject::default() }) };
    let one = leaf(&first);
    let two = leaf(&second);
    write(&certificate, &one.certificate);
    write(&key, &one.key);
    let recheck_interval = Duration::from_millis(20);
    let serving =
        ServingCertificate::Files { certificate: certificate.clone(), key: key.clone(), recheck_interval };
    let server = TestServer::with(ServerOptions { serving, ..ServerOptions::default() }).await;
    let shown_by = |ca: String, name| {
        let address = server.address;
        async move { tls(address, &ca, name, None, "http/1.1").await.is_ok() }
    };
    assert!(shown_by(first.pem(), SERVICE).await);
    assert!(shown_by(server.shared_ca.pem(), INSTANCE).await, "instances always see the shared leaf");
    write(&certificate, &two.certificate);
    sleep(recheck_interval * 5).await;
    assert!(shown_by(first.pem(), SERVICE).await, "certificate without its key");
    write(&key, "-----BEGIN PRIVATE KEY-----\nMIG");
    sleep(recheck_interval * 5).await;
    assert!(shown_by(first.pem(), SERVICE).await, "half a key");
    write(&key, &two.key);
    eventually(|| shown_by(second.pem(), SERVICE)).await;
    std::fs::remove_dir_all(directory).unwrap();
}

#[tokio::test]
async fn nothing_is_served_before_there_is_a_certificate() {
    let server = TestServer::new_without_certificate().await;
    let reach =
        || async { tls(server.address, &server.shared_ca.pem(), SERVICE, None, "http/1.1").await.is_ok() };
    assert!(!reach().await);
    server.shared.send_replace(Some(server.shared_ca.shared()));
    eventually(reach).await;
}

#[tokio::test]
async fn excess_reads_are_rejected_at_once_and_discovery_goes_on() {
    let server = TestServer::new().await;
    *server.reads.hanging.lock() = true;
    let mut connections = Vec::new();
    for _ in 0..3 {
        connections.push(H2::connect(&server, Some(&server.proxy)).await);
    }
    let reads: Vec<_> = (0..600).map(|n| connections[n % 3].read()).collect();
    let reads = futures::future::join_all(reads);
    let apis = async {
        sleep(Duration::from_millis(200)).await;
        server.send(Some(&server.proxy), "GET /apis", &["X-Remote-User: system:kube-aggregator"]).await
    };
    let (answers, apis) = tokio::join!(reads, apis);
    let statuses: Vec<_> = answers.into_iter().map(|answer| answer.unwrap().status().as_u16()).collect();
    assert_eq!(apis.status, 200);
    assert!(statuses.contains(&200) && statuses.contains(&429), "{statuses:?}");
    assert!(statuses.iter().all(|status| [200, 429].contains(status)));
}

#[tokio::test]
async fn certificate_files_from_flags_must_be_valid_at_the_start() {
    let missing = std::path::PathBuf::from("/nonexistent/tls.crt");
    let serving = ServingCertificate::Files {
        certificate: missing.clone(),
        key: missing,
        recheck_interval: Duration::from_secs(1),
    };
    let error = TestServer::try_with(ServerOptions { serving, ..ServerOptions::default() })
        .await
        .err()
        .expect("refused");
    let text = error.to_string();
    assert!(text.contains("/nonexistent/tls.crt") && text.contains("--tls-cert-file"), "{text}");
}

#[tokio::test]
async fn an_invalid_shared_secret_is_waited_for() {
    let server = TestServer::new_without_certificate().await;
    let mut damaged = server.shared_ca.shared();
    damaged.key_pem = "-----BEGIN PRIVATE KEY-----".into();
    server.shared.send_replace(Some(damaged));
    let reach =
        || async { tls(server.address, &server.shared_ca.pem(), SERVICE, None, "http/1.1").await.is_ok() };
    assert!(!reach().await);
    server.shared.send_replace(Some(server.shared_ca.shared()));
    eventually(reach).await;
}
