"""Recorded texts: what the demonstration model's streams guess after every token of its answers.

    python -m benchmarks.prediction.recorded_texts    # answers two typed texts of each task

Writes ``recorded-texts.npz`` beside this file, which ``lost_time`` replays.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from specstream_mlx import bundled, demonstration, load
from specstream_mlx.drafting import Planner
from specstream_mlx.drafting.proposer import WIDTH
from specstream_mlx.engine.guess import StreamGuesses
from specstream_mlx.engine.plan import LIKELIEST, Plan, root_only
from specstream_mlx.generation.batch import decode
from specstream_mlx.generation.request import Request
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from ..texts import ORIGIN, TASKS, Texts, TextSet, chosen_tasks, texts_a_task

FILE = Path(__file__).with_name("recorded-texts.npz")
MAX_TOKENS = 64


@dataclass(frozen=True, eq=False)
class RecordedText:
    """A prompt, its answer, and the guesses after each of the answer's tokens."""

    prompt: list[int]
    tokens: list[int]
    guesses: list[StreamGuesses]


class _OneTokenASteps(Planner):
    """Plans steps without drafts, in which all streams guess."""

    def __init__(self, streams: int):
        expand = (LIKELIEST,) * (streams - 1)
        self._plan = partial(Plan, place="nodes", streams=streams, expand=expand, width=WIDTH)

    def first(self, root: int) -> Plan:
        return self._plan(root_only(root))

    def accept(self, plan: Plan, tokens: Sequence[int], seconds: float | None) -> None:
        pass

    def plan(self, root: int, *_: object) -> Plan:
        return self.first(root)


def read(file: Path = FILE) -> Iterator[RecordedText]:
    with np.load(file) as kept:
        arrays = {name: kept[name] for name in kept.files}
    prompts = np.split(arrays["prompts"].astype(int), np.cumsum(arrays["prompt_lengths"])[:-1])
    starts = np.cumsum([0, *arrays["lengths"]])
    for prompt, start, end in zip(prompts, starts, starts[1:], strict=False):
        guesses = [
            StreamGuesses(
                arrays["guesses"][n].astype(np.int32),
                arrays["log_probs"][n].astype(np.float32),
                arrays["parents"][n].astype(np.int32),
            )
            for n in range(start, end)
        ]
        yield RecordedText(prompt.tolist(), arrays["tokens"][start:end].tolist(), guesses)


def main(origin: TextSet = ORIGIN, items: int = texts_a_task(2), only: str = TASKS) -> None:
    """Record what the demonstration model's streams guess after every token."""
    model, tokenizer = load(demonstration.base_path(), adapter_path=bundled.streams_path())
    assert model.streams is not None
    planner = _OneTokenASteps(model.streams.config.num_streams)
    texts = Texts(origin, items)
    recorded = []
    for task in track(chosen_tasks(only), "tasks"):
        for text in texts.of_task(model, tokenizer, task):
            ends = tokenizer.eos_token_ids
            request = Request(text.prompt, planner, max_tokens=MAX_TOKENS, end_tokens=ends)
            steps = list(decode(model, request))
            tokens = [token for step in steps for token in step.tokens]
            guesses = [step.result.guesses() for step in steps]
            recorded.append(RecordedText(list(text.prompt), tokens, guesses))
    guesses = [each for text in recorded for each in text.guesses]
    np.savez_compressed(
        FILE,
        prompts=np.concatenate([text.prompt for text in recorded]).astype(np.uint16),
        prompt_lengths=[len(text.prompt) for text in recorded],
        tokens=np.concatenate([text.tokens for text in recorded]).astype(np.uint16),
        lengths=[len(text.tokens) for text in recorded],
        guesses=np.stack([each.tokens for each in guesses]).astype(np.uint16),
        log_probs=np.stack([each.log_probs for each in guesses]).astype(np.float16),
        parents=np.stack([np.array(each.parents) for each in guesses]).astype(np.int8),
    )
    print(f"{FILE}: {len(recorded)} texts, {len(guesses)} tokens, {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    program(main)()
