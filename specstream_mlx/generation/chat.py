"""A conversation: its messages, and the KV rows of the turns before."""

from collections.abc import Generator
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..errors import UserError
from ..loading.speculative_model import SpeculativeModel
from ..prompts import chat_prompt, chat_text, in_template
from ..thoughts import Thought, ThoughtParser, ThoughtTokens
from .kv_store import PromptCache
from .stream_generate import stream_generate
from .text import GenerationResponse


class Chat:
    """A conversation with a model, which reads only the new tokens of each turn.

    The adapter may be swapped between turns; rows of another LoRA are useless, so the next turn
    reads them again. An adapter with a prompt template was trained on one task and single texts:
    its turns do not see those before.

    ``messages`` are those so far, each with a ``role`` and a ``content``, and ``cache`` holds their
    KV rows. What a model has thought is the ``reasoning_content`` of its message, which the chat
    template gives it again or not. ``system`` is the system prompt, ``None`` the chat template's
    own, if any; ``thinking`` is whether the model is to think first, ``None`` as its template has
    it. A tokenizer without a chat template is a ``UserError``.
    """

    is_thinking = False
    """Whether the response that came last belongs to a thought."""

    def __init__(
        self,
        model: SpeculativeModel,
        tokenizer: TokenizerWrapper,
        system: str | None = None,
        thinking: bool | None = None,
    ) -> None:
        if not tokenizer.has_chat_template:
            raise UserError("the tokenizer has no chat template, expected that of a chat model")
        self._model, self._tokenizer, self._system = model, tokenizer, system
        self._thinking = thinking
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
        if template is None:
            said = {"role": "user", "content": text}
            turns = chat_text(self._tokenizer, [*before, said], thinking=self._thinking)
            prompt = turns.encode(self._tokenizer)
        else:
            said = {"role": "user", "content": in_template(text, template)}
            prompt = chat_prompt(self._tokenizer, text, template, self._thinking)
        options["prompt_cache"] = self.cache
        responses: Any = stream_generate(self._model, self._tokenizer, prompt, **options)
        parser = ThoughtParser(self._tokenizer, prompt)
        tokens = ThoughtTokens(self._tokenizer, prompt)
        pieces: list[str | Thought] = []
        answered = False
        try:
            for response in responses:
                answered = answered or bool(response.text)
                pieces += parser.add(response.text)
                self.is_thinking = tokens.add(response.text)
                yield response
        finally:
            responses.close()
            if answered:
                pieces += parser.end()
                content = "".join(piece for piece in pieces if isinstance(piece, str))
                thought = "".join(piece.text for piece in pieces if isinstance(piece, Thought))
                reply = {"role": "assistant", "content": content}
                self.messages += [said, reply | ({"reasoning_content": thought} if thought else {})]
