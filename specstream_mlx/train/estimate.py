"""Estimates of a run's time, memory and disk space, from a small part of each stage."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from rich.filesize import decimal

from ..errors import UserError
from ..generation.batch_generate import batch_generate
from ..generation.stream_generate import stream_generate
from ..hardware import device
from ..prompts import chat_prompt
from .batches import Item
from .distil import Answering
from .outcome import MOST_TOKENS, rounds, texts_of
from .run import TrainingRun, duration
from .self_prompts import AT_ONCE
from .self_prompts import MOST_TOKENS as MOST_DRAWN
from .start import Start

_SAMPLE = 8  # tokens that are written for an estimate
_BYTES_OF_TOKEN = 12  # of an answer on disk: its text and its number


@dataclass(frozen=True)
class StageCost:
    """The cost of a stage: seconds, bytes of memory and of disk."""

    name: str
    work: str
    seconds: float
    memory: float
    disk: float = 0.0


class Estimate:
    """The cost of a run's stages on this machine; nothing of the run is changed or written."""

    def __init__(self, start: Start):
        self.parts: list[StageCost] = []
        self._base, self._tokenizer = start.base, start.tokenizer
        self._template = start.streams.config.prompt_template
        self._prompt = chat_prompt(start.tokenizer, "Hello", self._template)
        asked: Any = start.tokenizer, self._prompt, _SAMPLE
        for _ in range(2):  # the first time weights are read from disk
            mx.reset_peak_memory()
            cache = make_prompt_cache(start.base.model)
            *_, plain = mlx_lm.stream_generate(start.base.model, *asked, prompt_cache=cache)
            *_, ours = stream_generate(start.base, *asked, speculation=False)
        self._decoded, self._memory = (plain, ours, ours), mx.get_peak_memory()
        states: Any = tree_flatten([layer.state for layer in cache])
        held = sum(array.nbytes for _, array in states if isinstance(array, mx.array))
        self._bytes_of_row = held / (len(self._prompt) + plain.generation_tokens)

    def draws(self, count: int) -> None:
        """Estimate the drawing of prompts, of which half are taken to be kept."""
        seconds, memory = self._batch([self._prompt] * AT_ONCE, MOST_DRAWN)
        work = f"{count}, drawn by the base"
        self.parts.append(StageCost("prompts", work, 2 * count / AT_ONCE * seconds, memory))

    def answers(self, prompts: Sequence[str], count: int, left: int, how: Answering) -> list[Item]:
        """Estimate the ``left`` of ``count`` answers, to prompts of the kind of ``prompts``.

        Returns as many items as answers, as long as these may be.
        """
        heads = [chat_prompt(self._tokenizer, prompt, self._template) for prompt in prompts]
        heads = (heads * -(-count // len(heads)))[:count]
        sample = heads[: min(left, how.at_once(count))]
        seconds, memory = self._batch(sample, how.max_tokens)
        work = f"{left} of up to {how.max_tokens} tokens"
        disk = _BYTES_OF_TOKEN * left * how.max_tokens
        self.parts.append(StageCost("answers", work, left / len(sample) * seconds, memory, disk))
        return [Item([*head, *self._prompt[-1:] * how.max_tokens], len(head)) for head in heads]

    def training(self, run: TrainingRun) -> None:
        """Estimate what is left of a run."""
        work, seconds, memory, disk = run.cost(device.memory_bytes())
        self.parts.append(StageCost("training", work, seconds, memory, disk))

    def comparison(self, valid: Sequence[Item]) -> None:
        """Estimate the decoding of held-out texts, as if drafts brought no speedup."""
        texts, read = len(texts_of(valid)), len(self._prompt)
        seconds = sum(
            read / text.prompt_tps + MOST_TOKENS / text.generation_tps for text in self._decoded
        )
        work = f"{texts} held-out text" + "s" * (texts != 1) + ", decoded in three ways"
        self.parts.append(StageCost("comparison", work, rounds(texts) * seconds, self._memory))

    def _batch(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> tuple[float, float]:
        """Return the seconds in which texts get so many tokens, and the memory."""
        mx.reset_peak_memory()
        limits: dict[str, Any] = {"max_tokens": _SAMPLE, "completion_batch_size": len(prompts)}
        stats = batch_generate(
            self._base, self._tokenizer, prompts, speculation=False, **limits
        ).stats
        step = len(prompts) * stats.decode_time / max(1, stats.generation_tokens)
        more = len(prompts) * (max_tokens - _SAMPLE) * self._bytes_of_row
        return stats.prompt_time + max_tokens * step, mx.get_peak_memory() + max(0.0, more)

    def lines(self) -> list[str]:
        """Format the cost of all stages together, and of each."""
        total, (memory, disk) = sum(part.seconds for part in self.parts), self._bytes()
        lines = [f"About {duration(total)} here, {_size(memory)} of memory, {_size(disk)} of disk:"]
        for part in self.parts:
            took = f"{duration(part.seconds)}, {_size(part.memory)}"
            lines.append(f"  {part.name:10}  {took:17}  {part.work}")
        return lines

    def check(self, directory: Path) -> None:
        """Check that the machine has enough memory and the directory's disk enough space."""
        memory, disk = self._bytes()
        if memory > (has := device.memory_bytes()):
            raise UserError(
                f"the run takes about {_size(memory)} of memory and this machine has {_size(has)}: "
                "expected a smaller --batch-size, --max-tokens or --max-seq-length, or "
                "--grad-checkpoint"
            )
        folders = directory, *directory.absolute().parents
        place = next(folder for folder in folders if folder.exists())
        if disk > (free := shutil.disk_usage(place).free):
            raise UserError(
                f"the run writes about {_size(disk)} and {_size(free)} are free on the disk of "
                f"{place}: expected another --adapter-path, or more room"
            )

    def _bytes(self) -> tuple[float, float]:
        return max(part.memory for part in self.parts), sum(part.disk for part in self.parts)


def _size(count: float) -> str:
    return decimal(round(count))
