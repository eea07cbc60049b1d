"""``generate --coreml``, ``to_coreml.verify`` and its recordings, and what they refuse."""

import json
import platform
import shutil
from copy import deepcopy
from functools import partial
from unittest.mock import Mock, call

import pytest

pytest.importorskip("coremltools", reason="coremltools is not installed: the extra [coreml]")

import coremltools as ct
import numpy as np
from command_line import refusal, result_of, run, succeeded
from coreml_packages import SIZES, plain_text
from coremltools.proto.Model_pb2 import Model
from random_models import random_prompt
from specstream_mlx.convert.to_coreml import recordings
from specstream_mlx.convert.to_coreml.contents import METADATA, Contents, model_file
from specstream_mlx.convert.to_coreml.executors import executor_of
from specstream_mlx.convert.to_coreml.verify import main as verify

from specstream_mlx import UserError, keyed_sampler
from specstream_mlx.generation.request import Request

run_verify = partial(result_of, verify)


def generate(package, *flags):
    return run("generate", "--coreml", package, "-p", "the meeting", "-m", 8, *flags)


def values(package, *flags):
    result = succeeded(generate(package, "--json", *flags))
    return json.loads(result.stdout)


def test_a_text_does_not_depend_on_drafts(exported):
    flags = ("--adapter", "streams")
    drafted, plain = values(exported, *flags), values(exported, *flags, "--no-speculation")
    assert drafted["text"] == plain["text"]
    assert plain["target_calls"] == plain["generation_tokens"] == 8
    assert drafted["tree"] == "best-first, 3 nodes, from streams and lookup"
    # A drawn one, with the adapter's template around it.
    flags = ("--adapter", "key_points", "--temp", 1, "--seed", 4)
    drafted, plain = values(exported, *flags), values(exported, *flags, "--no-speculation")
    assert drafted["text"] == plain["text"]
    raw = values(exported, *flags, "--ignore-chat-template")
    tokenizer = Contents.read(exported).read_tokenizer()
    assert raw["prompt_tokens"] == len(tokenizer.encode("the meeting")) < drafted["prompt_tokens"]


def with_facts(facts):
    """What changes a package's description of itself; ``None``: it has none."""

    def changed(package):
        spec, file = Model(), model_file(package)
        spec.ParseFromString(file.read_bytes())
        fields = spec.description.metadata.userDefined
        known = json.loads(fields.pop(METADATA))
        if facts is not None:
            fields[METADATA] = json.dumps(known | facts)
        file.write_bytes(spec.SerializeToString())

    return changed


def weights(package):
    return model_file(package).parent / "weights" / "weight.bin"


def cut(file):
    file.write_bytes(file.read_bytes()[:1000])


SIZED = {"context": 64, "nodes": [4], "chunk": 8, "candidates": 4}
DAMAGES = {
    "weight.bin is missing": lambda p: weights(p).unlink(),
    "cannot run streams_prefill8: ": lambda p: cut(weights(p)),
    "is no Core ML package": lambda p: cut(model_file(p)),
    "x.mlpackage is no Core ML package of export-coreml: it does not exist": shutil.rmtree,
    "weight.bin is empty": lambda p: weights(p).write_bytes(b""),
    **{
        f"the metadata is damaged: {sentence}": with_facts(facts)
        for sentence, facts in {
            "adapters is 3, expected an object with an adapter": {"adapters": 3},
            "adapters is {}, expected an object with an adapter": {"adapters": {}},
            "adapters' 'a' is 3, expected an object": {"adapters": {"a": 3}},
            "adapters' 'a': num_streams is 'x'": {"adapters": {"a": {"num_streams": "x"}}},
            "adapters' 'a': mode is 3, expected 'lossl": {"adapters": {"a": {"mode": 3}}},
            "base is None, expected an object": {"base": None},
            "vocab_size is None, expected an integer": {"base": {}},
            "vocab_size is 'x', expected an integer": {"base": {"vocab_size": "x"}},
            "end_tokens is ['x'], exp": {"base": {"vocab_size": 9, "end_tokens": ["x"]}},
            "sizes is [], expected an object": {"sizes": []},
            "context is None, expected an integer": {"sizes": {}},
            "nodes is 3, expected a list of integers": {"sizes": SIZED | {"nodes": 3}},
            "nodes is ['x'], expected a list": {"sizes": SIZED | {"nodes": ["x"]}},
            "chunk is 0, expected an integer": {"sizes": SIZED | {"chunk": 0}},
            "sampling is 'x', expected true or false": {"sampling": "x"},
            "tokenizer is 3, expected a text": {"tokenizer": 3},
            "version is 9, expected 1": {"version": 9},
        }.items()
    },
    "has no metadata called 'specstream'": with_facts(None),
    "x.tokenizer is missing": lambda p: shutil.rmtree(p.with_suffix(".tokenizer")),
}


@pytest.mark.parametrize("sentence", DAMAGES)
def test_a_damaged_package(sentence, exported, tmp_path):
    package = tmp_path / "x.mlpackage"
    shutil.copytree(exported, package)
    shutil.copytree(exported.with_suffix(".tokenizer"), tmp_path / "x.tokenizer")
    DAMAGES[sentence](package)
    result = generate(package, "--adapter", "streams", "--quiet")
    assert result.exit_code == 2, result.output
    assert sentence in result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("command", "flags", "sentence"),
    [
        (generate, ("--adapter-path", "x"), "--coreml and --adapter-path were"),
        (generate, ("--adapter", "x"), "the adapter is 'x', expected one of"),
        (generate, (), "no adapter was named, expected one of several"),
        (generate, ("--adapter", "streams", "-p", "a " * 60), "the package's context holds 64"),
        (run_verify, ("--vectors", "x", "--record", "y"), "--vectors and --record were both given"),
        (run_verify, ("--compute-units", "gpu"), "found 'gpu', expected one of cpuOnly, cpuAndGPU"),
        (run_verify, ("--record", "/"), "/ exists already, expected a name that nothing is at"),
        pytest.param(
            *(run_verify, ("--compute-units", "cpuOnly"), "expected on a Mac only"),
            marks=pytest.mark.skipif(platform.system() == "Darwin", reason="Core ML is there"),
        ),
    ],
)
def test_refused_flags(command, flags, sentence, exported):
    assert sentence in refusal(command(exported, *flags))


def test_core_ml_loads_a_function_once(lossless, monkeypatch):
    """Against stand-ins for what coremltools has on a Mac."""
    compiled = Mock()
    monkeypatch.setattr(ct.models.utils, "compile_model", lambda path: f"{path}c")
    monkeypatch.setattr(ct.models, "CompiledMLModel", compiled)
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    core_ml, predict = executor_of(lossless.path), compiled.return_value.predict
    state, inputs, names = core_ml.states(), {"length": 0}, ("one_prefill8", "one_step5")
    for name in 2 * names:
        assert core_ml.call(name, inputs, state) is predict.return_value
    assert predict.call_args_list == [call(inputs, state)] * 4
    place = f"{lossless.path}c", ct.ComputeUnit.CPU_AND_GPU
    assert compiled.call_args_list == [call(*place, name) for name in names]


@pytest.fixture(scope="module")
def calls(exported, tmp_path_factory):
    path = tmp_path_factory.mktemp("recordings") / "calls.json"
    result = succeeded(run_verify(exported, "--record", path, "--adapter", "streams", "-m", 2))
    assert f"wrote {path}" in result.stderr
    return path


def test_a_recording_is_replayed(exported, calls):
    recorded = json.loads(calls.read_text())
    assert [run["settings"]["temperature"] for run in recorded["runs"]] == [0.0, 0.0, 1.0]
    result = succeeded(run_verify(exported, "--vectors", calls))
    exact, half = result.stdout.strip().split("\n\n")
    assert exact.startswith("numpy, float32:") and exact.endswith("Within the bound")
    assert half.startswith("numpy, half precision:") and half.endswith("Within the bound")
    recorded["runs"][0]["calls"][-1]["outputs"]["predictions"][0] += 1
    other = calls.with_name("damaged.json")
    other.write_text(json.dumps(recorded))
    result = run_verify(exported, "--vectors", other)
    assert result.exit_code == 1
    assert "integers are equal, expected at least 100%" in result.stdout


@pytest.mark.coreml
@pytest.mark.skipif(platform.system() != "Darwin", reason="Core ML's runtime is on macOS alone")
def test_core_ml_computes_what_was_recorded(exported, calls):
    result = succeeded(run_verify(exported, "--vectors", calls, "--compute-units", "cpuOnly"))
    assert result.stdout.startswith("Core ML, cpuOnly:\n")


# Recorded calls, and that a replay finds what is wrong ------------------------------------------


def complaint(recorded, pair, exact):
    return recordings.replay(recorded, pair.package, exact, Mock()).complaint()


@pytest.fixture(scope="module")
def recorded(lossless):
    """A greedy text, which is the engine's, and a drawn one."""
    greedy = Request(random_prompt(SIZES.chunk + 3), max_tokens=7)
    drawn = Request(greedy.prompt[:3], max_tokens=5, sampler=keyed_sampler(3))
    requests = [("one", request) for request in (greedy, drawn)]
    made = recordings.record(lossless.contents, lossless.package, requests, Mock())
    assert made["runs"][0]["tokens"] == plain_text(lossless.decoder(), greedy)
    return made


def test_what_differs_is_named(lossless, recorded):
    far, turned = deepcopy(recorded), deepcopy(recorded)
    made = next(c for c in far["runs"][1]["calls"] if c["function"] == "one_logits5")
    made["outputs"]["logits"][0][5] += 5.0
    for made in (made for one in turned["runs"] for made in one["calls"]):
        if "candidates" in made["outputs"]:
            made["outputs"]["candidates"][0][0] += 1
            made["outputs"]["logProbs"][0][0] -= 5.0  # which is that of another guess
    for exact in (True, False):
        assert complaint(far, lossless, exact).startswith("logits of one_logits5 differs by")
    assert "integers are equal, expected at least 100%" in complaint(turned, lossless, True)
    assert complaint(turned, lossless, False) is None  # near-ties are few, but there are some


def test_what_does_not_fit_is_refused(lossless, recorded, tmp_path):
    path = tmp_path / "calls.json"
    whole = {"format": 1, "fingerprint": "of no file", "runs": []}
    run, of_f = {"adapter": "one"}, {"function": "f", "inputs": {}, "outputs": {}}
    for change, sentence in (
        ({"fingerprint": "other"}, "fingerprint 'other', expected of no file"),
        ({"runs": 3}, "is damaged: runs is 3, expected a list of at least one object"),
        ({"runs": []}, r"is damaged: runs is \[\], expected a list"),
        ({"runs": {}}, "is damaged: runs is {}, expected a list"),
        ({"runs": [3]}, r"is damaged: runs is \[3\], expected a list"),
        ({"runs": [{}]}, "is damaged: adapter is None, expected a text"),
        ({"runs": [{"adapter": []}]}, r"is damaged: adapter is \[\], expected a text"),
        ({"runs": [run | {"calls": []}]}, r"is damaged: calls is \[\], expected a list"),
        ({"runs": [run | {"calls": [{}]}]}, "is damaged: function is None, expected a text"),
        ({"runs": [run | {"calls": [of_f | {"inputs": 3}]}]}, "inputs is 3, expected an object"),
        (
            {"runs": [run | {"calls": [of_f | {"outputs": {"a": [[1], [2, 3]]}}]}]},
            "outputs' 'a' is .*expected nested lists of numbers",
        ),
        ({"runs": [run | {"calls": [of_f | {"inputs": {"a": "x"}}]}]}, "expected nested lists of"),
    ):
        path.write_text(json.dumps(whole | change))
        with pytest.raises(UserError, match=sentence):
            recordings.read(path, lossless.contents)
    for change, sentence in (
        ({"function": "two_step5"}, "cannot run two_step5: .*there is no function two_step5"),
        ({"outputs": {"last": np.zeros(1)}}, "returns {'end': .*expected {'last'.* as recorded"),
    ):
        changed = deepcopy(recorded)
        changed["runs"][0]["calls"][0].update(change)
        with pytest.raises(UserError, match=sentence):
            complaint(changed, lossless, exact=True)
