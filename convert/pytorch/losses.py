"""The n-gram loss of Speculative Streaming (arXiv 2402.11131, Eq. 6) and the streams' accuracy."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from specstream_mlx.train.settings import stream_losses

from .attention import gather_rows, softcapped, stream_positions
from .reference import SpeculativeStreamingModel, tokens_after

LOGITS_AT_ONCE, LOGITS_AT_ONCE_ON_GPU = 1 << 22, 1 << 27
"""Most logits that a slice of rows may have, to bound the memory; a GPU wants large products."""


@dataclass
class Batch:
    """Sequences padded on the right, in int64."""

    tokens: Tensor  # (B, T)
    stream_from: Tensor  # (B,), index of the first completion token, at least 1
    lengths: Tensor  # (B,), at least ``stream_from + 1``
    drawn: Tensor | None = None  # (B, C), the positions with streams where these are not all, or -1

    def positions(self) -> tuple[Tensor, Tensor]:
        """The positions (B, C) with streams, and whether each is one or padding."""
        if self.drawn is None:
            return stream_positions(self.stream_from, self.lengths - 1)
        valid = self.drawn >= 0
        return torch.where(valid, self.drawn, self.stream_from[:, None] - 1), valid


@dataclass
class Loss:
    """A batch's loss: ``total`` to call ``backward`` on, and its parts, detached."""

    total: Tensor
    per_stream: Tensor  # (1 + gamma,), the main stream's first; 0 where alpha is 0
    pruner: Tensor  # the cross entropy of the early exit; 0 without one


class HeadCrossEntropy(torch.autograd.Function):
    """LM head and cross entropy, slice by slice: the logits of all rows never exist at once.

    The forward pass also computes the gradient of the rows. The head is frozen and gets none.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        targets: Tensor,
        bias: Tensor | None,
        softcap: float | None,
    ) -> Tensor:
        size = LOGITS_AT_ONCE if head.is_cpu else LOGITS_AT_ONCE_ON_GPU
        size, device = max(1, size // len(head)), head.device.type
        if torch.is_autocast_enabled(device):  # cast once, and not by every slice
            head = head.to(torch.get_autocast_dtype(device))
        losses, gradients = [], []
        for rows, wanted in zip(hidden.split(size), targets.split(size), strict=True):
            logits = softcapped(F.linear(rows, head, bias).float(), softcap)
            scores = logits.log_softmax(-1)
            losses.append(-scores.gather(1, wanted[:, None]).squeeze(1))
            if ctx.needs_input_grad[0]:
                gradient = scores.exp_()  # by the logits
                gradient[torch.arange(len(wanted), device=wanted.device), wanted] -= 1
                if softcap is not None:
                    gradient *= 1 - (logits / softcap) ** 2
                gradients.append(torch.matmul(gradient, head))
        if gradients:
            ctx.save_for_backward(torch.cat(gradients))
        return torch.cat(losses)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream[:, None], None, None, None, None


def head_cross_entropy(
    hidden: Tensor,
    head: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """The cross entropy (n,) in nats of an LM head on ``hidden`` (n, h), which alone has gradients.

    The head's weight is (V, h); it has a bias (V,) and a cap, or none.
    """
    return HeadCrossEntropy.apply(hidden, head, targets, bias, softcap)


def n_gram_loss(
    model: SpeculativeStreamingModel,
    batch: Batch,
    alphas: Sequence[float],
    loss: str = "cross_entropy",
) -> Loss:
    """The loss of Eq. 6, ``sum_j alpha_j CE(stream j, y_{t+j})``, plus the pruner's.

    Stream 0 is the main stream; the streams may have another ``loss``. Streams run at the last
    prompt token and every completion token but the last. Each term is the mean over those of its
    targets that lie within the sequence and, of a stream, in the draft vocabulary: its
    probabilities are among the tokens that it may draft. A conditioned head reads the true tokens
    before. Of 1 + ``num_streams`` alphas a term of 0 is not computed.
    """
    positions, valid = batch.positions()
    trunk = model.trunk(batch.tokens, positions, valid)
    targets, has_target = targets_of(batch, positions, valid, len(alphas))
    head, norm = model.backbone.head, model.backbone.norm
    drafted, drafted_bias = drafted_head(model)
    places = drafted_places(model, targets[..., 1:])
    has_target[..., 1:] &= places >= 0
    weights = torch.tensor(alphas, device=targets.device)
    scored = has_target & (weights != 0)
    cross_entropy = partial(head_cross_entropy, softcap=model.backbone.softcap)

    streams = _conditioned(model, batch, positions, trunk.streams)
    rows = scored[..., 1:].flatten().nonzero().squeeze(1)
    hidden = norm(streams.flatten(0, 2).index_select(0, rows))
    losses = cross_entropy(hidden, drafted, places.flatten()[rows], drafted_bias)
    by_position = losses.new_full((scored[..., 1:].numel(),), torch.inf).index_copy(0, rows, losses)
    by_position = by_position.view(-1, len(alphas) - 1)
    losses = stream_losses(loss, by_position).flatten()[rows]
    sums = losses.new_zeros(len(alphas))
    sums = sums.index_add(0, 1 + rows % (len(alphas) - 1), losses)
    if alphas[0]:
        hidden = norm(gather_rows(trunk.main, positions)[scored[..., 0]])
        losses = cross_entropy(hidden, head.weight, targets[..., 0][scored[..., 0]], head.bias)
        sums = sums.index_add(0, sums.new_zeros(len(losses), dtype=torch.int64), losses)
    per_stream = sums / has_target.sum((0, 1)).clamp(min=1)
    pruner = sums.new_zeros(())
    if model.config.pruner_rank:
        early = model.early_exit_hidden(gather_rows(trunk.seed, positions)[valid])
        pruner = cross_entropy(early, head.weight, targets[..., 0][valid], head.bias).mean()
    total = (weights * per_stream).sum() + pruner
    return Loss(total, per_stream.detach(), pruner.detach())


@torch.no_grad()
def stream_hits(model: SpeculativeStreamingModel, batch: Batch) -> Tensor:
    """Whether each stream's likeliest token is the next one (B, C, gamma), after true tokens."""
    positions, valid = batch.positions()
    trunk = model.trunk(batch.tokens, positions, valid)
    targets, there = targets_of(batch, positions, valid, 1 + model.config.num_streams)
    (head, bias), places = drafted_head(model), drafted_places(model, targets[..., 1:])
    hits = there[..., 1:] & (places >= 0)
    streams = _conditioned(model, batch, positions, trunk.streams)
    rows = model.backbone.norm(streams[hits]).split(max(1, LOGITS_AT_ONCE // len(head)))
    guesses = [F.linear(own, head, bias).argmax(-1) for own in rows]
    hits[hits.clone()] = torch.cat(guesses) == places[hits]
    return hits


@torch.no_grad()
def count_correct(model: SpeculativeStreamingModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """Count right top-1 predictions on a batch; every position sees the true tokens before it.

    The quotients of the two results (gamma + 3,) are the accuracies of the main stream, of streams
    1 to gamma and of the pruner, and last the mean accepted length of a chain draft: 1 + the
    streams that are right one after the other.
    """
    positions, valid = batch.positions()
    trunk = model.trunk(batch.tokens, positions, valid)
    targets, has_target = targets_of(batch, positions, valid, 1 + model.config.num_streams)
    streams = _conditioned(model, batch, positions, trunk.streams)
    hidden = torch.cat((gather_rows(trunk.main, positions)[:, :, None], streams), dim=2)
    logits = model.logits(hidden[has_target])
    if model.draft_vocabulary is not None:
        of_stream = has_target.nonzero()[:, -1] > 0
        never = places_of(model.draft_vocabulary, logits.shape[-1]) < 0
        logits = logits.masked_fill(of_stream[:, None] & never, -torch.inf)
    hits = torch.zeros_like(has_target)
    hits[has_target] = logits.argmax(-1) == targets[has_target]
    in_a_row = hits[..., 1:].long().cumprod(-1).sum() + valid.sum()
    seed = gather_rows(trunk.seed, positions)[valid]
    early = valid.sum() * 0
    if model.config.pruner_rank:
        early = (model.early_exit_logits(seed).argmax(-1) == targets[..., 0][valid]).sum()
    correct = torch.cat((hits.sum((0, 1)), early[None], in_a_row[None]))
    counts = torch.cat((has_target.sum((0, 1)), valid.sum()[None], valid.sum()[None]))
    return correct, counts


def drafted_head(model: SpeculativeStreamingModel) -> tuple[Tensor, Tensor | None]:
    """The LM head's weight (n, h), and bias (n,) if it has one, of the tokens to draft."""
    head, vocabulary = model.backbone.head, model.draft_vocabulary
    if vocabulary is None:
        return head.weight, head.bias
    return head.weight[vocabulary], None if head.bias is None else head.bias[vocabulary]


def drafted_places(model: SpeculativeStreamingModel, tokens: Tensor) -> Tensor:
    """The rows of ``drafted_head`` that score tokens (...), -1 for those that it lacks."""
    vocabulary = model.draft_vocabulary
    if vocabulary is None:
        return tokens
    return places_of(vocabulary, len(model.backbone.head.weight))[tokens]


def places_of(vocabulary: Tensor, vocab_size: int) -> Tensor:
    """(V,) int64, every token's place in a draft vocabulary, -1 for those that it lacks."""
    places = vocabulary.new_full((vocab_size,), -1, dtype=torch.int64)
    places[vocabulary] = torch.arange(len(vocabulary), device=vocabulary.device)
    return places


def _conditioned(
    model: SpeculativeStreamingModel, batch: Batch, positions: Tensor, streams: Tensor
) -> Tensor:
    """The streams (B, C, gamma, h) as final norm and LM head see them, after the true tokens."""
    before = tokens_after(batch.tokens, positions, model.config.num_streams)
    return model.conditioned(streams, model.read(before))


def targets_of(batch: Batch, positions: Tensor, valid: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """The tokens (B, C, rows) that main stream and streams predict, and whether they exist."""
    ahead = positions[..., None] + torch.arange(1, rows + 1, device=positions.device)
    has_target = valid[..., None] & (ahead < batch.lengths[:, None, None])
    ahead = ahead.clamp(max=batch.tokens.shape[1] - 1)
    return gather_rows(batch.tokens, ahead.flatten(1)).view(ahead.shape), has_target
