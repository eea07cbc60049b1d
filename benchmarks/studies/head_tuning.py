"""Which learning rate and which loss does each method's draft head learn best with?

    python -m benchmarks.studies.head_tuning --model runs/adapters/expanded --work runs/tuning \\
        --data convert/demo_model/text/answers/train.jsonl \\
        --valid convert/demo_model/text/answers/valid.jsonl

Every head is trained at three rates with each of its losses, by equally many updates on the same
batches of the base's answers, and judged on held-out ones. ``--model`` is what ``train_adapters``
writes, the base expanded to floats. ``--methods`` takes a part, so that several calls may work side
by side; the table then has that part. The same command resumes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specstream_mlx import UserError
from specstream_mlx.hardware import device
from specstream_mlx.options.fields import option
from specstream_mlx.options.kinds import PATH, TEXT, integer
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from ..own_process import run_module
from ..report import OUTPUT, commit, machine_suffix, measured_on, table, write_report

_TRAINERS = "specstream_mlx.convert.pytorch."
_DRAFTED = 11_264  # tokens: the rows of the LM head that the bundled streams score
_TEXT: Mapping[str, Sequence[object]] = {"text": ()}


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


def _head(kind: str, *flags: object, rates: Sequence[float], **losses: Sequence[object]) -> Learner:
    """A draft head of another method; without losses it learns from the text, or from the base."""
    teachers = {teacher: ("--teacher", teacher) for teacher in ("text", "base")}
    common = ("--kind", kind, "--draft-vocabulary", _DRAFTED, *flags)
    return Learner(_TRAINERS + "head_trainer", common, rates, losses or teachers)


def _streams(rates: Sequence[float], **flags: object) -> Learner:
    """Lossless streams, which learn from the text alone."""
    given = {"--mode": "lossless", "--num-streams": 4, "--pruner-rank": 0}
    given |= {"--draft-vocabulary": _DRAFTED}
    given |= {f"--{name.replace('_', '-')}": value for name, value in flags.items()}
    return Learner(_TRAINERS + "trainer", _listed(given), rates, _TEXT)


def _listed(flags: Mapping[str, object]) -> list[object]:
    return [part for pair in flags.items() for part in pair]


_TOKENS_WEIGH = {f"tokens weigh {x}": ("--token-loss", x) for x in (0.1, 1)}

LEARNERS = {
    "medusa": _head("medusa", rates=(1e-3, 3e-3, 1e-2)),
    "medusa-own": _head("medusa", "--own-lm-heads", rates=(3e-4, 1e-3, 3e-3)),
    "hydra": _head("hydra", rates=(5e-4, 2e-3, 5e-3)),
    "eagle": _head("eagle", rates=(3e-4, 1e-3, 3e-3), **_TOKENS_WEIGH),
    "eagle3": _head("eagle3", rates=(2e-4, 5e-4, 2e-3)),
    "draft-model": Learner(_TRAINERS + "draft_model_trainer", (), (3e-4, 1e-3, 3e-3), _TEXT),
    "streams": _streams(
        (1.3e-3, 2.6e-3, 5.2e-3),
        num_msa_layers=8,
        stream_init_rank=128,
        stream_adapter_rank=16,
        stream_head_rank=224,
    ),
    "ppd": _streams(
        (3e-3, 1e-2, 3e-2),
        num_msa_layers=30,
        stream_init="embedding",
        stream_mlp="base",
        stream_head="plain",
        max_grad_norm=10,
    ),
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
    max_seq_length: int = option(512, integer(2), "Longer answers are left out.")

    def flags(self, output: Path) -> list[object]:
        """The options of a trainer, besides the method's."""
        places = {"--model": self.model, "--data": self.data, "--valid-data": self.valid}
        sizes = {"--iters": self.iters, "--batch-size": self.batch_size}
        sizes["--max-seq-length"] = self.max_seq_length
        common = places | sizes | {"--output": output, "--save-every": 20}
        return _listed(common)


@dataclass(frozen=True)
class Cell:
    """One run: a method, at a rate, with a loss."""

    method: str
    loss: str
    rate: float

    def train(self, runs: Runs) -> dict[str, Any]:
        """Train, go on, or read what was found: ``depths``, and ``chain`` if it drafts several."""
        learner = LEARNERS[self.method]
        name = f"{self.method}-{self.loss.replace(' ', '-')}-{self.rate:g}"
        output = runs.work / f"{name}-{runs.iters}x{runs.batch_size}"
        if (found := _held_out(output)) is None:
            flags = [*runs.flags(output), *learner.flags, *learner.losses[self.loss]]
            flags += ["--learning-rate", self.rate]
            if learner.trainer.endswith("head_trainer"):
                flags += ["--hidden-states", runs.work / "states"]
            if (output / "checkpoint.pt").exists():
                flags.append("--resume")
            run_module(learner.trainer, *flags, torch_first=True)
            found = _held_out(output)
        assert found is not None  # the trainer's last line
        depths = found.get("depths") or found.get("streams") or [found["main"]]
        return {"depths": depths, "chain": found.get("chain")}


def _held_out(output: Path) -> dict[str, Any] | None:
    """What a run's log says of the held-out answers; ``None``: it has not come so far."""
    log = output / "log.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    return json.loads(lines[-1]).get("held_out") if lines else None


def cells_of(methods: str) -> list[Cell]:
    """The runs of the methods that a list with commas names; of all if it is empty.

    Raises:
        UserError: a name is unknown.
    """
    names = [name.strip() for name in methods.split(",")] if methods else list(LEARNERS)
    for name in names:
        if name not in LEARNERS:
            raise UserError(f"--methods names {name!r}, expected some of {', '.join(LEARNERS)}")
    return [
        Cell(name, loss, rate)
        for name in names
        for loss in LEARNERS[name].losses
        for rate in LEARNERS[name].rates
    ]


COLUMNS = {
    "method": "{method}",
    "learns from": "{loss}",
    "learning rate": "{rate:g}",
    "right by depth": "{shown}",
    "tokens a chain": "{chain:.3f}",
    "of its method": "{place}",
}


def ranked(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a table; ``place`` is 1 for the method's best.

    A chain's length decides; where one token is drafted after the other by a model of its own, how
    often that is right.
    """

    def worth(row: Mapping[str, Any]) -> float:
        return row["chain"] or row["depths"][0]

    found = []
    for row in rows:
        better = [o for o in rows if o["method"] == row["method"] and worth(o) > worth(row)]
        shown = " ".join(f"{share:.3f}".lstrip("0") for share in row["depths"])
        found.append(dict(row) | {"shown": shown, "place": 1 + len(better)})
    return found


def main(
    *,
    runs: Runs,
    methods: str = option("", TEXT, "Only these: NAME,NAME. Default: all.", metavar="NAME,NAME"),
    output: Path = OUTPUT,
) -> None:
    """Train each method's head at several rates and with its losses, and compare (resumable)."""
    rows = []
    for cell in track(cells_of(methods), "runs"):
        about = {"method": cell.method, "loss": cell.loss, "rate": cell.rate}
        rows.append(about | cell.train(runs))
    facts = device.describe()
    text = (
        f"{measured_on(facts)}, {commit()}. PyTorch, {runs.iters} updates of {runs.batch_size} "
        "answers of the base from nothing; right top-1 guesses by depth, and tokens a chain of "
        "them writes, on held-out answers."
    )
    lines = [text, "", *table(COLUMNS, ranked(rows))]
    name = f"head-tuning-{machine_suffix(facts)}"
    print(write_report(output, name, {"facts": text, "rows": rows}, lines))


if __name__ == "__main__":
    program(main)()
