//! `wva demo` as a person meets it: the real binary, its table, its kubeconfig, its end.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// A machine that is busy with everything else shows the first new pod by then; an idle one after three seconds.
const PATIENCE: Duration = Duration::from_secs(60);

struct Demo {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
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
        Self { child, lines, seen: Vec::new(), kubeconfig }
    }

    fn until(&mut self, text: &str) {
        while !self.seen.last().is_some_and(|line| line.contains(text)) {
            let Ok(line) = self.lines.recv_timeout(PATIENCE) else {
                panic!("{text:?} is not among\n{}", self.seen.join("\n"));
            };
            self.seen.push(line);
        }
    }

    /// Asks what the printed kubectl line asks.
    async fn ask(&self) -> serde_json::Value {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let line = self.seen.iter().find(|line| line.contains("kubectl --kubeconfig")).unwrap();
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
    demo.until("wva wants 1");
    demo.until("wva wants 2 instead of 1");
    demo.until("makes 1 → 2 pods");
    let answer = demo.ask().await;
    assert_eq!(answer["kind"], "ExternalMetricValueList");
    assert_eq!(answer["items"].as_array().unwrap().len(), 1, "one item a variant: {answer}");
    assert_eq!(answer["items"][0]["metricLabels"]["variant_name"], "llama-8b");
    demo.until("2 pods serve now");
    assert!(demo.seen.iter().all(|line| !line.contains('\x1b')), "plain lines when nobody watches");
    demo.interrupt();
    demo.until("requests answered, longest wait");
    assert!(demo.child.wait().unwrap().success());
}

#[test]
fn a_taken_port_is_named_with_the_next_step() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let demo = Command::new(env!("CARGO_BIN_EXE_wva")).args(["demo", "--listen", &address]).output().unwrap();
    let said = String::from_utf8(demo.stderr).unwrap();
    assert!(
        !demo.status.success() && said.contains(&address) && said.contains("choose another port"),
        "{said}"
    );
}
