"""Short trainings of each method's draft head at several learning rates, with several losses.

    python -m benchmarks.studies.head_tuning --model runs/adapters/expanded --work runs/tuning \\
        --data convert/demo_model/text/answers/train.jsonl \\
        --valid convert/demo_model/text/answers/valid.jsonl

All learn by equally many updates from the same batches of the base's answers, and are judged on
held-out ones. Which rate is best depends on how long a run is: where the best one is the highest or
the lowest that was tried, or two are close, only longer runs decide (``--iters``, ``--rates``).
``--model`` is what ``train_adapters`` writes, the base expanded to floats. The same command
resumes. Several calls may work side by side, each on its ``--methods``; a last one without makes
the whole table of their runs.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from specstream_mlx.convert.demo_model.train_adapters import (
    DRAFT_VOCABULARY,
    EMBEDDING_RATE,
    MOST_ANSWER_TOKENS,
    STREAM_SHAPE,
)

from specstream_mlx import UserError
from specstream_mlx.hardware import device
from specstream_mlx.options.fields import option
from specstream_mlx.options.kinds import PATH, TEXT, integer
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from ..own_process import run_module
from ..report import OUTPUT, commit, machine_suffix, table, write_report

_TRAINERS = "specstream_mlx.convert.pytorch."
_LAYERS = 30  # of the demonstration model, all of which run the rows of prompt tokens


@dataclass(frozen=True)
class Learner:
    """A method whose weights are trained.

    Attributes:
        trainer: the module that trains them.
        flags: of all its runs.
        rates: peaks of the learning rate, each of which is tried with each loss.
        losses: flags by the name of a loss.
    """

    trainer: str
    flags: Sequence[object]
    rates: Sequence[float]
    losses: Mapping[str, Sequence[object]]


_TEXT: Mapping[str, Sequence[object]] = {"text": ()}
_TEACHERS = {"text": ("--teacher", "text"), "base's probabilities": ("--teacher", "base")}
_WEIGHTS = {
    "hidden states, 0.1 of base's probabilities": ("--token-loss", 0.1),
    "hidden states, 1 of base's probabilities": ("--token-loss", 1),
}


def _head(
    kind: str,
    *flags: object,
    rates: Sequence[float],
    losses: Mapping[str, Sequence[object]] = _TEACHERS,
) -> Learner:
    """Another method's draft head."""
    common = ("--kind", kind, "--draft-vocabulary", DRAFT_VOCABULARY, *flags)
    return Learner(_TRAINERS + "head_trainer", common, rates, losses)


def _streams(rates: Sequence[float], shape: Mapping[str, object]) -> Learner:
    """Lossless streams."""
    given = {"--mode": "lossless", "--num-streams": 4, "--pruner-rank": 0}
    given |= {"--draft-vocabulary": DRAFT_VOCABULARY}
    given |= {f"--{name.replace('_', '-')}": value for name, value in shape.items()}
    return Learner(_TRAINERS + "trainer", _listed(given), rates, _TEXT)


def _listed(flags: Mapping[str, object]) -> list[object]:
    return [part for pair in flags.items() for part in pair]


_PROMPT_TOKENS: Mapping[str, object] = {
    "num_msa_layers": _LAYERS,
    "stream_init": "embedding",
    "stream_mlp": "base",
    "stream_head": "plain",
}

LEARNERS = {
    "medusa": _head("medusa", rates=(1e-3, 3e-3, 1e-2)),
    "medusa-own": _head("medusa", "--own-lm-heads", rates=(3e-4, 1e-3, 3e-3)),
    "hydra": _head("hydra", rates=(5e-4, 2e-3, 5e-3)),
    "eagle": _head("eagle", rates=(3e-4, 1e-3, 3e-3), losses=_WEIGHTS),
    "eagle3": _head("eagle3", rates=(2e-4, 5e-4, 2e-3)),
    "draft-model": Learner(_TRAINERS + "draft_model_trainer", (), (3e-4, 1e-3, 3e-3), _TEXT),
    "streams": _streams(
        (1.3e-3, 2.6e-3, 5.2e-3), STREAM_SHAPE | {"embedding_learning_rate": EMBEDDING_RATE}
    ),
    "ppd": _streams((3e-3, 1e-2, 3e-2), _PROMPT_TOKENS),
}
"""What is trained, with the rates and losses that are tried, by name."""


@dataclass(frozen=True)
class Runs:
    """What all runs have in common."""

    model: Path = option(..., PATH, "Directory of a base that PyTorch reads, of floats.")
    data: Path = option(..., PATH, "JSONL of prompts and the base's answers.")
    valid: Path = option(..., PATH, "The same, held out.")
    work: Path = option(..., PATH, "Directory for the runs.")
    iters: int = option(60, integer(1), "Updates of each run.")
    batch_size: int = option(8, integer(1), "Answers of an update.")
    max_seq_length: int = option(
        MOST_ANSWER_TOKENS, integer(2), "Answers that are longer with their prompts are left out."
    )

    @property
    def flags(self) -> list[object]:
        """The options of a trainer, besides the method's."""
        places = {"--model": self.model, "--data": self.data, "--valid-data": self.valid}
        sizes = {"--iters": self.iters, "--batch-size": self.batch_size}
        return _listed(places | sizes | {"--max-seq-length": self.max_seq_length})


@dataclass(frozen=True)
class Cell:
    """One run: a method, at a rate, with a loss."""

    method: str
    loss: str
    rate: float

    def train(self, runs: Runs) -> dict[str, Any]:
        """Train, go on, or read what was found on the held-out answers.

        Returns:
            ``depths``, the shares of right top-1 guesses, and ``chain``, the tokens that a chain of
            them writes; of a draft model, which guesses one token after the other, it is ``None``.

        Raises:
            UserError: the data cannot be read, or the trainer failed.
        """
        learner = LEARNERS[self.method]
        flags = [*runs.flags, *learner.flags, *learner.losses[self.loss]]
        flags += ["--learning-rate", self.rate]
        output = runs.work / f"{self.method}-{self.rate:g}-{_digest(runs, learner, flags)}"
        if (found := _held_out(output)) is None:
            flags += ["--output", output, "--save-every", 20]
            if learner.trainer.endswith("head_trainer"):
                flags += ["--hidden-states", runs.work / "states"]
            if (output / "checkpoint.pt").exists():
                flags.append("--resume")
            run_module(learner.trainer, *flags, torch_first=True)
            found = _held_out(output)
        assert found is not None  # the trainer's last line
        depths = found.get("depths") or found.get("streams") or [found["main"]]
        return {"depths": depths, "chain": found.get("chain")}


def _digest(runs: Runs, learner: Learner, flags: Sequence[object]) -> str:
    """A name for what is trained, and on what."""
    texts = []
    for path in (runs.data, runs.valid):
        try:
            texts.append(hashlib.sha256(path.read_bytes()).hexdigest())
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}, expected a JSONL file") from None
    named = json.dumps([learner.trainer, *flags, *texts], default=str)
    return hashlib.sha256(named.encode()).hexdigest()[:12]


def _held_out(output: Path) -> dict[str, Any] | None:
    """What a run's log says of the held-out answers; ``None``: it has not come so far."""
    log = output / "log.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    found = [json.loads(line) for line in lines if '"held_out"' in line]
    return found[-1]["held_out"] if found else None


def cells_of(methods: str, rates: str = "") -> list[Cell]:
    """The runs of some methods.

    Args:
        methods: their names with commas between them; empty: all.
        rates: other rates than theirs, likewise.

    Raises:
        UserError: a name is unknown, or a rate no number above 0.
    """
    names = [name.strip() for name in methods.split(",")] if methods else list(LEARNERS)
    for name in names:
        if name not in LEARNERS:
            raise UserError(f"--methods names {name!r}, expected some of {', '.join(LEARNERS)}")
    given = [_rate(text) for text in rates.split(",")] if rates else None
    return [
        Cell(name, loss, rate)
        for name in names
        for loss in LEARNERS[name].losses
        for rate in given or LEARNERS[name].rates
    ]


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise UserError(f"--rates has {text.strip()!r}, expected numbers above 0")
    return rate


COLUMNS = {
    "method": "{method}",
    "loss": "{loss}",
    "learning rate": "{rate:g}",
    "right by depth": "{shown}",
    "tokens a chain": "{chain:.2f}",
    "of its method": "{place}",
}


def ranked(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a table; ``place`` is 1 for the method's best.

    A chain's length decides; of a draft model, how often it is right. Where the best rate is the
    highest or lowest of those tried, ``place`` says so.
    """

    def worth(row: Mapping[str, Any]) -> float:
        return row["chain"] or row["depths"][0]

    found = []
    for row in rows:
        own = [other for other in rows if other["method"] == row["method"]]
        place = str(1 + sum(worth(other) > worth(row) for other in own))
        rates = {other["rate"] for other in own}
        if place == "1" and len(rates) > 1 and row["rate"] in (min(rates), max(rates)):
            place = f"1, the {'lowest' if row['rate'] == min(rates) else 'highest'} rate"
        shown = " ".join(f"{share:.3f}".lstrip("0") for share in row["depths"])
        found.append(dict(row) | {"shown": shown, "place": place})
    return found


def about(runs: Runs, facts: Mapping[str, Any]) -> str:
    """What was done, in a line, on the machine that ``device.describe()`` tells of."""
    counts = [len(path.read_text().splitlines()) for path in (runs.data, runs.valid)]
    return (
        f"{facts['machine']}, {facts['cpu']}, PyTorch {version('torch')}, {commit()}. From "
        f"nothing, {runs.iters} updates of {runs.batch_size} of {counts[0]:,} answers of the base, "
        f"with their prompts at most {runs.max_seq_length} tokens, one seed. On {counts[1]} "
        "held-out answers: right top-1 guesses by depth, and tokens that a chain of them writes."
    )


def main(
    *,
    runs: Runs,
    methods: str = option("", TEXT, "Only these. Default: all.", metavar="NAME,NAME"),
    rates: str = option("", TEXT, "Learning rates instead of each method's.", metavar="X,X"),
    output: Path = OUTPUT,
) -> None:
    """Train each method's head at several rates and with its losses, and compare (resumable)."""
    rows = []
    for cell in track(cells_of(methods, rates), "runs"):
        done = {"method": cell.method, "loss": cell.loss, "rate": cell.rate}
        rows.append(done | cell.train(runs))
    facts = device.describe()
    text = about(runs, facts)
    lines = [text, "", *table(COLUMNS, ranked(rows))]
    part = f"-{methods.replace(' ', '').replace(',', '-')}" if methods else ""
    name = f"head-tuning{part}-{machine_suffix(facts)}"
    print(write_report(output, name, {"facts": text, "rows": rows}, lines))


if __name__ == "__main__":
    program(main)()
