"""The methods that compete: what proposes tokens, and which head or streams guess."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from mlx.utils import tree_flatten

from specstream_mlx import DraftSettings, SpeculativeModel, UserError
from specstream_mlx.adapters.files import read_adapter
from specstream_mlx.drafting.settings import Proposers

from ..llama_cpp_reference import LLAMA, LLAMA_LOOKUP
from ..runner import ONE_TOKEN, ByWorth, Drafts
from .heads import has_streams, mounted
from .lookahead import Lookahead
from .pld import PromptLookup
from .prompt_tokens import PROMPT_TOKENS
from .rest import Retrieval
from .suffix import Answers, Suffix

PLAIN, STREAMS, LOOKUP, REST, DRAFT_MODEL = "plain", "streams", "lookup", "rest", "draft-model"

MLX_LM_DRAFTS = "mlx_lm, draft model"
OUTSIDE = (MLX_LM_DRAFTS, LLAMA, LLAMA_LOOKUP)
"""Other programs, whose texts are counted, but are not ours to answer for."""


@dataclass(frozen=True)
class Sources:
    """What methods draft from, besides the text."""

    datastore: Path | None = None  # REST's file
    draft_model: SpeculativeModel | None = None  # a second model
    heads: Mapping[str, SpeculativeModel] | None = None  # the base with each, by name


def _needed(source: Any, method: str, what: str, flag: str) -> Any:
    if source is None:
        raise UserError(f"the method {method!r} needs a {what}, expected {flag} too")
    return source


def _retrieval(sources: Sources, answers: Answers) -> dict[str, Any]:
    path = _needed(sources.datastore, REST, "datastore", "--datastore")
    return {"proposers": [partial(Retrieval, path=path)]}


PROPOSERS: Mapping[str, Callable[[Sources, Answers], dict[str, Any]]] = {
    LOOKUP: lambda *_: {"lookup": True},
    "pld": lambda *_: {"proposers": [PromptLookup]},
    "suffix": lambda _, answers: {"proposers": [partial(Suffix, answers=answers)]},
    "lookahead": lambda *_: {"proposers": [Lookahead]},
    REST: _retrieval,
    DRAFT_MODEL: lambda sources, _: {
        "draft_model": _needed(sources.draft_model, DRAFT_MODEL, "model", "--draft-model")
    },
}
"""Settings of each proposer alone."""


@dataclass(frozen=True)
class Method:
    name: str  # ``plain``, or names of proposers, ``streams`` or a head, with `` + `` between them
    sources: Sources  # what it drafts from

    @property
    def parts(self) -> list[str]:
        return self.name.split(" + ")

    @property
    def head(self) -> SpeculativeModel | None:
        """The base with the head, or with the other streams, that guess."""
        heads = self.sources.heads or {}
        return next((heads[part] for part in self.parts if part in heads), None)

    @property
    def guesses(self) -> bool:
        return STREAMS in self.parts or self.head is not None

    @property
    def can_be_timed(self) -> bool:
        """False where the target runs once more than it would have to."""
        head = None if self.head is None else self.head.head
        return head is None or head.config.kind != PROMPT_TOKENS

    def proposers(self, answers: Answers) -> Proposers:
        """What proposes tokens, from a method's earlier answers too."""
        settings: dict[str, Any] = {"lookup": False}
        for part in self.parts:
            if part in PROPOSERS:
                settings |= PROPOSERS[part](self.sources, answers)
        return Proposers(**settings)

    def by_worth(self, answers: Answers) -> Drafts:
        """How it drafts where the rule decides how much."""
        return ONE_TOKEN if self.name == PLAIN else ByWorth(self.proposers(answers), self.guesses)

    def in_trees(self, nodes: int, answers: Answers) -> DraftSettings:
        """How it drafts trees of so many nodes, its likeliest ones."""
        streams = None if self.guesses else 0
        return DraftSettings(**vars(self.proposers(answers)), num_streams=streams, tree_size=nodes)

    def parameters(self, model: SpeculativeModel) -> int:
        """Count the parameters that it adds to the base, which has streams."""
        count, draft = 0, self.sources.draft_model
        if DRAFT_MODEL in self.parts and draft is not None:
            weights: Any = tree_flatten(draft.model.parameters())
            count += sum(array.size for _, array in weights)
        owner = self.head or model
        if self.guesses and owner.head is not None:
            count += owner.head.config.parameters
        elif self.guesses and owner.adapter is not None:
            count += sum(array.size for array in owner.adapter.stream_tensors.values())
        return count


def methods_of(sources: Sources, chosen: str = "") -> list[Method]:
    """List the methods of these names; without names, all that have what they need."""
    heads = list(sources.heads or ())
    for head in heads:
        if head in (PLAIN, STREAMS, *PROPOSERS):
            raise UserError(f"--draft-head {head} has the name of a method: rename its directory")
    names = list(dict.fromkeys(name.strip() for name in chosen.split(",")))
    if not chosen:
        lacking = {REST} if sources.datastore is None else set()
        lacking |= {DRAFT_MODEL} if sources.draft_model is None else set()
        alone = [name for name in PROPOSERS if name not in lacking]
        names = [PLAIN, STREAMS, f"{STREAMS} + {LOOKUP}", *alone]
        names += [] if DRAFT_MODEL in lacking else [f"{DRAFT_MODEL} + {LOOKUP}"]
        names += [name for head in heads for name in (head, f"{head} + {LOOKUP}")]
    known = (PLAIN, STREAMS, *PROPOSERS, *heads)
    methods = [Method(name, sources) for name in names]
    for method in methods:
        parts = method.parts
        guess = sum(part in (STREAMS, *heads) for part in parts)
        if not set(parts) <= set(known) or (PLAIN in parts and len(parts) > 1) or guess > 1:
            raise UserError(
                f"there is no method {method.name!r}, expected some of {', '.join(known)}, or of "
                "these several with ' + ' between them, of streams and heads one"
            )
        method.proposers(Answers())
    return methods


def mounted_heads(
    model: SpeculativeModel, directories: Sequence[Path]
) -> dict[str, SpeculativeModel]:
    """Mount draft heads, or other lossless streams, on the same base, which is not copied."""
    models: dict[str, SpeculativeModel] = {}
    for directory in directories:
        name = directory.resolve().name
        if name in models:
            raise UserError(f"two of --draft-head are called {name}, expected different names")
        models[name] = other = replace(model, adapter=None, streams=None)
        if not has_streams(directory):
            other.mount_head(mounted(directory, other))
            continue
        streams = read_adapter(directory, model.base, model.config, full=True)
        mode = streams.stream_config.mode if streams.stream_config else None
        if streams.lora or mode != "lossless":
            raise UserError(
                f"--draft-head {directory} has {'LoRA' if streams.lora else f'{mode} streams'}, "
                "expected a draft head, or streams alone"
            )
        other.swap_adapter(directory)
    return models
