"""What each token of a model writes: its bytes, which may be a part of a character, and its name.

No library says so for every tokenizer, so each token is decoded after another one, and some texts
are put together from their tokens' bytes to see if they come out as the streamed text does.
"""

import random
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
from tokenizers import decoders

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_BROKEN = "\ufffd"  # what decoders write for bytes that are no character
_TRIALS, _TRIAL_UNITS = 64, 16
_CLEANED = re.compile(r" ([.?!,]|'|n't|'m|'s|'ve|'re)")  # what transformers may clean up


def mend_decoder(tokenizer: TokenizerWrapper) -> None:
    """Let byte-level words be decoded as such; some of Mistral's files name another decoder."""
    backend = getattr(tokenizer._tokenizer, "backend_tokenizer", None)
    if backend is None:
        return
    writes, reads = (
        "ByteLevel(" in repr(part) for part in (backend.pre_tokenizer, backend.decoder)
    )
    if writes and not reads:
        backend.decoder = decoders.ByteLevel()
        tokenizer._detokenizer = BPEStreamingDetokenizer(tokenizer._tokenizer)


class Vocabulary:
    """The tokens of a tokenizer, by id. ``problem`` says what their bytes do not explain."""

    def __init__(self, tokenizer: TokenizerWrapper):
        mend_decoder(tokenizer)
        self._tokenizer = tokenizer
        self._pieces: dict[int, str] = {i: p for p, i in tokenizer.get_vocab().items()}
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self.special = {i for i, token in added.items() if getattr(token, "special", False)}
        self.special |= {*tokenizer.all_special_ids, *tokenizer.eos_token_ids}
        self._bytes: dict[int, bytes] = {}
        self._whole: set[int] = set()  # ids of which the bytes are sure
        self._read()
        self._names = self._unique_names()
        self.problem = self._problem()

    def bytes_of(self, token: int) -> bytes:
        return self._bytes.get(token, b"")

    def name_of(self, token: int) -> str:
        """Return the token's text, in a form of its own if that is no text or another token's."""
        return self._names.get(token, f"token_id:{token}")

    def text_bytes(self, size: int) -> list[bytes]:
        """Return the bytes of the tokens of texts, empty for others, such as special tokens."""
        texts = self._whole - self.special
        return [self._bytes[token] if token in texts else b"" for token in range(size)]

    def _read(self) -> None:
        """Find the bytes of each token, from what it adds to the text of another one."""
        ids = sorted(self._pieces)
        alone = dict(zip(ids, self._decoded([[token] for token in ids]), strict=True))
        plain = [t for t in ids if t not in self.special and re.fullmatch("[A-Za-z]+", alone[t])]
        first = min(plain, key=lambda token: len(alone[token]), default=None)
        before = [] if first is None else [first]
        begin = "" if first is None else alone[first]
        letters = _letters()
        for token, text in zip(ids, self._decoded([[*before, t] for t in ids]), strict=True):
            piece = self._pieces[token]
            added = text.removeprefix(begin) if text.startswith(begin) else alone[token]
            self._bytes[token] = added.encode("utf-8", "replace")
            if _BROKEN not in added:
                self._whole.add(token)
            elif byte := _BYTE.fullmatch(piece):
                self._bytes[token] = bytes.fromhex(byte[1])
                self._whole.add(token)
            elif all(letter in letters for letter in piece):
                raw = bytes(letters[letter] for letter in piece)
                if raw.decode("utf-8", "replace") == added:
                    self._bytes[token] = raw
                    self._whole.add(token)
            elif piece == added:
                self._whole.add(token)

    def _decoded(self, lists: list[list[int]]) -> list[str]:
        inner: Any = self._tokenizer._tokenizer
        backend = getattr(inner, "backend_tokenizer", None)
        if backend is not None:  # a hundred times as fast
            return backend.decode_batch(lists, skip_special_tokens=False)
        return [inner.decode(ids) for ids in lists]

    def _unique_names(self) -> dict[int, str]:
        names, taken = dict[int, str](), {""}

        def order(token: int) -> tuple[bool, bool, int]:
            return token in self.special, bool(_BYTE.fullmatch(self._pieces[token])), token

        for token in sorted(self._bytes, key=order):
            name = _name(self._bytes[token])
            names[token] = f"token_id:{token}" if name in taken else name
            taken.add(name)
        return names

    def _problem(self) -> str | None:
        """Put texts together from bytes, and compare them with what is streamed."""
        for tokens in self._trials():
            expected = b"".join(map(self.bytes_of, tokens)).decode("utf-8", "replace")
            found = self._streamed(tokens)
            if found.lstrip(" ") != expected.lstrip(" "):
                words = " ".join(repr(self._pieces[token]) for token in tokens)
                return f"its tokens {words} are read as {found!r}, expected {expected!r}"
        return None

    def _trials(self) -> Iterator[list[int]]:
        rng, units = random.Random(0), list[list[int]]()
        single, cleaned = dict[bytes, int](), list[int]()
        for token in sorted(self._whole - self.special):
            raw = self._bytes[token]
            if len(raw) == 1:
                single.setdefault(raw, token)
            text = raw.decode("utf-8", "ignore")
            # Of control characters, texts of JSON have none.
            if text and text.isprintable() and text.encode() == raw:
                units.append([token])
                if _CLEANED.match(text):
                    cleaned.append(token)
        for character in "éß中€😀":
            parts = [character.encode()[i : i + 1] for i in range(len(character.encode()))]
            if all(part in single for part in parts):
                units.append([single[part] for part in parts])
        if not units:
            return
        for _ in range(_TRIALS):
            yield [token for unit in rng.choices(units, k=_TRIAL_UNITS) for token in unit]
        for token in cleaned[:_TRIALS]:
            yield [*rng.choice(units), token, *rng.choice(units)]

    def _streamed(self, tokens: Sequence[int]) -> str:
        detokenizer = self._tokenizer.detokenizer
        for token in tokens:
            detokenizer.add_token(token)
        detokenizer.finalize()
        return detokenizer.text


@lru_cache(maxsize=4)
def vocabulary_of(tokenizer: TokenizerWrapper) -> Vocabulary:
    """Return the vocabulary of a tokenizer, which takes a second the first time."""
    return Vocabulary(tokenizer)


def _letters() -> dict[str, int]:
    """Return the bytes that letters of byte-level words stand for."""
    plain = [byte for byte in range(ord("!"), 256) if chr(byte).isprintable()]
    others = (byte for byte in range(256) if byte not in plain)
    return {chr(byte): byte for byte in plain} | {chr(256 + n): b for n, b in enumerate(others)}


def _name(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
