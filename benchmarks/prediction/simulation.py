"""A prediction, not a measurement: what Speculative Streaming brings on Apple chips.

    python -m benchmarks.prediction.simulation              # with what acceptance_table measured
    python -m benchmarks.prediction.simulation --tree FILE --context 4000   # with yours

For every chip of ``apple_chips``, three Llamas and 4, 8 and 16 bits: what a step costs by
``metal_cost``, the tree with the most predicted tokens/s, and the speedup over plain decoding.
Where no tree beats plain decoding it says plain. Without ``--tree`` the acceptance is that of the
demonstration model, which ``acceptance_table`` has measured; another model need not reach it. On a
Mac, ``specstream-mlx benchmark speedup`` replaces the prediction with a measurement.
"""

import math
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np

from specstream_mlx.drafting.best_first import best_nodes, tree_of
from specstream_mlx.engine.plan import DraftTree
from specstream_mlx.hardware import metal_cost
from specstream_mlx.hardware.apple_chips import Chip, chips
from specstream_mlx.hardware.metal_cost import Bits, Shape, forward_ms, step_ms
from specstream_mlx.options import PATH, integer, option
from specstream_mlx.terminal.commands import program

from ..report import OUTPUT, RESULTS, table, write_report
from .acceptance_table import ACCEPTANCE, AcceptanceTable
from .published_points import Point, points

LABEL = "Prediction, not a measurement"
COMMAND = "specstream-mlx benchmark speedup"
MODELS = (
    Shape("Llama 3.2 1B", 16, 2048, 8192, 32, 8, 64, 128256),
    Shape("Llama 3.2 3B", 28, 3072, 8192, 24, 8, 128, 128256),
    Shape("Llama 3.1 8B", 32, 4096, 14336, 32, 8, 128, 128256),
)
"""The figures of their ``config.json`` on Hugging Face (meta-llama)."""

CONTEXTS, MSA_LAYERS = (512, 4096, 16384), 4
MOST_NODES = 24
MEMORY_SHARE = 0.75
"""Of the memory, what weights may take; an assumption."""

ASSUMPTIONS = (
    f"{metal_cost.BANDWIDTH_SHARE:.0%} of the published bandwidth, on two dies "
    f"{metal_cost.ULTRA_SHARE:.0%} of that",
    f"{metal_cost.LAYER_MS} ms of small kernels a layer in every pass",
    f"{metal_cost.HOST_STEP_MS} ms and {metal_cost.HOST_LAYER_MS} ms a layer of host work, which "
    "plain decoding hides and for which the device waits in a step that drafts",
    "8 bits decode as fast as 4; batch 1, greedy; LoRA, stream adapters and pruner cost nothing",
    f"a stream of a conditioned head costs what it reads and {metal_cost.LAYER_MS} ms of small "
    "kernels",
    "all trained streams run, through whole layers and through the head in a pass of their own",
)


@dataclass(frozen=True)
class Prediction:
    """One chip, model and number of bits."""

    chip: str
    model: str
    bits: int
    context: int  # tokens in the cache
    placement: str  # streams at all ``nodes``; ``plain`` where no tree pays; ``does not fit``
    draft: str  # ``chain``, ``tree`` or ``none``
    rows: int  # of the tree that a step verifies, the root included
    plain_ms: float  # a step of plain decoding
    step_ms: float  # a step with this tree
    accepted_length: float  # expected tokens a step

    @property
    def tokens_per_second(self) -> float:
        return 1e3 * self.accepted_length / self.step_ms

    @property
    def speedup(self) -> float:
        """Over plain decoding; 1 where that is what is chosen."""
        return self.accepted_length * self.plain_ms / self.step_ms

    def values(self) -> dict[str, Any]:
        rates = {"tokens_per_second": self.tokens_per_second, "speedup": self.speedup}
        fields = asdict(self) | rates
        return {k: round(v, 3) if isinstance(v, float) else v for k, v in fields.items()}

    def cell(self) -> str:
        if self.placement in ("plain", "does not fit"):
            return self.placement
        return f"{self.speedup:.2f}x, {self.step_ms:.1f} ms, {self.rows}{self.draft[0]}"


def best_shape(table: AcceptanceTable, size: int) -> DraftTree:
    """The tree of the greatest expected accepted length; its tokens are ranks."""
    rows = [[(rank, math.log(p)) for rank, p in enumerate(row) if p] for row in table.acceptance]
    nodes = best_nodes(lambda path: rows[len(path)] if len(path) < len(rows) else [], size)
    return tree_of(0, nodes)


def expected_length(tree: AcceptanceTable, shape: DraftTree) -> float:
    """Tokens a step is expected to commit: 1 and the paths' acceptances."""
    paths = np.ones(len(shape))
    for node in range(1, len(shape)):
        rate = tree.acceptance[shape.depths[node] - 1][shape.tokens[node]]
        paths[node] = paths[shape.parents[node]] * rate
    return float(paths.sum())


def predict(
    chip: Chip, model: Shape, bits: Bits, context: int, tree: AcceptanceTable, msa_layers: int
) -> Prediction:
    """The fastest of plain decoding and all best trees, all trained streams at every node."""
    plain, streams = forward_ms(chip, model, bits, 1, context), len(tree.acceptance)
    named = (chip.name, model.name, bits, context)
    if model.gigabytes(bits) > MEMORY_SHARE * chip.memory:
        return Prediction(*named, "does not fit", "none", 1, plain, plain, 1.0)
    best = Prediction(*named, "plain", "none", 1, plain, plain, 1.0)
    for size in range(1, MOST_NODES + 1):
        shape = best_shape(tree, size)
        rows, depth = len(shape), int(shape.depths.max())
        if rows <= size:  # no further node can be right
            break
        length = expected_length(tree, shape)
        draft = "chain" if rows == depth + 1 else "tree"
        more = msa_layers, rows * streams, streams
        cost = step_ms(chip, model, bits, rows, context, *more)
        with_tree = Prediction(*named, "nodes", draft, rows, plain, cost, length)
        best = max(best, with_tree, key=lambda p: p.speedup)
    return best


POINT_COLUMNS = {
    "what": "{p.what}",
    "rows": "{p.rows}",
    "published": "{p.published:.3f}",
    "prediction": "{p.predicted:.3f}",
    "ratio": "{p.ratio:.2f}",
    "use": "{use}",
    "source": "{p.source}",
}

CHIP_COLUMNS = {
    "chip": "{c.name}",
    "GB/s": "{c.bandwidth:g}",
    "cores": "{c.cores}",
    "GHz": "{c.clock}",
    "TFLOPS": "{c.tflops:.1f}",
    "of matrix units": "{matrix:.1f}",
    "memory, GB": "{c.memory}",
    "MLX's kernels": "{c.kernels}",
    "source": "{c.source}",
    "clock": "{c.clock_source}",
}


def markdown(
    by_chip: list[Prediction], tree: AcceptanceTable, checked: list[Point], msa_layers: int
) -> list[str]:
    columns = [(model.name, bits) for model in MODELS for bits in get_args(Bits)]
    cells = {
        f"{name.split()[-1]}, {bits} bits": f"{{cells[{number}]}}"
        for number, (name, bits) in enumerate(columns)
    }
    by_column = {(p.chip, p.model, p.bits, p.context): p.cell() for p in by_chip}
    tables: list[str] = []
    for context in dict.fromkeys(p.context for p in by_chip):
        rows = [
            {"chip": c.name, "cells": [by_column[c.name, *column, context] for column in columns]}
            for c in chips()
        ]
        title = f"## Prediction, lossless streams, {context} tokens in the cache"
        tables += [title, "", *table({"prediction": "{chip}"} | cells, rows), ""]
    rates = "; ".join(" ".join(f"{rate:.2f}" for rate in row) for row in tree.acceptance)
    return [
        f"# {LABEL}: Speculative Streaming on Apple chips",
        "",
        f"On a Mac, `{COMMAND}` measures the demonstration model, and with `--model DIR "
        "--adapter-path DIR` a model of yours; that measurement replaces this prediction. "
        f"{msa_layers} MSA layers.",
        "",
        "A cell of the prediction: speedup over plain decoding, milliseconds of a step, rows of "
        "the tree that it verifies (root included), `c` chain or `t` tree; `plain`: no tree is "
        "predicted to pay. Assumptions: " + "; ".join(ASSUMPTIONS) + ".",
        "",
        f"Acceptance by rank, depth after depth: {rates}.",
        "",
        *tables,
        "## The cost model's prediction beside published timings",
        "",
        *table(
            POINT_COLUMNS, ({"p": p, "use": "fitted" if p.fitted else "check"} for p in checked)
        ),
        "",
        "## Chips of the prediction",
        "",
        "TFLOPS are derived: cores x 128 x clock x 2, matrix units cores x 1024 x clock.",
        "",
        *table(CHIP_COLUMNS, ({"c": c, "matrix": c.matrix_tflops} for c in chips())),
    ]


def main(
    *,
    tree: Path | None = option(None, PATH, "Acceptance table; the demonstration model's."),
    context: int | None = option(
        None, integer(0), "Tokens in the cache. Default: 512, 4096 and 16384, each in a table."
    ),
    msa_layers: int = option(MSA_LAYERS, integer(1, 15), "Top layers in which streams run."),
    output: Path = OUTPUT,
) -> None:
    """Predict step cost, best tree and speedup on Apple chips. Not a measurement."""
    acceptance = AcceptanceTable.load(tree or RESULTS / f"{ACCEPTANCE}.json")
    predictions = [
        predict(chip, model, bits, each, acceptance, msa_layers)
        for each in (CONTEXTS if context is None else (context,))
        for chip, model, bits in product(chips(), MODELS, get_args(Bits))
    ]
    values = {
        "label": LABEL,
        "replaced_by": COMMAND,
        "msa_layers": msa_layers,
        "assumptions": list(ASSUMPTIONS),
        "acceptance": acceptance.acceptance,
        "predictions": [p.values() for p in predictions],
    }
    name = f"simulation-{tree.stem}" if tree else "simulation"
    if context is not None or msa_layers != MSA_LAYERS:
        name += f"-context-{context or 'all'}-msa-{msa_layers}"
    lines = markdown(predictions, acceptance, points(), msa_layers)
    print(write_report(output, name, values, lines))


if __name__ == "__main__":
    program(main)()
