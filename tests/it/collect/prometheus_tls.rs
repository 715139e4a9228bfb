//! Prometheus behind TLS with a temporary PKI: trust, client certificates, names, and rotated tokens.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use wva::collect::{PrometheusSettings, PrometheusSource, ScrapeSettings, ScrapeSource, TlsSettings, Token};
use wva::engine::{MetricSource as _, Scope};

use super::support::{HandClock, LOOPBACK, collect, endpoint, provider, scope, settings};

struct Pki {
    ca: CertifiedIssuer<'static, KeyPair>,
    dir: PathBuf,
}

impl Pki {
    fn new(test: &str) -> Self {
        let dir =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("collect-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(dir.join("ca.crt"), ca.pem()).unwrap();
        Self { ca, dir }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    fn issue(&self, name: &str, usage: ExtendedKeyUsagePurpose) -> (rcgen::Certificate, KeyPair) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.ca).unwrap(), key)
    }

    /// A client certificate, as files.
    fn client(&self) -> (PathBuf, PathBuf) {
        let (cert, key) = self.issue("wva", ExtendedKeyUsagePurpose::ClientAuth);
        std::fs::write(self.path("client.crt"), cert.pem()).unwrap();
        std::fs::write(self.path("client.key"), key.serialize_pem()).unwrap();
        (self.path("client.crt"), self.path("client.key"))
    }

    fn trusting(&self) -> TlsSettings {
        TlsSettings { ca_path: Some(self.path("ca.crt")), ..TlsSettings::default() }
    }
}

impl Drop for Pki {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// `Host`, and `Authorization` or else the tenant, of every request.
type Seen = Arc<Mutex<Vec<(String, Option<String>)>>>;

/// A Prometheus without series, which records the credentials of requests.
struct Server {
    address: SocketAddr,
    requests: Seen,
    _accepting: JoinSet<()>,
}

impl Server {
    async fn start(pki: &Pki, name: &str, client_certificates: bool) -> Self {
        provider();
        let (cert, key) = pki.issue(name, ExtendedKeyUsagePurpose::ServerAuth);
        let key = key.serialize_der().try_into().unwrap();
        let builder = ServerConfig::builder();
        let builder = if client_certificates {
            let mut roots = RootCertStore::empty();
            roots.add(pki.ca.der().clone()).unwrap();
            builder.with_client_cert_verifier(WebPkiClientVerifier::builder(roots.into()).build().unwrap())
        } else {
            builder.with_no_client_auth()
        };
        let config = builder.with_single_cert(vec![cert.der().clone()], key).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let mut accepting = JoinSet::new();
        let log = Arc::clone(&requests);
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                connections.spawn(serve(acceptor.clone(), socket, Arc::clone(&log)));
            }
        });
        Self { address, requests, _accepting: accepting }
    }

    fn settings(&self, tls: TlsSettings) -> PrometheusSettings {
        PrometheusSettings { tls, ..settings(format!("https://127.0.0.1:{}", self.address.port())) }
    }

    fn credentials(&self) -> Vec<Option<String>> {
        self.requests.lock().iter().map(|(_, credentials)| credentials.clone()).collect()
    }
}

async fn serve(acceptor: TlsAcceptor, socket: tokio::net::TcpStream, log: Seen) {
    let Ok(stream) = acceptor.accept(socket).await else { return };
    let answer = service_fn(move |request: Request<Incoming>| {
        let header = |name| request.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        if request.uri().path() != "/api/v1/status/config" {
            let credentials = header("authorization").or_else(|| header("x-scope-orgid"));
            log.lock().push((header("host").unwrap_or_default(), credentials));
        }
        let body = r#"{"status":"success","data":{"resultType":"vector","result":[]}}"#;
        std::future::ready(Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::from(body)))))
    });
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
}

#[tokio::test]
async fn the_configured_ca_is_trusted_and_another_is_not() {
    let pki = Pki::new("ca");
    let server = Server::start(&pki, "127.0.0.1", false).await;
    collect(&server.settings(pki.trusting()), &scope(&["llm"])).await.unwrap();

    let stranger = Pki::new("stranger");
    let error = collect(&server.settings(stranger.trusting()), &scope(&["llm"])).await.unwrap_err();
    assert_eq!(error.kind, "connect");
    assert!(error.message.contains("certificate") && error.message.contains("its CA"), "{error}");

    // Upstream's chart mounts a CA file with only a comment when none is given.
    std::fs::write(pki.path("comment.crt"), "# no CA\n").unwrap();
    let comment = TlsSettings { ca_path: Some(pki.path("comment.crt")), ..TlsSettings::default() };
    let careless = TlsSettings { insecure_skip_verify: true, ..comment.clone() };
    let refused = PrometheusSource::new(&server.settings(comment)).err().unwrap();
    assert!(refused.message.contains("has no PEM certificate"), "{refused}");
    collect(&server.settings(careless), &scope(&["llm"])).await.unwrap();
}

#[tokio::test]
async fn a_client_certificate_is_sent() {
    let pki = Pki::new("client");
    let server = Server::start(&pki, "127.0.0.1", true).await;
    assert!(collect(&server.settings(pki.trusting()), &scope(&["llm"])).await.is_err());
    let (cert, key) = pki.client();
    let tls = TlsSettings { client_cert_path: Some(cert), client_key_path: Some(key), ..pki.trusting() };
    collect(&server.settings(tls), &scope(&["llm"])).await.unwrap();
}

#[tokio::test]
async fn a_certificate_for_another_name_is_accepted_when_that_name_is_configured() {
    let pki = Pki::new("name");
    let server = Server::start(&pki, "prometheus.monitoring.svc", false).await;
    let plain = server.settings(pki.trusting());
    assert!(collect(&plain, &scope(&["llm"])).await.is_err());
    let named = PrometheusSettings { server_name: Some("prometheus.monitoring.svc".into()), ..plain };
    collect(&named, &scope(&["llm"])).await.unwrap();
    let hosts: Vec<String> = server.requests.lock().iter().map(|(host, _)| host.clone()).collect();
    assert!(hosts.iter().all(|host| *host == format!("127.0.0.1:{}", server.address.port())), "{hosts:?}");
}

#[tokio::test]
async fn a_token_file_is_read_again_after_rotation_and_may_disappear() {
    let pki = Pki::new("token");
    let server = Server::start(&pki, "127.0.0.1", false).await;
    let file = pki.path("token");
    std::fs::write(&file, "first\n").unwrap();
    let settings = PrometheusSettings { token: Token::File(file.clone()), ..server.settings(pki.trusting()) };
    let source = PrometheusSource::new(&settings).unwrap();
    let scope = scope(&["llm"]);
    source.collect(&scope).await.unwrap();
    std::fs::write(&file, "second\n").unwrap();
    source.collect(&scope).await.unwrap();
    std::fs::remove_file(&file).unwrap();
    source.collect(&scope).await.unwrap();
    let requests: Vec<_> = server.credentials().into_iter().flatten().collect();
    assert_eq!(
        requests,
        ["first", "first", "second", "second", "second", "second"].map(|t| format!("Bearer {t}"))
    );
}

#[tokio::test]
async fn a_tenant_in_a_file_is_sent_over_tls_and_read_again_when_it_changes() {
    let pki = Pki::new("tenant");
    let server = Server::start(&pki, "127.0.0.1", false).await;
    let file = pki.path("tenant");
    std::fs::write(&file, "team-a\n").unwrap();
    let headers = vec![(http::HeaderName::from_static("x-scope-orgid"), Token::File(file.clone()))];
    let settings = PrometheusSettings { headers, ..server.settings(pki.trusting()) };
    let source = PrometheusSource::new(&settings).unwrap();
    source.collect(&scope(&["llm"])).await.unwrap();
    std::fs::write(&file, "team-b\n").unwrap();
    source.collect(&scope(&["llm"])).await.unwrap();
    // A value that cannot be read or used does not replace the last one.
    for broken in [&b""[..], b"two\nlines", b"\xff"] {
        std::fs::write(&file, broken).unwrap();
        source.collect(&scope(&["llm"])).await.unwrap();
    }
    std::fs::remove_file(&file).unwrap();
    source.collect(&scope(&["llm"])).await.unwrap();
    let tenants: Vec<_> = server.credentials().into_iter().flatten().collect();
    assert_eq!(
        (&tenants[..4], tenants.len()),
        (&["team-a", "team-a", "team-b", "team-b"].map(str::to_owned)[..], 12)
    );
    assert!(tenants[4..].iter().all(|tenant| tenant == "team-b"), "{tenants:?}");
    let error = PrometheusSource::new(&settings).unwrap().collect(&scope(&["llm"])).await.unwrap_err();
    let path = file.display().to_string();
    assert!(error.message.contains("x-scope-orgid") && error.message.contains(&path), "{error}");
}

#[tokio::test]
async fn a_user_and_password_in_the_url_are_sent_over_tls_unless_there_is_a_token() {
    let pki = Pki::new("basic");
    let server = Server::start(&pki, "127.0.0.1", false).await;
    let url = format!("https://user:s3cret@127.0.0.1:{}", server.address.port());
    let basic = PrometheusSettings { url, ..server.settings(pki.trusting()) };
    collect(&basic, &scope(&["llm"])).await.unwrap();
    let token = PrometheusSettings { token: Token::Inline("t0ken".into()), ..basic };
    collect(&token, &scope(&["llm"])).await.unwrap();
    let requests: Vec<_> = server.credentials().into_iter().flatten().collect();
    assert_eq!(
        requests,
        ["Basic dXNlcjpzM2NyZXQ=", "Basic dXNlcjpzM2NyZXQ=", "Bearer t0ken", "Bearer t0ken"]
    );
}

#[tokio::test]
async fn pods_behind_tls_get_the_scrape_token() {
    let pki = Pki::new("pods");
    let server = Server::start(&pki, "127.0.0.1", false).await;
    let settings = ScrapeSettings {
        scheme: "https".into(),
        token: Token::Inline("t0ken".into()),
        tls: pki.trusting(),
        ..ScrapeSettings::default()
    };
    let source = ScrapeSource::new(&settings, Arc::new(HandClock::new())).unwrap();
    let endpoints = vec![endpoint("llm", "p", server.address)];
    source.collect(&Scope { endpoints, ..scope(&["llm"]) }).await.unwrap();
    assert_eq!(server.credentials(), [Some("Bearer t0ken".to_owned())]);
}

#[tokio::test]
async fn unusable_settings_are_rejected_at_the_start_and_named() {
    provider();
    let refused = |change: &dyn Fn(&mut PrometheusSettings)| {
        let mut settings = settings("https://prometheus:9090");
        change(&mut settings);
        let error = PrometheusSource::new(&settings).err().unwrap();
        assert_eq!(error.kind, "config");
        error.message
    };
    assert!(refused(&|s| s.tls.ca_path = Some("/nonexistent/ca.crt".into())).contains("/nonexistent/ca.crt"));
    assert!(refused(&|s| s.tls.client_cert_path = Some("/x/tls.crt".into())).contains("needs its key"));
    assert!(refused(&|s| s.server_name = Some("10.0.0.1".into())).contains("not a DNS name"));
    assert!(refused(&|s| s.url = "prometheus:9090".into()).contains("https://host:9090"));
}
