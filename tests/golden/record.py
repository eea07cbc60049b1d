"""The golden record: what this project writes, plans and answers, kept in ``kept/*.json``.

Every move of code must leave it as it is. A move that means to change something records that part
anew, and git shows what has changed. Processors round sums differently, so a float that differs by
less than ``TOLERANCE`` counts as equal, and stays as it is kept when its part is recorded anew::

    python -m tests.golden.record                    # records everything anew
    python -m tests.golden.record --only help        # one part
    python -m tests.golden.record --check --only quick

It goes through public doors: ``load``, ``stream_generate``, ``batch_generate``, the command line.
Names inside the code stand in ``observed`` alone, below: who renames one of them changes its line
there.
"""

import argparse
import difflib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, chdir, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from unittest.mock import patch

import specstream_mlx  # noqa: F401  (loads OpenBLAS, which must come before mlx.core)

# isort: split
import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from specstream_mlx import (
    batch_generate,
    bundled,
    demonstration,
    keyed_sampler,
    load,
    stream_generate,
)
from specstream_mlx.cli import main as command_line

from . import tiny

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
KEPT = HERE / "kept"


class Observed:
    """What was seen of the steps, and the clock that they set.

    A sequence of a pass is ``place/nodes/width:accepted``, or ``p`` where the step is plain.
    """

    def __init__(self):
        self.passes: list[list[str]] = []
        self.now = 1000.0  # seconds

    def clock(self):
        self.now += 1e-7
        return self.now

    def taken(self):
        """Return the passes since the last call."""
        passes, self.passes = self.passes, []
        return " ".join("+".join(words) for words in passes)


@contextmanager
def observed():
    """Watch the decoder's steps, by a clock that they set and a cost curve that stays as it is.

    This is the one place that knows names inside the code.
    """
    from specstream_mlx.drafting.step_costs import Timings  # its curve, before anything was timed
    from specstream_mlx.engine.step import Decoder  # plain steps, steps of trees, their commits

    seen, step, plain, commit = Observed(), Decoder.step, Decoder.next_token, Decoder.commit
    make = Timings.__init__

    def seen_step(self, plans, rules):
        sizes = [len(plan.tree) for plan in plans]
        words = [f"{p.place}/{size}/{p.width}" for p, size in zip(plans, sizes, strict=True)]
        seen.passes.append(words)
        guesses = any(plan.width for plan in plans)
        seen.now += 1.1 + 0.06 * len(plans) * max(sizes) + 0.5 * guesses
        return step(self, plans, rules)

    def seen_plain(self, tokens, rules):
        seen.passes.append(["p"] * len(rules))
        seen.now += 0.9 + 0.1 * len(rules)
        return plain(self, tokens, rules)

    def seen_commit(self, paths, kept_paths):
        words = zip(seen.passes[-1], paths, strict=True)
        seen.passes[-1] = [f"{word}:{len(path)}" for word, path in words]
        return commit(self, paths, kept_paths)

    def made(self, *args, **kwargs):
        make(self, *args, **kwargs)
        self.curve = replace(self.curve, spread=0.01, measured=time.time())

    with (
        patch.multiple(Decoder, step=seen_step, next_token=seen_plain, commit=seen_commit),
        patch.object(Timings, "__init__", made),
        patch.object(time, "perf_counter", seen.clock),
    ):
        yield seen


# The parts -----------------------------------------------------------------------------------

KINDS = {
    "rule, lossless": ("lossless", {}),
    "rule, shared": ("shared", {}),
    "rule, conditioned": ("conditioned", {}),
    "best-first": ("lossless", {"tree_size": 9}),
    "chain, value rotation": ("rotation", {"tree_width": 1, "tree_size": None}),
    "pruned, shared": ("shared", {"tree_size": 8, "max_nodes": 5}),
    "threshold, vocabulary": ("vocabulary", {"tree_size": 12, "prune_threshold": 0.01}),
    "lookup": (None, {"lookup": True}),
    "rule, few keys, lookup": ("keys", {"lookup": True}),
    "levels, linear": ("linear", {"tree_width": 3, "tree_size": None, "num_streams": 2}),
}
"""Adapters and arguments of four prompts each."""
OTHER_PROMPTS = {"rule, lossless": 10, "pruned, shared": 20}
"""In place of prompts whose plans turned on near-ties, which processors decide differently."""
SAMPLINGS = {"greedy": None, "seed 3": 3, "seed 11": 11}


def prompts_of(number):
    """Four prompts of token ids, in which parts come again."""
    rng = np.random.default_rng(number)
    found = []
    for length in rng.integers(3, 8, 4):
        part = rng.integers(4, 260, length).tolist()
        found.append([*part, *rng.integers(4, 260, 3).tolist(), *part])
    return found


def sampler_of(seed, number=0):
    return None if seed is None else keyed_sampler(seed + number, temp=0.8)


def words(tokens):
    return " ".join(map(str, tokens))


def alone(seen, loaded, prompt, length, sampler, **options):
    """The tokens and the passes of one prompt."""
    seen.taken()
    responses = stream_generate(*loaded, prompt, length, sampler=sampler, **options)
    return [words(one.token for one in responses), seen.taken()]


def together(seen, loaded, prompts, length, seed, **options):
    """The tokens of several prompts, and the passes."""
    samplers = [sampler_of(seed, number) for number in range(4)]
    options = {"max_tokens": length, "return_token_ids": True, "settings": None} | options
    response = batch_generate(*loaded, prompts, samplers=samplers, **options)
    return [*map(words, response.token_ids), seen.taken()]


def tiny_alone(seen, count=4, length=24):
    """40 prompts of tiny models, one at a time."""
    found = {}
    for number, (kind, (adapter, options)) in enumerate(KINDS.items()):
        loaded = load("base", adapter_path=adapter)
        prompts = prompts_of(OTHER_PROMPTS.get(kind, number))
        for sampling, seed in SAMPLINGS.items():
            for place, prompt in enumerate(prompts[:count]):
                one = alone(seen, loaded, prompt, length, sampler_of(seed, place), **options)
                found[f"{kind}, {sampling}, {place + 1}"] = one
    return found


def tiny_together(seen):
    """The same prompts, four side by side."""
    found = {}
    for number, (kind, (adapter, options)) in enumerate(KINDS.items()):
        loaded = load("base", adapter_path=adapter)
        prompts = prompts_of(OTHER_PROMPTS.get(kind, number))
        for sampling, seed in SAMPLINGS.items():
            some = together(seen, loaded, prompts, [24, 17, 24, 20], seed, **options)
            found[f"{kind}, {sampling}"] = some
    return found


def ended(command):
    """Run the command line in this process; returns its exit code and what it printed.

    What follows `` <<< `` is standard input, with ``/`` between its lines.
    """
    command, _, typed = command.partition(" <<< ")
    printed, files = io.BytesIO(), {}
    for name in ("stdout", "stderr"):
        files[name] = io.TextIOWrapper(printed, "utf-8", write_through=True)
    files["stdin"] = io.TextIOWrapper(io.BytesIO(typed.replace("/", "\n").encode()), "utf-8")
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(99))  # it does not end by itself
    signal.alarm(300)
    code = 0
    try:
        with patch.multiple(sys, argv=["specstream-mlx", *shlex.split(command)], **files):
            command_line()
    except SystemExit as error:
        code = error.code or 0
    except Exception as error:
        code = f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
        for left in Path.cwd().glob("out*"):
            shutil.rmtree(left)
    text = printed.getvalue().decode().replace(str(Path.cwd()), ".").replace(str(ROOT), "CLONE")
    text = re.sub(r"((?:_tps|_memory)\W+|It/sec |Tokens/sec |mem )[\d.]+", r"\1#", text)
    text = re.sub(r"\d+ s( here)?, [\d.]+ MB", r"# s\1, # MB", text)
    lines = (" ".join(re.sub("[─-╿]", "", line).split()) for line in text.splitlines())
    return [code, *filter(None, lines)]


def commands(name, seen):
    """Run the commands that the part's file names; a new one is added there with ``null``."""
    return {command: ended(command) for command in json.loads(file_of(name).read_text())}


CASES = {
    "no drafts": {"speculation": False},
    "lookup": {"num_streams": 0, "lookup": True},
    "chain": {"tree_width": 1, "tree_size": None},
    "best-first": {"tree_size": 9},
    "pruned": {"tree_size": 9, "max_nodes": 4},
    "threshold": {"tree_size": 9, "prune_threshold": 0.01},
}


def operations(seen):
    """How often a step waits for the device, and what it enqueues: of every step but the first."""
    found = {}
    for adapter in "lossless", "conditioned", "shared":
        model, tokenizer = load("base", adapter_path=adapter)
        for (case, options), sampling in product(CASES.items(), ("greedy", "seed 3")):
            sampler, prompt = sampler_of(SAMPLINGS[sampling]), prompts_of(0)[0]
            responses = stream_generate(model, tokenizer, prompt, 60, sampler=sampler, **options)
            next(responses)
            seen.taken()
            with counted() as since:
                calls, steps = 1, []
                for response in responses:
                    if response.target_calls > calls:
                        calls = response.target_calls
                        steps.append(since())
                    if calls == 8:
                        break
                responses.close()
            waits, made = zip(*steps, strict=True)
            found[f"{adapter}, {case}, {sampling}"] = [words(waits), words(made), seen.taken()]
    return found


@contextmanager
def counted():
    """Count waits and calls that make arrays; what it gives returns those since its last call."""
    from waits import counted_waits
    from waits import operations as every_operation

    made_so_far = returned = waited = 0

    def making(make):
        def call(*args, **kwargs):
            nonlocal made_so_far
            made = make(*args, **kwargs)
            leaves = [leaf for _, leaf in tree_flatten([made])]
            made_so_far += any(isinstance(leaf, mx.array) for leaf in leaves)
            return made

        return call

    def since():
        nonlocal returned, waited
        news = waits.count - waited, made_so_far - returned
        waited, returned = waits.count, made_so_far
        return news

    with ExitStack() as stack:
        for owner, name, make in list(every_operation()):
            stack.enter_context(patch.object(owner, name, making(make)))
        waits = stack.enter_context(counted_waits())
        yield since


BODIES = json.loads((HERE / "requests.json").read_text())
"""Requests to the server: a name, a path, and the body; without one it is a GET."""
CHANGING = {r"\b([a-z]+[-_])[0-9a-f]{16,}": r"\1ID", r'("created(?:_at)?":) \d+': r"\1 0"}
"""What changes from answer to answer: names by chance, and times."""


def server(seen):
    """What the server answers, and every event of its streams."""
    found = {}
    command = "serve --port 0 --model base --adapter-path base=lossless --adapter-path lora=lora"
    printed = io.StringIO()

    def ask():
        try:
            while not (address := re.search(r"http://[\d.]+:\d+", printed.getvalue())):
                time.sleep(0.05)
            for name, (path, body) in BODIES.items():
                found[name] = answer(address[0] + path, body)
                found[name].append(seen.taken())
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    client = threading.Thread(target=ask)
    client.start()
    argv = ["specstream-mlx", *shlex.split(command)]
    with patch.multiple(sys, argv=argv, stderr=printed), suppress(SystemExit):
        command_line()
    client.join()
    return found


def answer(address, body):
    """Ask a server; returns the status and the lines of its answer, without what always changes."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(address, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=600) as response:
            status, text = response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    lines = [line for line in text.splitlines() if line and line != ": keep-alive"]
    for number, line in enumerate(lines):
        before, brace, value = line.partition("{")
        if brace and before in ("", "data: "):
            line = before + json.dumps(json.loads(brace + value), sort_keys=True)
        for pattern, instead in CHANGING.items():
            line = re.sub(pattern, instead, line)
        lines[number] = line
    return [status, *lines]


def writers():
    """The bundled streams, then the bundled adapters, by name."""
    adapters = {name: bundled.adapter_path(name) for name in bundled.adapter_names()}
    return {"streams": bundled.streams_path()} | adapters


def real(seen, length=16, texts=slice(None)):
    """Half of 40 prompts of the demonstration model: its streams and each of its adapters."""
    found, writing = {}, None
    for number, (writer, prompt) in enumerate(real_prompts()[texts]):
        if number % 4 > 1:
            continue
        if writer != writing:
            adapter, writing = writers()[writer], writer
            loaded = load(demonstration.base_path(), adapter_path=adapter, weights="expanded")
        for place, (sampling, seed) in enumerate(SAMPLINGS.items()):
            if not place or number % 2 == place - 1:
                one = alone(seen, loaded, prompt, length, sampler_of(seed))
                found[f"{number}, {writer}, {sampling}"] = one
    return found


def real_together(seen):
    """The same prompts, four with different adapters side by side."""
    loaded, found = load(demonstration.base_path(), weights="expanded"), {}
    for number in range(10):
        names, texts = zip(*real_prompts()[number::10], strict=True)
        adapters, seed = [writers()[name] for name in names], list(SAMPLINGS.values())[number % 3]
        found[f"{number}, {seed}"] = together(
            seen, loaded, list(texts), 16, seed, adapters=adapters
        )
    return found


def real_prompts():
    """40 pairs of a writer's name and a prompt, which is a chat without an adapter."""
    said = [line.split(": ", 1) for line in (HERE / "prompts.txt").read_text().splitlines()]
    return [(n, [{"role": "user", "content": t}] if n == "streams" else t) for n, t in said]


PARTS = {
    "quick": partial(tiny_alone, count=1, length=16),
    "tiny alone": tiny_alone,
    "tiny together": tiny_together,
    "operations": operations,
    "server": server,
    "real quick": partial(real, length=10, texts=slice(7, 9)),
    "real alone": real,
    "real together": real_together,
}
COMMANDS = ["doors", "help"]
COMMANDS += [f"refused {one}" for one in "generate chat write convert train serve".split()]
COMMANDS += ["refused adapters", "refused others"]
PARTS |= {name: partial(commands, name) for name in COMMANDS}


# Recording and checking ------------------------------------------------------------------------


def recorded(names):
    """Make parts in this process, in a folder of their own."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        os.environ["XDG_CACHE_HOME"] = str(Path(folder) / "cache")
        tiny.write_all(Path(folder))
        found = {}
        for name in names:
            with observed() as seen:
                found[name] = PARTS[name](seen)
        return found


def file_of(name):
    return KEPT / f"{name.replace(' ', '_')}.json"


def kept_of(name):
    file = file_of(name)
    return json.loads(file.read_text()) if file.exists() else {}


TOLERANCE = 1e-4  # of the value, or of 1
FLOAT = re.compile(r"((?<![\w.])-?\d+\.\d+(?:e[-+]\d+)?(?!\.?\d))")
"""A number with a point inside a text; what has none, such as a token id, is compared exactly."""


def close(kept, found):
    return abs(kept - found) <= TOLERANCE * max(1, abs(kept))


def as_kept(kept, found):
    """Return what was found, with the kept float wherever the two are close.

    A float may stand anywhere: in lists and dictionaries, and inside a text.
    """
    if isinstance(kept, dict) and isinstance(found, dict):
        return {key: as_kept(kept.get(key), value) for key, value in found.items()}
    if isinstance(kept, list) and isinstance(found, list):
        return [as_kept(*pair) for pair in zip(kept, found, strict=False)] + found[len(kept) :]
    if isinstance(kept, float) and isinstance(found, float) and close(kept, found):
        return kept
    if isinstance(kept, str) and isinstance(found, str):
        ours, theirs = FLOAT.split(kept), FLOAT.split(found)  # every second part is a float
        if ours[::2] == theirs[::2]:
            pairs = list(zip(ours, theirs, strict=True))
            theirs[1::2] = [a if close(float(a), float(b)) else b for a, b in pairs[1::2]]
            return "".join(theirs)
    return found


def differences(name, found):
    """Say what is not as it is kept."""
    kept = kept_of(name)
    found = as_kept(kept, json.loads(json.dumps(found)))
    keys = [key for key in {**kept, **found} if kept.get(key) != found.get(key)]
    said = []
    for key in keys:
        sides = [[str(line) for line in one.get(key) or []] for one in (kept, found)]
        lines = difflib.unified_diff(*sides, "kept", "found", lineterm="", n=0)
        said.append("\n  ".join([f"{name}: {key}", *(one for one in lines if one[:2] != "@@")]))
    return said


def in_new_process(names):
    """Make parts in a process of their own, which knows nothing of earlier texts."""
    own = {"COLUMNS": "100", "TERM": "dumb", "HF_HUB_OFFLINE": "1"}
    own["PYTHONPATH"] = f"{ROOT}{os.pathsep}{ROOT / 'tests'}"
    command = [sys.executable, "-m", "tests.golden.record", "--print", "--only", *names]
    env = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"} | os.environ | own
    ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(ended.stderr[-3000:])
    return json.loads(ended.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--check", action="store_true", help="say what differs, write nothing")
    parser.add_argument("--print", action="store_true", help="print the parts as JSON")
    asked = parser.parse_args()
    if asked.print:
        stdout, sys.stdout = sys.stdout, sys.stderr
        print(json.dumps(recorded(asked.only)), file=stdout)
        return
    differing = []
    for name in asked.only:
        start = time.monotonic()
        found = in_new_process([name])[name]
        if asked.check:
            differing += differences(name, found)
        else:
            found = as_kept(kept_of(name), found)
            file_of(name).write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        print(f"{name}: {len(found)} entries, {time.monotonic() - start:.0f} s", flush=True)
    print("\n".join(differing))
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
