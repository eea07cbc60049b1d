"""What the suite ``tuned`` compares: the tuner's drafts, and what is fastest by measuring it all.

The tuner measures on training texts. The sweep decodes a held-out text with everything that the
tuner may choose, and two more with the best of that; the best few and the fixed trees then decode
others, which decides what is fastest among them. Whoever wins was lucky with the texts and the
clock too, so the comparison itself uses texts that none of this has seen.
"""

import json
import os
import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specstream_mlx.convert.demo_model import tasks

from specstream_mlx import DraftSettings, SpeculativeModel, UserError, tune
from specstream_mlx.autotune.grid import drafts, placed
from specstream_mlx.drafting.drafter import describe

from .runner import MLX_LM, ONE_TOKEN, Drafts, Mounted, interleaved
from .suites import BEST_FIXED, BEST_OF_SWEEP, TUNED_WAY
from .texts import held_out_texts

_SWEEP_TEXTS = 3
_FINALISTS = 3
_TRAINING_TEXTS = 16
_PLACED = {"none": "", "deferred": ", streams deferred", "beside": ", streams beside every node"}


@dataclass(frozen=True)
class Decision:
    """What is fastest for one task in one mode, on texts of their own.

    Attributes:
        mode, task: which.
        best: of the sweep and the fixed trees; ``None`` where there was no sweep.
        best_fixed: of the fixed trees.
        speedups: over mlx_lm on these texts.
    """

    mode: str
    task: str
    best: str | None
    best_fixed: str
    speedups: dict[str, float]


class Competition:
    """The ways that the suite ``tuned`` compares for each task.

    Args:
        fixed: the fixed trees by name, for each mode.
        items: texts that decide, and as many that compare.
        sweep: whether everything that the tuner may choose is tried.
        known: decisions of an earlier run, see ``decisions_of``; nothing is swept then.

    Attributes:
        decisions: of the tasks so far.
    """

    def __init__(
        self,
        fixed: Mapping[str, Mapping[str, DraftSettings]],
        items: int,
        sweep: bool,
        known: Mapping[tuple[str, str], Decision],
    ):
        self._fixed, self._items, self._sweep, self._known = fixed, items, sweep, known
        self.decisions: list[Decision] = []
        # What is tuned here, to one task after another, is nobody else's to use.
        os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()

    def ways(self, mounted: Mounted, task: str) -> dict[str, tuple[str, Drafts]]:
        """Name, description and drafts of what is compared on a task."""
        model = mounted.model
        own_texts = None if model.mode == "shared" else _training_texts(task)
        tuned = tune(model, mounted.tokenizer, own_texts, again=True)
        known = {**self._fixed[model.mode], **grid(model)}
        decision = self._known.get((model.mode, task)) or self._decide(mounted, task)
        names = {BEST_OF_SWEEP: decision.best, BEST_FIXED: decision.best_fixed}
        chosen = {role: name for role, name in names.items() if name is not None}
        for name in chosen.values():
            if name not in known:
                raise UserError(
                    f"the earlier run's best was {name!r}, expected something that can be chosen"
                )
        self.decisions.append(decision)
        described = f"{tuned.chosen.kind}, {describe(tuned.settings, streams=True)}"
        found: dict[str, tuple[str, Drafts]] = {TUNED_WAY: (described, tuned.drafting)}
        return found | {
            role: (name.removeprefix("sweep: "), known[name]) for role, name in chosen.items()
        }

    def values(self) -> dict[str, Any]:
        """What an earlier run's file must have for ``--best-of``."""
        return {"decisions": [asdict(decision) for decision in self.decisions]}

    def _decide(self, mounted: Mounted, task: str) -> Decision:
        fixed = candidates = self._fixed[mounted.model.mode]
        if self._sweep:
            texts = held_out_texts(mounted.tokenizer, task, _SWEEP_TEXTS, skipped=2 * self._items)
            best = fastest_of_grid(mounted, [text.prompt for text in texts])
            candidates = {**fixed, **best}
        texts = held_out_texts(mounted.tokenizer, task, self._items)
        speedups = _speedups(mounted, [text.prompt for text in texts], candidates, warm_up=True)
        return Decision(
            mounted.model.mode,
            task,
            max(speedups, key=speedups.__getitem__) if self._sweep else None,
            max(fixed, key=speedups.__getitem__),
            speedups,
        )


def grid(model: SpeculativeModel) -> dict[str, DraftSettings]:
    """Everything that the tuner may choose among."""
    streams = model.streams.config
    found = {"sweep: plain": ONE_TOKEN}
    for kind, settings in drafts(streams, model.config["vocab_size"]):
        for moved in placed(settings, streams):
            name = f"sweep: {kind}, {describe(moved, streams=True)}"
            if streams.mode == "lossless" and moved.stream_nodes is None:
                name += _PLACED[moved.placement(streams)]
            found[name] = moved
    return found


def fastest_of_grid(
    mounted: Mounted, prompts: Sequence[Sequence[int]]
) -> Mapping[str, DraftSettings]:
    """The fastest few of the grid: all on the first prompt, then the best sixth on the others."""
    candidates = grid(mounted.model)
    for some, kept in ((prompts[:1], len(candidates) // 6), (prompts[1:], _FINALISTS)):
        speedups = _speedups(mounted, some, candidates, warm_up=False)
        best = sorted(candidates, key=speedups.__getitem__, reverse=True)[:kept]
        candidates = {name: candidates[name] for name in best}
    return candidates


def _speedups(
    mounted: Mounted,
    prompts: Sequence[Sequence[int]],
    candidates: Mapping[str, DraftSettings],
    warm_up: bool,
) -> dict[str, float]:
    ways = {name: mounted.ours(settings) for name, settings in candidates.items()}
    found = interleaved(prompts, {MLX_LM: mounted.mlx_lm()} | ways, warm_up=warm_up)
    return {name: round(found.speedup(name, MLX_LM), 3) for name in ways}


def decisions_of(path: Path, jobs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Decision]:
    """What an earlier run found fastest for ``jobs``, modes and tasks.

    Raises:
        UserError: ``path`` is no result of the suite ``tuned``, or has no sweep of one of these.
    """
    try:
        values = [Decision(**one) for one in json.loads(path.read_text())["decisions"]]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"--best-of {path} is not a JSON file of the suite tuned") from None
    found = {(one.mode, one.task): one for one in values if one.best}
    for mode, task in jobs:
        if (mode, task) not in found:
            raise UserError(f"--best-of {path} has no sweep of {task}, {mode}, expected one")
    return found


def _training_texts(task: str) -> list[str]:
    """What the base's streams are tuned on for a task: instructed items of the training split."""
    rng = random.Random(f"tuned-{task}")
    return [tasks.instructed(tasks.sample(rng, "train", task)) for _ in range(_TRAINING_TEXTS)]
