//! What an engine's arguments say of its capacity.

use super::*;
use crate::snapshot::Container;
use crate::upstream::{self, Tree};

fn kv_tokens(parameters: &EngineParameters, compat: Compat) -> i64 {
    let tokens = match Tree::from_compat(compat) {
        None => parameters.kv_tokens(),
        Some(tree) => upstream::saturation_token::kv_tokens(parameters, tree),
    };
    tokens.get()
}

fn parsed(engine: Engine, args: &str, environment: &[(&str, &str)]) -> EngineParameters {
    let args = args.split(' ').map(str::to_owned).collect();
    let environment = environment.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    EngineParameters::parse(engine, &[Container { args, environment, ..Container::default() }])
}

#[test]
fn arguments_mean_what_upstream_reads_in_them() {
    let v0 = [("VLLM_USE_V1", "0")];
    let batch = |args, environment: &[_]| parsed(Engine::Vllm, args, environment).batched_tokens;
    assert_eq!(batch("--enable-chunked-prefill", &v0), 2048);
    assert_eq!(batch("--max-model-len=4096", &v0), 4096);
    assert_eq!(batch("--max-model-len=4096 --enable-chunked-prefill", &v0), 2048);
    assert_eq!(batch("--max-model-len=1024", &v0), 2048);
    assert_eq!(batch("--max-model-len -1", &[("VLLM_USE_V1", "1")]), 8192);
    let odd = parsed(Engine::Vllm, "-tp 4 --block-size=x --gpu-memory-utilization=NaN --max-num-seqs", &[]);
    assert_eq!(odd, EngineParameters::defaults(Engine::Vllm));
    let by_hand = parsed(Engine::Vllm, "--num-gpu-blocks-override=100 --block-size 32", &[]);
    assert_eq!(TREES.map(|compat| kv_tokens(&by_hand, compat)), [3200, 3200, 3200]);
    let sglang =
        parsed(Engine::Sglang, "--max-total-tokens 9000 --max-prefill-tokens=77 --disable-cuda-graph", &v0);
    assert_eq!(TREES.map(|compat| kv_tokens(&sglang, compat)), [9000, 9000, 0]);
    assert_eq!((sglang.batched_tokens, sglang.eager, sglang.v1), (77, true, true));
    let pieces = ["4096", "0", "-1"].map(|size| {
        let found = parsed(Engine::Sglang, &format!("--chunked-prefill-size {size}"), &[]);
        (found.chunked_prefill, found.batched_tokens)
    });
    assert_eq!(pieces, [(true, 4096), (false, 2048), (false, 2048)]);
}

#[test]
fn an_engine_is_known_by_its_image_or_its_command() {
    let of = |image: &str, command: &[&str], args: &[&str]| {
        let texts = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let (command, args) = (texts(command), texts(args));
        let sidecar = Container { image: "proxy".into(), ..Container::default() };
        Engine::of(&[sidecar, Container { image: image.into(), command, args, environment: Vec::new() }])
    };
    assert_eq!(of("lmsysorg/sglang:v0.5", &[], &[]), Engine::Sglang);
    assert_eq!(of("x", &["python3", "-m", "sglang.launch_server"], &[]), Engine::Sglang);
    assert_eq!(of("x", &["sglang"], &["serve"]), Engine::Sglang);
    assert_eq!(of("vllm/vllm-openai", &["vllm", "serve"], &["m"]), Engine::Vllm);
}

#[test]
fn engines_with_equal_memory_and_batches_are_compatible_and_in_june_all_are() {
    let usual = EngineParameters::defaults(Engine::Vllm);
    let with = |changed: EngineParameters| {
        let upstream = [Tree::June, Tree::August]
            .map(|tree| upstream::saturation_token::is_compatible(&usual, &changed, tree));
        [upstream[0], upstream[1], usual.is_compatible(&changed)]
    };
    assert_eq!(with(EngineParameters { max_length: 9, eager: true, ..usual.clone() }), [true; 3]);
    assert_eq!(with(EngineParameters { engine: Engine::Sglang, ..usual.clone() }), [true, false, false]);
    assert_eq!(with(EngineParameters { tokens_override: 9, ..usual.clone() }), [true, false, false]);
    let others = [
        EngineParameters { kv_cache_dtype: "fp8".into(), ..usual.clone() },
        EngineParameters { block_size: 9, ..usual.clone() },
        EngineParameters { batched_tokens: 9, ..usual.clone() },
    ];
    assert_eq!(others.map(with), [[false; 3]; 3]);
}
