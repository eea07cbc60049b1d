"""Texts of several adapters at once, or one after the other: tokens per second of both.

    python -m benchmarks.several_adapters                    # all bundled adapters, 5 pairs
    python -m benchmarks.several_adapters --counts           # times nothing: on a busy machine too

Both ways plan their steps by the rule, and must write the same texts. Pairs are interleaved, after
two that do not count: in them steps are timed, to know what rows cost here.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper

from specstream_mlx import UserError, batch_generate, bundled, demonstration, load
from specstream_mlx.hardware import device
from specstream_mlx.loading.speculative_model import SpeculativeModel
from specstream_mlx.options import FLAG, integer, option
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from .report import OUTPUT, machine_suffix, measured_on, write_report

MESSAGE = (
    "hi ana, can you send me the sales report for march? we needs it on friday, and i has not seen "
    "it yet. thanks, ben"
)
_WARM_UP = 2


def measure(
    model: SpeculativeModel, tokenizer: TokenizerWrapper, names: Sequence[str], max_tokens: int
) -> dict[str, Any]:
    """Write a text with several adapters in both ways: tokens per second, and what is gained."""
    options: dict[str, Any] = {"max_tokens": max_tokens, "settings": None}
    together = batch_generate(
        model, tokenizer, [MESSAGE] * len(names), adapters=list(names), **options
    )
    alone = [
        batch_generate(model, tokenizer, [MESSAGE], adapters=[name], **options) for name in names
    ]
    for name, text, other in zip(names, together.texts, alone, strict=True):
        if text != other.texts[0]:
            raise UserError(f"{name} wrote {text!r} beside others and {other.texts[0]!r} alone")
    stats, each = together.stats, [text.stats for text in alone]
    tokens, in_turn = stats.generation_tokens, sum(text.decode_time for text in each)
    return {
        "at_once": tokens / stats.decode_time,
        "in_turn": tokens / in_turn,
        "speedup": in_turn / stats.decode_time,
        "whole": sum(text.wall_time for text in each) / stats.wall_time,
        "tokens": tokens,
        "passes": (stats.generation_steps, sum(text.generation_steps for text in each)),
    }


def main(
    pairs: int = option(5, integer(1), "Pairs, after those that do not count."),
    max_tokens: int = option(64, integer(2), "Tokens of a text at most."),
    counts: bool = option(False, FLAG, "Count passes, time nothing."),
    output: Path = OUTPUT,
) -> None:
    """Write a text with all bundled adapters at once and in turn."""
    model, tokenizer = load(demonstration.base_path())
    names, held = bundled.adapter_names(), mx.get_active_memory()
    for name in names:
        model.with_adapter(name)
    taken = f"{(mx.get_active_memory() - held) / 1e6:.1f} MB over the base in memory"
    runs = 1 if counts else _WARM_UP + pairs
    rows = [measure(model, tokenizer, names, max_tokens) for _ in track(range(runs), "pairs")]
    at_once, in_turn = rows[-1]["passes"]
    passes = f"passes: {at_once} at once, {in_turn} in turn; the same texts"
    if counts:
        print(f"{rows[0]['tokens']} tokens; {passes}; adapters: {taken}")
        return
    rows = rows[_WARM_UP:]
    middle = {key: median(row[key] for row in rows) for key in rows[0] if key != "passes"}
    speedups = [row["speedup"] for row in rows]
    facts = device.describe() | {"adapters": names, "max_tokens": max_tokens}
    lines = [
        f"{measured_on(facts)}; {len(names)} adapters, {pairs} pairs.",
        "",
        f"- decoding: {middle['at_once']:.1f} tokens/s at once, {middle['in_turn']:.1f} in turn; "
        f"{middle['speedup']:.2f}x, median of pairs ({min(speedups):.2f} to {max(speedups):.2f})",
        f"- with prompts: {middle['whole']:.2f}x",
        f"- {passes}",
        f"- adapters: {taken}",
    ]
    values = {"facts": facts, "pairs": rows, **middle}
    print(write_report(output, f"several-adapters-{machine_suffix(facts)}", values, lines))


if __name__ == "__main__":
    program(main)()
