//! What a pod template says about one replica: its GPUs, and the engine's parameters.

use wva_core::snapshot::{Container, Engine, EngineParameters, Template};

use super::model_server::{self, ContainerProgram};
use super::partial_objects::{Quantities, Resources, TemplateContainer, TemplateSpec};
use crate::lint::{EndingContainer, Termination, is_gpu};

/// Resources that are GPUs.
pub(crate) const GPU_RESOURCES: [&str; 3] = ["nvidia.com/gpu", "amd.com/gpu", "intel.com/gpu"];
/// Most GPUs of one node, container or replica: more is a mistake, and would outweigh every other count.
pub(super) const MAX_GPUS: u32 = 1024;
/// Most containers that are read: an engine has a handful of sidecars.
const MAX_CONTAINERS: usize = 8;
/// The variable that selects vLLM's engine version.
const VLLM_USE_V1: &str = "VLLM_USE_V1";

/// A replica of `pods` pods, one of `first` and the others of `rest`, as far as decisions need it. The engine's parameters
/// are those of `first`.
pub(crate) fn parse_template(first: &TemplateSpec, rest: &TemplateSpec, pods: u32) -> Template {
    let more = template_gpus(rest).saturating_mul(pods.saturating_sub(1));
    let gpus = template_gpus(first).saturating_add(more);
    let containers: Vec<_> = first.containers.iter().take(MAX_CONTAINERS).map(container).collect();
    let mut servers = containers.iter().filter_map(|container| model_server::recognise(program(container)));
    // A pod of which nothing is recognised runs a vLLM.
    let is_other = servers
        .next()
        .is_some_and(|first| !first.has_known_arguments && servers.all(|server| !server.has_known_arguments));
    let has_parameters = !containers.is_empty() && !is_other;
    let engine = has_parameters.then(|| EngineParameters::parse(Engine::of(&containers), &containers));
    Template { gpus: Some(replica_gpus(gpus)), engine }
}

/// The GPUs of a replica for which `requested` are requested.
pub(crate) fn replica_gpus(requested: u32) -> u32 {
    requested.clamp(1, MAX_GPUS)
}

fn template_gpus(spec: &TemplateSpec) -> u32 {
    let gpus = spec.containers.iter().map(|container| requested_gpus(&container.resources));
    gpus.fold(0, u32::saturating_add)
}

/// GPUs that the containers of a replica of `pods` pods request, by resource.
pub(crate) fn gpus_by_resource(
    first: &TemplateSpec,
    rest: &TemplateSpec,
    pods: u32,
) -> [u32; GPU_RESOURCES.len()] {
    let of = |spec: &TemplateSpec, name| {
        let gpus = spec.containers.iter().map(|container| requested(&container.resources, name));
        gpus.fold(0, u32::saturating_add)
    };
    GPU_RESOURCES.map(|name| {
        of(first, name).saturating_add(of(rest, name).saturating_mul(pods.saturating_sub(1))).min(MAX_GPUS)
    })
}

/// GPUs that a container requests. As in Kubernetes, the limit counts where there is no request.
pub(crate) fn requested_gpus(resources: &Resources) -> u32 {
    GPU_RESOURCES.iter().map(|name| requested(resources, name)).fold(0, u32::saturating_add)
}

fn requested(resources: &Resources, name: &str) -> u32 {
    let request = gpu_count(&resources.requests, name);
    if request > 0 { request } else { gpu_count(&resources.limits, name) }
}

/// The amount of one GPU resource; 0 where it is no whole number.
pub(crate) fn gpu_count(quantities: &Quantities, name: &str) -> u32 {
    let count = quantities.get(name).and_then(|quantity| quantity.0.parse::<u32>().ok());
    count.unwrap_or_default().min(MAX_GPUS)
}

/// A whole number, as the API server writes it: 1000 may be `1k`. `None` where there is none.
pub(crate) fn whole(quantities: &Quantities, name: &str) -> Option<u32> {
    let text = quantities.get(name)?.0.as_str();
    let (digits, unit) = match text.strip_suffix(['k', 'M']) {
        Some(digits) if text.ends_with('k') => (digits, 1000),
        Some(digits) => (digits, 1_000_000),
        None => (text, 1),
    };
    Some(digits.parse::<u32>().ok()?.saturating_mul(unit))
}

/// How pods of a template end.
pub(crate) fn termination(spec: &TemplateSpec) -> Option<Termination> {
    let containers = spec.containers.iter().map(|container| EndingContainer {
        name: &container.name,
        has_gpus: container.resources.limits.keys().any(|resource| is_gpu(resource)),
        lifecycle: container.lifecycle.as_ref(),
    });
    Termination::new(spec.termination_grace_period_seconds, containers)
}

fn container(container: &TemplateContainer) -> Container {
    let v1 = container.env.iter().rev().find(|variable| variable.name == VLLM_USE_V1);
    let v1 = v1.and_then(|variable| variable.value.clone());
    Container {
        image: container.image.clone(),
        command: container.command.clone(),
        args: container.args.clone(),
        environment: v1.into_iter().map(|value| (VLLM_USE_V1.to_owned(), value)).collect(),
    }
}

fn program(container: &Container) -> ContainerProgram<'_> {
    let Container { image, command, args, .. } = container;
    ContainerProgram { image, command, args }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(containers: Value) -> Template {
        let spec = serde_json::from_value(json!({ "containers": containers })).unwrap();
        parse_template(&spec, &spec, 1)
    }

    fn with(resources: Value) -> Value {
        json!({ "name": "c", "resources": resources })
    }

    #[test]
    fn the_gpus_of_a_replica_are_those_of_all_its_containers_and_at_least_one() {
        let gpus = |containers| of(containers).gpus.unwrap();
        assert_eq!(gpus(json!([])), 1);
        assert_eq!(gpus(json!([with(json!({ "requests": { "cpu": "8", "memory": "64Gi" } }))])), 1);
        let nvidia =
            with(json!({ "requests": { "nvidia.com/gpu": "4" }, "limits": { "nvidia.com/gpu": "4" } }));
        let amd = with(json!({ "limits": { "amd.com/gpu": 2 } }));
        assert_eq!(gpus(json!([nvidia, amd])), 6);
        assert_eq!(gpus(json!([with(json!({ "limits": { "intel.com/gpu": "1" } }))])), 1);
        for nonsense in [json!("-3"), json!("half"), json!(1.5), json!(true)] {
            assert_eq!(gpus(json!([with(json!({ "limits": { "nvidia.com/gpu": nonsense } }))])), 1);
        }
        assert_eq!(gpus(json!([with(json!({ "limits": { "nvidia.com/gpu": "4000000000" } }))])), MAX_GPUS);
    }

    #[test]
    fn engine_parameters_are_stored_and_secrets_are_not() {
        let env = json!([{ "name": "VLLM_USE_V1", "value": "0" }, { "name": "HF_TOKEN", "value": "hf_x" }]);
        let container = json!({
            "image": "vllm/vllm-openai:v0.9", "command": ["vllm", "serve"], "env": env,
            "args": ["m", "--max-num-seqs=64", "--max-num-batched-tokens", "4096", "--api-key", "s3cret"]
        });
        let template = of(json!([container]));
        let engine = template.engine.as_ref().unwrap();
        assert_eq!((engine.max_sequences, engine.batched_tokens, engine.v1), (64, 4096, false));
        let text = serde_json::to_string(&template).unwrap();
        assert!(!text.contains("s3cret") && !text.contains("hf_x"), "{text}");
        assert_eq!(of(json!([])).engine, None);
    }

    #[test]
    fn an_engine_of_another_kind_was_once_taken_for_a_vllm_of_256_sequences() {
        let parameters = |command: &[&str]| of(json!([{ "command": command }])).engine;
        for program in ["trtllm-serve", "tritonserver", "text-generation-launcher"] {
            assert_eq!(parameters(&[program, "m"]), None, "{program}");
        }
        assert_eq!(parameters(&["python3", "-m", "dynamo.trtllm"]), None);
        let of_vllm = parameters(&["python3", "-m", "dynamo.vllm", "--max-num-seqs=64"]);
        assert_eq!(of_vllm.map(|engine| engine.max_sequences), Some(64));
        assert!(parameters(&["serve"]).is_some(), "as in WVA, an unknown one is a vLLM");
        let beside = of(json!([
            { "command": ["tritonserver"] },
            { "image": "vllm/vllm-openai", "args": ["m", "--max-num-seqs=64"] },
        ]));
        assert_eq!(beside.engine.map(|engine| engine.max_sequences), Some(64), "a sidecar does not hide it");
    }

    #[test]
    fn an_oversized_template_takes_little_memory() {
        let words = vec!["--kv-cache-dtype=".to_owned() + &"w".repeat(10_000); 1000];
        let template = of(json!(vec![json!({ "args": words, "image": "é".repeat(1000) }); 20]));
        assert!(serde_json::to_string(&template).unwrap().len() < 1024);
    }
}
