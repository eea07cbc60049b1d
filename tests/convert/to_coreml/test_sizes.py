"""The file of weights is as large as the weights, and adapters add their own bytes."""

import pytest

pytest.importorskip("coremltools", reason="coremltools is not installed: the extra [coreml]")

import coreml_packages
from coreml_packages import LORA_KEYS, Case, random_model, random_streams, with_lora
from mlx.utils import tree_flatten
from specstream_mlx.convert.to_coreml.export import PackageBuilder
from specstream_mlx.convert.to_coreml.supported import Sizes

pytestmark = pytest.mark.slow

HIDDEN = 512
FIELDS = {"hidden_size": HIDDEN, "num_attention_heads": 8, "head_dim": 64}
FIELDS |= {"intermediate_size": 1408, "vocab_size": 4096}
PER_ARRAY = 192  # what the file's format puts around each constant


def written(path, models):
    """The size of the file of weights of models and their streams, and how they were written."""
    builder = PackageBuilder(Sizes(context=64, nodes=(8,), chunk=32))
    for number, (model, streams) in enumerate(models):
        builder.add(f"adapter{number}", model, streams)
    builder.save(path, {})
    (file,) = path.rglob("weight.bin")
    return file.stat().st_size, builder.report


@pytest.mark.parametrize("bits", [None, 4])
def test_file_is_within_five_percent_of_the_packed_weights(bits, tmp_path):
    model = random_model(Case(bits=bits, fields=FIELDS, streams=None))
    packed = 0
    for name, weight in tree_flatten(model.parameters()):  # floats are float16 in a package
        halved = name.endswith(("scales", "biases")) or (bits is None and weight.ndim > 1)
        packed += weight.nbytes // 2 if halved else weight.nbytes
    size, report = written(tmp_path / "x.mlpackage", [(model, None)])
    assert sum(line.nbytes for line in report) <= size <= 1.05 * packed


def test_eight_adapters_add_their_own_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(coreml_packages, "HIDDEN", HIDDEN)
    case = Case(bits=4, fields=FIELDS, lora=LORA_KEYS, streams={"mode": "shared"})
    models, own, arrays = [], 0, 0
    for seed in range(8):
        model, streams = random_model(case), random_streams(case, seed)
        with_lora(model, seed)
        models.append((model, streams))
        held = [p for n, p in tree_flatten(model.parameters()) if "lora" in n]
        held += [p for _, p in tree_flatten(streams.parameters())]
        if seed:
            own, arrays = own + sum(2 * p.size for p in held), arrays + len(held)
    one, _ = written(tmp_path / "1.mlpackage", models[:1])
    eight, _ = written(tmp_path / "8.mlpackage", models)
    assert 0.5 * own < eight - one <= own + arrays * PER_ARRAY
    assert arrays * PER_ARRAY < 0.05 * own
