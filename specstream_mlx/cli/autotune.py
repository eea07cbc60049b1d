"""``specstream-mlx autotune``: the cost of steps here, and the drafts that follow from it."""

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checked_files import prompt_lines
from ..config import UserError
from ..hardware import blas
from ..options.fields import option
from ..options.generation import KVCacheOptions, most_tokens
from ..options.kinds import FLAG, PATH
from ..terminal.commands import grouped
from ..terminal.notes import note
from .options import JSON, ModelOptions, quantization

if TYPE_CHECKING:
    from rich.console import Console

    from ..drafting.auto import AutoDrafting, Pace
    from ..drafting.settings import DraftSettings
    from ..engine.kv_quantization import KVQuantization
    from ..loading import SpeculativeModel
    from ..loop import Step

_PROMPTS = (
    "Explain in a few sentences why the sky is blue.",
    "Write a short email that moves Thursday's meeting to Friday afternoon.",
    "List five things to check before a long trip by car, one a line.",
    "Summarize in one sentence: The library opens an hour later in winter. Books can still be "
    "returned at night through the slot beside the door, and all fines are waived in December.",
)
_ROUNDS = 3
_MOST_TEXTS = 200  # while the curve is measured

_HEADINGS = {"plain": "plain step", "none": "lookup alone", "beside": "beside all"}


@dataclass(frozen=True)
class _Figures:
    """Figures of some texts, summed.

    Attributes:
        tokens: number of tokens after the first step of each text.
        calls: number of target calls that wrote them.
        nodes: number of nodes that these verified, roots included.
        expected: tokens per second by the curve.
        factors: factors on the streams' probabilities at the ends of texts, see ``StreamAverages``.
        measured: tokens per second by the clock, and plain decoding's; ``None``: not asked for.
    """

    tokens: int
    calls: int
    nodes: int
    expected: float
    factors: list[list[float]]
    measured: tuple[float, float] | None


@grouped()
def autotune(
    *,
    model: ModelOptions,
    prompts: Path | None = option(
        None,
        PATH,
        "Texts to draft for: one prompt a line. Default: four everyday requests.",
        metavar="FILE",
    ),
    max_tokens: int = most_tokens(64, "Tokens to generate from each text, at most.", least=2),
    kv_cache: KVCacheOptions,
    again: bool = option(False, FLAG, "Measure the costs again, whatever is known."),
    check: bool = option(False, FLAG, "Also time the texts, in turn with one token a step."),
    as_json: bool = JSON,
) -> None:
    """Show what steps cost on this machine, and what drafting is expected to bring.

    Nobody has to run this: [bold]generate[/bold] times some of its own steps when it first meets a
    model or a machine, and decides before every step how much to draft, by these times and by how
    often guesses have been right in its text.

    [bold]Examples[/bold]

    [cyan]  specstream-mlx autotune --adapter sql[/cyan]

    [cyan]  specstream-mlx autotune --adapter summarize --prompts chats.txt --check[/cyan]
    """
    source = model.source()
    texts = list(_PROMPTS) if prompts is None else prompt_lines(prompts)

    from ..drafting.pace import pace_of
    from ..hardware import device
    from ..prompts import chat_prompt, check_prompt

    if device.slow_blas():
        note(blas.OPENBLAS_HINT)
    loaded, tokenizer = source.load()
    quantized = quantization(kv_cache)
    quantized.check(loaded.model, loaded.config)
    ids = [chat_prompt(tokenizer, text, loaded.prompt_template) for text in texts]
    for text in ids:
        check_prompt(text, loaded.config)
    run = _Texts(loaded, ids, max_tokens, tokenizer.eos_token_ids, quantized)
    pace = pace_of(loaded, quantized)
    if again:
        pace.costs.forget()
    run.complete(pace)
    figures = run.figures(pace, check)
    if as_json:
        values = {"model": source.model_name, "adapter": source.adapter_name, "mode": loaded.mode}
        print(json.dumps(values | _values(pace, figures), indent=2))
        return
    _show(pace, figures, loaded)


class _Texts:
    """Some prompts, and how they are gone on from."""

    def __init__(
        self,
        model: "SpeculativeModel",
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        end_tokens: Sequence[int],
        quantization: "KVQuantization",
    ):
        self._model, self._prompts = model, prompts
        self._common: dict[str, Any] = {
            "max_tokens": max_tokens,
            "end_tokens": end_tokens,
            "quantization": quantization,
        }

    def complete(self, pace: "Pace") -> None:
        """Decode until the cost curve is there.

        Raises:
            UserError: the texts are too short to time steps in.
        """
        from ..terminal.progress import progress

        total = pace.costs.missing
        with progress("Timing steps") as show:
            show(0, total)
            for number in range(_MOST_TEXTS):
                if pace.costs.complete:
                    return
                prompt = self._prompts[number % len(self._prompts)]
                for _ in self._steps(prompt, self._drafting(prompt)):
                    show(total - pace.costs.missing, total)
        raise UserError("the texts end too soon to time steps in, expected longer ones: --prompts")

    def figures(self, pace: "Pace", check: bool) -> _Figures:
        """Decode every text; with ``check`` some more times, in turn with one token a step."""
        from ..terminal.progress import track

        tokens = calls = nodes = 0
        seconds, factors = 0.0, []
        for prompt in track(self._prompts, "Decoding"):
            drafting = self._drafting(prompt)
            steps = list(self._steps(prompt, drafting))[1:]
            tokens += sum(len(step.tokens) for step in steps)
            calls += len(steps)
            nodes += sum(len(step.tree) for step in steps)
            seconds += sum(
                pace.costs.curve.seconds(drafting.place_of(step.plan), len(step.tree))
                for step in steps
            )
            if self._model.streams is not None:
                factors.append(
                    [drafting.averages.factor(place, rank) for place in (0, 1) for rank in (0, 1)]
                )
        if not tokens:
            raise UserError("no text got a second token, expected one that can be timed")
        means = [statistics.mean(values) for values in zip(*factors, strict=True)]
        measured = self._measured() if check else None
        pairs = [means[:2], means[2:]] if means else []
        return _Figures(tokens, calls, nodes, tokens / seconds, pairs, measured)

    def _measured(self) -> tuple[float, float]:
        """Tokens per second of ours and of one token a step, behind the first step."""
        from ..drafting.settings import DraftSettings
        from ..terminal.progress import track

        plain = DraftSettings(speculation=False)
        rates: list[list[float]] = [[], []]
        for number in track(range(_ROUNDS), "Comparing"):
            for side in ((0, 1), (1, 0))[number % 2]:
                tokens, seconds = 0, 0.0
                for prompt in track(self._prompts, "with drafts" if not side else "without"):
                    steps = self._steps(prompt, plain if side else self._drafting(prompt))
                    next(steps)
                    start = time.perf_counter()
                    tokens += sum(len(step.tokens) for step in steps)
                    seconds += time.perf_counter() - start
                rates[side].append(tokens / seconds)
        return statistics.median(rates[0]), statistics.median(rates[1])

    def _drafting(self, prompt: Sequence[int]) -> "AutoDrafting":
        from ..drafting.pace import auto_drafting

        return auto_drafting(self._model, prompt, self._common["quantization"])

    def _steps(
        self, prompt: Sequence[int], drafting: "AutoDrafting | DraftSettings"
    ) -> "Iterator[Step]":
        from ..hardware import device
        from ..loop import Request, decode

        with device.wired(self._model.model):
            yield from decode(self._model, Request(prompt, drafting, **self._common))


def _values(pace: "Pace", figures: _Figures) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    curve = pace.costs.curve
    values = {
        "plain_seconds": curve.plain,
        "seconds": {place: dict(points) for place, points in curve.points.items()},
        "spread": curve.spread,
        "rounds": curve.rounds,
        "measured": curve.measured,
        "busy": curve.busy,
        "hits_over_expected": figures.factors,
        "rate": pace.rate,
        "value_of_streams": pace.value,
        "tokens_per_step": figures.tokens / figures.calls,
        "nodes_per_step": figures.nodes / figures.calls,
        "expected_tps": figures.expected,
        "plain_tps": 1 / curve.plain,
    }
    if figures.measured is not None:
        values |= {"measured_tps": figures.measured[0], "measured_plain_tps": figures.measured[1]}
    return values


def _show(pace: "Pace", figures: _Figures, model: "SpeculativeModel") -> None:
    from rich.console import Console

    console, curve = Console(highlight=False), pace.costs.curve
    _show_curve(console, pace)
    if figures.factors:
        _show_factors(console, figures.factors)
    shown = f"Lately {pace.rate:.2f} tokens in the time of a plain step"
    if model.streams is not None and model.mode == "lossless":
        shown += f"; guesses worth {pace.value:.2f} tokens a step"
    console.print(shown + ".")
    console.print(
        f"On these texts {figures.tokens / figures.calls:.2f} tokens a step of "
        f"{figures.nodes / figures.calls:.1f} nodes: expected {figures.expected:.1f} tokens/s, "
        f"{figures.expected * curve.plain:.2f} times one token a step."
    )
    if figures.measured is not None:
        ours, plain = figures.measured
        console.print(
            f"Measured {ours:.1f} tokens/s against {plain:.1f}: {ours / plain:.2f} times "
            f"({_ROUNDS} rounds in turn)."
        )


def _show_curve(console: "Console", pace: "Pace") -> None:
    from rich.table import Table

    curve = pace.costs.curve
    table = Table(title="Milliseconds of a step, by where the streams run", title_justify="left")
    table.add_column("nodes", justify="right")
    for place in curve.points:
        table.add_column(_HEADINGS.get(place, place), justify="right")
    for nodes in sorted({nodes for points in curve.points.values() for nodes, _ in points}):
        seconds = [dict(points).get(nodes) for points in curve.points.values()]
        cells = ("" if s is None else f"{1e3 * s:.1f} ({s / curve.plain:.2f}x)" for s in seconds)
        table.add_row(str(nodes), *cells)
    console.print(table)
    console.print(f"{curve.state().capitalize()}, {curve.rounds} times each step.")


def _show_factors(console: "Console", factors: list[list[float]]) -> None:
    (first, other), (first_behind, other_behind) = factors
    console.print(
        f"Streams' guesses were right {first:.2f} times as often as they thought, second ones "
        f"{other:.2f} times; behind a second guess {first_behind:.2f} and {other_behind:.2f}."
    )
