"""What each token writes, with every kind of tokenizer."""

import random

import pytest
from tiny_models import END, SPECIAL_TOKENS
from tokenizer_kinds import FOLLOWED, REFUSED, wrapped

from specstream_mlx.vocabulary import Vocabulary

KINDS = FOLLOWED | REFUSED


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def tokenizer(kind, tmp_path):
    return wrapped(KINDS[kind](), tmp_path)


def test_no_two_tokens_have_one_name(tokenizer):
    vocabulary = Vocabulary(tokenizer)
    names = [vocabulary.name_of(token) for token in range(len(tokenizer) + 4)]
    assert len(set(names)) == len(names)
    assert names[-1] == f"token_id:{len(tokenizer) + 3}"  # a row of the model without a token


@pytest.mark.parametrize("kind", FOLLOWED, indirect=True)
def test_texts_are_the_bytes_of_their_tokens(tokenizer):
    vocabulary, rng = Vocabulary(tokenizer), random.Random(5)
    assert vocabulary.problem is None
    usable = [n for n, raw in enumerate(vocabulary.text_bytes(len(tokenizer))) if raw.isascii()]
    usable = [n for n in usable if vocabulary.bytes_of(n).decode().isprintable()]
    usable = [n for n in usable if n >= len(SPECIAL_TOKENS)]
    for _ in range(50):
        tokens = rng.choices(usable, k=20)
        expected = b"".join(map(vocabulary.bytes_of, tokens)).decode()
        streamed = tokenizer.detokenizer
        for token in tokens:
            streamed.add_token(token)
        streamed.finalize()
        assert streamed.text.lstrip() == tokenizer.decode(tokens).lstrip() == expected.lstrip()


@pytest.mark.parametrize("kind", FOLLOWED, indirect=True)
def test_single_tokens(kind, tokenizer):
    vocabulary = Vocabulary(tokenizer)

    def of(piece):
        token = tokenizer.convert_tokens_to_ids(piece)
        return vocabulary.bytes_of(token), vocabulary.name_of(token)

    byte_level = kind.startswith("byte-level")
    assert of(END) == (END.encode(), END)
    assert of("Ġa" if byte_level else "▁a") == (b" a", " a")  # a first space is kept
    assert of("a") == (b"a", "a")
    if byte_level:
        assert of("Ã") == (b"\xc3", r"bytes:\xc3")
        assert of("âĤ") == (b"\xe2\x82", r"bytes:\xe2\x82")
        assert of("Ã©") == ("é".encode(), "é")
    elif not kind.startswith("Unigram"):
        assert of("<0xC3>") == (b"\xc3", r"bytes:\xc3")
        token = tokenizer.convert_tokens_to_ids("<0x61>")
        assert of("<0x61>") == (b"a", f"token_id:{token}")
    assert END.encode() not in vocabulary.text_bytes(len(tokenizer))


@pytest.mark.parametrize(
    "kind", ["WordPiece", "ends of words", "repeats are dropped"], indirect=True
)
def test_what_bytes_do_not_explain_is_said(tokenizer):
    problem = Vocabulary(tokenizer).problem
    assert problem.startswith("its tokens '")
    assert ", expected '" in problem


def test_a_tokenizer_in_python(tokenizer):
    """Without tokens of Rust's library, each is decoded by itself: the same bytes."""

    class Slow:
        def __init__(self, inner):
            self._inner = inner

        def __len__(self):
            return len(self._inner)

        def __getattr__(self, name):
            if name == "backend_tokenizer":
                raise AttributeError(name)
            return getattr(self._inner, name)

    fast = Vocabulary(tokenizer)
    tokenizer._tokenizer = Slow(tokenizer._tokenizer)
    slow = Vocabulary(tokenizer)
    for token in range(len(tokenizer)):
        assert slow.bytes_of(token) == fast.bytes_of(token)
