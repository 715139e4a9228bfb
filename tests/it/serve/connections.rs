//! Which connections are accepted, with which TLS, and how rejected ones are counted and logged. Misbehaving connections never
//! affect well-behaved ones.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::client::TlsStream;
use wva::serve::tls::ServingCertificate;

use super::READ;
use super::client::{Captured, H2, config, exchange, tcp_from, tls, tls_over};
use super::identity::eventually;
use super::pki::{Authority, INSTANCE, Leaf, SERVICE, Subject};
use super::test_server::{TestServer, advance_clock};

async fn connect_from(server: &TestServer, host: u8, identity: Option<&Leaf>) -> TlsStream<TcpStream> {
    let config = config(&server.shared_ca.pem(), identity, &["http/1.1"], rustls::DEFAULT_VERSIONS);
    tls_over(tcp_from(host, server.address).await, SERVICE, config).await.unwrap()
}

/// Sends a request on a connection that stays open; true when it is answered.
async fn is_served(stream: &mut TlsStream<TcpStream>) -> bool {
    let sent = stream.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let mut answer = [0; 1024];
    let read = timeout(Duration::from_secs(2), stream.read(&mut answer)).await.expect("an end");
    sent.is_ok() && read.is_ok_and(|count| count > 0) && answer.starts_with(b"HTTP/1.1 200 OK")
}

async fn wait_for_metric(server: &TestServer, line: &str) {
    eventually(async || server.metrics().await.has_line(line)).await;
}

#[tokio::test]
async fn many_connections_from_one_address_displace_only_its_own() {
    // The quota for untrusted peers is eight.
    let server = TestServer::with(|options| options.max_connections = Some(32)).await;
    let mut crowd = Vec::new();
    for _ in 0..8 {
        let mut stream = connect_from(&server, 2, None).await;
        assert!(is_served(&mut stream).await);
        crowd.push(stream);
    }
    let mut others = Vec::new();
    for _ in 0..4 {
        let mut stream = connect_from(&server, 3, None).await;
        assert!(is_served(&mut stream).await, "another address finds room");
        others.push(stream);
    }
    let mut fifth = connect_from(&server, 3, None).await;
    assert!(is_served(&mut fifth).await);
    assert!(!is_served(&mut others[0]).await, "once both have as many, its own oldest makes room");
    let mut left = 0;
    for stream in &mut crowd {
        left += usize::from(is_served(stream).await);
    }
    assert_eq!(left, 4);
    assert_eq!(server.proxied("hpa", READ).await.value(), "5");
    drop((others, fifth));
    wait_for_metric(&server, r#"wva_connections_refused_total{kind="crowding"} 5"#).await;
}

#[tokio::test]
async fn idle_connections_of_a_node_do_not_block_its_next_probe() {
    // The quota for untrusted peers is eight.
    let server = TestServer::with(|options| options.max_connections = Some(32)).await;
    let mut quiet = Vec::new();
    for _ in 0..8 {
        quiet.push(connect_from(&server, 2, None).await);
    }
    for _ in 0..20 {
        assert!(is_served(&mut connect_from(&server, 2, None).await).await);
    }
}

#[tokio::test]
async fn a_scraper_that_comes_once_a_minute_keeps_its_connection() {
    let server = TestServer::new().await;
    let mut stream = connect_from(&server, 1, None).await;
    for _ in 0..4 {
        assert!(is_served(&mut stream).await);
        advance_clock(Duration::from_secs(60)).await;
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_chain_of_more_than_five_certificates_is_rejected_unverified() {
    let (log, _guard) = Captured::log(tracing::Level::DEBUG);
    let server = TestServer::new().await;
    let foreign = Authority::new("foreign");
    let junk = Authority::new("junk").pem();
    let leaf = foreign.issue(&Subject { common_name: INSTANCE, names: &[INSTANCE], ..Subject::default() });
    let of_length = |length: usize| Leaf {
        certificate: leaf.certificate.clone() + &junk.repeat(length - 1),
        key: leaf.key.clone(),
    };
    let verifications = || log.lines("this CA did not issue the client certificate").len();
    assert!(
        is_served(&mut connect_from(&server, 1, Some(&of_length(5))).await).await,
        "a probe, whoever it is"
    );
    let before = verifications();
    assert!(before > 0);
    for length in [6, 121] {
        assert!(!is_served(&mut connect_from(&server, 1, Some(&of_length(length))).await).await, "{length}");
    }
    assert_eq!(verifications(), before);
    wait_for_metric(&server, r#"wva_tls_handshake_failures_total{kind="client_certificate"} 2"#).await;
}

#[tokio::test]
async fn users_and_strangers_leave_room_for_each_other_and_for_infrastructure() {
    let foreign = Authority::new("front-proxy-ca").client("front-proxy-client", &[]);
    for is_user in [true, false] {
        let server = TestServer::with(|options| options.max_connections = Some(8)).await;
        let alice = server.users.client("alice", &[]);
        let mut open = Vec::new();
        for n in 0..40 {
            let identity = if is_user { Some(&alice) } else { (n % 2 == 0).then_some(&foreign) };
            open.push(connect_from(&server, 1, identity).await);
        }
        assert_eq!(server.proxied("hpa", READ).await.value(), "5");
        assert_eq!(server.send(Some(&server.instance()), "GET /livez", &[]).await.status, 200);
        if is_user {
            assert_eq!(server.get("/livez").await.status, 200, "a probe");
        } else {
            assert_eq!(server.send(Some(&alice), &format!("GET {READ}"), &[]).await.status, 200);
        }
        let mut served = 0;
        // Only the newest: an address that holds the whole quota displaces its own connections.
        for stream in &mut open {
            served += usize::from(is_served(stream).await);
        }
        assert_eq!(served, 2, "a quarter of the places");
    }
}

#[tokio::test]
async fn api_servers_behind_one_address_have_no_connection_quota() {
    // A quarter is reserved for infrastructure, which may also use the rest while it is free.
    let server = TestServer::with(|options| options.max_connections = Some(40)).await;
    let mut open = Vec::new();
    for _ in 0..30 {
        let mut stream = connect_from(&server, 2, Some(&server.proxy)).await;
        assert!(is_served(&mut stream).await);
        open.push(stream);
    }
    for stream in &mut open {
        assert!(is_served(stream).await, "none gave way");
    }
}

#[tokio::test]
async fn a_flood_of_handshakes_does_not_displace_the_slow_one_of_another_address() {
    // The quota for handshakes is two.
    let server = TestServer::with(|options| options.max_connections = Some(8)).await;
    let slow = tcp_from(3, server.address).await;
    let mut flood = Vec::new();
    for _ in 0..20 {
        flood.push(tcp_from(2, server.address).await);
    }
    // Once the newest displaced connection of the flood is closed, all before it were accepted.
    let mut answer = [0; 1];
    assert_eq!(flood[17].read(&mut answer).await.unwrap_or(0), 0);
    let config = config(&server.shared_ca.pem(), None, &["http/1.1"], rustls::DEFAULT_VERSIONS);
    let mut slow = tls_over(slow, SERVICE, config).await.expect("its place was its own");
    assert!(is_served(&mut slow).await);
    wait_for_metric(&server, r#"wva_connections_refused_total{kind="handshake"} 19"#).await;
}

#[tokio::test]
async fn tls_1_2_and_1_3_work_with_http2_and_http1() {
    let server = TestServer::new().await;
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        for (offered, chosen) in
            [(&["h2", "http/1.1"][..], Some(&b"h2"[..])), (&["http/1.1"], Some(b"http/1.1")), (&[], None)]
        {
            let config = config(&server.shared_ca.pem(), Some(&server.proxy), offered, &[version]);
            let tcp = TcpStream::connect(server.address).await.unwrap();
            let stream = tls_over(tcp, SERVICE, config).await.unwrap();
            let (_, tls) = stream.get_ref();
            assert_eq!(tls.protocol_version(), Some(version.version));
            assert_eq!(tls.alpn_protocol(), chosen);
            if chosen != Some(b"h2") {
                let answer = exchange(stream, &format!("GET {READ}"), &["X-Remote-User: hpa"]).await;
                assert_eq!(answer.value(), "5", "the certificate is asked for in {version:?} too");
            }
        }
    }
    let config = config(&server.shared_ca.pem(), None, &["spdy/3"], rustls::DEFAULT_VERSIONS);
    let tcp = TcpStream::connect(server.address).await.unwrap();
    assert!(tls_over(tcp, SERVICE, config).await.is_err());
    wait_for_metric(&server, r#"wva_tls_handshake_failures_total{kind="incompatible"} 1"#).await;
}

#[tokio::test]
async fn tls_1_1_is_refused_with_an_alert() {
    let server = TestServer::new().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    // A ClientHello of TLS 1.1: no session, TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA, no compression, no extensions.
    let mut hello = vec![3, 2];
    hello.extend([7; 32]);
    hello.extend([0, 0, 2, 0xc0, 0x13, 1, 0]);
    let mut record = vec![22, 3, 1, 0, u8::try_from(hello.len() + 4).unwrap(), 1, 0, 0];
    record.push(u8::try_from(hello.len()).unwrap());
    record.extend(hello);
    stream.write_all(&record).await.unwrap();
    let mut answer = Vec::new();
    timeout(Duration::from_secs(2), stream.read_to_end(&mut answer)).await.expect("closed").unwrap();
    assert_eq!(answer[0], 21, "an alert");
    // handshake_failure or protocol_version: so old a hello does not say enough for another alert.
    assert!(answer.len() == 7 && answer[5] == 2 && [40, 70].contains(&answer[6]), "fatal: {answer:?}");
}

#[tokio::test]
async fn a_handshake_that_times_out_is_closed_and_counted() {
    let server = TestServer::new().await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    let mut half = TcpStream::connect(server.address).await.unwrap();
    half.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
    assert_eq!(server.get("/livez").await.status, 200, "both are accepted");
    advance_clock(Duration::from_secs(11)).await;
    for stream in [&mut silent, &mut half] {
        let mut answer = Vec::new();
        let _ = timeout(Duration::from_secs(2), stream.read_to_end(&mut answer)).await.expect("closed");
    }
    wait_for_metric(&server, r#"wva_tls_handshake_failures_total{kind="timeout"} 2"#).await;
}

#[tokio::test]
async fn failed_handshakes_are_counted_by_kind_and_logged_once_a_minute() {
    let (log, _guard) = Captured::log(tracing::Level::INFO);
    let server = TestServer::new().await;
    let foreign = Authority::new("foreign").pem();
    for _ in 0..50 {
        // As an API server with an old caBundle does.
        assert!(tls(server.address, &foreign, SERVICE, None, "h2").await.is_err());
    }
    for _ in 0..3 {
        let mut garbage = TcpStream::connect(server.address).await.unwrap();
        garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let _ = garbage.read_to_end(&mut Vec::new()).await;
        drop(TcpStream::connect(server.address).await.unwrap());
    }
    wait_for_metric(&server, r#"wva_tls_handshake_failures_total{kind="refused_by_peer"} 50"#).await;
    wait_for_metric(&server, r#"wva_tls_handshake_failures_total{kind="not_tls"} 3"#).await;
    wait_for_metric(&server, r#"wva_tls_handshake_failures_total{kind="closed"} 3"#).await;
    assert_eq!(log.lines("TLS handshakes failed").len(), 2, "one of each kind, none for who only left");
    advance_clock(Duration::from_secs(61)).await;
    eventually(|| async { log.lines("TLS handshakes failed").len() == 4 }).await;
    let summaries = log.lines("count=49 kind=\"refused_by_peer\"");
    assert_eq!(summaries.len(), 1, "the others in one line: {:?}", log.lines("TLS handshakes failed"));
    assert!(summaries[0].contains("127.0.0.1:"), "with the newest peer: {summaries:?}");
}

#[tokio::test]
async fn a_certificate_is_used_once_its_key_matches_and_a_mismatch_is_logged_once() {
    let (log, _guard) = Captured::log(tracing::Level::INFO);
    let directory = std::env::temp_dir().join(format!("wva-connections-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let certificate = directory.join("tls.crt");
    let key = directory.join("tls.key");
    // Each file is replaced atomically; only the pair is incomplete.
    let write = |path: &Path, text: &str| {
        let next = path.with_extension("next");
        std::fs::write(&next, text).unwrap();
        std::fs::rename(next, path).unwrap();
    };
    let authorities = ["first", "second", "third"].map(Authority::new);
    let leaves =
        authorities.each_ref().map(|ca| ca.issue(&Subject { names: &[SERVICE], ..Subject::default() }));
    write(&certificate, &leaves[0].certificate);
    write(&key, &leaves[0].key);
    let recheck_interval = Duration::from_millis(10);
    let serving =
        ServingCertificate::Files { certificate: certificate.clone(), key: key.clone(), recheck_interval };
    let server = TestServer::with(|options| options.serving = serving).await;
    let shown_by = |n: usize| {
        let address = server.address;
        let ca = authorities[n].pem();
        async move { tls(address, &ca, SERVICE, None, "http/1.1").await.is_ok() }
    };
    assert!(
        tls(server.address, &server.shared_ca.pem(), INSTANCE, None, "http/1.1").await.is_ok(),
        "the shared leaf"
    );
    let warnings = || log.lines("a certificate cannot be used").len();
    for (n, first, second) in [(1, &certificate, &key), (2, &key, &certificate)] {
        let file = |path| if path == &certificate { &leaves[n].certificate } else { &leaves[n].key };
        let mut open =
            tls(server.address, &authorities[n - 1].pem(), SERVICE, None, "http/1.1").await.unwrap();
        write(first, file(first));
        eventually(|| async { warnings() == n }).await;
        sleep(recheck_interval * 10).await;
        assert_eq!(warnings(), n, "logged once, not at every check");
        assert!(shown_by(n - 1).await, "the pair before stays");
        write(second, file(second));
        eventually(|| shown_by(n)).await;
        assert!(!shown_by(n - 1).await);
        assert!(is_served(&mut open).await, "the open connection is not dropped");
    }
    let next = Authority::new("fourth");
    let leaf = next.issue(&Subject { names: &[SERVICE], ..Subject::default() });
    write(&certificate, &leaf.certificate);
    write(&key, "-----BEGIN PRIVATE KEY-----\nMIG");
    sleep(recheck_interval * 10).await;
    assert!(shown_by(2).await, "half a key");
    write(&key, &leaf.key);
    eventually(|| async { tls(server.address, &next.pem(), SERVICE, None, "http/1.1").await.is_ok() }).await;
    std::fs::remove_dir_all(directory).unwrap();
}

#[tokio::test]
async fn a_peer_that_never_leaves_is_cut_at_the_deadline() {
    let mut server = TestServer::with(|options| options.drain = Duration::from_millis(300)).await;
    // Speaks HTTP/2, starts a request and then neither reads nor writes.
    let mut stream = tls(server.address, &server.shared_ca.pem(), SERVICE, None, "h2").await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    stream.write_all(&[0, 0, 1, 1, 0, 0, 0, 0, 1, 0x82]).await.unwrap();
    sleep(Duration::from_millis(100)).await;
    let started = Instant::now();
    server.shutdown.cancel();
    server.wait_for_end().await;
    assert!(started.elapsed() >= Duration::from_millis(250), "the drain lasts to its end");
}

#[tokio::test]
async fn garbage_and_silent_connections_do_not_affect_others() {
    let server = TestServer::new().await;
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
    }
    server.h1(None).await.write_all(b"GET / HT").await.unwrap();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16, 3, 1, 0xff, 0xff, 1], &[0; 4096], b"\xff"] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _ =
            timeout(Duration::from_secs(2), stream.read_to_end(&mut answer)).await.expect("closed at once");
    }
    for garbage in ["GET", "GET / HTTP/1.1\r\nBad Header: x\r\n\r\n", "\0\0\0\0\r\n\r\n"] {
        let mut stream = server.h1(None).await;
        stream.write_all(garbage.as_bytes()).await.unwrap();
        let _ = stream.shutdown().await;
    }
    assert_eq!(server.proxied("hpa", READ).await.value(), "5");
    drop(silent);
}

#[tokio::test]
async fn unfinished_handshakes_do_not_block_the_aggregator() {
    let server = TestServer::with(|options| options.max_connections = Some(8)).await;
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
    }
    let read = timeout(Duration::from_secs(2), server.proxied("hpa", READ)).await;
    assert_eq!(read.expect("not after the handshake timeout").value(), "5");
    drop(silent);
}

#[tokio::test]
async fn an_idle_connection_is_closed_unless_it_is_the_proxys() {
    let server = TestServer::new().await;
    let mut proxy = H2::connect(&server, Some(&server.proxy)).await;
    let mut stranger = H2::connect(&server, None).await;
    assert_eq!(proxy.read().await.unwrap().status(), 200);
    assert_eq!(stranger.read().await.unwrap().status(), 403);
    advance_clock(Duration::from_secs(91)).await;
    let ended = timeout(Duration::from_secs(2), stranger.driver.join_next()).await.expect("it is closed");
    ended.unwrap().unwrap().expect("with GOAWAY");
    advance_clock(Duration::from_secs(91)).await;
    assert_eq!(proxy.read().await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_dual_stack_listener_serves_ipv4_peers() {
    let listen = "[::]:0".parse().unwrap();
    let server = TestServer::with(|options| options.listen = listen).await;
    assert!(server.address.is_ipv4());
    assert_eq!(server.proxied("hpa", READ).await.value(), "5");
}

#[tokio::test]
async fn a_renewed_certificate_applies_to_new_connections_and_keeps_open_ones() {
    let server = TestServer::new().await;
    let open = server.h1(None).await;
    let next = Authority::new("next");
    server.shared.send_replace(Some(next.shared()));
    eventually(|| async { tls(server.address, &next.pem(), SERVICE, None, "http/1.1").await.is_ok() }).await;
    assert!(tls(server.address, &server.shared_ca.pem(), SERVICE, None, "http/1.1").await.is_err());
    assert_eq!(exchange(open, "GET /livez", &[]).await.status, 200);
}

#[tokio::test]
async fn certificate_files_from_flags_must_be_valid_at_the_start() {
    let certificate = PathBuf::from("/nonexistent/tls.crt");
    let recheck_interval = Duration::from_secs(1);
    let serving = ServingCertificate::Files { key: certificate.clone(), certificate, recheck_interval };
    let error = TestServer::try_with(|options| options.serving = serving).await.err().expect("refused");
    let text = error.to_string();
    assert!(text.contains("/nonexistent/tls.crt") && text.contains("--tls-cert-file"), "{text}");
}

#[tokio::test]
async fn nothing_is_served_before_there_is_a_valid_certificate() {
    let server = TestServer::with(|options| options.has_certificate = false).await;
    let reach =
        || async { tls(server.address, &server.shared_ca.pem(), SERVICE, None, "http/1.1").await.is_ok() };
    assert!(!reach().await, "no certificate");
    let mut damaged = server.shared_ca.shared();
    damaged.key_pem = "-----BEGIN PRIVATE KEY-----".into();
    server.shared.send_replace(Some(damaged));
    assert!(!reach().await, "half a key");
    server.shared.send_replace(Some(server.shared_ca.shared()));
    eventually(reach).await;
}
