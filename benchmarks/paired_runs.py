"""Ways to decode the same prompts, each run within seconds of the baseline's on the same prompt."""

import random
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from specstream_mlx.autotune.drift import without_drift

from .timed_runs import TimedRun, call_reduction, nodes_per_call

Method = Callable[[Sequence[int]], TimedRun]
"""``prompt -> run``."""

Name = TypeVar("Name", bound=Hashable)


@dataclass
class Paired:
    """The runs of one method, and the ratio of each one's decode rate to the baseline's."""

    runs: list[TimedRun] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    @property
    def call_reduction(self) -> float:
        """Tokens, each a call of plain decoding, per target call."""
        return round(call_reduction(self.runs), 3)

    @property
    def nodes(self) -> float:
        """Drafted tokens that an average target call tests."""
        return round(nodes_per_call(self.runs), 2)

    @property
    def speedup(self) -> float:
        """The median ratio."""
        return round(statistics.median(self.ratios), 3)


def paired(
    prompts: Sequence[Sequence[int]],
    baseline: Method,
    methods: Mapping[Name, Method],
    advance: Callable[[], object] = lambda: None,
) -> tuple[list[TimedRun], dict[Name, Paired]]:
    """The baseline's runs, and each method's, after a warm-up of all on the first prompt.

    Each prompt has them in another random order: what runs right behind ``mlx_lm`` comes out two or
    three per cent slower than the same thing later.

    Args:
        prompts: token ids.
        baseline: what the others are compared with.
        methods: the others.
        advance: is called after each prompt.
    """
    everything = [(None, baseline), *methods.items()]
    for _, method in everything:
        method(prompts[0])
    plain: list[TimedRun] = []
    found = {name: Paired() for name in methods}
    orders = random.Random(0)
    for prompt in prompts:
        order = orders.sample(everything, len(everything))
        runs = {name: run(prompt) for name, run in order}
        plain.append(runs.pop(None))
        for name, run in runs.items():
            found[name].runs.append(run)
            found[name].ratios.append(run.decode_tps / plain[-1].decode_tps)
        advance()
    return plain, found


@dataclass(frozen=True)
class Repeated(Generic[Name]):
    """Several runs of some methods on the same prompts.

    Attributes:
        runs: of each method, for each prompt.
        seconds: of a method on a prompt behind the first token, the machine's drift taken out; only
            where anything is generated behind that.
    """

    runs: dict[Name, list[list[TimedRun]]]
    seconds: dict[tuple[Name, int], float]

    def rate(self, name: Name) -> float:
        """Tokens per second over all prompts, without the first token of each."""
        numbers = [number for other, number in self.seconds if other == name]
        tokens = sum(len(self.runs[name][number][0].tokens) - 1 for number in numbers)
        return tokens / sum(self.seconds[name, number] for number in numbers)


def repeated(
    prompts: Sequence[Sequence[int]], methods: Mapping[Name, Method], rounds: int
) -> Repeated[Name]:
    """Run each method on each prompt, once a round, in another random order every time.

    Args:
        prompts: token ids.
        methods: deterministic ones, so that a prompt's runs differ by the clock alone.
        rounds: how often each prompt is decoded.
    """
    runs: dict[Name, list[list[TimedRun]]] = {name: [[] for _ in prompts] for name in methods}
    timings: list[tuple[tuple[Name, int], float]] = []
    orders = random.Random(0)
    for _ in range(rounds):
        for number, prompt in enumerate(prompts):
            for name in orders.sample(list(methods), len(methods)):
                run = methods[name](prompt)
                runs[name][number].append(run)
                if len(run.tokens) > 1:
                    timings.append(((name, number), (len(run.tokens) - 1) / run.decode_tps))
    return Repeated(runs, without_drift(timings))
