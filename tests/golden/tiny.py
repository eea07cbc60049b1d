"""Tiny models and adapters in files, written without the code that is tested.

Tensors are drawn by numpy from seeds. What an adapter says of itself is kept in ``adapters.json``,
in the format of the day on which it was written, which must stay readable.
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

ADAPTERS = json.loads(Path(__file__).with_name("adapters.json").read_text())
SPECIAL = ["<|pad|>", "<|end|>", "<|user|>", "<|assistant|>"]
TEMPLATE = (
    "{%- for message in messages -%}{{- '<|' + message['role'] + '|>' + message['content'] + "
    "'<|end|>' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
WIDTH, LAYERS, HEADS, KV_HEADS, INNER, VOCABULARY = 64, 4, 4, 2, 96, 260


def write_all(folder: Path) -> None:
    """Write the base, a model that drafts, and all adapters, each in a directory of its name."""
    write_base(folder / "base", seed=0)
    write_base(folder / "draft", seed=0, layers=2)
    for seed, (name, one) in enumerate(ADAPTERS.items()):
        write_adapter(folder / name, one, seed)


def write_base(directory: Path, seed: int, layers: int = LAYERS) -> None:
    """Write a Llama whose logits spread widely, so that no token is a near tie, and a tokenizer."""
    directory.mkdir(parents=True)
    rng, head = np.random.default_rng(seed), WIDTH // HEADS
    shapes = {"self_attn.q_proj": (WIDTH, WIDTH), "self_attn.k_proj": (KV_HEADS * head, WIDTH)}
    shapes |= {"self_attn.v_proj": (KV_HEADS * head, WIDTH), "self_attn.o_proj": (WIDTH, WIDTH)}
    shapes |= {"mlp.gate_proj": (INNER, WIDTH), "mlp.up_proj": (INNER, WIDTH)}
    shapes |= {"mlp.down_proj": (WIDTH, INNER)}
    tensors = {"model.embed_tokens.weight": rng.normal(0, 2 * WIDTH**-0.5, (VOCABULARY, WIDTH))}
    tensors["model.norm.weight"] = rng.uniform(0.8, 1.2, WIDTH)
    for layer in range(layers):
        for name, shape in shapes.items():
            std = shape[1] ** -0.5
            tensors[f"model.layers.{layer}.{name}.weight"] = rng.normal(0, std, shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = rng.uniform(0.8, 1.2, WIDTH)
    save(directory / "model.safetensors", tensors)
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "head_dim": head}
    config |= {"hidden_size": WIDTH, "num_hidden_layers": layers, "num_attention_heads": HEADS}
    config |= {"num_key_value_heads": KV_HEADS, "intermediate_size": INNER, "eos_token_id": 1}
    config |= {"vocab_size": VOCABULARY, "tie_word_embeddings": True, "rms_norm_eps": 1e-5}
    config |= {"max_position_embeddings": 512, "rope_theta": 10000.0}
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {token: number for number, token in enumerate([*SPECIAL, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=SPECIAL[1],
        pad_token=SPECIAL[0],
        additional_special_tokens=SPECIAL[2:],
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(directory)


def write_adapter(directory: Path, one: dict, seed: int) -> None:
    """Write an adapter's description and tensors of the shapes that belong to it."""
    directory.mkdir()
    (directory / "adapter_config.json").write_text(json.dumps(one["config"], indent=2))
    rng, tensors = np.random.default_rng(seed + 1), {}
    for name, shape in sorted(one["shapes"].items()):
        if name == "streams.vocabulary":
            tensors[name] = np.sort(rng.choice(VOCABULARY, shape, replace=False)).astype(np.int32)
            continue
        std = 1.0 if name == "streams.embeddings" else shape[0 if "lora" in name else 1] ** -0.5
        tensors[name] = rng.normal(0, std * (1.0 if ".down." in name else 0.3), shape)
    lora = {name: tensor for name, tensor in tensors.items() if "lora" in name}
    save(directory / "adapters.safetensors", lora)
    rest = {name: tensor for name, tensor in tensors.items() if name not in lora}
    save(directory / "speculative_streaming.safetensors", rest)


def save(path: Path, tensors: dict) -> None:
    """Write tensors, those of real numbers in float32."""
    real = {n: t.astype(np.float32) if t.dtype == np.float64 else t for n, t in tensors.items()}
    save_file({n: np.ascontiguousarray(t) for n, t in real.items()}, path, {"format": "mlx"})
