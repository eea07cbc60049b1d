"""The trainer of draft heads on a frozen base: Medusa, Hydra, EAGLE, EAGLE-3.

    python -m benchmarks.rivals.train_heads --kind medusa --model BASE --data answers.jsonl \\
        --output OUT --epochs 1

For comparisons on equal terms: the same answers of the base, batches, schedule and optimizer as
those of the trainer of streams, which checkpoints and ``--resume`` are of too. It writes
``OUT/head`` in the published layout. Medusa's and Hydra's heads learn the token that comes at their
depth, or the base's distribution of it; EAGLE's layer learns the base's next hidden state, and
besides the distribution that follows from it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from specstream_mlx.convert.pytorch.attention import gather_rows, softcapped, stream_positions
from specstream_mlx.convert.pytorch.backbone import Backbone
from specstream_mlx.convert.pytorch.load import load_base
from specstream_mlx.convert.pytorch.losses import Batch, targets_of
from specstream_mlx.convert.pytorch.training_run import (
    OnStep,
    TrainedParameters,
    autocast,
    begin,
    collate,
    load_items,
    log_held_out,
    run_steps,
    training_device,
)
from specstream_mlx.convert.pytorch.training_settings import RunSettings
from torch import Tensor, nn

from specstream_mlx import UserError
from specstream_mlx.files import staged_directory
from specstream_mlx.options import (
    FLAG,
    POSITIVE,
    TEXT,
    check_options,
    choice,
    integer,
    number,
    option,
)
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.notes import note
from specstream_mlx.train.batches import Item

from .head_networks import Eagle, Eagle3, Hydra, Medusa, layer_config

KINDS = "medusa", "hydra", "eagle", "eagle3"
_RATES = {"medusa": 3e-3, "hydra": 2e-3, "eagle": 3e-3, "eagle3": 2e-3}  # benchmarks/NOTES.md
_DECAYS = {"medusa": 0.8, "hydra": 1.0, "eagle": 1.0, "eagle3": 0.8}  # of depths' weights


@dataclass
class HeadSettings(RunSettings):
    """The settings of a run: which head, and what it learns from.

    Where a default is ``None``, it is that of the method's own recipe, but for the learning rate:
    recipes are of bases fifty times as large, and a base of 135 M parameters wants higher ones.
    """

    kind: str = option("medusa", choice(*KINDS), "Method: medusa, hydra, eagle or eagle3.")
    num_heads: int = option(
        4, integer(1, 16), "Heads; of eagle3 depths, of eagle those that are measured alone."
    )
    own_lm_heads: bool = option(
        False,
        FLAG,
        "Whether each of medusa's heads has an LM head of its own, which starts as the base's.",
        "--own-lm-heads/--no-own-lm-heads",
    )
    teacher: str | None = option(
        None,
        choice("text", "base"),
        "What the tokens' loss compares with: the completions, or the base's probabilities. "
        "Default: text for medusa, base for the others.",
    )
    token_loss: float = option(
        0.1, number(0), "Weight of the tokens' loss; that of eagle's hidden states is 1."
    )
    learning_rate: float | None = option(
        None, POSITIVE, "Peak of the learning rate. Default: 3e-3 medusa and eagle, 2e-3 others."
    )
    prompt_template: str | None = option(
        None, TEXT, "Text around every prompt, with {text} in its place."
    )

    @property
    def learns_from_base(self) -> bool:
        """Whether the tokens' loss compares with the base's probabilities."""
        return (self.teacher or ("text" if self.kind == "medusa" else "base")) == "base"


class FrozenBase:
    """A frozen base, and its LM head, ``shared``."""

    def __init__(self, causal_lm: Any) -> None:
        causal_lm.requires_grad_(False)
        self.backbone, self._decoder = Backbone(causal_lm), causal_lm.get_decoder()
        self.config = causal_lm.config
        self.shared = self.backbone.head.weight, self.backbone.head.bias

    @torch.no_grad()
    def hidden(self, tokens: Tensor, boundaries: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Hidden states (B, T, n * h) at boundaries, and (B, T, h) after the final norm."""
        output = self._decoder(
            input_ids=tokens, use_cache=False, output_hidden_states=bool(boundaries)
        )
        inner = [output.hidden_states[number] for number in boundaries]
        last = output.last_hidden_state
        return (torch.cat(inner, -1) if inner else last), last

    def logits(self, rows: Tensor, head: tuple[Tensor, Tensor | None]) -> Tensor:
        return softcapped(F.linear(rows, *head).float(), self.backbone.softcap)


class _Guessed:
    """What a head guesses on a batch: ``features`` (B, C, D, h), which the LM heads read.

    The targets are ``tokens`` (B, C, 1 + D) from the root on, and ``there``, whether there is such
    a token; ``last`` (B, T, h) is the base's own.
    """

    def __init__(self, network: nn.Module, frozen: FrozenBase, batch: Batch) -> None:
        states, self.last = frozen.hidden(batch.tokens, getattr(network, "boundaries", ()))
        ends = batch.lengths - 1
        self.positions, self.valid = stream_positions(batch.stream_from, ends)
        embeddings = frozen.backbone.embedding(batch.tokens)
        self.features = network(states, embeddings, self.positions)
        depth = self.features.shape[2]
        self.tokens, self.there = targets_of(batch, self.positions, self.valid, 1 + depth)
        own_heads = [(head.weight, head.bias) for head in network.lm_heads]
        self.heads = own_heads or [frozen.shared] * depth
        self._ends = ends[:, None]

    def following(self, level: int) -> Tensor:
        """(B, C, h) the base's hidden states that say the distribution at a depth."""
        return gather_rows(self.last, torch.minimum(self.positions + 1 + level, self._ends))


def head_loss(
    network: nn.Module, frozen: FrozenBase, batch: Batch, settings: HeadSettings
) -> tuple[Tensor, list[float]]:
    """The loss of a batch, and each depth's cross entropy in nats."""
    guessed = _Guessed(network, frozen, batch)
    decay = _DECAYS[settings.kind]
    total, per_depth = torch.zeros((), device=guessed.last.device), []
    for level, rows in enumerate(guessed.features.unbind(2)):
        scored = guessed.there[..., 1 + level]
        goal = guessed.tokens[..., 1 + level][scored]
        if settings.learns_from_base:
            goal = frozen.logits(guessed.following(level)[scored], frozen.shared).softmax(-1)
        losses = F.cross_entropy(
            frozen.logits(rows[scored], guessed.heads[level]), goal, reduction="sum"
        )
        loss = losses / scored.sum().clamp(min=1)
        per_depth.append(loss.item())
        total = total + decay ** (1 + level) * loss
    if isinstance(network, Eagle):
        follows = guessed.there[..., 1]
        features, true = guessed.features[:, :, 0][follows], guessed.following(0)[follows]
        total = settings.token_loss * total + F.smooth_l1_loss(features.float(), true.float())
    return total, per_depth


@torch.no_grad()
def evaluate(
    network: nn.Module, frozen: FrozenBase, items: Sequence[Item], batch_size: int
) -> dict[str, Any]:
    """Measure how often top-1 guesses are the data's tokens; each sees the true ones before it.

    ``chain``: tokens that a chain draft would gain per step if the text were the data's.
    """
    correct: Any = 0
    counts: Any = 0
    for start in range(0, len(items), batch_size):
        batch = collate(list(items[start : start + batch_size]), frozen.shared[0].device)
        guessed = _Guessed(network, frozen, batch)
        pairs = zip(guessed.features.unbind(2), guessed.heads, strict=True)
        best = torch.stack([F.linear(rows, *head).argmax(-1) for rows, head in pairs], -1)
        hits = (best == guessed.tokens[..., 1:]) & guessed.there[..., 1:]
        chain = hits.long().cumprod(-1).sum() + guessed.valid.sum()
        correct = correct + torch.cat((hits.sum((0, 1)), chain[None]))
        counts = counts + torch.cat((guessed.there[..., 1:].sum((0, 1)), guessed.valid.sum()[None]))
    *depths, chain = (correct / counts.clamp(min=1)).tolist()
    return {"depths": depths, "chain": chain}


def build_head(settings: HeadSettings, frozen: FrozenBase) -> nn.Module:
    config, depth = frozen.config, settings.num_heads
    if settings.kind == "medusa":
        return Medusa(
            config.hidden_size, depth, frozen.shared[0] if settings.own_lm_heads else None
        )
    if settings.kind == "hydra":
        return Hydra(config.hidden_size, depth)
    if settings.kind == "eagle":
        return Eagle(layer_config(config), depth)
    count = config.num_hidden_layers
    if count < 3:
        raise UserError(f"eagle3 reads three layers of the base, which has {count}")
    boundaries, norm = (2, count // 2, count - 3), frozen.backbone.norm_weight
    return Eagle3(layer_config(config), depth, boundaries, norm, frozen.shared[0])


def train_head(settings: HeadSettings, on_step: OnStep | None = None) -> Path:
    """Train a draft head and write it to ``settings.output / "head"``."""
    check_options(settings)
    settings.check_run()
    target = settings.output / "head"
    begin(settings, target)
    device = training_device()
    base = load_base(settings.model, settings.dtype).to(device)
    items, held_out = load_items(settings, settings.prompt_template, base.config.vocab_size)
    frozen = FrozenBase(base)
    network = build_head(settings, frozen).to(device)
    weights, peak = dict(network.named_parameters()), settings.learning_rate
    trained = TrainedParameters(
        weights, {peak or _RATES[settings.kind]: list(weights)}, peak or 0.0
    )

    def loss_of(drawn: list[Item], batch: Batch) -> tuple[Tensor, dict[str, Any]]:
        loss, per_depth = head_loss(network, frozen, batch, settings)
        return loss, {"per_depth": per_depth}

    step = run_steps(settings, items, trained, loss_of, on_step)
    if held_out:
        with autocast(settings, device):
            accuracy = evaluate(network.eval(), frozen, held_out, settings.batch_size)
        log_held_out(settings, step, accuracy)
        depths = ", ".join(f"{j}: {share:.1%}" for j, share in enumerate(accuracy["depths"], 1))
        note(f"held-out top-1: {depths}; chain {accuracy['chain']:.2f} tokens")
    write_head(network, str(settings.model), target)
    return target


def write_head(network: nn.Module, base_model: str, directory: Path) -> None:
    """Write a head as published ones are."""
    named = network.named_parameters()
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in named}
    config: dict[str, Any] = {"base_model_name_or_path": base_model}
    if isinstance(network, Eagle | Eagle3):
        names = ["hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"]
        names += ["head_dim", "vocab_size", "rms_norm_eps", "max_position_embeddings"]
        config |= {name: getattr(network.config, name) for name in names}
        config["rope_theta"] = network.config.rope_parameters["rope_theta"]
    if isinstance(network, Eagle3):
        config["eagle_aux_hidden_state_layer_ids"] = list(network.boundaries)
    with staged_directory(directory, replace=True) as scratch:
        (scratch / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        save_file(tensors, scratch / "model.safetensors", {"format": "pt"})


def main(settings: HeadSettings) -> None:
    """Train another method's draft head on a language model."""
    print(train_head(settings))


if __name__ == "__main__":
    program(main, hidden=True)()
