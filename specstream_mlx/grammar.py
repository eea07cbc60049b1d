"""Texts that a JSON schema allows: before each token, those that may not come are masked out.

A draft tree's node is masked at its own place in the grammar: the logits processor gets the tokens
of the node's path, and one matcher goes back and forth to where they lead.
"""

import json
import threading
from collections.abc import Callable, Collection, Iterator
from functools import cached_property, lru_cache
from importlib import util
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
from mlx_lm.sample_utils import LogitsProcessor
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .engine.sampling import is_draft
from .errors import UserError, install, shown
from .vocabulary import Vocabulary, vocabulary_of

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Schema = dict[str, Any] | bool | str
"""A JSON schema, or one as text."""

# As Python writes it: else a model may write white space for ever.
_SPACES: Any = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}

_NEEDED = '{}[]":, \\-.0123456789aeflnrstu'
"""What JSON is written with, besides strings."""

_EXACT = 2**53  # llguidance reads numbers as float64
_NAMED = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
_NOTES = {"default", "examples", "example", "title", "description", "$comment"}


class Grammars:
    """Makes masks for the texts of one model."""

    def __init__(self, tokenizer: TokenizerWrapper, vocab_size: int):
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._lock = threading.Lock()

    @cached_property
    def _tokens(self) -> "LLTokenizer":  # takes a second
        if util.find_spec("llguidance") is None:
            raise UserError(f"schemas need llguidance: {install('serve')}")
        from llguidance import LLTokenizer

        vocabulary = vocabulary_of(self._tokenizer)
        if vocabulary.problem is not None:
            raise UserError(f"the tokenizer cannot be followed by a schema: {vocabulary.problem}")
        ends = sorted(end for end in self._tokenizer.eos_token_ids if end < self._vocab_size)
        if not ends:
            raise UserError("the tokenizer has no end token, expected one after a schema's text")
        tokens: Any = _Tokens(vocabulary, self._vocab_size, ends[0])
        if missing := [letter for letter in _NEEDED if not tokens.has(letter)]:
            letters = " ".join(map(repr, missing[:5]))
            raise UserError(f"the tokenizer has no token for {letters} alone, which schemas need")
        return LLTokenizer(tokens, n_vocab=len(tokens.tokens), eos_token=ends)

    def json(self, schema: Schema, prompt_tokens: int) -> Callable[[], LogitsProcessor]:
        """Return a function that makes the mask of one text, which is JSON that fits a schema."""
        with self._lock:
            tokens = self._tokens
        from llguidance import LLMatcher

        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except (ValueError, RecursionError) as error:
                raise UserError(f"the schema is no JSON: {error}") from None
        if not isinstance(schema, dict | bool):
            raise UserError(f"the schema is {shown(schema)}, expected an object, true or false")
        try:
            _check_numbers(schema)
            grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), _SPACES)
        except RecursionError:
            raise UserError("the schema is nested too deeply") from None
        except (TypeError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"the schema cannot be followed: {error}") from None
        matcher = LLMatcher(tokens, grammar, log_level=0)
        if matcher.is_error():
            line = matcher.get_error().strip().splitlines()[0]
            raise UserError(f"the schema cannot be followed: {line}")
        ends = self._tokenizer.eos_token_ids
        return lambda: _Mask(matcher.deep_copy(), prompt_tokens, self._vocab_size, ends)


@lru_cache(maxsize=4)
def grammars_of(tokenizer: TokenizerWrapper, vocab_size: int) -> Grammars:
    """Return the ``Grammars`` of a model, which are expensive to make."""
    return Grammars(tokenizer, vocab_size)


class _Tokens:
    """The vocabulary as llguidance takes it."""

    is_tokenizer_wrapper, bos_token_id = True, None

    def __init__(self, vocabulary: Vocabulary, size: int, end: int):
        self.eos_token_id, self._nothing = end, size
        self.tokens = [*vocabulary.text_bytes(size), b""]  # the last one stands for nothing
        self.special_token_ids = [*sorted(t for t in vocabulary.special if t < size), size]
        self._ids = {raw: token for token, raw in enumerate(self.tokens) if raw}
        self._longest = max(map(len, self._ids), default=0)

    def has(self, text: str) -> bool:
        return text.encode() in self._ids

    def __call__(self, text: str) -> list[int]:
        """Return tokens of this text alone, to which the tokenizer might add a space."""
        found, rest = list[int](), text.encode()
        while rest:
            sizes = range(min(len(rest), self._longest), 0, -1)
            size = next((size for size in sizes if rest[:size] in self._ids), 0)
            if not size:  # fewer tokens would let llguidance leave out what they do not write
                return [*found, self._nothing]
            found.append(self._ids[rest[:size]])
            rest = rest[size:]
        return found


class _Mask:
    def __init__(
        self, matcher: "LLMatcher", prompt_tokens: int, vocab_size: int, ends: Collection[int]
    ):
        self._matcher, self._prompt_tokens, self._ends = matcher, prompt_tokens, ends
        self._vocab_size, self._consumed = vocab_size, list[int]()

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        """Mask (1, vocab) logits of tokens that may not follow.

        A draft that does not fit will be rejected, so what follows it is left alone; a text that
        does not fit ends with an error.
        """
        path: Any = tokens[self._prompt_tokens :].tolist()
        if not self._goes_to(path):
            if is_draft():
                return logits
            raise UserError("the text has left what the schema allows")
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(bits, bitorder="little")[: self._vocab_size].astype(bool)
        error = self._matcher.get_error()
        if any(sign in error for sign in ("doesn't satisfy", "NoExtension")) or not allowed.any():
            raise UserError("the tokenizer has no token for what the schema demands next")
        if error:
            raise UserError("the schema became too complex to follow")
        # What is allowed stays above what is not, whatever other processors did to it.
        least = mx.finfo(logits.dtype).min
        return mx.where(mx.array(allowed), mx.maximum(logits, least), -mx.inf)

    def _goes_to(self, path: list[int]) -> bool:
        """Take the matcher to the end of a path; false: the grammar does not lead there."""
        pairs = zip(self._consumed, path, strict=False)
        common = len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])
        if common < len(self._consumed):
            self._matcher.rollback(len(self._consumed) - common)
        done = common + self._matcher.try_consume_tokens(path[common:])
        self._consumed, rest = path[:done], path[done:]
        # A matcher of a complete text may take no end token.
        return not rest or (rest[0] in self._ends and self._matcher.is_accepting())


def _check_numbers(schema: Any) -> None:
    """Check that a schema has no integer that llguidance would round."""
    for place, number, most in _integers(schema, ()):
        if not -most <= number <= most:
            raise UserError(
                f"the schema's {'.'.join(place)} is {shown(number)}, expected an integer of at "
                f"most {most}: larger ones cannot be followed exactly"
            )


def _integers(schema: Any, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int, int]]:
    """Yield the integers of a schema, with their places and the largest that are exact there."""
    if isinstance(schema, dict):
        named = bool(place) and place[-1] in _NAMED
        for name, value in schema.items():
            if named or name not in _NOTES:
                # A property may have the name of a keyword.
                inner = (*place, f"{name}" if not named else f"[{name}]")
                yield from _integers(value, inner)
    elif isinstance(schema, list):
        for number, value in enumerate(schema):
            yield from _integers(value, (*place, str(number)))
    elif isinstance(schema, int) and not isinstance(schema, bool):
        exclusive = bool(place) and place[-1] in ("exclusiveMinimum", "exclusiveMaximum")
        yield place, schema, _EXACT - exclusive
