"""The benchmark of quantized bases: its variants, its table, and a short run."""

import json

import pytest
from specstream_mlx.benchmarks import quantization
from specstream_mlx.benchmarks.quantization import VARIANTS, WHOLE, check_variants, make_variant
from specstream_mlx.benchmarks.speedup import Subject
from specstream_mlx.convert.to_mlx.recipes import RECIPES
from tiny_models import tiny_llama_directory

from specstream_mlx import UserError


def test_variants_are_those_named(tmp_path):
    everything = Subject(tmp_path, "bundled", each_bundled=True)
    assert check_variants("", everything) == list(VARIANTS)
    assert check_variants("int4; mixed_3_6", everything) == ["int4", "mixed_3_6"]
    with pytest.raises(UserError, match="unknown variant 'int5', expected one of 16 bit; int8"):
        check_variants("int5", everything)
    with pytest.raises(UserError, match="unknown variant ''"):
        check_variants(";", everything)


def test_a_bare_model_has_no_layers_to_spare(tmp_path):
    bare = Subject(tmp_path, "mine")
    assert check_variants("", bare) == [name for name in VARIANTS if name != "msa_4_8"]
    with pytest.raises(UserError, match="msa_4_6 spares the layers in which streams run, and none"):
        check_variants("int4;msa_4_6", bare)


@pytest.mark.parametrize("name", ["int8", "int4, groups of 32", "msa_4_8"])
def test_variants_are_what_they_are_called(tmp_path, name):
    base = tiny_llama_directory(tmp_path / "base", hidden_size=128, intermediate_size=128)
    made = make_variant(base, name, 2, tmp_path / "made")
    config = json.loads((made / "config.json").read_text())["quantization"]
    layers = {key: value for key, value in config.items() if key.startswith("model.")}
    if name in RECIPES:
        assert layers["model.layers.0.mlp.up_proj"]["bits"] == 4
        assert layers["model.layers.3.mlp.up_proj"]["bits"] == 8
    else:
        assert config["bits"] == int(name[3])
        assert config["group_size"] == (32 if "32" in name else 64)
    assert quantization.stored_bytes(made) < quantization.stored_bytes(base)
    assert make_variant(base, WHOLE, 2, tmp_path / "other") == base
