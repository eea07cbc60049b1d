"""From directories to a saved package: checked before a weight is read, and there whole or not."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from mlx.utils import tree_flatten

from specstream_mlx.adapters.description import describe
from specstream_mlx.adapters.files import mounted, read_adapter
from specstream_mlx.errors import UserError
from specstream_mlx.files import not_finite, staged_directory
from specstream_mlx.loading import read_config, read_model, read_tokenizer
from specstream_mlx.models.fingerprint import fingerprint

from .contents import Contents
from .faithful import check_faithful, readings
from .package import PackageBuilder, adapters_directory, save
from .supported import Sizes, check_adapter, check_base, check_names
from .weights import Encoding

BASE = "base"
"""The name before the functions of a base without an adapter."""

Progress = Callable[[float, float | None, str], None]
"""Is told how much is done, of how much, ``None`` where nobody knows, and what goes on."""


def tokenizer_directory(output: Path) -> Path:
    """The directory of a Core ML package's tokenizer, beside it."""
    return output.with_suffix(".tokenizer")


def export(
    model: Path,
    output: Path,
    adapters: Sequence[Path],
    sizes: Sizes,
    *,
    sampling: bool = False,
    supplied: bool = False,
    check: bool = True,
    show: Progress = lambda done, total, description: None,
) -> list[Encoding]:
    """Write a Core ML package, and its tokenizer beside it.

    Args:
        model: directory of the base.
        output: the package, whose name ends in ``.mlpackage``.
        adapters: directories; functions are called after their names. None: the bare base's, with
            ``BASE`` for a name.
        sizes: fixed shapes.
        sampling: with functions for sampling.
        supplied: one set of functions to which the host supplies an adapter's arrays; these are
            written too, float16, one behind the other, a file for each adapter.
        check: see whether the package writes what the model does, in half precision.
        show: is told how far it is.

    Returns:
        How each weight was written.

    Raises:
        UserError: something is not supported, does not fit or cannot be read or written, or the
            package would write something else.
    """
    names = [function_name(path) for path in adapters]
    check_names(names)
    if output.suffix != ".mlpackage":
        raise UserError(f"the output is {output}, expected a name that ends in .mlpackage")
    beside = [tokenizer_directory(output)]
    if supplied:
        beside.append(adapters_directory(output))
    for path in (output, *beside):
        if path.exists() or path.is_symlink():
            raise UserError(f"{path} exists already, expected a name that nothing is at")
    _check(model, adapters, sizes, supplied)
    expected = {}
    if check:
        show(0, None, "Reading a text with MLX")
        sources: dict[str, Path | None] = dict(zip(names, adapters, strict=True))
        expected = readings(model, sources or {BASE: None}, sizes)
    config = read_config(model)
    base, full_config = read_model(model, to_run=False)
    tokenizer = read_tokenizer(model, full_config)
    builder = PackageBuilder(sizes, sampling, release=True, supplied=supplied)
    total = builder.functions * (1 if supplied else max(1, len(adapters)))
    done = 0

    def function_done(name: str) -> None:
        nonlocal done
        done += 1
        show(done, total, f"Writing {name}")

    show(0, total, "Reading the weights")
    unfit = not_finite(dict(tree_flatten(base.parameters())))
    if unfit is not None:
        raise UserError(f"{model}: {unfit} is not finite")
    for name, path in zip(names, adapters, strict=True):
        own, _, streams = mounted(base, read_adapter(path, base, config))
        builder.add(name, own, streams, done=function_done)
    if not adapters:
        builder.add(BASE, base, None, done=function_done)
    facts = {
        "base": {
            "name": model.name,
            "model_type": config["model_type"],
            "fingerprint": fingerprint(config),
            "vocab_size": config["vocab_size"],
            "end_tokens": sorted(tokenizer.eos_token_ids),
        },
        "tokenizer": beside[0].name,
        "chat_template": tokenizer.chat_template,
    }
    del base  # of which the builder holds what it needs
    with ExitStack() as stack:
        places = [stack.enter_context(staged_directory(p, replace=False)) for p in beside]
        place = stack.enter_context(staged_directory(output, replace=False))
        stack.enter_context(_temporary_files_in(place))
        show(0, None, "Converting the program")
        model = builder.model(facts)
        show(0, None, "Writing the package")
        package = place / output.name
        save(model, package)
        for name, array in builder.arrays.items():
            array.astype("<f2").tofile(places[1] / f"{name}.bin")
        contents = Contents.read(package)
        if supplied:
            contents = replace(contents, supplied=places[1])
        check_faithful(package, contents, expected, show)
        for part in list(package.iterdir()):
            part.rename(place / part.name)
        package.rmdir()
        tokenizer.save_pretrained(places[0])
    return builder.report


@contextmanager
def _temporary_files_in(directory: Path) -> Iterator[None]:
    """Let coremltools write there what it copies later: a killed export leaves it nowhere else."""
    before, tempfile.tempdir = tempfile.tempdir, tempfile.mkdtemp(dir=directory)
    try:
        yield
        shutil.rmtree(tempfile.tempdir)  # where it fails, all of the directory goes
    finally:
        tempfile.tempdir = before


def function_name(adapter: Path) -> str:
    """The beginning of an adapter's functions: the directory's name."""
    return adapter.resolve().name.replace("-", "_")


def _check(model: Path, adapters: Sequence[Path], sizes: Sizes, supplied: bool) -> None:
    """All that can be checked of what is read without reading a weight."""
    if supplied and not adapters:
        raise UserError("no adapter is given, expected one at least whose kind is to be supplied")
    config = read_config(model)
    try:
        check_base(config, sizes)
    except UserError as error:
        raise UserError(f"{model / 'config.json'}: {error}") from None
    for path in adapters:
        found = describe(path)
        found.check_base(config)
        check_adapter(str(path), found.stream_config, found.config, sizes, supplied)
