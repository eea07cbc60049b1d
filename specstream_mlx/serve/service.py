"""The resident models, one base and many adapters, and the texts to write that requests ask for."""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any

from mlx_lm.sample_utils import LogitsProcessor, make_logits_processors
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..errors import UserError
from ..grammar import grammars_of
from ..loading.speculative_model import SpeculativeModel
from ..models.architectures import context_length
from ..prompts import chat_text, check_messages, encode_prompt
from ..thoughts import AfterThought
from ..vocabulary import vocabulary_of
from .client_request import ClientRequest
from .decoding import Job
from .fields import RefusedError
from .rendering import shared_renderer
from .worker import Worker

BASE = "base"
"""The base's name; an adapter's is ``base:`` and its own."""

_DEFAULT_TOKENS = 512  # of a text of which a client does not say how long it may get


def adapters_in(folder: Path) -> dict[str, Path]:
    """Find the adapter directories in a folder, by name."""
    paths = {path.parent.name: path.parent for path in folder.glob("*/adapter_config.json")}
    if not paths:
        raise UserError(f"{folder} has no adapters, expected a directory of each adapter in it")
    return dict(sorted(paths.items()))


def resident(
    base: SpeculativeModel, adapters: Mapping[str, str | Path]
) -> dict[str, SpeculativeModel]:
    """Make a model of each adapter, named as clients name them; all share the base's weights."""
    if base.adapter is not None and base.adapter.lora:
        raise UserError(f"{base.adapter.path} has LoRA, expected lossless streams for the base")
    named = {f"{BASE}:{name}": base.with_adapter(place) for name, place in adapters.items()}
    return {BASE: base} | named


class Service:
    """The models from ``resident``, and the worker, with its limits, that decodes with them.

    A client learns that the server is alive after ``patience`` seconds without news; ``aliases``
    are further names of models.
    """

    def __init__(
        self,
        models: Mapping[str, SpeculativeModel],
        tokenizer: TokenizerWrapper,
        most_tokens: int = 4096,
        patience: float = 5.0,
        aliases: Mapping[str, str] | None = None,
        **limits: int,
    ):
        self.models, self.tokenizer, self.aliases = models, tokenizer, aliases or {}
        self.worker = Worker(models[BASE], tokenizer, **limits)
        self.most_tokens, self.patience = most_tokens, patience
        self._grammars = grammars_of(tokenizer, models[BASE].config["vocab_size"])
        self._renderer, self._one_at_a_time = shared_renderer(), Lock()

    @property
    def names(self) -> tuple[str, ...]:
        return *self.models, *self.aliases

    async def prepare(self, *requests: ClientRequest) -> list[Job]:
        """Make the texts of a request, without holding up others."""
        return await asyncio.to_thread(lambda: [*chain(*map(self.jobs, requests))])

    async def count(self, request: ClientRequest) -> int:
        """Count the tokens of a request's prompt, without holding up others."""
        model = self.model(request.model)
        return len((await asyncio.to_thread(self._prompt, request, model))[0])

    def jobs(self, request: ClientRequest) -> list[Job]:
        """Make the texts that a request asks for."""
        request = replace(request, model=self.aliases.get(request.model, request.model))
        model = self.model(request.model)
        prompt, request = self._prompt(request, model)
        with self._one_at_a_time:
            return self._jobs(request, model, prompt)

    def _jobs(
        self, request: ClientRequest, model: SpeculativeModel, prompt: list[int]
    ) -> list[Job]:
        masks = [] if request.schema is None else [self._mask(request, prompt)]
        for token in request.penalties.get("logit_bias", ()):
            if token >= (size := model.config["vocab_size"]):
                sentence = f"logit_bias has token {token}, expected one of 0 to {size - 1}"
                raise RefusedError(400, sentence, "logit_bias")
        if request.top_logprobs is not None:
            vocabulary_of(self.tokenizer)  # which takes a second, not in the thread of all replies
        penalties = make_logits_processors(**request.penalties)
        seed = secrets.randbits(32) if request.seed is None else request.seed
        context, room = context_length(model.config), self.most_tokens
        if context is not None:
            room = min(room, context - len(prompt))
        most = _DEFAULT_TOKENS if request.max_tokens is None else request.max_tokens
        most = max(1, min(most, room))
        jobs = [
            Job(request, model, prompt, most, seed + number, [*penalties, *(m() for m in masks)])
            for number in range(request.n)
        ]
        jobs[0].request().check(model)
        return jobs

    def _mask(self, request: ClientRequest, prompt: list[int]) -> Callable[[], LogitsProcessor]:
        """Return a function that makes the mask of one text; thoughts come before the schema."""
        assert request.schema is not None
        mask, tokenizer = self._grammars.json(request.schema, len(prompt)), self.tokenizer
        if not (request.is_chat and tokenizer.has_thinking):
            return mask
        may_think = request.thinking is not False
        return lambda: AfterThought(mask(), tokenizer, prompt, may_think)

    def model(self, name: str) -> SpeculativeModel:
        """Return the model that a client means."""
        name = self.aliases.get(name, name)
        if name not in self.models:
            raise RefusedError(404, f"there is no model {name!r}, see /v1/models", "model")
        return self.models[name]

    def _prompt(
        self, request: ClientRequest, model: SpeculativeModel
    ) -> tuple[list[int], ClientRequest]:
        """Encode the prompt; what users say stands in the adapter's template.

        The request comes back with what the chat template has no place for.
        """
        template = model.prompt_template
        if isinstance(request.prompt, str) or not request.is_chat:
            return encode_prompt(self.tokenizer, request.prompt, template), request
        turns: Any = request.prompt
        check_messages(self.tokenizer, turns)
        text = chat_text(
            self.tokenizer,
            turns,
            template,
            request.tools,
            request.template_kwargs,
            request.thinking,
            self._renderer.limited(),
        )
        names = {"reasoning_content": request.thoughts_field}
        followed = "thinking" if self.tokenizer.has_thinking else "thinking.budget_tokens"
        ignored = [name for name in request.ignored if name != followed]
        ignored += [names.get(name, name) for name in text.ignored]
        ignored = [*dict.fromkeys(ignored)]
        return text.encode(self.tokenizer), replace(request, ignored=ignored)
