"""Recorded calls of a package, as a JSON file, and their replay by another executor.

The file::

    {"format": 1, "package": "tools.mlpackage", "fingerprint": "..",
     "runs": [{"adapter": "sql", "prompt": [1, 5, ..],
               "settings": {"tree_size": 7, "temperature": 0.0, "seed": null,
                            "max_tokens": 16, "stop_tokens": [2]},
               "tokens": [8, 3, ..],
               "calls": [{"function": "sql_prefill64",
                          "inputs": {"inputIds": [..], "length": [0]},
                          "outputs": {"end": [64]}}, ..]}, ..]}

``fingerprint`` is that of the base's architecture. A run begins with empty states, and its calls
follow each other on the same states, those of ``draft`` apart, which has none. ``tokens`` is the
text, without what the last call wrote beyond ``max_tokens`` or after a stop token. Arrays are
nested lists; integers are int32, and floats float32, written with as many digits as tell them
apart. ``tree_size`` counts the nodes below the root, ``seed`` is null where nothing is drawn.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.engine.sampling import sampling_of
from specstream_mlx.errors import UserError, naming, shown
from specstream_mlx.files import read_json, staged_file
from specstream_mlx.generation.request import Request
from specstream_mlx.options import OBJECT, TEXT, what
from specstream_mlx.terminal.progress import Show

from .contents import Contents
from .decoder import PackageDecoder
from .executors import Executor, call

FORMAT = 1

EXACT = 1e-4
"""The most by which a float may differ in float32, as a share of max(1, the largest)."""

FAR = 0.1
"""The same where every operation is rounded to half precision, as on a device. Rounding alone gave
a few hundredths; what reads a wrong row is off by more than this."""

LEAST_EQUAL = 0.9
"""Integers that must be equal there: rounding turns near-ties around, which are few."""


class Recorder:
    """An executor that keeps the calls of another one, in ``calls``."""

    def __init__(self, executor: Executor):
        self.title, self.states, self._executor = executor.title, executor.states, executor
        self.calls: list[dict[str, Any]] = []

    def call(
        self, name: str, inputs: Mapping[str, np.ndarray], states: Any = None
    ) -> dict[str, np.ndarray]:
        outputs = self._executor.call(name, inputs, states)
        copies = [{n: np.array(v) for n, v in arrays.items()} for arrays in (inputs, outputs)]
        self.calls.append({"function": name, "inputs": copies[0], "outputs": copies[1]})
        return outputs


def recorded_run(decoder: PackageDecoder, recorder: Recorder, request: Request) -> dict[str, Any]:
    """Decode a request by a decoder whose executor is the recorder; one of the file's runs."""
    recorder.calls, request = [], decoder.fitted(request)
    tokens = [token for step in decoder.decode(request) for token in step.tokens]
    ends = (place for place, token in enumerate(tokens) if token in request.end_tokens)
    drafts, sampling = request.drafting, sampling_of(request.sampler)
    assert isinstance(drafts, DraftSettings)  # of a fitted request
    return {
        "adapter": decoder.adapter.name,
        "prompt": list(request.prompt),
        "settings": {
            "tree_size": drafts.tree_size if drafts.speculation else 0,
            "temperature": float(sampling.temp) if sampling else 0.0,
            "seed": getattr(request.sampler, "seed", None),
            "max_tokens": request.max_tokens,
            "stop_tokens": list(request.end_tokens),
        },
        "tokens": tokens[: request.max_tokens][: next(ends, len(tokens))],
        "calls": recorder.calls,
    }


def record(
    contents: Contents, executor: Executor, requests: Sequence[tuple[str, Request]], show: Show
) -> dict[str, Any]:
    """The content of a file, with arrays for lists: requests, each for an adapter by name."""
    recorder, runs = Recorder(executor), []
    for number, (adapter, request) in enumerate(requests):
        show(number, len(requests), f"Recording {adapter}")
        runs.append(recorded_run(PackageDecoder(contents, recorder, adapter), recorder, request))
    return {
        "format": FORMAT,
        "package": contents.path.name,
        "fingerprint": contents.fingerprint,
        "runs": runs,
    }


def write(recorded: Mapping[str, Any], path: Path) -> None:
    """Write what ``record`` returned to a new file."""
    with staged_file(path, replace=False) as scratch:
        scratch.write_text(json.dumps(recorded, separators=(",", ":"), default=_lists) + "\n")


def _lists(array: np.ndarray) -> Any:
    """Nested lists; floats with the fewest digits that are theirs alone in float32."""
    floats = array.dtype.kind == "f"
    return (array.astype(str).astype(np.float64) if floats else array).tolist()


def read(path: Path, contents: Contents) -> dict[str, Any]:
    """Read a file again, which must be of the package's base."""
    recorded = read_json(path)
    for name, expected in (("format", FORMAT), ("fingerprint", contents.fingerprint)):
        if recorded.get(name) != expected:
            raise UserError(
                f"{path} has the {name} {shown(recorded.get(name))}, expected {expected}"
            )
    with naming(f"{path} is damaged"):
        _SOME.check("runs", recorded.get("runs"))
        for run in recorded["runs"]:
            TEXT.check("adapter", run.get("adapter"))
            contents.adapter(run["adapter"])
            _SOME.check("calls", run.get("calls"))
            for recorded_call in run["calls"]:
                TEXT.check("function", recorded_call.get("function"))
                recorded_call |= {
                    key: _arrays(key, recorded_call.get(key)) for key in ("inputs", "outputs")
                }
    return recorded


_SOME = what(
    "a list of at least one object",
    lambda value: (
        isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)
    ),
)


def _arrays(part: str, lists: Any) -> dict[str, np.ndarray]:
    """Arrays of nested lists: float32 where a number has a point, else int32."""
    OBJECT.check(part, lists)
    arrays = {}
    for name, value in lists.items():
        try:
            array = np.asarray(value)
            arrays[name] = array.astype({"f": np.float32, "i": np.int32}[array.dtype.kind])
        except (KeyError, OverflowError, ValueError):
            raise UserError(
                f"{part}' {shown(name)} is {shown(value)}, expected nested lists of numbers"
            ) from None
    return arrays


# Replays ------------------------------------------------------------------------------------------


@dataclass
class Difference:
    """What an executor returned for one output of a function, against what was recorded."""

    function: str
    output: str
    calls: int = 0
    largest: float | None = None  # of floats: the largest difference, as a share (see ``EXACT``)
    integers: int = 0
    equal: int = 0  # integers
    seconds: float | None = None  # mean time of a call but the first

    def add(self, found: np.ndarray, expected: np.ndarray, alike: np.ndarray | bool) -> None:
        """Compare one call's output; ``alike``: the numbers that stand for the same in both."""
        self.calls += 1
        if expected.dtype == np.float32:
            with np.errstate(invalid="ignore"):
                apart = np.abs(found.astype(np.float64) - expected).max(where=alike, initial=0)
            share = float(apart / max(1.0, np.abs(expected).max()))
            self.largest = max(self.largest or 0.0, share if np.isfinite(share) else np.inf)
        else:
            self.integers += expected.size
            self.equal += int((found == expected).sum())


@dataclass
class Replay:
    """A replay by an executor, by its title; one in float32 is ``exact``, so ``EXACT`` holds."""

    executor: str
    exact: bool
    differences: list[Difference]

    def complaint(self) -> str | None:
        bound, least = (EXACT, 1.0) if self.exact else (FAR, LEAST_EQUAL)
        worst = max(self.differences, key=lambda difference: difference.largest or 0.0)
        if (worst.largest or 0.0) > bound:
            return (
                f"{worst.output} of {worst.function} differs by {worst.largest:.2g}, "
                f"expected at most {bound:g}"
            )
        integers = sum(difference.integers for difference in self.differences)
        equal = sum(difference.equal for difference in self.differences)
        if equal < least * integers:
            return f"{equal} of {integers} integers are equal, expected at least {least:.0%}"
        return None


def replay(recorded: Mapping[str, Any], executor: Executor, exact: bool, show: Show) -> Replay:
    """Give an executor the recorded inputs, call by call, and compare what it returns."""
    differences: dict[tuple[str, str], Difference] = {}
    seconds: dict[str, list[float]] = {}
    runs = recorded["runs"]
    for number, run in enumerate(runs):
        show(number, len(runs), f"Replaying by {executor.title}")
        states = executor.states()
        for recorded_call in run["calls"]:
            name, expected = recorded_call["function"], recorded_call["outputs"]
            inputs = recorded_call["inputs"]
            began = time.perf_counter()
            outputs = call(executor, name, inputs, states if "length" in inputs else None)
            seconds.setdefault(name, []).append(time.perf_counter() - began)
            shapes, wanted = (
                {output: np.shape(value) for output, value in arrays.items()}
                for arrays in (outputs, expected)
            )
            if shapes != wanted:
                raise UserError(f"{name} returns {shapes}, expected {wanted} as recorded")
            for output, value in expected.items():
                alike = _alike(outputs, expected) if output == "logProbs" else True
                difference = differences.setdefault((name, output), Difference(name, output))
                difference.add(np.asarray(outputs[output]), value, alike)
    for difference in differences.values():
        later = seconds[difference.function][1:]  # the first one loads and warms up
        difference.seconds = sum(later) / len(later) if later else None
    return Replay(executor.title, exact, list(differences.values()))


def _alike(ours: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> np.ndarray:
    """(.., k) where both guess the same token after the same ones before it.

    Where a near-tie between guesses falls otherwise, those after them are of another text. Such
    guesses are counted among the integers that differ.
    """
    alike = np.asarray(ours["candidates"]) == expected["candidates"]
    if "candidateParents" in expected:
        parents = expected["candidateParents"]
        alike &= (np.asarray(ours["candidateParents"]) == parents)[..., None]
        for depth in range(1, len(parents)):
            alike[depth] &= alike[depth - 1].reshape(-1)[parents[depth]][:, None]
    return alike
