"""llama.cpp on the same weights, an outside reference: what this processor can do elsewhere.

It runs through the package ``llama-cpp-python`` where that is installed; nothing here needs it.
"""

import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from .runner import Run, Way

LLAMA, LLAMA_LOOKUP = "llama.cpp", "llama.cpp, prompt lookup"
_DRAFTED = 2  # tokens, which the package's README recommends without a GPU


def llama_ways(
    file: Path, context: int, max_tokens: int, ends: Collection[int]
) -> dict[str, Way] | str:
    """Make ways to decode greedily with llama.cpp: plain, and with its prompt-lookup drafts."""
    try:
        from llama_cpp import Llama
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
    except ImportError:
        return "llama-cpp-python is not installed"

    class Counting(Llama):
        """Counts its passes."""

        passes = 0

        def eval(self, tokens: Sequence[int]) -> None:
            self.passes += 1
            super().eval(tokens)

    def way(drafts: bool) -> Way:
        drafter = LlamaPromptLookupDecoding(num_pred_tokens=_DRAFTED) if drafts else None
        threads = os.cpu_count()
        llama = Counting(
            str(file), n_ctx=context, n_threads=threads, n_threads_batch=threads,
            draft_model=drafter, logits_all=drafts, verbose=False,
        )  # fmt: skip

        def run(prompt: Sequence[int]) -> Run:
            llama.reset()
            llama.passes = 0
            tokens: list[int] = []
            arrivals: list[float] = []
            lengths: list[int] = []
            started = time.perf_counter()
            for token in llama.generate(list(prompt), temp=0.0, repeat_penalty=1.0):
                if len(lengths) < llama.passes:
                    lengths.append(0)
                lengths[-1] += 1
                tokens.append(token)
                arrivals.append(time.perf_counter())
                if token in ends or len(tokens) == max_tokens:
                    break
            ended = time.perf_counter()
            first = arrivals[0]
            return Run(
                tokens,
                llama.detokenize(tokens).decode(errors="replace"),
                llama.passes,
                (len(tokens) - 1) / (ended - first) if len(tokens) > 1 else 0.0,
                seconds=ended - started,
                lengths=lengths,
            )

        return run

    return {LLAMA: way(False), LLAMA_LOOKUP: way(True)}
