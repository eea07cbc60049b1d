"""The trainer of streams, pruner and (in shared mode) LoRA: arXiv 2402.11131, sections 3 and 4.

    python -m specstream_mlx.convert.pytorch.trainer --model BASE --data train.jsonl \\
        --mode shared --output OUT --epochs 2

In lossless mode the LoRA of ``init_adapter`` is part of the base, and stays as it is. It may have
been trained before with ``--lora-alone``.

It writes the adapter directory ``OUT/adapter`` (see ``adapter_files``), the log ``OUT/log.jsonl``
and the checkpoint ``OUT/checkpoint.pt``, from which ``--resume`` continues. Without it an output
directory that holds an earlier run is refused.
"""

import sys
from pathlib import Path
from typing import Any

from specstream_mlx.errors import VOCABULARY, UserError, install

try:
    import peft  # noqa: F401
    import torch
    from transformers import PreTrainedModel
except ModuleNotFoundError as error:
    if __name__ != "__main__":
        raise
    print(f"error: training needs {error.name}: {install('torch')}", file=sys.stderr)
    sys.exit(2)
from torch import Tensor

from specstream_mlx.adapters.description import describe
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.notes import note
from specstream_mlx.terminal.progress import track
from specstream_mlx.train.batches import Item, most_frequent, replayed
from specstream_mlx.train.settings import default_alphas

from .adapter_files import check_adapter_replaceable, write_adapter
from .backbone import Backbone
from .load import base_fingerprint, load_adapter, load_base, mount_lora, put_lora
from .losses import Batch, count_correct, head_cross_entropy, n_gram_loss, stream_hits
from .reference import SpeculativeStreamingModel
from .training_run import (
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
from .training_settings import TorchTrainSettings

_RATE_OF_LORA_ALONE = 3e-3  # of rank 4; 1e-3 suits rank 16


def build_model(settings: TorchTrainSettings) -> SpeculativeStreamingModel:
    """Build the model that a run begins with: ``init_adapter``'s weights, and others drawn."""
    start = settings.init_adapter
    initial = None if start is None else describe(start).stream_config
    if start is not None and initial is not None:
        drops = (VOCABULARY,) if settings.draft_vocabulary else ()
        config = settings.continued(initial)
        return load_adapter(settings.model, start, settings.dtype, config, drops)
    base = load_base(settings.model, settings.dtype)
    config = settings.stream_config(
        hidden_size=base.config.hidden_size,
        num_hidden_layers=base.config.num_hidden_layers,
        base_model=str(settings.model),
        base_fingerprint=base_fingerprint(settings.model),
    )
    if start is not None:
        base = mount_lora(base, start)
    elif settings.mode == "shared":
        base = put_lora(base, settings)
    return SpeculativeStreamingModel(base, config)


def train(settings: TorchTrainSettings, on_step: OnStep | None = None) -> Path:
    """Train an adapter and write it to the directory that is returned.

    Raises:
        UserError: a setting is out of range or does not fit the base, a file cannot be read or
            written, or the output holds an earlier run that is not resumed.
    """
    settings.check()
    adapter = settings.output / "adapter"
    check_adapter_replaceable(adapter)
    begin(settings, adapter)
    trained = _train_lora if settings.lora_alone else _train_streams
    write_adapter(trained(settings, on_step), adapter)
    return adapter


def _train_streams(settings: TorchTrainSettings, on_step: OnStep | None) -> torch.nn.Module:
    model, device = build_model(settings), training_device()
    config, vocab_size = model.config, model.backbone.config.vocab_size
    settings.check_vocabulary(vocab_size)
    items, held_out = load_items(settings, config.prompt_template, vocab_size)
    if settings.draft_vocabulary:
        frequent = most_frequent(items, settings.draft_vocabulary, vocab_size)
        model.streams.vocabulary.copy_(torch.tensor(frequent))
    model.to(device)
    weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not weights:
        raise UserError("nothing to train: expected stream embeddings, adapters, a pruner or LoRA")
    peaks = settings.learning_rates(config.hidden_size)
    # The pruner must not touch the rest, so its gradients are clipped apart.
    pruner = [p for name, p in weights.items() if name.startswith("pruner.")]
    alphas = default_alphas(config.mode, config.num_streams)

    def loss_of(drawn: list[Item], batch: Batch) -> tuple[Tensor, dict[str, Any]]:
        if settings.replay:
            hits = stream_hits(model, batch).cpu().numpy()
            batch = collate(list(map(replayed, drawn, hits)), device)
        loss = n_gram_loss(model, batch, alphas, settings.loss)
        return loss.total, {"per_stream": loss.per_stream.tolist(), "pruner": loss.pruner.item()}

    rates: dict[float, list[str]] = {}
    for name in weights:
        rate = peaks.lora if name.startswith("base.") else peaks.streams
        rate = peaks.embeddings if name == "streams.embeddings" else rate
        rates.setdefault(rate, []).append(name)
    trained = TrainedParameters(weights, rates, peaks.streams, pruner)
    step = run_steps(settings, items, trained, loss_of, on_step)
    if held_out:
        with autocast(settings, device):
            accuracy = evaluate(model, held_out, settings.batch_size)
        log_held_out(settings, step, accuracy)
        streams = ", ".join(f"{j}: {share:.1%}" for j, share in enumerate(accuracy["streams"], 1))
        note(
            f"held-out top-1: main {accuracy['main']:.1%}; streams {streams}; "
            f"pruner {accuracy['pruner']:.1%}; chain {accuracy['chain']:.2f} tokens"
        )
    return model


def _train_lora(settings: TorchTrainSettings, on_step: OnStep | None) -> torch.nn.Module:
    device = training_device()
    tuned = put_lora(load_base(settings.model, settings.dtype), settings).to(device)
    base: Any = tuned.get_base_model()
    backbone = Backbone(base)  # products are cast once
    items, held_out = load_items(settings, settings.prompt_template, base.config.vocab_size)

    def loss_of(drawn: list[Item], batch: Batch) -> tuple[Tensor, dict[str, Any]]:
        (rows, targets), head = answer_rows(base, batch), backbone.head
        losses = head_cross_entropy(rows, head.weight, targets, head.bias, backbone.softcap)
        return losses.mean(), {}

    weights = {name: p for name, p in tuned.named_parameters() if p.requires_grad}
    rate = settings.learning_rate or _RATE_OF_LORA_ALONE
    step = run_steps(
        settings, items, TrainedParameters(weights, {rate: list(weights)}, rate), loss_of, on_step
    )
    if held_out:
        with autocast(settings, device), torch.no_grad():
            right = []
            for start in range(0, len(held_out), settings.batch_size):
                batch = collate(held_out[start : start + settings.batch_size], device)
                rows, targets = answer_rows(base, batch)
                right.append(backbone.logits(rows).argmax(-1) == targets)
            share = torch.cat(right).float().mean().item()
        log_held_out(settings, step, {"main": share})
        note(f"held-out top-1: {share:.1%}")
    return tuned


def answer_rows(causal_lm: PreTrainedModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """The hidden states (n, h) before each token of the answers, and these tokens (n,)."""
    decoder = causal_lm.get_decoder()
    hidden = decoder(input_ids=batch.tokens, use_cache=False).last_hidden_state[:, :-1]
    place = torch.arange(1, batch.tokens.shape[1], device=batch.tokens.device)
    within = (place >= batch.stream_from[:, None]) & (place < batch.lengths[:, None])
    return hidden[within], batch.tokens[:, 1:][within]


def evaluate(
    model: SpeculativeStreamingModel, items: list[Item], batch_size: int
) -> dict[str, Any]:
    """Measure how often main stream, streams and pruner predict the data's next token.

    ``chain`` is what a chain draft would gain per step if the text were the data's; ``by_source``
    has the same of each source, named up to a colon, where there are several.
    """
    device = next(model.parameters()).device
    by_source: dict[str, list[Item]] = {}
    for item in sorted(items, key=lambda item: len(item.tokens)):
        by_source.setdefault(item.source.partition(":")[0], []).append(item)
    batches = [
        (source, of_source[start : start + batch_size])
        for source, of_source in by_source.items()
        for start in range(0, len(of_source), batch_size)
    ]
    zeros = torch.zeros((), dtype=torch.int64)
    totals = dict.fromkeys(by_source, (zeros, zeros))
    for source, batch in track(batches, "held-out text"):
        (correct, counts), (hits, of) = totals[source], count_correct(model, collate(batch, device))
        totals[source] = correct + hits, counts + of
    accuracy = _shares(*(torch.stack(parts).sum(0) for parts in zip(*totals.values(), strict=True)))
    if len(totals) > 1:
        accuracy["by_source"] = {source: _shares(*counted) for source, counted in totals.items()}
    return accuracy


def _shares(correct: Tensor, counts: Tensor) -> dict[str, Any]:
    """What ``evaluate`` returns, of the counts of ``count_correct``."""
    main, *streams, pruner, chain = (correct / counts.clamp(min=1)).tolist()
    return {"main": main, "streams": streams, "pruner": pruner, "chain": chain}


def main(settings: TorchTrainSettings) -> None:
    """Train streams, pruner and (in shared mode) LoRA on a language model."""
    print(train(settings))


if __name__ == "__main__":
    program(main, hidden=True)()
