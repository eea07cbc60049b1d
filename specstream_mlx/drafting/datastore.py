"""A datastore of token sequences with suffix arrays, in the format of REST.

He et al., REST: Retrieval-Based Speculative Decoding (arXiv 2311.08252); the format is that of its
``DraftRetriever``. A file is a row of chunks, and a chunk is two arrays, each behind its number of
bytes as a little-endian uint32: the tokens, uint16 or, of a vocabulary that needs it, uint32; and
their suffix array, int32. Nothing separates the sequences, so a match may run from one into the
next.
"""

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from ..checked_files import reason
from ..config import UserError
from ..staging import staged_file

CHUNK = 1 << 22
"""Tokens of a chunk; the sort of its suffixes takes some 100 bytes a token."""

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


def write_datastore(path: Path, tokens: np.ndarray, vocab_size: int, chunk: int = CHUNK) -> None:
    """Write a datastore, whole or not at all.

    Args:
        path: the file; a datastore that is there is replaced.
        tokens: (n,) token ids, at least one.
        vocab_size: the number of tokens there are.
        chunk: tokens of a chunk at most.

    Raises:
        UserError: another file is there, or the place cannot be written.
    """
    check_place(path)
    kind = "<u2" if vocab_size <= _SMALL else "<u4"
    with staged_file(path) as scratch, scratch.open("wb") as file:
        for start in range(0, len(tokens), chunk):
            part = tokens[start : start + chunk]
            _write(file, part.astype(kind))
            _write(file, suffix_array(part).astype("<i4"))


def check_place(path: Path) -> None:
    """Check that no other file would be lost where a datastore is to be written.

    Raises:
        UserError: there is one that is no datastore.
    """
    if not path.is_file():
        return  # a directory is refused when it is to be replaced
    try:
        Datastore(path)
    except UserError:
        raise UserError(
            f"{path} exists and is no datastore, expected a new file or a datastore to replace"
        ) from None


def _write(file: BinaryIO, array: np.ndarray) -> None:
    file.write(np.array(array.nbytes, "<u4").tobytes())
    file.write(array.tobytes())


class _Chunk(NamedTuple):
    """Tokens (n,) and the places (n,) of their sorted suffixes."""

    tokens: np.ndarray
    suffixes: np.ndarray

    def matches(self, query: Sequence[int]) -> np.ndarray:
        """Return the places behind all occurrences of a query, in the order of the suffixes."""
        wanted = tuple(query)
        first = self._bound(wanted, False)
        return self.suffixes[first : self._bound(wanted, True)] + len(query)

    def _bound(self, wanted: tuple[int, ...], behind: bool) -> int:
        """Find the first suffix that does not begin before ``wanted``, or begins behind it."""
        low, high = 0, len(self.suffixes)
        while low < high:
            middle = (low + high) // 2
            start = int(self.suffixes[middle])
            found = tuple(self.tokens[start : start + len(wanted)].tolist())
            if found < wanted or (behind and found == wanted):
                low = middle + 1
            else:
                high = middle
        return low


class Datastore:
    """An open datastore.

    Args:
        path: the file, which is mapped into memory.

    Attributes:
        most: the largest token in it.

    Raises:
        UserError: it cannot be read or has another format.
    """

    def __init__(self, path: Path):
        try:
            data = np.memmap(path, np.uint8, "r")
        except (OSError, ValueError) as error:
            raise UserError(f"the datastore {path} cannot be read: {reason(error)}") from None
        self.path, self._chunks = path, list(_chunks(path, data))
        self.most = max(int(chunk.tokens.max()) for chunk in self._chunks)

    def __len__(self) -> int:
        """Count the tokens."""
        return sum(len(chunk.tokens) for chunk in self._chunks)

    def following(self, query: Sequence[int], count: int, length: int) -> np.ndarray:
        """Look up what followed a query.

        Args:
            query: token ids.
            count: occurrences to take at most, the first in the order of the suffixes.
            length: tokens to take of each.

        Returns:
            (occurrences, length) int64 tokens; -1 behind the end of a chunk.
        """
        found = []
        for chunk in self._chunks:
            places = chunk.matches(query)[:count, None] + np.arange(length)
            count -= len(places)
            inside = places < len(chunk.tokens)
            tokens = chunk.tokens[np.where(inside, places, 0)]
            found.append(np.where(inside, tokens.astype(np.int64), -1))
        return np.concatenate(found)


def _chunks(path: Path, data: np.ndarray) -> Iterator[_Chunk]:
    place = 0
    while place < len(data) or not place:
        parts = []
        for _ in range(2):
            size = int.from_bytes(data[place : place + 4].tobytes(), "little")
            part = data[place + 4 : place + 4 + size]
            if not size or len(part) < size or size % 2:
                raise UserError(
                    f"{path} is no datastore: byte {place} says that {size} bytes follow, expected "
                    "whole arrays of tokens and places"
                )
            parts.append(part)
            place += 4 + size
        tokens, suffixes = parts
        if len(suffixes) % 4 or len(suffixes) not in (len(tokens), 2 * len(tokens)):
            raise UserError(
                f"{path} is no datastore: {len(tokens)} bytes of tokens have {len(suffixes)} of "
                "places, expected four for each token of two or four bytes"
            )
        kind = "<u2" if len(suffixes) == 2 * len(tokens) else "<u4"
        chunk = _Chunk(tokens.view(kind), suffixes.view("<i4"))
        if chunk.suffixes.min() < 0 or chunk.suffixes.max() >= len(chunk.tokens):
            raise UserError(f"{path} is no datastore: its places lead out of its tokens")
        yield chunk


def open_datastore(path: str | Path) -> Datastore:
    """Open a datastore; one that has not changed is opened once.

    Raises:
        UserError: see ``Datastore``.
    """
    try:
        state = os.stat(path)
    except (OSError, ValueError) as error:
        raise UserError(f"the datastore {path} cannot be read: {reason(error)}") from None
    return _opened(Path(path), state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4)
def _opened(path: Path, *state: int) -> Datastore:
    return Datastore(path)
