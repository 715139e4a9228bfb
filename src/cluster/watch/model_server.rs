//! Which model server a container runs, by the program that it starts and the name of its image. Other words of a command say
//! nothing: a model, a path or a flag of a sidecar may contain the name of any engine. Pure.

/// The container port that serves metrics, by its name, whatever the model server is.
pub(super) const METRICS_PORT: &str = "metrics";
/// Most words of a command that are read. Model servers have a few dozen.
const MAX_WORDS: usize = 1_000;

/// A model server: how it is recognised, and where its metrics are by default.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ModelServer {
    /// Its executables, and its Python modules (`python -m MODULE`), each also with submodules.
    pub(super) programs: &'static [&'static str],
    /// Names that images have whose entry point starts it: the last elements of the path.
    pub(super) images: &'static [&'static str],
    /// The port of its metrics, unless an argument says another.
    pub(super) port: u16,
    /// The argument that sets this port; empty if there is none.
    pub(super) port_argument: &'static str,
    /// The name of a container port that is also the one of the metrics.
    pub(super) port_name: &'static str,
    /// The path of its metrics; `None` for the configured one.
    pub(super) path: Option<&'static str>,
    /// Whether its arguments are those of vLLM or SGLang, from which capacities are read.
    pub(super) has_known_arguments: bool,
}

/// vLLM (`vllm serve`): its API server has the metrics. A pod of an unknown model server is scraped like this, too.
pub(super) const VLLM: ModelServer = ModelServer {
    programs: &["vllm"],
    images: &["vllm", "vllm-openai", "vllm-openai-rocm"],
    port: 8000,
    port_argument: "--port",
    port_name: "http",
    path: None,
    has_known_arguments: true,
};
/// SGLang (`python/sglang/srt/server_args.py`): likewise.
const SGLANG: ModelServer = ModelServer { programs: &["sglang"], images: &["sglang"], port: 30_000, ..VLLM };
/// TGI: its image sets `PORT=80` (`Dockerfile`).
const TGI: ModelServer = ModelServer {
    programs: &["text-generation-launcher"],
    images: &["text-generation-inference"],
    port: 80,
    has_known_arguments: false,
    ..VLLM
};
/// `trtllm-serve`: its `/metrics` is JSON.
const TENSORRT_LLM: ModelServer = ModelServer {
    programs: &["trtllm-serve", "tensorrt_llm"],
    images: &["tensorrt-llm/release"],
    path: Some("/prometheus/metrics"),
    has_known_arguments: false,
    ..VLLM
};
/// Triton has a port for metrics only; the one that is named http serves requests.
const TRITON: ModelServer = ModelServer {
    programs: &["tritonserver"],
    images: &["tritonserver"],
    port: 8002,
    port_argument: "--metrics-port",
    port_name: METRICS_PORT,
    has_known_arguments: false,
    ..VLLM
};
/// A worker of Dynamo: its operator sets port and name (`deploy/operator/internal/consts/consts.go`). Its image contains the engine.
const DYNAMO: ModelServer = ModelServer {
    programs: &["dynamo.vllm", "dynamo.sglang"],
    images: &[],
    port: 9090,
    port_argument: "",
    port_name: "system",
    ..VLLM
};
const DYNAMO_TENSORRT_LLM: ModelServer =
    ModelServer { programs: &["dynamo.trtllm"], has_known_arguments: false, ..DYNAMO };

/// All of them.
pub(super) static MODEL_SERVERS: [ModelServer; 7] =
    [VLLM, SGLANG, TGI, TENSORRT_LLM, TRITON, DYNAMO, DYNAMO_TENSORRT_LLM];

/// Shells, of which a script names the programs.
const SHELLS: [&str; 5] = ["ash", "bash", "dash", "sh", "zsh"];
/// Words that stand before the program of a command.
const BEFORE_PROGRAMS: [&str; 10] =
    ["do", "dumb-init", "else", "env", "exec", "nohup", "numactl", "nvidia_entrypoint.sh", "then", "tini"];

/// What a container starts.
#[derive(Debug, Clone, Copy)]
pub(super) struct ContainerProgram<'a> {
    pub(super) image: &'a str,
    pub(super) command: &'a [String],
    pub(super) args: &'a [String],
}

/// A model server that a container starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Started {
    pub(super) server: &'static ModelServer,
    pub(super) port: PortArgument,
}

/// The argument that sets the port of the metrics, as `--port=N` or `--port N`. The last one counts, as in `argparse`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PortArgument {
    Absent,
    /// It is there, but is no number: a variable, for example.
    Unreadable,
    Port(u16),
}

/// The container that runs a model server, and which: the first whose command line says so, else the first whose image does. Where
/// containers request GPUs, it is one of these. A container that is alone in its pod is the model server, of whatever kind.
pub(super) fn find<'c, C>(
    containers: &'c [C],
    program: impl Fn(&'c C) -> ContainerProgram<'c>,
    has_gpu: impl Fn(&C) -> bool,
) -> Option<(&'c C, Started)> {
    let is_without_gpus = !containers.iter().any(&has_gpu);
    let by = |started: fn(ContainerProgram<'c>) -> Option<Started>| {
        let mut candidates = containers.iter().filter(|container| is_without_gpus || has_gpu(container));
        candidates.find_map(|container| Some((container, started(program(container))?)))
    };
    let alone = || {
        let [alone] = containers else { return None };
        Some((alone, program(alone).started_by_image(&VLLM)))
    };
    by(by_command_line).or_else(|| by(by_image)).or_else(alone)
}

/// The model server that a container is recognised to start.
pub(super) fn recognise(container: ContainerProgram<'_>) -> Option<&'static ModelServer> {
    by_command_line(container).or_else(|| by_image(container)).map(|started| started.server)
}

impl<'a> ContainerProgram<'a> {
    fn command_line(self) -> impl Iterator<Item = &'a str> {
        self.command.iter().chain(self.args).map(String::as_str).take(MAX_WORDS)
    }

    /// Whether its first word is a shell.
    fn is_shell(self) -> bool {
        self.command_line().next().is_some_and(|first| SHELLS.contains(&executable(first)))
    }

    /// `server`, which the image starts. The arguments are its own unless the container starts something else, such as a worker of
    /// Ray.
    fn started_by_image(self, server: &'static ModelServer) -> Started {
        let is_started = self.command.is_empty() && !self.is_shell();
        let port = if is_started { port_argument(self.command_line(), server) } else { PortArgument::Absent };
        Started { server, port }
    }
}

fn port_argument<'a>(mut words: impl Iterator<Item = &'a str>, server: &ModelServer) -> PortArgument {
    let mut port = PortArgument::Absent;
    if server.port_argument.is_empty() {
        return port;
    }
    while let Some(word) = words.next() {
        let value = match word.strip_prefix(server.port_argument) {
            Some("") => words.next().unwrap_or_default(),
            Some(rest) if rest.starts_with('=') => &rest[1..],
            _ => continue,
        };
        let number = value.parse().ok().filter(|port| *port != 0);
        port = number.map_or(PortArgument::Unreadable, PortArgument::Port);
    }
    port
}

fn by_command_line(container: ContainerProgram<'_>) -> Option<Started> {
    if !container.is_shell() {
        return by_command(container.command_line());
    }
    let has_script = |option: &str| option.starts_with('-') && option.ends_with('c');
    let script = container.command_line().skip_while(|word| !has_script(word)).nth(1)?;
    commands(script).iter().find_map(|words| by_command(words.iter().map(String::as_str)))
}

/// The words of each command of a shell's script, without quotes. Variables are not expanded.
fn commands(script: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words, mut word) = (Vec::new(), Vec::new(), String::new());
    let (mut quote, mut count) = (None, 0);
    let mut letters = script.chars();
    while count < MAX_WORDS {
        let Some(letter) = letters.next() else { break };
        match (letter, quote) {
            (letter, Some(open)) if letter == open => quote = None,
            ('"' | '\'', None) => quote = Some(letter),
            // Before the end of a line, it continues the line.
            ('\\', None | Some('"')) => word.extend(letters.next().filter(|letter| *letter != '\n')),
            ('#', None) if word.is_empty() => {
                letters.find(|letter| *letter == '\n');
                if !words.is_empty() {
                    commands.push(std::mem::take(&mut words));
                }
            }
            (' ' | '\t' | '\r' | '\n' | ';' | '&' | '|', None) => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                    count += 1;
                }
                if matches!(letter, '\n' | ';' | '&' | '|') && !words.is_empty() {
                    commands.push(std::mem::take(&mut words));
                }
            }
            (letter, _) => word.push(letter),
        }
    }
    words.extend(Some(word).filter(|word| !word.is_empty()));
    commands.push(words);
    commands
}

/// By the program of one command: its executable, or the module or script of Python.
fn by_command<'a>(words: impl Iterator<Item = &'a str>) -> Option<Started> {
    // Options of a program are its own, unless they follow one that starts another.
    let mut has_options = false;
    let mut words = words.skip_while(|word| {
        if word.starts_with('-') {
            return has_options;
        }
        has_options = BEFORE_PROGRAMS.contains(&word.rsplit('/').next().unwrap_or(word));
        has_options || word.contains('=')
    });
    let mut name = executable(words.next()?);
    if name.starts_with("python") {
        name = loop {
            match words.next()? {
                "-m" => break words.next()?,
                option if option.starts_with('-') => {}
                script => break executable(script),
            }
        };
    }
    let is_named = |program: &&str| {
        name.strip_prefix(program).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let server = MODEL_SERVERS.iter().find(|server| server.programs.iter().any(is_named))?;
    Some(Started { server, port: port_argument(words, server) })
}

/// By the last elements of the path of the image, without registry, tag and digest.
fn by_image(container: ContainerProgram<'_>) -> Option<Started> {
    let path = container.image.split('@').next().unwrap_or_default();
    // A colon before a slash is that of the registry's port.
    let path = path.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).map_or(path, |(path, _)| path);
    let ends_with =
        |name: &&str| path.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'));
    let server = MODEL_SERVERS.iter().find(|server| server.images.iter().any(ends_with))?;
    Some(container.started_by_image(server))
}

/// The name of an executable, without its directory `bin`. With another path it is no executable, but may be a model.
fn executable(word: &str) -> &str {
    word.rsplit_once('/').filter(|(directory, _)| directory.ends_with("/bin")).map_or(word, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A container: its image, its command and its arguments.
    struct Container(&'static str, Vec<String>, Vec<String>);

    fn container(image: &'static str, command: &[&str], args: &[&str]) -> Container {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Container(image, owned(command), owned(args))
    }

    fn program(Container(image, command, args): &Container) -> ContainerProgram<'_> {
        ContainerProgram { image, command, args }
    }

    /// The container that is found, without GPUs, and what it starts.
    fn found(containers: &[Container]) -> Option<(&Container, Started)> {
        find(containers, program, |_| false)
    }

    /// The default port of the model server in a container beside another one.
    fn port(image: &'static str, command: &[&str], args: &[&str]) -> Option<u16> {
        let containers = [container("own/unknown", &[], &[]), container(image, command, args)];
        found(&containers).map(|(_, started)| started.server.port)
    }

    /// The port argument of the model server that a script starts.
    fn port_of_script(script: &str) -> PortArgument {
        found(&[container("own/image", &["sh", "-c", script], &[])]).unwrap().1.port
    }

    #[test]
    fn a_model_server_is_recognised_by_the_program_that_it_starts() {
        for (command, args, expected) in [
            (&["vllm", "serve", "m"][..], &[][..], 8000),
            (&["/opt/vllm/bin/vllm"], &["serve", "m"], 8000),
            (&["python3", "-m", "vllm.entrypoints.openai.api_server"], &[], 8000),
            (&["python3", "-u", "/usr/local/bin/vllm", "serve"], &[], 8000),
            (&["python", "-O", "-m", "sglang.launch_server"], &[], 30_000),
            (&["sglang"], &["serve"], 30_000),
            (&[], &["/opt/nvidia/nvidia_entrypoint.sh", "trtllm-serve", "m"], 8000),
            (&["python3", "-m", "tensorrt_llm.commands.serve"], &[], 8000),
            (&["tritonserver", "--model-repository=/models"], &[], 8002),
            (&["text-generation-launcher"], &[], 80),
            (&["python3", "-m", "dynamo.vllm"], &[], 9090),
            (&["sh", "-c", "exec python3 -m dynamo.sglang --model m"], &[], 9090),
            (&["/bin/bash", "-ec"], &["set -u\nX=1 HF_HOME=/c env tritonserver &\nwait"], 8002),
            (&["sh", "-c"], &["cd /w && if true; then 'sglang' serve \\\n --port 1; fi"], 30_000),
        ] {
            assert_eq!(port("own/image", command, args), Some(expected), "{command:?} {args:?}");
        }
    }

    #[test]
    fn an_image_is_recognised_by_its_name_without_registry_and_tag() {
        for (image, expected) in [
            ("vllm/vllm-openai:v0.12", Some(8000)),
            ("registry:5000/rocm/vllm", Some(8000)),
            ("lmsysorg/sglang@sha256:00", Some(30_000)),
            ("ghcr.io/huggingface/text-generation-inference:3.3", Some(80)),
            ("nvcr.io/nvidia/tritonserver:25.09-trtllm-python-py3", Some(8002)),
            ("nvcr.io/nvidia/tensorrt-llm/release:1.2@sha256:00", Some(8000)),
            ("vllm/router:v1", None),
            ("sglang/own:sglang", None),
            ("sglang:5000/own", None),
            ("own/vllm-exporter", None),
            ("", None),
        ] {
            assert_eq!(port(image, &[], &[]), expected, "{image}");
        }
    }

    #[test]
    fn a_vllm_with_an_sglang_draft_model_was_once_scraped_at_sglangs_port() {
        let draft = "--speculative-config={\"model\":\"lmsys/sglang\"}";
        for args in [
            &["m", draft][..],
            &["sglang/tritonserver", "--draft", "sglang"],
            &["/models/sglang"],
            &["--served-model-name", "dynamo.sglang"],
        ] {
            assert_eq!(port("vllm/vllm-openai", &[], args), Some(8000), "{args:?}");
            assert_eq!(port("own/image", &["vllm", "serve"], args), Some(8000), "{args:?}");
            let script = format!("vllm serve {}", args.join(" "));
            assert_eq!(port("own/image", &["sh", "-c", &script], &[]), Some(8000), "{args:?}");
        }
    }

    #[test]
    fn a_routing_sidecar_that_names_vllm_was_once_taken_for_the_engine() {
        let sidecar = || {
            container("ghcr.io/llm-d/llm-d-routing-sidecar:v0.3", &[], &["--port=8000", "--vllm-port=8200"])
        };
        let engine = || container("own/image", &["sglang", "serve"], &["--port", "8200"]);
        for containers in [[sidecar(), engine()], [engine(), sidecar()]] {
            let (_, started) = found(&containers).unwrap();
            assert_eq!((started.server.port, started.port), (30_000, PortArgument::Port(8200)));
        }
        let both = [container("vllm/vllm-openai", &[], &["m"]), engine()];
        let (engine, _) = found(&both).unwrap();
        assert_eq!(engine.0, "own/image", "a command line says more than an image");
        assert!(found(&[sidecar(), sidecar()]).is_none());
    }

    #[test]
    fn a_sidecar_with_a_command_once_beat_the_engine_that_has_the_gpus() {
        let containers =
            [container("own/image", &["vllm", "bench"], &[]), container("lmsysorg/sglang", &[], &[])];
        let (engine, started) = find(&containers, program, |container| container.1.is_empty()).unwrap();
        assert_eq!((engine.0, started.server.port), ("lmsysorg/sglang", 30_000));
        let (engine, _) = find(&containers, program, |_| true).unwrap();
        assert_eq!(engine.0, "own/image");
    }

    #[test]
    fn the_port_of_ray_in_the_same_script_was_once_taken_for_the_engines() {
        for (script, port) in [
            ("ray start --head --port=6379 && vllm serve m", PortArgument::Absent),
            ("ray start --head --port=6379; vllm serve m --port 8200", PortArgument::Port(8200)),
            ("vllm serve m --port 8200 & ray start --port=6379", PortArgument::Port(8200)),
            ("vllm serve m --port 8200 --port=8300", PortArgument::Port(8300)),
            ("vllm serve m --port=8200 --port $PORT", PortArgument::Unreadable),
            ("vllm serve m --port '8200'", PortArgument::Port(8200)),
            ("vllm serve m --x '{\"a\":\n\"b;c\"}' \\\n  --port=\"8200\"", PortArgument::Port(8200)),
            ("vllm serve m --port", PortArgument::Unreadable),
            ("vllm serve m --port=0 --portable=1 --metrics-port=9", PortArgument::Unreadable),
            ("python3 -m dynamo.vllm --port=9", PortArgument::Absent),
            ("./own --port=9", PortArgument::Absent),
            ("wait # don't start\nvllm serve m --port=8200 # isn't 8000", PortArgument::Port(8200)),
        ] {
            assert_eq!(port_of_script(script), port, "{script}");
        }
        let worker = [container("vllm/vllm-openai", &["ray", "start"], &["--port=6379"])];
        assert_eq!(found(&worker).unwrap().1.port, PortArgument::Absent);
    }

    #[test]
    fn a_lone_container_is_the_model_server_and_an_endless_command_is_read_in_part() {
        let alone = [container("own/image", &[], &["serve", "--port=9"])];
        let (_, started) = found(&alone).unwrap();
        assert_eq!(started, Started { server: &VLLM, port: PortArgument::Port(9) });
        let words = vec!["exec"; MAX_WORDS];
        let late = [&words[..], &["sglang", "--port=9"]].concat();
        assert_eq!(port("own/image", &late, &[]), None);
        assert_eq!(port("own/image", &["sh", "-c", &late.join(" ")], &[]), None);
    }
}
