"""How Core ML is called, against stand-ins for what coremltools has on a Mac."""

import numpy as np
import pytest

pytest.importorskip("coremltools", reason="coremltools is not installed: the extra [coreml]")

import coremltools as ct
from specstream_mlx.convert.to_coreml import executors

from specstream_mlx import UserError


class Compiled:
    """A function of a compiled package, in the place of ``CompiledMLModel``."""

    loaded: list = []  # noqa: RUF012

    def __init__(self, path, units, name):
        self._name = name
        Compiled.loaded.append((path, units, name))

    def make_state(self):
        return {"made by": self._name}

    def predict(self, data, state=None):
        assert type(data) is dict
        return {"name": self._name, "state": state, "data": data}


@pytest.fixture
def mac(monkeypatch):
    Compiled.loaded = []
    monkeypatch.setattr(ct.models.utils, "compile_model", lambda path: f"{path}c")
    monkeypatch.setattr(ct.models, "CompiledMLModel", Compiled)
    monkeypatch.setattr(executors.platform, "system", lambda: "Darwin")


def test_functions_are_loaded_once_and_share_a_state(lossless, mac):
    core_ml = executors.executor_of(lossless.path)
    assert core_ml.title == "Core ML, cpuAndGPU"
    state = core_ml.states()
    inputs = {"length": np.zeros(1, np.int32)}
    for name in ("one_prefill8", "one_step5", "one_prefill8", "one_step5"):
        found = core_ml.call(name, inputs, state)
        assert (found["name"], found["state"]) == (name, state)
        assert found["data"] == inputs
    assert core_ml.call("one_draft", inputs)["state"] is None
    names = [name for *_, name in Compiled.loaded]
    assert sorted(names) == sorted(set(names))
    assert {path for path, *_ in Compiled.loaded} == {f"{lossless.path}c"}
    assert {units for _, units, _ in Compiled.loaded} == {ct.ComputeUnit.CPU_AND_GPU}


def test_what_core_ml_refuses_is_one_sentence(lossless, mac, monkeypatch):
    def refuse(*_):
        raise RuntimeError("Error compiling model")

    monkeypatch.setattr(ct.models, "CompiledMLModel", refuse)
    with pytest.raises(UserError, match=r"Core ML cannot load .*: Error compiling model"):
        executors.CoreML(lossless.path).states()
    monkeypatch.setattr(ct.models.utils, "compile_model", refuse)
    with pytest.raises(UserError, match="cannot be compiled by Core ML: Error compiling model"):
        executors.CoreML(lossless.path)
