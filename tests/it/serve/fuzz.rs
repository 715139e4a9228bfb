//! Raw bytes on real TLS connections: the server answers or closes, and the next connection works.
//! `WVA_FUZZ_SECONDS=600 cargo test -p wva --test it serve::fuzz -- --nocapture` takes ten minutes for each target.

use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use wva::engine::ClusterView;

use crate::fuzz::harness::{damaged, fuzz};

use super::READ;
use super::test_server::TestServer;

/// No request here waits for anything; ten seconds allow for a busy machine.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// How long a peer waits for its answer before it hangs up: an answer takes below a millisecond.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(20);

/// The answer to `bytes`, until the server closes; a peer that `hangs_up` closes first.
async fn sent(server: &TestServer, bytes: &[u8], hangs_up: bool) -> Result<Vec<u8>, TestCaseError> {
    let mut stream = server.h1(Some(&server.proxy)).await;
    // The server may close before all of it is read.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    if hangs_up {
        let _ = timeout(ANSWER_TIMEOUT, stream.read_to_end(&mut answer)).await;
        let _ = stream.shutdown().await;
    }
    let closed = timeout(CLOSE_TIMEOUT, stream.read_to_end(&mut answer)).await;
    prop_assert!(closed.is_ok(), "the connection stays open");
    Ok(answer)
}

#[test]
fn no_bytes_on_a_connection_affect_the_next() {
    let read = format!("GET {READ} HTTP/1.1\r\nHost: x\r\nX-Remote-User: hpa\r\n");
    let corpus = [
        format!("{read}\r\n"),
        format!("{read}\r\n{read}Accept: application/vnd.kubernetes.protobuf\r\n\r\n"),
        format!("{read}Connection: close\r\nAccept-Encoding: gzip\r\n\r\n"),
        format!("{read}Content-Length: 5\r\n\r\nhello"),
        format!("{read}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
        format!("{read}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        format!("{read}Expect: 100-continue\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n"),
        "GET /apis HTTP/1.0\r\n\r\n".to_owned(),
        "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
    ];
    let input = prop_oneof![6 => damaged(&corpus), 1 => vec(any::<u8>(), 0..200)];
    let runtime = runtime();
    let server = runtime.block_on(TestServer::new());
    fuzz("connection", input, |bytes| {
        let answer = runtime.block_on(sent(&server, &bytes, true))?;
        let text = String::from_utf8_lossy(&answer);
        // A client that begins like HTTP/2 gets frames.
        prop_assert!(
            answer.is_empty() || text.starts_with("HTTP/1.") || bytes.starts_with(b"PRI"),
            "{}",
            text
        );
        let next = runtime.block_on(server.proxied("hpa", READ));
        prop_assert_eq!(next.status, 200);
        Ok(())
    });
}

#[test]
fn no_path_and_query_break_the_server() {
    let corpus = [
        "/readyz?verbose&exclude=ping&exclude=%zz",
        "/livez/ping",
        "/apis/external.metrics.k8s.io/v1beta1/namespaces/llm/wva_desired_replicas?labelSelector=a%3Db",
        "/apis/custom.metrics.k8s.io/v1beta2/namespaces/llm/deployments.apps/x/wva_desired_replicas",
        "/openapi/v3/apis/external.metrics.k8s.io/v1beta1?hash=0",
        "/apis//%2e%2e/version",
    ];
    let visible =
        |bytes: Vec<u8>| bytes.into_iter().filter(|byte| (b'!'..=b'~').contains(byte)).collect::<Vec<_>>();
    let target = damaged(&corpus).prop_map(visible);
    let runtime = runtime();
    let server = runtime.block_on(TestServer::new());
    *server.reads.view.lock() = Arc::new(ClusterView { synced: true, ..ClusterView::default() });
    fuzz("path", target, |target| {
        let head = [
            b"GET ",
            &target[..],
            b" HTTP/1.1\r\nHost: x\r\nX-Remote-User: hpa\r\nConnection: close\r\n\r\n",
        ];
        let answer = runtime.block_on(sent(&server, &head.concat(), false))?;
        let text = String::from_utf8_lossy(&answer);
        let status = text.split(' ').nth(1).unwrap_or_default();
        prop_assert!(["200", "400", "403", "404", "405", "406", "414"].contains(&status), "{}", text);
        Ok(())
    });
}
