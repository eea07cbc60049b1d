"""``specstream-mlx doctor``: the machine's facts, missing parts and their remedies."""

import json
import math
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from .. import bundled, demonstration
from ..errors import install
from ..hardware import user_cache
from ..hardware.blas import OPENBLAS_HINT
from ..loading.model_paths import model_directory, read_config
from ..options import FLAG, MODEL, option
from ..terminal.notes import note
from ..terminal.progress import progress
from . import launched
from .options import JSON, ModelOptions

if TYPE_CHECKING:
    from ..drafting.step_costs import Timings

_TOKENS = 96
"""Tokens of the text for which compiled steps are counted."""

_PLACES = {"none": "lookup alone", "head": "draft head"}
_RIGHT = (0.5, 0.7, 0.9)
"""Shares of right guesses for which the best trees are shown."""

_PACKAGES = ("mlx", "mlx-lm", "transformers", "safetensors", "huggingface-hub")
_EXTRAS = {
    "starlette": ("serve and writing-tools need it", "serve"),
    "torch": ("training in PyTorch needs it", "torch"),
    "peft": ("training in PyTorch needs it", "torch"),
    "coremltools": ("export-coreml needs it", "coreml"),
}
"""Packages that are optional: what for, and the extra that brings them."""


def doctor(
    *,
    model: str | None = option(
        None,
        MODEL,
        "Measure how its weights are kept, and show the cost of its steps. Example: smollm2.",
    ),
    clear_caches: bool = option(
        False, FLAG, "Remove what is in the caches; adapters that you have added stay."
    ),
    race: bool = option(
        False,
        FLAG,
        "On Metal: let our kernel for products of 2 to 16 rows race with MLX's own, in another "
        "process, on the products of --model or of three usual models; where it wins it is used.",
        without=("clear_caches", "as_json"),
    ),
    as_json: bool = JSON,
) -> None:
    """Show device, MLX version and BLAS in use, what is missing, and the command that mends it.

    Under mlx.launch it also shows the cost of a reduction; every layer needs two.

    With --model it measures again how its quantized weights are kept; it shows the cost of steps
    with the bundled streams, when that was timed or for which chip it is predicted, and which trees
    bring the most at some rates of right guesses; and, if steps are compiled, how many steps of a
    short text were. You do not have to measure: generate does it with
    the first text of a model, and stores the results in the caches, with smollm2's weights.

    Examples:

        specstream-mlx doctor --model smollm2

        specstream-mlx doctor --race

        specstream-mlx doctor --clear-caches
    """
    if model is not None:
        ModelOptions(model).check()
    if clear_caches:
        removed = user_cache.sizes()
        user_cache.clear()
        for name, size in removed.items():
            note(f"removed {name} ({decimal(size)}) of {user_cache.directory()}")
        if not removed:
            note(f"the caches in {user_cache.directory()} are empty")
        return
    if race:
        launched.refuse(race=race)
        _race(model)
        return
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
    lines = facts["device"] | facts["packages"]
    for name, how in facts["optional"].items():
        lines[name] = f"not installed, optional: {how}"
    if reductions is not None:
        lines["processes"] = (
            f"{reductions['processes']} over {reductions['backend']}: a reduction of 4 kB takes "
            f"{1e3 * reductions['latency']:.2f} ms, one of 16 MB has "
            f"{reductions['bandwidth'] / 1e9:.2f} GB/s"
        )
    absent = f"not here yet: the first use converts or downloads it ({demonstration.INSTALL})"
    lines[demonstration.NAME] = facts["demonstration_model"] or absent
    lines["adapters"] = ", ".join(facts["bundled_adapters"])
    if held := facts["weights"]:
        lines["weights"] = (
            f"{held['form']}, {held['stored_bytes'] / 1e6:.1f} MB as stored, "
            f"{held['held_bytes'] / 1e6:.1f} MB in memory: {held['reason']}"
        )
    lines["few rows"] = facts["few_rows"]
    lines["steps"] = facts["steps"]
    if counts := facts["steps_of_a_text"]:
        built = ", ".join(f"{count} {how}" for how, count in counts.items())
        lines["steps"] += f"; of a text of {_TOKENS} tokens: {built}"
    kept = ", ".join(f"{name} {decimal(size)}" for name, size in facts["caches"].items())
    lines["caches"] = f"{user_cache.directory()}: {kept or 'empty'}"
    for name, value in lines.items():
        if value:
            print(f"{name:16} {value}")
    for costs in facts["step_costs"]:
        _print_costs(costs, alone=len(facts["step_costs"]) == 1)
    for sentence in facts["missing"]:
        print(f"missing: {sentence}")


def _race(model: str | None) -> None:
    """Race the kernels, and print every shape's times."""
    from ..hardware import few_rows
    from ..hardware.race import USUAL, products_of, race

    products = USUAL
    if model is not None:
        from ..loading.load import read_model

        path = model_directory(demonstration.model_path(model, note))
        products = products_of(read_model(path, to_run=False)[0])
    with progress("Racing"):
        said = race(products)
    for name, times in few_rows.verdict()[0].items():
        print(name)
        for rows, (outputs, stock, ours) in times.items():
            used = ", used" * bool(outputs)
            print(f"  {rows:2} rows: MLX's {stock:.3f} ms, ours {ours:.3f} ms{used}")
    print(said)


def _costs(timings: "Timings", guessing: Any) -> dict[str, Any]:
    """Collect the costs behind texts of some length, by rows, and the trees that pay with them."""
    from ..drafting.best_first import LEAST, likeliest
    from ..drafting.proposer import MOST_NODES, WIDTH

    width, most = (1, 10) if guessing is None else (WIDTH, guessing.num_streams)  # lookup copies
    curve, longest = timings.curve, timings.typical.longest
    *_, place = curve.points
    costs = {
        name: {n: round(timings.relative(name)[n], 3) for n in timings.typical.sizes}
        for name in curve.points
        if name != "plain"
    }
    trees = []
    for right in _RIGHT:
        nodes = islice(likeliest(_guesses(right, width, most), LEAST), MOST_NODES - 1)
        rows, rate = timings.best(place, [math.exp(node.score) for node in nodes])
        trees.append({"right": right, "pays": rate > 1, "rows": rows, "speedup": round(rate, 3)})
    return {
        "up_to_tokens": None if math.isinf(longest) else int(longest),
        "state": timings.state,
        "plain_seconds": curve.plain
        if curve.spread is not None or timings.typical.origin
        else None,
        "plain_steps": costs,
        "trees": trees,
    }


def _guesses(right: float, width: int, most: int) -> Any:
    """Make guesses for ``most`` tokens; the second has half of what the first leaves, and so on."""
    shares = right, *((1 - right) / 2**rank for rank in range(1, width))
    guesses = [(rank, math.log(share)) for rank, share in enumerate(shares)]
    return lambda path: guesses if len(path) < most else []


def _print_costs(costs: dict[str, Any], alone: bool) -> None:
    longest, plain = costs["up_to_tokens"], costs["plain_seconds"]
    behind = f"after up to {longest:,} tokens: " if longest else "" if alone else "after more: "
    unit = f" of {1e3 * plain:.1f} ms" if plain else ""
    print(f"{'costs of steps':16} {behind}{costs['state']}; in plain steps{unit}:")
    for place, by_rows in costs["plain_steps"].items():
        steps = ", ".join(f"{rows}: {cost:.2f}" for rows, cost in by_rows.items())
        print(f"  {_PLACES.get(place, 'with streams'):14} rows {steps}")
    trees = "; ".join(
        f"{tree['right']:.0%}: "
        + (f"{tree['rows']} rows, {tree['speedup']:.2f} times plain" if tree["pays"] else "none")
        for tree in costs["trees"]
    )
    print(f"  {'best trees':14} if first guesses are right in {trees}")


def _facts(model: str | None) -> dict[str, Any]:
    """The facts, with those of weights and steps if a model is given, and what is missing."""
    from ..hardware import device, few_rows

    packages: dict[str, str | None] = dict.fromkeys((*_PACKAGES, *_EXTRAS))
    for name in packages:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    missing = [OPENBLAS_HINT] if device.slow_blas() else []
    optional = {
        name: f"{use}, {install(extra)} brings it"
        for name, (use, extra) in _EXTRAS.items()
        if packages[name] is None
    }
    made = demonstration.directory()
    held, counts, costs = None, None, list[dict[str, Any]]()
    if model is not None:
        from ..drafting.rule import history_of
        from ..hardware.weights import hold_weights
        from ..loading.load import read_model
        from ..loading.speculative_model import SpeculativeModel

        path = model_directory(demonstration.model_path(model, note))
        base, held = hold_weights(read_model(path)[0], measure_again=True)
        speculative = SpeculativeModel(base, read_config(path), path, held=held)
        speculative.swap_adapter(bundled.streams_for(speculative.config))
        if speculative.compiled is not None:
            from ..generation.batch import decode
            from ..generation.request import Request

            prompt = [token % speculative.config["vocab_size"] for token in range(16)]
            for _ in decode(speculative, Request(prompt, max_tokens=_TOKENS)):
                pass
            counts = dict(speculative.compiled.counts)
        lengths = history_of(speculative).costs.by_length
        costs = [_costs(timings, speculative.guessing) for timings in lengths]
    return {
        "device": device.describe(),
        "few_rows": few_rows.verdict()[1] if device.backend() == "metal" else None,
        "steps": "compiled" if device.compiles() else "built by Python",
        "steps_of_a_text": counts,
        "packages": packages,
        "demonstration_model": str(made) if made.exists() else None,
        "bundled_adapters": bundled.adapter_names(),
        "weights": held and asdict(held),
        "step_costs": costs,
        "caches": user_cache.sizes(),
        "optional": optional,
        "missing": missing,
    }
