"""Imported before every test module."""

import os
import shutil
from pathlib import Path

import pytest

# Threads of several test processes would wait for each other; OpenBLAS reads this when loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch's
# On CUDA MLX multiplies float32 in TF32, which is off by more than tests allow.
os.environ.setdefault("MLX_ENABLE_TF32", "0")

import specstream_mlx  # noqa: F401  (loads OpenBLAS, which must come before mlx.core)

# isort: split
from tiny_installation import install_in
from tiny_models import stream_adapter_directory, tiny_llama_directory
from toy_model import toy_in

from specstream_mlx import bundled, demonstration


@pytest.fixture(autouse=True, scope="session")
def new_cache(tmp_path_factory):
    """What is measured on this machine is neither taken from the user's cache nor left in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def common(tmp_path_factory) -> Path:
    """A directory that all test processes of a run share."""
    place = tmp_path_factory.getbasetemp()
    return place.parent if "PYTEST_XDIST_WORKER" in os.environ else place


@pytest.fixture(scope="session")
def toy_directory(common) -> Path:
    """``base``, ``streams`` and ``adapters/sql`` of the toy."""
    return toy_in(common / "toy")


@pytest.fixture(scope="session")
def tools(tmp_path_factory, toy_directory) -> Path:
    """The toy's streams, and its one adapter under the names of all that are bundled."""
    folder = tmp_path_factory.mktemp("toy")
    (folder / "streams").symlink_to(toy_directory / "streams")
    for name in bundled.adapter_names():
        shutil.copytree(toy_directory / "adapters/sql", folder / "adapters" / name)
    return folder


@pytest.fixture
def toy(toy_directory, monkeypatch) -> Path:
    """The directory of the toy, which stands in for the demonstration model."""
    monkeypatch.setattr(bundled, "ROOT", toy_directory)
    monkeypatch.setattr(demonstration, "base_path", lambda *_: toy_directory / "base")
    monkeypatch.setattr(demonstration, "directory", lambda: toy_directory / "base")
    return toy_directory


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_llama_directory(tmp_path_factory.mktemp("cli") / "base")


@pytest.fixture(scope="module")
def streams(base):
    return stream_adapter_directory(base.parent / "streams", base)


@pytest.fixture(scope="module")
def shared(base):
    return stream_adapter_directory(base.parent / "shared", base, mode="shared", lora_rank=4)


@pytest.fixture(scope="session")
def installation(tmp_path_factory) -> Path:
    return install_in(tmp_path_factory.mktemp("bundled"))


@pytest.fixture
def installed(installation, monkeypatch, tmp_path):
    """The directory of a tiny installation, which stands in for the package's; a new cache."""
    monkeypatch.setattr(bundled, "ROOT", installation)
    monkeypatch.setattr(demonstration, "base_path", lambda *_: installation / "base")
    monkeypatch.setattr(demonstration, "directory", lambda: installation / "base")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return installation
