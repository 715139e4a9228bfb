//! The client of the API server: one for the whole program.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use kube::config::{KubeConfigOptions, Kubeconfig};

/// Longest silence of the API server within an answer: more than the 65 s after which a silent watch is restarted.
const READ_TIMEOUT: Duration = Duration::from_secs(75);

/// A client of the cluster that `kubeconfig` names, or else of the one that this process runs in.
///
/// # Errors
/// When neither says how to reach a cluster.
pub(super) async fn client(kubeconfig: Option<&Path>) -> anyhow::Result<kube::Client> {
    let mut from = match kubeconfig {
        Some(path) => {
            let file =
                Kubeconfig::read_from(path).with_context(|| format!("--kubeconfig {}", path.display()))?;
            kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .with_context(|| format!("--kubeconfig {}", path.display()))?
        }
        None => kube::Config::incluster().context(
            "not in a cluster, and no --kubeconfig given; to try without a cluster, run `wva demo`",
        )?,
    };
    // Bounds a list, or the start of a watch, that is never answered; a watch itself ends after 60 s. Counted from the request,
    // not from the last use of its pooled connection.
    from.read_timeout = Some(READ_TIMEOUT);
    from.reset_reader_on_write = true;
    // Callers log failures and retry in their own time. The client's own 15 attempts after a 429, 503 or 504 log nothing, and wait
    // up to 82 s longer than the API server needs, or as long as any `Retry-After` says.
    from.default_retry = false;
    kube::Client::try_from(from).context("cannot set up the Kubernetes client")
}

#[cfg(test)]
mod tests {
    use http::Request;
    use kube::client::Body;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::task::JoinSet;
    use tokio::time::timeout;

    use super::*;

    /// An API server that is overloaded for an hour.
    async fn overloaded(listener: TcpListener) {
        let answer = "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n";
        while let Ok((mut tcp, _)) = listener.accept().await {
            let _ = tcp.read(&mut [0; 4096]).await;
            let _ = tcp.write_all(answer.as_bytes()).await;
        }
    }

    #[tokio::test]
    async fn the_429_of_an_overloaded_api_server_is_returned_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut serving = JoinSet::new();
        serving.spawn(overloaded(listener));
        let path = std::env::temp_dir().join(format!("wva-client-{}.yaml", std::process::id()));
        let text = format!(
            "{{current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}],\n\
             clusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}], users: [{{name: u, user: {{}}}}]}}"
        );
        std::fs::write(&path, text).unwrap();
        let client = client(Some(&path)).await.unwrap();
        std::fs::remove_file(&path).unwrap();
        let request = Request::get("/version").body(Body::empty()).unwrap();
        let answer = timeout(Duration::from_secs(5), client.send(request)).await.expect("no silent wait");
        assert_eq!(answer.unwrap().status(), 429);
    }
}
