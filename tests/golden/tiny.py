"""Tiny models and adapters in files, written without the code that is tested.

Tensors are drawn by numpy from seeds. What an adapter says of itself is kept in ``adapters.json``,
in the format of the day on which it was written, which must stay readable.
"""

import json
import shutil
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
    write_wrong(folder)


SPOILED: dict[str, tuple[str, str, str | None, str]] = {
    "no-weights": ("base", "model.safetensors", None, ""),
    "cut-weights": ("base", "model.safetensors", "", ""),
    "cut-config": ("base", "config.json", "", ""),
    "cut-tokenizer": ("base", "tokenizer.json", "", ""),
    "no-tokenizer": ("base", "tokenizer.json", None, ""),
    "list-config": ("base", "config.json", "{", "[{"),
    "no-type": ("base", "config.json", '"model_type"', '"some_type"'),
    "mystery": ("base", "config.json", '"llama"', '"mystery"'),
    "narrow": ("base", "config.json", '"hidden_size": 64', '"hidden_size": 32'),
    "no-layers": ("base", "config.json", '"num_hidden_layers": 4', '"num_hidden_layers": 0'),
    "cut-streams": ("lossless", "speculative_streaming.safetensors", "", ""),
    "no-tensors": ("lossless", "speculative_streaming.safetensors", None, ""),
    "other-width": ("lossless", "adapter_config.json", '"hidden_size": 64', '"hidden_size": 32'),
    "other-layers": ("lossless", "adapter_config.json", 'hidden_layers": 4', 'hidden_layers": 9'),
    "other-base": ("lossless", "adapter_config.json", "6ad6b9ea061fa46f", "0123456789abcdef"),
    "wrong-mode": ("lossless", "adapter_config.json", '"lossless"', '"lossy"'),
    "unknown-field": ("lossless", "adapter_config.json", '"mode"', '"mood": 1, "mode"'),
    "version-9": ("lossless", "adapter_config.json", '"version": 2', '"version": 9'),
    "cut-adapter": ("lossless", "adapter_config.json", "", ""),
    "list-adapter": ("lossless", "adapter_config.json", "{", "[{"),
    "streams-0": ("lossless", "adapter_config.json", '"num_streams": 4', '"num_streams": 0'),
    "rank-0": ("lossless", "adapter_config.json", 'adapter_rank": 4', 'adapter_rank": 0'),
    "rotation-0": ("rotation", "adapter_config.json", '_epsilon": 0.4', '_epsilon": 0.0'),
    "bad-template": ("template", "adapter_config.json", "{text}", "the text"),
    "text-number": ("lossless", "adapter_config.json", '"num_streams": 4', '"num_streams": "4"'),
    "cut-lora": ("lora", "adapters.safetensors", "", ""),
}
"""Directories with a mistake: what they are copies of, and the file in which one text is another's;
empty ones: which is cut in half; ``None``: which is missing."""
WRONG = {
    "file.txt": b"hello",
    "latin.txt": b"caf\xe9",
    "blank.txt": b" \n",
    "list.yaml": b"- 3",
    "unknown.yaml": b"model: base\ncolour: red",
    "wrong.yaml": b"model: base\nadapter_path: out\ndata: data\niters: many",
    "broken.gguf": b"GGUF",
    "data/train.jsonl": b'{"prompt": "a b c", "completion": "d e f g"}\n' * 8,
    "data/valid.jsonl": b'{"prompt": "a b", "completion": "d e f"}\n' * 4,
    "bad-data/train.jsonl": b"3",
    "cut-data/train.jsonl": b'{"prompt": "a',
    "empty-data/train.jsonl": b"",
    "latin-data/train.jsonl": b"caf\xe9",
    "bare-data/train.jsonl": b'{"question": "a"}',
}


def write_wrong(folder: Path) -> None:
    """Write files and directories with mistakes, and an empty directory."""
    (folder / "empty").mkdir()
    for name, content in WRONG.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    for name, (source, file, old, new) in SPOILED.items():
        path = Path(shutil.copytree(folder / source, folder / name)) / file
        content = path.read_bytes()
        if old is None:
            path.unlink()
        elif old:
            assert old.encode() in content, (name, old)
            path.write_bytes(content.replace(old.encode(), new.encode(), 1))
        else:
            path.write_bytes(content[: len(content) // 2])


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
