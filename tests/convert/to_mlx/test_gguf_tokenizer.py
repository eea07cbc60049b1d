"""Tokenizers from GGUF files: what they make of text, and which tokens end one."""

import json

import mlx_lm
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
    rows = len(made.metadata["tokenizer.ggml.tokens"])
    if rows != made.tensors["token_embd.weight"][0][0]:
        data = made.tensors["token_embd.weight"][2]
        made.tensors["token_embd.weight"] = (
            (rows, 256),
            made.tensors["token_embd.weight"][1],
            data[[row % len(data) for row in range(rows)]],
        )
    convert_gguf(made.write(tmp_path / "m.gguf"), tmp_path / "mlx")
    ends = json.loads((tmp_path / "mlx" / "generation_config.json").read_text())["eos_token_id"]
    assert json.loads((tmp_path / "mlx" / "config.json").read_text())["eos_token_id"] == ends
    _, wrapped = mlx_lm.load(str(tmp_path / "mlx"), lazy=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "mlx")
    assert all(wrapped.encode(text) == tokenizer.encode(text) for text in TEXTS)
    assert set(wrapped.eos_token_ids) == ({ends} if isinstance(ends, int) else set(ends))
    return tokenizer, ends


def with_token(token, kind):
    """Tokens and their types with one more."""
    metadata = byte_level_metadata()
    tokens, kinds = (metadata[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type"))
    return [*tokens, token], [*kinds, kind]


def words(tokenizer, text):
    """The words that no merge crosses, of text in plain letters."""
    cut = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    return [text[begin:end] for _, (begin, end) in cut]


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


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["DON", "'", "T", " x", "123456", "  ", " y", "!?", "\n", " FooBar"]),
        ("smollm", ["DON", "'", "T", " x", *"123456", "  ", " y", "!?", "\n", " FooBar"]),
        ("llama-bpe", ["DON", "'T", " x", "123", "456", "  ", " y", "!?\n", " FooBar"]),
        ("smaug-bpe", ["DON", "'T", " x", "123", "456", "  ", " y", "!?\n", " FooBar"]),
        ("qwen2", ["DON", "'T", " x", *"123456", "  ", " y", "!?\n", " FooBar"]),
        ("tekken", ["DON", "'T", " x", *"123456", "  ", " y", "!?\n", " Foo", "Bar"]),
    ],
)
def test_how_text_is_cut_into_words(pre, expected, tmp_path):
    tokenizer, _ = converted(tmp_path, ggml__pre=pre)
    assert words(tokenizer, "DON'T x123456   y!?\n FooBar") == expected


def test_tokens_around_a_text(tmp_path):
    begin, end = SPECIAL_TOKENS.index("<|user|>"), SPECIAL_TOKENS.index(END)
    around = {"ggml__bos_token_id": begin, "ggml__add_bos_token": True}
    tokenizer, _ = converted(tmp_path, **around, ggml__add_eos_token=True)
    plain = tiny_tokenizer().encode(CORPUS[0])
    assert tokenizer.encode(CORPUS[0]) == [begin, *plain, end]
    assert tokenizer.encode(CORPUS[0], add_special_tokens=False) == plain
    assert tokenizer.bos_token == "<|user|>"


@pytest.mark.parametrize(("pre", "begins"), [("llama-bpe", True), ("qwen2", False)])
def test_whether_a_text_begins_where_the_file_does_not_say(pre, begins, tmp_path):
    metadata = {"ggml__pre": pre, "ggml__bos_token_id": 2, "ggml__add_bos_token": None}
    tokenizer, _ = converted(tmp_path, **metadata)
    assert (tokenizer.encode("hello")[0] == 2) is begins


def test_words_that_are_tokens_are_not_merged(tmp_path):
    """Llama 3 takes them whole, though no merges lead there."""
    tokens, kinds = with_token("zzz", 1)
    for pre, whole in (("llama-bpe", True), ("smaug-bpe", False)):
        directory = tmp_path / pre
        directory.mkdir()
        metadata = {"ggml__pre": pre, "ggml__tokens": tokens, "ggml__token_type": kinds}
        tokenizer, _ = converted(directory, **metadata)
        assert (tokenizer.encode("zzz") == [len(tokens) - 1]) is whole


def test_all_tokens_that_end_a_turn(tmp_path):
    """Those that the file names, and the template's own name for it."""
    tokens = byte_level_metadata()["tokenizer.ggml.tokens"]
    tokens[3] = "<|im_end|>"
    template = CHAT_TEMPLATE.replace("<|assistant|>", "<|im_end|>")
    named = {"ggml__eos_token_id": 1, "ggml__eot_token_id": 2}
    _, ends = converted(tmp_path, ggml__tokens=tokens, chat_template=template, **named)
    assert ends == [1, 2, 3]


def test_user_defined_tokens_stay_whole(tmp_path):
    tokens, kinds = with_token("<think it>", 4)
    tokenizer, _ = converted(tmp_path, ggml__tokens=tokens, ggml__token_type=kinds)
    number = len(tokens) - 1
    assert tokenizer.encode("a<think it>b")[1] == number
    assert tokenizer.decode([number], skip_special_tokens=True) == "<think it>"


def test_text_is_composed_for_qwen_alone(tmp_path):
    for pre, same in (("qwen2", True), ("deepseek-r1-qwen", False)):
        directory = tmp_path / pre
        directory.mkdir()
        tokenizer, _ = converted(directory, ggml__pre=pre)
        assert (tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9")) is same


def pieces(prefix=True):
    """A small sentencepiece model's metadata: merges follow from scores."""
    words = ["\u2581", "a", "b", "c", "\u2581a", "ab", "bc", "abc", "\u2581abc", "\n", "\n\n"]
    special = ["<unk>", "<s>", "</s>"]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *words, "  ", "<turn>"]
    scores = [0.0] * 259 + [-9, -8, -7, -6, -3, -2, -1, -4, -5, -9, -9] + [0, 0]
    return {
        "ggml__model": "llama",
        "ggml__pre": None,
        "ggml__merges": None,
        "ggml__tokens": tokens,
        "ggml__scores": [float(score) for score in scores],
        "ggml__token_type": [2, 3, 3] + [6] * 256 + [1] * 11 + [4, 3],
        "ggml__add_space_prefix": prefix,
        "ggml__add_bos_token": None,
        "ggml__bos_token_id": 1,
        "ggml__eos_token_id": 2,
        "ggml__padding_token_id": None,
    }


def test_merges_by_score(tmp_path):
    """bc is worth more than ab, and abc is made of what is left."""
    tokenizer, _ = converted(tmp_path, **pieces())
    assert tokenizer.tokenize("abc") == ["\u2581abc"]
    assert tokenizer.tokenize("cabc") == ["\u2581", "c", "abc"]
    assert tokenizer.tokenize("aab") == ["\u2581a", "ab"]
    assert tokenizer.encode("é", add_special_tokens=False) == [259, 3 + 0xC3, 3 + 0xA9]
    assert tokenizer.encode("a")[0] == 1  # begun, since the file does not say otherwise
    for text in ("abc", " abc", "é  b", "a\nb"):
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text


def test_gemma_has_no_prefix_and_its_order_of_tokens(tmp_path):
    tokenizer, _ = converted(tmp_path, "gemma3", **pieces(prefix=False))
    assert tokenizer.tokenize("aabc") == ["a", "abc"]
    assert tokenizer.tokenize("bab c") == ["b", "ab", "\u2581", "c"]
    assert tokenizer.tokenize("b  c<turn>") == ["b", "\u2581\u2581", "c", "<turn>"]
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
    count = model.get_piece_size()
    kinds = [
        2 if model.is_unknown(n) else 3 if model.is_control(n) else 6 if model.is_byte(n) else 1
        for n in range(count)
    ]
    metadata = {
        **pieces(),
        "ggml__tokens": [model.id_to_piece(number) for number in range(count)],
        "ggml__scores": [model.get_score(number) for number in range(count)],
        "ggml__token_type": kinds,
    }
    (tmp_path / "converted").mkdir()
    tokenizer, _ = converted(tmp_path / "converted", **metadata)
    for text in [text for text in TEXTS if text and "<|" not in text]:
        assert tokenizer.encode(text, add_special_tokens=False) == model.encode(text), text
        assert tokenizer.decode(model.encode(text)) == text
