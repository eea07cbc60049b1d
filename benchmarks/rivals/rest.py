"""Drafts out of a datastore: what followed the end of the text elsewhere.

    python -m benchmarks.rivals.rest --data answers.jsonl --datastore answers.idx

makes one of a JSONL file of texts. He et al., REST: Retrieval-Based Speculative Decoding (arXiv
2311.08252). The longest end of the text that occurs in the datastore says what may follow: 10
tokens behind each of its first 5,000 occurrences. Where REST drafts the commonest beginnings of
these, here each token has its share of what followed the path before it, corrected by how often
such shares were right. REST looks up ends of 16 to 2 tokens; those of 4 to 1 occur more often, and
draft 8% more on held-out answers.

A file has the format of REST's ``DraftRetriever``, a row of chunks. A chunk is two arrays, each
behind its number of bytes as a little-endian uint32: the tokens, uint16 or, of a vocabulary that
needs it, uint32; and their suffix array, int32. Nothing separates the texts.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path as FilePath
from typing import NamedTuple

import numpy as np

from specstream_mlx import UserError, demonstration
from specstream_mlx.drafting.proposer import Material, Price, Proposer
from specstream_mlx.engine.guess import Guesses, Path
from specstream_mlx.engine.plan import Verified
from specstream_mlx.files import reason, staged_file
from specstream_mlx.loading import model_directory, read_config, read_tokenizer
from specstream_mlx.options import PATH, TEXT, option
from specstream_mlx.terminal.commands import program
from specstream_mlx.train.data import read_split

from .shares import HitShares

_OCCURRENCES, _DEPTH = 5000, 10
_CHUNK = 1 << 22  # tokens; the sort of their suffixes takes some 100 bytes each
_SMALL = 1 << 16  # tokens that fit into two bytes


def suffix_array(tokens: np.ndarray) -> np.ndarray:
    """Sort the suffixes of (n,) tokens; returns (n,) int32 places where they begin.

    By doubling of prefixes (Manber and Myers 1990): after each round the ranks tell twice as many
    tokens apart. A suffix that ends is less than one that goes on.
    """
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
    return order.astype(np.int32)


def write_datastore(
    path: FilePath, tokens: np.ndarray, vocab_size: int, chunk: int = _CHUNK
) -> None:
    """Write a datastore of (n,) tokens, at least one, in chunks of so many at most."""
    kind = "<u2" if vocab_size <= _SMALL else "<u4"
    with staged_file(path) as scratch, scratch.open("wb") as file:
        for start in range(0, len(tokens), chunk):
            part = tokens[start : start + chunk]
            for array in (part.astype(kind), suffix_array(part).astype("<i4")):
                file.write(np.array(array.nbytes, "<u4").tobytes() + array.tobytes())


class _Chunk(NamedTuple):
    """Tokens (n,) and the places (n,) of their sorted suffixes."""

    tokens: np.ndarray
    suffixes: np.ndarray

    def matches(self, query: Sequence[int]) -> np.ndarray:
        """Return the places behind all occurrences of a query, in the order of the suffixes."""
        wanted = tuple(query)
        first = self._bound(wanted, False)
        return self.suffixes[first : self._bound(wanted, True)] + len(query)

    def _bound(self, wanted: tuple[int, ...], past: bool) -> int:
        """Find the first suffix that does not begin before ``wanted``, or begins after it."""
        low, high = 0, len(self.suffixes)
        while low < high:
            middle = (low + high) // 2
            start = int(self.suffixes[middle])
            found = tuple(self.tokens[start : start + len(wanted)].tolist())
            if found < wanted or (past and found == wanted):
                low = middle + 1
            else:
                high = middle
        return low


class Datastore:
    """An open datastore, a file that is mapped into memory.

    Raises:
        UserError: it cannot be read or has another format.
    """

    def __init__(self, path: FilePath):
        try:
            data = np.memmap(path, np.uint8, "r")
        except (OSError, ValueError) as error:
            raise UserError(f"the datastore {path} cannot be read: {reason(error)}") from None
        self.path, self._chunks = path, list(_chunks(path, data))
        self.most = max(int(chunk.tokens.max()) for chunk in self._chunks)

    def following(self, query: Sequence[int], count: int, length: int) -> np.ndarray:
        """Return what followed a query's first ``count`` occurrences: (occurrences, length) int64.

        Behind the end of a chunk it is -1.
        """
        found = []
        for chunk in self._chunks:
            places = chunk.matches(query)[:count, None] + np.arange(length)
            count -= len(places)
            inside = places < len(chunk.tokens)
            tokens = chunk.tokens[np.where(inside, places, 0)]
            found.append(np.where(inside, tokens.astype(np.int64), -1))
        return np.concatenate(found)


def _chunks(path: FilePath, data: np.ndarray) -> Iterator[_Chunk]:
    place = 0
    while place < len(data) or not place:
        parts = []
        for _ in range(2):
            size = int.from_bytes(data[place : place + 4].tobytes(), "little")
            parts.append(data[place + 4 : place + 4 + size])
            place += 4 + size
        tokens, suffixes = parts
        whole = place <= len(data) and len(tokens) and len(suffixes) % 4 == 0
        if not whole or len(suffixes) not in (len(tokens), 2 * len(tokens)):
            raise UserError(f"{path} is no datastore, expected arrays of tokens and of places")
        kind = "<u2" if len(suffixes) == 2 * len(tokens) else "<u4"
        chunk = _Chunk(tokens.view(kind), suffixes.view("<i4"))
        if chunk.suffixes.min() < 0 or chunk.suffixes.max() >= len(chunk.tokens):
            raise UserError(f"{path} is no datastore: its places lead out of its tokens")
        yield chunk


open_datastore = lru_cache(maxsize=4)(Datastore)


class Retrieval(Proposer):
    """What the datastore says to one text.

    Args:
        material: see there.
        path: the datastore.
        longest, shortest: tokens of the text's end that are looked up.
    """

    def __init__(self, material: Material, path: FilePath, longest: int = 4, shortest: int = 1):
        self._store, self._width = open_datastore(path), material.width
        self._longest, self._shortest = longest, shortest
        self._end = list(material.prompt[-longest:])
        self._hits = HitShares()
        self._find()

    def accept(self, tokens: Sequence[int]) -> None:
        """Read tokens, and judge what was found behind the root by them."""
        path: Path = ()
        for token in tokens:
            shares = self._shares(path)
            if not shares:
                break
            self._hits.judge(self._kind(path), shares, token)
            path = (*path, token)
        self._end = [*self._end, *tokens][-self._longest :]
        self._stale = True

    def begin(self, verified: Verified, price: Price) -> None:
        """Look the end of the text up."""
        if self._stale:
            self._find()

    def children(self, path: Path) -> Guesses:
        """Guess what followed the end of the text and ``path``."""
        return self._hits.corrected(self._kind(path), self._shares(path))

    def _kind(self, path: Path) -> tuple[int, bool]:
        return self._span, bool(path)

    def _find(self) -> None:
        """Find the longest end of the text that occurs; if it does, so do all shorter ones."""
        self._stale, self._span = False, 0
        self._found = np.empty((0, _DEPTH), np.int64)
        low, high = self._shortest, min(self._longest, len(self._end))
        while low <= high:
            span = (low + high) // 2
            found = self._store.following(self._end[-span:], _OCCURRENCES, _DEPTH)
            if len(found):
                self._span, self._found, low = span, found, span + 1
            else:
                high = span - 1
        self._rows: dict[Path, np.ndarray] = {(): np.arange(len(self._found))}

    def _shares(self, path: Path) -> list[tuple[int, float]]:
        """List the commonest tokens behind a path, with their shares of the occurrences there."""
        depth = len(path)
        if depth >= _DEPTH:
            return []
        rows = self._rows_behind(path)
        tokens, counts = np.unique(self._found[rows, depth], return_counts=True)
        tokens, counts = tokens[tokens >= 0], counts[tokens >= 0]
        best = np.argsort(-counts, kind="stable")[: self._width]
        total = len(rows) + 1  # something else may follow
        return [(int(tokens[one]), float(counts[one]) / total) for one in best]

    def _rows_behind(self, path: Path) -> np.ndarray:
        """Return the occurrences that go on with a path."""
        if path not in self._rows:
            rows = self._rows_behind(path[:-1])
            self._rows[path] = rows[self._found[rows, len(path) - 1] == path[-1]]
        return self._rows[path]


def main(
    *,
    data: FilePath = option(..., PATH, "JSONL of texts, in one of the formats that train takes."),
    datastore: FilePath = option(..., PATH, "Where to."),
    model: str | None = option(None, TEXT, "The model that drafts from it. Default: smollm2."),
) -> None:
    """Make a datastore for REST."""
    directory = model_directory(demonstration.model_path(model, demonstration.silent))
    config = read_config(directory)
    tokenizer = read_tokenizer(directory, config)
    items = read_split(data, tokenizer, 1 << 40, config["vocab_size"]).items
    tokens = np.concatenate([np.array(item.tokens) for item in items])
    write_datastore(datastore, tokens, config["vocab_size"])
    print(f"{datastore}: {len(tokens):,} tokens of {len(items):,} texts")


if __name__ == "__main__":
    program(main)()
