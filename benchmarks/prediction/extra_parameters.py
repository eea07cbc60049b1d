"""What drafting adds to a model: parameters of streams, of Medusa's heads and of EAGLE's layer.

    python -m benchmarks.prediction.extra_parameters

Counted from the sizes in each model's ``config.json``, for gamma = 4 streams or heads. LoRA is left
out: shared mode needs it, and so would the application without drafts.

- ``papers``: Speculative Streaming in shared mode, embeddings and the pruner of rank 8 (arXiv
  2402.11131: 20 x hidden_size).
- ``lossless``: the same and a stream adapter of rank 8 in each MSA layer.
- ``conditioned head``: its rank times 3 x hidden_size, and biases; it comes on top of either.
- Medusa (arXiv 2401.10774): for each head a residual block h x h and an LM head of its own.
- EAGLE (arXiv 2401.15077): a map of 2h to h and one decoder layer; head and embedding are shared.
"""

import typer

from specstream_mlx.cli.errors import one_line_errors
from specstream_mlx.config import StreamConfig

from ..report import RESULTS, Output, table, write_report
from .metal_cost import Shape
from .simulation import HEAD_RANK, MODELS, MSA_LAYERS

STREAMS = 4


def stream_parameters(model: Shape, mode: str, head_rank: int = 0) -> int:
    """Parameters of streams and pruner."""
    lossless = mode == "lossless"
    config = StreamConfig(
        mode=mode,
        num_msa_layers=MSA_LAYERS,
        hidden_size=model.hidden,
        num_hidden_layers=model.layers,
        num_streams=STREAMS,
        stream_mlp="adapter" if lossless else "base",
        stream_adapter_rank=8 if lossless else 0,
        stream_head="conditioned" if head_rank else "plain",
        stream_head_rank=head_rank,
    )
    total = 0
    for shape in config.tensor_shapes().values():
        count = 1
        for size in shape:
            count *= size
        total += count
    return total


def medusa_parameters(model: Shape) -> int:
    """Parameters of as many Medusa heads as there are streams."""
    return STREAMS * (model.hidden * (model.hidden + 1) + model.hidden * model.vocab)


def eagle_parameters(model: Shape) -> int:
    """Parameters of EAGLE's draft layer; it leaves out the layer's first norm."""
    layer = sum(inputs * outputs for inputs, outputs in model.products) + model.hidden
    return 2 * model.hidden * model.hidden + model.hidden + layer


COLUMNS = {
    "model": "{model}",
    "papers": "{shared:,}",
    "lossless": "{lossless:,}",
    f"conditioned head, rank {HEAD_RANK}": "{head:,}",
    "lossless with it": "{conditioned:,}",
    "EAGLE": "{eagle:,}",
    "Medusa": "{medusa:,}",
}


@one_line_errors
def main(
    output: Output = RESULTS,
) -> None:
    """Count the parameters that drafting adds to Llamas of 1, 3 and 8 B."""
    rows = []
    for model in MODELS:
        lossless = stream_parameters(model, "lossless")
        conditioned = stream_parameters(model, "lossless", HEAD_RANK)
        rows.append(
            {
                "model": model.name,
                "shared": stream_parameters(model, "shared"),
                "lossless": lossless,
                "head": conditioned - lossless,
                "conditioned": conditioned,
                "eagle": eagle_parameters(model),
                "medusa": medusa_parameters(model),
            }
        )
    facts = f"{STREAMS} streams in {MSA_LAYERS} MSA layers, pruner and stream adapters of rank 8."
    lines = [facts, "", *table(COLUMNS, rows)]
    print(write_report(output, "extra-parameters", {"facts": facts, "rows": rows}, lines))


if __name__ == "__main__":
    typer.run(main)
