//! Reads an evaluation from `/debug/snapshots` of a running server.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use reqwest::{Certificate, Client, Url, redirect};
use serde::Deserialize;

use super::input::DecisionInput;
use crate::cmd::output::CommandError;
use crate::collect::root_cause;

/// The evaluation of a large fleet is a line of tens of MiB, which is rendered while it is sent.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// How to reach a server.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct ServerArgs {
    /// URL of the leader (the Lease holder), as https://HOST:PORT. The API server's aggregation layer does not proxy /debug, so
    /// use `kubectl port-forward`.
    #[arg(long, value_name = "URL")]
    pub(super) server: Option<Url>,
    /// File with the bearer token of a user who may read /debug/snapshots/latest (`kubectl create token NAME` prints one).
    #[arg(long, value_name = "FILE", requires = "server")]
    token_file: Option<PathBuf>,
    /// CA of the server's certificate, PEM: ca.crt of the Secret wva-tls.
    #[arg(long, value_name = "FILE", requires = "server")]
    ca_file: Option<PathBuf>,
    /// Name to verify in the server's certificate, such as SERVICE.NAMESPACE.svc for a port-forward. Default: the host of the
    /// URL.
    #[arg(long, value_name = "NAME", requires = "server")]
    server_name: Option<String>,
}

/// The `Status` of a failed request, as far as it is shown.
#[derive(Deserialize)]
struct ErrorStatus {
    message: String,
}

impl ServerArgs {
    /// Reads the evaluation of `at`, or the newest one.
    pub(super) fn read(&self, server: &Url, at: Option<Timestamp>) -> Result<DecisionInput, CommandError> {
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // Fails only if another thread installed one meanwhile.
            let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
        let body = runtime.block_on(self.fetch(server, at))?;
        DecisionInput::from_recording(io::Cursor::new(body), server.as_str().as_ref(), at)
    }

    async fn fetch(&self, server: &Url, at: Option<Timestamp>) -> Result<Vec<u8>, String> {
        let mut url = server.clone();
        url.set_path(if at.is_some() { "/debug/snapshots" } else { "/debug/snapshots/latest" });
        url.set_query(at.map(|at| format!("at={at}")).as_deref());
        let client = self.client(&mut url).await?;
        let mut request = client.get(url);
        if let Some(path) = &self.token_file {
            if server.scheme() != "https" {
                return Err(format!("--server {server}: a token is sent over https only"));
            }
            request = request.bearer_auth(read_text(path)?.trim());
        }
        let failed = |error: &reqwest::Error| {
            let hint = "check the address, the port-forward, --ca-file and --server-name";
            format!("--server {server}: {}; {hint}", root_cause(error))
        };
        let response = request.send().await.map_err(|error| failed(&error))?;
        let status = response.status();
        let body = response.bytes().await.map_err(|error| failed(&error))?;
        if status.is_success() {
            return Ok(body.into());
        }
        let message = serde_json::from_slice::<ErrorStatus>(&body).map(|error| error.message);
        let hint = match status.as_u16() {
            401 | 403 => "; give --token-file with the token of a user who may read that path",
            _ => "",
        };
        Err(format!("--server {server} answered {status}: {}{hint}", message.unwrap_or_default()))
    }

    /// A client that trusts --ca-file only, follows no redirect, and finds --server-name at the URL's address.
    async fn client(&self, url: &mut Url) -> Result<Client, String> {
        let mut builder =
            Client::builder().redirect(redirect::Policy::none()).no_proxy().timeout(REQUEST_TIMEOUT);
        if let Some(path) = &self.ca_file {
            let authorities = Certificate::from_pem_bundle(read_text(path)?.as_bytes());
            let authorities = authorities.ok().filter(|authorities| !authorities.is_empty());
            let authorities = authorities
                .ok_or_else(|| format!("--ca-file {}: no PEM certificate; give ca.crt", path.display()))?;
            builder = builder.tls_certs_only(authorities);
        }
        if let Some(name) = &self.server_name {
            let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
            let port = url.port_or_known_default().unwrap_or(443);
            let addresses = tokio::net::lookup_host((host.as_str(), port)).await;
            let addresses =
                addresses.map_err(|error| format!("--server {url}: {error}; give a host that exists"))?;
            let addresses: Vec<SocketAddr> = addresses.collect();
            url.set_host(Some(name)).map_err(|_| format!("--server-name {name}: not a DNS name"))?;
            builder = builder.resolve_to_addrs(name, &addresses);
        }
        builder.build().map_err(|error| format!("cannot set up TLS: {}", root_cause(&error)))
    }
}

fn read_text(path: &PathBuf) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| {
        format!("{}: {error}; give a file that exists and that you may read", path.display())
    })
}
