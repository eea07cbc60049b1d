"""An estimate of a run on this machine: tokens, memory and time, from measured steps."""

import time
from collections.abc import Sequence

import mlx.core as mx

from .batches import Item
from .run import Run


def estimate(run: Run) -> str:
    """Say what a run takes, by a step on its first batch and one on its longest."""
    iterations, epoch = run.settings.iters - run.progress.iterations, run.epoch
    longest = max(epoch, key=lambda batch: len(batch) * max(len(item.tokens) for item in batch))
    mx.reset_peak_memory()
    rates = [_seconds(run, batch) / _tokens(batch) for batch in (epoch[0], longest)]
    tokens = round(iterations * sum(map(_tokens, epoch)) / len(epoch))
    parameters = sum(array.size for array in run.trained.arrays().values())
    return (
        f"{parameters:,} parameters, {iterations} iterations, about {tokens:,} tokens: some "
        f"{duration(tokens * sum(rates) / len(rates))} here, "
        f"{mx.get_peak_memory() / 1e9:.2f} GB at most"
    )


def duration(seconds: float) -> str:
    """Write seconds in words, to about a twentieth."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def _tokens(batch: Sequence[Item]) -> int:
    return sum(item.completion_tokens for item in batch)


def _seconds(run: Run, batch: Sequence[Item]) -> float:
    """Return the seconds that a step on a batch takes the second time."""
    for _ in range(2):
        began = time.perf_counter()
        mx.eval(run.gradients(list(batch)))
    return time.perf_counter() - began
