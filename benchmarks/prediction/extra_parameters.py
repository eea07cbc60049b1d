"""Parameters that drafting adds to a model: streams, Medusa's heads, EAGLE's layer.

    python -m benchmarks.prediction.extra_parameters

Counted from the sizes in each model's ``config.json``, for gamma = 4 streams or heads. LoRA is left
out: shared mode needs it, and so would the application without drafts.

- ``papers``: Speculative Streaming in shared mode, embeddings and the pruner of rank 8 (arXiv
  2402.11131: 20 x hidden_size).
- ``shared``: as the trainers make them, with a linear seed and a conditioned head.
- ``lossless``: the same, with an adapter in each MSA layer.
- Medusa (arXiv 2401.10774): for each head a residual block h x h and an LM head of its own.
- EAGLE (arXiv 2401.15077): a map of 2h to h and one decoder layer; head and embedding are shared.
"""

from math import prod
from pathlib import Path
from typing import Any

from specstream_mlx.terminal.commands import program
from specstream_mlx.train.stream_settings import (
    ADAPTER_RANK,
    HEAD_RANK,
    INIT_RANK,
    StreamSettings,
)

from ..report import OUTPUT, table, write_report
from .metal_cost import Shape
from .simulation import MODELS, MSA_LAYERS

STREAMS = 4


def stream_parameters(model: Shape, **settings: Any) -> int:
    """Parameters of streams and pruner, as the trainers make them with these settings."""
    config = StreamSettings(
        num_streams=STREAMS, num_msa_layers=MSA_LAYERS, **settings
    ).stream_config(
        hidden_size=model.hidden,
        num_hidden_layers=model.layers,
        base_model=model.name,
        base_fingerprint="",
    )
    return sum(prod(shape) for shape in config.tensor_shapes().values())


def medusa_parameters(model: Shape) -> int:
    """Parameters of as many Medusa heads as there are streams."""
    return STREAMS * (model.hidden * (model.hidden + 1) + model.hidden * model.vocab)


def eagle_parameters(model: Shape) -> int:
    """Parameters of EAGLE's draft layer; it leaves out the layer's first norm."""
    layer = sum(inputs * outputs for inputs, outputs in model.products) + model.hidden
    return 2 * model.hidden * model.hidden + model.hidden + layer


COLUMNS = {
    "model": "{model}",
    "papers": "{papers:,}",
    "shared": "{shared:,}",
    "lossless": "{lossless:,}",
    "EAGLE": "{eagle:,}",
    "Medusa": "{medusa:,}",
}


def main(
    output: Path = OUTPUT,
) -> None:
    """Count the parameters that drafting adds to Llamas of 1, 3 and 8 B."""
    rows = [
        {
            "model": model.name,
            "papers": stream_parameters(
                model, mode="shared", stream_init="identity", stream_head="plain"
            ),
            "shared": stream_parameters(model, mode="shared"),
            "lossless": stream_parameters(model, mode="lossless"),
            "eagle": eagle_parameters(model),
            "medusa": medusa_parameters(model),
        }
        for model in MODELS
    ]
    facts = (
        f"{STREAMS} streams in {MSA_LAYERS} MSA layers, pruner of rank 8; seed, adapters and head "
        f"of ranks {INIT_RANK}, {ADAPTER_RANK} and {HEAD_RANK}."
    )
    lines = [facts, "", *table(COLUMNS, rows)]
    print(write_report(output, "extra-parameters", {"facts": facts, "rows": rows}, lines))


if __name__ == "__main__":
    program(main)()
