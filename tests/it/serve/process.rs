//! The whole program between a client and an API server: signals, logs and files.

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::READ;
use super::client::{Answer, config, exchange, tls, tls_over};
use super::pki::{Authority, Leaf, SERVICE, Subject};
use super::raw_http2::{GOAWAY, Raw, get, read};
use super::reviewing_api_server::{GOOD, ReviewingApiServer};

/// Time to start a process on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct Process {
    child: Child,
    address: SocketAddr,
    pub(super) api: ReviewingApiServer,
    serving: Serving,
    proxy: Leaf,
    /// A certificate of user `keda`.
    pub(super) keda: Leaf,
    directory: PathBuf,
}

/// The serving certificate of a process.
enum Serving {
    /// Issued by this CA, in files that flags name.
    Issued(Box<Authority>),
    /// Found or generated in a directory that a flag names.
    Directory(PathBuf),
}

impl Serving {
    /// The issuing CA in PEM; empty before it exists.
    fn ca(&self) -> String {
        match self {
            Self::Issued(ca) => ca.pem(),
            Self::Directory(directory) => {
                let chain = std::fs::read_to_string(directory.join("tls.crt")).unwrap_or_default();
                let last = chain.rfind("-----BEGIN CERTIFICATE-----").unwrap_or_default();
                chain[last..].to_owned()
            }
        }
    }
}

impl Process {
    async fn start(name: &str, arguments: &[&str]) -> Self {
        Self::start_with_objects(name, arguments, &[]).await
    }

    /// With these objects in the cluster, by the path of their resource.
    pub(super) async fn start_with_objects(
        name: &str,
        arguments: &[&str],
        objects: &[(&str, Value)],
    ) -> Self {
        let directory = directory(name);
        let ca = Authority::new("serving");
        let leaf = ca.issue(&Subject { names: &[SERVICE], ..Subject::default() });
        let files = [("tls.crt", &leaf.certificate), ("tls.key", &leaf.key)].map(|(name, text)| {
            let path = directory.join(name);
            std::fs::write(&path, text).unwrap();
            path.to_string_lossy().into_owned()
        });
        let flags = ["--tls-cert-file", &files[0], "--tls-private-key-file", &files[1]];
        Self::start_in(directory, Serving::Issued(Box::new(ca)), &[arguments, &flags].concat(), objects).await
    }

    async fn start_in(
        directory: PathBuf,
        serving: Serving,
        arguments: &[&str],
        objects: &[(&str, Value)],
    ) -> Self {
        let front_proxy = Authority::new("front-proxy-ca");
        let users = Authority::new("kubernetes");
        let api = ReviewingApiServer::start(&front_proxy, &users, objects).await;
        let access = directory.join("kubeconfig");
        std::fs::write(&access, kubeconfig(api.address)).unwrap();
        let address = free_address().await;
        let child = Command::new(env!("CARGO_BIN_EXE_wva"))
            .args(["serve", "--namespace", "wva", "--instance", "wva-0", "--bind-address", "127.0.0.1"])
            .args(["--source", "scrape", "--secure-port", &address.port().to_string()])
            .arg("--kubeconfig")
            .arg(access)
            .args(arguments)
            .args(if arguments.contains(&"--log-level") { &[][..] } else { &["--log-level", "trace"] })
            .env_clear()
            .stderr(Stdio::from(File::create(directory.join("log")).unwrap()))
            .spawn()
            .unwrap();
        let proxy = front_proxy.client("front-proxy-client", &[]);
        let keda = users.client("keda", &[]);
        let process = Self { child, address, api, serving, proxy, keda, directory };
        let began = Instant::now();
        while process.get("/readyz", &[]).await.is_none_or(|answer| answer.status != 200) {
            assert!(began.elapsed() < START_TIMEOUT, "not ready in time:\n{}", process.log());
            sleep(Duration::from_millis(50)).await;
        }
        process
    }

    /// `None` when the process has ended.
    pub(super) async fn get(&self, path: &str, lines: &[&str]) -> Option<Answer> {
        let stream = tls(self.address, &self.serving.ca(), SERVICE, None, "http/1.1").await.ok()?;
        Some(exchange(stream, &format!("GET {path}"), lines).await)
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The CA of its certificate, in PEM.
    pub(super) fn serving_ca(&self) -> String {
        self.serving.ca()
    }

    async fn h2(&self) -> Raw {
        let config = config(&self.serving.ca(), Some(&self.proxy), &["h2"], rustls::DEFAULT_VERSIONS);
        Raw::begin(tls_over(TcpStream::connect(self.address).await.unwrap(), SERVICE, config).await.unwrap())
            .await
    }

    pub(super) fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("log")).unwrap()
    }

    fn terminate(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    }

    async fn ended(&mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(began.elapsed() < START_TIMEOUT, "it does not end:\n{}", self.log());
            sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A directory of its own for the test called `name`.
fn directory(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("wva-process-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

/// Of an API server at `address`.
pub(crate) fn kubeconfig(address: SocketAddr) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: \"http://{address}\"}}}}]\nusers: [{{name: u, user: {{}}}}]\n"
    )
}

pub(super) async fn free_address() -> SocketAddr {
    tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

#[tokio::test]
async fn sigterm_ends_readiness_and_after_the_delay_drains_connections() {
    let delay = Duration::from_secs(2);
    let mut process = Process::start("sigterm", &["--shutdown-delay-duration", "2s"]).await;
    let mut h2 = process.h2().await;
    h2.send(&read(1)).await;
    h2.until(|frame| frame.ends(1)).await;

    let terminated = Instant::now();
    process.terminate();
    while process.get("/readyz", &[]).await.expect("still there").status != 500 {
        assert!(terminated.elapsed() < delay / 2, "readiness ends first");
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(process.get("/readyz/shutdown", &[]).await.expect("still there").status, 500);
    assert_eq!(process.get("/livez", &[]).await.expect("still there").status, 200);
    let token = format!("Authorization: Bearer {GOOD}token");
    assert_eq!(process.get("/apis", &[&token]).await.expect("still there").status, 200);
    h2.send(&read(3)).await;
    let frames = h2.until(|frame| frame.ends(3)).await;
    assert!(frames.iter().all(|frame| frame.kind != GOAWAY), "requests are answered during the delay");

    // Its review takes 3 s, so it is in flight when the listener closes.
    h2.send(&get(READ, "x-remote-user", "slow", 5)).await;
    h2.until(|frame| frame.kind == GOAWAY).await;
    let until_goaway = terminated.elapsed();
    assert!((delay..delay + Duration::from_secs(2)).contains(&until_goaway), "{until_goaway:?}");
    let frames = h2.until(|_| false).await;
    assert!(frames.iter().any(|frame| frame.ends(5)), "it is answered");
    assert!(TcpStream::connect(process.address).await.is_err(), "it no longer listens");
    let ended = process.ended().await;
    assert!(ended.success(), "{ended}");
    assert!(process.log().contains("stopped"));
}

#[tokio::test]
async fn a_process_with_an_empty_certificate_directory_generates_one() {
    let directory = directory("generated");
    let certificates = directory.join("certificates");
    std::fs::create_dir_all(&certificates).unwrap();
    let flags = ["--cert-dir", certificates.to_str().unwrap()];
    let serving = Serving::Directory(certificates.clone());
    let mut process = Process::start_in(directory.clone(), serving, &flags, &[]).await;
    // Its client trusts only the CA in the directory.
    assert_eq!(process.get("/livez", &[]).await.expect("an answer").status, 200);
    let generated = std::fs::read_to_string(certificates.join("tls.crt")).unwrap();
    assert!(process.log().contains("wrote a self-signed certificate"), "{}", process.log());
    process.terminate();
    assert!(process.ended().await.success());
    assert_eq!(std::fs::read_to_string(certificates.join("tls.crt")).unwrap(), generated);
}

#[tokio::test]
async fn a_token_appears_in_no_trace_log_and_no_answer() {
    const SECRET: &str = "sEcReT7f3a";
    let process = Process::start("token", &[]).await;
    for (kind, code) in [
        (GOOD.trim_end_matches('-'), 200),
        ("bad", 401),
        ("nameless", 401),
        ("unreadable", 503),
        ("refused", 503),
        ("proxy", 503),
    ] {
        let line = format!("Authorization: Bearer {kind}-{SECRET}");
        let answer = process.get("/metrics", &[&line]).await.expect("an answer");
        assert_eq!(answer.status, code, "{kind}: {}", answer.body);
        assert!(!answer.body.contains(SECRET) && !answer.head.contains(SECRET), "{kind}: {}", answer.body);
        if code == 503 {
            assert!(
                answer.message().starts_with("the bearer token cannot be reviewed: TokenReview failed: ")
            );
        }
    }
    let log = process.log();
    assert!(log.contains("TRACE") && log.contains("answered"), "the log says everything else");
    let secrets: Vec<_> = log.lines().filter(|line| line.contains(SECRET)).collect();
    assert_eq!(secrets, Vec::<&str>::new());

    let reviews = process.api.reviews.lock().clone();
    let [review] = reviews.as_slice() else { panic!("{reviews:?}") };
    let expected = serde_json::json!({
        "user": "system:serviceaccount:monitoring:prometheus",
        "uid": "p-1",
        "groups": ["system:serviceaccounts", "system:authenticated"],
        "extra": { "authentication.kubernetes.io/pod-name": ["prometheus-0"] },
        "nonResourceAttributes": { "path": "/metrics", "verb": "get" }
    });
    assert_eq!(*review, expected, "every attribute of the TokenReview");
}

#[tokio::test]
async fn decisions_until_sigterm_are_recorded_and_replay_exactly() {
    let folder = std::env::temp_dir().join(format!("wva-process-records-{}", std::process::id()));
    let flags =
        ["--interval", "100ms", "--record-dir", folder.to_str().unwrap(), "--record-max-size", "64Mi"];
    let mut process = Process::start("recorded", &flags).await;
    let token = format!("Authorization: Bearer {GOOD}token");
    let token = [token.as_str()];
    let snapshots = || process.get("/debug/snapshots/all", &token);
    let began = Instant::now();
    while snapshots().await.expect("an answer").body.matches("crc32").count() < 2 {
        assert!(began.elapsed() < START_TIMEOUT, "it does not evaluate:\n{}", process.log());
        sleep(Duration::from_millis(50)).await;
    }
    let metrics = process.get("/metrics", &token).await.expect("an answer").body;
    assert!(metrics.contains("wva_recorded_evaluations_total{result=\"written\"}"), "{metrics}");
    process.terminate();
    assert!(process.ended().await.success());
    let files: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    let replay = Command::new(env!("CARGO_BIN_EXE_wva")).arg("replay").args(&files).output().unwrap();
    let output = String::from_utf8(replay.stdout).unwrap();
    assert!(replay.status.success() && output.ends_with(": byte-identical\n"), "{files:?}: {output}");
    std::fs::remove_dir_all(folder).unwrap();
}
