"""What MLX's environment is set to because of the machine."""

import importlib
import os

import pytest

from specstream_mlx.hardware import device

CUDNN = "MLX_CUDA_USE_CUDNN_SDPA"


@pytest.mark.parametrize(("said", "expected"), [(None, "0"), ("1", "1")])
def test_cudnn_does_not_plan_attention_unless_somebody_says_so(said, expected, monkeypatch):
    """MLX reads it at the process's first attention. That this saves time, NOTES says."""
    monkeypatch.setenv(CUDNN, said or "")
    if said is None:
        monkeypatch.delenv(CUDNN)
    importlib.reload(device)
    assert os.environ[CUDNN] == expected
