"""A saved package's model, which coremltools' own reader does not read without writing.

It writes ``Manifest.json`` anew and, where it cannot, leaves a copy behind.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specstream_mlx.errors import UserError
from specstream_mlx.files import read_json, reason, short


def require_coremltools(command: str) -> None:
    """Check that coremltools is installed."""
    if find_spec("coremltools") is None:
        raise UserError(f"{command} needs coremltools: pip install 'specstream-mlx[coreml]'")


def model_file(path: Path) -> Path:
    """The file of a package's model; its weights are in the directory ``weights`` beside it.

    Raises:
        UserError: there is no package, or it does not say where its model is.
    """
    if not path.exists():
        raise UserError(f"{short(path)} does not exist, expected a Core ML package")
    if not path.is_dir():
        raise UserError(f"{path} is no Core ML package: it is a file, expected a directory")
    manifest = read_json(path / "Manifest.json")
    try:
        name = manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"]
        file = path / "Data" / name
        if ".." in Path(name).parts or not file.is_relative_to(path):
            raise ValueError(f"its model is {name}")
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{path / 'Manifest.json'} is damaged ({type(error).__name__}: {reason(error)}), "
            "expected that of a Core ML package"
        ) from None
    return file


def read_spec(path: Path) -> Any:
    """A package's ``Model`` protobuf: its programs and what is said of them, without weights."""
    file = model_file(path)
    from coremltools import proto  # which takes seconds, so what is not there is refused first

    spec = proto.Model_pb2.Model()
    try:
        spec.ParseFromString(file.read_bytes())
    except Exception as error:  # protobuf's is of no public type
        raise UserError(f"{path} is no Core ML package: {reason(error)}") from None
    return spec
