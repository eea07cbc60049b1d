"""``specstream-mlx doctor``: the machine's facts, missing parts and their remedies."""

import json
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .. import demonstration
from ..errors import UserError
from ..options import MODEL, option
from . import launched
from .options import JSON

_PLACES = {"plain": "plain step", "none": "lookup alone", "beside": "beside all"}
_PACKAGES = ("mlx", "mlx-lm", "transformers", "safetensors", "huggingface-hub")
_EXTRAS = {
    "torch": "trains streams and verifies conversions: pip install 'specstream-mlx[torch]'",
    "peft": "trains streams and LoRA: pip install 'specstream-mlx[torch]'",
    "coremltools": "exports to Core ML: pip install coremltools",
}


def doctor(
    *,
    model: str | None = option(None, MODEL, "Whose weights to hold and weigh. Default: smollm2."),
    as_json: bool = JSON,
) -> None:
    """Show device, MLX version and BLAS in use, what is missing, and the command that mends it.

    Under mlx.launch also what a reduction over the processes costs, of which every layer needs two.

    Also what steps of --model with its bundled streams take, when that was timed, and how quiet the
    machine was. Nobody has to time them: generate does it when it first meets a model or a machine.

    How quantized weights are held is measured at first use and kept in the user's cache; this
    command measures again.

    Examples:

        specstream-mlx doctor --json
    """
    ranks, reductions = launched.ranks(), None
    if ranks is not None:
        from ..distributed.ranks import reduction_costs

        reductions = reduction_costs(ranks)
        if not ranks.is_first:
            return
    facts = _facts(model)
    if reductions is not None:
        facts["reductions"] = reductions
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    from ..hardware.cpu import BLOCK

    found = facts["device"] | facts["packages"]
    lines = {name: value or "not installed" for name, value in found.items()}
    if reductions is not None:
        lines["processes"] = (
            f"{reductions['processes']} over {reductions['backend']}: a reduction of 4 kB takes "
            f"{1e3 * reductions['latency']:.2f} ms, one of 16 MB has "
            f"{reductions['bandwidth'] / 1e9:.2f} GB/s"
        )
    lines[demonstration.NAME] = facts["demonstration_model"] or "not to be had"
    lines["adapters"] = ", ".join(facts["bundled_adapters"])
    if held := facts["weights"]:
        lines["weights"] = (
            f"{held['form']}, {held['stored_bytes'] / 1e6:.1f} MB as stored, "
            f"{held['held_bytes'] / 1e6:.1f} MB in memory: {held['reason']}"
        )
        if held["row_blocks"]:
            lines[""] = f"rows filled up to {BLOCK}s, which this BLAS is faster at"
    lines["steps"] = facts["steps"]
    lines["costs of steps"] = facts["step_costs"]
    for place, points in (facts["step_seconds"] or {}).items():
        times = ", ".join(f"{nodes}: {1e3 * seconds:.1f} ms" for nodes, seconds in points)
        lines[_PLACES.get(place, place)] = f"nodes {times}"
    for name, value in lines.items():
        if value:
            print(f"{name:16} {value}")
    for sentence in facts["missing"]:
        print(f"missing: {sentence}")


def _facts(model: str | None) -> dict[str, Any]:
    """The facts, and ``missing``: what to do about the rest."""
    from .. import bundled
    from ..drafting.rule import history_of
    from ..hardware import device
    from ..hardware.blas import OPENBLAS_HINT
    from ..hardware.weights import hold_weights
    from ..loading import SpeculativeModel, model_directory, read_config, read_model

    packages: dict[str, str | None] = dict.fromkeys((*_PACKAGES, *_EXTRAS))
    for name in packages:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    missing = [OPENBLAS_HINT] if device.slow_blas() else []
    missing += [f"{name} {use}" for name, use in _EXTRAS.items() if packages[name] is None]
    examined: str | Path | None = None
    try:
        examined = demonstration.model_path(model)
    except UserError as error:
        missing.append(str(error))
    made = demonstration.directory()
    held = curve = None
    if examined is not None:
        path = model_directory(examined)
        base, held = hold_weights(read_model(path)[0], measure_again=True)
        speculative = SpeculativeModel(base, read_config(path), path, held=held)
        speculative.swap_adapter(bundled.streams_for(speculative.config))
        curve = history_of(speculative).costs.curve
    return {
        "device": device.describe(),
        "steps": "compiled" if device.compiles() else "built by Python",
        "packages": packages,
        "demonstration_model": str(made) if made.exists() else None,
        "bundled_adapters": bundled.adapter_names(),
        "weights": held and asdict(held),
        "step_costs": curve and curve.state(),
        "step_seconds": curve.points if curve is not None and curve.spread is not None else None,
        "missing": missing,
    }
