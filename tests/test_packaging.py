"""What the wheel holds: what users run; not the making of the demonstration model."""

import tomllib

from imports import CLONE, MODULES, imported

SETTINGS = tomllib.loads((CLONE / "pyproject.toml").read_text())["tool"]["setuptools"]
NOT_SHIPPED = (
    "specstream_mlx.convert.demo_model",
    "specstream_mlx.benchmarks.prediction",
    "specstream_mlx.benchmarks.rivals",
)
BY_MODULE = "specstream_mlx.benchmarks"
"""The package of which single modules are shipped."""

DATA_ALONE = {"specstream_mlx.benchmarks.typed"}


def test_every_package_is_in_the_wheel():
    places = {"specstream_mlx": "specstream_mlx", **SETTINGS["package-dir"]}
    found = {
        ".".join((package, *path.parent.relative_to(CLONE / place).parts))
        for package, place in places.items()
        for path in (CLONE / place).rglob("__init__.py")
    }
    shipped = {package for package in found if not package.startswith(NOT_SHIPPED)}
    assert found.issuperset(NOT_SHIPPED)
    assert shipped - {BY_MODULE} == set(SETTINGS["packages"]) - DATA_ALONE


def test_of_the_benchmarks_those_of_the_command_line_are_in_the_wheel():
    needed, waiting = set(), [module for module in MODULES if module[0] == "cli"]
    while waiting:
        module = waiting.pop()
        if module not in needed:
            needed.add(module)
            waiting += imported(module)
    benchmarks = {".".join(("specstream_mlx", *module)) for module in needed if len(module) == 2}
    benchmarks = {name for name in benchmarks if name.startswith(BY_MODULE)}
    assert benchmarks == set(SETTINGS["py-modules"])


def test_the_data_of_the_runtime_is_in_the_wheel():
    shipped, data = set(), {"bundled/streams/adapter_config.json", "heads/published_heads.json"}
    runtime = CLONE / "specstream_mlx"
    for package, patterns in SETTINGS["package-data"].items():
        folder = CLONE / package.replace(".", "/")
        shipped |= {path for pattern in patterns for path in folder.glob(pattern)}
    found = {
        path for path in runtime.rglob("*") if path.suffix in (".json", ".txt", ".safetensors")
    }
    assert found >= {runtime / name for name in data}
    assert found <= shipped


def test_the_page_is_in_the_wheel():
    folder = "apps/writing_tools"
    patterns = SETTINGS["package-data"]["specstream_mlx.apps.writing_tools"]
    shipped = {path for pattern in patterns for path in (CLONE / folder).glob(pattern)}
    page = {path for path in (CLONE / folder / "page").rglob("*") if path.is_file()}
    assert {path.suffix for path in page} == {".html", ".css", ".js", ".json", ".svg"}
    assert page == shipped
