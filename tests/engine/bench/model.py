"""Writes a small Llama: its configuration and a tokenizer of its own. The engine draws the weights at random (--load-format dummy).

usage: model.py DIR HIDDEN LAYERS WORDS

512, 8 and 32000 are 57 M parameters, which one core computes in about 11 ms a step. Where no model is computed, 64, 1 and 2000 will do.
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

MAX_LENGTH = 4096
HEAD = 64  # the vLLM kernels for the CPU take multiples of 32


def write(directory: Path, hidden: int, layers: int, words: int) -> None:
    """Files of a model with that hidden size (a multiple of 64), so many layers, and so many words in its vocabulary."""
    directory.mkdir(parents=True, exist_ok=True)
    special = ["<unk>", "<s>", "</s>"]
    vocabulary = special + [f"w{number}" for number in range(len(special), words)]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(vocabulary)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(directory / "tokenizer.json"))
    heads = max(1, hidden // HEAD)
    files = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "model_max_length": MAX_LENGTH,
        },
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2},
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": hidden,
            "intermediate_size": hidden * 11 // 4,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": max(1, heads // 2),
            "head_dim": HEAD,
            "vocab_size": words,
            "max_position_embeddings": MAX_LENGTH,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "attention_bias": False,
            "tie_word_embeddings": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "torch_dtype": "bfloat16",
        },
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    write(Path(sys.argv[1]), *map(int, sys.argv[2:]))
