"""Static calibrated trees: the best tree for a table of acceptance by depth and rank.

As in Medusa and Sequoia: a node is the candidate of some rank behind its parent, and the tree
of these ranks is the same in every step. The file is a JSON object::

    {"acceptance": [[0.71, 0.1, 0.05], [0.52, 0.11, 0.04]], "tree_size": 8}
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..checked_files import read_json
from ..config import MAX_TREE_SIZE, UserError, check_integer, is_number, shown
from ..engine.guesses import Guesses, StreamGuesses
from ..engine.tree import DraftTree
from ..staging import staged_file
from .best_first import Children, best_first

_ROUNDING = 1e-6


@dataclass(frozen=True)
class StaticTree:
    """Acceptance by depth and rank, and the tree that follows from it.

    Attributes:
        acceptance: for each depth from 1 on, for each rank from 0 on, the probability that this
            candidate is right, given that the tokens before it were. The ranks of one depth
            exclude each other.
        tree_size: nodes besides the root, where nobody says otherwise.
    """

    acceptance: tuple[tuple[float, ...], ...]
    tree_size: int = 8

    def __post_init__(self) -> None:
        """Check the table; raises ``UserError`` if it does not hold probabilities."""
        rows = self.acceptance
        if not rows or not rows[0]:
            raise UserError("acceptance is empty, expected at least one depth with one rank")
        if max(len(rows), len(rows[0])) > MAX_TREE_SIZE:
            raise UserError(
                f"acceptance has {len(rows)} depths of {len(rows[0])} ranks, "
                f"expected at most {MAX_TREE_SIZE} of each"
            )
        for depth, row in enumerate(rows, start=1):
            if len(row) != len(rows[0]):
                raise UserError(
                    f"acceptance at depth {depth} has {len(row)} ranks, expected {len(rows[0])} "
                    "as at depth 1"
                )
            for rank, rate in enumerate(row):
                if not is_number(rate) or not 0 <= rate <= 1:
                    raise UserError(
                        f"acceptance at depth {depth}, rank {rank} is {shown(rate)}, "
                        "expected a probability"
                    )
            if sum(row) > 1 + _ROUNDING:
                raise UserError(
                    f"acceptance at depth {depth} sums to {sum(row):.4g}, expected at most 1: "
                    "one candidate at most is right"
                )
        check_integer("tree_size", self.tree_size, most=MAX_TREE_SIZE)

    @property
    def depth(self) -> int:
        """How many depths the table has."""
        return len(self.acceptance)

    @property
    def width(self) -> int:
        """How many ranks the table has."""
        return len(self.acceptance[0])

    def log_rates(self, depth: int, width: int) -> np.ndarray:
        """(depth, width) log-acceptance, cut to what the table holds; -inf where it is 0."""
        with np.errstate(divide="ignore"):
            return np.log(np.array(self.acceptance)[:depth, :width])

    def save(self, path: str | Path) -> None:
        """Write the file that ``load`` reads; a file that is there is replaced."""
        rows = ",\n    ".join(json.dumps(row) for row in self.acceptance)
        text = f'{{\n  "acceptance": [\n    {rows}\n  ],\n  "tree_size": {self.tree_size}\n}}\n'
        with staged_file(Path(path)) as scratch:
            scratch.write_text(text)

    @classmethod
    def load(cls, path: str | Path) -> "StaticTree":
        """Read a tree file.

        Raises:
            UserError: one sentence: the file, what was found and what was expected.
        """
        values = read_json(Path(path))
        try:
            return cls(**_fields(values))
        except UserError as error:
            raise UserError(f"{path}: {error}") from None


class StaticTreeDrafter:
    """Drafts the same tree of ranks in every step.

    Args:
        table: acceptance by depth and rank.
        depth: of the tree at most; ``None``: as the table and the streams have it.
        width: children of a node at most.
        size: nodes besides the root; ``None``: as the table says.
        threshold: a path's acceptance below which its node is left out.
    """

    def __init__(
        self,
        table: StaticTree,
        depth: int | None,
        width: int,
        size: int | None,
        threshold: float | None,
    ):
        self._table, self._depth, self._width = table, depth, width
        self._size, self._threshold = size or table.tree_size, threshold

    def accept(self, tokens: Sequence[int]) -> None:
        """Do nothing: the tree does not depend on the text."""

    def depth_of(self, guesses: StreamGuesses) -> int:
        """How deep a tree may be."""
        return guesses.depth if self._depth is None else min(self._depth, guesses.depth)

    def children(self, guesses: StreamGuesses) -> Children:
        """The guesses behind a path with the table's probabilities."""
        rates = self._table.log_rates(self.depth_of(guesses), self._width).tolist()

        def behind(path: tuple[int, ...]) -> Guesses:
            if len(path) >= len(rates):
                return []
            pairs = zip(guesses.behind(path), rates[len(path)], strict=False)
            return [(token, rate) for (token, _), rate in pairs]

        return behind

    def grow(self, root: int, guesses: StreamGuesses) -> DraftTree:
        """Grow the next tree; see ``Drafter``.

        Nodes of the tree whose parents nobody asked the streams about are left out.
        """
        width = min(self._width, guesses.tokens.shape[-1])
        ranks = best_shape(self._table, self._size, self.depth_of(guesses), width, self._threshold)
        paths: dict[int, tuple[int, ...]] = {0: ()}
        for node in range(1, len(ranks)):
            above = paths.get(int(ranks.parents[node]))
            if above is not None and (found := guesses.behind(above)):
                paths[node] = (*above, found[ranks.tokens[node]][0])
        kept = list(paths)
        index = {node: place for place, node in enumerate(kept)} | {-1: -1}
        return DraftTree(
            np.array([root, *(paths[node][-1] for node in kept[1:])], np.int32),
            np.array([index[node] for node in ranks.parents[kept].tolist()], np.int32),
            ranks.depths[kept],
            ranks.log_probs[kept],
        )

    def describe(self) -> str:
        """Say what the trees are like."""
        shape = f"static, {self._size} nodes"
        return f"{shape}, depth {self._depth}" if self._depth else shape


@lru_cache(maxsize=256)
def best_shape(
    tree: StaticTree, size: int, depth: int, width: int, threshold: float | None = None
) -> DraftTree:
    """The tree of ``size`` nodes below the root with the greatest expected accepted length.

    That is 1 + the sum of the nodes' path acceptances, and no child's is above its parent's, so
    the most probable nodes are the best tree. Nodes that cannot be right are left out.

    Args:
        tree: the table.
        size: nodes besides the root.
        depth, width: limits beside the table's own.
        threshold: a path's acceptance below which its node is left out.

    Returns:
        A tree whose tokens are ranks; its arrays are shared by all callers.
    """
    rates = tree.log_rates(depth, width).tolist()
    return best_first(
        0,
        lambda path: enumerate(rates[len(path)]) if len(path) < len(rates) else (),
        size,
        threshold,
    )


def _fields(values: dict[str, Any]) -> dict[str, Any]:
    """The arguments of ``StaticTree``, read from a file's content."""
    unknown = sorted(set(values) - {"acceptance", "tree_size"})
    if unknown:
        raise UserError(f"found {shown(unknown[0])}, expected acceptance and tree_size only")
    table = values.get("acceptance")
    if not isinstance(table, list) or not all(isinstance(row, list) for row in table):
        raise UserError("acceptance is not a list of lists, expected one list for each depth")
    return values | {"acceptance": tuple(map(tuple, table))}


def inner_ranks(
    table: StaticTree, size: int, depth: int, width: int, threshold: float | None
) -> tuple[np.ndarray, ...]:
    """The nodes of the best tree that have children, by depth; see ``Plan.expand``.

    Args:
        table: acceptance by depth and rank.
        size: nodes besides the root.
        depth: how many streams guess.
        width: candidates of each.
        threshold: joint probability below which a node is left out.
    """
    tree = best_shape(table, size, depth, min(width, table.width), threshold)
    inner = set(tree.parents[1:].tolist())
    numbers = []
    place = {0: 0}  # of a node among the paths of its depth
    for level in range(1, depth):
        nodes = [n for n in np.flatnonzero(tree.depths == level).tolist() if n in inner]
        found = [place[int(tree.parents[n])] * width + int(tree.tokens[n]) for n in nodes]
        if not found:  # the tree ends here: one path keeps the shapes alike
            nodes, found = [], [0]
        place = {node: row for row, node in enumerate(nodes)}
        numbers.append(np.array(found))
    return tuple(numbers)
