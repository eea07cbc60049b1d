"""The calibration prompts of the bundled adapters, from the training text of their tasks.

    python -m specstream_mlx.convert.demo_model.calibration

It writes the calibration file of every bundled adapter again.
"""

import json
import random
from pathlib import Path

from specstream_mlx import bundled
from specstream_mlx.autotune.calibration import CALIBRATION_FILE

from . import tasks

_PROMPTS = 16
_SEED = 44


def prompts(task: str | None) -> list[str]:
    """The calibration prompts of an adapter.

    Args:
        task: name of the adapter's task, for what users type to it; ``None`` for prompts of all
            tasks to the base, each with its instruction.
    """
    if task is not None:
        rng = random.Random(f"{task}-{_SEED}")
        return [tasks.sample(rng, "train", task).content for _ in range(_PROMPTS)]
    rng = random.Random(_SEED)
    return [tasks.instructed(tasks.sample(rng, "train", name)) for name in tasks.TASKS]


def write_calibration(directory: Path, task: str | None = None) -> None:
    """Write the calibration file of an adapter into its directory; for ``task`` see ``prompts``."""
    lines = [json.dumps({"prompt": prompt}) + "\n" for prompt in prompts(task)]
    (directory / CALIBRATION_FILE).write_text("".join(lines))


def main() -> None:
    """Write the calibration files of all bundled adapters."""
    write_calibration(bundled.streams_path())
    for name in bundled.adapter_names():
        write_calibration(bundled.adapter_path(name), name)


if __name__ == "__main__":
    main()
