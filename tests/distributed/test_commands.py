"""Commands in two processes: clients of a server get what one process writes; costs are shown."""

import json
import re
import signal
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from processes import Processes
from tiny_models import stream_adapter_directory, tiny_llama_directory

from specstream_mlx import keyed_sampler, load, stream_generate
from specstream_mlx.drafting import step_costs


def asked(address, body):
    """The text of a completion; of a body with ``left``, none: the client goes away."""
    left = bool(body.pop("left", 0))
    request = urllib.request.Request(
        f"{address}/completions",
        json.dumps(body | {"stream": left}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        if left:
            reply.readline()
            return None
        return json.load(reply)["choices"][0]["text"]


@pytest.mark.slow
def test_two_processes_serve_what_one_writes(tmp_path):
    base = tiny_llama_directory(tmp_path / "base", residual_scale=0.3)
    streams = stream_adapter_directory(tmp_path / "streams", base, scale=0.3)
    shared = stream_adapter_directory(
        tmp_path / "shared", base, mode="shared", scale=0.3, lora_rank=4
    )
    flags = f"--adapter-path base={streams} --adapter-path shared={shared} --port 0"
    command = ["-m", "specstream_mlx", "serve", "--model", base, *flags.split()]
    processes = Processes(tmp_path, command, command)
    address = None
    while address is None:
        line = processes.started[0].stderr.readline()
        assert line, processes.ended(5)
        address = re.search(r"http://\S+/v1", line)
    bodies = [
        {"model": "base", "prompt": "the meeting is at noon", "max_tokens": 10},
        {"model": "base", "prompt": "the meeting is at noon, please", "max_tokens": 200, "left": 1},
        {"model": "base:shared", "prompt": "could you check", "max_tokens": 8},
        {"model": "base", "prompt": "the table", "max_tokens": 8, "temperature": 0.8, "seed": 3},
        {"model": "base", "prompt": "the meeting is at noon, please", "max_tokens": 6},
    ]
    with ThreadPoolExecutor() as pool:
        texts = list(pool.map(lambda body: asked(address[0], dict(body)), bodies))
    processes.started[0].send_signal(signal.SIGINT)
    ended = processes.ended(60)
    assert [one.code for one in ended] == [0, 0], [one.error for one in ended]
    assert ended[1].out == ended[1].error == ""
    model, tokenizer = load(base)
    for body, text in zip(bodies, texts, strict=True):
        model.swap_adapter(shared if "shared" in body["model"] else streams)
        seed = body.get("seed")
        sampler = None if seed is None else keyed_sampler(seed, temp=body["temperature"])
        responses = stream_generate(
            model, tokenizer, body["prompt"], body["max_tokens"], sampler=sampler
        )
        assert text in (None, "".join(response.text for response in responses))


@pytest.mark.slow
def test_doctor_shows_reductions_and_rank_0_stores_the_costs_of_steps(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base = tiny_llama_directory(tmp_path / "base")
    streams = stream_adapter_directory(tmp_path / "streams", base)
    doctor = ["-m", "specstream_mlx", "doctor", "--model", base]
    first, other = Processes(tmp_path, doctor, doctor).ended()
    assert (first.code, other.code, other.out) == (0, 0, ""), first.error
    assert re.search(
        r"processes +2 over ring: a reduction of 4 kB takes \S+ ms, one of 16 MB has \S+ GB/s",
        first.out,
    )
    text = ["-m", "specstream_mlx", "generate", "--model", base, "--adapter-path", streams]
    text += ["-p", "the meeting", "-m", 30, "-q"]
    assert [one.code for one in Processes(tmp_path, text, text).ended()] == [0, 0]
    [file] = step_costs.directory().glob("*.json")
    stored = json.loads(file.read_text())
    assert stored["facts"]["processes"] == [2, ["ring", "127.0.0.1"]]
    [timed] = stored["lengths"]
    assert timed["timings"] and all(seconds > 0 for _, seconds in timed["timings"])
