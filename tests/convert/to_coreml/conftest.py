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
bare = pair_fixture("bare")


@pytest.fixture(scope="session")
def base(common):
    """A tiny Llama of 4 bits with its tokenizer."""
    with common("to_coreml") as directory:
        base = directory / "base"
        return base if base.exists() else tiny_llama_directory(base, bits=4, num_hidden_layers=2)


@pytest.fixture(scope="session")
def adapters(common, base):
    """A shared adapter with LoRA, and lossless streams."""
    shared, streams = base.parent / "key-points", base.parent / "streams"
    with common("adapters"):
        if not streams.exists():
            sizes, template = {"num_streams": 2, "num_msa_layers": 1}, "Points of: {text}"
            fields = {"lora_rank": 4, "prompt_template": template}
            stream_adapter_directory(shared, base, mode="shared", **sizes, **fields)
            stream_adapter_directory(streams, base, mode="lossless", **sizes)
    return shared, streams


@pytest.fixture(scope="session")
def exported(common, base, adapters):
    """The package of both adapters that ``export-coreml`` writes, with functions for sampling."""
    with common("exported") as directory:
        package = directory / "x.mlpackage"
        if not package.exists():
            sizes = ("--context", 64, "--nodes", "4,6", "--chunk", 8, "--candidates", 2)
            flags = ("--adapter", adapters[0], "--streams", adapters[1], "--sampling", "--report")
            result = run("export-coreml", "--model", base, "--output", package, *sizes, *flags)
            assert result.exit_code == 0, result.output
            (directory / "stdout").write_text(result.stdout)
            (directory / "stderr").write_text(result.stderr)
    return package
