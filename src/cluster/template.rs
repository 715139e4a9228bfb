//! What a pod template says of one replica: its GPUs, and what its containers run. Bounded, and without what looks like a
//! secret: it goes into records of decisions.

use smol_str::SmolStr;
use wva_core::snapshot::{Container, Template};

use super::wire::{Quantities, TemplateContainer, TemplateSpec};

/// Resources that are GPUs.
pub(crate) const GPU_RESOURCES: [&str; 3] = ["nvidia.com/gpu", "amd.com/gpu", "intel.com/gpu"];
/// GPUs of one node or container that are believed: more is a mistake, and would drown every other count.
const MOST_GPUS: u32 = 1024;
/// Containers that are looked at: an engine has a handful beside it.
const MOST_CONTAINERS: usize = 8;
/// Words of a command or its arguments, and bytes of them together: four times the longest we know.
const MOST_WORDS: usize = 256;
const MOST_BYTES: usize = 16 * 1024;
/// The variable that selects vLLM's engine.
const VLLM_USE_V1: &str = "VLLM_USE_V1";
/// Parts of an option's name that say its value is a secret.
const SECRETS: [&str; 5] = ["key", "token", "secret", "password", "credentials"];
/// What stands in place of one.
const HIDDEN: &str = "***";

/// The template, as far as decisions need it.
pub(crate) fn template(spec: &TemplateSpec) -> Template {
    let gpus = spec.containers.iter().map(of_container).fold(0, u32::saturating_add);
    let containers = spec.containers.iter().take(MOST_CONTAINERS).map(container).collect();
    Template { gpus: gpus.clamp(1, MOST_GPUS), containers }
}

/// What a container asks for; of a resource that is only limited, its limit, as Kubernetes has it.
fn of_container(container: &TemplateContainer) -> u32 {
    let resources = &container.resources;
    let one = |name: &str| {
        let asked = gpus(&resources.requests, name);
        if asked > 0 { asked } else { gpus(&resources.limits, name) }
    };
    GPU_RESOURCES.iter().map(|name| one(name)).fold(0, u32::saturating_add)
}

/// The count of one resource. GPUs are whole: what is no whole number is none.
pub(crate) fn gpus(quantities: &Quantities, name: &str) -> u32 {
    let count = quantities.get(name).and_then(|quantity| quantity.0.parse::<u32>().ok());
    count.unwrap_or_default().min(MOST_GPUS)
}

fn container(of: &TemplateContainer) -> Container {
    let mut words = Words::default();
    let command = words.take(&of.command);
    let args = words.take(&of.args);
    let v1 = of.env.iter().rev().find(|variable| variable.name == VLLM_USE_V1);
    let v1 = v1.and_then(|variable| variable.value.as_deref()).map(|value| cut(value, 32).into());
    Container { image: cut(&of.image, 256).into(), command, args, vllm_use_v1: v1 }
}

/// The beginning of a text, at most so many bytes of it.
fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    text.get(..end).unwrap_or_default()
}

/// Words of a command line, one after the other.
#[derive(Default)]
struct Words {
    count: usize,
    bytes: usize,
    /// The word before was an option whose value is a secret.
    hide_next: bool,
}

impl Words {
    fn take(&mut self, words: &[String]) -> Vec<SmolStr> {
        let mut taken = Vec::new();
        for word in words {
            self.count += 1;
            self.bytes = self.bytes.saturating_add(word.len());
            if self.count > MOST_WORDS || self.bytes > MOST_BYTES {
                break;
            }
            taken.push(self.without_secrets(word));
        }
        taken
    }

    /// A word may be a whole script: its own words are looked at too.
    fn without_secrets(&mut self, word: &str) -> SmolStr {
        let shown: Vec<_> = word.split(' ').map(|part| self.shown(part)).collect();
        SmolStr::from(shown.join(" "))
    }

    fn shown(&mut self, part: &str) -> String {
        let Some(option) = part.strip_prefix("--") else {
            let hide = !part.is_empty() && std::mem::take(&mut self.hide_next);
            return if hide { HIDDEN.to_owned() } else { part.to_owned() };
        };
        let (name, value) =
            option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        let secret =
            name.split(['-', '_']).any(|word| SECRETS.iter().any(|one| word.eq_ignore_ascii_case(one)));
        self.hide_next = secret && value.is_none();
        if secret && value.is_some() { format!("--{name}={HIDDEN}") } else { part.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(containers: Value) -> Template {
        template(&serde_json::from_value(json!({ "containers": containers })).unwrap())
    }

    fn with(resources: Value) -> Value {
        json!({ "name": "c", "resources": resources })
    }

    #[test]
    fn the_gpus_of_a_replica_are_those_of_all_its_containers_and_at_least_one() {
        let gpus = |containers| of(containers).gpus;
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
        assert_eq!(gpus(json!([with(json!({ "limits": { "nvidia.com/gpu": "4000000000" } }))])), MOST_GPUS);
    }

    #[test]
    fn what_an_engine_is_told_is_kept() {
        let env = json!([{ "name": "VLLM_USE_V1", "value": "0" }, { "name": "HF_TOKEN", "value": "hf_x" }]);
        let one = json!({
            "image": "vllm/vllm-openai:v0.9", "command": ["vllm", "serve"], "env": env,
            "args": ["m", "--max-num-seqs=64", "--max-num-batched-tokens", "8192", "--tokenizer", "t"]
        });
        let container = Container {
            image: "vllm/vllm-openai:v0.9".into(),
            command: vec!["vllm".into(), "serve".into()],
            args: ["m", "--max-num-seqs=64", "--max-num-batched-tokens", "8192", "--tokenizer", "t"]
                .map(Into::into)
                .to_vec(),
            vllm_use_v1: Some("0".into()),
        };
        assert_eq!(of(json!([one])).containers, [container]);
    }

    #[test]
    fn a_secret_in_a_command_line_is_not_kept() {
        let args = json!(["--api-key", "s3cret", "--api-key=s3cret", "--hf_token", "s3cret", "--x", "y"]);
        let script = json!(["sh", "-c", "exec vllm serve m --api-key s3cret --block-size 32"]);
        let kept = of(json!([{ "command": script, "args": args }]));
        let text = serde_json::to_string(&kept).unwrap();
        assert!(!text.contains("s3cret"), "{text}");
        assert!(
            text.contains("vllm serve m --api-key *** --block-size 32") && text.contains("\"y\""),
            "{text}"
        );
    }

    #[test]
    fn an_absurd_template_costs_little() {
        let words = vec!["w".repeat(100); 10_000];
        let one = json!({ "args": words, "image": "é".repeat(1000), "env": [{ "name": "VLLM_USE_V1", "value": "1".repeat(99) }] });
        let kept = of(json!(vec![one; 20]));
        assert_eq!(kept.containers.len(), MOST_CONTAINERS);
        assert!(serde_json::to_string(&kept).unwrap().len() < MOST_CONTAINERS * (MOST_BYTES + 1024));
    }
}
