"""Apple's own runtime computes from a saved package what numpy computes from it."""

import json

import numpy as np
import pytest

pytest.importorskip("coremltools", reason="coremltools is not installed: the extra [coreml]")
pytest.importorskip("coreai", reason="coreai-core is not installed: the extra [coreai]")

from command_line import run
from coreml_matrices import GROUP, NAME, purpose_made, quantized, write_package
from coreml_packages import (
    LORA_KEYS,
    SIZES,
    VOCAB_SIZE,
    Case,
    Pair,
    Runner,
    Told,
    assert_same_steps,
    by_engine,
    by_package,
    plain_text,
    tree_of,
)
from random_models import random_prompt, relative_error
from specstream_mlx.convert.to_coreml.apple_runtime import AppleRuntime
from specstream_mlx.convert.to_coreml.bundle import asset_of
from specstream_mlx.convert.to_coreml.core_ai import translated
from specstream_mlx.convert.to_coreml.evaluate import Package
from specstream_mlx.convert.to_coreml.package import METADATA
from tiny_models import stream_adapter_directory, tiny_llama_directory

from specstream_mlx.loop import Request

BOUND = 1e-4
HALF_BOUND = 0.1
CONDITIONED = {"stream_mlp": "adapter", "stream_adapter_rank": 4, "stream_head": "conditioned"}
CASES = {
    "Llama, int4, shared, LoRA": Case(bits=4, lora=LORA_KEYS, streams={"mode": "shared"}),
    "Llama, fp16, untied, biases, value rotation": Case(
        bits=None,
        fields={"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
        streams={"stream_init": "value_rotation", "value_rotation_epsilon": 0.4},
    ),
    "Qwen2, int8, draft vocabulary": Case("qwen2", streams={"draft_vocabulary": 60}),
    "Qwen3, conditioned, shortlists": Case(
        "qwen3", streams={**CONDITIONED, "stream_head_rank": 6}, shortlists=True
    ),
    "Mistral, no streams": Case("mistral", streams=None),
}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in list(CASES)[1:]]


class Sides:
    """The same calls on both sides; remembers how far their floats are apart, and how many of
    their integers are equal.
    """

    def __init__(self, numpys, apples):
        self.both, self.worst, self.equal, self.integers = (numpys, apples), 0.0, 0, 0

    def call(self, name, inputs):
        """Numpy's outputs."""
        ours, theirs = (side.call(name, inputs, side.states) for side in self.both)
        assert ours.keys() == theirs.keys()
        for key, value in ours.items():
            assert theirs[key].dtype == value.dtype
            if value.dtype == np.int32:
                self.equal += (theirs[key] == value).sum()
                self.integers += value.size
            else:
                self.worst = max(self.worst, relative_error(theirs[key], value))
        return ours


def compared(numpys, apples, *, sampling=True):
    """Read a prompt, decode trees and go back on both sides; returns their ``Sides``."""
    sides, rng = Sides(numpys, apples), np.random.default_rng(0)
    prompt = random_prompt(13, vocab_size=VOCAB_SIZE)
    for first in range(0, len(prompt), SIZES.chunk):
        rows = np.resize(np.array(prompt[first : first + SIZES.chunk], np.int32), SIZES.chunk)
        inputs = {"inputIds": rows, "length": np.array([first], np.int32)}
        sides.call(f"prefill{SIZES.chunk}", inputs)
    for side in sides.both:
        side.length = side.start = len(prompt)
    for number in range(3):
        count = SIZES.nodes[number % 2]
        tree = tree_of(rng, 5, [], count)
        inputs = numpys.inputs(tree, count)
        if sampling:
            wanted = {name: value for name, value in inputs.items() if name != "parents"}
            kept = [dict(side.states) for side in sides.both]
            hidden = sides.call(f"logits{count}", wanted).get("streamHidden")
            for side, states in zip(sides.both, kept, strict=True):
                side.states = states
        found = sides.call(f"step{count}", inputs)
        if sampling and hidden is not None:
            inputs = {"streamHidden": hidden[found["last"].item()]}
            if "candidateParents" in found:
                inputs["token"] = found["predictions"][found["last"]]
            sides.call("draft", inputs)
        path = tree.path(len(tree) - 1)
        for side in sides.both:
            side.commit(path)
            side.length -= number % 2
    for name, states in numpys.states.items():
        assert relative_error(apples.states[name], states) <= max(BOUND, sides.worst)
    return sides


@pytest.mark.parametrize("name", [next(iter(CASES)), *SLOW])
def test_apples_runtime_computes_what_numpy_does(name, tmp_path):
    package = Pair(tmp_path / "x.mlpackage", CASES[name]).package
    translated(package, "exact").save_asset(tmp_path / "x.aimodel")
    with AppleRuntime(tmp_path / "x.aimodel") as runtime:
        sides = compared(Runner(package, "one"), Runner(runtime, "one"))
    assert sides.equal == sides.integers
    assert 0 < sides.worst <= BOUND


def test_texts_decoded_through_apples_runtime_are_the_engines(tmp_path):
    pair = Pair(tmp_path / "x.mlpackage", CASES["Qwen3, conditioned, shortlists"])
    translated(pair.package, "exact").save_asset(tmp_path / "x.aimodel")
    request = Request(random_prompt(9, vocab_size=VOCAB_SIZE), max_tokens=14)
    truth = plain_text(pair.decoder(), request)
    expected = by_engine(pair.decoder(), request, Told(truth))
    with AppleRuntime(tmp_path / "x.aimodel") as runtime:
        found = by_package(pair.package_decoder(executor=runtime), request, Told(truth))
    assert_same_steps(found, expected)
    assert max(len(step.tokens) for step in found) > 2


@pytest.mark.parametrize("bits", [4, 8])
def test_float_offsets_and_groups_without_spread(bits, tmp_path):
    module = quantized(purpose_made("usual", "positive", "zero", -0.7), bits)
    write_package(module, tmp_path / "x.mlpackage")
    package = Package(tmp_path / "x.mlpackage")
    translated(package, "exact").save_asset(tmp_path / "x.aimodel")
    inputs = {"x": np.random.default_rng(1).normal(size=(3, 2 * GROUP)).astype(np.float32)}
    with AppleRuntime(tmp_path / "x.aimodel") as runtime:
        found = runtime.call(NAME, inputs)["y"]
    assert relative_error(found, package.call(NAME, inputs)["y"]) <= BOUND


@pytest.mark.slow
def test_bundle_is_packed_half_precision_with_states(tmp_path):
    base = tiny_llama_directory(tmp_path / "base", bits=4)
    stream_adapter_directory(tmp_path / "one", base, mode="shared", lora_rank=4)
    sizes = ("--nodes", ",".join(map(str, SIZES.nodes)), "--chunk", SIZES.chunk)
    kind = ("--context", 96, *sizes, "--candidates", 2)
    flags = ("--model", base, "--adapter", tmp_path / "one", *kind)
    for output in (
        ("--output", tmp_path / "x.mlpackage"),
        ("--output", tmp_path / "bundle", "--format", "coreai"),
    ):
        assert run("export-coreml", *flags, *output).exit_code == 0
    package = Package(tmp_path / "x.mlpackage", "fp16")
    bundle = tmp_path / "bundle"
    assert {p.name for p in bundle.iterdir()} == {"metadata.json", "tokenizer", "bundle.aimodel"}
    metadata = json.loads((bundle / "metadata.json").read_text())
    assert metadata["language"]["max_context_length"] == 96
    said = json.loads(metadata["user_data"][METADATA])
    assert said["adapters"] == json.loads(package.metadata[METADATA])["adapters"]
    content = (asset_of(bundle) / "main.mlirb").read_bytes()
    for function in package.functions.values():
        for op in function.operations:
            if op.op_type.startswith("constexpr"):
                flat = op.inputs["data"].val.astype(np.uint8).reshape(-1)
                assert content.count((flat[::2] | flat[1::2] << 4).tobytes()) == 1
    with AppleRuntime(asset_of(bundle)) as runtime:
        assert runtime.states()["keyCache"].dtype == np.float16
        sides = compared(Runner(package, "one"), Runner(runtime, "one"), sampling=False)
    assert sides.equal >= 0.9 * sides.integers  # near-ties fall otherwise
    assert BOUND < sides.worst < HALF_BOUND
