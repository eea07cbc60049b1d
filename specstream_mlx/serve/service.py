"""From what a request asks for to texts to write."""

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any

from mlx_lm.sample_utils import make_logits_processors
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..loading import SpeculativeModel
from ..models.architectures import context_length
from ..prompts import encode_prompt, in_template
from .client_request import ClientRequest
from .decoding import Job
from .fields import RefusedError
from .grammar import Grammars
from .resident import BASE
from .worker import Worker

DEFAULT_TOKENS = 512
"""The most tokens of a text of which a client does not say how long it may get."""


class Service:
    """The resident models, and the worker that decodes with them.

    Args:
        models: from ``resident``.
        tokenizer: of the base.
        most_tokens: of one text.
        patience: seconds without news after which a client learns that the server is alive.
        aliases: further names of models.
        **limits: of the ``Worker``.
    """

    def __init__(
        self,
        models: Mapping[str, SpeculativeModel],
        tokenizer: TokenizerWrapper,
        most_tokens: int = 4096,
        patience: float = 5.0,
        aliases: Mapping[str, str] = MappingProxyType({}),
        **limits: int,
    ):
        self.models, self.tokenizer, self.aliases = models, tokenizer, aliases
        self.worker = Worker(models[BASE], tokenizer, **limits)
        self.most_tokens, self.patience = most_tokens, patience
        self._grammars = Grammars(tokenizer, models[BASE].config["vocab_size"])
        self._one_at_a_time = asyncio.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        """What clients may call a model."""
        return *self.models, *self.aliases

    async def prepare(self, *requests: ClientRequest) -> list[Job]:
        """Make the texts of a request, without holding up others."""
        async with self._one_at_a_time:
            return await asyncio.to_thread(lambda: [*chain(*map(self.jobs, requests))])

    async def count(self, request: ClientRequest) -> int:
        """Count the tokens of a request's prompt, without holding up others."""
        model = self.model(request.model)
        async with self._one_at_a_time:
            return len(await asyncio.to_thread(self._prompt, request, model))

    def jobs(self, request: ClientRequest) -> list[Job]:
        """Make the texts that a request asks for."""
        request = replace(request, model=self.aliases.get(request.model, request.model))
        model = self.model(request.model)
        prompt = self._prompt(request, model)
        masks = [] if request.schema is None else [self._grammars.json(request.schema, len(prompt))]
        for token in request.penalties.get("logit_bias", ()):
            if token >= (size := model.config["vocab_size"]):
                sentence = f"logit_bias has token {token}, expected one of 0 to {size - 1}"
                raise RefusedError(400, sentence, "logit_bias")
        penalties = make_logits_processors(**request.penalties)
        seed = secrets.randbits(32) if request.seed is None else request.seed
        most = self._max_tokens(request.max_tokens, model, len(prompt))
        jobs = [
            Job(request, model, prompt, most, seed + number, [*penalties, *(m() for m in masks)])
            for number in range(request.n)
        ]
        jobs[0].request().check(model)
        return jobs

    def model(self, name: str) -> SpeculativeModel:
        """Return the model that a client means."""
        name = self.aliases.get(name, name)
        if name not in self.models:
            raise RefusedError(404, f"there is no model {name!r}, see /v1/models", "model")
        return self.models[name]

    def _prompt(self, request: ClientRequest, model: SpeculativeModel) -> list[int]:
        """Encode the prompt; what users say stands in the adapter's template."""
        template = model.prompt_template
        if isinstance(request.prompt, str):
            return encode_prompt(self.tokenizer, request.prompt, template)
        messages: list[Any] = list(request.prompt)
        if not isinstance(messages[0], dict):
            return encode_prompt(self.tokenizer, messages)
        if template is not None:
            messages = [
                one | {"content": in_template(one["content"], template)}
                if one["role"] == "user"
                else one
                for one in messages
            ]
        encode = partial(encode_prompt, self.tokenizer, template_kwargs=request.template_kwargs)
        ids = encode(messages, tools=request.tools)
        silent = [{n: v for n, v in one.items() if n != "tool_calls"} for one in messages]
        without = {
            "tools": request.tools and encode(messages),
            "tool_calls": silent != messages and encode(silent, tools=request.tools),
        }
        for name, others in without.items():
            if ids == others:
                sentence = "are not supported: the model's chat template has no place for them"
                raise RefusedError(400, f"{name} {sentence}", name)
        return ids

    def _max_tokens(self, most: int | None, model: SpeculativeModel, prompt: int) -> int:
        """Return the most tokens of a text: as many as the client says, or there is room for."""
        context = context_length(model.config)
        room = self.most_tokens if context is None else min(self.most_tokens, context - prompt)
        return max(1, min(DEFAULT_TOKENS if most is None else most, room))
