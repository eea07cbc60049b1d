"""Apple's Core AI runtime, which runs on Linux too: a second executor beside ``evaluate``.

Apple's compiler and runtime then compute what a package says, by way of ``core_ai.translated``.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import coreai.authoring as ca
import numpy as np
from coreai.runtime import NDArray


class AppleRuntime:
    """An asset on Apple's runtime: an ``executors.Executor``, and a context manager.

    Args:
        asset: an ``.aimodel``.
    """

    title = "Core AI"

    def __init__(self, asset: Path):
        self._asset = ca.AIModelAsset.load(asset)
        self._loop, self._stack = asyncio.new_event_loop(), AsyncExitStack()
        self._functions: dict[str, Any] = {}

    def __enter__(self) -> "AppleRuntime":
        entered = self._stack.enter_async_context(self._asset.executable())
        self._model = self._loop.run_until_complete(entered)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._functions.clear()
        del self._model
        self._loop.run_until_complete(self._stack.aclose())
        self._loop.close()

    def states(self) -> dict[str, np.ndarray]:
        """Empty caches; functions that are called change them."""
        for name in self._model.function_names:
            described = self._function(name).desc
            if described.state_names:
                found = {s: described.state_descriptor(s) for s in described.state_names}
                return {state: np.zeros(d.shape, d.dtype) for state, d in found.items()}
        return {}

    def call(
        self, name: str, inputs: Mapping[str, Any], states: dict[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Run a function.

        Args:
            name: of the function.
            inputs: arrays by name, in the shapes that it declares.
            states: from ``states``; changed in place.

        Returns:
            Its outputs by name.
        """
        function = self._function(name)
        arrays = {key: NDArray(np.ascontiguousarray(array)) for key, array in inputs.items()}
        own = {key: NDArray(states[key].copy()) for key in function.desc.state_names}
        found = self._loop.run_until_complete(function(inputs=arrays, state=own))
        for key, array in own.items():
            states[key] = array.numpy()
        return {key: array.numpy() for key, array in found.items()}

    def _function(self, name: str) -> Any:
        if name not in self._functions:
            self._functions[name] = self._model.load_function(name)
        return self._functions[name]
