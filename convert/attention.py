"""Multi-stream attention (arXiv 2402.11131, Eq. 2 and 3) and the row lists it works on."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def stream_positions(stream_from: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """Where streams run: from ``stream_from - 1`` (the last prompt token) to ``ends - 1``.

    Args:
        stream_from: (B,) int64, index of the first completion token, at least 1.
        ends: (B,) int64, one past the last position with streams.

    Returns:
        ``positions`` (B, C) int64, and ``valid`` (B, C) bool, False where an item has fewer than C.
    """
    first = stream_from[:, None] - 1
    steps = torch.arange(int((ends[:, None] - first).max()), device=first.device)
    positions = first + steps
    valid = positions < ends[:, None]
    return torch.where(valid, positions, first), valid


def gather_rows(x: Tensor, positions: Tensor) -> Tensor:
    """Rows (B, C, ...) of ``x`` (B, T, ...) at ``positions`` (B, C)."""
    return (
        x.flatten(0, 1)
        .index_select(0, flat_rows(positions, x.shape[1]))
        .unflatten(0, positions.shape)
    )


def flat_rows(positions: Tensor, length: int) -> Tensor:
    """Indices (B * C,) of ``positions`` (B, C) in (B, length) flattened."""
    start = length * torch.arange(len(positions), device=positions.device)
    return (positions + start[:, None]).flatten()


def normed(norm: nn.Module, x: Tensor) -> Tensor:
    """``norm(x)``; under autocast cast once, not once for every projection that reads it."""
    x = norm(x)
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (i, i + d/2) of ``x`` (..., d); ``cos`` and ``sin`` broadcast to it."""
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


def causal_attention(queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Ordinary causal attention of the main stream.

    Args:
        queries: (B, T, Hq, d).
        keys, values: (B, T, Hkv, d).
        scale: factor of the scores.

    Returns:
        (B, T, Hq, d).
    """
    queries, keys, values = (t.transpose(1, 2) for t in (queries, keys, values))
    if not queries.is_cpu:
        return F.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=scale, enable_gqa=True
        ).transpose(1, 2)
    # On the CPU the fused kernel's backward pass in bf16 is 4 times slower than plain products.
    length, kv_heads = queries.shape[2], keys.shape[1]
    rows = (queries * scale).unflatten(1, (kv_heads, -1)).flatten(2, 3)
    scores = (rows @ keys.transpose(2, 3)).unflatten(2, (-1, length))
    future = torch.ones(length, length, dtype=torch.bool, device=scores.device).triu(1)
    weights = scores.masked_fill(future, float("-inf")).softmax(-1).to(values.dtype)
    return (weights.flatten(2, 3) @ values).unflatten(2, (-1, length)).flatten(1, 2).transpose(1, 2)


def stream_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    stream_keys: Tensor,
    stream_values: Tensor,
    positions: Tensor,
    scale: float,
) -> Tensor:
    """Multi-stream attention, Eq. 2 and (with the main row as first query) Eq. 3.

    Stream j attends to the main keys up to its position and to the streams 1..j beside it; a main
    row to the main keys and to all streams beside it. One softmax runs over both blocks of scores;
    streams of other positions are never scored.

    Args:
        queries: (B, C, R, Hq, d), R = gamma, or 1 + gamma with the main row first.
        keys, values: (B, T, Hkv, d), the main stream's.
        stream_keys, stream_values: (B, C, gamma, Hkv, d).
        positions: (B, C) int64.
        scale: factor of the scores.

    Returns:
        (B, C, R, Hq, d).
    """
    batch, count, rows, heads, d = queries.shape
    length, kv_heads = keys.shape[1:3]
    gamma = stream_keys.shape[2]
    groups = heads // kv_heads
    # (B, Hkv, C, groups * R, d)
    queries = queries.view(batch, count, rows, kv_heads, groups, d).permute(0, 3, 1, 4, 2, 5)
    queries = (queries * scale).reshape(batch, kv_heads, count, groups * rows, d)
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)
    stream_keys = stream_keys.permute(0, 3, 1, 2, 4)
    stream_values = stream_values.permute(0, 3, 1, 2, 4)

    main_scores = (queries.flatten(2, 3) @ keys.transpose(2, 3)).view(*queries.shape[:4], length)
    stream_scores = queries @ stream_keys.transpose(3, 4)
    future = torch.arange(length, device=positions.device) > positions[..., None]
    later = torch.ones(gamma, gamma, dtype=torch.bool, device=positions.device).triu(1)
    if rows > gamma:
        later = torch.cat((later.new_zeros(1, gamma), later))
    hidden = torch.cat(
        (
            future[:, None, :, None].expand(batch, 1, count, groups * rows, length),
            later.repeat(groups, 1).expand(batch, 1, count, groups * rows, gamma),
        ),
        dim=-1,
    )
    scores = torch.cat((main_scores, stream_scores), dim=-1).masked_fill(hidden, float("-inf"))
    main_part, stream_part = scores.softmax(-1).to(values.dtype).split((length, gamma), dim=-1)
    output = (main_part.flatten(2, 3) @ values).view(queries.shape) + stream_part @ stream_values
    output = output.view(batch, kv_heads, count, groups, rows, d).permute(0, 2, 4, 1, 3, 5)
    return output.reshape(batch, count, rows, heads, d)
