"""``convert --quant-predicate`` and ``--group-size``: which layers get how many bits."""

import json

import mlx.core as mx
import pytest
from command_line import refusal, run
from mlx.utils import tree_flatten
from mlx_lm.convert import convert as mlx_lm_convert
from mlx_lm.utils import load_model
from specstream_mlx.convert.to_mlx.base import RECIPES
from tiny_models import tiny_llama_directory

from specstream_mlx.cli.convert import ConvertOptions
from specstream_mlx.inspection import describe_base
from specstream_mlx.options import kinds_of


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 8}
    directory = tmp_path_factory.mktemp("recipes") / "base"
    return tiny_llama_directory(directory, **sizes, tie_word_embeddings=False)


def converted(base, target, *flags):
    result = run("convert", "--model", base, "--mlx-path", target, *flags)
    assert result.exit_code == 0, result.output
    return target


def bits_by_layer(directory):
    model, _ = load_model(directory, lazy=True)
    return {name: m.bits for name, m in model.named_modules() if "scales" in m}


def test_the_option_names_every_recipe():
    assert kinds_of(ConvertOptions)["quant_predicate"].choices == RECIPES


@pytest.mark.parametrize(("bits", "group_size"), [(4, 128), (8, 32)])
def test_group_sizes(bits, group_size, base, tmp_path):
    target = converted(base, tmp_path / "mlx", "--bits", bits, "--group-size", group_size)
    stored_as = describe_base(target)["stored_as"]
    assert max(stored_as, key=stored_as.get) == f"{bits} bits, group {group_size}"


def test_a_group_size_without_bits_is_refused(base, tmp_path):
    result = run("convert", "--model", base, "--mlx-path", tmp_path / "x", "--group-size", 32)
    assert "--group-size was given, expected with --bits or --quant-predicate" in refusal(result)


@pytest.mark.parametrize("recipe", [r for r in RECIPES if r.startswith("mixed")])
def test_mixed_recipes_give_mlx_lms_weights(recipe, base, tmp_path):
    """The very tensors and bits that ``mlx_lm.convert`` writes."""
    target = converted(base, tmp_path / "ours", "--quant-predicate", recipe)
    theirs = tmp_path / "theirs"
    mlx_lm_convert(str(base), str(theirs), quantize=True, quant_predicate=recipe)
    found, expected = (
        dict(tree_flatten(load_model(path)[0].parameters())) for path in (target, theirs)
    )
    assert found.keys() == expected.keys()
    assert all(mx.array_equal(found[name], expected[name]) for name in expected)
    assert bits_by_layer(target) == bits_by_layer(theirs)
    kinds = [kind for kind in describe_base(target)["stored_as"] if "bits" in kind]
    assert len(kinds) > 1


def test_embeddings_and_head_at_more_bits(base, tmp_path):
    target = converted(base, tmp_path / "mlx", "--quant-predicate", "embeddings_4_8")
    found = bits_by_layer(target)
    assert {found.pop("model.embed_tokens"), found.pop("lm_head")} == {8}
    assert set(found.values()) == {4}
    assert json.loads((target / "config.json").read_text())["quantization"]["bits"] == 4


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--quant-predicate", "mixed_3_6", "--bits", 4], "expected at most one"),
        (["--bits", 4, "--group-size", 48], "48"),
    ],
)
def test_refusals(flags, sentence, base, tmp_path):
    result = run("convert", "--model", base, "--mlx-path", tmp_path / "mlx", *flags)
    assert sentence in refusal(result)
    assert list(tmp_path.iterdir()) == []
