"""Which loss and which positions do streams learn on best with?

    python -m benchmarks.stream_losses --work runs/losses --data train.jsonl \\
        --held-out valid.jsonl --start START cross_entropy acceptance half acceptance+replay

Each variant goes on from the same streams, on the same batches in one process: the base's own
stream is run once for all of them. Streams are kept every so often, from where the same command
resumes; at the beginning and the end ``log.jsonl`` has the exact replay of chains on held-out
answers, by source.
"""

import json
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from specstream_mlx.convert.pytorch.attention import causal_attention, gather_rows
from specstream_mlx.convert.pytorch.load import load_adapter
from specstream_mlx.convert.pytorch.losses import n_gram_loss, stream_hits
from specstream_mlx.convert.pytorch.reference import SpeculativeStreamingModel, Trunk
from specstream_mlx.convert.pytorch.training_run import collate
from torch import Tensor

from specstream_mlx import demonstration
from specstream_mlx.files import append, read_json
from specstream_mlx.loading import read_tokenizer
from specstream_mlx.options import FILE, PATH, POSITIVE, TEXTS, integer, option
from specstream_mlx.terminal.commands import program
from specstream_mlx.train.batches import Batches, Item, replayed, step_starts
from specstream_mlx.train.data import read_split
from specstream_mlx.train.optimizer import warm_up_updates
from specstream_mlx.train.settings import default_alphas

_RATE, _EMBEDDING_RATE = 1.3e-3, 0.03
"""Those with which ``train_adapters`` lets streams learn on."""


@dataclass(frozen=True)
class Options:
    """Where everything is, and for how long."""

    work: Path = option(..., PATH, "Directory of the log, checkpoint and streams.")
    data: Path = option(..., FILE, "Answers to learn from.")
    held_out: Path = option(..., FILE, "Answers to measure on.")
    start: Path = option(..., PATH, "Streams to begin with, in PyTorch's format.")
    iters: int = option(60, integer(1), "Updates.")
    every: int = option(10, integer(1), "Updates between two checkpoints.")
    batch_size: int = option(16, integer(1), "Answers of an update.")
    seed: int = option(0, integer(0), "Seed of the batches.")
    rate: float = option(1.0, POSITIVE, "Factor of the learning rates.")


class Main:
    """The base's own stream over a batch, which all variants' streams see."""

    @torch.no_grad()
    def __init__(self, model: SpeculativeStreamingModel, tokens: Tensor) -> None:
        backbone, config = model.backbone, model.config
        hidden = backbone.embed(tokens)
        self._ropes = backbone.ropes(hidden, tokens.shape[1] + config.num_streams)
        self._rows: list[tuple[Tensor, Tensor]] = []

        def attend(queries: Tensor, keys: Tensor, values: Tensor, scoring: Any) -> Tensor:
            self._rows.append((keys, values))
            return causal_attention(queries, keys, values, scoring)

        for index in range(config.num_hidden_layers):
            if index == config.first_msa_layer:
                self._seed = hidden
            rope = self._ropes[index]
            own = rope and tuple(table[:, : tokens.shape[1]] for table in rope)
            hidden = backbone.layer(index, hidden, own, attend)
        self._rows = self._rows[config.first_msa_layer :]

    def trunk(
        self, model: SpeculativeStreamingModel, tokens: Tensor, positions: Tensor, valid: Tensor
    ) -> Trunk:
        """What ``model.trunk`` computes, without the main stream."""
        streams = model.streams.seed(gather_rows(self._seed, positions))
        for number, rows in enumerate(self._rows):
            index = model.config.first_msa_layer + number
            rope = self._ropes[index]
            streams, _ = model.stream_rows(index, rope, *rows, streams, None, positions)
        return Trunk(self._seed, self._seed, streams, [], [])


class Variant:
    """Streams that learn with one loss; ``+replay`` at the positions where drafts begin."""

    def __init__(self, name: str, model: SpeculativeStreamingModel) -> None:
        self.name, self.model = name, model
        self._loss, _, self._more = name.partition("+")
        weights = {n: p for n, p in model.named_parameters() if p.requires_grad}
        own = [p for n, p in weights.items() if n == "streams.embeddings"]
        others = [p for n, p in weights.items() if n != "streams.embeddings"]
        self._weights, self._rates = [*others, *own], (_RATE, _EMBEDDING_RATE)
        groups = [{"params": others}, {"params": own}]
        self.optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
        self._alphas = default_alphas(model.config.mode, model.config.num_streams)

    def update(self, items: list[Item], main: Main, factor: float) -> list[float]:
        """Learn from a batch; returns the streams' losses."""
        setattr(self.model, "trunk", partial(main.trunk, self.model))  # noqa: B010
        batch = collate(items)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            if self._more:
                hits = stream_hits(self.model, batch).numpy()
                batch = collate(list(map(replayed, items, hits)))
            loss = n_gram_loss(self.model, batch, self._alphas, self._loss)
        loss.total.backward()
        torch.nn.utils.clip_grad_norm_(self._weights, 1.0)
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.per_stream[1:].tolist()

    def measure(self, held_out: list[tuple[list[Item], Main]]) -> dict[str, Any]:
        """Tokens a step of a chain, by source, and how often each stream is right."""
        counted: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        right: list[Tensor] = []
        for items, main in held_out:
            setattr(self.model, "trunk", partial(main.trunk, self.model))  # noqa: B010
            with torch.autocast("cpu", dtype=torch.bfloat16):
                hits = stream_hits(self.model, collate(items))
            for item, own in zip(items, hits, strict=True):
                drafted = own[: item.completion_tokens - 1]
                right.append(drafted)
                for source in (item.source.partition(":")[0], "all"):
                    counted[source][0] += len(drafted)
                    counted[source][1] += len(step_starts(drafted.numpy()))
        chains = {name: tokens / max(steps, 1) for name, (tokens, steps) in counted.items()}
        return {"chain": chains, "right": torch.cat(right).float().mean(0).tolist()}


def main(
    *,
    variants: list[str] = option(..., TEXTS, "Loss, or loss+replay.", positional=True),
    options: Options,
) -> None:
    """Let copies of the same streams learn on with other losses."""
    base = demonstration.base_path()
    first = load_adapter(base, options.start, "bfloat16")
    tensors = first.stream_tensors()
    models = [first]
    for _ in variants[1:]:
        models.append(SpeculativeStreamingModel(first.base, first.config).eval())
        models[-1].load_state_dict(tensors, strict=False)
    trained = [Variant(*pair) for pair in zip(variants, models, strict=True)]
    vocab_size = first.backbone.config.vocab_size
    tokenizer = read_tokenizer(base, read_json(base / "config.json"))
    items, valid = (
        read_split(path, tokenizer, 1024, vocab_size, first.config.prompt_template)
        for path in (options.data, options.held_out)
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        held_out = [
            (part, Main(first, collate(part).tokens))
            for part in Batches(valid, options.batch_size, 0).epoch(0)
        ]
    step, checkpoint, log = 0, options.work / "checkpoint.pt", options.work / "log.jsonl"
    options.work.mkdir(parents=True, exist_ok=True)
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        step = state["step"]
        for variant in trained:
            own = state["variants"][variant.name]
            variant.model.load_state_dict(own["streams"], strict=False)
            variant.optimizer.load_state_dict(own["optimizer"])

    def measure(measured: list[Variant]) -> None:
        found = {variant.name: variant.measure(held_out) for variant in measured}
        append(log, json.dumps({"step": step, "held_out": found}) + "\n")

    def keep() -> None:
        own = {
            v.name: {"streams": v.model.stream_tensors(), "optimizer": v.optimizer.state_dict()}
            for v in trained
        }
        torch.save({"step": step, "variants": own}, checkpoint)
        streams = {name: value["streams"] for name, value in own.items()}
        torch.save(streams, options.work / f"streams-{step}.pt")

    if not log.exists():
        measure(trained[:1])
    for drawn in Batches(items, options.batch_size, options.seed).from_step(step):
        if step == options.iters:
            break
        began = time.process_time()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            shared = Main(first, collate(drawn).tokens)
        seconds = {"main": time.process_time() - began}
        done = step / options.iters
        factor = min(1.0, (step + 1) / warm_up_updates(options.iters)) * (1 - done) * options.rate
        losses = {}
        for variant in trained:
            began = time.process_time()
            losses[variant.name] = variant.update(drawn, shared, factor)
            seconds[variant.name] = time.process_time() - began
        step += 1
        append(log, json.dumps({"step": step, "losses": losses, "seconds": seconds}) + "\n")
        if step % options.every == 0 or step == options.iters:
            keep()
    measure(trained)


if __name__ == "__main__":
    program(main)()
