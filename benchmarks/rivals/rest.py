"""REST (He et al., arXiv 2311.08252): what followed the end of the text in a datastore.

    python -m benchmarks.rivals.rest --data answers.jsonl --datastore answers.npy

makes a datastore of a JSONL file of texts: tokens, one text after the other, and their suffix
array. The longest end of the text that occurs there says what may follow: the 10 tokens after each
of its first 5,000 occurrences. Where REST drafts the commonest beginnings of these, here each token
has its share of what followed the path before it, corrected by how often such shares were right.
REST looks up ends of 16 to 2 tokens; those of 4 to 1 occur more often and draft 8% more.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path as FilePath

import numpy as np

from specstream_mlx import UserError, demonstration
from specstream_mlx.drafting.proposer import Material, Price, Proposer
from specstream_mlx.engine.guess import Guesses, Path
from specstream_mlx.engine.plan import Verified
from specstream_mlx.files import reason, staged_file
from specstream_mlx.loading.load import read_tokenizer
from specstream_mlx.loading.model_paths import model_directory, read_config
from specstream_mlx.options import PATH, TEXT, option
from specstream_mlx.terminal.commands import program
from specstream_mlx.train.data import read_split

from .calibrated_shares import HitShares

_OCCURRENCES, _DEPTH, _LONGEST = 5000, 10, 4


def suffix_array(tokens: np.ndarray) -> np.ndarray:
    """Sort the suffixes of (n,) tokens, by doubling of prefixes (Manber and Myers 1990)."""
    count = len(tokens)
    _, ranks = np.unique(tokens, return_inverse=True)
    order, length = np.argsort(ranks, kind="stable"), 1
    while length < count:
        further = np.zeros(count, np.int64)
        further[:-length] = ranks[length:] + 1
        keys = ranks.astype(np.int64) * (count + 1) + further
        order = np.argsort(keys, kind="stable")
        steps = np.diff(keys[order]) != 0
        ranks = np.empty(count, np.int64)
        ranks[order] = np.concatenate([[0], np.cumsum(steps)])
        if steps.all():
            break
        length *= 2
    return order


def write_datastore(path: FilePath, tokens: np.ndarray) -> None:
    """Write a datastore of (n,) tokens: an ``.npy`` file, (2, n) int32, tokens and suffix array."""
    with staged_file(path) as scratch, scratch.open("wb") as file:
        np.save(file, np.stack([tokens, suffix_array(tokens)]).astype(np.int32))


class Datastore:
    """An open datastore, which is mapped into memory."""

    def __init__(self, path: FilePath):
        try:
            arrays = np.load(path, mmap_mode="r")
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"the datastore {path} cannot be read: {reason(error)}") from None
        size = arrays.shape[-1] if arrays.ndim else 0
        fits = arrays.shape == (2, size) and arrays.dtype == np.int32 and size
        if not fits or arrays.min() < 0 or arrays[1].max() >= size:
            raise UserError(f"{path} is no datastore, expected tokens and their suffix array")
        self._tokens, self._suffixes = arrays
        self.most = int(self._tokens.max())

    def following(self, query: Sequence[int], count: int, length: int) -> np.ndarray:
        """Return (occurrences, length) what followed the first ``count``; -1 after the end."""
        wanted, tokens = tuple(query), self._tokens

        def beginning(start: int) -> tuple[int, ...]:
            return tuple(tokens[start : start + len(wanted)].tolist())

        first = bisect_left(self._suffixes, wanted, key=beginning)
        last = bisect_right(self._suffixes, wanted, lo=first, key=beginning)
        starts = self._suffixes[first : min(last, first + count)] + len(wanted)
        places = starts[:, None] + np.arange(length)
        return np.where(places < len(tokens), tokens[np.minimum(places, len(tokens) - 1)], -1)


open_datastore = lru_cache(maxsize=4)(Datastore)


class Retrieval(Proposer):
    """What the datastore says to one text."""

    def __init__(self, material: Material, path: FilePath):
        self._store, self._width = open_datastore(path), material.width
        self._end = list(material.prompt[-_LONGEST:])
        self._hits = HitShares()
        self._look_up()

    def accept(self, tokens: Sequence[int]) -> None:
        """Read tokens, and judge by them what the datastore said."""
        path: Path = ()
        for token in tokens:
            shares = self._shares(path)
            if not shares:
                break
            self._hits.judge(self._kind(path), shares, token)
            path = (*path, token)
        self._end = [*self._end, *tokens][-_LONGEST:]
        self._stale = True

    def begin(self, verified: Verified, price: Price) -> None:
        if self._stale:
            self._look_up()

    def children(self, path: Path) -> Guesses:
        """Guess what followed the end of the text and ``path``."""
        return self._hits.corrected(self._kind(path), self._shares(path))

    def _kind(self, path: Path) -> tuple[int, bool]:
        return self._span, bool(path)

    def _look_up(self) -> None:
        self._stale = False
        self._span = len(self._end)
        self._rows = self._store.following(self._end, _OCCURRENCES, _DEPTH)
        while not len(self._rows) and self._span > 1:
            self._span -= 1
            self._rows = self._store.following(self._end[-self._span :], _OCCURRENCES, _DEPTH)

    def _shares(self, path: Path) -> list[tuple[int, float]]:
        """The commonest tokens after a path, with their shares of the occurrences there."""
        depth = len(path)
        if depth >= _DEPTH:
            return []
        same = (self._rows[:, :depth] == np.array(path, np.int32)).all(axis=1)
        tokens, counts = np.unique(self._rows[same, depth], return_counts=True)
        total = same.sum() + 1  # something else may follow
        best = np.argsort(-counts, kind="stable")
        shares = [(int(tokens[i]), float(counts[i] / total)) for i in best if tokens[i] >= 0]
        return shares[: self._width]


def main(
    *,
    data: FilePath = option(..., PATH, "JSONL of texts, in one of the formats that train takes."),
    datastore: FilePath = option(..., PATH, "Where to."),
    model: str | None = option(None, TEXT, "The model that drafts from it. Default: smollm2."),
) -> None:
    """Make a datastore for REST."""
    directory = model_directory(demonstration.model_path(model, demonstration.silent))
    config = read_config(directory)
    items = read_split(data, read_tokenizer(directory, config), 1 << 40, config["vocab_size"])
    tokens = np.concatenate([np.array(item.tokens) for item in items])
    write_datastore(datastore, tokens)
    print(f"{datastore}: {len(tokens):,} tokens of {len(items):,} texts")


if __name__ == "__main__":
    program(main)()
