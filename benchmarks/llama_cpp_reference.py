"""llama.cpp on the same weights, an outside reference: what this processor can do elsewhere.

It runs through the package ``llama-cpp-python`` where that is installed; nothing here needs it.
"""

import os
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .runner import TimedRun, Way, timed_run

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

        def responses(prompt: Sequence[int]) -> Iterator[Any]:
            tokens = llama.generate(list(prompt), temp=0.0, repeat_penalty=1.0)
            for number, token in enumerate(tokens, start=1):
                facts = {"generation_tokens": number, "target_calls": llama.passes}
                yield SimpleNamespace(token=token, text="", from_draft=False, **facts)
                if token in ends or number == max_tokens:
                    return

        def run(prompt: Sequence[int]) -> TimedRun:
            llama.reset()
            llama.passes = 0
            timed = timed_run(responses(prompt), time.perf_counter())
            return replace(timed, text=llama.detokenize(timed.tokens).decode(errors="replace"))

        return run

    return {LLAMA: way(False), LLAMA_LOOKUP: way(True)}
