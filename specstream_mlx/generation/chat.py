"""A conversation: its messages, and the KV rows of the turns before."""

from collections.abc import Generator
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..errors import UserError
from ..loading.speculative_model import SpeculativeModel
from ..prompts import in_template
from .kv_store import PromptCache
from .stream_generate import stream_generate
from .text import GenerationResponse


class Chat:
    """A conversation with a model, which reads only the new tokens of each turn.

    The adapter may be swapped between turns; rows of another LoRA are useless, so the next turn
    reads them again. An adapter with a prompt template was trained on one task and single texts:
    its turns do not see those before.

    ``messages`` are those so far, each with a ``role`` and a ``content``, and ``cache`` holds their
    KV rows. ``system`` is the system prompt, ``None`` the chat template's own, if any. A tokenizer
    without a chat template is a ``UserError``.
    """

    def __init__(
        self, model: SpeculativeModel, tokenizer: TokenizerWrapper, system: str | None = None
    ) -> None:
        if not tokenizer.has_chat_template:
            raise UserError("the tokenizer has no chat template, expected that of a chat model")
        self._model, self._tokenizer, self._system = model, tokenizer, system
        self.clear()

    def clear(self) -> None:
        """Begin a new conversation with the same system prompt."""
        self.cache = PromptCache()
        self.messages: list[dict[str, str]] = []
        if self._system is not None:
            self.messages.append({"role": "system", "content": self._system})

    def reply(self, text: str, **options: Any) -> Generator[GenerationResponse, None, None]:
        """Send a message and generate the reply, by ``stream_generate`` with further ``options``.

        Of a reply that is not read to its end, the part that was read stays; if nothing was read,
        the conversation stays as it was.
        """
        template, before = self._model.prompt_template, self.messages
        if template is not None:
            text, before = in_template(text, template), []
        said, written = {"role": "user", "content": text}, ""
        options["prompt_cache"] = self.cache
        responses: Any = stream_generate(self._model, self._tokenizer, [*before, said], **options)
        try:
            for response in responses:
                written += response.text
                yield response
        finally:
            responses.close()
            if written:
                self.messages += [said, {"role": "assistant", "content": written}]
