"""``generate --coreml`` and ``to_coreml.verify``, and what they refuse."""

import json
import platform
import shutil
from functools import partial

import pytest

pytest.importorskip("coremltools", reason="coremltools is not installed: the extra [coreml]")

from command_line import refusal, result_of, run
from coremltools.proto.Model_pb2 import Model
from specstream_mlx.convert.to_coreml.contents import Contents
from specstream_mlx.convert.to_coreml.package import METADATA
from specstream_mlx.convert.to_coreml.verify import main as verify

TEXT = ("-p", "the meeting")
on_a_mac = pytest.mark.skipif(
    platform.system() != "Darwin", reason="Core ML's runtime is there on macOS alone"
)


run_verify = partial(result_of, verify)


def generate(package, *flags):
    return run("generate", "--coreml", package, *TEXT, "-m", 8, *flags)


def values(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_package_generates_with_and_without_drafts(exported):
    found = [
        values(generate(exported, "--json", "--adapter", "streams", *flags))
        for flags in ((), ("--no-speculation",))
    ]
    assert found[0]["text"] == found[1]["text"]
    drafted, plain = found
    assert plain["target_calls"] == plain["generation_tokens"] == 8
    assert drafted["adapter"] == "streams"
    assert drafted["mode"] == "lossless"
    assert drafted["model"] == str(exported)
    assert drafted["tree"].startswith("best-first, 3 nodes, width 2, with lookup")


def test_a_drawn_text_does_not_depend_on_drafts(exported):
    flags = ("--json", "--adapter", "key_points", "--temp", 1, "--seed", 4)
    drafted, plain = (
        values(generate(exported, *flags, *more)) for more in ((), ("--no-speculation",))
    )
    assert drafted["text"] == plain["text"]
    assert (drafted["verify"], drafted["seed"]) == ("keyed", 4)
    # The adapter's template is around the text.
    tokenizer = Contents.read(exported).read_tokenizer()
    raw = values(generate(exported, *flags, "--ignore-chat-template"))
    assert raw["prompt_tokens"] == len(tokenizer.encode("the meeting"))
    assert drafted["prompt_tokens"] > raw["prompt_tokens"]


def test_an_adapter_is_looked_for_before_its_tokenizer_is_read(exported, monkeypatch):
    monkeypatch.setattr(Contents, "read_tokenizer", None)
    written = ("--record", exported.with_suffix(".json"), "--json")
    assert "--record and --json were both" in refusal(run_verify(exported, *written))
    for result in (
        run_verify(exported, "--adapter", "x"),
        run("generate", "--coreml", exported, *TEXT, "--adapter", "x"),
    ):
        found = refusal(result)
        assert "the adapter is 'x', expected one of the package's" in found


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--model", "x"), "--coreml and --model were both given"),
        (("--adapter-path", "x"), "--coreml and --adapter-path were"),
        (("--prompt-cache-file", "x"), "--coreml and --prompt-cache-file"),
        (("--max-nodes", 3), "--coreml and --max-nodes"),
        (("--profile",), "--coreml and --profile"),
        (("--compare", "--adapter-path", "x"), "the adapter is 'x', expected one of"),
        ((), "no adapter was named, expected one of several"),
        (("--adapter", "sql"), "the adapter is 'sql', expected one of the package's"),
        (("--adapter", "streams", "-p", "the meeting " * 60), "the package's context holds 64"),
        (("--adapter", "streams", "--verify", "rejection", "--temp", 1), "verify is 'rejection'"),
    ],
)
def test_refused_flags(exported, flags, sentence):
    assert sentence in refusal(generate(exported, *flags))


def with_metadata(made):
    """What changes a package's description of itself."""

    def changed(package):
        spec, file = Model(), package / INSIDE / "model.mlmodel"
        spec.ParseFromString(file.read_bytes())
        fields = spec.description.metadata.userDefined
        text = made(fields.pop(METADATA))
        if text is not None:
            fields[METADATA] = text
        file.write_bytes(spec.SerializeToString())

    return changed


def of_metadata(change):
    def changed(text):
        said = json.loads(text)
        change(said)
        return json.dumps(said)

    return with_metadata(changed)


def weights(package):
    return package / INSIDE / "weights" / "weight.bin"


def cut(file):
    file.write_bytes(file.read_bytes()[:1000])


INSIDE = "Data/com.apple.CoreML"
DAMAGES = {
    "streams_prefill8 cannot be read: Could not open": lambda p: weights(p).unlink(),
    "streams_prefill8 cannot be read: index out of bounds": lambda p: cut(weights(p)),
    "is no Core ML package": lambda p: cut(p / INSIDE / "model.mlmodel"),
    "Manifest.json is damaged (KeyError": lambda p: (p / "Manifest.json").write_text("{}"),
    "there is no function key_points_step3": of_metadata(lambda s: s["sizes"].update(nodes=[3])),
    "has other rows than": of_metadata(lambda s: s["sizes"].update(context=640)),
    "chunk is 'x'": of_metadata(lambda s: s["sizes"].update(chunk="x")),
    "is damaged (TypeError": of_metadata(lambda s: s.update(adapters=3)),
    "end_tokens is 'x'": of_metadata(lambda s: s["base"].update(end_tokens=["x"])),
    "tokenizer is '../x'": of_metadata(lambda s: s.update(tokenizer="../x")),
    "has no metadata called 'specstream'": with_metadata(lambda _: None),
    "is not valid JSON": with_metadata(lambda _: "["),
    "has the version 9, expected 1": of_metadata(lambda s: s.update(version=9)),
    "the metadata is damaged (KeyError: 'sizes')": of_metadata(lambda s: s.pop("sizes")),
    "Manifest.json is missing": lambda p: (p / "Manifest.json").unlink(),
    "x.tokenizer is missing": lambda p: shutil.rmtree(p.with_suffix(".tokenizer")),
    "x.mlpackage does not exist": shutil.rmtree,
}


@pytest.mark.parametrize("sentence", DAMAGES)
def test_a_damaged_package(sentence, exported, tmp_path):
    package = tmp_path / "x.mlpackage"
    shutil.copytree(exported, package)
    shutil.copytree(exported.with_suffix(".tokenizer"), tmp_path / "x.tokenizer")
    DAMAGES[sentence](package)
    for result in (
        generate(package, "--adapter", "streams", "--quiet"),
        run_verify(package, "--adapter", "streams", "-m", 2),
    ):
        assert result.exit_code == 2, result.output
        assert sentence in result.stderr.splitlines()[-1]


# verify ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def calls(exported, tmp_path_factory):
    path = tmp_path_factory.mktemp("vectors") / "calls.json"
    flags = ("--record", path, "--adapter", "streams", "-m", 2)
    result = run_verify(exported, *flags)
    assert result.exit_code == 0, result.output
    assert f"wrote {path}" in result.stderr
    return path


@pytest.mark.parametrize("text", ["years of work", "{}", "[]"])
def test_a_recording_replaces_no_other_file(text, exported, tmp_path):
    (tmp_path / "file").write_text(text)
    for place in (tmp_path / "file", tmp_path):
        sentence = refusal(run_verify(exported, "--record", place, "-m", 2))
        assert f"{place} exists already and is no recording" in sentence
    assert (tmp_path / "file").read_text() == text


def test_a_recording_is_replayed(exported, calls):
    runs = json.loads(calls.read_text())["runs"]
    assert [run["settings"]["temperature"] for run in runs] == [0.0, 0.0, 1.0]
    assert {run["adapter"] for run in runs} == {"streams"}
    longest = max(len(run["prompt"]) for run in runs)
    assert longest > 8 + 1  # two chunks
    found = values(run_verify(exported, "--vectors", calls, "--json"))
    exact, half = found["replays"]
    assert exact["exact"] and not half["exact"]
    assert exact["complaint"] is half["complaint"] is None
    assert {d["largest"] for d in exact["differences"]} <= {None, 0.0}
    assert max(d["largest"] or 0 for d in half["differences"]) > 0


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--vectors", "x", "--record", "y"), "--vectors and --record were both given"),
        (("--record", "y", "--compute-units", "all"), "--record and --compute-units"),
        (("--compute-units", "gpu"), "found 'gpu', expected one of cpuOnly, cpuAndGPU"),
        (("--adapter", "sql"), "the adapter is 'sql', expected one of the package's"),
    ],
)
def test_refused_verifications(exported, flags, sentence):
    assert sentence in refusal(run_verify(exported, *flags))


@pytest.mark.skipif(platform.system() == "Darwin", reason="Core ML is there")
def test_compute_units_are_for_a_mac(exported):
    result = run_verify(exported, "--compute-units", "cpuOnly")
    assert "--compute-units was given, expected on a Mac only" in refusal(result)


@pytest.mark.coreml
@on_a_mac
def test_core_ml_computes_what_was_recorded(exported, calls):
    flags = ("--vectors", calls, "--compute-units", "cpuOnly")
    result = run_verify(exported, *flags)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Core ML, cpuOnly:\n")
