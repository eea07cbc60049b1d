"""Which settings of the drafters that know only the text draft most? A replay of answers.

    python -m benchmarks.studies.text_drafters --datastore answers.idx \\
        --valid convert/demo_model/text/answers/valid.jsonl

What these drafters propose depends on the text and on nothing else, and the base's greedy answers
are the text, whatever was drafted. So no model is run: trees are grown behind the prompt and what
is written so far, as decoding grows them, and the answer itself says which of their nodes are
accepted. What the last call of an answer would write behind its end is not known, and is no part of
the earlier answers that ``suffix`` drafts from.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from specstream_mlx import DraftSettings, demonstration
from specstream_mlx.drafting.datastore import open_datastore
from specstream_mlx.drafting.earlier_answers import Answers
from specstream_mlx.drafting.fixed import Drafter, FixedTrees
from specstream_mlx.drafting.lookup import Lookup
from specstream_mlx.drafting.pld import PromptLookup
from specstream_mlx.drafting.proposal import Material, Proposal
from specstream_mlx.drafting.rest import Retrieval
from specstream_mlx.drafting.settings import USUAL
from specstream_mlx.drafting.suffix import Suffix
from specstream_mlx.engine.guesses import NO_GUESSES
from specstream_mlx.engine.tree import DraftTree
from specstream_mlx.hardware import device
from specstream_mlx.loading import read_config, read_tokenizer
from specstream_mlx.options.fields import option
from specstream_mlx.options.kinds import PATH, integer
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track
from specstream_mlx.train.data import read_split
from specstream_mlx.train.items import Item

from ..report import OUTPUT, commit, machine_suffix, table, write_report
from .chosen_answers import evenly_spread
from .drafting_rule import accepted_node

_ANY_LENGTH = 1 << 40


def _lookup(
    material: Material, longest: int = USUAL.lookup_ngram, depth: int = USUAL.lookup_size
) -> Lookup:
    return Lookup(material.prompt, longest, depth)


@dataclass(frozen=True)
class Tried:
    """A drafter, and what is tried with it.

    Attributes:
        make: makes the proposals of one text; its defaults are those of the runtime.
        values: of each of its arguments; every combination of them is tried.
    """

    make: Callable[..., Proposal]
    values: Mapping[str, Sequence[int]]


DRAFTERS = {
    "lookup": Tried(_lookup, {"longest": (2, 3, 4, 6, 8), "depth": (5, 10, 20)}),
    "pld": Tried(PromptLookup, {}),
    "suffix": Tried(Suffix, {"factor": (1, 2, 4)}),
    "rest": Tried(Retrieval, {"longest": (4, 8, 16), "shortest": (1, 2, 3)}),
}
"""Drafters that need no model, by name."""

NODES = (8, 16, 32)
"""Sizes of trees; drafters are ranked by the first."""


@dataclass(frozen=True)
class Setting:
    """A drafter with some values of its arguments."""

    drafter: str
    values: Mapping[str, int]

    def __str__(self) -> str:
        """Name the values."""
        named = ", ".join(f"{name} {value}" for name, value in self.values.items())
        return named or "as published"

    @property
    def is_default(self) -> bool:
        """Whether the runtime drafts so by default."""
        known = signature(DRAFTERS[self.drafter].make).parameters
        return all(known[name].default == value for name, value in self.values.items())

    def lengths(self, items: Sequence[Item], nodes: int, datastore: Path | None) -> list[list[int]]:
        """Count the tokens that each call writes, text by text.

        Args:
            items: prompts and answers; earlier answers are those of this list alone.
            nodes: size of the trees.
            datastore: of ``rest``.
        """
        store = datastore if self.drafter == "rest" else None
        options = DraftSettings(
            drafter=[self.drafter], num_streams=0, tree_size=nodes, datastore=store
        )
        width, answers, found = options.tree_width, Answers(), []
        for item in items:
            prompt, answer = item.tokens[: item.stream_from], item.tokens[item.stream_from :]
            material = Material(prompt, options, width=width, nodes=nodes, answers=answers)
            proposal = DRAFTERS[self.drafter].make(material, **self.values)
            found.append(replay(FixedTrees(options, False, [proposal]), answer))
        return found


def settings_of(names: Sequence[str]) -> list[Setting]:
    """List all that is tried with some drafters."""
    return [
        Setting(name, dict(zip(DRAFTERS[name].values, values, strict=True)))
        for name in names
        for values in product(*DRAFTERS[name].values.values())
    ]


def replay(drafter: Drafter, answer: Sequence[int]) -> list[int]:
    """Count the tokens that each call writes; the first one drafts nothing.

    Args:
        drafter: has read the prompt alone.
        answer: token ids, at least one.
    """
    lengths, written = [1], 1
    drafter.accept(answer[:1])
    while written < len(answer):
        tree = drafter.grow(answer[written - 1], NO_GUESSES)
        tokens = answer[written : written + accepted(tree, answer[written:]) + 1]
        drafter.accept(tokens)
        lengths.append(len(tokens))
        written += len(tokens)
    drafter.finish()
    return lengths


def accepted(tree: DraftTree, text: Sequence[int]) -> int:
    """Count the drafted tokens, one below the other, that a text goes on with."""
    return int(tree.depths[accepted_node(tree, text)])


def ranked(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a table; ``place`` is 1 for the drafter's best in trees of the first size."""
    found = []
    for row in rows:
        own = [other for other in rows if other["drafter"] == row["drafter"]]
        place = 1 + sum(other["tokens"][NODES[0]] > row["tokens"][NODES[0]] for other in own)
        shown = {f"at_{nodes}": row["tokens"][nodes] for nodes in NODES}
        shown |= {"place": place, "shown": "yes" if row["default"] else None}
        found.append(dict(row) | shown)
    return found


COLUMNS = {
    "drafter": "{drafter}",
    "setting": "{setting}",
    "by default": "{shown}",
    **{f"{nodes} nodes": f"{{at_{nodes}:.3f}}" for nodes in NODES},
    f"of its drafter, {NODES[0]} nodes": "{place}",
}


def main(
    *,
    valid: Path = option(..., PATH, "JSONL of prompts and the base's answers, held out."),
    model: Path | None = option(
        None, PATH, "Directory of the base in MLX format. Default: the demonstration model."
    ),
    datastore: Path | None = option(
        None, PATH, "A file of the command datastore, for rest, which is left out without."
    ),
    items: int = option(60, integer(1), "Answers, spread over --valid."),
    output: Path = OUTPUT,
) -> None:
    """Compare settings of the drafters that know only the text on answers that are known."""
    names = [name for name in DRAFTERS if name != "rest" or datastore is not None]
    if datastore is not None:
        open_datastore(datastore)  # or fail before anything is counted
    directory = model or demonstration.base_path()
    config = read_config(directory)
    tokenizer = read_tokenizer(directory, config)
    every = read_split(valid, tokenizer, _ANY_LENGTH, config["vocab_size"]).items
    texts = evenly_spread(every, items)

    rows = []
    for setting in track(settings_of(names), "settings"):
        tokens = {}
        for nodes in NODES:
            counted = setting.lengths(texts, nodes, datastore)
            tokens[nodes] = fmean([n for lengths in counted for n in lengths[1:]] or [1])
        row = {"drafter": setting.drafter, "setting": str(setting), **setting.values}
        rows.append(row | {"default": setting.is_default, "tokens": tokens})
    facts = device.describe()
    count = sum(text.completion_tokens for text in texts)
    about = (
        f"{facts['machine']}, {facts['cpu']}, {commit()}. {len(texts)} held-out answers of the "
        f"base, {count:,} tokens, replayed in trees of several sizes. Tokens a call, but for the "
        "call that ends the prompt."
    )
    if datastore is None:
        about += " rest was left out: no --datastore was given."
    lines = [about, "", *table(COLUMNS, ranked(rows))]
    name = f"text-drafters-{machine_suffix(facts)}"
    print(write_report(output, name, {"facts": about, "rows": rows}, lines))


if __name__ == "__main__":
    program(main)()
