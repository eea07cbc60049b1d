"""Hours of training lossless streams on Apple chips: a prediction, from arithmetic alone.

    python -m benchmarks.prediction.training_time

A completion token costs, in floating-point operations:

- the main stream, forward alone, for itself and its share of the prompt: 2 per weight of the layers
  and token;
- gamma stream rows in each of N_s MSA layers, forward and back to their inputs: 4 per weight;
- their attention, forward and back: 12 per number of a query and key;
- the LM head for each stream, forward and back to its input: 4 per weight.

How much of a chip's rate training reaches is taken from mlx_lm itself, whose layers these are: its
LoRA guide reports 250 tokens/s for Mistral 7B on an M1 Max, one sequence at a time and 4 of 32
layers trained, which is 0.4 of the derived rate
(https://github.com/ml-explore/mlx-lm/blob/main/mlx_lm/LORA.md); its benchmarks have 1,622 prompt
tokens/s for Qwen3-4B in 4 bits on an M4 Max, 0.7 of it
(https://github.com/ml-explore/mlx-lm/blob/main/mlx_lm/BENCHMARKS.md). The time in which the base
writes its answers is not in it, nor is validation.
"""

from pathlib import Path

from specstream_mlx.terminal.commands import program

from ..report import OUTPUT, table, write_report
from .apple_machines import CHIPS, Chip
from .metal_cost import Shape
from .simulation import MODELS, MSA_LAYERS

STREAMS = 4
CONTEXT = 256
"""Keys that a stream row attends to, on average."""

COMPLETION_SHARE = 0.6
"""Of all tokens: the rest are prompts'."""

RATE_SHARE = 0.4
"""Of a chip's derived rate: the lower of the two published points."""

TRAINED = (MODELS[0], Shape("Qwen3 4B", 36, 2560, 9728, 32, 8, 128, 151936))
"""The figures of Qwen3 4B are those of its ``config.json`` on Hugging Face (Qwen)."""

MILLIONS = (5, 20)
"""Completion tokens to learn from, as in twenty and eighty thousand answers of 256 tokens."""


def operations(model: Shape) -> dict[str, float]:
    """Floating-point operations of a completion token, by part."""
    layer = sum(inputs * outputs for inputs, outputs in model.products)
    rows = STREAMS * MSA_LAYERS
    return {
        "main": 2 * model.layers * layer / COMPLETION_SHARE,
        "streams": 4 * rows * layer,
        "attention": 12 * rows * model.heads * model.head_dim * CONTEXT,
        "head": 4 * STREAMS * model.vocab * model.hidden,
    }


def hours(model: Shape, chip: Chip, tokens: float) -> float:
    """Predicted hours of a run; M5's matrix units count as its ALUs do."""
    rate = RATE_SHARE * 1e12 * (chip.matrix_tflops or chip.tflops)
    return tokens * sum(operations(model).values()) / rate / 3600


def main(output: Path = OUTPUT) -> None:
    """Predict the hours that lossless streams train on M1 to M5."""
    runs = [(model, millions) for model in TRAINED for millions in MILLIONS]
    columns = {"prediction": "{chip}"} | {
        f"{model.name}, {millions} M tokens": f"{{hours[{number}]:.1f}} h"
        for number, (model, millions) in enumerate(runs)
    }
    rows = [
        {"chip": chip.name, "hours": [hours(model, chip, 1e6 * n) for model, n in runs]}
        for chip in CHIPS
    ]
    parts = "; ".join(
        f"{model.name}: "
        + ", ".join(f"{name} {value / 1e9:.1f} G" for name, value in operations(model).items())
        for model in TRAINED
    )
    facts = (
        f"Nothing here was measured. Lossless streams, gamma {STREAMS}, N_s {MSA_LAYERS}, at "
        f"{RATE_SHARE:g} of each chip's derived rate; operations of a completion token: {parts}."
    )
    lines = [facts, "", *table(columns, rows)]
    print(write_report(output, "training-time", {"facts": facts, "rows": rows}, lines))


if __name__ == "__main__":
    program(main)()
