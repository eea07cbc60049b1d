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

PLAIN, STREAMS, LOOKUP, DRAFT_MODEL = "plain", "streams", "lookup", "draft-model"

MLX_LM_DRAFTS = "mlx_lm, draft model"
OUTSIDE = (MLX_LM_DRAFTS, LLAMA, LLAMA_LOOKUP)
"""Programs beside this one, whose texts are counted, but are not ours to answer for."""


@dataclass(frozen=True)
class Sources:
    """What methods draft from, besides the text.

    Attributes:
        datastore: REST's file.
        draft_model: a second model.
        heads: the base with each draft head, or with other streams, by name.
    """

    datastore: Path | None = None
    draft_model: SpeculativeModel | None = None
    heads: Mapping[str, SpeculativeModel] | None = None


def _rest(sources: Sources, answers: Answers) -> dict[str, Any]:
    if sources.datastore is None:
        raise UserError("the method 'rest' was asked for without --datastore, expected both")
    return {"proposers": [partial(Retrieval, path=sources.datastore)]}


def _draft_model(sources: Sources, answers: Answers) -> dict[str, Any]:
    if sources.draft_model is None:
        raise UserError(f"a method {DRAFT_MODEL!r} was asked for without --draft-model")
    return {"draft_model": sources.draft_model}


PROPOSERS: Mapping[str, Callable[[Sources, Answers], dict[str, Any]]] = {
    LOOKUP: lambda *_: {"lookup": True},
    "pld": lambda *_: {"proposers": [PromptLookup]},
    "suffix": lambda _, answers: {"proposers": [partial(Suffix, answers=answers)]},
    "lookahead": lambda *_: {"proposers": [Lookahead]},
    "rest": _rest,
    DRAFT_MODEL: _draft_model,
}
"""Settings of each proposer alone."""


@dataclass(frozen=True)
class Method:
    """A way of ours to draft.

    Attributes:
        name: ``plain``, or names of proposers, ``streams`` or a head, with `` + `` between them.
        sources: what it drafts from.
    """

    name: str
    sources: Sources

    @property
    def parts(self) -> list[str]:
        """The names in it."""
        return self.name.split(" + ")

    @property
    def drafts(self) -> bool:
        """Whether anything drafts."""
        return self.name != PLAIN

    @property
    def head(self) -> str | None:
        """The head, or the other streams, that guess."""
        return next((part for part in self.parts if part in (self.sources.heads or ())), None)

    @property
    def guesses(self) -> bool:
        """Whether streams or a head guess."""
        return STREAMS in self.parts or self.head is not None

    def proposers(self, answers: Answers) -> Proposers:
        """What proposes tokens, from a method's earlier answers too."""
        settings: dict[str, Any] = {"lookup": False}
        for part in self.parts:
            if part in PROPOSERS:
                settings |= PROPOSERS[part](self.sources, answers)
        return Proposers(**settings)

    def by_worth(self, answers: Answers) -> Drafts | ByWorth:
        """How it drafts where the rule decides how much, at a pace of its own."""
        return ByWorth(self.proposers(answers), self.guesses) if self.drafts else ONE_TOKEN

    def in_trees(self, nodes: int, answers: Answers) -> DraftSettings:
        """How it drafts trees of so many nodes, its likeliest ones."""
        streams = None if self.guesses else 0
        return DraftSettings(**vars(self.proposers(answers)), num_streams=streams, tree_size=nodes)

    def fits(self, mode: str, streams: bool, by_worth: bool) -> bool:
        """Whether the method can be run.

        Args:
            mode: of what is mounted. In shared mode the text depends on the streams, which run in
                every step, so that the rule has no costs of steps without their guesses.
            streams: whether any are mounted.
            by_worth: whether the rule decides how much it drafts.
        """
        if self.head is not None:
            head = (self.sources.heads or {})[self.head].head
            runs_twice = head is not None and head.config.kind == PROMPT_TOKENS
            return mode == "lossless" and not (by_worth and runs_twice)
        if self.guesses and not streams:
            return False
        return mode == "lossless" or not by_worth or self.guesses or not self.drafts


def methods_of(sources: Sources, chosen: str = "") -> list[Method]:
    """List the methods.

    Args:
        sources: what they draft from.
        chosen: names with commas between; empty: every proposer alone that has what it needs, and
            streams, heads and the draft model with lookup too.

    Raises:
        UserError: a name is not known, or a method lacks what it needs.
    """
    heads = list(sources.heads or ())
    for head in heads:
        if head in (PLAIN, STREAMS, *PROPOSERS):
            raise UserError(f"--draft-head {head} is called as a method is: rename its directory")
    if chosen:
        names = list(dict.fromkeys(name.strip() for name in chosen.split(",")))
    else:
        lacking = {"rest"} if sources.datastore is None else set()
        lacking |= {DRAFT_MODEL} if sources.draft_model is None else set()
        names = [
            PLAIN,
            STREAMS,
            f"{STREAMS} + {LOOKUP}",
            *(n for n in PROPOSERS if n not in lacking),
        ]
        names += [] if DRAFT_MODEL in lacking else [f"{DRAFT_MODEL} + {LOOKUP}"]
        names += [name for head in heads for name in (head, f"{head} + {LOOKUP}")]
    known = (PLAIN, STREAMS, *PROPOSERS, *heads)
    methods = [Method(name, sources) for name in names]
    for method in methods:
        wrong = [part for part in method.parts if part not in known]
        alone = PLAIN in method.parts and len(method.parts) > 1
        if wrong or alone or sum(part in (STREAMS, *heads) for part in method.parts) > 1:
            raise UserError(
                f"there is no method {method.name!r}, expected some of {', '.join(known)}, or of "
                "these several with ' + ' between them, of streams and heads one"
            )
        method.proposers(Answers())
    return methods


def mounted_heads(
    model: SpeculativeModel, directories: Sequence[Path]
) -> dict[str, SpeculativeModel]:
    """Mount what competes with the streams, each on the same base, which is not copied.

    Args:
        model: the base, whose streams stay where they are.
        directories: of draft heads, or of other lossless streams.

    Raises:
        UserError: a directory is neither for this base, or two have one name.
    """
    models: dict[str, SpeculativeModel] = {}
    for directory in directories:
        name = directory.resolve().name
        if name in models:
            raise UserError(f"two of --draft-head are called {name}, expected different names")
        if has_streams(directory):
            models[name] = _with_streams(model, directory)
        else:
            models[name] = replace(model, adapter=None, streams=None)
            models[name].mount_head(mounted(directory, models[name]))
    return models


def _with_streams(model: SpeculativeModel, directory: Path) -> SpeculativeModel:
    """A model with other lossless streams."""
    found = read_adapter(directory, model.base, model.config, full=True)
    mode = found.stream_config.mode if found.stream_config else None
    if found.lora or mode != "lossless":
        raise UserError(
            f"--draft-head {directory} has {'LoRA' if found.lora else f'{mode} streams'}, expected "
            "a draft head, or streams alone"
        )
    other = replace(model, adapter=None, streams=None)
    other.swap_adapter(directory)
    return other


def parameters_of(method: Method, model: SpeculativeModel) -> int:
    """Count the parameters that a method adds to the base."""
    count = 0
    for part in method.parts:
        if part == DRAFT_MODEL and method.sources.draft_model is not None:
            weights: Any = tree_flatten(method.sources.draft_model.model.parameters())
            count += sum(array.size for _, array in weights)
        elif part == STREAMS or part == method.head:
            owner = model if part == STREAMS else (method.sources.heads or {})[part]
            if owner.head is not None:
                count += owner.head.config.parameters
            elif owner.adapter is not None:
                count += sum(array.size for array in owner.adapter.stream_tensors.values())
    return count
