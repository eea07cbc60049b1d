"""GGUF files that are damaged, hostile or unknown: one sentence, and nothing is left behind."""

import struct

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGUFEndian
from gguf import GGMLQuantizationType as Kind
from specstream_mlx.convert.to_mlx.gguf import convert_gguf
from tiny_gguf import HEAD_DIM, HIDDEN, random_blocks, tiny_gguf
from tiny_models import VOCAB_SIZE

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


def changed(tmp_path, architecture="llama", **metadata):
    made = tiny_gguf(architecture)
    for key, value in metadata.items():
        family = "tokenizer" if key.startswith("tokenizer") else architecture
        made.metadata[key.replace("__", ".").replace("ARCH", family)] = value
    return made.write(tmp_path / "m.gguf")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return tiny_gguf().write(tmp_path_factory.mktemp("whole") / "m.gguf").read_bytes()


@pytest.mark.parametrize("place", range(20))
def test_cut_short(place, whole, tmp_path):
    """Half of the places lie within the header, which is a hundredth of the file."""
    header = len(whole) // 100
    size = header * place // 10 if place < 10 else len(whole) * (place - 9) // 11
    file = tmp_path / "m.gguf"
    file.write_bytes(whole[: size - 1 if size else 0])
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


@pytest.mark.parametrize("kind", [Kind.IQ4_XS, Kind.Q3_K, Kind.F64])
def test_types_that_are_not_read(kind, tmp_path):
    made = tiny_gguf()
    width, size = GGML_QUANT_SIZES[kind]
    data = np.zeros((256, 256 // width * size), np.uint8)
    made.tensors["blk.0.ffn_gate.weight"] = (256, 256), kind, data
    sentence = refused(made.write(tmp_path / "m.gguf"))
    assert sentence.startswith(f": blk.0.ffn_gate.weight is of type {kind.name}, expected one of")


def without(name):
    return lambda made: made.tensors.pop(name)


def dense(name, *shape, fill=1.0, kind=Kind.F32):
    return lambda made: made.put(name, np.full(shape, fill, np.float32), kind)


def packed(name, kind=Kind.Q8_0):
    return lambda made: made.tensors.update({name: ((32,), kind, np.zeros((1, 34), np.uint8))})


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
    "an infinite scale of 8 bits": (scaled(UP, np.inf, Kind.Q8_0), "up_proj.scales is not finite"),
    "NaN in 6 bits": (scaled(UP, np.nan, Kind.Q6_K), "up_proj.scales is not finite"),
    "missing": (without("blk.1.attn_v.weight"), "has no tensor blk.1.attn_v.weight"),
    "beside": (dense("blk.0.ffn_gate_inp.weight", 4, 32), "unexpected tensor blk.0.ffn_gate_inp"),
    "of another layer": (dense("blk.2.attn_norm.weight", 256), "unexpected tensor blk.2.attn_norm"),
    "transposed": (dense(KEY, HIDDEN, 2 * HEAD_DIM), "(256, 128), expected (128, 256)"),
    "a row less": (dense("token_embd.weight", VOCAB_SIZE - 1, HIDDEN), "(319, 256), expected (320"),
    "a packed norm": (packed("output_norm.weight"), "is of type Q8_0, expected one of F16, BF16"),
    "NaN": (dense("blk.0.attn_norm.weight", 256, fill=np.nan), "is not finite in float32"),
    "infinity": (dense(UP, 256, 256, fill=np.inf, kind=Kind.F16), "is not finite in float16"),
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
    "architecture": ({"general__architecture": "phi3"}, "general.architecture is 'phi3', expected"),
    "layers": ({"ARCH__block_count": 2**31}, "block_count is 2147483648, expected no more than"),
    "layers missing": ({"ARCH__block_count": None}, "block_count is missing, expected an integer"),
    "heads by layer": ({"ARCH__attention__head_count_kv": [2, 1]}, "is a list of 2, expected an"),
    "heads": ({"ARCH__attention__head_count": 10**9}, "attn_q.weight has shape"),
    "half a rope": ({"ARCH__rope__dimension_count": 32}, "count is 32, expected the width"),
    "epsilon": ({"ARCH__attention__layer_norm_rms_epsilon": float("nan")}, "rms_epsilon is nan"),
    "yarn": ({"ARCH__rope__scaling__type": "yarn"}, "scaling.type is 'yarn', expected none or"),
    "experts": ({"ARCH__expert_count": 8}, "llama.expert_count is a setting that is not known"),
    "parts": ({"split__count": np.uint16(3)}, "split.count is 3, expected a whole model in one"),
    "a long architecture": ({"general__architecture": "y" * 9999}, "architecture is 'yyyyy"),
    "alignment": ({"general__alignment": 48}, "general.alignment is 48, expected a power of two"),
    "a pre-tokenizer": ({"tokenizer__ggml__pre": "new"}, "pre is 'new', which is not known here"),
    "a tokenizer model": ({"tokenizer__ggml__model": "rwkv"}, "model is 'rwkv', expected gpt2 or"),
    "tokens": ({"tokenizer__ggml__tokens": None}, "tokens is missing, expected a list of texts"),
    "twice": ({"tokenizer__ggml__tokens": ["a"] * 320}, "tokens has 'a' twice"),
    "types": ({"tokenizer__ggml__token_type": [1, 2]}, "token_type is a list of 2, expected 320"),
    "merges": ({"tokenizer__ggml__merges": ["a zebra"]}, "its tokens and merges do not fit"),
    "scores": ({"tokenizer__ggml__model": "llama"}, "scores is missing, expected 320 numbers"),
    "end": ({"tokenizer__ggml__eos_token_id": 320}, "eos_token_id is 320, expected one of 320"),
    "a template": ({"tokenizer__chat_template": 7}, "chat_template is 7, expected a text"),
    "a flag": ({"tokenizer__ggml__add_bos_token": 1}, "add_bos_token is 1, expected true or false"),
}


@pytest.mark.parametrize("case", METADATA)
def test_metadata(case, tmp_path):
    metadata, sentence = METADATA[case]
    assert sentence in refused(changed(tmp_path, **metadata))


def test_gemma_without_its_window(tmp_path):
    made = tiny_gguf("gemma3", metadata={"gemma3.attention.sliding_window": None})
    assert "sliding_window is missing" in refused(made.write(tmp_path / "m.gguf"))


def test_a_number_that_is_0_says_that_there_is_none(tmp_path):
    """Older converters write ``expert_count`` 0 for dense models."""
    convert_gguf(changed(tmp_path, ARCH__expert_count=0), tmp_path / "mlx")


def test_big_endian(tmp_path):
    file = tiny_gguf().write(tmp_path / "m.gguf", GGUFEndian.BIG)
    assert "it is big-endian, expected a little-endian file" in refused(file)


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


HUGE = 2**63
LONG, FOUR = struct.pack("<Q", HUGE), struct.pack("<I", 4)
NESTED = struct.pack("<I", 9) + struct.pack("<QIQ", 1, 9, 1) * 5000
HOSTILE = {
    "empty": (b"", "is no GGUF file"),
    "magic alone": (b"GGUF", "its header goes on after byte 4"),
    "version 1": (header(version=1), "its GGUF version is 1, expected one of (2, 3)"),
    "metadata": (header(pair_count=HUGE), f"announces {HUGE} values of metadata, more than"),
    "many metadata": (header(pair_count=60000), "announces 60000 values of metadata, more than"),
    "tensors": (header(tensor_count=HUGE), f"announces {HUGE} values of tensors, more than"),
    "a key's length": (header(LONG + b"\0" * 9), "it is cut short or damaged"),
    "a text's length": (header(pair("a", 8, LONG + b"\0" * 9)), "it is cut short or damaged"),
    "an array's length": (header(pair("a", 9, FOUR + LONG)), f"announces {HUGE} values of a, more"),
    "arrays in arrays": (header(pair("a", 9, NESTED)), "a has a value of type 9, expected a numbe"),
    "a value's type": (header(pair("a", 77, FOUR)), "a has a value of type 77"),
    "a key that is not UTF-8": (header(text(b"\xff\xfe") + b"\0" * 9), "is not UTF-8 text"),
    "a text that is not UTF-8": (header(pair("a", 8, text(b"\xff"))), "a is not UTF-8 text"),
    "a key of control characters": (header(pair("a\n\x1b[2J", 4, FOUR)), "'a\\n\\x1b[2J' is among"),
    "a key twice": (header(pair("a", 4, FOUR) * 2, pair_count=2), "it has a twice"),
    "no dimensions": (tensors(described("t")), "t has 0 dimensions, expected 1 to 4"),
    "an empty one": (tensors(described("t", 32, 0)), "t has shape (0, 32), expected one whose"),
    "part of a block": (tensors(described("t", 33, 4, kind=2)), "whole blocks of 32 for Q4_0"),
    "an unknown type": (tensors(described("t", 32, kind=200)), "t has the type 200, which GGUF"),
    "behind the end": (tensors(described("t", 32, offset=2**40)), "t reaches beyond its end"),
    "not aligned": (tensors(described("t", 32, offset=4)), "t is at offset 4, expected a multiple"),
    "twice": (tensors(described("t", 32), described("t", 32, offset=128)), "it has t twice"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_headers(case, tmp_path):
    data, sentence = HOSTILE[case]
    file = tmp_path / "m.gguf"
    file.write_bytes(data)
    assert sentence in refused(file)
