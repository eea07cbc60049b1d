"""Reductions and steps are timed with all processes in place."""

import json
import re

import pytest
from processes import Processes
from tiny_models import stream_adapter_directory, tiny_llama_directory

from specstream_mlx.drafting import cost

COUNTING = """
import sys
import mlx.core as mx
from specstream_mlx import generate, load
from specstream_mlx.engine.step import Decoder

reduce, reductions, steps = mx.distributed.all_sum, [], set()

def counted(*arguments, **more):
    reductions.append(arguments)
    return reduce(*arguments, **more)

def step_of(method):
    def step(*arguments):
        before = len(reductions)
        result = method(*arguments)
        steps.add(len(reductions) - before)
        return result
    return step

model, tokenizer = load(sys.argv[1], group=mx.distributed.init())
mx.distributed.all_sum = counted
Decoder.step, Decoder.next_token = map(step_of, (Decoder.step, Decoder.next_token))
for adapter in sys.argv[2:]:
    model.swap_adapter(adapter)
    generate(model, tokenizer, "the meeting", max_tokens=9)
print(*sorted(steps), flush=True)
"""


@pytest.mark.slow
def test_doctor_shows_reductions_and_rank_0_keeps_the_costs_of_steps(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base = tiny_llama_directory(tmp_path / "base")
    streams = stream_adapter_directory(tmp_path / "streams", base)
    doctor = ["-m", "specstream_mlx", "doctor", "--model", base]
    first, other = Processes(tmp_path, doctor, doctor).ended()
    assert (first.code, other.code, other.out) == (0, 0, ""), first.error
    line = (
        r"processes +2 over ring: a reduction of 4 kB takes (\S+) ms, one of 16 MB has (\S+) GB/s"
    )
    latency, bandwidth = map(float, re.search(line, first.out).groups())
    assert latency > 0 and bandwidth >= 0
    text = ["-m", "specstream_mlx", "generate", "--model", base, "--adapter-path", streams]
    text += ["-p", "the meeting", "-m", 30, "-q"]
    assert [one.code for one in Processes(tmp_path, text, text).ended()] == [0, 0]
    [file] = cost.directory().glob("*.json")
    kept = json.loads(file.read_text())
    assert (kept["facts"]["processes"], kept["facts"]["route"]) == (2, ["ring", "127.0.0.1"])
    assert kept["timings"] and all(seconds > 0 for _, seconds in kept["timings"])


@pytest.mark.slow
def test_every_step_waits_for_two_reductions_a_layer_and_one(tmp_path):
    layers = 2
    base = tiny_llama_directory(tmp_path / "base", num_hidden_layers=layers)
    adapters = [
        stream_adapter_directory(tmp_path / mode, base, mode=mode, lora_rank=rank, num_msa_layers=1)
        for mode, rank in (("lossless", 0), ("shared", 4))
    ]
    command = ["-c", COUNTING, base, *adapters]
    for rank in Processes(tmp_path, command, command).ended():
        assert rank.code == 0, rank.error
        assert rank.out.split() == [str(2 * layers + 1)]
