"""Bases from GGUF files: the numbers, the architectures and the real file."""

import json
import struct
from importlib import metadata

import gguf
import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
import torch
import transformers
from command_line import refusal, run, succeeded
from demonstration_weights import needs_weights
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Kind
from mlx_lm.utils import load_model
from specstream_mlx.convert.to_mlx.gguf import convert_gguf
from specstream_mlx.convert.to_mlx.gguf_blocks import PACKINGS, repack
from tiny_gguf import (
    EXACT,
    HALF,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INTERMEDIATE,
    KV_HEADS,
    LAYERS,
    random_blocks,
    tiny_gguf,
)
from tiny_models import VOCAB_SIZE
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specstream_mlx import demonstration
from specstream_mlx.errors import UserError

PROMPT = [5, 6, 7, 8, 9, 300, 11, 250, 13, 14, 15, 16]
_SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 256,
}
_ROPE = {"rope_type": "default", "rope_theta": 20000.0}


def reference(file, name, tied, rope=None):
    """Logits of transformers' model in float32, with the weights that it reads of the file."""
    family = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma3": "Gemma3Text"}[name]
    fields = {**_SIZES, "tie_word_embeddings": tied, "rope_parameters": rope or _ROPE}
    if name == "gemma3":
        local = {"rope_type": "default", "rope_theta": 10000.0}
        fields |= {
            "rope_parameters": {"full_attention": rope or _ROPE, "sliding_attention": local},
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 8,
            "query_pre_attn_scalar": HEAD_DIM,
        }
    model, found = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        config=getattr(transformers, f"{family}Config")(**fields),
        dtype=torch.float32,
        output_loading_info=True,
    )
    assert not any(found.values())
    with torch.no_grad():
        return model.eval()(torch.tensor([PROMPT])).logits[0].numpy()


def assert_exact(kind, data):
    parts = repack(kind, data, mx.float32)
    found = mx.dequantize(*parts, group_size=32, bits=PACKINGS[kind].bits)
    assert np.array_equal(np.array(found), gguf.dequantize(data, kind)), kind.name
    if kind in HALF:
        for part in parts[1:]:
            assert mx.array_equal(part.astype(mx.float16).astype(mx.float32), part)


def test_blocks_keep_their_values():
    """Also with all codes at their ends, zero scales, negative ones, the smallest, the largest."""
    for kind in EXACT:
        data = random_blocks(kind, 7, 512, np.random.default_rng(0))
        assert_exact(kind, data)
    scales = np.array([0, 1, -1, 6e-8, 500, -511], np.float16)
    for kind in HALF:
        size = GGML_QUANT_SIZES[kind][1]
        blocks = np.repeat(np.array([[0], [255], [0x0F]], np.uint8), size, 1)
        blocks = np.tile(blocks, (len(scales), 1))
        blocks[:, :2] = np.repeat(scales, 3).view(np.uint8).reshape(-1, 2)
        if kind in (Kind.Q4_1, Kind.Q5_1):
            blocks[:, 2:4] = np.repeat(-scales, 3).view(np.uint8).reshape(-1, 2)
        assert_exact(kind, blocks)


def llama3_factors(rope):
    """What a checkpoint's converter writes of Llama 3's rope."""
    config = transformers.LlamaConfig(**_SIZES, rope_parameters=rope)
    plain = rope["rope_theta"] ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    return plain / LlamaRotaryEmbedding(config).inv_freq.numpy()


LINEAR = {"rope_type": "linear", "rope_theta": 20000.0, "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "rope_theta": 20000.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
FILES = [  # architecture, types, tied, what holds all of it exactly, rope
    ("llama", EXACT, False, "float32", None),
    ("qwen2", EXACT, True, "float32", None),
    ("qwen3", EXACT, False, "float32", None),
    ("gemma3", EXACT, True, "float32", None),
    ("llama", (*HALF, Kind.F16), True, "float16", LLAMA3),
    ("gemma3", (*HALF, Kind.F16), True, "float16", LINEAR),
    ("llama", HALF, True, "float16", LINEAR),
    ("qwen2", (Kind.BF16,), True, "bfloat16", None),
]


@pytest.mark.parametrize(("architecture", "kinds", "tied", "dtype", "rope"), FILES)
def test_logits_are_those_of_the_dequantized_weights(
    architecture, kinds, tied, dtype, rope, tmp_path
):
    made = tiny_gguf(architecture, kinds, tied=tied)
    if rope is LINEAR:
        made.metadata[f"{architecture}.rope.scaling.type"] = "linear"
        made.metadata[f"{architecture}.rope.scaling.factor"] = 4.0
    elif rope:
        made.put("rope_freqs.weight", llama3_factors(rope))
    file = made.write(tmp_path / "m.gguf")
    assert all("exact" in note for note in convert_gguf(file, tmp_path / "mlx"))
    config = json.loads((tmp_path / "mlx" / "config.json").read_text())
    stored = mx.load(str(tmp_path / "mlx" / "model.safetensors"))
    packed = {mx.uint32} if set(kinds) & set(EXACT) else set()
    assert config["dtype"] == dtype and bool(packed) == ("quantization" in config)
    assert {tensor.dtype for tensor in stored.values()} == {getattr(mx, dtype), *packed}
    expected = reference(file, architecture, tied, rope)
    model, _ = load_model(tmp_path / "mlx")
    model.set_dtype(mx.float32)
    assert expected.std() > 1
    assert np.abs(np.array(model(mx.array([PROMPT]))[0]) - expected).max() <= 1e-4


def test_six_bits_are_quantized_anew(tmp_path):
    made = tiny_gguf("llama", (Kind.Q4_K, Kind.Q6_K))
    flags = ("convert", "--model", made.write(tmp_path / "m.gguf"), "--mlx-path", tmp_path / "mlx")
    result = succeeded(run(*flags))
    size = sum(data.nbytes for _, kind, data in made.tensors.values() if kind == Kind.Q6_K)
    assert f"7 of Q6_K in 8 bits, quantized anew: {size:,} bytes are " in result.stderr
    stored = mx.load(str(tmp_path / "mlx" / "model.safetensors"))
    source = "blk.0.attn_v.weight"
    assert made.tensors[source][1] == Kind.Q6_K
    name = "model.layers.0.self_attn.v_proj"
    parts = [stored[f"{name}.{part}"] for part in ("weight", "scales", "biases")]
    found = np.array(mx.dequantize(*parts, group_size=32, bits=8))
    steps = np.repeat(np.abs(np.array(parts[1])), 32, axis=1)
    assert (np.abs(found - made.values(source)) <= steps * 1.001).all()
    flags = (*flags[:-1], tmp_path / "other")
    assert "--bits was given with the file" in refusal(run(*flags, "--bits", 4))


def test_rounded_scales_are_said(tmp_path):
    made = tiny_gguf("llama", (Kind.Q4_K, Kind.Q4_0))
    file = made.write(tmp_path / "m.gguf")
    notes = convert_gguf(file, tmp_path / "exact")
    assert "float32, since token_embd.weight does not fit float16 exactly" in notes[-1]
    changes = [note.split(": ")[0] for note in convert_gguf(file, tmp_path / "mlx", "float16")]
    assert changes == [
        "8 of Q4_K in 4 bits, rounded to float16",
        "5 of F32 in float16, exact",
        "7 of Q4_0 in 4 bits, exact",
    ]


@needs_weights
def test_the_real_file(tmp_path):
    """All of SmolLM2 is read without a loss; what its own tokenizer makes of text."""
    files = metadata.files(demonstration.PACKAGE)
    file = next(one for one in files if one.suffix == ".gguf").locate()
    notes = convert_gguf(file, tmp_path / "mlx")
    assert all(", exact: " in note for note in notes)
    assert json.loads((tmp_path / "mlx" / "config.json").read_text())["dtype"] == "float16"
    _, tokenizer = mlx_lm.load(str(tmp_path / "mlx"), lazy=True)
    # published: digits stand alone, spaces join the word after them
    assert tokenizer.encode("Hello world! 123") == [19556, 905, 17, 216, 33, 34, 35]
    assert tokenizer.encode("  multiple   spaces") == [216, 2701, 256, 5600]
    assert tokenizer.encode("<|im_start|>system")[:2] == [1, 9690]
    assert tokenizer.eos_token_ids == {0, 2}  # <|endoftext|>, too


# Files that are damaged, hostile or unknown: one sentence, and nothing is left behind -------------


def refused(file):
    """The sentence without the file's name; nothing is left beside the file."""
    with pytest.raises(UserError) as caught:
        convert_gguf(file, file.parent / "mlx")
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.startswith(str(file)), sentence
    assert len(sentence) < 700
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    return sentence.removeprefix(str(file))


def test_damaged_bytes(tmp_path):
    """Files that are cut short, and some whose header may still be a model's."""
    generator, target = np.random.default_rng(0), tmp_path / "mlx"
    file = tiny_gguf().write(tmp_path / "m.gguf")
    whole = file.read_bytes()
    for size in (3, len(whole) // 200, len(whole) - 1):
        file.write_bytes(whole[:size])
        sentence = refused(file)
        assert "cut short" in sentence or "is no GGUF file" in sentence
    for _ in range(60):
        data = bytearray(whole)
        for place in generator.integers(4, len(whole) // 100, generator.integers(1, 4)):
            data[place] = generator.choice([0, 1, 127, 255])
        file.write_bytes(data)
        try:
            convert_gguf(file, target, overwrite=True)
        except UserError as error:
            assert "\n" not in str(error)
    assert {path.name for path in tmp_path.iterdir()} <= {"m.gguf", "mlx"}


def dense(name, *shape, fill=1.0, kind=Kind.F32):
    return lambda made: made.put(name, np.full(shape, fill, np.float32), kind)


def of_kind(name, kind, shape=(256, 256)):
    width, size = GGML_QUANT_SIZES[kind]
    data = np.zeros((int(np.prod(shape[:-1])), shape[-1] // width * size), np.uint8)
    return lambda made: made.tensors.update({name: (shape, kind, data)})


def scaled(name, scale):
    """All blocks of a packed tensor with one scale."""

    def change(made):
        _, kind, data = made.tensors[name]
        blocks = data.reshape(-1, GGML_QUANT_SIZES[kind][1])
        blocks[:, :2] = np.array([scale], "<f2").view(np.uint8)

    return change


UP, KEY = "blk.0.ffn_up.weight", "blk.0.attn_k.weight"
TENSORS = {
    "a type that MLX has not": (of_kind(UP, Kind.IQ4_XS), f"{UP} is of type IQ4_XS, expected one"),
    "a packed norm": (of_kind("output_norm.weight", Kind.Q8_0, (32,)), "is of type Q8_0, expected"),
    "an infinite scale": (scaled(UP, np.inf), "up_proj.scales is not finite"),
    "NaN": (dense("blk.0.attn_norm.weight", 256, fill=np.nan), "is not finite in float32"),
    "one more": (dense("blk.2.attn_norm.weight", 256), "unexpected tensor blk.2.attn_norm"),
    "transposed": (dense(KEY, HIDDEN, 2 * HEAD_DIM), "(256, 128), expected (128, 256)"),
    "another rope": (dense("rope_freqs.weight", 32, fill=3.0), "other factors than Llama 3's of 3"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", TENSORS)
def test_tensors(case, tmp_path):
    change, sentence = TENSORS[case]
    made = tiny_gguf()
    change(made)
    assert sentence in refused(made.write(tmp_path / "m.gguf"))


METADATA = {
    "general.architecture": ("y" * 9999, "general.architecture is 'yyyyy"),
    "general.alignment": (48, "general.alignment is 48, expected a power of two"),
    "split.count": (np.uint16(3), "split.count is 3, expected a whole model in one"),
    "llama.block_count": (2**31, "block_count is 2147483648, expected no more than"),
    "llama.attention.head_count_kv": ([2, 1], "is a list of 2, expected an"),
    "llama.attention.head_count": (10**9, "attn_q.weight has shape"),
    "llama.attention.layer_norm_rms_epsilon": (float("nan"), "rms_epsilon is nan"),
    "llama.rope.scaling.type": ("yarn", "scaling.type is 'yarn', expected none or"),
    "llama.expert_count": (8, "llama.expert_count is a setting that is not known"),
    "tokenizer.ggml.pre": ("new", "pre is 'new', which is not known here"),
    "tokenizer.ggml.model": ("rwkv", "model is 'rwkv', expected gpt2 or"),
    "tokenizer.ggml.merges": (["a zebra"], "its tokens and merges do not fit"),
    "tokenizer.ggml.eos_token_id": (320, "eos_token_id is 320, expected one of 320"),
    "tokenizer.ggml.eos_token_id missing": (None, "eos_token_id is missing, expected the token"),
    "tokenizer.chat_template": (7, "chat_template is 7, expected a text"),
}


@pytest.mark.parametrize("case", METADATA)
def test_metadata(case, tmp_path):
    made, (value, sentence) = tiny_gguf(), METADATA[case]
    made.metadata[case.split()[0]] = value
    assert sentence in refused(made.write(tmp_path / "m.gguf"))


# Headers that lie --------------------------------------------------------------------------------


def text(value):
    return struct.pack("<Q", len(value)) + value


def header(pairs=b"", tensors=b"", *, version=3, pair_count=1, tensor_count=0):
    counts = struct.pack("<IQQ", version, tensor_count, pair_count)
    return b"GGUF" + counts + pairs + tensors


def pair(key, kind, value=b""):
    return text(key) + struct.pack("<I", kind) + value


def described(name, *shape, kind=0, offset=0):
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dims + struct.pack("<IQ", kind, offset)


def tensors(one):
    return header(b"", one + b"\0" * 4096, pair_count=0, tensor_count=1)


def overlapping(offset):
    """Two tensors of 128 bytes each, the second of which begins within the first."""
    both = described(b"t", 32) + described(b"u", 32, offset=offset)
    return header(b"", both + b"\0" * 4096, pair_count=0, tensor_count=2)


FOUR = struct.pack("<I", 4)
NESTED = struct.pack("<I", 9) + struct.pack("<QIQ", 1, 9, 1) * 5000
HOSTILE = {
    "big-endian": (header(version=3 << 24), "it is big-endian, expected a little-endian file"),
    "metadata": (header(pair_count=60000), "announces 60000 values of metadata, more than"),
    "arrays in arrays": (header(pair(b"a", 9, NESTED)), "a has a value of type 9, expected a"),
    "a text that is not UTF-8": (header(pair(b"a", 8, text(b"\xff"))), "a is not UTF-8 text"),
    "a key of control characters": (header(pair(b"a\x1b[2J", 4, FOUR)), "'a\\x1b[2J' is"),
    "a key twice": (header(pair(b"a", 4, FOUR) * 2, pair_count=2), "it has a twice"),
    "part of a block": (tensors(described(b"t", 33, 4, kind=2)), "whole blocks of 32 for Q4_0"),
    "an unknown type": (tensors(described(b"t", 32, kind=200)), "t has the type 200, which GGUF"),
    "after the end": (tensors(described(b"t", 32, offset=2**40)), "t reaches beyond its end"),
    "overlapping": (
        overlapping(64),
        "it is damaged: u begins at byte 160, within t, which ends at 224",
    ),
    "of one place": (overlapping(0), "it is damaged: u begins at byte 96, within t"),
    "not aligned": (tensors(described(b"t", 32, offset=4)), "t is at offset 4, expected"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_headers(case, tmp_path):
    data, sentence = HOSTILE[case]
    file = tmp_path / "m.gguf"
    file.write_bytes(data)
    assert sentence in refused(file)
