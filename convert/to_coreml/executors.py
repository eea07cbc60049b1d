"""Executors of a package's functions: Core ML on a Mac, elsewhere numpy."""

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from specstream_mlx.errors import UserError
from specstream_mlx.files import reason

from .contents import read_spec

COMPUTE_UNITS = {
    "cpuOnly": "CPU_ONLY",
    "cpuAndGPU": "CPU_AND_GPU",
    "cpuAndNeuralEngine": "CPU_AND_NE",
    "all": "ALL",
}
"""What may compute, by Swift's names: coremltools' names."""


class Executor(Protocol):
    """An executor of one package's functions; its title is a name in a few words."""

    title: str

    def states(self) -> Any:
        """Empty caches, for any of the functions that have some; calls change them."""

    def call(
        self, name: str, inputs: Mapping[str, np.ndarray], states: Any = None
    ) -> dict[str, np.ndarray]:
        """Run a function; see ``evaluate.Package.call``."""


def call(
    executor: Executor, name: str, inputs: Mapping[str, np.ndarray], states: Any = None
) -> dict[str, np.ndarray]:
    """Run a function; one that is damaged, or inputs that do not fit it, are a ``UserError``."""
    try:
        return executor.call(name, inputs, states)
    except UserError:
        raise
    except Exception as error:  # a damaged function may fail in any way
        raise UserError(
            f"{executor.title} cannot run {name}: {reason(error)}, expected a function of "
            "export-coreml and its inputs"
        ) from None


class CoreML:
    """Core ML's own runtime, on macOS 15 or later. It has not been run so far.

    The package is compiled once, and a function loaded when it is first called. One state serves
    all functions, since they declare the same ones. ``units`` are some of ``COMPUTE_UNITS``.
    """

    def __init__(self, path: str | Path, units: str = "cpuAndGPU"):
        import coremltools as ct

        self.title = f"Core ML, {units}"
        self._path, self._units = path, ct.ComputeUnit[COMPUTE_UNITS[units]]
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
        """See ``evaluate.Package.call``."""
        return self._function(name).predict(dict(inputs), states)

    def _function(self, name: str) -> Any:
        import coremltools as ct

        try:
            if name not in self._functions:
                loaded = ct.models.CompiledMLModel(self._compiled, self._units, name)
                self._functions[name] = loaded
            return self._functions[name]
        except RuntimeError as error:
            raise UserError(f"{self._path}: Core ML cannot load {name}: {reason(error)}") from None


def has_core_ml() -> bool:
    """Tell whether Core ML's runtime is there."""
    return platform.system() == "Darwin"


def executor_of(path: Path) -> Executor:
    """Executor of a package on this machine: Core ML where that is, else numpy, in float32."""
    from .evaluate import Package

    return CoreML(path) if has_core_ml() else Package(path)
