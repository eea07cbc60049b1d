"""What the wheel holds: every package but the making of the demonstration model."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
NOT_SHIPPED = "specstream_mlx.convert.demo_model"


def test_every_package_is_in_the_wheel():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    places = {"specstream_mlx": "specstream_mlx", **settings["package-dir"]}
    found = {
        ".".join((package, *path.parent.relative_to(ROOT / place).parts))
        for package, place in places.items()
        for path in (ROOT / place).rglob("__init__.py")
    }
    shipped = {package for package in found if not package.startswith(NOT_SHIPPED)}
    assert NOT_SHIPPED in found
    assert shipped == set(settings["packages"])
