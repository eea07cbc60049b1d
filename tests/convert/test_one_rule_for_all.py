"""What an adapter's streams may be is one rule: trainer, converter and runtime say the same."""

import math
import shutil
from pathlib import Path

import pytest
from specstream_mlx.convert.pytorch.adapter_files import write_adapter
from specstream_mlx.convert.pytorch.load import load_adapter, load_base
from specstream_mlx.convert.to_mlx.adapter import convert_adapter
from tiny_peft import edit
from torch_tiny import tiny_model

from specstream_mlx import UserError, load
from specstream_mlx.adapters.description import ADAPTER_CONFIG, STREAM_KEY
from specstream_mlx.adapters.torch_files import STREAM_CONFIG
from specstream_mlx.checked_files import read_json


@pytest.fixture(scope="module")
def adapters(tied, tied_mlx, tmp_path_factory):
    """Two adapters, each as the trainer writes it and converted: with LoRA, and turned values."""
    root = tmp_path_factory.mktemp("adapters")
    rotated = {"stream_init": "value_rotation", "value_rotation_epsilon": 0.3}
    for name, mode, fields in (("lora", "shared", {}), ("rotated", "lossless", rotated)):
        model = tiny_model(mode, base=load_base(tied), **fields)
        write_adapter(model, root / "torch" / name)
        convert_adapter(root / "torch" / name, tied_mlx, root / "mlx" / name)
    return root


@pytest.fixture(scope="module")
def runtime(tied_mlx):
    return load(tied_mlx)[0]


def sentence(call, config: Path) -> str:
    """What a call says, without the name of the file that it begins with."""
    with pytest.raises(UserError) as error:
        call()
    where, found, rest = str(error.value).partition(": ")
    assert found and where == str(config), str(error.value)
    return rest


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        ("lora", {"mode": "lossless"}, "mode is 'lossless' and there is LoRA beside the streams"),
        ("rotated", {"value_rotation_epsilon": 0}, "value_rotation_epsilon is 0 with stream_init"),
        ("rotated", {"value_rotation_epsilon": -0.3}, "value_rotation_epsilon is -0.3 with"),
        ("rotated", {"value_rotation_epsilon": 2 * math.pi / 3}, "expected more than 0 and less"),
        ("rotated", {"value_rotation_epsilon": None}, "is None, expected a number"),
        ("lora", {"stream_keys": 2, "stream_window": 3}, "stream_keys is 2 with stream_window 3"),
        ("lora", {"value_rotation_epsilon": 0.3}, "expected 0: only 'value_rotation' turns"),
    ],
)
def test_the_same_sentence(name, fields, expected, adapters, runtime, tied, tied_mlx, tmp_path):
    trained = Path(shutil.copytree(adapters / "torch" / name, tmp_path / "torch"))
    converted = Path(shutil.copytree(adapters / "mlx" / name, tmp_path / "mlx"))
    edit(trained / STREAM_CONFIG, **fields)
    streams = read_json(converted / ADAPTER_CONFIG)[STREAM_KEY] | fields
    edit(converted / ADAPTER_CONFIG, **{STREAM_KEY: streams})
    found = {
        sentence(lambda: load_adapter(tied, trained), trained / STREAM_CONFIG),
        sentence(
            lambda: convert_adapter(trained, tied_mlx, tmp_path / "out"), trained / STREAM_CONFIG
        ),
        sentence(
            lambda: runtime.swap_adapter(converted), Path(f"{converted / ADAPTER_CONFIG}")
        ).removeprefix(f"{STREAM_KEY}: "),
    }
    assert len(found) == 1 and expected in found.pop()
    assert not (tmp_path / "out").exists()
