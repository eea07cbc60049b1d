"""What is known of the machine, and what MLX is told because of it."""

import os
import subprocess
import sys

import pytest

CUDNN = "MLX_CUDA_USE_CUDNN_SDPA"


@pytest.mark.parametrize(("said", "expected"), [(None, "0"), ("1", "1")])
def test_mlx_is_told_not_to_let_cudnn_plan_attention_unless_somebody_says_so(said, expected):
    """In a process of its own: MLX reads it once. That this saves time, NOTES says."""
    own = {name: value for name, value in os.environ.items() if name != CUDNN}
    own |= {} if said is None else {CUDNN: said}
    code = f"import os; from specstream_mlx import load; print(os.environ[{CUDNN!r}])"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [expected]
