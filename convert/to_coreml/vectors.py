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
text, without what the last call wrote beyond ``max_tokens`` or behind a stop token. Arrays are
nested lists; integers are int32, and floats float32, written with as many digits as tell them
apart. ``tree_size`` counts the nodes below the root, ``seed`` is null where nothing is drawn.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.engine.sampling import keyed_sampler
from specstream_mlx.errors import UserError, shown
from specstream_mlx.files import read_json, staged_file
from specstream_mlx.request import Request

from .contents import Contents
from .decoder import PackageDecoder
from .executors import REFUSALS, Executor

FORMAT = 1

EXACT = 1e-4
"""The most by which a float may differ in float32, as a share of max(1, the largest)."""

FAR = 0.1
"""The same where every operation is rounded to half precision, as on a device. Rounding alone gave
a few hundredths; what reads a wrong row is off by more than this."""

LEAST_EQUAL = 0.9
"""Integers that must be equal there: rounding turns near-ties around, which are few."""

Show = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Asked:
    """One run to record.

    Attributes:
        adapter: its name.
        prompt: token ids.
        max_tokens: of the text.
        temperature: 0: greedy.
        seed: of what is drawn.
    """

    adapter: str
    prompt: Sequence[int]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0


class _Recorder:
    """An executor that keeps the calls of another one."""

    def __init__(self, executor: Executor, calls: list[dict[str, Any]]):
        self.title, self._executor, self._calls = executor.title, executor, calls

    def states(self) -> Any:
        return self._executor.states()

    def call(
        self, name: str, inputs: Mapping[str, np.ndarray], states: Any = None
    ) -> dict[str, np.ndarray]:
        outputs = self._executor.call(name, inputs, states)
        call = {"function": name, "inputs": _lists(inputs), "outputs": _lists(outputs)}
        self._calls.append(call)
        return outputs


def record(
    contents: Contents,
    executor: Executor,
    runs: Sequence[Asked],
    show: Show = lambda done, total, description: None,
) -> dict[str, Any]:
    """The content of a file of vectors.

    Args:
        contents: of the package.
        executor: in float32.
        runs: what to decode.
        show: is told how far it is.

    Raises:
        UserError: the package cannot do what is asked.
    """
    found = []
    for number, asked in enumerate(runs):
        show(number, len(runs), f"Recording {asked.adapter}")
        calls: list[dict[str, Any]] = []
        decoder = PackageDecoder(contents, _Recorder(executor, calls), asked.adapter)
        sampler = keyed_sampler(asked.seed, asked.temperature) if asked.temperature else None
        request = decoder.fitted(
            Request(
                asked.prompt,
                max_tokens=asked.max_tokens,
                end_tokens=contents.end_tokens,
                sampler=sampler,
            )
        )
        tokens = [token for step in decoder.decode(request) for token in step.tokens]
        stops = (place for place, token in enumerate(tokens) if token in contents.end_tokens)
        drafts = request.drafting
        assert isinstance(drafts, DraftSettings)
        settings = {
            "tree_size": drafts.tree_size if drafts.speculation else 0,
            "temperature": float(asked.temperature),
            "seed": asked.seed if asked.temperature else None,
            "max_tokens": request.max_tokens,
            "stop_tokens": list(contents.end_tokens),
        }
        run = {
            "adapter": decoder.adapter.name,
            "prompt": list(asked.prompt),
            "settings": settings,
            "tokens": tokens[: request.max_tokens][: next(stops, len(tokens))],
            "calls": calls,
        }
        found.append(run)
    show(len(runs), len(runs), "Recording")
    return {
        "format": FORMAT,
        "package": contents.path.name,
        "fingerprint": contents.fingerprint,
        "runs": found,
    }


def check_place(path: Path) -> None:
    """Check that nothing but an earlier recording is replaced."""
    if not os.path.lexists(path):
        return
    try:
        is_one = {"format", "fingerprint", "runs"} <= read_json(path).keys()
    except UserError:
        is_one = False
    if not is_one:
        raise UserError(f"{path} exists already and is no recording, expected another --record")


def write(vectors: Mapping[str, Any], path: Path) -> None:
    """Write a file of vectors; a recording that is there is replaced."""
    check_place(path)
    with staged_file(path) as scratch:
        scratch.write_text(json.dumps(vectors, separators=(",", ":")) + "\n")


def read(path: Path, contents: Contents) -> dict[str, Any]:
    """Read a file of vectors."""
    vectors = read_json(path)
    if vectors.get("format") != FORMAT:
        raise UserError(f"{path} has the format {shown(vectors.get('format'))}, expected {FORMAT}")
    if vectors.get("fingerprint") != contents.fingerprint:
        raise UserError(
            f"{path} was recorded with a base of the fingerprint "
            f"{shown(vectors.get('fingerprint'))}, expected {contents.fingerprint}, that of "
            f"{contents.path}"
        )
    runs = vectors.get("runs")
    if not isinstance(runs, list) or not runs:
        raise UserError(f"{path} has no runs, expected at least one")
    for number, run in enumerate(runs):
        if not isinstance(run, dict) or not _is_calls(run.get("calls")):
            raise UserError(
                f"{path}: run {number} is damaged, expected calls with function, inputs, outputs"
            )
        contents.adapter(run.get("adapter"))
    return vectors


def _is_calls(calls: Any) -> bool:
    fields = {"function": str, "inputs": dict, "outputs": dict}
    return (
        isinstance(calls, list)
        and bool(calls)
        and all(
            isinstance(call, dict) and all(isinstance(call.get(n), t) for n, t in fields.items())
            for call in calls
        )
    )


@dataclass
class Difference:
    """Difference that a replay found in one output of one function.

    Attributes:
        function: its name.
        output: its name.
        calls: number of calls.
        largest: of floats, the largest difference as a share of max(1, the largest float); ``None``
            of integers.
        equal: number of equal integers.
        integers: number of integers.
        seconds: of a call of the function, the first one left out; ``None``: there was one only.
    """

    function: str
    output: str
    calls: int = 0
    largest: float | None = None
    equal: int = 0
    integers: int = 0
    seconds: float | None = None

    def add(self, found: np.ndarray, expected: np.ndarray, alike: np.ndarray | None) -> None:
        """Compare one call's output; ``alike``: the numbers that stand for the same in both."""
        self.calls += 1
        if expected.dtype == np.float32:
            with np.errstate(invalid="ignore"):
                apart = np.abs(found.astype(np.float64) - expected)
                apart = apart.max() if alike is None else apart.max(where=alike, initial=0)
            share = float(apart / max(1.0, np.abs(expected).max()))
            share = share if np.isfinite(share) else float("inf")
            self.largest = max(self.largest or 0.0, share)
        else:
            self.integers += expected.size
            self.equal += int((found == expected).sum())


@dataclass
class Replay:
    """A replay by one executor.

    Attributes:
        executor: its title.
        exact: whether it computes in float32, so that ``EXACT`` holds.
        differences: by function and output.
    """

    executor: str
    exact: bool
    differences: list[Difference] = field(default_factory=list)

    def complaint(self) -> str | None:
        """Sentence about what is wrong; ``None``: nothing."""
        bound = EXACT if self.exact else FAR
        worst = max(self.differences, key=_largest, default=None)
        if worst is not None and _largest(worst) > bound:
            return (
                f"{worst.output} of {worst.function} differs by {_largest(worst):.2g}, "
                f"expected at most {bound:g}"
            )
        integers = sum(d.integers for d in self.differences)
        equal, least = sum(d.equal for d in self.differences), 1 if self.exact else LEAST_EQUAL
        if equal < least * integers:
            return f"{equal} of {integers} integers are equal, expected at least {least:.0%}"
        return None


def _largest(difference: Difference) -> float:
    return difference.largest or 0.0


def replay(
    vectors: Mapping[str, Any],
    executor: Executor,
    exact: bool,
    show: Show = lambda done, total, description: None,
) -> Replay:
    """Give an executor the recorded inputs, call by call, and compare what it returns.

    Args:
        vectors: from ``record`` or ``read``.
        executor: the executor to try.
        exact: whether it computes in float32.
        show: is told how far it is.

    Raises:
        UserError: the recording does not fit the package.
    """
    found: dict[tuple[str, str], Difference] = {}
    seconds: dict[str, list[float]] = {}
    total, done = sum(len(run["calls"]) for run in vectors["runs"]), 0
    for run in vectors["runs"]:
        states = executor.states()
        for call in run["calls"]:
            show(done, total, f"Replaying by {executor.title}")
            name, inputs = call["function"], _arrays(call["inputs"])
            began = time.perf_counter()
            try:
                outputs = executor.call(name, inputs, states if "length" in inputs else None)
            except UserError:
                raise
            except REFUSALS as error:
                raise UserError(
                    f"{executor.title} refuses a recorded call of {name}: {error}"
                ) from None
            seconds.setdefault(name, []).append(time.perf_counter() - began)
            expected = _arrays(call["outputs"])
            if outputs.keys() != expected.keys():
                raise UserError(
                    f"{name} returns {sorted(outputs)}, expected {sorted(expected)} as recorded"
                )
            alike = {"logProbs": _alike(outputs, expected)} if "logProbs" in expected else {}
            for output, value in expected.items():
                difference = found.setdefault((name, output), Difference(name, output))
                returned = np.asarray(outputs[output])
                if returned.shape != value.shape:
                    raise UserError(
                        f"{output} of {name} has the shape {returned.shape}, expected "
                        f"{value.shape} as recorded"
                    )
                difference.add(returned, value, alike.get(output))
            done += 1
    show(total, total, "Replaying")
    for difference in found.values():
        later = seconds[difference.function][1:]  # the first one loads and warms up
        difference.seconds = sum(later) / len(later) if later else None
    return Replay(executor.title, exact, list(found.values()))


def _alike(
    found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]
) -> np.ndarray | None:
    """(.., k) where both guess the same token behind the same ones before it.

    Where a near-tie between guesses falls otherwise, those behind them are of another text. Such
    guesses are counted among the integers that differ.
    """
    tokens = expected["candidates"]
    if any(np.shape(found[name]) != value.shape for name, value in expected.items()):
        return None
    alike = np.asarray(found["candidates"]) == tokens
    if "candidateParents" in expected:
        parents = expected["candidateParents"]
        alike &= (np.asarray(found["candidateParents"]) == parents)[..., None]
        for depth in range(1, len(parents)):
            alike[depth] &= alike[depth - 1].reshape(-1)[parents[depth]][:, None]
    return alike


def _lists(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Nested lists; floats with the fewest digits that are theirs alone in float32."""
    found = {}
    for name, value in arrays.items():
        value = np.asarray(value)
        if value.dtype.kind == "f":
            value = value.astype(np.float32).astype(str).astype(np.float64)
        found[name] = value.tolist()
    return found


def _arrays(lists: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Arrays of nested lists: float32 where a number has a point, else int32."""
    found = {}
    for name, value in lists.items():
        try:
            array = np.asarray(value)
            kind = np.float32 if array.dtype.kind == "f" else np.int32
            found[name] = array.astype(kind)
        except (ValueError, TypeError, OverflowError):
            raise UserError(
                f"the recording's {name} is {shown(value)}, expected lists of numbers"
            ) from None
    return found
