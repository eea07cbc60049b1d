"""Each of several processes holds its part of the layers, and never more than a tenth above that.

Embeddings and norms are whole on every rank, as mlx-lm has it, and counted apart.
"""

import json

import mlx.core as mx
import pytest
from processes import Processes
from tiny_models import tiny_llama_directory

SCRIPT = """
import json, sys
import mlx.core as mx
from specstream_mlx import load

model, _ = load(sys.argv[1], group=mx.distributed.init(), weights=sys.argv[2])
print(json.dumps([mx.get_active_memory(), mx.get_peak_memory()]), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "bits", "weights"), [(2, None, "auto"), (2, 8, "packed"), (3, 4, "packed")]
)
def test_the_weights_are_divided(tmp_path, size, bits, weights):
    base = tiny_llama_directory(
        tmp_path / "base",
        num_hidden_layers=12,
        num_attention_heads=2 * size,
        num_key_value_heads=size,
        hidden_size=256 * size,
        intermediate_size=512 * size,
        bits=bits,
    )
    command = ["-c", SCRIPT, base, weights]
    ended = Processes(tmp_path, *[command] * size).ended()
    divided = whole = 0
    for name, tensor in mx.load(str(base / "model.safetensors")).items():
        if "_proj." in name:
            divided += tensor.nbytes
        else:
            whole += tensor.nbytes
    assert divided > 5 * whole
    for rank in ended:
        assert rank.code == 0, rank.error
        active, peak = json.loads(rank.out)
        own = divided / size + whole
        print(f"{size} processes, {bits} bits: {own:.0f} bytes, {active} held, at most {peak}")
        assert own <= active <= peak < 1.1 * own
