"""The Swift package makes the calls that the Python runtime makes, input for input.

What it is compared with is made here and handed to ``swift test`` as a folder of JSON.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

pytest.importorskip("coremltools", reason="coremltools is not installed: the extra [coreml]")

from coreml_packages import PAIRS, SIZES, VOCAB_SIZE, Pair
from random_models import random_prompt
from specstream_mlx.convert.to_coreml.contents import METADATA
from specstream_mlx.convert.to_coreml.recordings import FORMAT, Recorder, recorded_run, write
from trees import fixed_trees

from specstream_mlx import DraftSettings, keyed_sampler
from specstream_mlx.engine.guess import StreamGuesses, normalized
from specstream_mlx.engine.noise import Noise
from specstream_mlx.engine.sampling import Sampling, drawn_tokens
from specstream_mlx.generation.request import Request

pytestmark = pytest.mark.slow

KIT = Path(__file__).parents[2] / "apps" / "ios" / "SpecStreamKit"
PROMPT = random_prompt(21, vocab_size=VOCAB_SIZE)
TURN = random_prompt(11, seed=5, vocab_size=VOCAB_SIZE)
KEYED = keyed_sampler(2**63 + 5, 1.0)


class SomeRight:
    """A package some of whose guesses are made right by the text that is coming."""

    def __init__(self, package, text):
        self.title, self.states = "numpy, foretelling", package.states
        self._package, self._text = package, text
        self._rng = np.random.default_rng(0)
        self._step, self._hidden = None, None  # of the call of ``logits`` before ``draft``

    def call(self, name, inputs, states=None):
        found = self._package.call(name, inputs, states)
        found = {key: np.array(value) for key, value in found.items()}
        if "streamHidden" in found:
            self._step, self._hidden = inputs, found["streamHidden"]
        if "candidates" in found:
            self._foretell(inputs, found)
        return found

    def _foretell(self, inputs, found):
        if "streamHidden" in inputs:
            same = (self._hidden == inputs["streamHidden"]).all((1, 2))
            last, inputs = np.flatnonzero(same)[0], self._step
        else:
            last = found["last"].item()
        next_one = inputs["length"].item() + int(inputs["ancestors"][last].sum()) + 1
        coming = self._text[next_one:][: len(found["candidates"])]
        rank = int(self._rng.integers(0, 2))
        for depth, token in enumerate(coming[: self._rng.integers(0, 4)]):
            guesses = found["candidates"][depth]
            if "candidateParents" in found:
                guesses = guesses[0]
                if depth:
                    found["candidateParents"][depth, 0] = rank
            rank = rank if depth == 0 else 0
            guesses[guesses == token] = guesses[rank]  # no token comes twice
            guesses[rank] = token


def recorded(pair, *turns, adapter="one", tree_size=7, max_tokens=24, stop_tokens=(), sampler=None):
    """Runs of one decoder, some of whose drafts are right: a text after each turn, on the rows of
    those before.
    """

    def runs_by(executor):
        recorder, text, runs = Recorder(executor), [], []
        decoder = pair.package_decoder(adapter, recorder)
        for turn in turns:
            request = Request(
                [*text, *turn],
                DraftSettings(tree_size=tree_size),
                max_tokens=max_tokens,
                end_tokens=stop_tokens,
                sampler=sampler,
            )
            run = recorded_run(decoder, recorder, request)
            text = [*run["prompt"], *run["tokens"]]
            run["settings"]["max_tokens"] = max_tokens  # the host sees where the context ends
            runs.append(run | {"continues": bool(runs)})
        return runs, text

    plain, text = runs_by(pair.package)
    runs, _ = runs_by(SomeRight(pair.package, text))
    for key in ("prompt", "tokens"):
        assert [run[key] for run in runs] == [run[key] for run in plain]
    return runs


def inside_a_path(run):
    """The first accepted draft of a run that is neither the last token of its step nor was before,
    and how many tokens there are up to it.
    """
    for call in run["calls"]:
        if "last" not in call["outputs"]:
            continue
        (last,), inputs = call["outputs"]["last"], call["inputs"]
        path = np.flatnonzero(inputs["ancestors"][last])
        place = inputs["length"][0] + 1 - len(run["prompt"])  # of the first accepted draft
        if len(path) > 2 and place >= 0:
            token = inputs["inputIds"][path[1]]
            if token not in run["tokens"][:place]:
                return token, place + 1
    raise AssertionError("no path of two drafts was accepted")


def to_the_end(pair):
    """A run whose last tree reaches beyond the context."""
    for length in range(80, 96):
        prompt = random_prompt(length, vocab_size=VOCAB_SIZE)
        (run,) = recorded(pair, prompt, max_tokens=40)
        if max(run["calls"][-1]["inputs"]["positions"]) >= SIZES.context:
            return run
    raise AssertionError("no tree reached beyond the context")


def lossless(pair):
    (free,) = recorded(pair, PROMPT)
    token, count = inside_a_path(free)
    return [
        free,
        *recorded(pair, PROMPT, stop_tokens=[token]),
        *recorded(pair, PROMPT, max_tokens=count),
        *recorded(pair, PROMPT, TURN, tree_size=4),
        to_the_end(pair),
        *recorded(pair, PROMPT, TURN, sampler=KEYED),
    ]


def shared(pair):
    adapters = "one", "other", "one"
    return [run for name in adapters for run in recorded(pair, PROMPT, TURN, adapter=name)]


def conditioned(pair):
    return [
        *recorded(pair, PROMPT, TURN),
        *recorded(pair, PROMPT, tree_size=3),
        *recorded(pair, PROMPT, sampler=KEYED),
    ]


def bare(pair):
    return [
        *recorded(pair, PROMPT[:9], tree_size=4, max_tokens=6),
        *recorded(pair, PROMPT[:1], tree_size=4, max_tokens=6, sampler=KEYED),
    ]


def random_guesses(rng):
    """Guesses with many ties, of plain streams or of such as know the token before."""
    gamma, k = rng.integers(1, 5), 3
    conditioned = rng.random() < 0.5
    shape = (gamma, k if gamma > 1 else 1) if conditioned else (gamma,)
    log_probs = -np.sort(rng.integers(0, 4, (*shape, k)) / 4).astype(np.float32)
    tokens = np.argsort(rng.random((*shape, 9)))[..., :k].astype(np.int32)
    if not conditioned:
        return StreamGuesses(tokens, log_probs)
    parents = np.full(shape, -1, np.int32)
    for depth in range(1, gamma):
        rows = 1 if depth == 1 else shape[1]
        parents[depth] = rng.permutation(rows * k)[: shape[1]]
    return StreamGuesses(tokens, log_probs, parents)


def trees(rng):
    for _ in range(200):
        guesses, size = random_guesses(rng), int(rng.integers(1, 16))
        settings = DraftSettings(tree_width=3, tree_size=size)
        tree = fixed_trees(settings).grow(7, guesses)
        given = {"candidates": guesses.tokens, "logProbs": guesses.log_probs}
        if guesses.parents is not None:
            given["candidateParents"] = guesses.parents
        yield {
            "guesses": {name: array.tolist() for name, array in given.items()},
            "size": size,
            "tokens": tree.tokens.tolist(),
            "parents": tree.parents.tolist(),
            "depths": tree.depths.tolist(),
        }


SEEDS = (0, 1, 2**32, 2**64 - 1)


def noise():
    for seed in SEEDS:
        made = Noise(seed)
        for position in (0, 1, 1000):
            for count in (1, 2, 7, 96, 97):
                key = made.key(position, "token")
                yield {
                    "seed": str(seed),
                    "position": position,
                    "number": str(made.number(position)),
                    "uniform": mx.random.uniform(shape=(count,), key=key).tolist(),
                    "gumbel": Noise(seed).gumbel(position, 1, count)[0].tolist(),
                }


def draws(rng):
    for seed in SEEDS:
        for temp in (0.3, 1.0, 1.7):
            logits = rng.normal(0, 2, (8, VOCAB_SIZE)).astype(np.float32)
            log_probs, positions = normalized(mx.array(logits)), np.arange(len(logits))
            drawn = drawn_tokens(Sampling(temp), Noise(seed), log_probs, 0, positions)
            one = {"seed": str(seed), "temp": temp}
            yield one | {"logits": logits.tolist(), "tokens": drawn.tolist()}


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    packages = tmp_path_factory.mktemp("packages")
    directory, rng = tmp_path_factory.mktemp("recordings"), np.random.default_rng(0)
    for make in (lossless, shared, conditioned, bare):
        pair = Pair(packages / f"{make.__name__}.mlpackage", *PAIRS[make.__name__])
        found = {"format": FORMAT, "package": pair.path.name, "runs": make(pair)}
        found["facts"] = pair.package.metadata[METADATA]
        found["fingerprint"] = pair.contents.fingerprint
        write(found, directory / f"recording {make.__name__}.json")
    write({"trees": list(trees(rng))}, directory / "trees.json")
    write({"positions": list(noise())}, directory / "noise.json")
    write({"draws": list(draws(rng))}, directory / "draws.json")
    return directory


def test_recordings_hold_what_can_go_wrong(recordings):
    """Accepted paths, a stop and the most tokens inside one, a tree at the context's end."""
    content = json.loads((recordings / "recording lossless.json").read_text())
    free, stopped, cut, first, second, long, *_ = content["runs"]
    assert [*stopped["tokens"], *stopped["settings"]["stop_tokens"]] == cut["tokens"]
    assert cut["tokens"] == free["tokens"][: len(cut["tokens"])]
    for run in (stopped, cut):
        inputs, outputs = run["calls"][-1]["inputs"], run["calls"][-1]["outputs"]
        accepted = sum(inputs["ancestors"][outputs["last"][0]])
        assert len(run["prompt"]) + len(run["tokens"]) < inputs["length"][0] + 1 + accepted
    assert second["continues"] and not first["continues"]
    read = [call["inputs"]["length"] for call in second["calls"]]
    assert len(first["prompt"]) < read[0][0] < len(second["prompt"])
    assert len(long["prompt"]) + len(long["tokens"]) == SIZES.context + 1
    for name in ("lossless", "shared", "conditioned"):
        for run in json.loads((recordings / f"recording {name}.json").read_text())["runs"]:
            steps = ["commit" in call["inputs"] for call in run["calls"]]
            assert len(run["tokens"]) > 1.2 * sum(steps) or len(run["tokens"]) < 10


@pytest.mark.skipif(shutil.which("swift") is None, reason="swift is not on PATH")
def test_swift_makes_the_same_calls(recordings, tmp_path):
    command = ["swift", "test", "--package-path", KIT, "--scratch-path", tmp_path / "build"]
    output = run(command, tmp_path, SPECSTREAM_RECORDINGS=str(recordings))
    assert re.search(r"Executed [1-9]\d* tests, with 0 failures", output), output
    assert "skipped" not in output


STUBS = Path(__file__).parent / "stubs"


@pytest.mark.skipif(shutil.which("swiftc") is None, reason="swiftc is not on PATH")
@pytest.mark.skipif(sys.platform == "darwin", reason="swift test compiles against Core ML itself")
def test_core_ml_runner_compiles_against_stubs(tmp_path):
    """Stubs of ours, that is: whether Apple declares the same, only a Mac can tell."""
    sources = [str(path) for path in (KIT / "Sources" / "SpecStreamKit").glob("*.swift")]
    example = KIT / "Example" / "Sources" / "WritingTools"
    library = ["-swift-version", "6", "-parse-as-library", "-I", "."]
    for module, files in (
        ("CoreML", [STUBS / "CoreML.swift"]),
        ("SpecStreamKit", sources),
        ("Tokenizers", [STUBS / "Tokenizers.swift"]),
    ):
        path = f"{module}.swiftmodule"
        module = ["-emit-module", "-module-name", module, "-emit-module-path", path]
        run(["swiftc", *library, *module, *files], tmp_path)
    # Data races are looked for in the intermediate language.
    checked = ["swiftc", *library, "-wmo", "-emit-sil", "-o", "checked.sil", "-module-name"]
    run([*checked, "SpecStreamKit", *sources], tmp_path)
    run([*checked, "WritingTools", example / "WritingTools.swift"], tmp_path)
    views = example / "WritingToolsApp.swift"  # SwiftUI has no stub: the syntax alone
    run(["swiftc", "-frontend", "-parse", views], tmp_path)


def run(command, folder, **environment):
    """What a command prints, errors included."""
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "timeout": 1800}
    result = subprocess.run(command, cwd=folder, env=os.environ | environment, **how)
    assert result.returncode == 0, result.stdout
    return result.stdout
