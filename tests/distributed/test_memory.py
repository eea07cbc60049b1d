"""Each of two processes holds half of the layers, and never much more."""

import json

import pytest
from processes import Processes
from tiny_models import tiny_llama_directory

SCRIPT = """
import json, sys
import mlx.core as mx
from mlx.utils import tree_flatten
from specstream_mlx import load

model, _ = load(sys.argv[1], group=mx.distributed.init(), weights=sys.argv[2])
print(json.dumps([mx.get_active_memory(), mx.get_peak_memory()]), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["auto", "packed"])
def test_the_weights_are_divided(tmp_path, weights):
    bits = 8 if weights == "packed" else None
    base = tiny_llama_directory(
        tmp_path / "base", hidden_size=512, intermediate_size=1024, num_hidden_layers=12, bits=bits
    )
    stored = (base / "model.safetensors").stat().st_size
    command = ["-c", SCRIPT, base, weights]
    for rank in Processes(tmp_path, command, command).ended():
        assert rank.code == 0, rank.error
        active, peak = json.loads(rank.out)
        assert 0.5 * stored < active < 0.55 * stored  # embedding and norms are whole
        assert peak < 0.6 * stored  # a tenth over the half, as a matrix is read whole
