"""The file of weights is as large as the weights, and adapters add their own bytes."""

from dataclasses import replace

import pytest

pytest.importorskip("coremltools", reason="coremltools is not installed: the extra [coreml]")

import coreml_packages
from coreml_packages import LORA_KEYS, Case, random_model, random_streams, with_lora
from mlx.utils import tree_flatten
from specstream_mlx.convert.to_coreml.package import PackageBuilder, save
from specstream_mlx.convert.to_coreml.supported import Sizes

pytestmark = pytest.mark.slow

HIDDEN = 512
FIELDS = {"hidden_size": HIDDEN, "num_attention_heads": 8, "head_dim": 64}
FIELDS |= {"intermediate_size": 1408, "vocab_size": 4096}
SIZES = Sizes(context=64, nodes=(8,), chunk=32)
PER_ARRAY = 192  # what the file's format puts around each constant


@pytest.fixture(autouse=True)
def _wide_streams(monkeypatch):
    monkeypatch.setattr(coreml_packages, "HIDDEN", HIDDEN)


def weight_bytes(builder, path):
    save(builder.model({}), path)
    (file,) = path.rglob("weight.bin")
    return file.stat().st_size


@pytest.mark.parametrize("bits", [None, 4])
def test_file_is_within_five_percent_of_the_packed_weights(bits, tmp_path):
    model = random_model(Case(bits=bits, fields=FIELDS, streams=None))
    halved = 1 if bits else 2  # dense weights are float32 here, and float16 in a package
    packed = sum(
        p.nbytes // (halved if p.ndim > 1 else 1) for _, p in tree_flatten(model.parameters())
    )
    if bits:  # so are scales and biases
        scales = [
            p.nbytes
            for n, p in tree_flatten(model.parameters())
            if n.endswith(("scales", "biases"))
        ]
        packed -= sum(scales) // 2
    builder = PackageBuilder(SIZES)
    builder.add("base", model, None)
    size = weight_bytes(builder, tmp_path / "x.mlpackage")
    assert sum(line.nbytes for line in builder.report) <= size <= 1.05 * packed


def test_eight_adapters_add_their_own_bytes(tmp_path):
    case = Case(bits=4, fields=FIELDS, lora=LORA_KEYS, streams={"mode": "shared"})
    names = [f"adapter{number}" for number in range(8)]
    sizes = []
    for count in (1, 8):
        builder = PackageBuilder(SIZES)
        own = arrays = 0
        for seed, name in enumerate(names[:count]):
            model, streams = random_model(case), random_streams(replace(case, seed=0), seed)
            with_lora(model, seed)
            builder.add(name, model, streams)
            held = [p for n, p in tree_flatten(model.parameters()) if "lora" in n]
            held += [p for _, p in tree_flatten(streams.parameters())]
            if seed:
                own += sum(p.size * 2 for p in held)
                arrays += len(held)
        sizes.append(weight_bytes(builder, tmp_path / f"{count}.mlpackage"))
    assert 0.5 * own < sizes[1] - sizes[0] <= own + arrays * PER_ARRAY
    assert arrays * PER_ARRAY < 0.05 * own
