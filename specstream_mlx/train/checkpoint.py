"""Checkpoints of a run: all that its next step depends on, in one file that is complete or absent.

A safetensors file holds the trained arrays and their optimizers' state; its metadata has progress
and identity of the run. Each iteration has a seed of its own, so draws need no state.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..errors import UserError
from ..files import check_shapes, not_finite, parse_json, reason, staged_file, tensor_headers
from ..options import OBJECT
from .settings import check_identity

_KINDS = "parameter ", "optimizer "
_META = "run"


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run between two steps: arrays by name, identity of the run, progress."""

    parameters: dict[str, mx.array]
    optimizer: dict[str, mx.array]
    identity: dict[str, str]
    progress: dict[str, Any]

    def _arrays(self) -> dict[str, mx.array]:
        parts = zip(_KINDS, (self.parameters, self.optimizer), strict=True)
        return {kind + name: array for kind, part in parts for name, array in part.items()}

    def save(self, path: Path) -> None:
        """Write the file, or leave the one that is there."""
        meta = {"identity": self.identity, "progress": self.progress}
        with staged_file(path) as unfinished:
            mx.save_safetensors(str(unfinished), self._arrays(), {_META: json.dumps(meta)})

    @classmethod
    def load(cls, path: Path, run: "Checkpoint | None" = None) -> "Checkpoint":
        """Read a file, from which a run, whose own state is ``run``, may go on."""
        try:
            tensor_headers(path)
            loaded: Any = mx.load(str(path), format="safetensors", return_metadata=True)
            arrays, texts = loaded
            meta = parse_json(texts[_META], "its metadata")
            if (name := not_finite(arrays)) is not None:
                raise ValueError(f"{name} holds NaN or infinity")
            parameters, optimizer = (
                {n.removeprefix(kind): a for n, a in arrays.items() if n.startswith(kind)}
                for kind in _KINDS
            )
            for part in ("identity", "progress"):
                OBJECT.check(f"its {part}", meta.get(part) if isinstance(meta, dict) else meta)
            checkpoint = cls(parameters, optimizer, meta["identity"], meta["progress"])
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is no checkpoint of a run: {reason(error)}") from None
        if run is not None:
            check_identity(path, checkpoint.identity, run.identity)
            read, own = checkpoint._arrays(), run._arrays()
            check_shapes(path, *({n: a.shape for n, a in each.items()} for each in (read, own)))
            for name, array in own.items():
                if read[name].dtype != array.dtype:
                    raise UserError(
                        f"{path}: {name} is of {_name(read[name])}, expected {_name(array)}"
                    )
        return checkpoint


def _name(array: mx.array) -> str:
    return str(array.dtype).removeprefix("mlx.core.")
