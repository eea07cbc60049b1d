"""The plot of ``benchmarks.prediction.simulation``: predicted speedup by chip, model and bits."""

from pathlib import Path

from matplotlib.figure import Figure

from .apple_machines import CHIPS
from .predicted_speed import Prediction

STYLES = {4: ("o", "#d55e00"), 8: ("s", "#0072b2"), 16: ("^", "#009e73")}


def draw(found: list[Prediction], label: str, path: Path) -> None:
    """Write a PNG with a panel for each kind of streams and model."""
    modes = list(dict.fromkeys(p.mode for p in found))
    models = list(dict.fromkeys(p.model for p in found))
    names = [chip.name for chip in CHIPS]
    figure = Figure(figsize=(12, 1.6 + 2.9 * len(modes)), layout="constrained")
    panels = figure.subplots(len(modes), len(models), sharex=True, sharey="row", squeeze=False)
    for mode, row in zip(modes, panels, strict=True):
        for model, axes in zip(models, row, strict=True):
            shown = [p for p in found if (p.mode, p.model) == (mode, model)]
            axes.axhline(1, color="0.4", linewidth=0.8)
            for bits, (marker, color) in STYLES.items():
                some = [p for p in shown if p.bits == bits and p.placement != "does not fit"]
                places = [names.index(p.chip) + (bits - 8) / 40 for p in some]
                rates = [p.speedup for p in some]
                axes.plot(places, rates, marker, color=color, markersize=5, label=f"{bits} bits")
            axes.set_title(f"Prediction: {model}, {mode}", fontsize=10)
            axes.set_xticks(range(len(names)), names, rotation=90, fontsize=8)
            axes.grid(axis="y", alpha=0.3)
        highest = max(p.speedup for p in found if p.mode == mode)
        row[0].set_ylim(0.9, 1.05 * highest)
        row[0].set_ylabel("predicted speedup over plain")
    panels[0][0].legend(fontsize=8, loc="upper left")
    figure.suptitle(f"{label}: Speculative Streaming on Apple chips (1.0: plain decoding is best)")
    figure.savefig(path, dpi=80)
