"""The step costs that are kept in the user's cache, of whichever models they are."""

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
        model: the directory that the model was loaded from.
        adapter: the same of the adapter that was mounted; ``None``: there was none.
        mode: of the streams; ``None``: there were none.
        kv_bits: of a quantized KV cache.
        curve: has the time when it was measured, and the spread of its timings.
        here: whether it is of this machine with its present MLX and BLAS, and so still in use.
    """

    model: str
    adapter: str | None
    mode: str | None
    kv_bits: int | None
    curve: CostCurve
    here: bool


def directory() -> Path:
    """Where the files are, one for each cost curve."""
    return user_cache.directory() / "step-costs"


def device_facts() -> dict[str, Any]:
    """What the cost of a step depends on besides the model."""
    described = device.describe()
    return {name: described[name] for name in ("machine", "cpu", "mlx", "backend", "blas")}


def kept_costs() -> list[KeptCosts]:
    """All curves that are complete, the newest first; files that cannot be read are left out."""
    present, found = device_facts(), []
    for path in directory().glob("*.json"):
        values = user_cache.read(path)
        with suppress(KeyError, TypeError, ValueError, AttributeError):
            facts, names = values["facts"], values["names"]
            found.append(
                KeptCosts(
                    names["model"],
                    names["adapter"],
                    facts["streams"] and facts["streams"]["mode"],
                    facts["kv_cache"] and facts["kv_cache"][0],
                    read_curve(values["curve"]),
                    facts["device"] == present,
                )
            )
    return sorted(found, key=lambda kept: kept.curve.measured, reverse=True)
