"""One timed generation, by mlx_lm or by specstream_mlx, in the same terms."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.nn as nn
from mlx_lm.generate import GenerationResponse as PlainResponse
from mlx_lm.generate import stream_generate as plain_stream_generate
from mlx_lm.sample_utils import Sampler
from mlx_lm.tokenizer_utils import TokenizerWrapper

from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.engine.verify_rules import VerifyName
from specstream_mlx.generation import stream_generate
from specstream_mlx.hardware.cpu.products import stock_modules
from specstream_mlx.loading import SpeculativeModel


@dataclass(frozen=True)
class TimedRun:
    """A finished generation.

    Attributes:
        tokens: generated token ids, the end token included.
        text: their text.
        target_calls: forward passes of the target that committed tokens.
        decode_tps: tokens after the first, per second after the first.
        total_seconds: prompt and decoding.
        drafted_nodes: drafted tokens that the target tested.
    """

    tokens: list[int]
    text: str
    target_calls: int
    decode_tps: float
    total_seconds: float
    drafted_nodes: int = 0


def call_reduction(runs: Sequence[TimedRun]) -> float:
    """Tokens of all ``runs``, each a call of plain decoding, per target call."""
    return sum(len(run.tokens) for run in runs) / sum(run.target_calls for run in runs)


def nodes_per_call(runs: Sequence[TimedRun]) -> float:
    """Drafted tokens that an average target call of ``runs`` tests."""
    return sum(run.drafted_nodes for run in runs) / sum(run.target_calls for run in runs)


def _timed(responses: Iterator[PlainResponse]) -> TimedRun:
    tokens: list[int] = []
    text = ""
    start = first = time.perf_counter()
    calls, nodes = None, 0
    for response in responses:
        if not tokens:
            first = time.perf_counter()
        if len(tokens) < response.generation_tokens:
            tokens.append(response.token)
        text += response.text
        calls = getattr(response, "target_calls", None)
        nodes = getattr(response, "drafted_tokens", 0)
    end = time.perf_counter()
    rate = (len(tokens) - 1) / (end - first) if len(tokens) > 1 else 0.0
    return TimedRun(tokens, text, calls or len(tokens), rate, end - start, nodes)


def run_plain(
    model: nn.Module,
    tokenizer: TokenizerWrapper,
    prompt: Sequence[int],
    max_tokens: int,
    sampler: Sampler | None = None,
) -> TimedRun:
    """``mlx_lm.stream_generate`` on its own modules, greedy without a sampler."""
    with stock_modules(model):
        return _timed(
            plain_stream_generate(model, tokenizer, list(prompt), max_tokens, sampler=sampler)
        )


def run_streams(
    model: SpeculativeModel,
    tokenizer: TokenizerWrapper,
    prompt: Sequence[int],
    max_tokens: int,
    settings: DraftSettings,
    sampler: Sampler | None = None,
    verify: VerifyName | None = None,
) -> TimedRun:
    """``specstream_mlx.stream_generate``, greedy without a sampler."""
    responses = stream_generate(
        model, tokenizer, prompt, max_tokens, settings=settings, sampler=sampler, verify=verify
    )
    return _timed(responses)
