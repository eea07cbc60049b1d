"""The figures: points are measured once, and drawn."""

import pytest

from benchmarks.figure_plot import draw
from benchmarks.figure_points import Point
from benchmarks.paper_figures import FIGURES, Sizes, figures, find_adapters
from specstream_mlx import UserError

SIZES = Sizes(("sql",), "dev", 1, 1, 8, 4)


def points(series, values):
    return [Point("sql", series, str(x), y, y / 2, 3.0, 0.5) for x, y in enumerate(values)]


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_a_small_png(name, tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra plots")
    path = tmp_path / f"{name}.png"
    shown = points("shared, chain", [1, 2, 3]) + points("shared, tree", [2, 2, 1])
    draw(shown, path, "title", FIGURES[name].x_label, FIGURES[name].measures)
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert 5_000 < path.stat().st_size < 100_000


def test_what_cannot_be_drawn_is_said_before_measuring(tmp_path):
    with pytest.raises(UserError, match="unknown figure 'nothing', expected some of temperature"):
        figures(["nothing"], None, SIZES, tmp_path)
    with pytest.raises(UserError, match="expected what the PyTorch trainer writes"):
        find_adapters(tmp_path)
    for number in (4, 10, 2):
        (tmp_path / f"ns{number}" / "sql" / "adapter").mkdir(parents=True)
        (tmp_path / f"ns{number}" / "sql" / "adapter" / "adapter_config.json").touch()
    assert list(find_adapters(tmp_path)) == [2, 4, 10]
