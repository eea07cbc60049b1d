"""Texts of several adapters at once, or one after the other: tokens per second of both.

Also what the adapters take in memory.

    python -m benchmarks.several_adapters                    # all bundled adapters, 5 pairs
    python -m benchmarks.several_adapters --counts           # times nothing: on a busy machine too

Both ways plan their steps by the rule, and must write the same texts. Pairs are interleaved, behind
two that do not count: in them steps are timed, to know what rows cost here.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper

from specstream_mlx import UserError, batch_generate, bundled, demonstration, load
from specstream_mlx.batch import BatchResponse
from specstream_mlx.hardware import device
from specstream_mlx.loading import SpeculativeModel
from specstream_mlx.options import FLAG, TEXT, integer, option
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from .report import OUTPUT, machine_suffix, measured_on, write_report

MESSAGE = (
    "hi ana, can you send me the sales report for march? we needs it on friday, and i has not seen "
    "it yet. thanks, ben"
)
_WARM_UP = 2


@dataclass(frozen=True)
class Pair:
    """The same texts written at once, and one after the other.

    Attributes:
        at_once, in_turn: tokens per second of decoding.
        whole: time of all in turn over that at once, prompts included.
        tokens: of all texts.
        passes: of the target, at once and in turn.
    """

    at_once: float
    in_turn: float
    whole: float
    tokens: int
    passes: tuple[int, int]

    @property
    def speedup(self) -> float:
        """Tokens per second at once over those in turn."""
        return self.at_once / self.in_turn


def measure(
    model: SpeculativeModel,
    tokenizer: TokenizerWrapper,
    text: str,
    adapters: Sequence[str | Path],
    max_tokens: int,
) -> Pair:
    """Write a text with several adapters in both ways."""

    def write(names: Sequence[str | Path]) -> BatchResponse:
        return batch_generate(
            model, tokenizer, [text] * len(names), max_tokens=max_tokens, adapters=list(names),
            settings=None,
        )  # fmt: skip

    together = write(adapters)
    alone = [write([name]) for name in adapters]
    for name, one, other in zip(adapters, together.texts, alone, strict=True):
        if one != other.texts[0]:
            raise UserError(f"{name} wrote {one!r} beside others and {other.texts[0]!r} alone")
    stats, each = together.stats, [one.stats for one in alone]
    tokens = stats.generation_tokens
    return Pair(
        tokens / stats.decode_time,
        tokens / sum(one.decode_time for one in each),
        sum(one.wall_time for one in each) / stats.wall_time,
        tokens,
        (stats.generation_steps, sum(one.generation_steps for one in each)),
    )


def memory_of(model: SpeculativeModel, names: Sequence[str]) -> tuple[int, int]:
    """Load adapters; return the bytes that they take in memory, and on disk."""
    mx.clear_cache()
    before = mx.get_active_memory()
    for name in names:
        model.with_adapter(name)
    files = [file for name in names for file in bundled.adapter_path(name).glob("*.safetensors")]
    return mx.get_active_memory() - before, sum(file.stat().st_size for file in files)


def main(
    text: str = option(MESSAGE, TEXT, "What all adapters are given."),
    pairs: int = option(5, integer(1), "Pairs, behind those that do not count."),
    max_tokens: int = option(64, integer(2), "Tokens of a text at most."),
    counts: bool = option(False, FLAG, "Count passes, time nothing."),
    output: Path = OUTPUT,
) -> None:
    """Write a text with all bundled adapters at once and in turn."""
    model, tokenizer = load(demonstration.base_path())
    names = bundled.adapter_names()
    memory, disk = memory_of(model, names)
    taken = f"{memory / 1e6:.1f} MB over the base in memory, {disk / 1e6:.1f} MB on disk"
    runs = 1 if counts else _WARM_UP + pairs
    found = [
        measure(model, tokenizer, text, names, max_tokens) for _ in track(range(runs), "pairs")
    ]
    if counts:
        (one,) = found
        print(
            f"{one.tokens} tokens in {one.passes[0]} passes at once, {one.passes[1]} in turn; "
            f"the texts are the same; {taken}"
        )
        return
    found = found[_WARM_UP:]
    facts = device.describe() | {"adapters": names, "max_tokens": max_tokens}
    values: dict[str, Any] = {
        "facts": facts,
        "bytes_in_memory": memory,
        "bytes_on_disk": disk,
        "pairs": [vars(one) | {"speedup": one.speedup} for one in found],
        "speedup": statistics.median(one.speedup for one in found),
        "whole": statistics.median(one.whole for one in found),
    }
    rates = [
        statistics.median(getattr(one, way) for one in found) for way in ("at_once", "in_turn")
    ]
    lines = [
        f"{measured_on(facts)}; {len(names)} adapters, {pairs} pairs.",
        "",
        f"- decoding: {rates[0]:.1f} tokens/s at once, {rates[1]:.1f} in turn; "
        f"{values['speedup']:.2f}x, median of pairs "
        f"({min(one.speedup for one in found):.2f} to {max(one.speedup for one in found):.2f})",
        f"- with prompts: {values['whole']:.2f}x",
        f"- passes: {found[-1].passes[0]} at once, {found[-1].passes[1]} in turn; the same texts",
        f"- adapters: {taken}",
    ]
    print(write_report(output, f"several-adapters-{machine_suffix(facts)}", values, lines))


if __name__ == "__main__":
    program(main)()
