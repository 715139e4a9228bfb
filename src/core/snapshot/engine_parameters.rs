//! The settings of a model server that its capacity depends on, from its arguments, as far as upstream reads them (WVA v0.9,
//! `internal/engines/analyzers/saturation_v2/deployment_parser.go`).

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::units::Tokens;

/// Which model server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// vLLM.
    #[default]
    Vllm,
    /// SGLang.
    Sglang,
}

/// What is read of one container of the pod template.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Container {
    /// Its image.
    pub image: String,
    /// Its command.
    pub command: Vec<String>,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its environment: names and plain values.
    pub environment: Vec<(String, String)>,
}

/// The settings of a model server that its capacity depends on. Numbers are kept as written, because the server checks them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EngineParameters {
    /// Whose settings.
    pub engine: Engine,
    /// Share of the accelerator's memory the engine may use.
    pub memory_fraction: f64,
    /// Tokens in a block of the KV cache.
    pub block_size: i64,
    /// Type of the values in the KV cache.
    pub kv_cache_dtype: SmolStr,
    /// Accelerators that share each layer.
    pub tensor_parallel_size: i64,
    /// Blocks of the KV cache when set by hand, else 0.
    pub blocks_override: i64,
    /// Tokens in the KV cache when set by hand (SGLang), else 0.
    pub tokens_override: i64,
    /// Tokens in one batch when set by hand, else 0.
    pub max_batched_tokens: i64,
    /// S: requests that run at once.
    pub max_sequences: i64,
    /// An argument sets it; otherwise it is the default that upstream assumes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_max_sequences: bool,
    /// Tokens of the longest request when set by hand, else 0.
    pub max_length: i64,
    /// CUDA graphs are not captured.
    pub eager: bool,
    /// vLLM's V1 engine, or SGLang's only one.
    pub v1: bool,
    /// Long prompts are computed in pieces.
    pub chunked_prefill: bool,
    /// B: tokens in one batch, computed from the others.
    pub batched_tokens: i64,
}

/// S that upstream assumes if no argument sets it.
const ASSUMED_SEQUENCES: i64 = 256;

/// Longer names of data types are cut, because they are remembered. Real ones are short.
const MAX_DTYPE_CHARS: usize = 32;

impl Engine {
    /// SGLang if an image or a command line says so, or else vLLM.
    #[must_use]
    pub fn of(containers: &[Container]) -> Self {
        let is_sglang = |container: &Container| {
            let line = [container.command.join(" "), container.args.join(" ")].join(" ");
            container.image.contains("sglang")
                || line.contains("sglang.launch_server")
                || line.contains("sglang serve")
        };
        if containers.iter().any(is_sglang) { Self::Sglang } else { Self::Vllm }
    }
}

impl EngineParameters {
    /// The settings of an engine without arguments.
    #[must_use]
    pub fn defaults(engine: Engine) -> Self {
        let block_size = match engine {
            Engine::Vllm => 16,
            Engine::Sglang => 1,
        };
        Self {
            engine,
            memory_fraction: 0.9,
            block_size,
            kv_cache_dtype: SmolStr::new_static("auto"),
            tensor_parallel_size: 1,
            blocks_override: 0,
            tokens_override: 0,
            max_batched_tokens: 0,
            max_sequences: ASSUMED_SEQUENCES,
            has_max_sequences: false,
            max_length: 0,
            eager: false,
            v1: true,
            chunked_prefill: true,
            batched_tokens: 8192,
        }
    }

    /// Reads all containers of the pod template, later values winning.
    #[must_use]
    pub fn parse(engine: Engine, containers: &[Container]) -> Self {
        let mut found = Self::defaults(engine);
        for container in containers {
            let is_v0 = |(name, value): &(String, String)| name == "VLLM_USE_V1" && value == "0";
            if engine == Engine::Vllm && container.environment.iter().any(is_v0) {
                (found.v1, found.chunked_prefill) = (false, false);
            }
            let tokens = tokens(container);
            let mut rest = tokens.iter().map(String::as_str).peekable();
            while let Some(token) = rest.next() {
                if !token.starts_with("--") {
                    continue;
                }
                let (key, value) = match token.split_once('=') {
                    Some(pair) => pair,
                    // Even a flag that takes no value consumes the next word, as upstream.
                    None => (token, rest.next_if(|next| !next.starts_with("--")).unwrap_or_default()),
                };
                found.set(&key.trim_start_matches('-').replace('-', "_"), value);
            }
        }
        found.chunked_prefill |= engine == Engine::Vllm && found.v1;
        found.batched_tokens = found.resolved_batch();
        found
    }

    fn set(&mut self, key: &str, value: &str) {
        match (self.engine, key) {
            (Engine::Vllm, "gpu_memory_utilization") | (Engine::Sglang, "mem_fraction_static") => {
                let fraction = value.parse().ok().filter(|fraction: &f64| fraction.is_finite());
                self.memory_fraction = fraction.unwrap_or(self.memory_fraction);
            }
            (_, "kv_cache_dtype") => self.kv_cache_dtype = value.chars().take(MAX_DTYPE_CHARS).collect(),
            (Engine::Vllm, "enforce_eager") | (Engine::Sglang, "disable_cuda_graph") => self.eager = true,
            (Engine::Vllm, "enable_chunked_prefill") => self.chunked_prefill = true,
            _ => {
                if let Ok(number) = value.parse() {
                    self.set_number(key, number);
                }
            }
        }
    }

    fn set_number(&mut self, key: &str, number: i64) {
        let field = match (self.engine, key) {
            (Engine::Vllm, "block_size") | (Engine::Sglang, "page_size") => &mut self.block_size,
            (_, "tensor_parallel_size") | (Engine::Sglang, "tp_size" | "tp") => {
                &mut self.tensor_parallel_size
            }
            (Engine::Vllm, "num_gpu_blocks_override") => &mut self.blocks_override,
            (Engine::Sglang, "max_total_tokens") => &mut self.tokens_override,
            (Engine::Vllm, "max_num_seqs") | (Engine::Sglang, "max_running_requests") => {
                self.has_max_sequences = true;
                &mut self.max_sequences
            }
            (Engine::Vllm, "max_model_len") | (Engine::Sglang, "context_length") => &mut self.max_length,
            (Engine::Vllm, "max_num_batched_tokens") | (Engine::Sglang, "max_prefill_tokens") => {
                &mut self.max_batched_tokens
            }
            (Engine::Sglang, "chunked_prefill_size") => {
                self.chunked_prefill = number > 0;
                if number <= 0 {
                    return;
                }
                &mut self.max_batched_tokens
            }
            _ => return,
        };
        *field = number;
    }

    /// S, if an argument sets it. Recordings and memories of earlier versions have no `has_max_sequences`; in them any number other than the
    /// assumed one is an argument.
    #[must_use]
    pub fn sequences(&self) -> Option<u32> {
        let is_argument = self.has_max_sequences || self.max_sequences != ASSUMED_SEQUENCES;
        u32::try_from(self.max_sequences).ok().filter(|max| is_argument && *max > 0)
    }

    fn resolved_batch(&self) -> i64 {
        const UNCHUNKED: i64 = 2048;
        if self.max_batched_tokens > 0 {
            return self.max_batched_tokens;
        }
        match (self.chunked_prefill, self.v1) {
            (true, true) => 8192,
            (true, false) => 2048,
            (false, _) => self.max_length.max(UNCHUNKED),
        }
    }

    /// Tokens in the KV cache if an argument sets them, else 0.
    #[must_use]
    pub fn kv_tokens(&self) -> Tokens {
        if self.blocks_override > 0 {
            Tokens::new(self.blocks_override.saturating_mul(self.block_size))
        } else {
            Tokens::new(self.tokens_override)
        }
    }

    /// E: tokens resident while requests of `prompt` and `output` tokens keep every batch full; `None` if that cannot be computed.
    #[must_use]
    pub fn resident_tokens(&self, prompt: f64, output: f64) -> Option<Tokens> {
        if output <= 0.0 {
            return None;
        }
        let batch = crate::units::to_f64(self.batched_tokens);
        let max_running = crate::units::to_f64(self.max_sequences);
        let running = (batch * output / (prompt + output)).min(max_running);
        // Without a batch, or with a length that is NaN, the result is 0.
        Some(Tokens::truncated(running * (prompt + output / 2.0))).filter(|found| *found > Tokens::ZERO)
    }

    /// Equal in everything that determines the capacity. The maximum of sequences is left out, as upstream.
    pub(crate) fn is_compatible(&self, other: &Self) -> bool {
        self.engine == other.engine
            && self.tokens_override == other.tokens_override
            && self.has_same_memory(other)
    }

    /// Equal in everything that determines the capacity, except the engine and the settings that only SGLang has.
    pub(crate) fn has_same_memory(&self, other: &Self) -> bool {
        // Compared by bits: equal if written alike.
        self.memory_fraction.to_bits() == other.memory_fraction.to_bits()
            && self.block_size == other.block_size
            && self.tensor_parallel_size == other.tensor_parallel_size
            && self.blocks_override == other.blocks_override
            && self.batched_tokens == other.batched_tokens
            && self.kv_cache_dtype == other.kv_cache_dtype
    }
}

/// The words of command and arguments; for a shell with `-c`, only those of its script.
fn tokens(container: &Container) -> Vec<String> {
    const SHELLS: [&str; 4] = ["sh", "bash", "/bin/sh", "/bin/bash"];
    let all: Vec<String> = container.command.iter().chain(&container.args).cloned().collect();
    let script = all.windows(3).find_map(|three| match three {
        [shell, flag, script] if SHELLS.contains(&shell.as_str()) && flag == "-c" => Some(words(script)),
        _ => None,
    });
    script.unwrap_or(all)
}

/// Splits a script at spaces outside quotes, without escapes or variables, as upstream.
fn words(script: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for letter in script.chars() {
        match (quote, letter) {
            (None, '\'' | '"') => quote = Some(letter),
            (Some(open), _) if letter == open => quote = None,
            (None, ' ') => words.push(std::mem::take(&mut word)),
            _ => word.push(letter),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}
