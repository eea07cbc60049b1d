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


def failed(folder, *commands):
    """What rank 0 of some processes says, of which the last fails, and its exit code."""
    processes = Processes(folder, *commands)
    processes.started[0].wait(timeout=300)
    if (moment := folder / "moment").exists():
        after = time.time() - float(moment.read_text())
        assert after < WITHIN + SILENCE * ("hanging" in commands[-1])
    for process in processes.started[1:-1]:
        process.wait(timeout=60)
    processes.started[-1].kill()
    first, *others = processes.ended(10)
    for one in others:
        assert one.out == "" and one.code != 0
        assert [line for line in one.error.splitlines() if not line.startswith("[ring]")] == []
    said = re.findall("error: .*", first.error)  # the ring writes to the same stream meanwhile
    assert len(said) == 1 and "Traceback" not in first.error, first.error
    return said[0], first.code


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
    """A model that two or three processes divide."""
    heads = {"num_attention_heads": 12, "num_key_value_heads": 6, "hidden_size": 96}
    return tiny_llama_directory(tmp_path_factory.mktemp("distributed") / "base", **heads)


def generate(base, *more):
    command = ["generate", "--model", base, "-p", "the meeting", "-m", 40, "-q", *more]
    return ["-m", "specstream_mlx", *command]


GONE = "error: rank {} is gone ({}), so the other ranks end too"
ENDED = "its process has ended"
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("moment", "size", "sentence", "exit_code"),
    [
        ("decoding", 2, GONE.format(1, ENDED), 1),
        pytest.param("decoding", 3, GONE.format(2, ENDED), 1, marks=SLOW),
        pytest.param(
            "hanging", 2, GONE.format(1, f"it was silent for {SILENCE:.0f} s"), 1, marks=SLOW
        ),
        pytest.param(
            "disagreeing", 2, "error: rank 1: the ranks have written different tok", 2, marks=SLOW
        ),
        pytest.param("version", 2, "error: rank 1 runs mlx-lm 0.0.0, expected ", 2, marks=SLOW),
    ],
)
def test_a_rank_that_fails(moment, size, sentence, exit_code, tmp_path, base):
    sound = generate(base)
    failing = [FAILING, moment, tmp_path / "moment", *sound[2:]]
    said, code = failed(tmp_path, *[sound] * (size - 1), failing)
    assert said.startswith(sentence) and code == exit_code


@pytest.mark.slow
def test_rank_0_is_killed(tmp_path, base):
    moment_file, command = tmp_path / "moment", generate(base)
    processes = Processes(tmp_path, [FAILING, "decoding", moment_file, *command[2:]], command)
    code = processes.started[1].wait(timeout=300)
    after = time.time() - float(moment_file.read_text())
    assert GONE.format(0, ENDED) in processes.ended(10)[1].error
    assert code == 1 and after < WITHIN


@pytest.mark.slow
@pytest.mark.parametrize("what", ["weights", "adapter"])
def test_a_rank_with_other_files(tmp_path, base, what):
    if what == "weights":
        first, other = base, tiny_llama_directory(tmp_path / "other" / "base", seed=1)
        commands = generate(first), generate(other)
    else:
        for name, seed in (("one", 1), ("two", 2)):
            stream_adapter_directory(tmp_path / name, base, seed=seed)
        commands = [generate(base, "--adapter-path", tmp_path / name) for name in ("one", "two")]
    said, code = failed(tmp_path, *commands)
    assert said.startswith("error: rank 1: the digest of ") and said.endswith(" as on rank 0")
    assert code == 2


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 1])
def test_a_program_whose_exception_nobody_catches_on_one_rank(tmp_path, base, failing):
    command = ["-c", PROGRAM, base, failing]
    ended = Processes(tmp_path, command, command).ended()
    assert [one.code == 0 for one in ended] == [False, False]
    assert "ValueError: a fault of its own" in ended[failing].error
    other = ended[1 - failing].error
    assert "error: rank 1: a fault of its own" in other if failing else "Traceback" not in other
