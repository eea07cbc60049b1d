"""The runner: ways to decode the same prompts, timed in turn with mlx_lm's plain decoding.

Every benchmark that compares speeds goes through here. All ways decode every prompt once a round,
each time in another random order, since what runs right after ``mlx_lm`` comes out two or three
per cent slower than the same thing later; the drift of the machine's speed is taken out of the
timings. Only tokens after the first one are timed, so reading the prompt does not count.
"""

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeVar
from unittest.mock import patch

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm import load as load_plain
from mlx_lm.generate import GenerationResponse as PlainResponse
from mlx_lm.generate import generate_step
from mlx_lm.generate import stream_generate as plain_stream_generate
from mlx_lm.sample_utils import LogitsProcessor, Sampler
from mlx_lm.tokenizer_utils import TokenizerWrapper

from specstream_mlx import (
    DraftSettings,
    PromptCache,
    SpeculativeModel,
    StreamConfig,
    UserError,
    load,
    stream_generate,
)
from specstream_mlx.drafting import rule
from specstream_mlx.drafting.settings import USUAL, Proposers
from specstream_mlx.files import for_libraries
from specstream_mlx.hardware import device
from specstream_mlx.hardware.cpu import stock_modules
from specstream_mlx.loading.model_paths import WEIGHTS
from specstream_mlx.models.architectures import architecture_of
from specstream_mlx.models.streams import Streams
from specstream_mlx.terminal.progress import progress

from .texts import Texts

MLX_LM = "mlx_lm"
"""The name of the baseline among the ways."""

ONE_TOKEN = DraftSettings(speculation=False)
"""Nothing is drafted; in shared mode the streams run all the same."""

CHAIN = DraftSettings(tree_width=1, tree_size=None)
TREE = DraftSettings(tree_width=4, tree_size=8)
PRUNED = DraftSettings(tree_width=4, tree_size=14, max_nodes=7)


def fixed_ways(config: StreamConfig) -> dict[str, DraftSettings]:
    """The fixed shapes whose steps are measured."""
    shapes = {"chain": CHAIN, "tree": TREE}
    if config.pruner_rank:
        shapes["tree, pruned"] = PRUNED
    if config.mode == "shared":
        return {f"shared, {name}": settings for name, settings in shapes.items()}
    lossless = {f"lossless, {name}": settings for name, settings in shapes.items()}
    return {"one token a step": ONE_TOKEN, **lossless}


@dataclass(frozen=True)
class ByWorth:
    """Adaptive drafting, by the rule; each way to decode that is made of it has its own history."""

    proposers: Proposers = USUAL  # what proposes besides the streams
    streams: bool = True  # whether mounted streams draft too; lossless ones may be left out


Drafts = DraftSettings | ByWorth
"""How to draft: by fixed settings, or adaptively."""

STREAMS_ALONE, LOOKUP_ALONE = "streams alone", "lookup alone"
ALONE = {STREAMS_ALONE: ByWorth(Proposers(lookup=False)), LOOKUP_ALONE: ByWorth(streams=False)}


# One run ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TimedRun:
    tokens: list[int]  # generated token ids, the end token included
    text: str  # their text
    target_calls: int  # forward passes of the target that committed tokens
    decode_tps: float  # tokens after the first, per second after the first; 0 where there is none
    drafted: int = 0  # drafted tokens that the target tested
    seconds: float = 0.0  # of it all, reading the prompt included
    lengths: Sequence[int] = ()  # tokens of each call, of which the first ends the prompt


_FEW = 8  # tokens that are too few to be timed
_FORM_TOKENS = 160  # of a text that shows which form of the weights is faster
_CLEAR = 3  # times faster, which no noise comes to

Way = Callable[[Sequence[int]], TimedRun]
"""One way to decode: ``prompt -> run``."""

SamplerOf = Callable[[Sequence[int]], Sampler]
"""Makes a fresh sampler for a prompt, such as one with a seed of its own."""

ProcessorsOf = Callable[[Sequence[int]], list[LogitsProcessor]]
"""Makes the logits processors for a prompt."""


def timed_run(responses: Iterator[PlainResponse], started: float) -> TimedRun:
    """The run of either program's responses, begun at ``started``."""
    tokens: list[int] = []
    arrivals: list[float] = []
    lengths: list[int] = []
    text, drafted, target_calls, calls, call = "", 0, 0, 0, -1
    for response in responses:
        if len(tokens) < response.generation_tokens:
            tokens.append(response.token)
            arrivals.append(time.perf_counter())
            before, call = call, getattr(response, "target_calls", calls)
            if call != before:
                lengths.append(0)
            lengths[-1] += 1
            calls += not response.from_draft  # the token that ends a call of mlx_lm's
        text += response.text
        drafted = getattr(response, "drafted_tokens", 0)
        target_calls = getattr(response, "target_calls", len(lengths))
    ended = time.perf_counter()
    decoding = ended - arrivals[0] if arrivals else 0.0
    return TimedRun(
        tokens,
        text,
        target_calls,
        (len(tokens) - 1) / decoding if len(tokens) > 1 else 0.0,
        drafted,
        ended - started,
        lengths,
    )


# A model, for us and for mlx_lm -------------------------------------------------------------


def streams_of(model: SpeculativeModel) -> Streams:
    assert model.streams is not None
    return model.streams


@dataclass(frozen=True)
class Mounted:
    """A base with an adapter, for us and for mlx_lm."""

    model: SpeculativeModel  # ours
    plain: nn.Module  # what mlx_lm runs: the same base, with the adapter's LoRA if it has one
    tokenizer: TokenizerWrapper  # of both
    max_tokens: int  # of a generation
    read: PromptCache | None = None  # rows that our ways share; ``None``: each reads its prompt

    def mlx_lm(
        self,
        sampler_of: SamplerOf | None = None,
        draft_model: nn.Module | None = None,
        processors_of: ProcessorsOf | None = None,
    ) -> Way:
        """``mlx_lm.stream_generate`` on its own modules, greedy without samplers."""

        def run(prompt: Sequence[int]) -> TimedRun:
            with stock_modules(self.plain):
                started = time.perf_counter()
                return timed_run(
                    plain_stream_generate(
                        self.plain, self.tokenizer, list(prompt), self.max_tokens, draft_model,
                        sampler=sampler_of and sampler_of(prompt),
                        logits_processors=processors_of and processors_of(prompt),
                    ),
                    started,
                )  # fmt: skip

        return run

    def ours(
        self,
        drafts: Drafts,
        sampler_of: SamplerOf | None = None,
        processors_of: ProcessorsOf | None = None,
    ) -> Way:
        """``specstream_mlx.stream_generate``, greedy without samplers."""
        model, head = self.model, self.model.head
        read = None if head is not None and head.config.own_rows else self.read
        if isinstance(drafts, ByWorth) and not drafts.streams:
            model = replace(model, streams=None)
        settings = drafts.proposers if isinstance(drafts, ByWorth) else drafts
        history = rule.new_history(rule.history_of(self.model).costs, model.guessing)

        def run(prompt: Sequence[int]) -> TimedRun:
            started = time.perf_counter()
            with patch.object(rule, "history_of", lambda *_: history):
                return timed_run(
                    stream_generate(
                        model, self.tokenizer, prompt, self.max_tokens, settings=settings,
                        sampler=sampler_of and sampler_of(prompt),
                        logits_processors=processors_of and processors_of(prompt),
                        prompt_cache=read,
                    ),
                    started,
                )  # fmt: skip

        return run


class Base:
    """A base model for us, and for mlx_lm on the weights that are fastest for it."""

    def __init__(
        self, directory: Path, max_tokens: int, weights: str = "auto", fastest_baseline: bool = True
    ):
        """Load the base, and on the CPU time mlx_lm on packed and on expanded weights."""
        self._directory, self._max_tokens = directory, max_tokens
        self.model, self.tokenizer = load(directory, weights=weights)
        held = self.model.held
        self._held = "packed" if held is None else held.form
        self._plain_form, self._packed_over_expanded = self._held, None
        quantized = "quantization" in self.model.config
        if fastest_baseline and quantized and device.backend() == "cpu":
            self._packed_over_expanded = ratio = self._compare_forms()
            self._plain_form = "packed" if ratio > 1 else "expanded"

    def mount(self, adapter: Path | None) -> Mounted:
        """Mount an adapter on our model, and its LoRA on mlx_lm's."""
        self.model.swap_adapter(adapter)
        plain = self.model.model
        if self._plain_form != self._held:
            mounted = self.model.adapter
            plain = self._other_form(adapter if mounted and mounted.lora else None)
        return Mounted(self.model, plain, self.tokenizer, self._max_tokens)

    def facts(self) -> dict[str, Any]:
        """Describe the machine and the weights that are measured."""
        bits = self.model.config.get("quantization", {}).get("bits", 16)
        ratio = self._packed_over_expanded
        return device.describe() | {
            "weights": f"{bits} bits, {self._held}",
            "plain_weights": self._plain_form,
            "packed_over_expanded": ratio and round(ratio, 3),
        }

    def _other_form(self, adapter: Path | None) -> nn.Module:
        """The base for mlx_lm with its weights held the other way than ours."""
        if self._held == "packed":
            return load(self._directory, adapter_path=adapter, weights="expanded")[0].model
        lora = None if adapter is None else str(adapter)
        with for_libraries(self._directory, WEIGHTS) as readable:
            model = load_plain(str(readable), adapter_path=lora)[0]
        model.set_dtype(device.fast_dtype(mx.float16))  # the CPU is slow in half precision
        return model

    def _compare_forms(self) -> float:
        """Rate of mlx_lm on packed weights over that on expanded ones, by five texts."""
        forms = (self._held, "expanded" if self._held == "packed" else "packed")
        models = (self.model.model, self._other_form(None))

        def ways(max_tokens: int) -> dict[str, Way]:
            return {
                form: Mounted(self.model, plain, self.tokenizer, max_tokens).mlx_lm()
                for form, plain in zip(forms, models, strict=True)
            }

        texts = Texts("dev", 5).of_task(self.model, self.tokenizer, "sql")
        prompts = [text.prompt for text in texts]
        few = interleaved([prompts[0][:_FEW]], ways(_FEW), warm_up=False).rates
        if len(few) == len(forms):
            ratio = few["packed", 0] / few["expanded", 0]
            if not 1 / _CLEAR < ratio < _CLEAR:
                return ratio
        most = min(self._max_tokens, _FORM_TOKENS)
        return interleaved(prompts, ways(most)).speedup("packed", "expanded")


def teacher_forced(
    model: nn.Module, prompt: Sequence[int], target: Sequence[int]
) -> tuple[float, int]:
    """Read ``target`` after ``prompt`` in one forward pass.

    Returns:
        the sum of the target tokens' log-probabilities, and how many of them are the likeliest.
    """
    ids = mx.array(list(target))
    logits = model(mx.array([*prompt, *target[:-1]])[None])[0, len(prompt) - 1 :]
    logits = logits.astype(mx.float32)
    picked = mx.take_along_axis(logits, ids[:, None], axis=-1)[:, 0]
    score = (picked - mx.logsumexp(logits, axis=-1)).sum()
    likeliest = (mx.argmax(logits, axis=-1) == ids).sum()
    return float(np.array(score)), int(np.array(likeliest))


_FEW_READ, _SECONDS = 2, 5.0  # tokens of a prompt, and time: mlx_lm may be slow


def mlx_lm_by_itself(model: SpeculativeModel, prompt: Sequence[int]) -> dict[str, Any] | None:
    """How fast mlx_lm is with the files' weights and dtype; ``None``: these are what is held."""
    held, quantized = model.held, bool(model.config.get("quantization"))
    is_ours = architecture_of(model.config["model_type"]).own_module
    as_stored = held is not None and held.dtype == held.stored_dtype
    if held is None or is_ours or (as_stored and (held.form == "packed") == quantized):
        return None
    adapter = model.adapter
    lora = str(adapter.path) if adapter is not None and adapter.lora else None
    with progress("Timing mlx_lm as a user runs it"):
        with for_libraries(model.path, WEIGHTS) as readable:
            plain = load_plain(str(readable), adapter_path=lora)[0]
        tokens = generate_step(mx.array(list(prompt[-_FEW_READ:])), plain, max_tokens=32)
        next(tokens)
        began, count = time.perf_counter(), 0
        for count, _ in enumerate(tokens, start=1):  # noqa: B007
            if time.perf_counter() - began > _SECONDS:
                break
        seconds = time.perf_counter() - began
    return {
        "weights": "packed" if quantized else "unquantized",
        "dtype": held.stored_dtype,
        "generation_tps": count / seconds,
    }


# Several ways in turn -----------------------------------------------------------------------

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Compared(Generic[Name]):
    """The runs of some ways on the same prompts; ``rates`` only where a second token is written."""

    runs: dict[Name, list[list[TimedRun]]]  # of each way, for each prompt, one a round
    rates: dict[tuple[Name, int], float]  # tokens/s of a way on a prompt, without the drift

    def speedup(self, name: Name, baseline: Name) -> float:
        """The median over prompts of a way's rate over the baseline's on the same prompt."""
        ratios = self.ratios(name, baseline)
        if not ratios:
            raise UserError("no text got a second token, expected one that can be timed")
        return statistics.median(ratios.values())

    def ratios(self, name: Name, baseline: Name) -> dict[int, float]:
        """A way's rate over the baseline's on each prompt that has both."""
        return {
            number: rate / self.rates[baseline, number]
            for (other, number), rate in self.rates.items()
            if other == name and (baseline, number) in self.rates
        }

    def first_runs(self, name: Name) -> list[TimedRun]:
        return [runs[0] for runs in self.runs[name]]

    def same(self, name: Name, expected: Sequence[TimedRun]) -> int:
        """On how many prompts all of a way's runs have the expected tokens."""
        pairs = zip(self.runs[name], expected, strict=True)
        return sum(all(run.tokens == right.tokens for run in runs) for runs, right in pairs)

    def counts(self, name: Name, expected: Sequence[TimedRun]) -> dict[str, int]:
        """Count a way's texts, tokens and calls, and the texts whose tokens are as expected."""
        runs = self.first_runs(name)
        return {
            "items": len(runs),
            "tokens": sum(len(run.tokens) for run in runs),
            "calls": sum(run.target_calls for run in runs),
            "same_output_as_plain": self.same(name, expected),
        }

    def figures(self, name: Name, baseline: Name) -> dict[str, float]:
        """What is reported of a way: ``call_reduction`` tokens, ``nodes`` drafted tokens a call."""
        runs = list(chain(*self.runs[name]))
        calls = sum(run.target_calls for run in runs)
        speedup = self.speedup(name, baseline)
        call_reduction = sum(len(run.tokens) for run in runs) / calls
        rates = {number: rate for (other, number), rate in self.rates.items() if other == name}
        milliseconds = [
            1e3 * (len(run.tokens) - 1) / rate / (run.target_calls - 1)
            for number, rate in rates.items()
            if (run := self.runs[name][number][0]).target_calls > 1
        ]
        figures = {
            "speedup": speedup,
            "call_reduction": call_reduction,
            "speedup_over_cr": speedup / call_reduction,
            "decode_tps": statistics.median(rates.values()),
            "ms_per_call": statistics.median(milliseconds) if milliseconds else 0.0,
            "nodes": sum(run.drafted for run in runs) / calls,
        }
        return {key: round(value, 3) for key, value in figures.items()}


_AROUND = 2  # timings before, and as many after
_PASSES = 4


def without_drift(timings: Sequence[tuple[Name, float]]) -> dict[Name, float]:
    """Take the machine's drift out of timings whose turns were in random order each round.

    Each timing is divided by the median, over those next to it, of their time over what they
    usually take; in a fixed order, slowness in step with the rounds would seem somebody's own.
    """
    slowness = [1.0] * len(timings)
    for _ in range(_PASSES):
        usual = _medians(timings, slowness)
        off = [seconds / usual[name] for name, seconds in timings]
        slowness = [
            statistics.median(off[max(0, i - _AROUND) : i] + off[i + 1 : i + 1 + _AROUND] or [1.0])
            for i in range(len(off))
        ]
    return _medians(timings, slowness)


def _medians(timings: Sequence[tuple[Name, float]], slowness: Sequence[float]) -> dict[Name, float]:
    steady: dict[Name, list[float]] = defaultdict(list)
    for (name, seconds), slow in zip(timings, slowness, strict=True):
        steady[name].append(seconds / slow)
    return {name: statistics.median(values) for name, values in steady.items()}


def interleaved(
    prompts: Sequence[Sequence[int]],
    ways: Mapping[Name, Way],
    rounds: int = 1,
    warm_up: bool = True,
) -> Compared[Name]:
    """Run every way on every prompt, once a round, in another random order every time."""
    if warm_up:
        for way in ways.values():
            way(prompts[0])
    runs: dict[Name, list[list[TimedRun]]] = {name: [[] for _ in prompts] for name in ways}
    timings: list[tuple[tuple[Name, int], float]] = []
    orders = random.Random(0)
    with progress(f"{len(prompts)} texts, {len(ways)} ways") as show:
        show(0, rounds * len(prompts))
        for round_ in range(rounds):
            for number, prompt in enumerate(prompts):
                for name in orders.sample(list(ways), len(ways)):
                    run = ways[name](prompt)
                    runs[name][number].append(run)
                    if run.decode_tps:
                        timings.append(((name, number), 1 / run.decode_tps))
                mx.clear_cache()
                show(round_ * len(prompts) + number + 1, rounds * len(prompts))
    return Compared(runs, {key: 1 / slow for key, slow in without_drift(timings).items()})


def in_turn(
    prompts: Sequence[Sequence[int]], ways: Mapping[Name, Way], timed: Collection[Name]
) -> Compared[Name]:
    """Run the timed ways in turn, then the others, which get no rates; nothing is warmed up."""
    parts = [
        interleaved(
            prompts, {n: w for n, w in ways.items() if (n in timed) == is_timed}, warm_up=False
        )
        for is_timed in (True, False)
    ]
    return Compared(parts[0].runs | parts[1].runs, parts[0].rates)


_WARM_UPS = 100  # texts


def measure_costs(mounted: Mounted, prompts: Sequence[Sequence[int]]) -> None:
    """Decode until the costs of steps are known, as they are after some minutes of use."""
    ours = mounted.ours(ByWorth())
    timings = rule.history_of(mounted.model).costs.behind(max(map(len, prompts)))
    for number in range(_WARM_UPS):
        if timings.wanted() is None:
            return
        ours(prompts[number % len(prompts)])
    raise UserError("the texts are too short to time steps in, expected a higher --max-tokens")
