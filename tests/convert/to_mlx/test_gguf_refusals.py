"""GGUF files that are damaged, hostile or unknown: one sentence, and nothing is left behind."""

import struct

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Kind
from specstream_mlx.convert.to_mlx.gguf import convert_gguf
from tiny_gguf import HEAD_DIM, HIDDEN, random_blocks, tiny_gguf

from specstream_mlx.errors import UserError


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


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return tiny_gguf().write(tmp_path_factory.mktemp("whole") / "m.gguf").read_bytes()


def test_cut_short(whole, tmp_path):
    """Half of the places lie within the header, which is a hundredth of the file."""
    file, header = tmp_path / "m.gguf", len(whole) // 100
    sizes = [header * part // 8 for part in range(8)] + [len(whole) * part // 8 for part in (1, 7)]
    for size in [*sizes, len(whole) - 1]:
        file.write_bytes(whole[:size])
        sentence = refused(file)
        assert "cut short" in sentence or "is no GGUF file" in sentence


def test_random_damage(whole, tmp_path):
    """Bytes of the header are changed; what is still a model is converted."""
    generator = np.random.default_rng(0)
    file, target = tmp_path / "m.gguf", tmp_path / "mlx"
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


def without(name):
    return lambda made: made.tensors.pop(name)


def dense(name, *shape, fill=1.0, kind=Kind.F32):
    return lambda made: made.put(name, np.full(shape, fill, np.float32), kind)


def of_kind(name, kind, shape=(256, 256)):
    width, size = GGML_QUANT_SIZES[kind]
    data = np.zeros((int(np.prod(shape[:-1])), shape[-1] // width * size), np.uint8)
    return lambda made: made.tensors.update({name: (shape, kind, data)})


def scaled(name, scale, kind):
    """All blocks of a packed tensor of 256 rows with one scale."""

    def change(made):
        place = {Kind.Q8_0: 0, Kind.Q6_K: 208}[kind]
        blocks = random_blocks(kind, 256, 256, np.random.default_rng(0))
        blocks = blocks.reshape(-1, GGML_QUANT_SIZES[kind][1])
        blocks[:, place : place + 2] = np.array([scale], "<f2").view(np.uint8)
        made.tensors[name] = (256, 256), kind, blocks.reshape(256, -1)

    return change


UP, KEY = "blk.0.ffn_up.weight", "blk.0.attn_k.weight"
TENSORS = {
    "a type that MLX has not": (of_kind(UP, Kind.IQ4_XS), f"{UP} is of type IQ4_XS, expected one"),
    "a packed norm": (of_kind("output_norm.weight", Kind.Q8_0, (32,)), "is of type Q8_0, expected"),
    "an infinite scale of 8 bits": (scaled(UP, np.inf, Kind.Q8_0), "up_proj.scales is not finite"),
    "NaN in 6 bits": (scaled(UP, np.nan, Kind.Q6_K), "up_proj.scales is not finite"),
    "NaN": (dense("blk.0.attn_norm.weight", 256, fill=np.nan), "is not finite in float32"),
    "missing": (without("blk.1.attn_v.weight"), "has no tensor blk.1.attn_v.weight"),
    "one more": (dense("blk.2.attn_norm.weight", 256), "unexpected tensor blk.2.attn_norm"),
    "transposed": (dense(KEY, HIDDEN, 2 * HEAD_DIM), "(256, 128), expected (128, 256)"),
    "another rope": (dense("rope_freqs.weight", 32, fill=3.0), "other factors than Llama 3's of 3"),
    "rope of another width": (dense("rope_freqs.weight", 16), "rope_freqs.weight is F32 of shape"),
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
    "llama.embedding_length": (None, "embedding_length is missing, expected an integer"),
    "llama.attention.head_count_kv": ([2, 1], "is a list of 2, expected an"),
    "llama.attention.head_count": (10**9, "attn_q.weight has shape"),
    "llama.rope.dimension_count": (32, "count is 32, expected the width"),
    "llama.attention.layer_norm_rms_epsilon": (float("nan"), "rms_epsilon is nan"),
    "llama.rope.scaling.type": ("yarn", "scaling.type is 'yarn', expected none or"),
    "llama.expert_count": (8, "llama.expert_count is a setting that is not known"),
    "tokenizer.ggml.pre": ("new", "pre is 'new', which is not known here"),
    "tokenizer.ggml.model": ("rwkv", "model is 'rwkv', expected gpt2 or"),
    "tokenizer.ggml.model llama": ("llama", "scores is missing, expected 320 numbers"),
    "tokenizer.ggml.tokens": (["a"] * 320, "tokens has 'a' twice"),
    "tokenizer.ggml.token_type": ([1, 2], "token_type is a list of 2, expected 320"),
    "tokenizer.ggml.merges": (["a zebra"], "its tokens and merges do not fit"),
    "tokenizer.ggml.eos_token_id": (320, "eos_token_id is 320, expected one of 320"),
    "tokenizer.ggml.eos_token_id missing": (None, "eos_token_id is missing, expected the token"),
    "tokenizer.chat_template": (7, "chat_template is 7, expected a text"),
    "tokenizer.ggml.add_bos_token": (1, "add_bos_token is 1, expected true or false"),
}


@pytest.mark.parametrize("case", METADATA)
def test_metadata(case, tmp_path):
    made, (value, sentence) = tiny_gguf(), METADATA[case]
    made.metadata[case.split()[0]] = value
    assert sentence in refused(made.write(tmp_path / "m.gguf"))


# Headers that lie --------------------------------------------------------------------------------


def text(value):
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def header(pairs=b"", tensors=b"", *, version=3, pair_count=1, tensor_count=0):
    counts = struct.pack("<IQQ", version, tensor_count, pair_count)
    return b"GGUF" + counts + pairs + tensors


def pair(key, kind, value=b""):
    return text(key) + struct.pack("<I", kind) + value


def described(name, *shape, kind=0, offset=0):
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dims + struct.pack("<IQ", kind, offset)


def tensors(*described_ones, data=b"\0" * 4096):
    return header(b"", b"".join(described_ones) + data, pair_count=0,
                  tensor_count=len(described_ones))  # fmt: skip


LONG, FOUR = struct.pack("<Q", 2**63), struct.pack("<I", 4)
NESTED = struct.pack("<I", 9) + struct.pack("<QIQ", 1, 9, 1) * 5000
HOSTILE = {
    "empty": (b"", "is no GGUF file"),
    "magic alone": (b"GGUF", "its header goes on after byte 4"),
    "version 1": (header(version=1), "its GGUF version is 1, expected one of (2, 3)"),
    "big-endian": (header(version=3 << 24), "it is big-endian, expected a little-endian file"),
    "metadata": (header(pair_count=60000), "announces 60000 values of metadata, more than"),
    "a key's length": (header(LONG + b"\0" * 9), "it is cut short or damaged"),
    "an array's length": (
        header(pair("a", 9, FOUR + LONG)),
        f"announces {2**63} values of a",
    ),
    "arrays in arrays": (header(pair("a", 9, NESTED)), "a has a value of type 9, expected a numbe"),
    "a text that is not UTF-8": (header(pair("a", 8, text(b"\xff"))), "a is not UTF-8 text"),
    "a key of control characters": (header(pair("a\n\x1b[2J", 4, FOUR)), "'a\\n\\x1b[2J' is among"),
    "a key twice": (header(pair("a", 4, FOUR) * 2, pair_count=2), "it has a twice"),
    "no dimensions": (tensors(described("t")), "t has 0 dimensions, expected 1 to 4"),
    "part of a block": (tensors(described("t", 33, 4, kind=2)), "whole blocks of 32 for Q4_0"),
    "an unknown type": (tensors(described("t", 32, kind=200)), "t has the type 200, which GGUF"),
    "behind the end": (tensors(described("t", 32, offset=2**40)), "t reaches beyond its end"),
    "not aligned": (tensors(described("t", 32, offset=4)), "t is at offset 4, expected a multiple"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_headers(case, tmp_path):
    data, sentence = HOSTILE[case]
    file = tmp_path / "m.gguf"
    file.write_bytes(data)
    assert sentence in refused(file)
