"""Multi-stream attention (arXiv 2402.11131, Eq. 2 and 3) and the positions it runs at.

Shapes: B sequences of T tokens, C positions with streams, gamma streams at each, Hq query and
Hkv key-value heads of size d.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


def stream_positions(stream_from: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """The positions (B, C) with streams: from the last prompt token to ``ends - 1``.

    Both arguments are (B,). The second result is False where a sequence has fewer than C positions
    and repeats its first.
    """
    first = stream_from[:, None] - 1
    steps = torch.arange(int((ends[:, None] - first).max()), device=first.device)
    positions = first + steps
    valid = positions < ends[:, None]
    return torch.where(valid, positions, first), valid


def gather_rows(x: Tensor, positions: Tensor) -> Tensor:
    """The rows (B, C, ...) of ``x`` (B, T, ...) at ``positions`` (B, C)."""
    rows = x.flatten(0, 1).index_select(0, flat_rows(positions, x.shape[1]))
    return rows.unflatten(0, positions.shape)


def flat_rows(positions: Tensor, length: int) -> Tensor:
    """The indices (B * C,) of ``positions`` (B, C) among all B * length rows."""
    start = length * torch.arange(len(positions), device=positions.device)
    return (positions + start[:, None]).flatten()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (i, i + d/2) of ``x`` (..., d); ``cos`` and ``sin`` broadcast to it."""
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


def softcapped(x: Tensor, cap: float | None) -> Tensor:
    """``cap * tanh(x / cap)``, or ``x`` itself if there is no cap."""
    return x if cap is None else cap * torch.tanh(x / cap)


@dataclass(frozen=True)
class Scoring:
    """A layer's way to score keys: a row sees those less than ``window`` positions back."""

    scale: float
    window: int | None = None
    softcap: float | None = None

    def hides(self, positions: Tensor, length: int) -> Tensor:
        """The main rows (..., length) that rows at ``positions`` (...) do not see, as bool."""
        back = positions[..., None] - torch.arange(length, device=positions.device)
        hidden = back < 0
        return hidden if self.window is None else hidden | (back >= self.window)


def causal_attention(queries: Tensor, keys: Tensor, values: Tensor, scoring: Scoring) -> Tensor:
    """The main stream's attention (B, T, Hq, d), of (B, Hq, T, d) to (B, Hkv, T, d)."""
    length, kv_heads = queries.shape[2], keys.shape[1]
    hidden = scoring.hides(torch.arange(length, device=queries.device), length)
    fused = not queries.is_cpu or not torch.is_grad_enabled()
    if fused and scoring.softcap is None:
        return F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=None if scoring.window is None else ~hidden,
            is_causal=scoring.window is None,
            scale=scoring.scale,
            enable_gqa=True,
        ).transpose(1, 2)
    # On the CPU the fused kernel's backward pass in bf16 is 4 times slower than plain products.
    rows = (queries * scoring.scale).unflatten(1, (kv_heads, -1)).flatten(2, 3)
    scores = softcapped(rows @ keys.transpose(2, 3), scoring.softcap).unflatten(2, (-1, length))
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1).to(values.dtype)
    return (weights.flatten(2, 3) @ values).unflatten(2, (-1, length)).flatten(1, 2).transpose(1, 2)


@torch.no_grad()
def likeliest_keys(
    queries: Tensor, keys: Tensor, positions: Tensor, scoring: Scoring, count: int
) -> Tensor:
    """The ``count`` keys that main rows weigh most, as bool (B, C, T); see ``stream_keys``.

    All that weigh as much as the last of them are selected, too. The rows' queries are
    (B, C, Hq, d), their ``positions`` (B, C), the keys (B, Hkv, T, d).
    """
    kv_heads, length = keys.shape[1:3]
    heads = (queries * scoring.scale).transpose(1, 2).unflatten(1, (kv_heads, -1))
    scores = (heads.flatten(2, 3) @ keys.transpose(2, 3)).view(*heads.shape[:4], length).float()
    hidden = scoring.hides(positions, length)
    scores = softcapped(scores, scoring.softcap)
    weights = scores.masked_fill_(hidden[:, None, None], float("-inf")).softmax(-1).sum((1, 2))
    weights.masked_fill_(hidden, -1)
    least = weights.topk(min(count, length), sorted=False).values.amin(-1, keepdim=True)
    return weights >= least


def stream_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    stream_keys: Tensor,
    stream_values: Tensor,
    positions: Tensor,
    scoring: Scoring,
    selected: Tensor | None = None,
) -> Tensor:
    """Multi-stream attention (B, C, R, Hq, d), Eq. 2 and (with the main row as first query) Eq. 3.

    Stream j attends to the main keys that its main row sees and to the streams 1 to j of it; a
    main row attends to the main keys and to all of its streams. One softmax runs over all
    blocks of scores; streams of other positions are never scored.

    Queries are (B, Hq, C, R, d), R = gamma, or 1 + gamma with the main row first; the main stream's
    keys and values (B, Hkv, T, d), the streams' (B, Hkv, C, gamma, d) at ``positions`` (B, C);
    ``selected`` (B, C, T), the main keys that streams may attend to.
    """
    batch, heads, count, rows, d = queries.shape
    kv_heads, length = keys.shape[1:3]
    gamma = stream_keys.shape[3]
    groups = heads // kv_heads
    # (B, Hkv, C, groups * R, d)
    queries = (queries * scoring.scale).unflatten(1, (kv_heads, groups)).transpose(2, 3)
    queries = queries.flatten(3, 4)

    main_scores = (queries.flatten(2, 3) @ keys.transpose(2, 3)).view(*queries.shape[:4], length)
    later = torch.ones(gamma, gamma, dtype=torch.bool, device=positions.device).triu(1)
    if rows > gamma:
        later = torch.cat((later.new_zeros(1, gamma), later))
    stream_scores = queries @ stream_keys.transpose(3, 4)
    main_hidden = scoring.hides(positions, length)[:, :, None].repeat(1, 1, rows, 1)
    if selected is not None:
        main_hidden[:, :, rows - gamma :] |= ~selected[:, :, None]
    hidden = torch.cat((main_hidden, later.expand(batch, count, rows, gamma)), dim=-1)
    hidden = hidden.repeat(1, 1, groups, 1)[:, None]
    scores = softcapped(torch.cat((main_scores, stream_scores), dim=-1), scoring.softcap)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1).to(values.dtype)
    main_part, stream_part = weights.split((length, gamma), dim=-1)
    output = (main_part.flatten(2, 3) @ values).view(queries.shape) + stream_part @ stream_values
    output = output.view(batch, kv_heads, count, groups, rows, d).permute(0, 2, 4, 1, 3, 5)
    return output.reshape(batch, count, rows, heads, d)
