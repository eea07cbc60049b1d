"""The prompt of ``generate``, which may go on from a prompt cache file."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..options import KVCacheOptions

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..kv_store import PromptCache
    from ..loading import SpeculativeModel


class ContinuedPrompt:
    """A prompt cache file, or none.

    Attributes:
        cache: its rows, once ``open`` has read them.
        tokenizer_config: the tokenizer's further arguments.
    """

    def __init__(self, path: Path | None):
        self._path, self._made_by = path, None
        self.cache: PromptCache | None = None
        self.tokenizer_config: dict[str, Any] = {}
        if path is not None:
            from ..kv_store import read_metadata

            self._made_by, self.tokenizer_config = read_metadata(path)

    def model_name(self, given: str | None) -> str | None:
        """``--model``, or the model that made the file; ``None`` is the demonstration model."""
        from .. import demonstration

        if given is not None or self._made_by is None:
            return given
        return None if self._made_by == str(demonstration.directory()) else self._made_by

    def open(
        self, model: "SpeculativeModel", model_name: str, kv_cache: KVCacheOptions
    ) -> KVCacheOptions:
        """Read the rows."""
        if self._path is None:
            return kv_cache
        from ..kv_store import PromptCache

        self.cache = PromptCache.load(self._path, model, model_name)
        if self.cache.quantized is None:
            return kv_cache
        bits, group_size = self.cache.quantized
        given = kv_cache.kv_bits, kv_cache.kv_group_size
        if kv_cache.kv_bits is not None and given != self.cache.quantized:
            raise UserError(
                f"--kv-bits and --kv-group-size are {given[0]} and {given[1]}, expected "
                f"{bits} and {group_size}, as {self._path} has them"
            )
        start = min(kv_cache.quantized_kv_start, self.cache.rows)  # what is quantized stays so
        return KVCacheOptions(bits, group_size, start)

    def prompt(
        self, tokenizer: "TokenizerWrapper", text: str, model: "SpeculativeModel", raw: bool
    ) -> list[int]:
        """Token ids of the whole prompt, as far as those of the file are known."""
        from ..prompts import chat_prompt, chat_suffix, encode_prompt

        if self.cache is None:
            if raw:
                return encode_prompt(tokenizer, text)
            return chat_prompt(tokenizer, text, model.prompt_template)
        if raw:
            suffix = tokenizer.encode(text, add_special_tokens=False)
        else:
            suffix = chat_suffix(tokenizer, text, model.prompt_template)
        return [*self.cache.tokens, *suffix]
