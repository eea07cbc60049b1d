"""Small random GGUF files of every architecture that is read, written with the gguf package."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGUFEndian, GGUFWriter, dequantize, quantize
from gguf import GGMLQuantizationType as Kind
from gguf.constants import GGUFValueType
from tiny_models import (
    CHAT_TEMPLATE,
    END,
    LOGIT_STD,
    PAD,
    SPECIAL_TOKENS,
    VOCAB_SIZE,
    tiny_tokenizer,
)

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 256, 256, 4, 2, 64, 2
EXACT = (Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0, Kind.Q4_K, Kind.Q5_K)
HALF = EXACT[:5]
"""Types whose scales float16 holds."""

# Where a block has its scale and its minimum, and the middle of its codes times the scales'.
_PLACES: dict[Kind, tuple[int, int | None, float]] = {
    Kind.Q4_0: (0, None, 0),
    Kind.Q4_1: (0, 2, -7.5),
    Kind.Q5_0: (0, None, 0),
    Kind.Q5_1: (0, 2, -15.5),
    Kind.Q8_0: (0, None, 0),
    Kind.Q4_K: (0, 2, 7.5),
    Kind.Q5_K: (0, 2, 15.5),
    Kind.Q6_K: (208, None, 0),
}


def random_blocks(kind: Kind, rows: int, columns: int, generator: np.random.Generator,
                  std: float = 1.0) -> np.ndarray:  # fmt: skip
    """Bytes of a tensor whose codes and sub-scales are random: (rows, bytes of a row)."""
    if kind not in _PLACES:
        values = generator.normal(0, std, (rows, columns)).astype(np.float32)
        return quantize(values, kind).view(np.uint8).reshape(rows, -1)
    width, size = GGML_QUANT_SIZES[kind]
    blocks = generator.integers(0, 256, (rows * columns // width, size), dtype=np.uint8)
    place, minimum, middle = _PLACES[kind]

    def put(where: int, values: np.ndarray) -> None:
        blocks[:, where : where + 2] = values.astype("<f2").view(np.uint8).reshape(-1, 2)

    scale = generator.uniform(0.5, 1.0, len(blocks))
    for factor in (1.0, None):
        if factor is None:
            factor = std / dequantize(blocks, kind).std()
        put(place, scale * factor)
        if minimum is not None:
            put(minimum, scale * factor * middle)
    return blocks.reshape(rows, -1)


@dataclass
class TinyGguf:
    """What goes into a file; tests change it before ``write``."""

    architecture: str
    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, tuple[tuple[int, ...], Kind, np.ndarray]] = field(default_factory=dict)

    def values(self, name: str) -> np.ndarray:
        """A tensor's float32 values by the gguf package."""
        shape, kind, data = self.tensors[name]
        return np.asarray(dequantize(data, kind), np.float32).reshape(shape)

    def put(self, name: str, values: np.ndarray, kind: Kind = Kind.F32) -> None:
        """Set a dense tensor."""
        rows = values.reshape(-1, values.shape[-1])
        data = quantize(rows.astype(np.float32), kind).view(np.uint8).reshape(len(rows), -1)
        self.tensors[name] = values.shape, kind, data

    def write(self, path: Path, endian: GGUFEndian = GGUFEndian.LITTLE) -> Path:
        """Write the file and return its path."""
        writer = GGUFWriter(path, self.architecture, endianess=endian)
        for key, value in self.metadata.items():
            if value is None:
                writer.kv_data[0].pop(key, None)
            else:
                writer.add_key_value(key, value, _kind_of(value))
        for name, (_, kind, data) in self.tensors.items():
            raw = {Kind.F32: np.float32, Kind.F16: np.float16}.get(kind)
            shape = self.tensors[name][0]
            if raw is not None:
                writer.add_tensor(name, data.view(raw).reshape(shape))
            else:
                stored = data.reshape(*shape[:-1], -1)
                writer.add_tensor(name, stored, raw_shape=stored.shape, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def _kind_of(value: Any) -> GGUFValueType:
    if isinstance(value, np.integer):
        return GGUFValueType[value.dtype.name.upper()]
    return GGUFValueType.get_type(value) if not isinstance(value, int | bool) else (
        GGUFValueType.BOOL if isinstance(value, bool) else GGUFValueType.UINT32
    )  # fmt: skip


def byte_level_metadata(pre: str = "gpt-2") -> dict[str, Any]:
    """The tests' tokenizer as GGUF has it."""
    import json

    tokenizer = tiny_tokenizer()
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = [*sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)]
    kinds = [3 if token in SPECIAL_TOKENS else 1 for token in tokens]
    unused = VOCAB_SIZE - len(tokens)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens + [f"[PAD{number}]" for number in range(unused)],
        "tokenizer.ggml.token_type": kinds + [5] * unused,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.eos_token_id": SPECIAL_TOKENS.index(END),
        "tokenizer.ggml.padding_token_id": SPECIAL_TOKENS.index(PAD),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def tiny_gguf(
    architecture: str = "llama",
    kinds: Sequence[Kind] = (Kind.Q4_1, Kind.Q8_0),
    *,
    tied: bool = True,
    metadata: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> TinyGguf:
    """A random model; its matrices take the types one after the other.

    Norms and biases hold multiples of 1/64, which float16 and bfloat16 hold too.
    """
    generator = np.random.default_rng(seed)
    made = TinyGguf(architecture)
    name = architecture
    made.metadata = {
        f"{name}.block_count": LAYERS,
        f"{name}.context_length": 256,
        f"{name}.embedding_length": HIDDEN,
        f"{name}.feed_forward_length": INTERMEDIATE,
        f"{name}.attention.head_count": HEADS,
        f"{name}.attention.head_count_kv": KV_HEADS,
        f"{name}.attention.layer_norm_rms_epsilon": 1e-6,
        f"{name}.rope.freq_base": 20000.0,
        **byte_level_metadata(),
    }
    if name in ("qwen3", "gemma3"):
        made.metadata[f"{name}.attention.key_length"] = HEAD_DIM
        made.metadata[f"{name}.attention.value_length"] = HEAD_DIM
    if name == "gemma3":
        made.metadata["gemma3.attention.sliding_window"] = 8
        made.metadata["gemma3.attention.sliding_window_pattern"] = 2
    made.metadata |= metadata or {}
    number = 0

    def matrix(tensor: str, rows: int, columns: int, std: float = 1.0) -> None:
        nonlocal number
        kind = kinds[number % len(kinds)]
        data = random_blocks(kind, rows, columns, generator, std * columns**-0.5)
        made.tensors[tensor] = (rows, columns), kind, data
        number += 1

    def vector(tensor: str, size: int, middle: float = 1.0) -> None:
        made.put(tensor, middle + np.round(generator.uniform(-16, 16, size)) / 64)

    matrix("token_embd.weight", VOCAB_SIZE, HIDDEN, LOGIT_STD)
    vector("output_norm.weight", HIDDEN)
    if not tied:
        matrix("output.weight", VOCAB_SIZE, HIDDEN, LOGIT_STD)
    norms = ["attn_norm", "ffn_norm"]
    if name == "gemma3":
        norms += ["post_attention_norm", "post_ffw_norm"]
    for layer in range(LAYERS):
        at = f"blk.{layer}."
        for norm in norms:
            vector(f"{at}{norm}.weight", HIDDEN)
        for letter, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            matrix(f"{at}attn_{letter}.weight", heads * HEAD_DIM, HIDDEN)
            if name == "qwen2":
                vector(f"{at}attn_{letter}.bias", heads * HEAD_DIM, 0.0)
            if name in ("qwen3", "gemma3") and letter != "v":
                vector(f"{at}attn_{letter}_norm.weight", HEAD_DIM)
        matrix(f"{at}attn_output.weight", HIDDEN, HEADS * HEAD_DIM)
        matrix(f"{at}ffn_gate.weight", INTERMEDIATE, HIDDEN)
        matrix(f"{at}ffn_up.weight", INTERMEDIATE, HIDDEN)
        matrix(f"{at}ffn_down.weight", HIDDEN, INTERMEDIATE)
    return made
