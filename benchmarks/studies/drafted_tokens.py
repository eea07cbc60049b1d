"""What would streams gain if their head knew all tokens drafted before, as Hydra's and EAGLE's do?

    python -m benchmarks.studies.drafted_tokens --model runs/adapters/expanded --adapter STREAMS \\
        --data convert/demo_model/text/answers/train.jsonl \\
        --valid convert/demo_model/text/answers/valid.jsonl

A stream's conditioned head reads the token before the one that it predicts, and none of those
before that. Here the streams of an adapter stay as they are, their features are computed once, and
copies of its head learn on from them, all by as many updates on the same rows: one that reads what
it always did, one with a matrix for each token that was drafted, and one that reads what the head
was like at the stream before (as in EAGLE, arXiv 2401.15077, a state that is handed on). What the
second and third read beyond the first starts at zero. All are judged on held-out answers, each
token behind the true ones.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from specstream_mlx.convert.demo_model.train_adapters import MOST_ANSWER_TOKENS
from specstream_mlx.convert.pytorch.attention import stream_positions
from specstream_mlx.convert.pytorch.load import load_adapter
from specstream_mlx.convert.pytorch.losses import (
    drafted_head,
    drafted_places,
    head_cross_entropy,
    targets_of,
)
from specstream_mlx.convert.pytorch.reference import (
    ConditionedHead,
    SpeculativeStreamingModel,
    normed,
    tokens_after,
)
from specstream_mlx.convert.pytorch.training_data import collate, read_pairs, tokenize
from specstream_mlx.convert.pytorch.training_run import is_quick_in_bf16
from torch import Tensor, nn
from transformers import AutoTokenizer

from specstream_mlx import UserError
from specstream_mlx.hardware import device
from specstream_mlx.options.fields import option
from specstream_mlx.options.kinds import PATH, integer, number
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track
from specstream_mlx.train.items import Item

from ..report import OUTPUT, commit, machine_suffix, table, write_report
from .chosen_answers import evenly_spread

_AT_ONCE = 8  # answers whose streams are computed together


class LastToken(nn.Module):
    """The head as it is: stream j reads the last of the tokens before the one that it predicts.

    Args:
        head: a trained head, which is copied.
    """

    def __init__(self, head: ConditionedHead) -> None:
        super().__init__()
        self.head = deepcopy(head).requires_grad_(True)

    def forward(self, streams: Tensor, embedded: Tensor) -> Tensor:
        """Map streams (n, gamma, h) and the embedded tokens before (n, gamma, h) to (n, gamma, h).

        The first of the tokens is the target's own; the others were drafted.
        """
        return self.head(streams, self.head.read(embedded))


class EveryToken(LastToken):
    """A head that reads all tokens before, each distance by a matrix of its own, as Hydra's do."""

    def __init__(self, head: ConditionedHead) -> None:
        super().__init__(head)
        count, rank = head.biases.shape
        shape = count - 1, rank, head.up.out_features
        self.earlier = nn.Parameter(torch.zeros(shape))

    def forward(self, streams: Tensor, embedded: Tensor) -> Tensor:
        read = self.head.read(embedded)
        tokens = normed(embedded)
        for distance, weight in enumerate(self.earlier, 1):
            more = F.linear(tokens[:, :-distance], weight)
            read = read + F.pad(more, (0, 0, distance, 0))
        return self.head(streams, read)


class HandedOn(LastToken):
    """A head whose inner features at stream j are read at stream j + 1, too."""

    def __init__(self, head: ConditionedHead) -> None:
        super().__init__(head)
        rank = head.biases.shape[1]
        self.state = nn.Parameter(torch.zeros(rank, rank))

    def forward(self, streams: Tensor, embedded: Tensor) -> Tensor:
        features = normed(streams)
        own = F.linear(features, self.head.down.weight[:, : features.shape[-1]])
        own = own + self.head.read(embedded) + self.head.biases
        inner = [F.silu(own[:, 0])]
        for stream in own[:, 1:].unbind(1):
            inner.append(F.silu(stream + F.linear(inner[-1], self.state)))
        return features + self.head.up(torch.stack(inner, dim=1))


KINDS = {
    "the last token": LastToken,
    "every token, a matrix each": EveryToken,
    "the last token and the head's state before": HandedOn,
}
"""What a head may read, by a description of it."""


@dataclass
class Rows:
    """Streams that have run, and the text around them.

    Attributes:
        streams: (n, gamma, h) after the last layer.
        before: (n, gamma) int64 tokens before those to be predicted.
        places: (n, gamma) int64 columns of the tokens to be predicted among those that may be
            drafted; -1: they may not.
        known: (n, gamma) bool, whether the text goes on so far.
    """

    streams: Tensor
    before: Tensor
    places: Tensor
    known: Tensor

    def at(self, rows: Tensor) -> "Rows":
        """Take some rows."""
        return Rows(self.streams[rows], self.before[rows], self.places[rows], self.known[rows])

    def pieces(self, size: int) -> Iterator["Rows"]:
        """Cut them into pieces of so many rows."""
        for rows in torch.arange(len(self.streams)).split(size):
            yield self.at(rows)


@torch.no_grad()
def rows_of(model: SpeculativeStreamingModel, items: Sequence[Item]) -> Rows:
    """Run the streams once over answers, beside every position as in training."""
    gamma, found = model.config.num_streams, []
    ordered = sorted(items, key=lambda item: len(item.tokens))
    for start in track(range(0, len(ordered), _AT_ONCE), "streams"):
        batch = collate(ordered[start : start + _AT_ONCE])
        positions, valid = stream_positions(batch.stream_from, batch.lengths - 1)
        trunk = model.trunk(batch.tokens, positions, valid, need_main=False)
        before = tokens_after(batch.tokens, positions, gamma).unfold(1, gamma, 1)
        targets, known = targets_of(batch, positions, valid, 1 + gamma)
        places = drafted_places(model, targets[..., 1:])
        parts = trunk.streams.to(torch.bfloat16), before, places, known[..., 1:]
        found.append([part[valid] for part in parts])
    return Rows(*(torch.cat(parts) for parts in zip(*found, strict=True)))


class Contest:
    """Heads of one adapter's streams that learn from the same rows.

    Args:
        model: the adapter on its base.
        rows: those to learn from.

    Raises:
        UserError: the adapter's head is plain.
    """

    def __init__(self, model: SpeculativeStreamingModel, rows: Rows) -> None:
        if model.streams.head is None:
            raise UserError("stream_head of --adapter is 'plain', expected 'conditioned'")
        self._model, self._rows = model.requires_grad_(False), rows
        self.head = model.streams.head
        self._weight, self._bias = drafted_head(model)

    def trained(self, kind: type[LastToken], iters: int, size: int, rate: float) -> LastToken:
        """Let a copy of the head learn from ``size`` rows in each of ``iters`` updates."""
        head = kind(self.head)
        optimizer = torch.optim.AdamW(head.parameters(), lr=rate, weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, iters)
        order = torch.Generator().manual_seed(0)
        for _ in track(range(iters), kind.__name__):
            drawn = torch.randint(len(self._rows.streams), (size,), generator=order)
            losses = self._losses(head, self._rows.at(drawn))
            optimizer.zero_grad()
            losses.mean().backward()
            nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        return head

    @torch.no_grad()
    def judged(self, head: LastToken, rows: Rows, size: int) -> dict[str, Any]:
        """Count a head's right top-1 guesses, and the tokens that a chain of them writes."""
        right = counts = chain = torch.zeros((), dtype=torch.int64)
        for part in rows.pieces(size):
            logits = F.linear(self._features(head, part), self._weight, self._bias)
            hits = (logits.argmax(-1) == part.places) & part.known
            right, counts = right + hits.sum(0), counts + part.known.sum(0)
            chain = chain + hits.long().cumprod(1).sum()
        return {
            "depths": (right / counts).tolist(),
            "chain": 1 + (chain / len(rows.streams)).item(),
            "parameters": sum(p.numel() for p in head.parameters()),
        }

    def _features(self, head: LastToken, rows: Rows) -> Tensor:
        backbone = self._model.backbone
        embedded = backbone.embedding(rows.before)
        return backbone.norm(head(rows.streams.to(embedded.dtype), embedded))

    def _losses(self, head: LastToken, rows: Rows) -> Tensor:
        scored = rows.known & (rows.places >= 0)
        features, goals = self._features(head, rows)[scored], rows.places[scored]
        softcap = self._model.backbone.softcap
        return head_cross_entropy(features, self._weight, goals, self._bias, softcap)


COLUMNS = {
    "a stream's head reads": "{kind}",
    "parameters of the head": "{parameters:,}",
    "right by depth": "{shown}",
    "tokens a chain": "{chain:.3f}",
}


def main(
    model: Path = option(..., PATH, "Directory of a base that PyTorch reads, of floats."),
    adapter: Path = option(..., PATH, "Its lossless streams, with a conditioned head."),
    data: Path = option(..., PATH, "JSONL of prompts and the base's answers."),
    valid: Path = option(..., PATH, "The same, held out."),
    answers: int = option(1000, integer(1), "Answers to learn from, spread over --data."),
    iters: int = option(600, integer(1), "Updates of each head."),
    rows: int = option(512, integer(1), "Positions of an update."),
    learning_rate: float = option(2e-4, number(), "Its peak, behind which it falls as a cosine."),
    output: Path = OUTPUT,
) -> None:
    """Train heads that know more of what was drafted, on streams that stay as they are."""
    mounted = load_adapter(model, adapter)
    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    items, unseen = (
        tokenize(read_pairs(path), tokenizer, None, MOST_ANSWER_TOKENS) for path in (data, valid)
    )
    items = evenly_spread(items, answers)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_quick_in_bf16(torch.device("cpu"))):
        learned, held_out = rows_of(mounted, items), rows_of(mounted, unseen)
        contest = Contest(mounted, learned)
        start = LastToken(contest.head)
        found = [{"kind": "as the adapter has it"} | contest.judged(start, held_out, rows)]
        for name, kind in KINDS.items():
            head = contest.trained(kind, iters, rows, learning_rate)
            found.append({"kind": name} | contest.judged(head, held_out, rows))
    for row in found:
        row["shown"] = " ".join(f"{share:.3f}".lstrip("0") for share in row["depths"])
    facts = device.describe()
    about = (
        f"{facts['machine']}, {facts['cpu']}, PyTorch {version('torch')}, {commit()}. Heads that "
        f"learn on, {iters} updates of {rows} of "
        f"{len(learned.streams):,} positions in {len(items):,} answers of the base, rate "
        f"{learning_rate:g}, beside streams that stay as they are. On {len(held_out.streams):,} "
        "held-out positions: right top-1 guesses by depth, and tokens that a chain of them writes."
    )
    name = f"drafted-tokens-{machine_suffix(facts)}"
    lines = [about, "", *table(COLUMNS, found)]
    print(write_report(output, name, {"facts": about, "rows": found}, lines))


if __name__ == "__main__":
    program(main)()
