"""A prediction, not a measurement: what Speculative Streaming brings on Apple chips.

    python -m benchmarks.prediction.simulation              # with what acceptance_table measured
    python -m benchmarks.prediction.simulation --tree FILE --context 4000   # with yours

For every chip of ``apple_machines``, three Llamas and 4, 8 and 16 bits: what a step costs by
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
from specstream_mlx.options import PATH, integer, option
from specstream_mlx.terminal.commands import program

from ..report import OUTPUT, RESULTS, table, write_report
from . import metal_cost
from .acceptance_table import ACCEPTANCE, AcceptanceTable
from .apple_machines import CHIPS, Chip
from .metal_cost import Bits, Shape, forward_ms, head_ms, layers_ms, product_ms
from .published_points import Point, points

LABEL = "Prediction, not a measurement"
COMMAND = "specstream-mlx benchmark speedup"
MODELS = (
    Shape("Llama 3.2 1B", 16, 2048, 8192, 32, 8, 64, 128256),
    Shape("Llama 3.2 3B", 28, 3072, 8192, 24, 8, 128, 128256),
    Shape("Llama 3.1 8B", 32, 4096, 14336, 32, 8, 128, 128256),
)
"""The figures of their ``config.json`` on Hugging Face (meta-llama)."""

CONTEXT, MSA_LAYERS = 512, 4
MOST_NODES = 24
MEMORY_SHARE = 0.75
"""Of the memory, what weights may take; an assumption."""

HOST_STEP_MS, HOST_LAYER_MS = 0.1, 0.012
"""The host reads the accepted tokens before it can build the next step; plain decoding in mlx_lm
builds ahead. That is what a compiled step with streams takes on the Linux test machine, by its
number of layers (NOTES.md); that a Mac takes as long is an assumption."""

HEAD_WIDTH, HEAD_RANK, HEAD_SHORTLIST = 4, 128, 64
"""Of the trainers' heads: paths that a stream guesses for, their rank, tokens of a shortlist."""

ASSUMPTIONS = (
    f"{metal_cost.BANDWIDTH_SHARE:.0%} of the published bandwidth, on two dies "
    f"{metal_cost.ULTRA_SHARE:.0%} of that",
    f"{metal_cost.LAYER_MS} ms of small kernels a layer in every pass",
    f"{HOST_STEP_MS} ms and {HOST_LAYER_MS} ms a layer of host work, which plain decoding hides "
    "and for which the device waits in a step that drafts",
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


def stream_heads_ms(chip: Chip, model: Shape, bits: Bits, streams: int) -> float:
    """Milliseconds in which the accepted node's streams guess, by one pass of the head."""
    h = model.hidden
    each = product_ms(chip, 16, HEAD_WIDTH, 2 * h, HEAD_RANK)
    each += product_ms(chip, 16, HEAD_WIDTH, HEAD_RANK, h) + metal_cost.LAYER_MS
    each += product_ms(chip, bits, HEAD_WIDTH, h, HEAD_SHORTLIST)
    return streams * each + head_ms(chip, model, bits, streams)


@dataclass(frozen=True)
class Setting:
    """The streams and the text of a prediction."""

    context: int = option(CONTEXT, integer(0), "Tokens in the cache.")
    msa_layers: int = option(MSA_LAYERS, integer(1, 15), "Top layers in which streams run.")

    def step_ms(self, chip: Chip, model: Shape, bits: Bits, rows: int, streams: int) -> float:
        """Milliseconds of a step: tree and streams through the model and through the head."""

        def layers(rows: int, count: int) -> float:
            return layers_ms(chip, model, bits, rows, count, self.context)

        heads = head_ms(chip, model, bits, rows) + stream_heads_ms(chip, model, bits, streams)
        device = layers(rows, model.layers - self.msa_layers)
        device += layers(rows * (1 + streams), self.msa_layers) + heads
        return HOST_STEP_MS + HOST_LAYER_MS * model.layers + device


USUAL = Setting()


def predict(
    chip: Chip, model: Shape, bits: Bits, tree: AcceptanceTable, setting: Setting = USUAL
) -> Prediction:
    """The fastest of plain decoding and all best trees, all trained streams at every node."""
    plain = forward_ms(chip, model, bits, 1, setting.context)
    named = (chip.name, model.name, bits)
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
        cost = setting.step_ms(chip, model, bits, rows, len(tree.acceptance))
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
    by_chip: list[Prediction], tree: AcceptanceTable, checked: list[Point], setting: Setting
) -> list[str]:
    columns = [(model.name, bits) for model in MODELS for bits in get_args(Bits)]
    cells = {
        f"{name.split()[-1]}, {bits} bits": f"{{cells[{number}]}}"
        for number, (name, bits) in enumerate(columns)
    }
    by_column = {(p.chip, p.model, p.bits): p.cell() for p in by_chip}
    predictions = [
        {"chip": chip.name, "cells": [by_column[chip.name, *column] for column in columns]}
        for chip in CHIPS
    ]
    rates = "; ".join(" ".join(f"{rate:.2f}" for rate in row) for row in tree.acceptance)
    return [
        f"# {LABEL}: Speculative Streaming on Apple chips",
        "",
        f"On a Mac, `{COMMAND}` measures the demonstration model, and with `--model DIR "
        "--adapter-path DIR` a model of yours; that measurement replaces this prediction. "
        f"{setting.context} tokens in the cache, {setting.msa_layers} MSA layers.",
        "",
        "A cell of the prediction: speedup over plain decoding, milliseconds of a step, rows of "
        "the tree that it verifies (root included), `c` chain or `t` tree; `plain`: no tree is "
        "predicted to pay. Assumptions: " + "; ".join(ASSUMPTIONS) + ".",
        "",
        "## Prediction, lossless streams",
        "",
        f"Acceptance by rank, depth after depth: {rates}.",
        "",
        *table({"prediction": "{chip}"} | cells, predictions),
        "",
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
        *table(CHIP_COLUMNS, ({"c": c, "matrix": c.matrix_tflops} for c in CHIPS)),
    ]


def main(
    *,
    tree: Path | None = option(None, PATH, "Acceptance table; the demonstration model's."),
    setting: Setting,
    output: Path = OUTPUT,
) -> None:
    """Predict step cost, best tree and speedup on Apple chips. Not a measurement."""
    acceptance = AcceptanceTable.load(tree or RESULTS / f"{ACCEPTANCE}.json")
    predictions = [
        predict(chip, model, bits, acceptance, setting)
        for chip, model, bits in product(CHIPS, MODELS, get_args(Bits))
    ]
    values = {
        "label": LABEL,
        "replaced_by": COMMAND,
        **asdict(setting),
        "assumptions": list(ASSUMPTIONS),
        "acceptance": acceptance.acceptance,
        "predictions": [p.values() for p in predictions],
    }
    name = f"simulation-{tree.stem}" if tree else "simulation"
    if setting != USUAL:
        name += f"-context-{setting.context}-msa-{setting.msa_layers}"
    print(write_report(output, name, values, markdown(predictions, acceptance, points(), setting)))


if __name__ == "__main__":
    program(main)()
