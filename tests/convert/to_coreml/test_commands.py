"""``generate --coreml`` and ``coreml-verify``, and what they refuse."""

import json
import platform
import shutil

import pytest

pytest.importorskip("coremltools", reason="coremltools is not installed: the extra [coreml]")

from command_line import refusal, run
from coremltools.models import MLModel
from coremltools.proto.Model_pb2 import Model
from specstream_mlx.convert.to_coreml.contents import Contents
from specstream_mlx.convert.to_coreml.package import METADATA

TEXT = ("-p", "the meeting")
on_a_mac = pytest.mark.skipif(
    platform.system() != "Darwin", reason="Core ML's runtime is there on macOS alone"
)


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


def test_who_computes_is_said(exported):
    result = generate(exported, "--adapter", "streams")
    assert result.exit_code == 0
    lines = result.stderr.splitlines()
    assert lines[0] == (
        "Core ML runs on a Mac alone: here numpy executes the package, which is slow"
    )
    assert any(line.startswith("Target calls: ") for line in lines)
    quiet = generate(exported, "--adapter", "streams", "--quiet")
    assert quiet.stderr.splitlines() == ["The text was cut off at --max-tokens 8"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--model", "x"), "--coreml and --model were both given"),
        (("--adapter-path", "x"), "--coreml and --adapter-path were"),
        (("--prompt-cache-file", "x"), "--coreml and --prompt-cache-file"),
        (("--max-nodes", 3), "--coreml and --max-nodes"),
        (("--compare",), "--coreml and --compare"),
        ((), "no adapter was named, expected one of several"),
        (("--adapter", "sql"), "the adapter is 'sql', expected one of the package's"),
        (("--adapter", "streams", "-p", "the meeting " * 60), "the package's context holds 64"),
        (("--adapter", "streams", "--verify", "rejection", "--temp", 1), "verify is 'rejection'"),
    ],
)
def test_refused_flags(exported, flags, sentence):
    assert sentence in refusal(generate(exported, *flags))


def test_refused_packages(exported, tmp_path):
    alone = shutil.copytree(exported, tmp_path / "x.mlpackage")
    more = (*TEXT, "--adapter", "streams")
    for command, flags in (("generate", ("--coreml",)), ("coreml-verify", ())):
        said = refusal(run(command, *flags, tmp_path / "nowhere.mlpackage", *more))
        assert "nowhere.mlpackage does not exist" in said
        assert "x.tokenizer is missing" in refusal(run(command, *flags, alone, *more))


def test_refused_metadata(exported, tmp_path):
    model = MLModel(str(exported), skip_model_load=True)
    for said, sentence in (
        (None, "has no metadata called 'specstream'"),
        (json.dumps({"version": 9}), "has the version 9, expected 1"),
        (json.dumps({"version": 1}), "the metadata is damaged (KeyError: 'sizes')"),
        ("[", "is not valid JSON"),
    ):
        del model.user_defined_metadata[METADATA]
        if said is not None:
            model.user_defined_metadata[METADATA] = said
        path = tmp_path / "changed.mlpackage"
        model.save(str(path))
        assert sentence in refusal(generate(path))
        shutil.rmtree(path)
        model.user_defined_metadata[METADATA] = "{}"


def of_metadata(change):
    """What changes a package's description of itself."""

    def changed(package):
        spec = Model()
        file = package / INSIDE / "model.mlmodel"
        spec.ParseFromString(file.read_bytes())
        said = json.loads(spec.description.metadata.userDefined[METADATA])
        change(said)
        spec.description.metadata.userDefined[METADATA] = json.dumps(said)
        file.write_bytes(spec.SerializeToString())

    return changed


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
}


@pytest.mark.parametrize("sentence", DAMAGES)
def test_a_damaged_package(sentence, exported, tmp_path):
    package = tmp_path / "x.mlpackage"
    shutil.copytree(exported, package)
    shutil.copytree(exported.with_suffix(".tokenizer"), tmp_path / "x.tokenizer")
    DAMAGES[sentence](package)
    for result in (
        generate(package, "--adapter", "streams", "--quiet"),
        run("coreml-verify", package, "--adapter", "streams", "-m", 2),
    ):
        assert result.exit_code == 2, result.output
        assert sentence in result.stderr.splitlines()[-1]


def test_a_package_that_is_read_stays_as_it_is(exported):
    def state():
        return {path: path.lstat() for path in (exported, *exported.rglob("*"))}

    before = state()
    assert generate(exported, "--adapter", "streams").exit_code == 0
    for path, found in state().items():
        assert (found.st_ino, found.st_mtime_ns) == (before[path].st_ino, before[path].st_mtime_ns)
    assert len(before) == len(state())


# coreml-verify ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def calls(exported, tmp_path_factory):
    path = tmp_path_factory.mktemp("vectors") / "calls.json"
    flags = ("--record", path, "--adapter", "streams", "-m", 2)
    result = run("coreml-verify", exported, *flags)
    assert result.exit_code == 0, result.output
    assert f"wrote {path}" in result.stderr
    return path


@pytest.mark.parametrize("text", ["years of work", "{}", "[]"])
def test_a_recording_replaces_no_other_file(text, exported, tmp_path):
    (tmp_path / "file").write_text(text)
    for place in (tmp_path / "file", tmp_path):
        sentence = refusal(run("coreml-verify", exported, "--record", place, "-m", 2))
        assert f"{place} exists already and is no recording" in sentence
    assert (tmp_path / "file").read_text() == text


def test_a_recording_is_replayed(exported, calls):
    runs = json.loads(calls.read_text())["runs"]
    assert [run["settings"]["temperature"] for run in runs] == [0.0, 0.0, 1.0]
    assert {run["adapter"] for run in runs} == {"streams"}
    longest = max(len(run["prompt"]) for run in runs)
    assert longest > 8 + 1  # two chunks
    found = values(run("coreml-verify", exported, "--vectors", calls, "--json"))
    exact, half = found["replays"]
    assert exact["exact"] and not half["exact"]
    assert exact["complaint"] is half["complaint"] is None
    assert {d["largest"] for d in exact["differences"]} <= {None, 0.0}
    assert max(d["largest"] or 0 for d in half["differences"]) > 0


def test_a_changed_recording_fails(exported, calls, tmp_path):
    recorded = json.loads(calls.read_text())
    del recorded["runs"][1:]
    for call in recorded["runs"][0]["calls"]:
        if "predictions" in call["outputs"]:
            call["outputs"]["predictions"][0] += 1
    path = tmp_path / "calls.json"
    path.write_text(json.dumps(recorded))
    result = run("coreml-verify", exported, "--vectors", path)
    assert result.exit_code == 1
    exact, half = result.stdout.split("\n\n")[:2]
    assert exact.startswith("numpy, float32:\n")
    assert half.startswith("numpy, half precision:\n")
    assert "integers are equal, expected at least 100%" in exact.splitlines()[-1]


def test_without_a_recording_one_is_made(exported):
    flags = ("--adapter", "key_points", "-p", "the", "-m", 2, "--json")
    (half,) = values(run("coreml-verify", exported, *flags))["replays"]
    assert half["executor"] == "numpy, half precision"
    functions = {f"key_points_{name}" for name in ("prefill8", "logits4", "draft")}
    assert {d["function"] for d in half["differences"]} >= functions


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--vectors", "x", "--record", "y"), "--vectors and --record were both given"),
        (("--record", "y", "--compute-units", "all"), "--record and --compute-units"),
        (("--compute-units", "gpu"), "found gpu, expected one of cpuOnly, cpuAndGPU"),
        (("--adapter", "sql"), "the adapter is 'sql', expected one of the package's"),
    ],
)
def test_refused_verifications(exported, flags, sentence):
    assert sentence in refusal(run("coreml-verify", exported, *flags))


@pytest.mark.skipif(platform.system() == "Darwin", reason="Core ML is there")
def test_compute_units_are_for_a_mac(exported):
    result = run("coreml-verify", exported, "--compute-units", "cpuOnly")
    assert "--compute-units was given, expected on a Mac only" in refusal(result)


@pytest.mark.coreml
@on_a_mac
def test_core_ml_computes_what_was_recorded(exported, calls):
    flags = ("--vectors", calls, "--compute-units", "cpuOnly")
    result = run("coreml-verify", exported, *flags)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Core ML, cpuOnly:\n")
