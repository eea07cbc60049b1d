"""The losses of draft heads, and how often they are right.

Medusa's and Hydra's heads learn the token that comes at their depth, or the base's distribution of
it, which the base's own hidden state before that token gives. EAGLE's layer learns the base's next
hidden state, and besides the distribution that follows from it. What stands at a position and depth
is said in ``draft_heads``; positions are those that streams would run at.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .attention import gather_rows, softcapped, stream_positions
from .draft_heads import Eagle, Eagle3
from .frozen_base import FrozenBase
from .losses import (
    Batch,
    as_autocast,
    places_of,
    rows_at_once,
    slice_cross_entropy,
    targets_of,
)

_SLICES_TOGETHER = 8
"""Slices whose part of a trained LM head's gradient is added in one product, on a CPU, where each
addition to (V, h) takes long."""


@dataclass(frozen=True)
class DraftTokens:
    """What a head's LM head scores.

    Attributes:
        base: the frozen base.
        vocabulary: (n,) int64, the tokens that may be drafted; ``None``: all.
    """

    base: FrozenBase
    vocabulary: Tensor | None

    def places(self, targets: Tensor) -> Tensor:
        """The columns of targets (any shape) among the logits, -1 where there is none."""
        if self.vocabulary is None:
            return targets
        return places_of(self.vocabulary, self.base.vocab_size)[targets]

    @cached_property
    def shared(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of the base's frozen LM head, of the drafted tokens."""
        head = self.base.head
        if self.vocabulary is None:
            return head.weight, head.bias
        bias = None if head.bias is None else head.bias[self.vocabulary]
        return head.weight[self.vocabulary], bias

    def heads(self, network: nn.Module, depth: int) -> list[tuple[Tensor, Tensor | None]]:
        """Weight and bias of each depth's LM head."""
        own = list(network.lm_heads)
        return [(head.weight, head.bias) for head in own] or [self.shared] * depth


def head_loss(
    network: nn.Module,
    drafted: DraftTokens,
    batch: Batch,
    hidden: Tensor,
    weights: Sequence[float],
    *,
    learns_from_base: bool,
    token_loss: float,
) -> tuple[Tensor, list[float]]:
    """The loss of a batch.

    Args:
        network: a head of ``draft_heads``.
        drafted: what is drafted.
        batch: sequences.
        hidden: (B, T, n * h) what the head reads, and last, which it may be, the base's last hidden
            states: see ``states_of``.
        weights: of each depth.
        learns_from_base: whether the tokens' loss is the cross entropy with the base's
            distribution, among the drafted tokens; or with the text.
        token_loss: the weight of that loss beside the features', of EAGLE.

    Returns:
        The loss, and each depth's cross entropy in nats.
    """
    positions, valid = stream_positions(batch.stream_from, batch.lengths - 1)
    features, hidden = _features(network, drafted, batch, hidden, positions)
    depth = features.shape[2]
    targets, has_target = targets_of(batch, positions, valid, 1 + depth)
    places = drafted.places(targets)
    total, per_depth = torch.zeros((), device=hidden.device), []
    heads = drafted.heads(network, depth)
    ends = batch.lengths[:, None] - 1
    of_levels = features.unbind(2)  # a level's gradient is not that of all levels, mostly zeros
    for level, weight in enumerate(weights[:depth]):
        scored = has_target[..., 1 + level] & (places[..., 1 + level] >= 0)
        rows, wanted = of_levels[level][scored], places[..., 1 + level][scored]
        teacher = None
        if learns_from_base:
            teacher = gather_rows(hidden, torch.minimum(positions + 1 + level, ends))[scored]
        others = wanted, teacher, drafted.shared, drafted.base.softcap
        summed: Any = SummedCrossEntropy.apply(rows, *heads[level], *others)
        loss = summed / scored.sum().clamp(min=1)
        per_depth.append(loss.item())
        total = total + weight * loss
    if isinstance(network, Eagle):
        follows = has_target[..., 1]
        true = gather_rows(hidden, torch.minimum(positions + 1, ends))[follows]
        total = token_loss * total + F.smooth_l1_loss(
            features[:, :, 0][follows].float(), true.float()
        )
    return total, per_depth


def _features(
    network: nn.Module, drafted: DraftTokens, batch: Batch, hidden: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    """What the LM heads read at ``positions`` (B, C, D, h), and the base's last hidden states."""
    embeddings = drafted.base.embedding(batch.tokens)
    read, last = states_of(network, hidden, embeddings.shape[-1])
    return network(read, embeddings, positions), last


def states_of(network: nn.Module, hidden: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """What a head reads of ``FrozenBase.hidden``, and the base's last hidden states (B, T, h)."""
    last = hidden[..., -size:]
    return (hidden[..., :-size] if isinstance(network, Eagle3) else last), last


class SummedCrossEntropy(torch.autograd.Function):
    """LM head and cross entropy summed over rows, slice by slice; see ``HeadCrossEntropy``.

    All rows count the same, so the forward pass can compute the gradient of a trained head too.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        wanted: Tensor,
        teacher: Tensor | None,
        shared: tuple[Tensor, Tensor | None],
        softcap: float | None,
    ) -> Tensor:
        """Return the sum, a scalar.

        Args:
            ctx: where the gradients are kept.
            rows: (n, h) what the LM head reads.
            weight: (V, h), its weight.
            bias: (V,), its bias, if it has one.
            wanted: (n,) the columns of the true tokens.
            teacher: (n, h) the base's hidden states that say the distribution; ``None``: the true
                tokens are all.
            shared: weight and bias of the base's LM head, which reads ``teacher``.
            softcap: the logits' cap, see ``softcapped``.
        """
        needed = ctx.needs_input_grad
        cast, total = as_autocast(weight), torch.zeros((), device=rows.device)
        if teacher is not None:
            shared = as_autocast(shared[0]), shared[1]
        row_gradient = torch.zeros_like(rows) if needed[0] else None
        weight_gradient = torch.zeros_like(weight) if needed[1] else None
        bias_gradient = torch.zeros_like(bias) if bias is not None and needed[2] else None

        size = rows_at_once(weight)
        together = size * (_SLICES_TOGETHER if weight.is_cpu else 1)
        waiting: list[Tensor] = []
        for start in range(0, len(rows), size):
            end = min(start + size, len(rows))
            goal = wanted[start:end]
            if teacher is not None:
                of_base = softcapped(F.linear(teacher[start:end], *shared).float(), softcap)
                goal = of_base.softmax(-1)
            losses, gradient = slice_cross_entropy(rows[start:end], cast, bias, goal, softcap)
            total += losses.sum()
            if bias_gradient is not None:
                bias_gradient += gradient.sum(0)
            gradient = gradient.to(cast.dtype)
            if row_gradient is not None:
                row_gradient[start:end] = gradient @ cast
            if weight_gradient is None:
                continue
            waiting.append(gradient)
            if end % together == 0 or end == len(rows):
                read = rows[end - sum(map(len, waiting)) : end].to(cast.dtype)
                weight_gradient += torch.cat(waiting).T @ read
                waiting.clear()
        ctx.save_for_backward(row_gradient, weight_gradient, bias_gradient)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients that the forward pass has computed, times the sum's."""
        kept = ctx.saved_tensors
        scaled = [None if gradient is None else gradient.mul_(upstream) for gradient in kept]
        return (*scaled, None, None, None, None)


@torch.no_grad()
def count_right(
    network: nn.Module, drafted: DraftTokens, batch: Batch, hidden: Tensor
) -> tuple[Tensor, Tensor]:
    """Count right top-1 guesses on a batch; every one sees the true tokens before it.

    Args:
        network, drafted, batch, hidden: see ``head_loss``.

    Returns:
        ``correct`` and ``counts``, both (D + 1,) int64, whose quotients are the accuracies by depth
        and, last, the mean accepted length of a chain draft, as ``count_correct`` has it.
    """
    positions, valid = stream_positions(batch.stream_from, batch.lengths - 1)
    features, _ = _features(network, drafted, batch, hidden, positions)
    depth = features.shape[2]
    targets, has_target = targets_of(batch, positions, valid, 1 + depth)
    places, has_target = drafted.places(targets)[..., 1:], has_target[..., 1:]
    hits = torch.zeros_like(has_target)
    for level, (weight, bias) in enumerate(drafted.heads(network, depth)):
        there = has_target[..., level]
        rows = features[:, :, level][there]
        cast, size = as_autocast(weight), rows_at_once(weight)
        best = [F.linear(part, cast, bias).argmax(-1) for part in rows.split(size)]
        hits[..., level][there] = torch.cat(best) == places[..., level][there]
    in_a_row = hits.long().cumprod(-1).sum() + valid.sum()
    correct = torch.cat((hits.sum((0, 1)), in_a_row[None]))
    return correct, torch.cat((has_target.sum((0, 1)), valid.sum()[None]))
