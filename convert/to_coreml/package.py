"""A package: one program with all functions of all adapters, and what it says of itself."""

import contextlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import coremltools as ct
import mlx.nn as nn
import numpy as np
from coremltools.converters.mil.mil import Program
from coremltools.models import MLModel

from specstream_mlx.errors import UserError
from specstream_mlx.models.streams import Streams

from .functions import Emission, own_arrays
from .supported import Sizes
from .weights import Encoding, Store

METADATA = "specstream"
"""The key of the package's metadata under which ours are, as JSON."""

FORMAT_VERSION = 1

SUPPLIED = "supplied"
"""The name before functions to which adapters are supplied."""


class PackageBuilder:
    """Collects the functions of one adapter after the other over the same base.

    Args:
        sizes: of the package.
        sampling: with functions for sampling.
        release: see ``Store``.
        supplied: one set of functions, called after ``SUPPLIED``, for adapters that the host
            supplies as arrays.

    Attributes:
        arrays: what is to be supplied of each adapter, (elements,) float16.
    """

    def __init__(
        self,
        sizes: Sizes,
        sampling: bool = False,
        *,
        release: bool = False,
        supplied: bool = False,
    ):
        self._sizes, self._sampling = sizes, sampling
        self._shapes: dict[str, tuple[int, ...]] | None = {} if supplied else None
        self.arrays: dict[str, np.ndarray] = {}
        self._store, self._program = Store(release), Program()
        self._adapters: dict[str, dict[str, Any]] = {}

    def add(
        self,
        name: str,
        model: nn.Module,
        streams: Streams | None,
        *,
        shortlists: bool | None = None,
        done: Callable[[str], None] = lambda function: None,
    ) -> None:
        """Add an adapter's functions.

        Args:
            name: of the adapter.
            model: the base with the adapter's LoRA mounted.
            streams: the adapter's, or ``None``.
            shortlists: as the ``Decoder``'s.
            done: is told the name of every function that is complete.
        """
        emission = Emission(model, streams, name, self._sizes, self._store, shortlists)
        self._adapters[name] = {} if streams is None else _described(streams)
        if self._shapes is not None:
            arrays = own_arrays(emission)
            shapes = {array: value.shape for array, value in arrays.items()}
            self.arrays[name] = np.concatenate([value.reshape(-1) for value in arrays.values()])
            if self._shapes:
                self._check_alike(name, shapes)
                return
            self._shapes = shapes
            emission = replace(emission, adapter=SUPPLIED, supplied=shapes)
        for function, make in emission.functions(self._sampling).items():
            self._program.add_function(function, make())
            done(function)

    def _check_alike(self, name: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        first, *_ = self._adapters
        fields = [{**self._adapters[one], "prompt_template": None} for one in (first, name)]
        if shapes != self._shapes or fields[0] != fields[1]:
            raise UserError(
                f"adapter {name} has other LoRA matrices or streams than {first}, expected "
                "adapters of one kind to supply to the same functions"
            )

    @property
    def functions(self) -> int:
        """Number of functions of an adapter with streams."""
        return 1 + len(self._sizes.nodes) * (1 + self._sampling) + self._sampling

    @property
    def report(self) -> list[Encoding]:
        """Report of how each weight was written."""
        return self._store.report

    def model(self, facts: Mapping[str, Any]) -> MLModel:
        """The package in memory."""
        model = converted(self._program)
        said = {
            "version": FORMAT_VERSION,
            "sizes": asdict(self._sizes) | {"rows": self._sizes.rows},
            "sampling": self._sampling,
            "adapters": self._adapters,
            **facts,
        }
        if self._shapes is not None:
            said["supplied"] = {"functions": SUPPLIED, "arrays": list(self._shapes.items())}
        model.user_defined_metadata[METADATA] = json.dumps(said)
        return model


def adapters_directory(output: Path) -> Path:
    """The directory of adapters' arrays that are supplied to a Core ML package, beside it."""
    return output.with_suffix(".adapters")


def converted(program: Program) -> MLModel:
    """A program of functions as a Core ML model in memory, its weights in a temporary file."""
    program.default_function_name = next(iter(program.functions))
    program.export_as_multifunction = True
    with contextlib.redirect_stderr(io.StringIO()):  # coremltools' own bars
        return ct.convert(
            program,
            source="milinternal",
            convert_to="mlprogram",
            minimum_deployment_target=ct.target.iOS18,
            compute_precision=ct.precision.FLOAT32,  # it is fp16 already, where it is to be
            pass_pipeline=ct.PassPipeline.EMPTY,
            skip_model_load=True,
        )


def _described(streams: Streams) -> dict[str, Any]:
    """Facts that a host must know of an adapter's streams."""
    config = streams.config
    return {
        "mode": config.mode,
        "num_streams": config.num_streams,
        "num_msa_layers": config.num_msa_layers,
        "stream_head": config.stream_head,
        "prompt_template": config.prompt_template,
    }


def save(model: MLModel, path: Path) -> None:
    """Write a package; its parts are readable as any file of the user's."""
    model.save(str(path))
    for part in path.rglob("*"):  # which coremltools lets only their owner read, in part
        part.chmod(0o755 if part.is_dir() else 0o644)
