"""``specstream-mlx doctor``: what this machine runs on, what is missing, and how to mend it."""

import json
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


def examine() -> dict[str, Any]:
    """Facts about device, packages and bundled model, and ``missing``: what to do about the rest.

    Returns:
        ``device``, ``packages`` (name to version or ``None``), ``bundled_model``,
        ``bundled_adapters`` and ``missing``, a list of sentences.
    """
    from .. import bundled, device
    from ..blas import OPENBLAS_HINT

    packages = {name: _version(name) for name in (*_PACKAGES, *_EXTRAS)}
    missing = [OPENBLAS_HINT] if device.slow_blas() else []
    missing += [f"{name} {use}" for name, use in _EXTRAS.items() if packages[name] is None]
    try:
        bundled_model = str(bundled.base_path())
    except UserError as error:
        bundled_model = None
        missing.append(str(error))
    return {
        "device": device.describe(),
        "packages": packages,
        "bundled_model": bundled_model,
        "bundled_adapters": bundled.adapter_names(),
        "missing": missing,
    }


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Show device, MLX version and BLAS in use, what is missing, and the command that mends it.

    [bold]Example:[/bold] specstream-mlx doctor --json
    """
    facts = examine()
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    for name, value in (facts["device"] | facts["packages"]).items():
        print(f"{name:16} {value or 'not installed'}")
    print(f"{'bundled model':16} {facts['bundled_model'] or 'not in this installation'}")
    if facts["bundled_adapters"]:
        print(f"{'adapters':16} {', '.join(facts['bundled_adapters'])}")
    for sentence in facts["missing"]:
        print(f"missing: {sentence}")
