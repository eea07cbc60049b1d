"""Acceptance of the demonstration model's drafts, as a table for the prediction.

    python -m benchmarks.prediction.acceptance_table          # typed texts of all eight tasks
    python -m benchmarks.prediction.acceptance_table --items 2 --tasks sql,proofread

Writes ``acceptance-lossless.json``, which ``simulation`` reads, and the table: rates on the
project's own demonstration model and text. How often a model of yours accepts must be measured.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specstream_mlx import DraftSettings, SpeculativeModel, bundled, demonstration, load
from specstream_mlx.engine.guess import StreamGuesses
from specstream_mlx.errors import UserError, is_number, shown
from specstream_mlx.files import read_json
from specstream_mlx.generation.batch import decode
from specstream_mlx.generation.request import Request
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from ..report import OUTPUT, table, write_report
from ..texts import ORIGIN, TASKS, Texts, TextSet, chosen_tasks, texts_a_task

ACCEPTANCE = "acceptance-lossless"  # name of the result files
NUM_STREAMS, TREE_WIDTH, TREE_SIZE, MAX_TOKENS = 4, 4, 8, 128


@dataclass(frozen=True)
class AcceptanceTable:
    """The probability of each rank at each depth, if the tokens before it were right."""

    acceptance: tuple[tuple[float, ...], ...]  # by depth from 1 on, then by rank

    @classmethod
    def load(cls, path: Path) -> "AcceptanceTable":
        """Read a file such as ``{"acceptance": [[0.7, 0.1], [0.5, 0.2]]}``."""
        rows: Any = read_json(path).get("acceptance")
        lists = isinstance(rows, list) and all(isinstance(row, list) and row for row in rows)
        if not lists or len({len(row) for row in rows}) != 1:
            raise UserError(f"{path}: acceptance is no table, expected as many ranks at each depth")
        for row in rows:
            if not all(is_number(p) and 0 <= p <= 1 for p in row) or sum(row) > 1 + 1e-6:
                raise UserError(f"{path}: acceptance has {shown(row)}, expected probabilities")
        return cls(tuple(map(tuple, rows)))


class AcceptanceCounts:
    """Right candidates (depth, rank), and how often a depth was reached by such alone."""

    def __init__(self, depth: int, width: int):
        self.hits = np.zeros((depth, width), np.int64)
        self.reached = np.zeros(depth, np.int64)

    def add(self, guesses: StreamGuesses, following: Sequence[int]) -> None:
        """Count one step: its guesses, and what the target wrote after them."""
        for depth, token in enumerate(following[: guesses.depth]):
            candidates = [guess for guess, _ in guesses.after(tuple(following[:depth]))]
            if not candidates:  # no stream guessed behind this path
                return
            self.reached[depth] += 1
            self.hits[depth] += np.array(candidates) == token
            if token not in candidates:
                return

    def rates(self) -> tuple[tuple[float, ...], ...]:
        """Conditional acceptance by depth and rank; 0 at depths that were never reached."""
        rates = self.hits / np.maximum(self.reached, 1)[:, None]
        return tuple(map(tuple, rates.tolist()))


def measure_acceptance(
    model: SpeculativeModel,
    prompts: Sequence[Sequence[int]],
    settings: DraftSettings,
    max_tokens: int = MAX_TOKENS,
    end_tokens: Collection[int] = (),
) -> AcceptanceCounts:
    """Generate from every prompt and count the streams' right candidates where steps begin."""
    if model.streams is None:
        raise UserError("acceptance was to be measured without streams, expected some that draft")
    counts = AcceptanceCounts(settings.streams_run(model.streams.config), settings.tree_width)
    for prompt in prompts:
        text: list[int] = []
        drafts: list[tuple[int, StreamGuesses]] = []
        request = Request(prompt, settings, max_tokens=max_tokens, end_tokens=end_tokens)
        for step in decode(model, request):
            text += step.tokens
            drafts.append((len(text), step.result.guesses()))
        ends = (i + 1 for i, token in enumerate(text) if token in end_tokens)
        text = text[: next(ends, None)]
        for start, guesses in drafts:
            counts.add(guesses, text[start:])
    return counts


def main(
    origin: TextSet = ORIGIN, items: int = texts_a_task(8), only: str = TASKS, output: Path = OUTPUT
) -> None:
    """Measure acceptance by depth and rank on the demonstration model."""
    model, tokenizer = load(demonstration.base_path(), adapter_path=bundled.streams_path())
    total = AcceptanceCounts(NUM_STREAMS, TREE_WIDTH)
    settings = DraftSettings(tree_width=TREE_WIDTH, tree_size=TREE_SIZE)
    texts = Texts(origin, items)
    for task in track(chosen_tasks(only), "tasks"):
        prompts = [text.prompt for text in texts.of_task(model, tokenizer, task)]
        ends = tokenizer.eos_token_ids
        counts = measure_acceptance(model, prompts, settings, MAX_TOKENS, ends)
        total.hits += counts.hits
        total.reached += counts.reached
    columns = {"depth": "{depth}", "reached": "{reached}"}
    columns |= {f"rank {rank}": f"{{rates[{rank}]:.3f}}" for rank in range(TREE_WIDTH)}
    rows = [
        {"depth": depth, "reached": reached, "rates": rates}
        for depth, (reached, rates) in enumerate(zip(total.reached, total.rates(), strict=True), 1)
    ]
    about = (
        f"The demonstration model's lossless streams, {texts.facts()['texts']}, {items} a task. Of "
        "the steps that reached a depth, the share in which the candidate of each rank was right, "
        "given that the tokens before it were among the candidates."
    )
    values = {"acceptance": total.rates()}
    print(write_report(output, ACCEPTANCE, values, [about, "", *table(columns, rows)]))


if __name__ == "__main__":
    program(main)()
