"""Executors of a package's functions: Core ML on a Mac, elsewhere numpy."""

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import coremltools as ct
import numpy as np

from specstream_mlx.errors import UserError
from specstream_mlx.files import reason

from .evaluate import Package
from .saved import read_spec

REFUSALS = (AssertionError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
"""What executors raise for inputs that a function does not take."""

COMPUTE_UNITS = {
    "cpuOnly": ct.ComputeUnit.CPU_ONLY,
    "cpuAndGPU": ct.ComputeUnit.CPU_AND_GPU,
    "cpuAndNeuralEngine": ct.ComputeUnit.CPU_AND_NE,
    "all": ct.ComputeUnit.ALL,
}
"""By Swift's names."""


class Executor(Protocol):
    """An executor of one package's functions.

    Attributes:
        title: its name in a few words.
    """

    title: str

    def states(self) -> Any:
        """Empty caches, for any of the functions that have some; calls change them."""

    def call(
        self, name: str, inputs: Mapping[str, np.ndarray], states: Any = None
    ) -> dict[str, np.ndarray]:
        """Run a function; see ``evaluate.Package.call``."""


class CoreML:
    """Core ML's own runtime, on macOS 15 or later. It has not been run so far.

    The package is compiled once, and a function loaded when it is first called. One state serves
    all functions, since they declare the same ones.

    Args:
        path: of the package.
        units: that may compute.

    Raises:
        UserError: Core ML cannot compile the package.
    """

    def __init__(self, path: str | Path, units: str = "cpuAndGPU"):
        self.title = f"Core ML, {units}"
        self._path, self._units = path, COMPUTE_UNITS[units]
        self._functions: dict[str, ct.models.CompiledMLModel] = {}
        try:
            self._compiled = ct.models.utils.compile_model(str(path))
        except Exception as error:  # pybind's RuntimeError, or coremltools' bare Exception
            raise UserError(f"{path} cannot be compiled by Core ML: {reason(error)}") from None
        description = read_spec(Path(path)).description
        self._stateful = next(f.name for f in description.functions if len(f.state))

    def states(self) -> Any:
        """An ``MLState`` of empty caches."""
        return self._function(self._stateful).make_state()

    def call(
        self, name: str, inputs: Mapping[str, np.ndarray], states: Any = None
    ) -> dict[str, np.ndarray]:
        """Run a function; see ``evaluate.Package.call``."""
        return self._function(name).predict(dict(inputs), states)

    def _function(self, name: str) -> ct.models.CompiledMLModel:
        if name not in self._functions:
            try:
                found = ct.models.CompiledMLModel(self._compiled, self._units, name)
            except RuntimeError as error:
                raise UserError(
                    f"{self._path}: Core ML cannot load {name}: {reason(error)}"
                ) from None
            self._functions[name] = found
        return self._functions[name]


def has_core_ml() -> bool:
    """Tell whether Core ML's runtime is there."""
    return platform.system() == "Darwin"


def executor_of(path: Path) -> Executor:
    """Executor of a package on this machine: Core ML where that is, else numpy, in float32."""
    return CoreML(path) if has_core_ml() else Package(path)
