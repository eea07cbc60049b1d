"""Segment attention (arXiv 2402.11131, App. I): a completion's streams in pieces, to save memory.

The positions with streams are split into segments. Each is computed again in the backward pass,
which so holds the intermediate results of one segment at a time. The result and the gradients are
those of the computation in one piece.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def map_segments(
    function: Callable[..., tuple[Tensor | None, ...]],
    sliced: Sequence[Tensor | None],
    segments: int,
) -> list[tuple[Tensor | None, ...]]:
    """Apply ``function`` to each segment of some tensors.

    Args:
        function: takes one segment of every tensor of ``sliced``, in order. It is called again in
            the backward pass, so it must be pure.
        sliced: tensors (B, C, ...), split along dimension 1; ``None`` is passed on as it is.
        segments: number of segments, at least 1; with 1 nothing is computed again.

    Returns:
        The results of ``function``, segment by segment; fewer than ``segments`` if C is smaller.

    Raises:
        ValueError: ``segments`` is below 1.
    """
    if segments < 1:
        raise ValueError(f"segments is {segments}, expected at least 1")
    if segments == 1:
        return [function(*sliced)]
    length = next(tensor.shape[1] for tensor in sliced if tensor is not None)
    size = -(-length // segments)
    results = []
    for start in range(0, length, size):
        part = [None if t is None else t[:, start : start + size] for t in sliced]
        results.append(checkpoint(function, *part, use_reentrant=False))
    return results


def join_segments(results: Sequence[tuple[Tensor | None, ...]]) -> tuple[Tensor | None, ...]:
    """Concatenate the segments' results (B, c, ...) along dimension 1."""
    if len(results) == 1:
        return results[0]
    columns = zip(*results, strict=True)
    return tuple(None if parts[0] is None else torch.cat(parts, dim=1) for parts in columns)
