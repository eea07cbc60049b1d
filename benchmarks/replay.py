"""Replay of an adapter's drafts on text that its base wrote: exact, without decoding it.

    python -m benchmarks.replay --model BASE --adapter-path DIR --data answers.jsonl

Every position sees the text's own tokens before it, all texts are computed in a few calls, and the
steps of a greedy chain draft are counted through each of them. On the base's greedy answers that is
what decoding gives. The printed JSON has the accepted length (tokens per step), how often the main
stream and each stream are right, and the loss.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specstream_mlx.adapters.description import describe
from specstream_mlx.errors import UserError
from specstream_mlx.loading import load
from specstream_mlx.options import PATH, integer, option
from specstream_mlx.terminal.commands import program
from specstream_mlx.train.data import read_split
from specstream_mlx.train.forward import StreamForward
from specstream_mlx.train.items import Batches
from specstream_mlx.train.settings import TrainSettings
from specstream_mlx.train.start import start_of
from specstream_mlx.train.validation import validate

_AT_ONCE = 16
"""Texts of a call."""


def replay(model: Path, adapter: Path, data: Path, max_seq_length: int) -> dict[str, Any]:
    """Replay the texts of a file."""
    config = describe(adapter).stream_config
    if config is None:
        raise UserError(f"{adapter} has no streams, expected an adapter that drafts")
    settings = TrainSettings(
        model=str(model),
        mode=config.mode,
        stream_head=config.stream_head,
        init_adapter=adapter,
    )
    base, tokenizer = load(model)
    start = start_of(settings, base, tokenizer)
    start.model.eval()
    items = read_split(
        data, tokenizer, max_seq_length, base.config["vocab_size"], config.prompt_template
    ).items
    forward = StreamForward(start.model, base.config, start.streams)
    batches = Batches(items, _AT_ONCE, seed=0).epoch(0)
    found = validate(forward, batches, settings.alphas(config.num_streams), settings.segment)
    return asdict(found) | {"texts": len(items)}


def main(
    model: Path = option(..., PATH, "Directory of the base, in MLX format."),
    adapter_path: Path = option(..., PATH, "Directory of an adapter with streams."),
    data: Path = option(..., PATH, "JSONL of prompts and the base's answers."),
    max_seq_length: int = option(512, integer(1), "Longer texts are left out."),
) -> None:
    """Print what an adapter's drafts would be on text that its base wrote."""
    print(json.dumps(replay(model, adapter_path, data, max_seq_length)))


if __name__ == "__main__":
    program(main)()
