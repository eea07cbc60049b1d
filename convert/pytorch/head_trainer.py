"""The trainer of other methods' draft heads on a frozen base: Medusa, Hydra, EAGLE, EAGLE-3.

    python -m specstream_mlx.convert.pytorch.head_trainer --kind medusa --model BASE \\
        --data answers.jsonl --output OUT --epochs 1

It is for comparisons: the same answers of the base, batches, schedule and optimizer as those of
``trainer``. It writes ``OUT/head`` in the published layout, which ``--draft-head`` takes, the log
``OUT/log.jsonl`` and the checkpoint ``OUT/checkpoint.pt``, from which ``--resume`` continues. The
base's hidden states are computed once; with ``--hidden-states`` for several runs.

For the demonstration model, beside streams that start from nothing (``stream_variants``), of each
``KIND`` with the same batches of 8 answers:

    python -m specstream_mlx.convert.pytorch.head_trainer --kind KIND --output runs/heads/KIND \\
        --model runs/adapters/expanded --data convert/demo_model/text/answers/train.jsonl \\
        --valid-data convert/demo_model/text/answers/valid.jsonl --iters 100 --batch-size 8 \\
        --max-seq-length 512 --draft-vocabulary 11264 --hidden-states runs/heads/states
    python -m benchmarks.stream_variants --model runs/adapters/expanded \\
        --data convert/demo_model/text/answers/train.jsonl --work runs/heads/streams --iters 100 \\
        --valid convert/demo_model/text/answers/valid.jsonl streams

The last line of ``log.jsonl`` has what is right by depth and the tokens a chain.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .required_packages import import_or_exit

if __name__ == "__main__":
    import_or_exit()
import torch
from torch import Tensor, nn

from specstream_mlx.config import UserError
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.notes import note
from specstream_mlx.terminal.progress import track
from specstream_mlx.train.items import Item, most_frequent

from .draft_heads import Eagle, Eagle3, Hydra, Medusa, layer_config
from .frozen_base import FrozenBase
from .head_files import check_head_replaceable, write_head
from .head_losses import DraftTokens, count_right, head_loss
from .head_settings import EAGLE3, HYDRA, MEDUSA, HeadSettings
from .kept_hidden import KeptHidden
from .load import base_fingerprint, load_base
from .losses import Batch
from .training_data import collate, load_items
from .training_run import (
    OnStep,
    Trained,
    autocast,
    begin,
    computes_in_bf16,
    log_held_out,
    run_steps,
    training_device,
)


def build_head(settings: HeadSettings, drafted: DraftTokens) -> nn.Module:
    """Build the untrained head of a run.

    Raises:
        UserError: the base has too few layers.
    """
    config, depth, layers = drafted.base.config, settings.num_heads, settings.num_layers
    if settings.kind == MEDUSA:
        lm_head = drafted.shared[0] if settings.own_lm_heads else None
        return Medusa(config.hidden_size, depth, layers, lm_head)
    if settings.kind == HYDRA:
        return Hydra(config.hidden_size, depth, layers)
    layer = layer_config(config, settings.intermediate_size)
    if settings.kind == EAGLE3:
        count = config.num_hidden_layers
        if count < 3:
            raise UserError(f"eagle3 reads three layers of the base, which has {count}")
        boundaries = 2, count // 2, count - 3
        return Eagle3(layer, depth, boundaries, drafted.base.norm, drafted.shared[0])
    return Eagle(layer, depth)


def train_head(settings: HeadSettings, on_step: OnStep | None = None) -> Path:
    """Train a draft head and write it.

    Args:
        settings: the run's settings.
        on_step: see ``OnStep``.

    Returns:
        The head's directory, ``settings.output / "head"``.

    Raises:
        UserError: a setting is out of range or does not fit the base, a file cannot be read or
            written, or the output holds an earlier run that is not resumed.
    """
    settings.check()
    target = settings.output / "head"
    check_head_replaceable(target)
    begin(settings, target)
    device = training_device()
    base = FrozenBase(load_base(settings.model, settings.dtype).to(device))
    items, held_out = load_items(settings, settings.prompt_template, base.vocab_size)
    drafted = DraftTokens(base, _vocabulary(settings, items, base.vocab_size, device))
    network = build_head(settings, drafted).to(device)
    weights = dict(network.named_parameters())
    trained = Trained(weights, {settings.peak: list(weights)}, settings.peak)
    kept = _kept_hidden(settings, base, getattr(network, "boundaries", ()))
    levels = settings.weights(settings.num_heads)

    def loss_of(drawn: list[Item], batch: Batch) -> tuple[Tensor, dict[str, Any]]:
        loss, per_depth = head_loss(
            network,
            drafted,
            batch,
            kept.of(drawn, batch),
            levels,
            learns_from_base=settings.learns_from_base,
            token_loss=settings.token_loss,
        )
        return loss, {"per_depth": per_depth}

    step = run_steps(settings, items, trained, loss_of, on_step)
    if held_out:
        with autocast(settings, device):
            accuracy = evaluate_head(network.eval(), drafted, held_out, kept, settings.batch_size)
        parameters = sum(weight.numel() for weight in weights.values())
        log_held_out(settings, step, accuracy | {"parameters": parameters})
        depths = ", ".join(f"{j}: {share:.1%}" for j, share in enumerate(accuracy["depths"], 1))
        note(f"held-out top-1: {depths}; chain {accuracy['chain']:.2f} tokens")
    write_head(network, drafted.vocabulary, str(settings.model), target)
    return target


def evaluate_head(
    network: nn.Module,
    drafted: DraftTokens,
    items: Sequence[Item],
    kept: KeptHidden,
    batch_size: int,
) -> dict[str, Any]:
    """Measure how often a head's guesses are the data's tokens, as ``trainer.evaluate`` does.

    Returns:
        ``depths``: shares of right top-1 guesses; and ``chain``: tokens that a chain draft would
        gain per step if the text were the data's.
    """
    correct: Any = 0
    counts: Any = 0
    ordered = sorted(items, key=lambda item: len(item.tokens))
    for start in track(range(0, len(ordered), batch_size), "held-out text"):
        drawn = ordered[start : start + batch_size]
        batch = collate(drawn, drafted.base.head.weight.device)
        hits, of = count_right(network, drafted, batch, kept.of(drawn, batch))
        correct, counts = correct + hits, counts + of
    *depths, chain = (correct / counts.clamp(min=1)).tolist()
    return {"depths": depths, "chain": chain}


def _kept_hidden(settings: HeadSettings, base: FrozenBase, boundaries: Sequence[int]) -> KeptHidden:
    """The base's hidden states, in the dtype that a run computes in."""
    bf16 = computes_in_bf16(settings, training_device())
    return KeptHidden(
        partial(base.hidden, boundaries=boundaries),
        dtype=torch.bfloat16 if bf16 else torch.float32,
        directory=settings.hidden_states,
        model=f"{settings.model.resolve()} {base_fingerprint(settings.model)} {boundaries}",
    )


def _vocabulary(
    settings: HeadSettings, items: Sequence[Item], vocab_size: int, device: torch.device
) -> Tensor | None:
    """The tokens that are drafted; ``None``: all.

    Raises:
        UserError: the base has fewer.
    """
    count = settings.draft_vocabulary
    if count > vocab_size:
        raise UserError(f"draft_vocabulary is {count}, expected at most the base's {vocab_size}")
    return torch.tensor(most_frequent(items, count, vocab_size), device=device) if count else None


def main(settings: HeadSettings) -> None:
    """Train another method's draft head on a language model."""
    print(train_head(settings))


if __name__ == "__main__":
    program(main, hidden=True)()
