"""A conversation: its messages, and the KV rows of the turns before."""

from collections.abc import Generator
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from .config import UserError
from .generation import GenerationResponse, stream_generate
from .loading import SpeculativeModel
from .prompt_cache import PromptCache


class Chat:
    """A conversation with a model, which reads only what is new in each turn.

    The adapter may be swapped between two turns; rows of another LoRA are of no use, so the next
    turn then reads again what it needs. An adapter with a prompt template was trained on one task
    and single texts: its turns do not see those before.

    Attributes:
        messages: what was said so far, each with a ``role`` and a ``content``.
        cache: the KV rows of ``messages``.

    Args:
        model, tokenizer: from ``load``.
        system: the system prompt; ``None``: the chat template's own, if it has one.

    Raises:
        UserError: the tokenizer has no chat template.
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
        """Say something and generate the reply.

        A reply that is not read to its end counts as far as it was read, and one of which nothing
        was read leaves the conversation as it was.

        Args:
            text: what the user says; it is put into the mounted adapter's template if it has one.
            **options: arguments of ``stream_generate`` behind ``prompt``.

        Yields:
            ``GenerationResponse``, as ``stream_generate`` does.

        Raises:
            UserError: ``stream_generate`` refuses an option, or the conversation has become longer
                than the model's context.
        """
        template, before = self._model.prompt_template, self.messages
        if template is not None:
            text, before = template.replace("{text}", text), []
        said = {"role": "user", "content": text}
        written = ""
        responses: Any = stream_generate(
            self._model,
            self._tokenizer,
            [*before, said],
            prompt_cache=self.cache,
            **options,
        )
        try:
            for response in responses:
                written += response.text
                yield response
        finally:
            responses.close()
            if written:
                self.messages += [said, {"role": "assistant", "content": written}]
