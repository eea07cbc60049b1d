"""The runner on ways to decode that are made up, and timings on a machine that changes."""

import math
import random
import statistics
import sys
from types import ModuleType

import pytest
from draft_heads import model_with_head
from random_models import random_prompt, speculative_model
from tiny_models import tokenizer_ending

from benchmarks.llama_cpp_reference import LLAMA, LLAMA_LOOKUP, llama_ways
from benchmarks.runner import Mounted, TimedRun, interleaved, without_drift
from specstream_mlx import DraftSettings, PromptCache


def way(rate):
    """A way that makes nine tokens in three calls, ``rate(prompt)`` tokens a second."""
    return lambda prompt: TimedRun([1] * 9, "", 3, rate(prompt), 6)


def test_a_way_is_compared_with_the_baseline_on_the_same_prompt():
    """The machine is twice as slow on the second prompt."""
    ways = {"plain": way(lambda p: 100 / p[0]), "fast": way(lambda p: 150 / p[0])}
    found = interleaved([[1], [2]], ways)
    assert found.figures("fast", "plain") == {
        "speedup": 1.5,
        "call_reduction": 3.0,
        "speedup_over_cr": 0.5,
        "decode_tps": 112.5,
        "ms_per_call": pytest.approx(1e3 * (8 / 150 + 8 / 75) / 2 / 2, abs=1e-3),
        "nodes": 2.0,
    }


@pytest.mark.parametrize("name", [None, "hydra", "eagle"])
def test_ways_that_count_share_a_prompts_rows_unless_a_head_has_to_read_it(name, tmp_path):
    model = model_with_head(name, tmp_path)[0] if name else speculative_model()
    prompt = random_prompt(20)
    tokenizer, ways = tokenizer_ending(), []
    for read in (None, PromptCache()):
        mounted = Mounted(model, model.model, tokenizer, 16, read)
        ways.append([mounted.ours(DraftSettings(tree_size=size)) for size in (2, 6)])
    alone, together = ([way(prompt) for way in some] for some in ways)
    for run, other in zip(alone, together, strict=True):
        assert (run.tokens, run.lengths) == (other.tokens, other.lengths)
        assert sum(run.lengths) == len(run.tokens)
        assert run.target_calls in (len(run.lengths), len(run.lengths) + 1)
    assert read.reused == (0 if name == "eagle" else len(prompt) - 1)


def test_what_lasts_for_some_timings_is_taken_out():
    """The machine becomes twice as slow and fast again."""
    true, draws, seen = {name: 1 + name / 10 for name in range(12)}, random.Random(0), []
    for _ in range(10):
        for name in draws.sample(list(true), len(true)):
            slow = 1.5 + 0.5 * math.sin(2 * math.pi * len(seen) / 95)
            seen.append((name, true[name] * slow * math.exp(draws.gauss(0, 0.01))))
    found = without_drift(seen)
    assert statistics.stdev(math.log(found[name] / value) for name, value in true.items()) < 0.015


# llama.cpp, on a stand-in for its package --------------------------------------------------------


class Llama:
    """Writes 10, 11, ..; with drafts three tokens a pass after the first one."""

    def __init__(self, path, *, draft_model, **_):
        self._a_pass = 3 if draft_model else 1

    def reset(self):
        pass

    def eval(self, tokens):
        assert tokens

    def generate(self, tokens, *, temp, repeat_penalty):
        for token in range(10, 99):
            if (token - 11) % self._a_pass == 0 or token == 10:
                self.eval([token])
            yield token

    def detokenize(self, tokens):
        return bytes(tokens)


def test_passes_are_counted_and_texts_end_as_ours_do(monkeypatch):
    package, speculative = ModuleType("llama_cpp"), ModuleType("llama_cpp.llama_speculative")
    package.Llama = Llama
    speculative.LlamaPromptLookupDecoding = lambda num_pred_tokens: num_pred_tokens
    monkeypatch.setitem(sys.modules, "llama_cpp", package)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_speculative", speculative)
    ways = llama_ways("file", 64, 9, ends={17})
    plain, lookup = (ways[name]([1, 2]) for name in (LLAMA, LLAMA_LOOKUP))
    assert plain.tokens == lookup.tokens == [10, 11, 12, 13, 14, 15, 16, 17]
    assert (plain.target_calls, lookup.target_calls) == (8, 4)
    assert lookup.lengths == [1, 3, 3, 1]
    assert len(llama_ways("file", 64, 5, ends={17})[LLAMA]([1]).tokens) == 5
