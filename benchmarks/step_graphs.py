"""The work of a step for the host, uncomputed: its graph is built, never evaluated.

    python -m benchmarks.step_graphs
    python -m benchmarks.step_graphs --no-timing    # on a busy machine

On a GPU the host builds the next step while the device waits, so the milliseconds of Python count,
as do the operations that it hands over. The loop itself runs, ours and mlx_lm's, as if a device had
answered. So weights need not be there either, and a model of any size takes no memory.

What ``mx.fast`` computes in one kernel on a GPU and in many on a CPU counts as one operation
(rotations, norms, attention, dequantized rows; whether Metal has a kernel for so many rows of
attention is its own affair), as does what ``mx.compile`` has fused. Milliseconds are of the CPU
that builds the graph.
"""

import io
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.llama import Model, ModelArgs

from specstream_mlx import DraftSettings, SpeculativeModel
from specstream_mlx.drafting.fixed import fixed_planner
from specstream_mlx.engine.compiled import CompiledSteps
from specstream_mlx.engine.kv import make_caches
from specstream_mlx.engine.plan import Plan
from specstream_mlx.engine.step import Decoder, StepResult
from specstream_mlx.engine.verify.rule import VerifyRule
from specstream_mlx.errors import Mode
from specstream_mlx.generation.batch import steps_of
from specstream_mlx.generation.request import Request
from specstream_mlx.generation.sequence import TokenSequence
from specstream_mlx.hardware import device
from specstream_mlx.models.streams import Streams
from specstream_mlx.options import FLAG, option
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track
from specstream_mlx.train.settings import StreamSettings

from .report import OUTPUT, commit, machine_suffix, measured_on, table, write_report
from .runner import MLX_LM, fixed_ways, streams_of

SHAPES = {  # layers, hidden size, heads, heads of keys and values, MLP, tokens
    "30 x 576": (30, 576, 9, 3, 1536, 49152),
    "28 x 1024": (28, 1024, 16, 8, 3072, 151936),
    "36 x 2560": (36, 2560, 32, 8, 9728, 151936),
}
"""Those of the demonstration model, and of models of 0.6 and 4 B."""

CONTEXT = 512  # rows of the KV cache
WARM_UP, TIMED = 6, 24  # steps until trees have their size and traces are there, and timed ones

FAST = ("rms_norm", "layer_norm", "rope", "scaled_dot_product_attention")
DEQUANTIZE = "dequantize"
"""What is one operation on a GPU, by its name in ``mx.fast`` and ``mx``."""

_NODE = re.compile(r'(\d+) \[label ="(\w+)"')
_EDGE = re.compile(r'"(\w+)" -> (\d+)')
_FUSED = re.compile(r"Compiled\w+")


@dataclass(frozen=True)
class StepGraph:
    operations: Mapping[str, int]  # of its graph, by kind; what ``mx.compile`` has fused is one
    first_ms: float | None  # Python from reading the step before to the first hand-over
    last_ms: float | None  # the same to the last one
    all_ms: float | None  # the same to where the host waits; medians
    slowest_ms: float | None  # of the steps before, of compiled ones the one that is traced


# Models without weights ---------------------------------------------------------------------


def never_there(module: nn.Module, dtype: mx.Dtype | None = None) -> None:
    """Replace a module's parameters by arrays of their shapes that hold a single number."""

    def empty(array: mx.array) -> mx.array:
        floating = mx.issubdtype(array.dtype, mx.floating)
        return _empty(array.shape, dtype if dtype is not None and floating else array.dtype)

    module.update(tree_map(empty, module.parameters()))


def _computed(array: mx.array) -> mx.array:
    mx.eval(array)
    return array


@cache
def _empty(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    return _computed(mx.broadcast_to(mx.zeros((), dtype), shape))


def llama_config(
    layers: int, hidden: int, heads: int, kv_heads: int, mlp: int, vocabulary: int
) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": mlp,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocabulary,
        "tie_word_embeddings": True,
        "max_position_embeddings": 65536,
    }


def streams_as_trained(layers: int, hidden: int, mode: Mode, count: int = 4) -> Streams:
    """Four streams in the top ``count`` layers, as the trainers make them."""
    settings = StreamSettings(mode=mode, num_streams=4, num_msa_layers=count)
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers}
    return Streams(settings.stream_config(**sizes, base_model="", base_fingerprint=""))


def model_of(name: str, mode: Mode, bits: int = 4) -> SpeculativeModel:
    """A Llama of one of ``SHAPES``, with streams as the trainers make them; without weights."""
    layers, hidden, *_ = SHAPES[name]
    head_dim = 64 if hidden < 1024 else 128
    config = llama_config(*SHAPES[name]) | {"head_dim": head_dim}
    config["quantization"] = {"group_size": 64, "bits": bits}
    model = Model(ModelArgs.from_dict(config))
    model.set_dtype(mx.float16)
    nn.quantize(model, 64, bits)
    never_there(model)
    streams = streams_as_trained(layers, hidden, mode)
    never_there(streams, mx.float16)
    return SpeculativeModel(model, config, Path(name), streams=streams)


# Steps that are not computed ----------------------------------------------------------------


class _Uncomputed(Decoder):
    """A decoder of made-up results, each with one accepted draft, whose graphs are kept."""

    def __init__(self, model: SpeculativeModel, compiled: bool):
        steps = CompiledSteps(model.model, model.streams) if compiled else None
        caches = make_caches(model.model, model.config)
        super().__init__(model.model, model.streams, caches, compiled=steps)
        self.graphs: list[Sequence[mx.array]] = []

    def prefill(self, tokens: mx.array) -> None:
        super().prefill(tokens)
        _forget(self.caches)

    def step(self, plans: Sequence[Plan], rules: Sequence[VerifyRule]) -> list[StepResult]:
        return [self._made_up(result) for result in super().step(plans, rules)]

    def next_token(self, tokens: mx.array, rules: Sequence[VerifyRule]) -> list[StepResult]:
        return [self._made_up(result) for result in super().next_token(tokens, rules)]

    def _made_up(self, result: StepResult) -> StepResult:
        self.graphs.append(result.arrays())
        nodes = result.predictions.shape[0]
        guesses = result.streams
        if guesses is not None:
            parents = None if guesses.parents is None else _ranks(guesses.parents.shape)
            guesses = replace(
                guesses,
                candidates=_ranks(guesses.candidates.shape),
                log_probs=_log_probs(guesses.log_probs.shape),
                parents=parents,
                present=None,
            )
        return StepResult(
            mx.array(min(1, nodes - 1)),
            _ranks((nodes,)),
            None,
            None if result.kept is None else _ranks((nodes,)),
            None if result.in_play is None else _ranks((nodes,)) >= 0,
            guesses,
        )


@cache
def _ranks(shape: tuple[int, ...]) -> mx.array:
    return _computed(mx.broadcast_to(mx.arange(shape[-1]), shape))


@cache
def _log_probs(shape: tuple[int, ...]) -> mx.array:
    return _computed(-0.5 * (1 + _ranks(shape).astype(mx.float32)))


def _forget(caches: Sequence[Any]) -> None:
    """Leave the rows of caches, as if they had been computed, without what they are made from."""
    for layer in caches:
        layer.keys, layer.values = (_empty(a.shape, a.dtype) for a in (layer.keys, layer.values))


# What they say ------------------------------------------------------------------------------


@cache
def _mark(name: str) -> mx.array:
    """Make the array that operations of one kind depend on, to be told by in the graph."""
    return _computed(mx.zeros(()))


@contextmanager
def as_on_a_gpu(hand_over: Callable[..., None]) -> Iterator[None]:
    """Build graphs as for a GPU: ``FAST`` are one operation each, whose values mean nothing."""

    def one_operation(name: str) -> Callable[..., mx.array]:
        def stand_in(x: mx.array, *given: Any, **named: Any) -> mx.array:
            others = [array for array in (*given, *named.values()) if isinstance(array, mx.array)]
            return mx.depends(x, [*others, _mark(name)])

        return stand_in

    def dequantize(
        w: mx.array, scales: mx.array, biases: mx.array, group_size: int, bits: int, **_: Any
    ) -> mx.array:
        rows = _empty((*w.shape[:-1], w.shape[-1] * 32 // bits), scales.dtype)
        return mx.depends(rows, [w, scales, biases, _mark(DEQUANTIZE)])

    with ExitStack() as patches:
        patches.enter_context(patch.object(mx, "async_eval", hand_over))
        patches.enter_context(patch.object(mx, DEQUANTIZE, dequantize))
        for name in FAST:
            patches.enter_context(patch.object(mx.fast, name, one_operation(name)))
        yield


def operations(arrays: Sequence[mx.array]) -> Counter[str]:
    """The operations that arrays wait for, by kind."""
    graph = io.StringIO()
    names = (*FAST, DEQUANTIZE)
    mx.export_to_dot(graph, *arrays, **{name: _mark(name) for name in names})
    text = graph.getvalue()
    marked = {node: name for name, node in _EDGE.findall(text) if name in names}
    nodes = _NODE.findall(text)  # calls of one compiled function are several under one number
    return Counter(marked.get(node) or _FUSED.sub("fused", kind) for node, kind in nodes)


def measured(
    graphs: Sequence[Sequence[mx.array]], run: Iterator[Any], timed: int
) -> tuple[dict[str, int], Sequence[float | None]]:
    """A step's operations by kind, and the fields of ``StepGraph`` that are milliseconds."""
    handed: list[float] = []
    marks: list[tuple[float, float, float]] = []
    slowest = 0.0
    with as_on_a_gpu(lambda *_: handed.append(time.perf_counter())):
        for number in range(WARM_UP + timed):
            handed.clear()
            began = time.perf_counter()
            next(run)
            whole = time.perf_counter() - began
            if number >= WARM_UP:
                marks.append((handed[0] - began, handed[-1] - began, whole))
            else:
                slowest = max(slowest, 1e3 * whole)
        next(run)
    # Nothing has been evaluated, so the steps before are in the last graph, too.
    earlier, last = graphs[-2:]
    counts = operations([*earlier, *last]) - operations(earlier)
    medians = [1e3 * statistics.median(column) for column in zip(*marks, strict=True)]
    return dict(counts.most_common()), [*medians, slowest] if medians else [None] * 4


def step_graph(
    model: SpeculativeModel, settings: DraftSettings, timed: int = 0, compiled: bool = False
) -> StepGraph:
    decoder = _Uncomputed(model, compiled)
    decoder.prefill(mx.zeros((CONTEXT,), mx.int32))
    request = Request([0], fixed_planner(settings, model, [0]))
    run = steps_of(TokenSequence(None, request, decoder))
    counts, milliseconds = measured(decoder.graphs, run, timed)
    return StepGraph(counts, *milliseconds)


def plain_graph(model: SpeculativeModel, timed: int = 0) -> StepGraph:
    """A step of mlx_lm's own loop on the same model."""
    graphs: list[Sequence[mx.array]] = []
    caches = make_prompt_cache(model.model)
    model.model(mx.zeros((1, CONTEXT), mx.int32), cache=caches)
    _forget(caches)
    token = mx.zeros((1,), mx.int32)
    mx.eval(token)

    def greedy(log_probs: mx.array) -> mx.array:
        graphs.append([mx.argmax(log_probs, axis=-1)])
        return token

    run = generate_step(token, model.model, max_tokens=-1, sampler=greedy, prompt_cache=caches)
    counts, milliseconds = measured(graphs, run, timed)
    return StepGraph(counts, *milliseconds)


# The tables ---------------------------------------------------------------------------------

COLUMNS = {
    "model": "{model}",
    "method": "{method}",
    "operations": "{operations}",
    "of mlx_lm's": "{share:.2f}",
    "ms to the first hand-over": "{first_ms:.2f}",
    "to the last": "{last_ms:.2f}",
    "in all": "{all_ms:.2f}",
    "of mlx_lm's step": "{time_share:.2f}",
    "slowest before": "{slowest_ms:.1f}",
}


def rows_of_model(name: str, timed: int) -> list[dict[str, Any]]:
    """A row for mlx_lm's plain step and for each method, on a model of ``SHAPES``."""
    rows: list[dict[str, Any]] = []
    for mode in get_args(Mode):
        model = model_of(name, mode)
        graphs = {} if rows else {MLX_LM: plain_graph(model, timed)}
        for method, settings in fixed_ways(streams_of(model).config).items():
            graphs[method] = step_graph(model, settings, timed)
            graphs[f"{method}, compiled"] = step_graph(model, settings, timed, compiled=True)
        for method, graph in graphs.items():
            rows.append({"model": name, "method": method} | vars(graph))
    return rows


def markdown(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> list[str]:
    """The lines of the report: what a step asks for, and the operations of each kind."""
    plain = {row["model"]: row for row in rows if row["method"] == MLX_LM}
    shown = []
    for row in rows:
        base, count = plain[row["model"]], sum(row["operations"].values())
        shares = {"share": count / sum(base["operations"].values())}
        shares["time_share"] = row["all_ms"] and row["all_ms"] / base["all_ms"]
        shown.append({**row, **shares, "operations": count})
    lines = [
        f"{measured_on(facts)}; {facts['commit']}. Llamas of layers x hidden size in 4 bits, "
        f"{CONTEXT} tokens in the cache, four streams in four layers as the trainers make them. "
        "Graphs are built and never evaluated; what is one kernel on a GPU is one operation.",
        "",
        *table(COLUMNS, shown),
    ]
    for name in plain:
        of_model = [row for row in rows if row["model"] == name]
        kinds = Counter[str]()
        for row in of_model:
            kinds.update(row["operations"])
        columns = {f"operation, {name}": "{kind}"}
        columns |= {row["method"]: f"{{counts[{place}]}}" for place, row in enumerate(of_model)}
        counts = [
            {"kind": kind, "counts": [row["operations"].get(kind, 0) for row in of_model]}
            for kind, _ in kinds.most_common()
        ]
        lines += ["", *table(columns, counts)]
    return lines


def main(timing: bool = option(True, FLAG, "Time nothing."), output: Path = OUTPUT) -> None:
    """Count a step's operations and time the host, for three models."""
    rows: list[dict[str, Any]] = []
    timed = TIMED if timing else 0
    for name in track(SHAPES, "graphs"):
        rows += rows_of_model(name, timed)
    facts = device.describe() | {"commit": commit(), "context": CONTEXT, "timed": timed}
    name = f"step-graphs-{machine_suffix(facts)}"
    print(write_report(output, name, {"facts": facts, "rows": rows}, markdown(rows, facts)))


if __name__ == "__main__":
    program(main)()
