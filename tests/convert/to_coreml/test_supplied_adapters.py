"""Functions that take an adapter as an array compute what functions with its constants do."""

import json

import numpy as np
import pytest

pytest.importorskip("coremltools", reason="coremltools is not installed: the extra [coreml]")

from command_line import refusal, result_of, run
from coreml_packages import (
    LORA_KEYS,
    SIZES,
    VOCAB_SIZE,
    Case,
    Pair,
    Runner,
    random_model,
    random_streams,
    tree_of,
    with_lora,
)
from random_models import random_prompt, relative_error
from specstream_mlx.convert.to_coreml.evaluate import Package
from specstream_mlx.convert.to_coreml.package import METADATA, SUPPLIED, PackageBuilder, save
from specstream_mlx.convert.to_coreml.supported import check_adapter
from specstream_mlx.convert.to_coreml.verify import main as verify
from tiny_models import stream_adapter_directory, tiny_llama_directory

from specstream_mlx.errors import UserError
from specstream_mlx.stream_config import StreamConfig

BOUND = 1e-5
ADAPTERS = (("one", 1), ("other", 5))
STREAMS = {"stream_mlp": "adapter", "stream_adapter_rank": 4, "stream_head": "conditioned"}
CASES = {
    "shared": Case(lora=LORA_KEYS, streams={"mode": "shared"}),
    "conditioned, linear, value rotation": Case(
        "qwen3",
        lora=LORA_KEYS,
        streams={**STREAMS, "stream_head_rank": 6, "stream_init": "linear", "stream_init_rank": 3},
    ),
}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in list(CASES)[1:]]


class Supplying:
    """A package whose functions are called with an adapter's array."""

    def __init__(self, package, array):
        self._package, self._array, self.states = package, array, package.states

    def call(self, name, inputs, states=None):
        name = SUPPLIED + name[name.index("_") :]
        return self._package.call(name, {**inputs, "adapter": self._array}, states)


def write_supplied(case, path):
    """A package to which adapters are supplied, and their arrays by name."""
    builder = PackageBuilder(SIZES, sampling=True, supplied=True)
    for name, seed in ADAPTERS:
        model = random_model(case)
        with_lora(model, seed)
        builder.add(name, model, random_streams(case, seed), shortlists=case.shortlists)
    save(builder.model({}), path)
    assert not [line for line in builder.report if "lora" in line.name or "streams" in line.name]
    return Package(path), builder.arrays


def outputs(runner):
    """What a runner finds for a prompt and two trees, one after the other."""
    prompt, rng, found = random_prompt(13, vocab_size=VOCAB_SIZE), np.random.default_rng(0), []
    runner.prefill(prompt)
    for count in SIZES.nodes:
        tree = tree_of(rng, 5, [], count)
        step = runner.step(tree, count)
        inputs = {"streamHidden": step["streamHidden"][step["last"].item()]}
        if "candidateParents" in step:
            inputs["token"] = step["predictions"][step["last"]]
        found += [step, runner.call("draft", inputs)]
        runner.commit(tree.path(len(tree) - 1))
    return found


def difference(ours, theirs):
    """The largest relative difference of floats; infinite where integers differ."""
    worst = 0.0
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            if value.dtype == np.int32:
                worst = worst if (value == other[name]).all() else np.inf
            else:
                worst = max(worst, relative_error(value, other[name]))
    return worst


@pytest.mark.parametrize("name", [next(iter(CASES)), *SLOW])
def test_supplied_adapters_do_what_mounted_ones_do(name, tmp_path):
    case = CASES[name]
    mounted = Pair(tmp_path / "mounted.mlpackage", case, ADAPTERS).package
    package, arrays = write_supplied(case, tmp_path / "supplied.mlpackage")
    assert {function.split("_")[0] for function in package.functions} == {SUPPLIED}
    assert len(package.functions) == len(mounted.functions) / 2
    said = json.loads(package.metadata[METADATA])["supplied"]
    assert sum(np.prod(shape) for _, shape in said["arrays"]) == arrays["one"].size
    for adapter in ("one", "other"):
        expected = outputs(Runner(mounted, adapter))
        runner = Runner(Supplying(package, arrays[adapter]), adapter)
        assert difference(outputs(runner), expected) <= BOUND
    wrong = Runner(Supplying(package, arrays["one"]), "other")
    assert difference(outputs(wrong), expected) > 100 * BOUND


def test_adapters_of_two_kinds_are_refused():
    case = CASES["shared"]
    builder = PackageBuilder(SIZES, supplied=True)
    builder.add("one", random_model(case), random_streams(case))
    model = random_model(case)
    with_lora(model, 1)
    with pytest.raises(
        UserError, match="adapter other has other LoRA matrices or streams than one"
    ):
        builder.add("other", model, random_streams(case))


def test_rows_of_the_head_cannot_be_supplied():
    streams = StreamConfig("shared", 1, 8, 2, draft_vocabulary=30)
    check_adapter("a", streams, {}, SIZES)
    with pytest.raises(UserError, match="a: draft_vocabulary is 30, expected 0 where adapters"):
        check_adapter("a", streams, {}, SIZES, supplied=True)


def generate(package, adapter):
    flags = ("--prompt", "a b c d e f g", "--max-tokens", 6, "--json")
    return run("generate", "--coreml", package, "--adapter", adapter, *flags)


def test_arrays_are_written_beside_the_package(tmp_path):
    base = tiny_llama_directory(tmp_path / "base", bits=4)
    adapters = []
    for name in ("one", "other"):
        adapters += ["--adapter", tmp_path / name]
        stream_adapter_directory(tmp_path / name, base, mode="shared", lora_rank=4)
    sizes = ("--context", 32, "--nodes", 4, "--chunk", 8, "--candidates", 2)
    output = tmp_path / "x.mlpackage"
    flags = ("export-coreml", "--model", base, "--output", output, *sizes, "--lora-io")
    assert "no adapter is given, expected one at least" in refusal(run(*flags))
    assert run(*flags, *adapters).exit_code == 0
    package = Package(output)
    said = json.loads(package.metadata[METADATA])
    assert said["adapters"].keys() == {"one", "other"}
    elements = sum(np.prod(shape) for _, shape in said["supplied"]["arrays"])
    files = sorted((tmp_path / "x.adapters").iterdir())
    assert [file.name for file in files] == ["one.bin", "other.bin"]
    assert {file.stat().st_size for file in files} == {2 * elements}
    assert json.loads(generate(output, "one").stdout)["text"]
    assert "exported with --lora-io" in refusal(result_of(verify, output))
    files[0].write_bytes(files[0].read_bytes()[2:])
    assert f"expected {2 * elements:,}" in refusal(generate(output, "one"))
    files[0].unlink()
    assert "one.bin is missing" in refusal(generate(output, "one"))
    (tmp_path / "y.adapters").mkdir()
    sentence = refusal(run(*flags, *adapters, "--output", tmp_path / "y.mlpackage"))
    assert "y.adapters exists already" in sentence
