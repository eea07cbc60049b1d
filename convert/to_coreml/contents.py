"""What a package says of itself: sizes, adapters and the base's tokens, JSON in its metadata."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from specstream_mlx.errors import (
    MOST_STREAMS,
    Mode,
    UserError,
    install,
    is_integer,
    naming,
    shown,
)
from specstream_mlx.files import parse_json, reason, short
from specstream_mlx.loading.load import read_tokenizer
from specstream_mlx.options import (
    BOOLEAN,
    COUNT,
    OBJECT,
    TEXT,
    Kind,
    choice,
    each,
    integer,
    made_of,
    option,
    what,
)

from .supported import Sizes

METADATA = "specstream"
"""The key of the package's metadata under which ours are, as JSON."""

FORMAT_VERSION = 1
_FIELDS = ("num_streams", "mode", "stream_head", "prompt_template")


_FACTS = {
    "version": what(str(FORMAT_VERSION), FORMAT_VERSION.__eq__),
    "base": OBJECT,
    "sizes": OBJECT,
    "sampling": BOOLEAN,
    "adapters": what("an object with an adapter", lambda v: isinstance(v, dict) and bool(v)),
    "tokenizer": TEXT,
}
_OF_BASE = {
    "vocab_size": COUNT,
    "end_tokens": each("a list of token ids", lambda token: is_integer(token) and token >= 0),
    "fingerprint": TEXT,
}


def _fields(values: Any, name: str, kinds: Mapping[str, Kind]) -> dict[str, Any]:
    OBJECT.check(name, values)
    for field, kind in kinds.items():
        kind.check(field, values.get(field))
    return values


@dataclass(frozen=True)
class ExportedAdapter:
    """An adapter of a package, whose functions' names begin with its own; see ``StreamConfig``."""

    name: str = option(..., TEXT)
    num_streams: int = option(0, integer(0, MOST_STREAMS))
    mode: Mode = option("lossless", choice("lossless", "shared"))
    stream_head: str = option("plain", choice("plain", "conditioned"))
    prompt_template: str | None = option(None, TEXT)


@dataclass(frozen=True)
class Contents:
    """A package's own description."""

    path: Path
    sizes: Sizes
    sampling: bool  # whether there are ``logits<n>`` and ``draft``
    adapters: Mapping[str, ExportedAdapter]
    vocab_size: int
    end_tokens: tuple[int, ...]
    fingerprint: str  # of the base's architecture
    tokenizer: Path  # the directory next to the package

    @classmethod
    def read(cls, path: str | Path) -> "Contents":
        """Read the metadata of a package of ``export-coreml``."""
        path = Path(path)
        texts = dict(read_spec(path).description.metadata.userDefined)
        if METADATA not in texts:
            raise UserError(
                f"{path} has no metadata called {METADATA!r}, expected a package of export-coreml"
            )
        with naming(f"{path}: the metadata is damaged"):
            facts = _fields(parse_json(texts[METADATA], "it"), "it", _FACTS)
            base = _fields(facts["base"], "base", _OF_BASE)
            sizes = {f.name: facts["sizes"].get(f.name) for f in fields(Sizes)}
            adapters = {}
            for name, of in facts["adapters"].items():
                OBJECT.check(f"adapters' {shown(name)}", of)
                own = {field: of[field] for field in _FIELDS if field in of}
                with naming(f"adapters' {shown(name)}"):
                    adapters[name] = made_of(ExportedAdapter, {"name": name, **own})
            return cls(
                path=path,
                sizes=made_of(Sizes, sizes),
                sampling=facts["sampling"],
                adapters=adapters,
                vocab_size=base["vocab_size"],
                end_tokens=tuple(base["end_tokens"]),
                fingerprint=base["fingerprint"],
                tokenizer=path.parent / facts["tokenizer"],
            )

    def adapter(self, name: str | None = None) -> ExportedAdapter:
        """One of the adapters; ``None``: the only one."""
        there = f"{self.path} has {', '.join(self.adapters)}"
        if name is None:
            if len(self.adapters) > 1:
                raise UserError(f"no adapter was named, expected one of several: {there}")
            [name] = self.adapters
        if name not in self.adapters:
            raise UserError(f"the adapter is {shown(name)}, expected one of the package's: {there}")
        return self.adapters[name]

    def read_tokenizer(self) -> TokenizerWrapper:
        """The tokenizer next to the package."""
        if not self.tokenizer.is_dir():
            raise UserError(
                f"{self.tokenizer} is missing, expected the tokenizer's directory next to "
                f"{self.path}"
            )
        return read_tokenizer(self.tokenizer, {"eos_token_id": list(self.end_tokens)})


# The file, which coremltools' own reader does not read without writing Manifest.json anew ---------


def require_coremltools(command: str) -> None:
    """Check that coremltools is installed."""
    if find_spec("coremltools") is None:
        raise UserError(f"{command} needs coremltools: {install('coreml')}")


def model_file(path: Path) -> Path:
    """The file of a package's model; its weights are in the directory ``weights`` next to it."""
    file = path / "Data" / "com.apple.CoreML" / "model.mlmodel"
    if not file.is_file():
        problem = f"it has no {file.relative_to(path)}" if path.exists() else "it does not exist"
        raise UserError(f"{short(path)} is no Core ML package of export-coreml: {problem}")
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
