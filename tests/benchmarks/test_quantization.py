"""The benchmark of quantized bases: its variants, its table, and a short run."""

import pytest

from benchmarks.quantization import VARIANTS, check_variants
from benchmarks.speedup import Subject
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
