"""Packages of random models, each written once for all tests and all test processes."""

import fcntl
from contextlib import contextmanager

import pytest
from command_line import run
from tiny_models import stream_adapter_directory, tiny_llama_directory


@pytest.fixture(scope="session")
def common(tmp_path_factory, request):
    """A directory that all test processes share, and a lock by name within it."""
    directory = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):  # one of several processes
        directory = directory.parent

    @contextmanager
    def locked(name):
        with open(directory / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield directory / name

    return locked


def pair_fixture(name):
    """A ``Pair`` of one of ``PAIRS``."""

    @pytest.fixture(scope="session", name=name)
    def pair(common):
        from coreml_packages import PAIRS, Pair

        with common(f"{name}.mlpackage") as path:
            return Pair(path, *PAIRS[name])

    return pair


lossless = pair_fixture("lossless")
shared = pair_fixture("shared")
conditioned = pair_fixture("conditioned")


@pytest.fixture(scope="session")
def files(common):
    """A directory of ``base``, a tiny Llama of 4 bits; ``key-points``, a shared adapter with LoRA;
    ``streams``, lossless ones; and ``x.mlpackage``, which ``export-coreml`` writes of them.
    """
    with common("to_coreml") as directory:
        if not directory.exists():
            base = tiny_llama_directory(directory / "base", bits=4, num_hidden_layers=2)
            sizes, template = {"num_streams": 2, "num_msa_layers": 1}, "Points of: {text}"
            fields = {"lora_rank": 4, "prompt_template": template, **sizes}
            shared, streams = directory / "key-points", directory / "streams"
            stream_adapter_directory(shared, base, mode="shared", **fields)
            stream_adapter_directory(streams, base, mode="lossless", **sizes)
            flags = ("--context", 64, "--nodes", "4,6", "--chunk", 8, "--candidates", 2)
            flags += ("--adapter", shared, "--adapter", streams, "--sampling", "--report")
            package = directory / "x.mlpackage"
            result = run("export-coreml", "--model", base, "--output", package, *flags)
            assert result.exit_code == 0, result.output
            (directory / "stdout").write_text(result.stdout)
    return directory


@pytest.fixture(scope="session")
def base(files):
    return files / "base"


@pytest.fixture(scope="session")
def exported(files):
    return files / "x.mlpackage"
