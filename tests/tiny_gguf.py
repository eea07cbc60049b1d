"""Small random GGUF files of every architecture that is read, written with the gguf package."""

import itertools
import json
from dataclasses import dataclass, field

import numpy as np
from gguf import GGML_QUANT_SIZES, GGUFWriter, dequantize, quantize
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
_PLACES = {
    Kind.Q4_0: (0, None, 0),
    Kind.Q4_1: (0, 2, -7.5),
    Kind.Q5_0: (0, None, 0),
    Kind.Q5_1: (0, 2, -15.5),
    Kind.Q8_0: (0, None, 0),
    Kind.Q4_K: (0, 2, 7.5),
    Kind.Q5_K: (0, 2, 15.5),
    Kind.Q6_K: (208, None, 0),
}


def random_blocks(kind, rows, columns, generator, std=1.0):
    """Bytes of a tensor whose codes and sub-scales are random: (rows, bytes of a row)."""
    if kind not in _PLACES:
        values = generator.normal(0, std, (rows, columns)).astype(np.float32)
        return quantize(values, kind).view(np.uint8).reshape(rows, -1)
    width, size = GGML_QUANT_SIZES[kind]
    blocks = generator.integers(0, 256, (rows * columns // width, size), dtype=np.uint8)
    scale, (place, minimum, middle) = generator.uniform(0.5, 1.0, len(blocks)), _PLACES[kind]

    def put(where, values):
        blocks[:, where : where + 2] = values.astype("<f2").view(np.uint8).reshape(-1, 2)

    for factor in (lambda: 1.0, lambda: std / dequantize(blocks, kind).std()):
        scale = scale * factor()
        put(place, scale)
        if minimum is not None:
            put(minimum, scale * middle)
    return blocks.reshape(rows, -1)


@dataclass
class TinyGguf:
    """What goes into a file; tests change it before ``write``."""

    architecture: str
    metadata: dict = field(default_factory=dict)
    tensors: dict = field(default_factory=dict)  # shape, type and bytes by name

    def values(self, name):
        """A tensor's float32 values by the gguf package."""
        shape, kind, data = self.tensors[name]
        return np.asarray(dequantize(data, kind), np.float32).reshape(shape)

    def put(self, name, values, kind=Kind.F32):
        """Set a dense tensor."""
        rows = values.reshape(-1, values.shape[-1])
        data = quantize(rows.astype(np.float32), kind).view(np.uint8).reshape(len(rows), -1)
        self.tensors[name] = values.shape, kind, data

    def write(self, path):
        """Write the file and return its path."""
        writer = GGUFWriter(path, self.architecture)
        for key, value in self.metadata.items():
            if value is None:
                writer.kv_data[0].pop(key, None)
            else:
                writer.add_key_value(key, value, _kind_of(value))
        for name, (shape, kind, data) in self.tensors.items():
            if kind in (Kind.F32, Kind.F16):
                raw = {Kind.F32: np.float32, Kind.F16: np.float16}[kind]
                writer.add_tensor(name, data.view(raw).reshape(shape))
            else:
                stored = data.reshape(*shape[:-1], -1)
                writer.add_tensor(name, stored, raw_shape=stored.shape, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def _kind_of(value):
    if isinstance(value, np.integer):
        return GGUFValueType[value.dtype.name.upper()]
    return GGUFValueType.UINT32 if type(value) is int else GGUFValueType.get_type(value)


def byte_level_metadata():
    """The tests' tokenizer as GGUF has it."""
    tokenizer = tiny_tokenizer()
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = [*sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)]
    kinds = [3 if token in SPECIAL_TOKENS else 1 for token in tokens]
    unused = VOCAB_SIZE - len(tokens)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens + [f"[PAD{number}]" for number in range(unused)],
        "tokenizer.ggml.token_type": kinds + [5] * unused,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.eos_token_id": SPECIAL_TOKENS.index(END),
        "tokenizer.ggml.padding_token_id": SPECIAL_TOKENS.index(PAD),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def tiny_gguf(architecture="llama", kinds=(Kind.Q4_1, Kind.Q8_0), *, tied=True):
    """A random model; its matrices take the types one after the other.

    Norms and biases hold multiples of 1/64, which float16 and bfloat16 hold too.
    """
    generator, left = np.random.default_rng(0), itertools.cycle(kinds)
    name, made = architecture, TinyGguf(architecture)
    made.metadata = {
        f"{name}.block_count": LAYERS,
        f"{name}.context_length": 256,
        f"{name}.embedding_length": HIDDEN,
        f"{name}.feed_forward_length": INTERMEDIATE,
        f"{name}.attention.head_count": HEADS,
        f"{name}.attention.head_count_kv": KV_HEADS,
        f"{name}.attention.layer_norm_rms_epsilon": 1e-6,
        f"{name}.rope.freq_base": 20000.0,
        f"{name}.expert_count": 0,  # older converters' way to say that there are none
        **byte_level_metadata(),
    }
    norms = ["attn_norm", "ffn_norm"]
    if name in ("qwen3", "gemma3"):
        made.metadata[f"{name}.attention.key_length"] = HEAD_DIM
        made.metadata[f"{name}.attention.value_length"] = HEAD_DIM
    if name == "gemma3":
        made.metadata["gemma3.attention.sliding_window"] = 8
        made.metadata["gemma3.attention.sliding_window_pattern"] = 2
        norms += ["post_attention_norm", "post_ffw_norm"]

    def matrix(tensor, rows, columns, std=1.0):
        kind = next(left)
        data = random_blocks(kind, rows, columns, generator, std * columns**-0.5)
        made.tensors[f"{tensor}.weight"] = (rows, columns), kind, data

    def vector(tensor, size, middle=1.0):
        made.put(tensor, middle + np.round(generator.uniform(-16, 16, size)) / 64)

    matrix("token_embd", VOCAB_SIZE, HIDDEN, LOGIT_STD)
    vector("output_norm.weight", HIDDEN)
    if not tied:
        matrix("output", VOCAB_SIZE, HIDDEN, LOGIT_STD)
    for layer in range(LAYERS):
        at = f"blk.{layer}."
        for norm in norms:
            vector(f"{at}{norm}.weight", HIDDEN)
        for letter, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            matrix(f"{at}attn_{letter}", heads * HEAD_DIM, HIDDEN)
            if name == "qwen2":
                vector(f"{at}attn_{letter}.bias", heads * HEAD_DIM, 0.0)
            if name in ("qwen3", "gemma3") and letter != "v":
                vector(f"{at}attn_{letter}_norm.weight", HEAD_DIM)
        matrix(f"{at}attn_output", HIDDEN, HEADS * HEAD_DIM)
        matrix(f"{at}ffn_gate", INTERMEDIATE, HIDDEN)
        matrix(f"{at}ffn_up", INTERMEDIATE, HIDDEN)
        matrix(f"{at}ffn_down", HIDDEN, INTERMEDIATE)
    return made
