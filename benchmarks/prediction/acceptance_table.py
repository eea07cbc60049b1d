"""Acceptance of the demonstration model's drafts, as tables for the prediction.

    python -m benchmarks.prediction.acceptance_table          # typed texts of all eight tasks
    python -m benchmarks.prediction.acceptance_table --items 2 --tasks sql,proofread

Writes ``acceptance-lossless.json`` (the base's streams on every task) and
``acceptance-shared.json`` (every task with its own adapter), which ``simulation`` reads, and
``acceptance.md``, to ``benchmarks/results``. They are rates on the project's own demonstration
model and text: how often a model of yours accepts must be measured on it.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from mlx_lm.tokenizer_utils import TokenizerWrapper

from specstream_mlx import DraftSettings, SpeculativeModel, bundled, demonstration, load
from specstream_mlx.config import UserError, is_number, shown
from specstream_mlx.files import read_json
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from ..report import OUTPUT, table, write_text
from ..texts import (
    ADAPTERS,
    BASE,
    ORIGIN,
    TASKS,
    Texts,
    TextSet,
    adapter_of,
    chosen_tasks,
    shared_adapters,
    texts_a_task,
)
from .acceptance import AcceptanceCounts, measure_acceptance

NUM_STREAMS, TREE_WIDTH, TREE_SIZE, MAX_TOKENS = 4, 4, 8, 128


@dataclass(frozen=True)
class AcceptanceTable:
    """Acceptance of candidates, from a JSON file ``{"acceptance": [[0.7, 0.1], [0.5, 0.2]]}``.

    Attributes:
        acceptance: for each depth from 1 on, for each rank, the probability that this candidate is
            right, given that the tokens before it were.

    Raises:
        UserError: it does not hold probabilities.
    """

    acceptance: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        rows = self.acceptance
        if not rows or not rows[0] or any(len(row) != len(rows[0]) for row in rows):
            raise UserError("acceptance is no table, expected as many ranks at each depth")
        for row in rows:
            if not all(is_number(p) and 0 <= p <= 1 for p in row) or sum(row) > 1 + 1e-6:
                raise UserError(f"acceptance has {shown(list(row))}, expected probabilities")

    def save(self, path: Path) -> None:
        """Write the file."""
        write_text(path, json.dumps({"acceptance": self.acceptance}) + "\n")

    @classmethod
    def load(cls, path: Path) -> "AcceptanceTable":
        """Read the file.

        Raises:
            UserError: it is missing or damaged.
        """
        rows = read_json(path).get("acceptance")
        if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
            raise UserError(f"{path}: acceptance is not a list of lists, expected one a depth")
        try:
            return cls(tuple(map(tuple, rows)))
        except UserError as error:
            raise UserError(f"{path}: {error}") from None


def table_file(directory: Path, mode: str) -> Path:
    """Return the file of the table for ``lossless`` or ``shared`` streams."""
    return directory / f"acceptance-{mode}.json"


def measure(
    model: SpeculativeModel,
    tokenizer: TokenizerWrapper,
    chosen: list[str],
    texts: Texts,
    mode: str,
) -> AcceptanceCounts:
    """Right candidates on texts of the tasks, counted together."""
    total = AcceptanceCounts(NUM_STREAMS, TREE_WIDTH)
    for task in track(chosen, mode):
        model.swap_adapter(adapter_of(task, BASE if mode == "lossless" else ADAPTERS))
        prompts = [text.prompt for text in texts.of_task(model, tokenizer, task)]
        settings = DraftSettings(tree_width=TREE_WIDTH, tree_size=TREE_SIZE)
        ends = tokenizer.eos_token_ids
        counts = measure_acceptance(model, prompts, settings, MAX_TOKENS, ends)
        total.hits += counts.hits
        total.reached += counts.reached
    return total


def markdown(tables: dict[str, AcceptanceCounts], command: str, texts: Texts) -> list[str]:
    """The lines of the report: both tables, by depth and rank."""
    columns = {"streams": "{mode}", "depth": "{depth}", "reached": "{reached}"}
    columns |= {f"rank {rank}": f"{{rates[{rank}]:.3f}}" for rank in range(TREE_WIDTH)}
    rows = [
        {"mode": mode, "depth": depth, "reached": counts.reached[depth - 1], "rates": rates}
        for mode, counts in tables.items()
        for depth, rates in enumerate(counts.rates(), start=1)
    ]
    return [
        f"Measured with `{command}` on the demonstration model; {texts.facts()['texts']}. "
        "Of the steps that reached a depth, the share in which the candidate of each rank was "
        "right, given that the tokens before it were among the candidates.",
        "",
        *table(columns, rows),
    ]


def main(
    origin: TextSet = ORIGIN,
    items: int = texts_a_task(8),
    only: str = TASKS,
    output: Path = OUTPUT,
) -> None:
    """Measure acceptance by depth and rank on the demonstration model."""
    chosen, texts = chosen_tasks(only), Texts(origin, items)
    model, tokenizer = load(demonstration.base_path(), adapter_path=bundled.streams_path())
    output.mkdir(parents=True, exist_ok=True)
    tables, shared = {}, shared_adapters()
    for mode in ("lossless", "shared"):
        names = [task for task in chosen if mode == "lossless" or task in shared]
        if not names:
            continue
        tables[mode] = measure(model, tokenizer, names, texts, mode)
        AcceptanceTable(tables[mode].rates()).save(table_file(output, mode))
    command = f"python -m benchmarks.prediction.acceptance_table --texts {origin} --items {items}"
    command += f" --tasks {only}" if only else ""
    text = "\n".join(markdown(tables, command, texts)) + "\n"
    write_text(output / "acceptance.md", text)
    print(text)


if __name__ == "__main__":
    program(main)()
