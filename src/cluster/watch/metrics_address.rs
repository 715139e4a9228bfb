//! Where a pod's metrics are: its port and path. What the pod says comes first, then what its engine does by default. Pure.

use std::net::IpAddr;

use super::model_server::{self, ContainerProgram, METRICS_PORT, PortArgument, VLLM};
use super::partial_objects::{PartialContainer, PartialPod};
use super::template::requested_gpus;

/// Annotations of a pod: the port and the path of its metrics.
const PORT_ANNOTATION: &str = "prometheus.io/port";
const PATH_ANNOTATION: &str = "prometheus.io/path";
/// Where an endpoint picker has its metrics, unless its pod says otherwise.
const SCHEDULER_PORT: u16 = 9090;
/// The longest path that an annotation can set.
const MAX_PATH_BYTES: usize = 256;

/// Where the metrics of a pod are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MetricsAddress {
    pub(crate) ip: IpAddr,
    /// `None`: unknown, because the pod shares the network of its node, and names a port that no container declares.
    pub(crate) port: Option<u16>,
    /// The port of its metrics if it is an endpoint picker; `None` likewise.
    pub(crate) scheduler_port: Option<u16>,
    /// `None`: the path that is configured for all pods.
    pub(crate) path: Option<Box<str>>,
}

impl MetricsAddress {
    /// The address of a pod; `None` while it has no IP address.
    pub(crate) fn of(pod: &PartialPod) -> Option<Self> {
        let ip = pod.status.pod_ip.as_deref()?.parse().ok()?;
        let containers = &pod.spec.containers[..];
        let found =
            model_server::find(containers, program, |container| requested_gpus(&container.resources) > 0);
        let server = found.map_or(&VLLM, |(_, started)| started.server);
        // A port of a sidecar may have any name.
        let serving = found.map_or(containers, |(container, _)| std::slice::from_ref(container));
        let argument = found.map_or(PortArgument::Absent, |(_, started)| started.port);
        // In the network of its node, a pod could name the port of any other program there.
        let may_serve =
            |port: &u16| !pod.spec.host_network || ports(containers).any(|(_, declared)| declared == *port);
        let annotated = annotated_port(pod);
        // A default port would be another program's, too, if the pod says that its own is elsewhere.
        let may_be_default =
            !pod.spec.host_network || (annotated.is_none() && argument == PortArgument::Absent);
        let said = annotated.filter(may_serve);
        let scheduler_port = said
            .or_else(|| named_port(containers, METRICS_PORT))
            .or_else(|| (!pod.spec.host_network).then_some(SCHEDULER_PORT));
        let port = said
            .or_else(|| named_port(serving, METRICS_PORT))
            .or_else(|| named_port(serving, server.port_name))
            // An engine that is reachable in its pod only may have a proxy for its metrics.
            .or_else(|| named_port(containers, METRICS_PORT))
            .or_else(|| match argument {
                PortArgument::Port(port) => Some(port).filter(may_serve),
                PortArgument::Unreadable => only_port(serving).or(may_be_default.then_some(VLLM.port)),
                PortArgument::Absent => may_be_default.then_some(server.port),
            });
        let path = annotated_path(pod).filter(|_| port.is_some_and(|port| may_serve(&port))).or(server.path);
        Some(Self { ip, port, scheduler_port, path: path.map(Into::into) })
    }
}

fn program(container: &PartialContainer) -> ContainerProgram<'_> {
    let PartialContainer { image, command, args, .. } = container;
    ContainerProgram { image, command, args }
}

fn annotation<'a>(pod: &'a PartialPod, name: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(name).map(|text| text.trim())
}

fn annotated_port(pod: &PartialPod) -> Option<u16> {
    annotation(pod, PORT_ANNOTATION)?.parse().ok().filter(|port| *port != 0)
}

/// The annotated path, if it is one: it becomes part of a URL and of messages.
fn annotated_path(pod: &PartialPod) -> Option<&str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%".contains(&byte);
    let is_path =
        |path: &&str| path.starts_with('/') && path.len() <= MAX_PATH_BYTES && path.bytes().all(is_plain);
    annotation(pod, PATH_ANNOTATION).filter(is_path)
}

/// The ports of containers, each with its name.
fn ports(containers: &[PartialContainer]) -> impl Iterator<Item = (Option<&str>, u16)> {
    let ports = containers.iter().flat_map(|container| &container.ports);
    ports.filter_map(|port| Some((port.name.as_deref(), u16::try_from(port.container_port).ok()?)))
}

/// The container port with this name.
fn named_port(containers: &[PartialContainer], name: &str) -> Option<u16> {
    ports(containers).find(|(named, _)| *named == Some(name)).map(|(_, port)| port)
}

/// The container port, if there is only one.
fn only_port(containers: &[PartialContainer]) -> Option<u16> {
    let mut ports = ports(containers).map(|(_, port)| port);
    ports.next().filter(|_| ports.next().is_none())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::watch::model_server::MODEL_SERVERS;

    /// Port and path of a pod with these containers and annotations.
    fn of(containers: Value, annotations: Value) -> (u16, Option<String>) {
        let (port, path) = of_spec(json!({ "containers": containers }), annotations);
        (port.unwrap(), path)
    }

    fn of_spec(spec: Value, annotations: Value) -> (Option<u16>, Option<String>) {
        let pod = json!({
            "metadata": { "name": "p", "annotations": annotations },
            "spec": spec,
            "status": { "podIP": "10.0.0.1" },
        });
        let pod: PartialPod = serde_json::from_value(pod).unwrap();
        let address = MetricsAddress::of(&pod).unwrap();
        (address.port, address.path.map(Into::into))
    }

    fn ports(names: &[(&str, u16)]) -> Value {
        names.iter().map(|(name, port)| json!({ "name": name, "containerPort": port })).collect()
    }

    /// The address of a container with this image and command, which names no port.
    fn unnamed(image: &str, command: &[&str]) -> (u16, Option<String>) {
        of(json!([{ "image": image, "command": command }]), json!({}))
    }

    #[test]
    fn each_model_server_has_its_port_and_path() {
        for (image, command, port) in [
            ("vllm/vllm-openai:v0.12", &["vllm", "serve", "m"][..], 8000),
            ("lmsysorg/sglang:v0.5", &["python3", "-m", "sglang.launch_server"], 30_000),
            ("ghcr.io/huggingface/text-generation-inference:3.3", &[], 80),
            ("nvcr.io/nvidia/tritonserver:25.09-trtllm-python-py3", &[], 8002),
            ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.6", &["python3", "-m", "dynamo.vllm"], 9090),
            ("registry/unknown", &["serve"], 8000),
        ] {
            assert_eq!(unnamed(image, command), (port, None), "{image} {command:?}");
        }
        let tensorrt_llm = unnamed("nvcr.io/nvidia/tensorrt-llm/release", &["trtllm-serve", "m"]);
        assert_eq!(tensorrt_llm, (8000, Some("/prometheus/metrics".to_owned())));
    }

    #[test]
    fn docs_configuration_has_every_model_server_as_it_is_recognised() {
        let docs = include_str!("../../../docs/configuration.md");
        for server in &MODEL_SERVERS {
            let names = server.programs.iter().chain(server.images);
            let has_names = |line: &&str| names.clone().all(|name| line.contains(&format!("`{name}`")));
            let row = docs.lines().filter(|line| line.starts_with("| ")).find(has_names);
            let row = row.unwrap_or_else(|| panic!("{:?} is missing", server.programs));
            assert!(row.contains(&format!("| {} |", server.port)), "{row}");
            assert!(
                row.contains(server.port_argument) && row.contains(server.path.unwrap_or("--scrape-path"))
            );
        }
    }

    #[test]
    fn an_argument_of_the_engine_sets_the_port_and_one_of_another_container_does_not() {
        let sidecar = json!({ "image": "routing-proxy", "args": ["--port=8000"] });
        for (args, port) in [
            (json!(["serve", "m", "--port=8200"]), 8200),
            (json!(["serve", "m", "--port", "8200"]), 8200),
            (json!(["serve", "m", "--port"]), 8000),
            (json!(["serve", "m", "--port=0", "--portable=1"]), 8000),
            (json!(["serve", "m", "--metrics-port=9"]), 8000),
        ] {
            let engine = json!({ "image": "vllm", "args": args });
            assert_eq!(of(json!([sidecar, engine]), json!({})).0, port, "{args}");
        }
        let script = json!({ "command": ["sh", "-c"], "args": ["vllm serve m --port '8200' --x 1"] });
        assert_eq!(of(json!([sidecar, script]), json!({})).0, 8200);
        let triton = ["tritonserver", "--http-port=8100", "--metrics-port=8102"];
        assert_eq!(unnamed("", &triton).0, 8102);
    }

    #[test]
    fn a_named_port_comes_before_arguments_and_defaults() {
        let named = |command: &str, names: &[(&str, u16)]| {
            let command = ["python3", "-m", command];
            of(json!([{ "command": command, "args": ["--port=7"], "ports": ports(names) }]), json!({})).0
        };
        assert_eq!(named("vllm", &[("http", 1), ("metrics", 2)]), 2);
        assert_eq!(named("vllm", &[("other", 3), ("http", 1)]), 1);
        assert_eq!(named("sglang", &[("http", 1)]), 1);
        assert_eq!(named("unknown", &[("http", 1)]), 1);
        assert_eq!(named("tritonserver", &[("http", 8000), ("grpc", 8001)]), 8002, "not for metrics");
        assert_eq!(named("dynamo.vllm", &[("http", 1), ("system", 9091)]), 9091);
    }

    #[test]
    fn the_http_port_of_a_sidecar_was_once_scraped_as_the_engines() {
        let sidecar = json!({ "image": "proxy", "ports": ports(&[("http", 8000), ("metrics", 9)]) });
        let engine = |names: &[(&str, u16)]| json!({ "image": "vllm/vllm-openai", "args": ["--port=8200"], "ports": ports(names) });
        assert_eq!(of(json!([sidecar, engine(&[("http", 8201)])]), json!({})).0, 8201);
        let without_metrics = json!({ "image": "proxy", "ports": ports(&[("http", 8000)]) });
        assert_eq!(of(json!([without_metrics, engine(&[])]), json!({})).0, 8200);
        let unknown = json!({ "image": "own", "ports": [] });
        assert_eq!(of(json!([sidecar, unknown]), json!({})).0, 9, "nothing says which one is the engine");
    }

    #[test]
    fn a_pod_in_the_network_of_its_node_could_once_have_any_of_its_ports_scraped() {
        let scraped = |is_host: bool, declared: &[(&str, u16)], argument: &str, annotations: Value| {
            let container = json!({ "image": "vllm", "args": [argument], "ports": ports(declared) });
            of_spec(json!({ "hostNetwork": is_host, "containers": [container] }), annotations)
        };
        let kubelet = || json!({ "prometheus.io/port": "10250", "prometheus.io/path": "/pods" });
        let pods = Some("/pods".to_owned());
        assert_eq!(scraped(true, &[("http", 9000)], "", kubelet()), (Some(9000), pods.clone()));
        let declared = scraped(true, &[("x", 10_250)], "", kubelet());
        assert_eq!(declared, (Some(10_250), pods.clone()));
        assert_eq!(scraped(true, &[("x", 8200)], "--port=8200", json!({})), (Some(8200), None));
        assert_eq!(scraped(false, &[], "", kubelet()), (Some(10_250), pods), "it is a port of the pod alone");
        assert_eq!(scraped(true, &[], "", json!({})), (Some(8000), None), "it names no port");
    }

    #[test]
    fn a_pod_in_the_network_of_its_node_was_once_scraped_at_the_default_port_of_another() {
        let scraped = |argument: &str, annotated: &str| {
            let container =
                json!({ "image": "vllm", "args": [argument], "ports": ports(&[("x", 1), ("y", 2)]) });
            let spec = json!({ "hostNetwork": true, "containers": [container] });
            of_spec(spec, json!({ "prometheus.io/port": annotated }))
        };
        for (argument, annotated) in [("--port=8001", ""), ("--port=$PORT", ""), ("", "8001")] {
            assert_eq!(scraped(argument, annotated), (None, None), "{argument} {annotated}");
        }
        assert_eq!(scraped("--port=2", "8001"), (Some(2), None));
    }

    #[test]
    fn the_metrics_of_an_engine_behind_a_proxy_were_once_not_found() {
        let proxy =
            json!({ "image": "kube-rbac-proxy", "ports": ports(&[("https", 8443), ("metrics", 8443)]) });
        let engine = json!({ "image": "vllm/vllm-openai", "args": ["m", "--host=127.0.0.1", "--port=8000"] });
        assert_eq!(of(json!([engine, proxy]), json!({})).0, 8443);
        assert_eq!(of(json!([proxy, engine]), json!({})).0, 8443);
    }

    #[test]
    fn an_sglang_with_a_variable_as_port_was_once_scraped_at_its_default() {
        let command = ["sh", "-c", "sglang serve --port $PORT"];
        let scraped = |declared: &[(&str, u16)]| {
            of(json!([{ "command": command, "ports": ports(declared) }]), json!({})).0
        };
        assert_eq!((scraped(&[]), scraped(&[("api", 9000)])), (8000, 9000));
        assert_eq!(scraped(&[("api", 9000), ("other", 9001)]), 8000);
    }

    #[test]
    fn annotations_come_before_everything_and_invalid_ones_do_not_count() {
        let containers = || json!([{ "command": ["trtllm-serve"], "ports": ports(&[("metrics", 2)]) }]);
        let own = Some("/own/metrics".to_owned());
        let default = Some("/prometheus/metrics".to_owned());
        let annotated = json!({ "prometheus.io/port": " 9 ", "prometheus.io/path": "/own/metrics" });
        assert_eq!(of(containers(), annotated), (9, own));
        for path in ["", "metrics", "/a b", "/a?b=c", "/a#b", "/a\nb", "/ä", &format!("/{}", "x".repeat(256))]
        {
            let annotated = json!({ "prometheus.io/port": "0", "prometheus.io/path": path });
            assert_eq!(of(containers(), annotated), (2, default.clone()), "{path:?}");
        }
    }
}
