//! `wva demo` as a user runs it: the real binary, its table, its kubeconfig, its end.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// An idle machine shows the first new pod after three seconds, a busy one within this.
const LINE_TIMEOUT: Duration = Duration::from_secs(60);

struct Demo {
    child: Child,
    lines: Receiver<String>,
    shown: Vec<String>,
    kubeconfig: PathBuf,
}

impl Demo {
    /// Fifty times as fast as real time: 3 s until the first new pod serves.
    fn start(name: &str) -> Self {
        let file = format!("wva-demo-test-{name}-{}.kubeconfig", std::process::id());
        let kubeconfig = std::env::temp_dir().join(file);
        let mut child = Command::new(env!("CARGO_BIN_EXE_wva"))
            .args(["demo", "--listen", "127.0.0.1:0", "--speed", "50", "--kubeconfig-out"])
            .arg(&kubeconfig)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, lines, shown: Vec::new(), kubeconfig }
    }

    fn until(&mut self, text: &str) {
        while !self.shown.last().is_some_and(|line| line.contains(text)) {
            let Ok(line) = self.lines.recv_timeout(LINE_TIMEOUT) else {
                panic!("{text:?} is not among\n{}", self.shown.join("\n"));
            };
            self.shown.push(line);
        }
    }

    /// Reads what the printed kubectl line reads.
    async fn read(&self) -> serde_json::Value {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let line = self.shown.iter().find(|line| line.contains("kubectl --kubeconfig")).unwrap();
        let path = line.split('\'').nth(1).unwrap();
        let kubeconfig = kube::config::Kubeconfig::read_from(&self.kubeconfig).unwrap();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        kube::Client::try_from(config).unwrap().request(request).await.unwrap()
    }

    fn interrupt(&mut self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.kubeconfig);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_grows_its_fleet_answers_kubectl_and_ends_cleanly() {
    let mut demo = Demo::start("loop");
    demo.until("kubectl --kubeconfig");
    demo.until("wva: desired replicas 1");
    demo.until("wva: desired replicas 1 → 2");
    demo.until("HPA: 1 → 2 pods");
    let answer = demo.read().await;
    assert_eq!(answer["kind"], "ExternalMetricValueList");
    assert_eq!(answer["items"].as_array().unwrap().len(), 1, "one item a variant: {answer}");
    assert_eq!(answer["items"][0]["metricLabels"]["variant_name"], "llama-8b");
    demo.until("fleet: 2 pods ready");
    assert!(demo.shown.iter().all(|line| !line.contains('\x1b')), "plain lines without a terminal");
    demo.interrupt();
    demo.until("requests answered, longest wait");
    assert!(demo.child.wait().unwrap().success());
}

#[test]
fn a_taken_port_is_named_with_the_next_step() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let demo = Command::new(env!("CARGO_BIN_EXE_wva")).args(["demo", "--listen", &address]).output().unwrap();
    let error = String::from_utf8(demo.stderr).unwrap();
    assert!(
        !demo.status.success() && error.contains(&address) && error.contains("choose another port"),
        "{error}"
    );
}
