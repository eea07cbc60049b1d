"""Packages of random models, each written once for all tests and all test processes."""

import pytest
from command_line import run, succeeded
from filelock import FileLock
from tiny_models import stream_adapter_directory, tiny_llama_directory


def pair_fixture(name):
    """A ``Pair`` of one of ``PAIRS``."""

    @pytest.fixture(scope="session", name=name)
    def pair(common):
        from coreml_packages import PAIRS, Pair

        with FileLock(common / f"{name}.lock"):
            return Pair(common / f"{name}.mlpackage", *PAIRS[name])

    return pair


lossless = pair_fixture("lossless")
shared = pair_fixture("shared")
conditioned = pair_fixture("conditioned")


@pytest.fixture(scope="session")
def files(common):
    """A directory of ``base``, a tiny Llama of 4 bits; ``key-points``, a shared adapter with LoRA;
    ``streams``, lossless ones; and ``x.mlpackage``, which ``export-coreml`` writes of them.
    """
    directory = common / "to_coreml"
    with FileLock(directory.with_suffix(".lock")):
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
            result = succeeded(run("export-coreml", "--model", base, "--output", package, *flags))
            (directory / "stdout").write_text(result.stdout)
    return directory


@pytest.fixture(scope="session")
def base(files):
    return files / "base"


@pytest.fixture(scope="session")
def exported(files):
    return files / "x.mlpackage"
