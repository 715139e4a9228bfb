//! The HTTP client of both sources and of other rooms: TLS trust, time-outs, and errors that name the next step.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Certificate, Client, ClientBuilder, Identity, redirect};

use crate::engine::SourceError;

/// Time for TCP and TLS. Peers are in the cluster, so milliseconds are normal; 3 s cover one lost SYN, which is repeated after 1 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// How long idle connections stay open: longer than the default interval of evaluations (5 s), so that the next one needs no
/// handshake, and less than the idle time-outs of common servers (60 s and more).
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);

/// Trust in a TLS server, and the client certificate.
#[derive(Debug, Clone, Default)]
pub struct TlsSettings {
    /// PEM file of the only CAs to trust; `None` trusts those of the system.
    pub ca_path: Option<PathBuf>,
    /// PEM file of the client certificate; needs `client_key_path`.
    pub client_cert_path: Option<PathBuf>,
    /// PEM file of the client certificate's key.
    pub client_key_path: Option<PathBuf>,
    /// Accept any certificate. For tests and emergencies.
    pub insecure_skip_verify: bool,
    /// The host of the server, and the name by which its address is looked up, if that is another one.
    pub lookup: Option<Lookup>,
}

/// A host whose address is looked up by another name than the one that its certificate is for.
#[derive(Debug, Clone)]
pub struct Lookup {
    /// The host of URLs.
    pub host: String,
    /// The name that is looked up.
    pub name: String,
}

impl Resolve for Lookup {
    fn resolve(&self, name: Name) -> Resolving {
        let name = if name.as_str() == self.host { self.name.clone() } else { name.as_str().to_owned() };
        Box::pin(async move {
            let found: Vec<_> = tokio::net::lookup_host((name, 0)).await?.collect();
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// A client for another room, each of whose requests takes at most `limit`. It speaks HTTP/1.1 only: a connection whose request got no
/// answer is closed, and the next one finds out whether the server is back.
///
/// # Errors
/// When a file of `tls` cannot be used.
pub fn http_client(tls: &TlsSettings, https: bool, limit: Duration) -> Result<Client, SourceError> {
    let client = client_builder(tls, https)?.http1_only().timeout(limit).build();
    client.map_err(|error| config_error(format!("cannot set up TLS: {}", root_cause(&error))))
}

/// The builder of all clients. It follows no redirects, because they could send a token elsewhere, and uses no proxy from
/// the environment, which only `config` reads.
pub(super) fn client_builder(tls: &TlsSettings, https: bool) -> Result<ClientBuilder, SourceError> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // reqwest would panic, even for plain http.
        return Err(config_error(
            "no TLS provider is installed in this process; install one before the first client".into(),
        ));
    }
    let builder = Client::builder()
        .user_agent(concat!("wva/", env!("CARGO_PKG_VERSION")))
        .redirect(redirect::Policy::none())
        .no_proxy()
        .gzip(true)
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(IDLE_TIMEOUT);
    if !https {
        // Without trust anchors: the client would look for those of the system, which a minimal image does not have.
        return Ok(builder.tls_certs_only([]));
    }
    let builder = match &tls.ca_path {
        // Without verification no CA is needed, and upstream's chart mounts an empty CA file when none is given.
        _ if tls.insecure_skip_verify => builder.tls_certs_only([]),
        Some(path) => builder.tls_certs_only(ca_certificates(path)?),
        None => builder,
    };
    let builder = match &tls.lookup {
        Some(lookup) => builder.dns_resolver(Arc::new(lookup.clone())),
        None => builder,
    };
    let builder = builder.tls_danger_accept_invalid_certs(tls.insecure_skip_verify);
    Ok(match identity(tls)? {
        Some(identity) => builder.identity(identity),
        None => builder,
    })
}

fn ca_certificates(path: &Path) -> Result<Vec<Certificate>, SourceError> {
    let pem = read(path, "CA")?;
    match Certificate::from_pem_bundle(&pem) {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(config_error(format!(
            "the CA file {} has no PEM certificate; put the issuer's certificate there",
            path.display()
        ))),
    }
}

fn identity(tls: &TlsSettings) -> Result<Option<Identity>, SourceError> {
    let (cert, key) = match (&tls.client_cert_path, &tls.client_key_path) {
        (Some(cert), Some(key)) => (cert, key),
        (None, None) => return Ok(None),
        _ => {
            return Err(config_error(
                "a client certificate needs its key, and a key its certificate; set both paths or neither"
                    .into(),
            ));
        }
    };
    let mut pem = read(key, "client key")?;
    pem.push(b'\n');
    pem.extend(read(cert, "client certificate")?);
    let wrong = |_| {
        let (cert, key) = (cert.display(), key.display());
        config_error(format!(
            "{cert} and {key} are not a PEM certificate and its key; check that they are a pair"
        ))
    };
    Identity::from_pem(&pem).map(Some).map_err(wrong)
}

fn read(path: &Path, what: &str) -> Result<Vec<u8>, SourceError> {
    std::fs::read(path).map_err(|error| {
        config_error(format!(
            "cannot read the {what} file {}: {error}; check that it is mounted and readable",
            path.display()
        ))
    })
}

/// An error of the settings.
pub(super) fn config_error(message: String) -> SourceError {
    SourceError { kind: "config", message }
}

/// The kind of a failed request, for metrics.
pub(crate) fn error_kind(error: &reqwest::Error) -> &'static str {
    if error.is_timeout() {
        "timeout"
    } else if error.is_body() || error.is_decode() {
        "decode"
    } else {
        "connect"
    }
}

/// The message of the innermost error: the outer ones only say that something failed.
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
