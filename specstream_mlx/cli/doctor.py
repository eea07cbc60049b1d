"""``specstream-mlx doctor``: the machine's facts, missing parts and their remedies."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..demonstration import NAME
from ..errors import UserError
from . import launched
from .options import JSON, base_model

if TYPE_CHECKING:
    from ..drafting.cost import KeptCosts

_PACKAGES = ("mlx", "mlx-lm", "transformers", "safetensors", "huggingface-hub")
_HEADINGS = {"plain": "plain step", "none": "lookup alone", "beside": "beside all"}
_EXTRAS = {
    "torch": "trains streams and verifies conversions: pip install 'specstream-mlx[torch]'",
    "peft": "trains streams and LoRA: pip install 'specstream-mlx[torch]'",
    "coremltools": "exports to Core ML: pip install coremltools",
}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def examine(model: str | None = None) -> dict[str, Any]:
    """Facts about device, packages and models, and ``missing``: what to do about the rest."""
    from .. import bundled, demonstration
    from ..drafting.cost import kept_costs
    from ..drafting.rule import history_of
    from ..hardware import device
    from ..hardware.blas import OPENBLAS_HINT
    from ..hardware.weights import hold_weights
    from ..loading import SpeculativeModel, model_directory, read_config, read_model

    packages = {name: _version(name) for name in (*_PACKAGES, *_EXTRAS)}
    missing = [OPENBLAS_HINT] if device.slow_blas() else []
    missing += [f"{name} {use}" for name, use in _EXTRAS.items() if packages[name] is None]
    examined: str | Path | None = None
    try:
        examined = demonstration.model_path(model)
    except UserError as error:
        missing.append(str(error))
    made = demonstration.directory()
    demonstration_model = str(made) if made.exists() else None
    held = curve = None
    if examined is not None:
        path = model_directory(examined)
        base, held = hold_weights(read_model(path)[0], measure_again=True)
        speculative = SpeculativeModel(base, read_config(path), path, held=held)
        speculative.swap_adapter(bundled.streams_for(speculative.config))
        curve = history_of(speculative).costs.curve
    kept = kept_costs()
    return {
        "device": device.describe(),
        "packages": packages,
        "demonstration_model": demonstration_model,
        "bundled_adapters": bundled.adapter_names(),
        "weights": held and asdict(held),
        "step_costs": curve and curve.state(),
        "step_seconds": curve.points if curve is not None and curve.rounds else None,
        "measured": [_measured(costs, demonstration_model) for costs in kept if costs.here],
        "measured_elsewhere": sum(not costs.here for costs in kept),
        "missing": missing,
    }


def _measured(costs: "KeptCosts", demonstration_model: str | None) -> dict[str, Any]:
    """A cost curve as an object: of what, how fast, when, and how quiet the machine was."""
    return {
        "model": _model_name(costs, demonstration_model),
        "adapter": costs.adapter and Path(costs.adapter).name,
        "mode": costs.mode,
        "kv_bits": costs.kv_bits,
        "processes": costs.processes,
        "plain_seconds": costs.curve.plain,
        "measured": costs.curve.measured,
        "rounds": costs.curve.rounds,
        "spread": costs.curve.spread,
        "busy": costs.curve.busy,
    }


def _model_name(costs: "KeptCosts", demonstration_model: str | None) -> str:
    """Return the name that users know a model by: its repository or directory."""
    if costs.model == demonstration_model:
        return NAME
    for part in Path(costs.model).parts:  # of the Hugging Face cache
        if part.startswith("models--"):
            return part.removeprefix("models--").replace("--", "/")
    return costs.model


def _show_seconds(points: dict[str, Sequence[tuple[int, float]]]) -> None:
    """A table of what steps of the model take, by their nodes and where the streams run."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    by_place = {place: dict(pairs) for place, pairs in points.items()}
    plain = points["plain" if "plain" in points else "none"][0][1]
    title = "Milliseconds of a step, by where the streams run"
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("nodes", justify="right")
    for place in by_place:
        table.add_column(_HEADINGS.get(place, place), justify="right")
    for nodes in sorted(set().union(*by_place.values())):
        seconds = (one.get(nodes) for one in by_place.values())
        cells = ("" if s is None else f"{1e3 * s:.1f} ({s / plain:.2f}x)" for s in seconds)
        table.add_row(str(nodes), *cells)
    Console(highlight=False).print(table)


def _show_measured(rows: list[dict[str, Any]], elsewhere: int) -> None:
    """A table of the cost curves."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if rows:
        table = Table(box=SIMPLE_HEAD, title="Costs of steps measured here", title_justify="left")
        table.add_column("model", overflow="fold")
        table.add_column("adapter", overflow="fold")
        for name in ("plain step", "measured", "machine then"):
            table.add_column(name, no_wrap=True)
        for row in rows:
            kind = row["mode"] or ("LoRA" if row["adapter"] else "none")
            adapter = f"{row['adapter']} ({kind})" if row["adapter"] else kind
            if row["kv_bits"]:
                adapter += f", KV cache of {row['kv_bits']} bits"
            if row["processes"] > 1:
                adapter += f", {row['processes']} processes"
            when = datetime.fromtimestamp(row["measured"]).strftime("%Y-%m-%d %H:%M")
            state = f"{'busy' if row['busy'] else 'quiet'} (spread {row['spread']:.0%})"
            milliseconds = f"{1e3 * row['plain_seconds']:.1f} ms"
            table.add_row(row["model"], adapter, milliseconds, when, state)
        console.print(table)
    if elsewhere:
        console.print(f"{elsewhere} more were measured on another machine, MLX or BLAS.")


def doctor(
    *,
    model: str | None = base_model("Whose weights to hold and weigh. Default: smollm2."),
    as_json: bool = JSON,
) -> None:
    """Show device, MLX version and BLAS in use, what is missing, and the command that mends it.

    Under mlx.launch also what a reduction over the processes costs, of which every layer needs two.

    Also what was measured here before: of which models steps were timed, when, and how quiet the
    machine was; and of --model, with its bundled streams, what steps take. Nobody has to time them:
    generate does it when it first meets a model or a machine.

    How quantized weights are held is measured at first use and kept in the user's cache; this
    command measures again.

    Examples:

        specstream-mlx doctor --json
    """
    from ..hardware.cpu import BLOCK

    ranks, reductions = launched.ranks(), None
    if ranks is not None:
        from ..distributed.reductions import measure

        reductions = measure(ranks)
        if not ranks.is_first:
            return
    facts = examine(model)
    if reductions is not None:
        facts["reductions"] = asdict(reductions)
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    for name, value in (facts["device"] | facts["packages"]).items():
        print(f"{name:16} {value or 'not installed'}")
    if reductions is not None:
        print(
            f"{'processes':16} {reductions.processes} over {reductions.backend}: a reduction of "
            f"4 kB takes {1e3 * reductions.latency:.2f} ms, one of 16 MB has "
            f"{reductions.bandwidth / 1e9:.2f} GB/s"
        )
    print(f"{NAME:16} {facts['demonstration_model'] or 'not to be had'}")
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
        print(f"{'costs of steps':16} {facts['step_costs']}")
    if facts["step_seconds"]:
        _show_seconds(facts["step_seconds"])
    _show_measured(facts["measured"], facts["measured_elsewhere"])
    for sentence in facts["missing"]:
        print(f"missing: {sentence}")
