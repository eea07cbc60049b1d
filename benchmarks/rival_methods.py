"""The methods that compete, see ``rivals``: who drafts, and what each adds to the base."""

import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from specstream_mlx import DraftSettings, SpeculativeModel, UserError
from specstream_mlx.adapters.description import ADAPTER_CONFIG
from specstream_mlx.adapters.files import read_adapter
from specstream_mlx.drafting.earlier_answers import Answers
from specstream_mlx.drafting.proposal import Material
from specstream_mlx.drafting.proposals import proposals_of
from specstream_mlx.drafting.settings import Drafters
from specstream_mlx.hardware.weights import parameter_bytes
from specstream_mlx.options.generation import DRAFTERS

from .llama_cpp_reference import LLAMA, LLAMA_LOOKUP
from .runner import ONE_TOKEN, ByWorth, Drafts, streams_of

PLAIN, STREAMS, LOOKUP = "plain", "streams", "lookup"
DRAFT_MODEL = "draft-model"
MODEL_AND_LOOKUP = f"{DRAFT_MODEL} + {LOOKUP}"

MLX_LM_DRAFTS = "mlx_lm, draft model"
OUTSIDE = (MLX_LM_DRAFTS, LLAMA, LLAMA_LOOKUP)
"""Programs beside this one, whose texts are counted, but are not ours to answer for."""

WHAT = {
    LOOKUP: "what followed the newest n-gram earlier in prompt and text",
    "pld": "10 tokens behind the earliest match of 3 tokens, as prompt lookup's authors have it",
    "suffix": "what followed the longest repeated end of the text, also in earlier answers",
    DRAFT_MODEL: "a second, smaller model",
    "lookahead": "n-grams of the base's own Jacobi iterations",
    "rest": "what followed the end of the text in a datastore",
}
"""What drafters propose, by their names."""

NEEDS = {DRAFT_MODEL: "draft_model", "rest": "datastore"}
"""What drafters need to be given, by their names."""


@dataclass(frozen=True)
class Method:
    """A way of ours to draft.

    Attributes:
        name: what reports call it.
        drafters: who drafts beside streams or head.
        guesses: whether the streams, or the head, draft.
        head: the name of the draft head, or of other streams, that is mounted; ``None``: none.
    """

    name: str
    drafters: Drafters
    guesses: bool = False
    head: str | None = None

    @property
    def drafts(self) -> bool:
        """Whether anybody drafts."""
        return self.name != PLAIN

    def by_worth(self) -> Drafts | ByWorth:
        """How it drafts where the rule decides how much, at a pace of its own."""
        return ByWorth(self.drafters, self.guesses) if self.drafts else ONE_TOKEN

    def in_trees(self, nodes: int) -> DraftSettings:
        """How it drafts trees of so many nodes, its likeliest ones."""
        streams = None if self.guesses else 0
        return DraftSettings(**vars(self.drafters), num_streams=streams, tree_size=nodes)

    def fits(self, mode: str, streams: bool, by_worth: bool) -> bool:
        """Whether the method can be run.

        Args:
            mode: of what is mounted. In shared mode the text depends on the streams, which run in
                every step, so that the rule has no costs of steps without their guesses.
            streams: whether any are mounted.
            by_worth: whether the rule decides how much it drafts.
        """
        if self.head is not None:
            return mode == "lossless"
        if self.guesses and not streams:
            return False
        return mode == "lossless" or not by_worth or self.guesses or not self.drafts


def methods_of(given: Drafters, heads: Sequence[str], chosen: str = "") -> list[Method]:
    """List the methods.

    Args:
        given: what drafters were given, and their sizes.
        heads: names of the draft heads and other streams.
        chosen: names, with commas between; empty: every drafter alone that has what it needs, and
            streams, heads and the draft model with lookup too. ``streams + NAME`` and ``HEAD +
            NAME`` are others.

    Raises:
        UserError: a name is not known, or a drafter lacks what it needs.
    """
    nothing: dict[str, Any] = dict.fromkeys(NEEDS.values())
    nobody = replace(given, drafter=["none"], **nothing)
    named = {PLAIN: Method(PLAIN, nobody), STREAMS: Method(STREAMS, nobody, True)}
    for name in DRAFTERS:
        if name in NEEDS and getattr(given, NEEDS[name]) is None:
            continue
        kept = {field: getattr(given, field) for other, field in NEEDS.items() if other == name}
        one = replace(given, drafter=[name], **nothing | kept)
        named[name] = Method(name, one)
        named[f"{STREAMS} + {name}"] = Method(f"{STREAMS} + {name}", one, True)
        for head in heads:
            named[f"{head} + {name}"] = Method(f"{head} + {name}", one, True, head)
    if DRAFT_MODEL in named:
        alone = named[DRAFT_MODEL].drafters
        named[MODEL_AND_LOOKUP] = Method(
            MODEL_AND_LOOKUP, replace(alone, drafter=[LOOKUP, DRAFT_MODEL])
        )
    for head in heads:
        if head in named:
            raise UserError(f"--draft-head {head} is called as a method is: rename its directory")
        named[head] = Method(head, nobody, True, head)
    names = [PLAIN, STREAMS, f"{STREAMS} + {LOOKUP}", *DRAFTERS, MODEL_AND_LOOKUP]
    names += [name for head in heads for name in (head, f"{head} + {LOOKUP}")]
    names = [name for name in names if name in named]
    if chosen:
        names = list(dict.fromkeys(name.strip() for name in chosen.split(",")))
    for name in names:
        needs = NEEDS.get(DRAFT_MODEL if name == MODEL_AND_LOOKUP else name)
        if needs and name not in named:
            flag = "--" + needs.replace("_", "-")
            raise UserError(f"method {name!r} was asked for without {flag}, expected both")
        if name not in named:
            raise UserError(f"there is no method {name!r}, expected some of {', '.join(named)}")
    return [named[name] for name in names]


def mounted_heads(
    model: SpeculativeModel, directories: Sequence[Path]
) -> tuple[dict[str, SpeculativeModel], list[dict[str, Any]]]:
    """Mount what competes with the streams, each beside a base that is not copied.

    Args:
        model: the base, whose streams stay where they are.
        directories: of draft heads, as ``read_head`` takes them, or of other lossless streams,
            such as prompt tokens.

    Returns:
        the models by their directories' names, and a row of sizes for each.

    Raises:
        UserError: a directory is neither for this base, or two have one name.
    """
    models: dict[str, SpeculativeModel] = {}
    rows = []
    for directory in directories:
        name = directory.resolve().name
        if name in models:
            raise UserError(f"two of --draft-head are called {name}, expected different names")
        if (directory / ADAPTER_CONFIG).is_file():
            models[name] = with_streams(model, directory)
            rows.append(_size_of_streams(name, models[name]))
            continue
        before = mx.get_active_memory()
        models[name] = beside = replace(model, adapter=None, streams=None)
        beside.mount_head(directory)
        resident = mx.get_active_memory() - before
        assert beside.head is not None
        config = beside.head.config
        what = f"a head of {config.kind}'s, {config.num_streams} tokens ahead"
        rows.append(_size(name, what, config.parameters, weight_bytes(directory), resident))
    return models, rows


def with_streams(model: SpeculativeModel, directory: Path) -> SpeculativeModel:
    """A model with other lossless streams, around the same base.

    LoRA that is mounted on the base afterwards is under these streams too, as under draft heads.

    Raises:
        UserError: the directory is no adapter for this base, or holds LoRA or shared streams.
    """
    found = read_adapter(directory, model.model, model.config, full=True)
    mode = found.stream_config.mode if found.stream_config else None
    if found.lora or mode != "lossless":
        held = "LoRA" if found.lora else f"{mode} streams"
        raise UserError(
            f"--draft-head {directory} has {held}, expected a draft head, or streams alone"
        )
    other = replace(model, adapter=None, streams=None)
    other.swap_adapter(directory)
    return other


def _size_of_streams(name: str, model: SpeculativeModel) -> dict[str, Any]:
    streams, adapter = streams_of(model), model.adapter
    assert adapter is not None
    count = sum(tensor.size for tensor in adapter.stream_tensors.values())
    what = f"{streams.config.num_streams} streams in {streams.config.num_msa_layers} layers"
    return _size(name, what, count, weight_bytes(adapter.path), parameter_bytes(streams))


def sizes_of(model: SpeculativeModel, given: Drafters, methods: Sequence[Method]) -> list[dict]:
    """The sizes of what drafts beside heads, and of Medusa's heads by the model's shape.

    Bytes are those of files, and those in memory; drafters that keep tables of the text have so
    many for each of its tokens.
    """
    rows = []
    streams = model.streams
    if streams is not None and any(m.guesses and m.head is None for m in methods):
        rows.append(_size_of_streams(STREAMS, model))
    used = {name for method in methods for name in method.drafters.drafters}
    if given.draft_model is not None and DRAFT_MODEL in used:
        draft = given.draft_model
        count = sum(t.size for t in dict(tree_flatten(draft.model.parameters())).values())
        held = parameter_bytes(draft.model)
        rows.append(_size(DRAFT_MODEL, WHAT[DRAFT_MODEL], count, weight_bytes(draft.path), held))
    for name in DRAFTERS:
        if name in used - {DRAFT_MODEL}:
            file = given.datastore if name == "rest" else None
            stored = 0 if file is None else file.stat().st_size
            kept = _bytes_a_token(name, given, model)
            rows.append(_size(name, WHAT[name], 0, stored, stored, kept))
    count = 4 if streams is None else streams.config.num_streams
    for own in (True, False):
        what = f"{count} heads, {'LM heads of their own' if own else 'the LM head of the base'}"
        size = medusa_parameters(model.config, count, own)
        rows.append(_size("Medusa, computed", what, size))
    return rows


def added(method: str, sizes: Sequence[Mapping[str, Any]], figure: str) -> int | None:
    """Sum up what a method adds to the base.

    Args:
        method: its name.
        sizes: of ``sizes_of`` and ``mounted_heads``.
        figure: ``parameters``, ``disk`` or ``resident``.

    Returns:
        ``None`` for other programs that add nothing known.
    """
    known = {row["method"]: row[figure] for row in sizes}
    if method == MLX_LM_DRAFTS:
        return known.get(DRAFT_MODEL)
    if method in OUTSIDE:
        return None
    return sum(known.get(part) or 0 for part in method.split(" + "))


def medusa_parameters(config: Mapping[str, Any], heads: int, own: bool) -> int:
    """Parameters of Medusa heads of one layer.

    Args:
        config: the base's ``config.json``.
        heads: how many.
        own: whether each has an LM head of its own.
    """
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    return heads * (hidden * (hidden + 1) + (hidden * vocab if own else 0))


def weight_bytes(directory: Path) -> int:
    """Bytes of a directory's safetensors."""
    return sum(file.stat().st_size for file in directory.glob("*.safetensors"))


def _size(
    name: str,
    what: str,
    parameters: int,
    disk: int | None = None,
    resident: int | None = None,
    a_token: float = 0,
) -> dict[str, Any]:
    return {
        "method": name,
        "what": what,
        "parameters": parameters,
        "disk": disk,
        "resident": resident,
        "bytes_a_token": round(a_token),
    }


_MEASURED = 1000  # tokens


def _bytes_a_token(name: str, given: Drafters, model: SpeculativeModel) -> float:
    """Bytes that a drafter keeps of each token of the text, Python's objects included."""
    tokens = [17 * i * i % 997 for i in range(_MEASURED)]  # few of which repeat
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        material = Material(tokens[:1], given, model, answers=Answers())
        [proposal] = proposals_of([name], material)
        proposal.accept(tokens[1:])
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (after - before) / _MEASURED
