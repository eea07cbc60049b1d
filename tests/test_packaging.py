"""What the wheel holds: what users run; not the making of the demonstration model, nor studies."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
NOT_SHIPPED = (
    "specstream_mlx.convert.demo_model",
    "specstream_mlx.benchmarks.prediction",
    "specstream_mlx.benchmarks.studies",
)


def test_every_package_is_in_the_wheel():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    places = {"specstream_mlx": "specstream_mlx", **settings["package-dir"]}
    found = {
        ".".join((package, *path.parent.relative_to(ROOT / place).parts))
        for package, place in places.items()
        for path in (ROOT / place).rglob("__init__.py")
    }
    shipped = {package for package in found if not package.startswith(NOT_SHIPPED)}
    assert found.issuperset(NOT_SHIPPED)
    assert shipped == set(settings["packages"])
