"""A profiled generation writes the same tokens, and its parts make up the time that it took."""

import time

import pytest
from random_models import random_prompt, request, speculative_model, tokens_of

from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.engine.profile import PARTS, Profile
from specstream_mlx.scheduler import decode

PLAIN = DraftSettings(speculation=False)
CASES = {
    "no drafts": (PLAIN, "lossless", {"pruning", "MSA rows", "compaction"}),
    "lookup": (DraftSettings(num_streams=0, lookup=True), "lossless", {"pruning", "MSA rows"}),
    "beside": (DraftSettings(tree_size=6), "lossless", {"pruning"}),
    "pruned": (DraftSettings(tree_size=9, max_nodes=4), "lossless", set()),
    "shared, one token": (PLAIN, "shared", {"pruning"}),
}


@pytest.mark.parametrize("name", CASES)
def test_parts_make_up_the_time(name):
    settings, mode, not_run = CASES[name]
    model, prompt = speculative_model(mode=mode), random_prompt(9)
    expected = tokens_of(model, prompt, 30, speculation=False)[:30]
    profile, tokens, done = Profile(), [], 0.0
    start = time.perf_counter()
    for step in decode(model, request(prompt, settings, profile=profile)):
        tokens += step.tokens
        if len(tokens) >= 30:
            break
        done = time.perf_counter() - start
    wall = time.perf_counter() - start
    assert tokens[:30] == expected
    report = profile.report()
    assert set(report) == set(PARTS) - not_run
    assert sum(part["share"] for part in report.values()) == pytest.approx(1)
    assert all(part["seconds"] > 0 and part["calls"] > 0 for part in report.values())
    assert 0.98 * done <= profile.seconds <= wall
