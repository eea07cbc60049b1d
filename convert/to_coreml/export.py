"""Export of directories to a package: checked before weights are read, written complete or not."""

import contextlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import coremltools as ct
import mlx.nn as nn
from coremltools.converters.mil.mil import Program
from mlx.utils import tree_flatten

from specstream_mlx.adapters.description import describe
from specstream_mlx.adapters.files import mounted, read_adapter
from specstream_mlx.errors import UserError, naming
from specstream_mlx.files import not_finite, staged_directory
from specstream_mlx.loading.load import read_model, read_tokenizer
from specstream_mlx.loading.model_paths import read_config
from specstream_mlx.models.fingerprint import fingerprint
from specstream_mlx.models.streams import Streams
from specstream_mlx.terminal.progress import Show

from .contents import FORMAT_VERSION, METADATA, Contents
from .faithful import Readings, check_faithful, readings
from .functions import Functions
from .supported import Sizes, check_adapter, check_base, check_names
from .weights import Encoding, WeightStore

BASE = "base"
"""The name before the functions of a base without an adapter."""


def _silent(done: float, total: float | None, description: str | None = None) -> None: ...


def export(
    model: Path,
    output: Path,
    adapters: Sequence[Path],
    sizes: Sizes,
    *,
    sampling: bool = False,
    check: bool = True,
    show: Show = _silent,
) -> list[Encoding]:
    """Write a Core ML package, and its tokenizer next to it; returns how each weight was written.

    Args:
        model: directory of the base.
        output: the package, whose name ends in ``.mlpackage``.
        adapters: directories, after which functions are called; without any the base is exported,
            with ``BASE`` for a name.
        sizes: fixed shapes.
        sampling: with functions for sampling.
        check: see whether the package writes what the model does, in half precision.
        show: called as it goes on.
    """
    names = [os.path.basename(os.path.realpath(path)).replace("-", "_") for path in adapters]
    check_names(names)
    sources = dict(zip(names, adapters, strict=True))
    if output.suffix != ".mlpackage":
        raise UserError(f"the output is {output}, expected a name that ends in .mlpackage")
    tokenizer_path = output.with_suffix(".tokenizer")
    for path in (output, tokenizer_path):
        if path.exists() or path.is_symlink():
            raise UserError(f"{path} exists already, expected a name that nothing is at")
    config = read_config(model)
    with naming(model / "config.json"):
        check_base(config, sizes)
    for path in adapters:
        description = describe(path)
        description.check_base(config)
        check_adapter(str(path), description.stream_config, description.config, sizes)
    expected: Readings = {}
    if check:
        show(0, None, "Reading a text with MLX")
        expected = readings(model, sources or {BASE: None}, sizes)
    show(0, None, "Reading the weights")
    base, full_config = read_model(model, to_run=False)
    tokenizer = read_tokenizer(model, full_config)
    unfit = not_finite(dict(tree_flatten(base.parameters())))
    if unfit is not None:
        raise UserError(f"{model}: {unfit} is not finite")
    builder = PackageBuilder(sizes, sampling, release=True)
    for name, path in sources.items():
        adapted, _, streams = mounted(base, read_adapter(path, base, config))
        builder.add(name, adapted, streams, show=show)
    if not sources:
        builder.add(BASE, base, None, show=show)
    facts = {
        "base": {
            "name": model.name,
            "model_type": config["model_type"],
            "fingerprint": fingerprint(config),
            "vocab_size": config["vocab_size"],
            "end_tokens": sorted(tokenizer.eos_token_ids),
        },
        "tokenizer": tokenizer_path.name,
        "chat_template": tokenizer.chat_template,
    }
    with (
        staged_directory(tokenizer_path, replace=False) as tokenizer_place,
        staged_directory(output, replace=False) as place,
        _temporary_files_in(place),
    ):
        show(0, None, "Writing the package")
        package = place / output.name
        builder.save(package, facts)
        check_faithful(Contents.read(package), expected, show)
        for part in list(package.iterdir()):
            part.rename(place / part.name)
        package.rmdir()
        tokenizer.save_pretrained(tokenizer_place)
    return builder.store.report


@contextmanager
def _temporary_files_in(directory: Path) -> Iterator[None]:
    """Let coremltools write there what it copies later: a killed export leaves it nowhere else."""
    before, tempfile.tempdir = tempfile.tempdir, tempfile.mkdtemp(dir=directory)
    try:
        yield
        shutil.rmtree(tempfile.tempdir)  # where it fails, all of the directory goes
    finally:
        tempfile.tempdir = before


class PackageBuilder:
    """Collects the functions of one adapter after the other over the same base."""

    def __init__(self, sizes: Sizes, sampling: bool = False, release: bool = False):
        self._sizes, self._sampling = sizes, sampling
        self.store, self._program = WeightStore(release), Program()
        self._adapters: dict[str, dict[str, Any]] = {}

    def add(
        self,
        name: str,
        model: nn.Module,
        streams: Streams | None,
        shortlists: bool | None = None,
        show: Show = _silent,
    ) -> None:
        """Add an adapter's functions; its LoRA is mounted on the model."""
        functions = Functions(model, streams, name, self._sizes, self.store, shortlists)
        makers = functions.makers(self._sampling)
        for number, (function, make) in enumerate(makers.items()):
            show(number, len(makers), f"Writing {function}")
            self._program.add_function(function, make())
        fields = "mode", "num_streams", "num_msa_layers", "stream_head", "prompt_template"
        config = None if streams is None else streams.config
        self._adapters[name] = {f: getattr(config, f) for f in fields} if config else {}

    def save(self, path: Path, facts: Mapping[str, Any]) -> None:
        """Write the package; ``facts`` are said in its metadata, too."""
        described = {
            "version": FORMAT_VERSION,
            "sizes": asdict(self._sizes) | {"rows": self._sizes.rows},
            "sampling": self._sampling,
            "adapters": self._adapters,
        }
        save(self._program, path, {METADATA: json.dumps({**described, **facts})})


def save(program: Program, path: Path, metadata: Mapping[str, str]) -> None:
    """Write a program of functions as a package."""
    program.default_function_name = next(iter(program.functions))
    program.export_as_multifunction = True
    with contextlib.redirect_stderr(io.StringIO()):  # coremltools' own bars
        model = ct.convert(
            program,
            source="milinternal",
            convert_to="mlprogram",
            minimum_deployment_target=ct.target.iOS18,
            compute_precision=ct.precision.FLOAT32,  # it is fp16 already, where it is to be
            pass_pipeline=ct.PassPipeline.EMPTY,
            skip_model_load=True,
        )
    model.user_defined_metadata.update(metadata)
    model.save(str(path))
    for part in path.rglob("*"):  # which coremltools lets only their owner read, in part
        part.chmod(0o755 if part.is_dir() else 0o644)
