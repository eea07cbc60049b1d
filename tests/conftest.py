"""Imported before every test module."""

import os

import pytest

# Threads of several test processes would wait for each other; OpenBLAS reads this when loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import specstream_mlx  # noqa: F401  (loads OpenBLAS, which must come before mlx.core)

# isort: split
from tiny_models import stream_adapter_directory, tiny_llama_directory

from specstream_mlx.autotune import tuning
from specstream_mlx.autotune.adaptive import Arm
from specstream_mlx.autotune.cost import StepCosts
from specstream_mlx.drafting.settings import LIKELY_DRAFTS
from specstream_mlx.hardware import weights as weight_policy


@pytest.fixture(autouse=True, scope="session")
def expanded_weights(tmp_path_factory):
    """No test but those of the policy depends on what was faster while it ran."""
    found = weight_policy.Probe((1, 1), (2.0, 2.0), (1.0, 1.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(weight_policy, "cached_probe", lambda *_: found)
        patch.setattr(weight_policy, "blocks_pay", lambda *_: True)
        yield


@pytest.fixture(autouse=True, scope="session")
def likely_drafts(expanded_weights):
    """The command line measures no drafts, but where a test says so."""
    arm = Arm("streams", LIKELY_DRAFTS, 1.0, 1.0, 1.0, 0.0, (1.0,))
    result = tuning.TuningResult((arm,), (arm,), StepCosts(1.0, {}), None, 1, 1, 1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "tune", lambda *_, **__: result)
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_llama_directory(tmp_path_factory.mktemp("cli") / "base")


@pytest.fixture(scope="module")
def streams(base):
    return stream_adapter_directory(base.parent / "streams", base)


@pytest.fixture(scope="module")
def shared(base):
    return stream_adapter_directory(base.parent / "shared", base, mode="shared", lora_rank=4)
