"""Tokenizers from GGUF files: what they make of text, and which tokens end one."""

import json

import mlx_lm
import numpy as np
import pytest
from specstream_mlx.convert.to_mlx.gguf import convert_gguf
from tiny_gguf import byte_level_metadata, tiny_gguf
from tiny_models import CHAT_TEMPLATE, CORPUS, END, SPECIAL_TOKENS, tiny_tokenizer
from transformers import AutoTokenizer

TEXTS = [
    "",
    " ",
    "  hello   there\n\n\tyou ",
    "don't I'LL we've 1234567 ٣٤ ½",
    "Café déjà vu, 漢字 😀 ok",
    "def f(x): return x**2  # CamelCase",
    f"<|user|>{CORPUS[0]}{END}\n",
    *CORPUS,
]


def converted(tmp_path, architecture="llama", **metadata):
    """The tokenizer of a file with these metadata below ``tokenizer``, and the end tokens."""
    made = tiny_gguf(architecture)
    for key, value in metadata.items():
        made.metadata[f"tokenizer.{key.replace('__', '.')}"] = value
    rows = np.arange(len(made.metadata["tokenizer.ggml.tokens"]))
    _, kind, data = made.tensors["token_embd.weight"]
    made.tensors["token_embd.weight"] = (len(rows), 256), kind, data[rows % len(data)]
    convert_gguf(made.write(tmp_path / "m.gguf"), tmp_path / "mlx", overwrite=True)
    ends = json.loads((tmp_path / "mlx" / "generation_config.json").read_text())["eos_token_id"]
    assert json.loads((tmp_path / "mlx" / "config.json").read_text())["eos_token_id"] == ends
    _, wrapped = mlx_lm.load(str(tmp_path / "mlx"), lazy=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "mlx")
    assert all(wrapped.encode(text) == tokenizer.encode(text) for text in TEXTS)
    assert set(wrapped.eos_token_ids) == ({ends} if isinstance(ends, int) else set(ends))
    return tokenizer, ends


def test_a_byte_level_tokenizer_is_the_one_that_was_written(tmp_path):
    tokenizer, ends = converted(tmp_path)
    original = tiny_tokenizer()
    for text in TEXTS:
        assert tokenizer.encode(text) == original.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert ends == original.eos_token_id
    assert tokenizer.pad_token == original.pad_token
    assert tokenizer.chat_template == CHAT_TEMPLATE
    assert tokenizer.decode([0, ends, 10], skip_special_tokens=True) == original.decode([10])


def test_how_text_is_cut_into_words(tmp_path):
    text = "DON'T x123456   y!?\n FooBar"
    for pre, expected in {
        "gpt-2": ["DON", "'", "T", " x", "123456", "  ", " y", "!?", "\n", " FooBar"],
        "smollm": ["DON", "'", "T", " x", *"123456", "  ", " y", "!?", "\n", " FooBar"],
        "llama-bpe": ["DON", "'T", " x", "123", "456", "  ", " y", "!?\n", " FooBar"],
        "qwen2": ["DON", "'T", " x", *"123456", "  ", " y", "!?\n", " FooBar"],
        "tekken": ["DON", "'T", " x", *"123456", "  ", " y", "!?\n", " Foo", "Bar"],
    }.items():
        tokenizer, _ = converted(tmp_path, ggml__pre=pre)
        cut = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
        assert [text[begin:end] for _, (begin, end) in cut] == expected


def test_tokens_around_a_text(tmp_path):
    begin, end = SPECIAL_TOKENS.index("<|user|>"), SPECIAL_TOKENS.index(END)
    around = {"ggml__bos_token_id": begin, "ggml__add_bos_token": True}
    tokenizer, _ = converted(tmp_path, **around, ggml__add_eos_token=True)
    plain = tiny_tokenizer().encode(CORPUS[0])
    assert tokenizer.encode(CORPUS[0]) == [begin, *plain, end]
    assert tokenizer.encode(CORPUS[0], add_special_tokens=False) == plain
    assert tokenizer.bos_token == "<|user|>"


def test_what_the_kinds_of_tokenizers_differ_in(tmp_path):
    """Llama 3 begins texts where the file does not say, and takes words that are tokens whole,
    though no merges lead there; Qwen brings text to form NFC. User-defined tokens stay whole.
    """
    metadata = byte_level_metadata()
    tokens, kinds = (metadata[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type"))
    more = {"ggml__tokens": [*tokens, "zzz", "<think it>"], "ggml__token_type": [*kinds, 1, 4]}
    more |= {"ggml__bos_token_id": 2, "ggml__add_bos_token": None}
    word, thought = len(tokens), len(tokens) + 1
    for pre, begins, whole, composed in (
        ("llama-bpe", True, True, False),
        ("smaug-bpe", False, False, False),
        ("qwen2", False, False, True),
    ):
        tokenizer, _ = converted(tmp_path, ggml__pre=pre, **more)
        found = tokenizer.encode("zzz")
        assert ((found[0] == 2), (found[-1] == word)) == (begins, whole)
        assert (tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9")) is composed
        assert tokenizer.encode("a<think it>b")[1 + begins] == thought
        assert tokenizer.decode([thought], skip_special_tokens=True) == "<think it>"


def test_all_tokens_that_end_a_turn(tmp_path):
    """Those that the file names, and those that are so called."""
    tokens = byte_level_metadata()["tokenizer.ggml.tokens"]
    tokens[3] = "<|im_end|>"
    template = CHAT_TEMPLATE.replace("<|assistant|>", "<|im_end|>")
    named = {"ggml__eos_token_id": 1, "ggml__eot_token_id": 2}
    _, ends = converted(tmp_path, ggml__tokens=tokens, chat_template=template, **named)
    assert ends == [1, 2, 3]


ENDS = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")
ENDS += ("<end_of_turn>", "<EOT>", "[EOS]", "</s>")


@pytest.mark.parametrize("kind", [3, 4])
@pytest.mark.parametrize("template", [CHAT_TEMPLATE, None])
@pytest.mark.parametrize("name", ENDS)
def test_ends_by_their_names(name, template, kind, tmp_path):
    """Whatever the template says, and whether they are control tokens or the user's."""
    metadata = byte_level_metadata()
    tokens, kinds = (metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type"))
    tokens[7], kinds[7] = name, kind
    tokens[8], kinds[8] = "<|im_start|>", 3
    named = {"ggml__tokens": tokens, "ggml__token_type": kinds, "chat_template": template}
    tokenizer, ends = converted(tmp_path, **named)
    assert ends == [metadata["tokenizer.ggml.eos_token_id"], 7]
    assert tokenizer.encode(f"a{name}")[-1] == 7


def test_words_that_are_spelled_as_ends_are_none(tmp_path):
    """A file may have </s>, which crosses text out, among its words; <|..|> is no word."""
    metadata = byte_level_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    tokens[7], tokens[8] = "</s>", "<|im_end|>"
    _, ends = converted(tmp_path, ggml__tokens=tokens)
    assert ends == [metadata["tokenizer.ggml.eos_token_id"], 8]


def pieces(prefix=True):
    """A small sentencepiece model's metadata: merges follow from scores."""
    words = ["\u2581", "a", "b", "c", "\u2581a", "ab", "bc", "abc", "\u2581abc", "\n", "\n\n"]
    special = ["<unk>", "<s>", "</s>"]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *words, "  ", "<turn>"]
    scores = [0.0] * 259 + [-9.0, -8, -7, -6, -3, -2, -1, -4, -5, -9, -9] + [0.0, 0.0]
    own = {
        "model": "llama",
        "tokens": tokens,
        "scores": list(map(float, scores)),
        "token_type": [2, 3, 3] + [6] * 256 + [1] * 11 + [4, 3],
        "add_space_prefix": prefix,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **dict.fromkeys(("pre", "merges", "add_bos_token", "padding_token_id")),
    }
    return {f"ggml__{key}": value for key, value in own.items()}


def test_gemma_has_no_prefix_and_its_order_of_tokens(tmp_path):
    tokenizer, _ = converted(tmp_path, "gemma3", **pieces(prefix=False))
    assert tokenizer.tokenize("aabc") == ["a", "abc"]
    assert tokenizer.tokenize("bab c") == ["b", "ab", "\u2581", "c"]
    assert tokenizer.tokenize("b  c<turn>") == ["b", "\u2581\u2581", "c", "<turn>"]
    assert tokenizer.encode("a")[0] == 1  # begun, since the file does not say otherwise
    assert tokenizer.decode(tokenizer.encode(" b  c"), skip_special_tokens=True) == " b  c"


def test_pieces_are_those_of_sentencepiece(tmp_path):
    spm = pytest.importorskip("sentencepiece")
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 9),
        model_prefix=str(tmp_path / "spm"),
        model_type="bpe",
        vocab_size=330,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    model = spm.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))
    every = range(model.get_piece_size())
    own = {
        "ggml__tokens": [model.id_to_piece(number) for number in every],
        "ggml__scores": [model.get_score(number) for number in every],
        "ggml__token_type": [2, 3, 3, *(6 if model.is_byte(n) else 1 for n in every[3:])],
    }
    tokenizer, _ = converted(tmp_path, **pieces() | own)
    for text in [text for text in TEXTS if text and "<|" not in text]:
        assert tokenizer.encode(text, add_special_tokens=False) == model.encode(text), text
        assert tokenizer.decode(model.encode(text)) == text
