"""A rank that fails ends them all: within ten seconds, with one sentence, and not with code 0.

The seconds count from the moment at which it fails to the end of rank 0's process.
"""

import re
import time
from pathlib import Path

import pytest
from processes import Processes
from tiny_models import stream_adapter_directory, tiny_llama_directory

from specstream_mlx.distributed.link import SILENCE

FAILING = Path(__file__).with_name("failing_rank.py")
WITHIN = 10  # seconds


def failed(folder, moment, command, other=None, size=2):
    """Run a command of which the last of ``size`` ranks fails, at a moment of ``failing_rank.py``.

    It may have a command of its own, ``other``. Returns what rank 0 says, its exit code, and
    the seconds from the moment to its end.
    """
    moment_file = folder / "moment"
    sound = ["-m", "specstream_mlx", *command]
    failing = [FAILING, moment, moment_file, *(other or command)]
    processes = Processes(folder, *[sound] * (size - 1), failing)
    processes.started[0].wait(timeout=300)
    after = time.time() - float(moment_file.read_text())
    for process in processes.started[1:-1]:
        process.wait(timeout=60)
    processes.started[-1].kill()
    first, *others = processes.ended(10)
    for one in others:
        assert one.out == "" and one.code != 0
        assert [line for line in one.error.splitlines() if not line.startswith("[ring]")] == []
    said = re.findall("error: .*", first.error)  # the ring writes to the same stream meanwhile
    assert len(said) == 1 and "Traceback" not in first.error, first.error
    return said[0], first.code, after


PROGRAM = """
import os, sys
import mlx.core as mx
from specstream_mlx import generate, load

model, tokenizer = load(sys.argv[1], group=mx.distributed.init())
if os.environ["MLX_RANK"] == sys.argv[2]:
    raise ValueError("a fault of its own")
generate(model, tokenizer, "the meeting", max_tokens=40)
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_llama_directory(tmp_path_factory.mktemp("distributed") / "base")


def generate(base, *more):
    return ["generate", "--model", base, "-p", "the meeting", "-m", 40, "-q", *more]


GONE = "error: rank {} is gone ({}), so the other ranks end too"
FAILURES = {
    "decoding": (GONE.format(1, "its process has ended"), 1),
    "hanging": (GONE.format(1, f"it was silent for {SILENCE:.0f} s"), 1),
    "disagreeing": ("error: rank 1: the ranks have written different tokens, expected those", 2),
    "version": ("error: rank 1 runs mlx-lm 0.0.0, expected ", 2),
}
"""What rank 0 says, and its exit code, by the moment at which rank 1 fails."""
SLOW = [pytest.param(moment, marks=pytest.mark.slow) for moment in list(FAILURES)[1:]]


@pytest.mark.parametrize("moment", ["decoding", *SLOW])
def test_a_rank_that_fails(tmp_path, base, moment):
    sentence, exit_code = FAILURES[moment]
    said, code, after = failed(tmp_path, moment, generate(base))
    assert said.startswith(sentence)
    assert code == exit_code and after < WITHIN + SILENCE * (moment == "hanging")


@pytest.mark.slow
def test_rank_0_is_killed(tmp_path, base):
    moment_file, command = tmp_path / "moment", generate(base)
    first = [FAILING, "decoding", moment_file, *command]
    processes = Processes(tmp_path, first, ["-m", "specstream_mlx", *command])
    code = processes.started[1].wait(timeout=300)
    after = time.time() - float(moment_file.read_text())
    error = processes.ended(10)[1].error
    assert GONE.format(0, "its process has ended") in error
    assert code == 1 and after < WITHIN


@pytest.mark.slow
def test_one_of_three_is_killed(tmp_path):
    base = tiny_llama_directory(
        tmp_path / "base", num_attention_heads=6, num_key_value_heads=3, hidden_size=96
    )
    said, code, after = failed(tmp_path, "decoding", generate(base), size=3)
    assert said == GONE.format(2, "its process has ended")
    assert code == 1 and after < WITHIN


@pytest.mark.slow
@pytest.mark.parametrize("what", ["weights", "adapter"])
def test_a_rank_with_other_files(tmp_path, base, what):
    command, other = generate(base), generate(base)
    if what == "weights":
        other = generate(tiny_llama_directory(tmp_path / "other" / "base", seed=1))
    else:
        for name, seed in (("one", 1), ("two", 2)):
            stream_adapter_directory(tmp_path / name, base, seed=seed)
        command = generate(base, "--adapter-path", tmp_path / "one")
        other = generate(base, "--adapter-path", tmp_path / "two")
    said, code, after = failed(tmp_path, "file", command, other)
    assert said.startswith("error: rank 1: the digest of ") and said.endswith(" as on rank 0")
    assert code == 2 and after < WITHIN


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 1])
def test_a_program_whose_exception_nobody_catches_on_one_rank(tmp_path, base, failing):
    command = ["-c", PROGRAM, base, failing]
    ended = Processes(tmp_path, command, command).ended()
    assert [one.code == 0 for one in ended] == [False, False]
    assert "ValueError: a fault of its own" in ended[failing].error
    other = ended[1 - failing].error
    assert "error: rank 1: a fault of its own" in other if failing else "Traceback" not in other
