"""The runner on ways to decode that are made up, and timings on a machine that changes."""

import math
import random
import statistics

import pytest
from draft_heads import model_with_head
from mlx_lm.tokenizer_utils import TokenizerWrapper
from random_models import random_prompt, speculative_model
from tiny_models import tiny_tokenizer

from benchmarks.runner import Mounted, Run, interleaved, without_drift
from specstream_mlx import DraftSettings, PromptCache


def way(rate):
    """A way that makes nine tokens in three calls, ``rate(prompt)`` tokens a second."""
    return lambda prompt: Run([1] * 9, "", 3, rate(prompt), 6)


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
    if name is None:
        model = speculative_model()
    else:
        model, _ = model_with_head(name, tmp_path / "head")
    prompt = random_prompt(20)
    tokenizer, ways = TokenizerWrapper(tiny_tokenizer()), []
    for read in (None, PromptCache()):
        mounted = Mounted(model, model.model, tokenizer, 16, read)
        ways.append([mounted.ours(DraftSettings(tree_size=size)) for size in (2, 6)])
    alone, together = ([way(prompt) for way in some] for some in ways)
    for run, other in zip(alone, together, strict=True):
        assert (run.tokens, run.lengths) == (other.tokens, other.lengths)
        assert sum(run.lengths) == len(run.tokens)
        assert run.target_calls in (len(run.lengths), len(run.lengths) + 1)
    assert read.reused == (0 if name == "eagle" else len(prompt) - 1)


TRUE = {name: 1 + name / 10 for name in range(12)}


def timings(rounds):
    """Each of ``TRUE`` in turn, on a machine that becomes twice as slow and fast again."""
    draws, found = random.Random(0), []
    for _ in range(rounds):
        for name in draws.sample(list(TRUE), len(TRUE)):
            slow = 1.5 + 0.5 * math.sin(2 * math.pi * len(found) / 95)
            found.append((name, TRUE[name] * slow * math.exp(draws.gauss(0, 0.01))))
    return found


def spread(found):
    """By how much the names are off, one from another."""
    return statistics.stdev(math.log(found[name] / value) for name, value in TRUE.items())


def test_what_lasts_for_some_timings_is_taken_out():
    seen = timings(10)
    medians = {name: statistics.median(s for n, s in seen if n == name) for name in TRUE}
    assert spread(medians) > 0.04
    assert spread(without_drift(seen)) < 0.015
    steady = [(name, seconds) for _ in range(3) for name, seconds in TRUE.items()]
    assert without_drift(steady) == pytest.approx(TRUE)
