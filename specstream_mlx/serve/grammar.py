"""Texts that a JSON schema allows: before each token, those that may not come are masked out.

A draft tree's node is masked at its own place in the grammar: the logits processor gets the tokens
of the node's path, and one matcher goes back and forth to where they lead.
"""

import json
from collections.abc import Callable
from functools import cached_property
from itertools import takewhile
from typing import Any

import mlx.core as mx
import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer
from mlx_lm.sample_utils import LogitsProcessor
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..errors import UserError

# As Python writes it: else a model may write white space for ever.
_SPACES: Any = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}


class Grammars:
    """Makes masks for the texts of one model."""

    def __init__(self, tokenizer: TokenizerWrapper, vocab_size: int):
        self._tokenizer, self._vocab_size = tokenizer, vocab_size

    @cached_property
    def _tokens(self) -> LLTokenizer:  # takes a second
        inner, ends = self._tokenizer._tokenizer, sorted(self._tokenizer.eos_token_ids)
        try:
            return from_tokenizer(inner, n_vocab=self._vocab_size, eos_token=ends)
        except ValueError as error:
            raise UserError(f"schemas need a fast tokenizer: {error}") from None

    def json(
        self, schema: dict[str, Any] | bool, prompt_tokens: int
    ) -> Callable[[], LogitsProcessor]:
        """Return a function that makes the mask of one text, which is JSON that fits a schema."""
        tokens = self._tokens
        try:
            grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), _SPACES)
        except ValueError as error:
            raise UserError(f"the schema cannot be followed: {error}") from None
        matcher = LLMatcher(tokens, grammar, log_level=0)
        if matcher.is_error():
            line = matcher.get_error().strip().splitlines()[0]
            raise UserError(f"the schema cannot be followed: {line}")
        return lambda: _Mask(matcher.deep_copy(), prompt_tokens, self._vocab_size)


class _Mask:
    def __init__(self, matcher: LLMatcher, prompt_tokens: int, vocab_size: int):
        self._matcher, self._prompt_tokens = matcher, prompt_tokens
        self._vocab_size, self._consumed = vocab_size, list[int]()

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        """Mask (1, vocab) logits of tokens that may not follow; of no text's own path, none."""
        path: Any = tokens[self._prompt_tokens :].tolist()
        if not self._goes_to(path):
            return logits
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(bits, bitorder="little")[: self._vocab_size].astype(bool)
        if self._matcher.is_error() or not allowed.any():
            raise UserError("the schema became too complex to follow")
        return mx.where(mx.array(allowed), logits, -mx.inf)

    def _goes_to(self, path: list[int]) -> bool:
        """Take the matcher to the end of a path; false: the grammar does not lead there."""
        pairs = zip(self._consumed, path, strict=False)
        common = len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])
        if common < len(self._consumed):
            self._matcher.rollback(len(self._consumed) - common)
        done = self._matcher.try_consume_tokens(path[common:])
        self._consumed = path[: common + done]
        return common + done == len(path)
