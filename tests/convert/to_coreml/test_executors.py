"""How Core ML is called, against stand-ins for what coremltools has on a Mac."""

import numpy as np
import pytest

pytest.importorskip("coremltools", reason="coremltools is not installed: the extra [coreml]")

import coremltools as ct
from specstream_mlx.convert.to_coreml import executors


@pytest.fixture
def mac(monkeypatch):
    """The functions that are loaded, as (path, units, name)."""
    loaded = []

    class Compiled:
        """A function of a compiled package, in the place of ``CompiledMLModel``."""

        def __init__(self, *place):
            loaded.append(place)
            self._name = place[-1]

        def make_state(self):
            return {"made by": self._name}

        def predict(self, data, state=None):
            assert type(data) is dict
            return {"name": self._name, "state": state, "data": data}

    monkeypatch.setattr(ct.models.utils, "compile_model", lambda path: f"{path}c")
    monkeypatch.setattr(ct.models, "CompiledMLModel", Compiled)
    monkeypatch.setattr(executors.platform, "system", lambda: "Darwin")
    return loaded


def test_functions_are_loaded_once_and_share_a_state(lossless, mac):
    core_ml = executors.executor_of(lossless.path)
    assert core_ml.title == "Core ML, cpuAndGPU"
    state, inputs = core_ml.states(), {"length": np.zeros(1, np.int32)}
    for name in ("one_prefill8", "one_step5", "one_prefill8", "one_step5"):
        assert core_ml.call(name, inputs, state) == {"name": name, "state": state, "data": inputs}
    assert core_ml.call("one_draft", inputs)["state"] is None
    assert len(mac) == len(set(mac))
    places = {(path, units) for path, units, _ in mac}
    assert places == {(f"{lossless.path}c", ct.ComputeUnit.CPU_AND_GPU)}
