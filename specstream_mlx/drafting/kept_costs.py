"""The step costs of all models that are kept in the user's cache."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..hardware import device, user_cache
from .cost import CostCurve, read_curve


@dataclass(frozen=True)
class KeptCosts:
    """The cost curve of one model with adapters of one shape.

    Attributes:
        model: directory of the model.
        adapter: directory of the adapter; ``None``: none was mounted.
        mode: mode of the streams; ``None``: there were none.
        kv_bits: bits of a quantized KV cache; ``None``: it was not quantized.
        processes: among which the model was divided.
        curve: the cost curve.
        here: whether it is of this machine with its present MLX and BLAS, and so still in use.
    """

    model: str
    adapter: str | None
    mode: str | None
    kv_bits: int | None
    processes: int
    curve: CostCurve
    here: bool


def directory() -> Path:
    """Return the directory of the files, one for each cost curve."""
    return user_cache.directory() / "step-costs"


def device_facts() -> dict[str, Any]:
    """Return the facts of the machine that the cost of a step depends on."""
    described = device.describe()
    return {name: described[name] for name in ("machine", "cpu", "mlx", "backend", "blas")}


def kept_costs() -> list[KeptCosts]:
    """List all complete curves, the newest first; files that cannot be read are left out."""
    present, kept_curves = device_facts(), []
    for path in directory().glob("*.json"):
        values = user_cache.read(path)
        with suppress(KeyError, TypeError, ValueError, AttributeError):
            facts, names = values["facts"], values["names"]
            kept_curves.append(
                KeptCosts(
                    names["model"],
                    names["adapter"],
                    facts["streams"] and facts["streams"]["mode"],
                    facts["kv_cache"] and facts["kv_cache"][0],
                    facts["processes"],
                    read_curve(values["curve"]),
                    facts["device"] == present,
                )
            )
    return sorted(kept_curves, key=lambda kept: kept.curve.measured, reverse=True)
