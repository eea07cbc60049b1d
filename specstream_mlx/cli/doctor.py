"""``specstream-mlx doctor``: what this machine runs on, what is missing, and how to mend it."""

import json
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer

from ..config import UserError

_PACKAGES = ("mlx", "mlx-lm", "transformers", "safetensors", "huggingface-hub")
_EXTRAS = {
    "torch": "trains streams and verifies conversions: pip install 'specstream-mlx[torch]'",
    "peft": "trains LoRA for shared mode: pip install 'specstream-mlx[torch]'",
    "coremltools": "exports to Core ML: pip install coremltools",
}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def examine(model: str | None = None) -> dict[str, Any]:
    """Facts about device, packages and models, and ``missing``: what to do about the rest.

    Args:
        model: whose weights are held to see what that takes; ``None``: the bundled one.

    Returns:
        ``device``, ``packages`` (name to version or ``None``), ``bundled_model``,
        ``bundled_adapters``, ``weights`` (``weight_policy.HeldWeights`` as an object, or ``None``),
        ``step_costs`` (when the costs of steps were measured there, and how quiet the machine was;
        ``None`` without a model) and ``missing``, a list of sentences.

    Raises:
        UserError: ``model`` cannot be used.
    """
    from .. import bundled
    from ..autotune.pace import pace_of
    from ..hardware import device
    from ..hardware.blas import OPENBLAS_HINT
    from ..hardware.weights import hold_weights
    from ..loading import SpeculativeModel, model_directory, read_config, read_model

    packages = {name: _version(name) for name in (*_PACKAGES, *_EXTRAS)}
    missing = [OPENBLAS_HINT] if device.slow_blas() else []
    missing += [f"{name} {use}" for name, use in _EXTRAS.items() if packages[name] is None]
    try:
        bundled_model = str(bundled.base_path())
    except UserError as error:
        bundled_model = None
        missing.append(str(error))
    held = step_costs = None
    if examined := model or bundled_model:
        path = model_directory(examined)
        base, held = hold_weights(read_model(path)[0], measure_again=True)
        speculative = SpeculativeModel(base, read_config(path), path, held=held)
        if model is None:
            speculative.swap_adapter(bundled.streams_path())
        step_costs = pace_of(speculative).costs.curve.state()
    return {
        "device": device.describe(),
        "packages": packages,
        "bundled_model": bundled_model,
        "bundled_adapters": bundled.adapter_names(),
        "weights": held and asdict(held),
        "step_costs": step_costs,
        "missing": missing,
    }


def doctor(
    model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|REPO", help="Whose weights to hold and weigh. Default: the bundled model."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Show device, MLX version and BLAS in use, what is missing, and the command that mends it.

    How quantized weights are held is measured at first use and kept in the user's cache; this
    command measures again.

    [bold]Example:[/bold] specstream-mlx doctor --json
    """
    from ..hardware.cpu.products import BLOCK

    facts = examine(model)
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    for name, value in (facts["device"] | facts["packages"]).items():
        print(f"{name:16} {value or 'not installed'}")
    print(f"{'bundled model':16} {facts['bundled_model'] or 'not in this installation'}")
    if facts["bundled_adapters"]:
        print(f"{'adapters':16} {', '.join(facts['bundled_adapters'])}")
    if held := facts["weights"]:
        print(
            f"{'weights':16} {held['form']}, {held['stored_bytes'] / 1e6:.1f} MB as stored, "
            f"{held['held_bytes'] / 1e6:.1f} MB in memory: {held['reason']}"
        )
        if held["row_blocks"]:
            print(f"{'':16} rows filled up to {BLOCK}s, which this BLAS is faster at")
    if facts["step_costs"]:
        print(f"{'costs of steps':16} {facts['step_costs']}: see specstream-mlx autotune")
    for sentence in facts["missing"]:
        print(f"missing: {sentence}")
